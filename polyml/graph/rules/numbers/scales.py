"""Weights that are stored as short numbers are multiplied by their scales first.

    y[m, n] = sum over k of x[m, k] * f32(w[n, k]) * s[n, k // 32]  ->  sum over k of x[m, k] * (f32(w[n, k]) * s[n, k // 32])

So what is made of a weight is one number for all m: for the rows of a register tile, or for a tensor that is made ahead (rules/reuse/ahead.py).

Factors of a sum are also multiplied ahead by rules/sums/factors_ahead.py, which leaves alone what only a few rows use, and operands with zero points, which are two reads.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.expressions import Apply, Expr, Read, factors_of, ops_in, product_of, reads_of, variables_in, walk
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.sets.affine import Affine

__all__ = ["group_scales", "short_numbers"]


def group_scales(graph: Graph) -> Graph:
    """The graph with factors of sums that belong to a short number's indices beside it."""
    ops = map_equations(graph.ops, _grouped)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _grouped(equation: Equation) -> Equation:
    body = equation.body
    if equation.reduce != "sum" or not (isinstance(body, Apply) and body.op == "mul" and body.dtype.is_float):
        return equation
    factors = factors_of(body)
    short = next((factor for factor in factors if _is_of_short(factor)), None)
    if short is None or len(factors) < 3:
        return equation
    names = _indices(short)
    scales = [f for f in factors if f is not short and (own := _indices(f)) and own <= names]
    others = [f for f in factors if f is not short and not any(f is scale for scale in scales)]
    if not scales or not others:
        return equation

    made = product_of([product_of(others), product_of([short, *scales])])
    return equation if made == body else replace(equation, body=made)


def short_numbers(expr: Expr) -> list[Read]:
    """The whole numbers of 8 or 16 bits and bools that are converted in it."""
    if "cast" not in ops_in(expr):
        return []
    sources = (node.args[0] for node in walk(expr) if isinstance(node, Apply) and node.op == "cast")
    return [r for r in sources if isinstance(r, Read) and r.dtype.kind in "biu" and r.dtype.itemsize <= 2]


def _is_of_short(factor: Expr) -> bool:
    """Whether it is a short number as a float, less a zero point maybe, which knows no further indices."""
    return any(_indices(read) == _indices(factor) for read in short_numbers(factor))


def _indices(expr: Expr) -> frozenset[str]:
    """The variables that what it reads is told apart by; those of elements found by values are not known, and none are named."""
    places = [s for read in reads_of(expr) for s in read.subscripts]
    return frozenset(variables_in(places)) if all(isinstance(s, Affine) for s in places) else frozenset()
