"""Weights of a sum that fade by one factor from each element of the result to the next, whatever the term: `a**(m - k)`, `exp(-(t[m] - t[k]) / tau)`, `exp(x[k] - h[m])`.

What a sum `sum[k <= m](w(m, k) * x[k])` has summed up so far enters the next element with the factor w(m, k) / w(m - 1, k), which k must have no part in: exponential averages, filters of first order, discounted returns, kernels of event times, softmax
over growing ranges. Powers have their base for it; exponentials that of the difference of what their argument has of m.

Source: reuse with an operation in between, Gautam and Rajopadhye, "Simplifying reductions" (POPL 2006), section 4.
"""

from __future__ import annotations

from collections.abc import Collection

from polyml.expressions import Apply, Const, Expr, IndexValue, factors_of, product_of, substitute
from polyml.graph.builder.parts import variables_of
from polyml.graph.rules.algebra.simplify import simplify_expression
from polyml.sets.affine import Affine, affine

__all__ = ["decay_of"]

_MOST = 8
"""Steps of an exponent from an element to the next that are multiplied."""


def decay_of(body: Expr, index: str, reduced: Collection[str], step: int) -> Expr | None:
    """By what the terms change when the index does by a step: an expression without the reduced indices; None where there is no such factor for all of them."""
    ratios: list[Expr] = []
    for factor in factors_of(body):
        if index in variables_of(factor):
            ratio = _ratio(factor, index, reduced, step)
            if ratio is None:
                return None
            ratios.append(ratio)
    return product_of(ratios) if ratios else None


def _ratio(weight: Expr, index: str, reduced: Collection[str], step: int) -> Expr | None:
    match weight:
        case Apply(op="cast", args=(inner,)) if inner.dtype.is_float and weight.dtype.is_float:
            ratio = _ratio(inner, index, reduced, step)
            return None if ratio is None else simplify_expression(weight.with_args((ratio,)))
        case Apply(op="pow", args=(base, exponent), dtype=dtype):
            place = _index_of(exponent)
            grows = None if place is None else place.stride(index)
            if not grows or abs(grows) > _MOST or not _is_fixed(base, index, reduced):
                return None
            power = product_of([base] * abs(grows))
            return power if grows * step > 0 else Apply("div", (Const(1.0, dtype), power), dtype)
        case Apply(op="exp", args=(argument,), dtype=dtype):
            moved = _difference(argument, index, reduced, step)
            return None if moved is None else Apply("exp", (moved,), dtype)
        case _:
            return None


def _difference(expr: Expr, index: str, reduced: Collection[str], step: int) -> Expr | None:
    """The expression, which has the index, less what it was a step earlier; None where the reduced indices have a part in that."""
    place = _index_of(expr)
    if place is not None:
        grows = place.stride(index)
        return None if grows is None else Const(float(grows * step), expr.dtype)
    match expr:
        case Apply(op="add" | "sub" as op, args=(x, y), dtype=dtype):
            if index not in variables_of(y):
                return _difference(x, index, reduced, step)
            second = _difference(y, index, reduced, step)
            if second is None:
                return None
            if index not in variables_of(x):
                return Apply("neg", (second,), dtype) if op == "sub" else second
            first = _difference(x, index, reduced, step)
            return None if first is None else Apply(op, (first, second), dtype)
        case Apply(op="neg", args=(x,)):
            moved = _difference(x, index, reduced, step)
            return None if moved is None else expr.with_args((moved,))
        case Apply(op="mul", args=(x, y)) if _is_fixed(x, index, reduced):
            moved = _difference(y, index, reduced, step)
            return None if moved is None else expr.with_args((x, moved))
        case Apply(op="mul" | "div", args=(x, y)) if _is_fixed(y, index, reduced):
            moved = _difference(x, index, reduced, step)
            return None if moved is None else expr.with_args((moved, y))
    if not variables_of(expr).isdisjoint(reduced):
        return None
    return Apply("sub", (expr, substitute(expr, {index: affine(index) - step})), expr.dtype)


def _is_fixed(expr: Expr, index: str, reduced: Collection[str]) -> bool:
    return variables_of(expr).isdisjoint({index, *reduced})


def _index_of(expr: Expr) -> Affine | None:
    """The index arithmetic that a floating-point number is; None where it is anything else."""
    inner = expr.args[0] if isinstance(expr, Apply) and expr.op == "cast" else expr
    return inner.affine if isinstance(inner, IndexValue) and expr.dtype.is_float else None
