"""A computed subscript that goes up or down along an index is out of range where it is so for the index's first or last value: `x[i64(round(c * i - s * j))]` is checked at four points, not at all of them.

Rounding keeps the order, so sums and products with what does not depend on the index go one way along it in floats, too, each index by itself. What is infinite or no number in between is so at an end: it comes from an infinity beside zero or the other infinity, and what is infinite stays it towards one end.
A conversion of what does not fit gives what is out of range as well (the smallest integer; the nearest one on other machines).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyml.dtypes import i64
from polyml.einsum_frontend.ranges import Range
from polyml.expressions import Apply, Const, Expr, IndexValue, substitute
from polyml.graph.builder.parts import variables_of

__all__ = ["at_ends"]

MOST = 2
"""Indices of which each point is checked twice; the points of others go through all values."""

_ROUND = ("floor", "ceil", "round", "neg")


def at_ends(place: Expr, ranges: Mapping[str, Range]) -> Sequence[Expr]:
    """Forms of a subscript of 64 bits, of which one is out of range where the subscript is for any values of the indices: itself, where it goes along none of them. ranges: of indices, each of which has all its values for all values of the others."""
    found: list[Expr] = [place]
    used = variables_of(place)
    known = [r for name, r in ranges.items() if name in used and not r.may_be_empty and _goes_along(place, name)]
    for r in known[:MOST]:
        assert r.low is not None, "internal: a range without a first value"
        assert r.high is not None, "internal: a range without a last value"
        ends = dict.fromkeys((r.low, r.high - 1))
        found = [substitute(form, {r.name: end}) for form in found for end in ends]
    return found


def _goes_along(place: Expr, name: str) -> bool:
    """Whether an integer is a float that goes one way along the index, and what is added to that is none that wraps."""
    match place:
        case Apply(op="cast", args=(inner,), dtype=dtype) if dtype == i64 and inner.dtype.is_float:
            return _is_monotone(inner, name)
        case Apply(op="add" | "sub" | "min", args=args):
            moving = [arg for arg in args if name in variables_of(arg)]
            numbers = all(isinstance(arg, Const | IndexValue) for arg in args if arg not in moving)
            # A number less something would be beyond the other end.
            first = place.op != "sub" or moving == [args[0]]
            return len(moving) == 1 and numbers and first and _goes_along(moving[0], name)
        case _:
            return False


def _is_monotone(value: Expr, name: str) -> bool:
    """Whether a float goes one way along the index."""
    match value:
        case Apply(op="cast", args=(IndexValue() as inner,)):
            return inner.affine.stride(name) is not None
        case Apply(op="cast", args=(inner,)):
            return inner.dtype.is_float and _is_monotone(inner, name)
        case Apply(op=op, args=(inner,)) if op in _ROUND:
            return _is_monotone(inner, name)
        case Apply(op="add" | "sub" | "mul" | "div" as op, args=(first, second)):
            moving = [arg for arg in (first, second) if name in variables_of(arg)]
            return len(moving) == 1 and (op != "div" or moving == [first]) and _is_monotone(moving[0], name)
        case _:
            return False
