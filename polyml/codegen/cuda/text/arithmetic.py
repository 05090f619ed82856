"""One row per op of polyml.ops: the CUDA C text of its value.

Functions of the CUDA math library without fast-math flags; their errors in ulp, from the CUDA C++ Programming Guide ("Mathematical Functions", f32 / f64):
exp 2 / 1, log 1 / 1, sin and cos 2 / 2, tanh 2 / 1, erf 2 / 2, pow 4 / 2; sqrt and division are exact.
"""

from __future__ import annotations

from collections.abc import Callable

from polyml.codegen.cuda.text.helpers import helper_name
from polyml.codegen.cuda.text.types import c_type
from polyml.codegen.half_text import HALF, converted_half
from polyml.dtypes import DType, f32

__all__ = ["ARITHMETIC", "Row", "Use", "cast", "power"]

Use = Callable[[str, DType], None]
"""Told about each device function that a text calls."""

Row = Callable[[tuple[str, ...], DType, Use], str]
"""(texts of the arguments, their dtype, use) -> text. Arguments are atoms or in parentheses."""


def cast(text: str, source: DType, target: DType, use: Use) -> str:
    """NumPy's astype: floats truncate towards zero (what does not fit is any value), integers wrap, non-zero (NaN too) is true."""
    if source == target:
        return text
    if source.is_half or target.is_half:
        made, dtype = converted_half(text, source, target)
        for name in HALF:
            if name in made:
                use(name, f32)
        return cast(made, dtype, target, use)
    if target.kind == "b":
        return f"({text} != 0)"
    if source.is_float and target.is_integer and target.bits < 64:
        wide = "long long" if target.name == "u32" else "int"
        return f"({c_type(target)}){text}" if target.name == "i32" else f"({c_type(target)})({wide}){text}"
    return f"({c_type(target)}){text}"


def _wrapping(symbol: str) -> Row:
    """Integers wrap: C leaves overflow of signed ones open, so that they are computed unsigned."""

    def row(args: tuple[str, ...], dtype: DType, use: Use) -> str:
        if dtype.is_float:
            return f"({args[0]} {symbol} {args[1]})"
        if dtype.kind == "b":
            return f"({args[0]} {'&&' if symbol == '*' else '||'} {args[1]})"
        wide = "unsigned long long" if dtype.bits == 64 else "unsigned int"
        return f"({c_type(dtype)})(({wide}){args[0]} {symbol} ({wide}){args[1]})"

    return row


def _infix(symbol: str) -> Row:
    return lambda args, dtype, use: f"({args[0]} {symbol} {args[1]})"


def _truth(text: str, dtype: DType) -> str:
    return text if dtype.kind == "b" else f"({text} != 0)"


def _logical(symbol: str) -> Row:
    return lambda args, dtype, use: f"({_truth(args[0], dtype)} {symbol} {_truth(args[1], dtype)})"


def _helper(name: str) -> Row:
    def row(args: tuple[str, ...], dtype: DType, use: Use) -> str:
        use(name, dtype)
        return f"{helper_name(name, dtype)}({', '.join(args)})"

    return row


def _boolean(row: Row, text: Callable[[tuple[str, ...]], str]) -> Row:
    return lambda args, dtype, use: text(args) if dtype.kind == "b" else row(args, dtype, use)


def _math(name: str) -> Row:
    return lambda args, dtype, use: f"{name}{'f' if dtype.bits == 32 else ''}({', '.join(args)})"


def _rounding(name: str) -> Row:
    return lambda args, dtype, use: _math(name)(args, dtype, use) if dtype.is_float else args[0]


def _neg(args: tuple[str, ...], dtype: DType, use: Use) -> str:
    return f"(-{args[0]})" if dtype.is_float else _wrapping("-")((f"({c_type(dtype)})0", args[0]), dtype, use)


def _abs(args: tuple[str, ...], dtype: DType, use: Use) -> str:
    if dtype.is_float:
        return _math("fabs")(args, dtype, use)
    return args[0] if dtype.kind != "i" else f"({args[0]} < 0 ? {_neg(args, dtype, use)} : {args[0]})"


def _relu(args: tuple[str, ...], dtype: DType, use: Use) -> str:
    if dtype.kind in "ub":
        return args[0]
    zero = "0" if dtype.is_integer else ("0.0f" if dtype.bits == 32 else "0.0")
    return f"({args[0]} < {zero} ? ({c_type(dtype)}){zero} : {args[0]})"


def _rsqrt(args: tuple[str, ...], dtype: DType, use: Use) -> str:
    return f"(1.0f / sqrtf({args[0]}))" if dtype.bits == 32 else f"(1.0 / sqrt({args[0]}))"


def power(args: tuple[str, ...], dtype: DType, exponent: float | None, use: Use) -> str:
    """`x ** y`; a small constant whole exponent becomes multiplications."""
    if not dtype.is_float:
        return _helper("pow")(args, dtype, use)
    if exponent is not None and exponent in (1.0, 2.0, 3.0, 4.0, -1.0, -2.0) and _is_atom(args[0]):
        product = args[0] if abs(exponent) == 1 else f"({' * '.join([args[0]] * abs(int(exponent)))})"
        return product if exponent > 0 else f"({'1.0f' if dtype.bits == 32 else '1.0'} / {product})"
    return _math("pow")(args, dtype, use)


def _is_atom(text: str) -> bool:
    """Whether evaluating the text again costs nothing."""
    return text.replace("_", "").isalnum()


def _of_pairs(name: str) -> Row:
    def row(args: tuple[str, ...], dtype: DType, use: Use) -> str:
        use(name, f32)
        return f"{name}({', '.join(args)})"

    return row


ARITHMETIC: dict[str, Row] = {
    "add": _wrapping("+"), "sub": _wrapping("-"), "mul": _wrapping("*"), "div": _infix("/"), "floordiv": _helper("floordiv"), "mod": _helper("mod"),
    "bitand": _wrapping("&"), "bitor": _wrapping("|"), "bitxor": _wrapping("^"), "shl": _helper("shl"), "shr": _helper("shr"), "popcount": _helper("popcount"),
    "pow": lambda args, dtype, use: power(args, dtype, None, use), "neg": _neg, "abs": _abs,
    "min": _boolean(_helper("min"), lambda args: f"({args[0]} && {args[1]})"), "max": _boolean(_helper("max"), lambda args: f"({args[0]} || {args[1]})"),
    "eq": _infix("=="), "ne": _infix("!="), "lt": _infix("<"), "le": _infix("<="), "gt": _infix(">"), "ge": _infix(">="),
    "and": _logical("&&"), "or": _logical("||"), "not": lambda args, dtype, use: f"(!{_truth(args[0], dtype)})",
    "exp": _math("exp"), "log": _math("log"), "sqrt": _math("sqrt"), "rsqrt": _rsqrt, "sin": _math("sin"), "cos": _math("cos"), "tanh": _math("tanh"),
    "atan2": _math("atan2"), "log1p": _math("log1p"), "copysign": _math("copysign"),
    "sigmoid": _helper("sigmoid"), "erf": _math("erf"), "relu": _relu, "gelu": _helper("gelu"),
    "real": lambda args, dtype, use: f"{args[0]}.re", "imag": lambda args, dtype, use: f"{args[0]}.im",
    "complex": lambda args, dtype, use: f"{'c64' if dtype == f32 else 'c128'}{{{args[0]}, {args[1]}}}",
    "pair_bf16": _of_pairs("pair_bf16"), "dot_bf16": _of_pairs("dot_bf16"), "pair_i16": _of_pairs("pair_i16"), "dot_i16": _of_pairs("dot_i16"),
    "quad_i8": _of_pairs("quad_i8"), "dot_i8": _of_pairs("dot_i8"),
    "floor": _rounding("floor"), "ceil": _rounding("ceil"), "round": _rounding("rint"),
}  # fmt: skip
