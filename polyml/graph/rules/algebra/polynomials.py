"""Polynomials, `sum[k](c[k] * x[n]**k)` for a few k, by Horner's rule: `c[0] + x[n]*(c[1] + x[n]*(c[2] + ..))`.

A power whose exponent is an index is one exponential and one logarithm for each term; a term takes a multiply-add so. x comes out of the sum of what it is a factor of, as common factors do (docs/numerics.md), and each power is rounded once
for each factor. Powers of the index of a result (Vandermonde's matrices) are products, too, where the result has an equation for each (rules/layouts/channels_apart.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, factors_of, product_of, reads_of, substitute, walk
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.boxes import any_box
from polyml.graph.traverse import is_cheap, tensors_of
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["MOST_POWER", "multiplied_powers", "power_by_index", "write_polynomials"]

MOST_POWER = 16
"""The largest exponent that becomes products: each multiplication may round."""

_MOST_NODES = 400
"""Nodes of the expression that is written out, at most."""

_LARGEST_BASE = 6
"""Nodes of what is raised, at most: it stands in each term."""

_AT_ONCE = 4
"""Exponents that emitters multiply."""


def write_polynomials(graph: Graph) -> Graph:
    """The graph with such sums written out."""
    tensors = tensors_of(graph)
    ops = map_equations(graph.ops, lambda equation: _written(equation, graph, tensors))
    return graph if ops is graph.ops else replace(graph, ops=ops)


@dataclass(frozen=True, slots=True)
class _Power:
    base: Expr
    exponent: Affine


def power_by_index(expr: Expr, index: str) -> bool:
    """Whether the expression is a float to the power of an index's value."""
    return _power(expr, index) is not None


def _power(expr: Expr, index: str) -> _Power | None:
    if not isinstance(expr, Apply) or expr.op != "pow" or not expr.dtype.is_float:
        return None
    base, exponent = expr.args
    if isinstance(exponent, Apply) and exponent.op == "cast":
        (exponent,) = exponent.args
    if not isinstance(exponent, IndexValue) or exponent.affine.stride(index) in (0, None):
        return None
    if exponent.affine.variables() != {index} or index in _variables(base):
        return None
    few = is_cheap(base) and sum(1 for _ in walk(base)) <= _LARGEST_BASE
    return _Power(base, exponent.affine) if few else None


def _variables(expr: Expr) -> set[str]:
    """The indices that an expression depends on."""
    found = {name for node in walk(expr) if isinstance(node, IndexValue) for name in node.affine.variables()}
    places = (s for read in reads_of(expr) for s in read.subscripts if isinstance(s, Affine))
    return found.union(*(place.variables() for place in places))


def _written(equation: Equation, graph: Graph, tensors: Mapping[str, Tensor]) -> Equation:
    plain = equation.base is None and equation.only_if is None and not equation.apart and not equation.padded
    if equation.reduce != "sum" or not plain or equation.instances is not None or not equation.is_plain:
        return equation
    factors = factors_of(equation.body)
    for index in equation.reduced:
        powers = [(k, power) for k, factor in enumerate(factors) if (power := _power(factor, index)) is not None]
        extents = any_box(equation, graph, tensors) if len(powers) == 1 else None
        if extents is None or not extents[index].is_constant:
            continue
        (at, power), count = powers[0], extents[index].constant
        exponents = [power.exponent.substitute({index: value}).constant for value in range(min(count, MOST_POWER + 1))]
        size = count * sum(1 for _ in walk(equation.body))
        if (
            not 1 < count <= len(exponents)
            or size > _MOST_NODES
            or not 0 <= min(exponents) <= max(exponents) <= MOST_POWER
        ):
            continue
        others = [factor for k, factor in enumerate(factors) if k != at]
        inside = [factor for factor in others if index in _variables(factor)]
        term = product_of(inside) if inside else Const(1.0, equation.body.dtype)
        value = _horner(power.base, dict(enumerate(exponents)), term, index)
        outside = [factor for factor in others if index not in _variables(factor)]
        return _without(equation, index, product_of([*outside, value]))
    return equation


def _horner(base: Expr, exponents: Mapping[int, int], term: Expr, index: str) -> Expr:
    """The sum of the terms times the powers of the base, the highest first. exponents: by the index's values."""
    ordered = sorted(exponents, key=lambda value: -exponents[value])
    total = substitute(term, {index: ordered[0]})
    for before, value in pairwise(ordered):
        total = _times(total, base, exponents[before] - exponents[value])
        total = Apply("add", (total, substitute(term, {index: value})), total.dtype)
    return _times(total, base, exponents[ordered[-1]])


def _times(value: Expr, base: Expr, exponent: int) -> Expr:
    return Apply("mul", (value, _product(base, exponent)), value.dtype) if exponent else value


def _product(base: Expr, exponent: int) -> Expr:
    if exponent == 1:
        return base
    if exponent <= _AT_ONCE:
        return Apply("pow", (base, Const(float(exponent), base.dtype)), base.dtype)
    whole = 1 << (exponent.bit_length() - 1)
    half = whole // 2 if exponent == whole else whole
    return Apply("mul", (_product(base, half), _product(base, exponent - half)), base.dtype)


def multiplied_powers(expr: Expr) -> Expr:
    """The expression with floats to the power of whole numbers from 0 to MOST_POWER, which were values of an index, as products."""
    if not isinstance(expr, Apply):
        return expr
    if expr.op == "pow" and expr.dtype.is_float:
        base, exponent = expr.args
        inner = exponent.args[0] if isinstance(exponent, Apply) and exponent.op == "cast" else exponent
        if isinstance(inner, IndexValue) and inner.affine.is_constant and 0 <= inner.affine.constant <= MOST_POWER:
            number = inner.affine.constant
            return _product(multiplied_powers(base), number) if number else Const(1.0, expr.dtype)
    return expr.with_args(multiplied_powers(arg) for arg in expr.args)


def _without(equation: Equation, index: str, body: Expr) -> Equation:
    """The equation without the index, which its domain, a box, has all values of."""
    at = equation.indices.index(index)
    domain = equation.domain.project_out(isl.dim_type.set, at, 1).set_tuple_name(equation.result.name)
    reduced = tuple(name for name in equation.reduced if name != index)
    return replace(
        equation,
        indices=tuple(name for name in equation.indices if name != index),
        domain=domain,
        body=body,
        reduce=equation.reduce if reduced else None,
        reduced=reduced,
    )
