"""Expressions as C text, with as few parentheses as C's precedence allows and none left out that decide the order of roundings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

from polyml.codegen.c.helpers import c_type, suffix
from polyml.codegen.c.names import Names
from polyml.codegen.half_text import converted_half
from polyml.dtypes import DType, boolean, f32, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read
from polyml.sets.affine import Affine, Atom, Extremum, FloorDiv

__all__ = ["EMITTED", "ReadText", "affine_text", "expression_text"]

ReadText = Callable[[Read], str]
"""How an element is written."""

# Precedences, the tighter the higher: what binds less than its surroundings goes into parentheses.
_CHOICE, _OR, _AND, _EQUAL, _ORDER, _SUM, _PRODUCT, _PREFIX, _PRIMARY = range(1, 10)

_BINARY: dict[str, tuple[str, int]] = {
    "add": ("+", _SUM), "sub": ("-", _SUM), "mul": ("*", _PRODUCT), "div": ("/", _PRODUCT),
    "eq": ("==", _EQUAL), "ne": ("!=", _EQUAL), "lt": ("<", _ORDER), "le": ("<=", _ORDER), "gt": (">", _ORDER), "ge": (">=", _ORDER),
    "and": ("&&", _AND), "or": ("||", _OR),
}  # fmt: skip
_MATH = {"exp", "log", "log1p", "sqrt", "sin", "cos", "tanh", "atan2", "copysign", "erf"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "rint"}
_HELPERS = {
    "min",
    "max",
    "relu",
    "sigmoid",
    "gelu",
    "mod",
    "floordiv",
    "bitand",
    "bitor",
    "bitxor",
    "shl",
    "shr",
    "popcount",
}

EMITTED = frozenset(
    (
        *_BINARY,
        *_MATH,
        *_ROUNDING,
        *_HELPERS,
        "neg",
        "not",
        "abs",
        "pow",
        "rsqrt",
        "select",
        "cast",
        "real",
        "imag",
        "complex",
        "pair_bf16",
        "dot_bf16",
        "pair_i16",
        "dot_i16",
        "quad_i8",
        "dot_i8",
    )
)
"""The ops that `expression_text` knows."""


def expression_text(expr: Expr, names: Names, read: ReadText) -> str:
    """The expression as C."""
    return _Writer(names, read).text(expr, _CHOICE)


def affine_text(value: Affine, names: Names) -> str:
    """A quasi-affine integer as C, of type int64_t; loose like a sum."""
    parts: list[str] = []
    for atom, coefficient in sorted(value.terms, key=lambda term: term[1] < 0):
        magnitude = "" if abs(coefficient) == 1 else f"{abs(coefficient)} * "
        sign = "-" if coefficient < 0 else "+"
        parts.append((f" {sign} " if parts else ("-" if coefficient < 0 else "")) + magnitude + _atom(atom, names))
    if value.constant or not parts:
        sign = "-" if value.constant < 0 else "+"
        parts.append(f" {sign} {abs(value.constant)}" if parts else str(value.constant))
    return "".join(parts)


def _atom(atom: Atom, names: Names) -> str:
    match atom:
        case str():
            return names.integer(atom)
        case FloorDiv():
            return f"floordiv_i64({affine_text(atom.numerator, names)}, {atom.denominator})"
        case Extremum():
            text = affine_text(atom.operands[0], names)
            for operand in atom.operands[1:]:
                text = f"{atom.kind}_i64({text}, {affine_text(operand, names)})"
            return text
        case _:
            assert_never(atom)


class _Writer:
    def __init__(self, names: Names, read: ReadText) -> None:
        self.names, self.read = names, read

    def text(self, expr: Expr, loosest: int) -> str:
        """The expression where only what binds at least as tightly as `loosest` may stand."""
        made, precedence = self.parts(expr)
        return made if precedence >= loosest else f"({made})"

    def parts(self, expr: Expr) -> tuple[str, int]:
        """Its text and how tightly that binds."""
        match expr:
            case Const() if expr.dtype.is_half:
                return self.parts(Apply("cast", (Const(expr.value, f32),), expr.dtype))
            case Const():
                return _number(expr.value, expr.dtype)
            case IndexValue():
                whole = affine_text(expr.affine, self.names)
                binds = _PRIMARY if expr.affine.name or whole.isdigit() else _SUM
                return (whole, binds) if expr.dtype == i64 else (self._cast(whole, binds, expr.dtype), _PREFIX)
            case Read():
                return self.read(expr), _PRIMARY
            case Apply():
                return self.apply(expr)
            case _:
                assert_never(expr)

    def _cast(self, text: str, precedence: int, dtype: DType) -> str:
        return f"({c_type(dtype)}){text if precedence >= _PREFIX else f'({text})'}"

    def apply(self, expr: Apply) -> tuple[str, int]:
        dtype = expr.args[0].dtype
        match expr.op:
            case "select":
                condition, yes, no = expr.args
                parts = self.truth(condition, _OR), self.text(yes, _OR), self.text(no, _CHOICE)
                return f"{parts[0]} ? {parts[1]} : {parts[2]}", _CHOICE
            case "cast" if dtype.is_half or expr.dtype.is_half:
                return self.half(expr)
            case "cast" if expr.dtype == boolean and dtype != boolean:
                return f"{self.text(expr.args[0], _EQUAL + 1)} != 0", _EQUAL
            case "cast":
                return (*self.parts(expr.args[0]),) if dtype == expr.dtype else self.converted(expr)
            case "and" | "or" | "not":
                return self.logical(expr)
            case "add" | "mul" if dtype == boolean:
                return self.logical(Apply("or" if expr.op == "add" else "and", expr.args, boolean))
            case op if op in _BINARY:
                return self.binary(expr)
            case "neg":
                return self.narrowed(f"-{self.text(expr.args[0], _PREFIX + 1)}", _PREFIX, expr.dtype)
            case "real" | "imag":
                return f"{self.text(expr.args[0], _PRIMARY)}.{expr.op[:2]}", _PRIMARY
            case "complex":
                return f"({c_type(expr.dtype)}){{{', '.join(self.text(arg, _CHOICE) for arg in expr.args)}}}", _PREFIX
            case "pair_bf16" | "dot_bf16" | "pair_i16" | "dot_i16" | "quad_i8" | "dot_i8":
                return f"{expr.op}({', '.join(self.text(arg, _CHOICE) for arg in expr.args)})", _PRIMARY
            case _:
                return self.call(expr), _PRIMARY

    def half(self, expr: Apply) -> tuple[str, int]:
        """Conversions of half precision, which is kept as its bits."""
        source = expr.args[0].dtype
        if source == expr.dtype:
            return self.parts(expr.args[0])
        text, dtype = converted_half(self.text(expr.args[0], _CHOICE), source, expr.dtype)
        if dtype == expr.dtype:
            return text, _PRIMARY
        if expr.dtype == boolean:
            return f"{text} != 0", _EQUAL
        if expr.dtype.is_half:
            return converted_half(text, dtype, expr.dtype)[0], _PRIMARY
        return self._cast(text, _PRIMARY, expr.dtype), _PREFIX

    def converted(self, expr: Apply) -> tuple[str, int]:
        return self._cast(*self.parts(expr.args[0]), expr.dtype), _PREFIX

    def binary(self, expr: Apply) -> tuple[str, int]:
        symbol, precedence = _BINARY[expr.op]
        apart = precedence in (_EQUAL, _ORDER)  # compilers warn about comparisons of comparisons
        left = self.text(expr.args[0], _SUM if apart else precedence)
        right = self.text(expr.args[1], _SUM if apart else precedence + 1)
        return self.narrowed(f"{left} {symbol} {right}", precedence, expr.dtype)

    def narrowed(self, text: str, precedence: int, dtype: DType) -> tuple[str, int]:
        """C computes small integers as int: back to the type that they wrap in."""
        if dtype.is_integer and dtype.bits < 32:
            return self._cast(text, precedence, dtype), _PREFIX
        return text, precedence

    def logical(self, expr: Apply) -> tuple[str, int]:
        if expr.op == "not":
            return f"!{self.truth(expr.args[0], _PREFIX)}", _PREFIX
        symbol, precedence = _BINARY[expr.op]
        # An `and` inside an `or` in parentheses: compilers ask for them.
        parts = [self.truth(arg, precedence, inside=expr.op) for arg in expr.args]
        return f"{parts[0]} {symbol} {parts[1]}", precedence

    def truth(self, expr: Expr, loosest: int, inside: str = "") -> str:
        if expr.dtype != boolean:
            return self.text(Apply("cast", (expr,), boolean), loosest)
        other = isinstance(expr, Apply) and expr.op in ("and", "or") and expr.op != inside
        return self.text(expr, _EQUAL if inside and other else loosest)

    def call(self, expr: Apply) -> str:
        dtype, op = expr.args[0].dtype, expr.op
        arguments = ", ".join(self.text(arg, _CHOICE) for arg in expr.args)
        if op in _ROUNDING:
            return (
                f"{_ROUNDING[op]}{suffix(dtype)}({arguments})" if dtype.is_float else self.text(expr.args[0], _PRIMARY)
            )
        if op == "abs":
            if dtype.is_float:
                return f"fabs{suffix(dtype)}({arguments})"
            return f"abs_{dtype}({arguments})" if dtype.kind == "i" else self.text(expr.args[0], _PRIMARY)
        if op == "relu" and dtype.kind in "ub":
            return self.text(expr.args[0], _PRIMARY)
        if op in ("min", "max") and dtype == boolean:
            return "(" + self.logical(Apply("and" if op == "min" else "or", expr.args, boolean))[0] + ")"
        if op == "pow":
            return self.power(expr)
        if op in _MATH or op == "rsqrt":
            name = "sqrt" if op == "rsqrt" else op
            called = f"{name}{suffix(expr.dtype)}({arguments})"
            return f"(1 / {called})" if op == "rsqrt" else called
        assert op in _HELPERS, f"internal: no C for {op}"
        return f"{op}_{expr.dtype}({arguments})"

    def power(self, expr: Apply) -> str:
        base, exponent = expr.args
        if isinstance(exponent, Const) and exponent.value in (1, 2, 3) and isinstance(base, Read):
            return "(" + " * ".join([self.read(base)] * int(exponent.value)) + ")"
        arguments = ", ".join(self.text(arg, _CHOICE) for arg in expr.args)
        return f"pow{suffix(expr.dtype)}({arguments})" if expr.dtype.is_float else f"pow_{expr.dtype}({arguments})"


def _number(value: float, dtype: DType) -> tuple[str, int]:
    """A number and how tightly its text binds."""
    if dtype == boolean:
        return ("true" if value else "false"), _PRIMARY
    if dtype.is_float:
        number = float(value)
        if math.isnan(number):
            return "NAN", _PRIMARY
        text = "INFINITY" if math.isinf(number) else repr(abs(number)) + suffix(dtype)
        return (f"-{text}", _PREFIX) if math.copysign(1, number) < 0 else (text, _PRIMARY)
    number = int(value)
    if dtype.kind == "u":
        return (f"UINT64_C({number})" if dtype.bits == 64 else f"{number}u"), _PRIMARY
    if number == -(1 << 63):
        return "INT64_MIN", _PRIMARY
    if number == -(1 << 31) and dtype.bits == 32:
        return "INT32_MIN", _PRIMARY
    text = f"INT64_C({abs(number)})" if abs(number) >= 1 << (15 if dtype.bits == 64 else 31) else str(abs(number))
    return (f"-{text}", _PREFIX) if number < 0 else (text, _PRIMARY)
