"""Expressions and index arithmetic as CUDA C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import assert_never

from polyml.codegen.cuda.text.arithmetic import ARITHMETIC, cast, power
from polyml.codegen.cuda.text.helpers import helper_name
from polyml.codegen.cuda.text.types import c_constant, c_type
from polyml.codegen.loops import Variable
from polyml.codegen.ranges import Ranges
from polyml.dtypes import DType, boolean, f32, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.ops import OPS
from polyml.records import dataclass
from polyml.sets.affine import Affine, Atom, FloorDiv, affine

__all__ = ["EMITTED", "Writer"]

EMITTED: frozenset[str] = frozenset({"select", "cast", *ARITHMETIC})
"""The ops that a Writer knows."""


@dataclass(slots=True)
class Writer:
    """Writes expressions of one kernel. names: of its variables in C. wide: index values need 64 bits. helpers: the device functions called so far.
    loaded: reads that registers hold already, under what name."""

    variables: dict[str, Variable]
    names: Mapping[str, str]
    wide: bool
    helpers: set[tuple[str, DType | None]] = field(default_factory=set)
    ranges: Ranges = field(default_factory=Ranges)
    loaded: dict[Read, str] = field(default_factory=dict)

    @property
    def index_type(self) -> str:
        return "long long" if self.wide else "int"

    def use(self, name: str, dtype: DType | None) -> None:
        self.helpers.add((name, dtype))

    # -- values -------------------------------------------------------------------------------------------------------------------

    def value(self, expr: Expr) -> str:
        """The expression's value: an atom, a call, or in parentheses."""
        match expr:
            case Const() if expr.dtype.is_half:
                return cast(c_constant(expr.value, f32), f32, expr.dtype, self.use)
            case Const():
                text = c_constant(expr.value, expr.dtype)
                return f"({text})" if text.startswith(("-", "(")) else text
            case IndexValue():
                return f"({c_type(expr.dtype)})({self.index(expr.affine)})"
            case Read():
                return self.loaded.get(expr) or self.element(expr.tensor, expr.subscripts)
            case Apply(op="select"):
                chosen, if_true, if_false = expr.args
                # Only the chosen value is evaluated, as for any conditional expression of C.
                return f"({self.condition(chosen)} ? {self.value(if_true)} : {self.value(if_false)})"
            case Apply(op="cast"):
                return cast(self.value(expr.args[0]), expr.args[0].dtype, expr.dtype, self.use)
            case Apply():
                return self.apply(expr)
            case _:
                assert_never(expr)

    def apply(self, expr: Apply) -> str:
        dtype = expr.args[0].dtype
        args = tuple(self.value(arg) for arg in expr.args)
        if OPS[expr.op].rule == "float" and not dtype.is_float:
            args, dtype = tuple(cast(arg, dtype, expr.dtype, self.use) for arg in args), expr.dtype
        if expr.op == "pow":
            exponent = expr.args[1].value if isinstance(expr.args[1], Const) else None
            return power(args, dtype, exponent, self.use)
        return ARITHMETIC[expr.op](args, dtype, self.use)

    def condition(self, expr: Expr) -> str:
        """A truth value."""
        if isinstance(expr, Apply) and expr.op == "and":
            return " && ".join(f"({part})" if "||" in part else part for part in map(self.condition, expr.args))
        if isinstance(expr, Apply) and expr.op in ("eq", "ne", "lt", "le", "gt", "ge"):
            left, right = expr.args
            if isinstance(left, IndexValue) and isinstance(right, IndexValue | Const) and right.dtype == i64:
                symbol = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[expr.op]
                other = right.affine if isinstance(right, IndexValue) else affine(int(right.value))
                return f"{self.index(left.affine)} {symbol} {self.index(other)}"
        text = self.value(expr)
        return text if expr.dtype == boolean else f"({text} != 0)"

    # -- elements -----------------------------------------------------------------------------------------------------------------

    def element(self, name: str, subscripts: tuple[Subscript, ...]) -> str:
        """An element of a variable, as an lvalue."""
        variable = self.variables[name]
        if variable.scope == "register" or not variable.shape:
            return self.names[name] if variable.scope != "global" else f"{self.names[name]}[0]"
        return f"{self.names[name]}[{self.address(variable, subscripts)}]"

    def address(self, variable: Variable, subscripts: tuple[Subscript, ...]) -> str:
        """The element's position, in elements: one affine expression where all strides are numbers."""
        strides = variable.memory_strides
        total, parts = affine(0), []
        for position, (subscript, stride) in enumerate(zip(subscripts, strides, strict=True)):
            if isinstance(subscript, Affine) and stride is not None:
                total = total + subscript * stride
            elif stride is not None:
                number = subscript if not isinstance(subscript, Affine) else IndexValue(subscript, i64)
                text = cast(self.value(number), number.dtype, i64, self.use)
                parts.append(text if stride == 1 else f"{text} * {stride}")
            else:
                index = f"({self.index(subscript)})" if isinstance(subscript, Affine) else self.value(subscript)
                extents = " * ".join(f"({self.index(extent)})" for extent in variable.shape[position + 1 :])
                parts.append(f"(long long){index} * {extents}")
        if total != affine(0) or not parts:
            parts.append(self.index(total))
        return " + ".join(parts)

    # -- indices ------------------------------------------------------------------------------------------------------------------

    def index(self, value: Affine) -> str:
        """An index value, not in parentheses."""
        parts: list[str] = []
        for atom, coefficient in sorted(value.terms, key=lambda term: term[1] < 0):
            magnitude = "" if abs(coefficient) == 1 else f"{abs(coefficient)} * "
            sign = "-" if coefficient < 0 else "+"
            parts.append((f" {sign} " if parts else ("-" if coefficient < 0 else "")) + magnitude + self.atom(atom))
        if value.constant or not parts:
            number = f"{abs(value.constant)}LL" if self.wide and abs(value.constant) >= 2**31 else abs(value.constant)
            parts.append(
                f" {'-' if value.constant < 0 else '+'} {number}"
                if parts
                else f"{'-' if value.constant < 0 else ''}{number}"
            )
        return "".join(parts)

    def atom(self, atom: Atom) -> str:
        match atom:
            case str():
                return self.names[atom]
            case FloorDiv():
                low = self.ranges.lowest(atom.numerator)
                if low is not None and low >= 0:
                    return f"(({self.index(atom.numerator)}) / {atom.denominator})"
                self.use("floor", None)
                call = f"{helper_name('floor', None)}({self.index(atom.numerator)}, {atom.denominator})"
                return call if self.wide else f"(int){call}"
            case _:
                texts = [self.index(operand) for operand in atom.operands]
                while len(texts) > 1:
                    left, right = texts.pop(0), texts.pop(0)
                    symbol = "<" if atom.kind == "min" else ">"
                    texts.insert(0, f"(({left}) {symbol} ({right}) ? ({left}) : ({right}))")
                return texts[0]
