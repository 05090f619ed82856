"""Comparisons of narrow integers with numbers, sizes and index values, which are compared by their values, are made in the narrow type where that decides the same.

    x[i] < k,  x of u8, as i64(x[i]) < k    becomes   x[i] < u8(k)                                       where k is in 0 .. 255
                                                      k > 255 or (k >= 0 and x[i] < u8(k))               where it is the same for all elements
                                                      true or false                                      where it is beyond all that x can be

A vector of bytes is compared at once then, rather than as eight vectors of i64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from polyml.dtypes import DType, boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read
from polyml.graph.edit import map_equations, map_expressions
from polyml.graph.ir import Equation, Graph
from polyml.ops import OPS

__all__ = ["compare_narrowly"]

_TURNED: Mapping[str, str] = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
"""The same comparison with its sides exchanged."""


def compare_narrowly(graph: Graph) -> Graph:
    """The graph with such comparisons in narrow types."""
    ops = map_equations(graph.ops, lambda equation: map_expressions(equation, lambda expr: _changed(expr, equation)))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _changed(expr: Expr, equation: Equation) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    found = expr.with_args(_changed(arg, equation) for arg in expr.args)
    if found.op not in _TURNED or found.args[0].dtype != i64:
        return found
    for op, (wide, value) in ((found.op, found.args), (_TURNED[found.op], found.args[::-1])):
        match wide:
            case Apply(op="cast", args=(narrow,)) if narrow.dtype.is_integer and narrow.dtype.bits < 64:
                return _compared(op, narrow, value, equation) or found
    return found


def _compared(op: str, narrow: Expr, value: Expr, equation: Equation) -> Expr | None:
    """`narrow op value`, where the value's range is known, or it is the same in all instances; else None."""
    low, high = _range_of(narrow.dtype)
    known = _values_of(value, equation)
    if known is not None and low <= known[0] and known[1] <= high:
        return _in_type(op, narrow, value)
    if known is not None and (known[1] < low or high < known[0]):
        return Const(bool(OPS[op].meaning(0, -1 if known[1] < low else 1)), boolean)
    if not _is_uniform(value, equation):
        return None
    below, above = _compare("lt", value, low), _compare("gt", value, high)
    same = _in_type(op, narrow, value)
    match op:
        case "lt" | "le":
            return _either(above, _both(_compare("ge", value, low), same))
        case "gt" | "ge":
            return _either(below, _both(_compare("le", value, high), same))
        case "eq":
            return _both(_both(_compare("ge", value, low), _compare("le", value, high)), same)
        case _:
            return _either(_either(below, above), same)


def _in_type(op: str, narrow: Expr, value: Expr) -> Expr:
    dtype = narrow.dtype
    other = Const(value.value, dtype) if isinstance(value, Const) else Apply("cast", (value,), dtype)
    return Apply(op, (narrow, other), boolean)


def _range_of(dtype: DType) -> tuple[int, int]:
    return (0, (1 << dtype.bits) - 1) if dtype.kind == "u" else (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)


def _values_of(value: Expr, equation: Equation) -> tuple[int, int] | None:
    """The least and the greatest value that there may be, where the domain says."""
    match value:
        case Const(value=int(number)):
            return number, number
        case IndexValue(affine=place) if place.variables() <= set(equation.indices):
            ends = [place.constant, place.constant]
            for index in place.variables():
                stride, position = place.stride(index), equation.indices.index(index)
                low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
                if stride is None or not low.is_int() or not high.is_int():
                    return None
                reached = sorted((stride * low.to_python(), stride * high.to_python()))
                ends = [end + one for end, one in zip(ends, reached, strict=True)]
            return ends[0], ends[1]
        case _:
            return None


def _is_uniform(value: Expr, equation: Equation) -> bool:
    match value:
        case IndexValue(affine=place):
            return not place.variables() & set(equation.indices)
        case Read(subscripts=subscripts):
            return not subscripts
        case _:
            return False


def _compare(op: str, value: Expr, limit: int) -> Expr:
    return Apply(op, (value, Const(limit, i64)), boolean)


def _logical(op: str) -> Callable[[Expr, Expr], Expr]:
    return lambda one, other: Apply(op, (one, other), boolean)


_both, _either = _logical("and"), _logical("or")
