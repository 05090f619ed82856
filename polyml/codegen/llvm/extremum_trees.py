"""Minima and maxima of minima and maxima, as in networks that sort or find a median: NaN is looked for among the numbers that they are made of, once for all.

An extremum that hands NaN on takes three instructions on x86, one that does not takes one. A tree of them is NaN where one of its leaves is, whatever it chooses. So it is made of the latter, and a comparison for
two leaves each says where the result is to be NaN. What a register of the loop body got is followed into the trees of those that read it; LLVM drops what nobody asks for in the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from polyml.codegen.llvm.arithmetic import maximum, minimum
from polyml.codegen.llvm.ir import Builder, Value, constant
from polyml.dtypes import DType
from polyml.expressions import Apply, Expr
from polyml.records import dataclass

__all__ = ["Extremum", "extremum"]

_MOST_LEAVES = 16
"""Numbers that a tree is made of; those that are made of more are leaves themselves."""

_MOST_STEPS = 48
"""Minima and maxima in a tree."""

_NAN = re.compile(r"0x[7F]FF(?!0{13})")
"""In the text of a constant."""


@dataclass(slots=True)
class Extremum:
    """A minimum or maximum of two others, or leaves. leaves: of the whole tree, those that may be NaN. costs: instructions of each step of the tree that hands NaN on. exact: with NaN handed on; plain: without."""

    op: str
    dtype: DType
    operands: tuple[Extremum | Value, Extremum | Value]
    leaves: tuple[Value, ...]
    costs: dict[int, int] = field(default_factory=dict)
    exact: Value | None = None
    plain: Value | None = None

    @property
    def saves(self) -> bool:
        """Whether looking at the leaves takes fewer instructions than looking at each step's operands."""
        tests = (len(self.leaves) + 1) // 2
        return len(self.costs) + 2 * tests < sum(self.costs.values())


def extremum(b: Builder, expr: Apply, lanes: int, values: Mapping[Expr, Value]) -> Value:
    """The minimum or maximum of floats that the expression is, in so many lanes. values: of its leaves."""
    found = _tree(b, expr, lanes, values)
    value = _exact(b, found)
    b.extrema[value.text] = found
    return value


def _tree(b: Builder, expr: Apply, lanes: int, values: Mapping[Expr, Value]) -> Extremum:
    first, second = (_operand(b, arg, lanes, values) for arg in expr.args)
    parts = [(first, _leaves(first)), (second, _leaves(second))]
    together = dict.fromkeys(v for _, leaves in parts for v in leaves)
    costs = {key: cost for part, _ in parts if isinstance(part, Extremum) for key, cost in part.costs.items()}
    if len(together) > _MOST_LEAVES or len(costs) >= _MOST_STEPS:
        first, second = (_exact(b, part) if isinstance(part, Extremum) else part for part, _ in parts)
        costs, together = {}, dict.fromkeys((first, second))
    made = Extremum(expr.op, expr.dtype, (first, second), tuple(together), costs)
    numbers = any(not _leaves(part) for part in (first, second))
    costs[id(made)] = 1 if numbers else 3
    return made


def _operand(b: Builder, expr: Expr, lanes: int, values: Mapping[Expr, Value]) -> Extremum | Value:
    if expr not in values:
        assert isinstance(expr, Apply), "internal: a leaf without a value"
        return _tree(b, expr, lanes, values)
    value = values[expr]
    return b.extrema.get(value.text, value) if value.lanes == lanes else b.splat(value, lanes)


def _leaves(operand: Extremum | Value) -> tuple[Value, ...]:
    if isinstance(operand, Extremum):
        return operand.leaves
    return () if operand.is_constant and not _NAN.search(operand.text) else (operand,)


def _exact(b: Builder, made: Extremum) -> Value:
    if made.exact is None:
        if made.saves:
            made.exact = _nan_where(b, _plain(b, made), made.leaves)
        else:
            first, second = (_exact(b, part) if isinstance(part, Extremum) else part for part in made.operands)
            made.exact = (minimum if made.op == "min" else maximum)(b, first, second, made.dtype)
    return made.exact


def _plain(b: Builder, made: Extremum) -> Value:
    if made.plain is None:
        first, second = (_plain(b, part) if isinstance(part, Extremum) else part for part in made.operands)
        better = b.compare("olt" if made.op == "min" else "ogt", first, second)
        made.plain = b.select(better, first, second)
    return made.plain


def _nan_where(b: Builder, value: Value, leaves: tuple[Value, ...]) -> Value:
    """The value, and NaN where a leaf is."""
    if not leaves:
        return value
    ordered = sorted(leaves, key=lambda leaf: leaf.text)
    key = ("unordered", *(leaf.text for leaf in ordered))
    mask = b.known.get(key)
    if mask is None:
        for first, second in zip(ordered[::2], [*ordered[1::2], ordered[-1]], strict=False):
            test = b.compare("uno", first, second)
            mask = test if mask is None else b.binary("or", mask, test)
        assert mask is not None
        b.known[key] = mask
    if b.module.instructions.scalef or value.lanes == 1:
        return b.select(mask, constant(value.type, float("nan")), value)
    # All bits set are a NaN, and a mask of AVX is all bits.
    integers = value.type.integers()
    bits = b.emit(integers, f"bitcast {value} to {integers}")
    marked = b.binary("or", bits, b.convert("sext", mask, integers.element))
    return b.emit(value.type, f"bitcast {marked} to {value.type}")
