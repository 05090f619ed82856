"""Indices of sums that have one value only, such as the window of a 1x1 convolution written like any other, are that value.

`y[o, p] = sum[c, r < 1](x[c, p + r] * w[o, c, r])` becomes `sum[c](x[c, p] * w[o, c, 0])`: what reads windows is then a plain product, which packs, joins neighbouring indices and takes strips. A sum of one term is
that term, without a zero that is stored ahead of it.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import substitute
from polyml.graph.edit import map_equations, map_expressions
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.boxes import box_extents

__all__ = ["drop_single_values"]


def drop_single_values(graph: Graph) -> Graph:
    """The graph with such indices replaced by their values; a reduction keeps its last index, unless each element of its result has one term, and nothing before."""
    ops = map_equations(graph.ops, _dropped)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _dropped(equation: Equation) -> Equation:
    if not equation.reduced or equation.reduce in ("argmax", "argmin"):
        return equation
    first = len(equation.left)
    found = {
        index: equation.domain.plain_get_val_if_fixed(isl.dim_type.set, first + k)
        for k, index in enumerate(equation.reduced)
    }
    values = {index: value.to_python() for index, value in found.items() if value.is_int()}
    single = len(values) == len(equation.reduced)
    if single and (equation.accumulate or equation.instances is not None or not _meets_all_or_keeps(equation)):
        del values[equation.reduced[-1]]
        single = False
    if not values:
        return equation
    domain = equation.domain
    for index in reversed(values):
        domain = domain.project_out(isl.dim_type.set, equation.indices.index(index), 1)
    changed = map_expressions(equation, lambda expr: substitute(expr, values))
    return replace(
        changed,
        indices=tuple(index for index in equation.indices if index not in values),
        reduced=tuple(index for index in equation.reduced if index not in values),
        domain=domain.set_tuple_name(equation.result.name),
        reduce=None if single else equation.reduce,
    )


def _meets_all_or_keeps(equation: Equation) -> bool:
    """Whether elements without a term are those of the base, or there are none."""
    return equation.base is not None or (equation.is_plain and box_extents(equation) is not None)
