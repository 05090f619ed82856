"""Weights that are stored as short numbers are multiplied by their scales first.

    y[m, n] = sum over k of x[m, k] * f32(w[n, k]) * s[n, k // 32]  ->  sum over k of x[m, k] * (f32(w[n, k]) * s[n, k // 32])

So what is made of a weight is one number for all m: for the rows of a register tile, or for a tensor that is made ahead (rules/reuse/ahead.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from polyml.expressions import Apply, Expr, Read, reads_of, walk
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.sets.affine import Affine

__all__ = ["group_scales"]


def group_scales(graph: Graph) -> Graph:
    """The graph with factors of sums that belong to a short number's indices beside it."""
    ops = map_equations(graph.ops, _grouped)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _grouped(equation: Equation) -> Equation:
    body = equation.body
    if equation.reduce != "sum" or not (isinstance(body, Apply) and body.op == "mul" and body.dtype.is_float):
        return equation
    factors = list(_factors(body))
    short = next((factor for factor in factors if _is_of_short(factor)), None)
    if short is None or len(factors) < 3:
        return equation
    names = _indices(short)
    scales = [f for f in factors if f is not short and (own := _indices(f)) and own <= names]
    others = [f for f in factors if f is not short and not any(f is scale for scale in scales)]
    if not scales or not others:
        return equation

    def product(one: Expr, other: Expr) -> Expr:
        return Apply("mul", (one, other), body.dtype)

    made = product(reduce(product, others), reduce(product, scales, short))
    return equation if made == body else replace(equation, body=made)


def _factors(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Apply) and expr.op == "mul":
        for part in expr.args:
            yield from _factors(part)
    else:
        yield expr


def _is_of_short(factor: Expr) -> bool:
    """Whether it is a number of 8 or 16 bits as a float, less a zero point maybe, which knows no further indices."""
    casts = [node for node in walk(factor) if isinstance(node, Apply) and node.op == "cast"]
    sources = [node.args[0] for node in casts]
    short = [r for r in sources if isinstance(r, Read) and r.dtype.kind in "iu" and r.dtype.itemsize <= 2]
    return any(_indices(read) == _indices(factor) for read in short)


def _indices(expr: Expr) -> frozenset[str]:
    """The variables that what it reads is told apart by; those of elements found by values are not known, and none are named."""
    places = [s for read in reads_of(expr) for s in read.subscripts]
    known = [s for s in places if isinstance(s, Affine)]
    return frozenset[str]().union(*(s.variables() for s in known)) if len(known) == len(places) else frozenset()
