"""Sums of terms that do not depend on an index are products with the number of its values.

    a[i] = sum_{i - 7 <= r <= i + 7, 0 <= r < H} 1     =>     a[i] = min(i + 7, H - 1) - max(i - 7, 0) + 1

How many elements of a window lie within an image is such a sum, by which means at borders are divided.

Where: the index has for the values of all others one range, whose ends are affine, and no element is without a term. Results are numbers in which counts are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.dtypes import i64
from polyml.expressions import Apply, Expr, IndexValue
from polyml.graph.builder.parts import variables_of
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.boxes import whole_box
from polyml.graph.traverse import tensors_of
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.from_isl import constraints_of

__all__ = ["multiply_by_counts"]

_OPERATIONS = 20_000
"""isl's operations for the questions about one equation."""


def multiply_by_counts(graph: Graph) -> Graph:
    """The graph with such sums as products."""
    ops = map_equations(graph.ops, lambda equation: _counted(equation, graph))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _counted(equation: Equation, graph: Graph) -> Equation:
    dtype = equation.result.dtype
    if equation.reduce != "sum" or equation.accumulate or equation.base is not None or not equation.is_plain:
        return equation
    if equation.instances is not None or not (dtype.is_float or dtype.is_integer) or dtype.itemsize < 4:
        return equation
    try:
        with operation_budget(_OPERATIONS, phase="terms counted"):
            for index in equation.reduced:
                if index not in variables_of(equation.body):  # nor in the number of another one's values
                    equation = _without(equation, index, graph)
    except BudgetExhausted:
        pass
    return equation


def _without(equation: Equation, index: str, graph: Graph) -> Equation:
    """The equation without the index, if its values can be counted."""
    count = _count(equation.domain, equation.indices, index)
    if count is None:
        return equation
    domain = equation.domain.project_out(isl.dim_type.set, equation.indices.index(index), 1)
    reduced = tuple(other for other in equation.reduced if other != index)
    changed = replace(
        equation,
        indices=tuple(other for other in equation.indices if other != index),
        reduced=reduced,
        domain=domain.set_tuple_name(equation.result.name),
        body=Apply("mul", (equation.body, Apply("cast", (count,), equation.body.dtype)), equation.body.dtype),
        reduce=equation.reduce if reduced else None,
    )
    return changed if reduced or whole_box(changed, graph, tensors_of(graph)) is not None else equation


def _count(points: isl.Set, indices: Sequence[str], index: str) -> Expr | None:
    """How many values the index has, over the others; None where these are no one range with affine ends."""
    pieces = points.coalesce().remove_redundancies().get_basic_sets()
    if len(pieces) != 1 or pieces[0].dim(isl.dim_type.div):
        return None
    first: list[Affine] = []
    last: list[Affine] = []
    for constraint in constraints_of(pieces[0], indices):
        step = constraint.value.stride(index)
        if step == 0:
            continue
        if constraint.equality or step not in (1, -1):
            return None
        rest = constraint.value - affine(index) * step
        (first if step == 1 else last).append(-rest if step == 1 else rest)
    if not first or not last:
        return None
    if len(first) == len(last) == 1:
        return IndexValue(last[0] - first[0] + 1, i64)
    above = _extremum("min", [end + 1 for end in last])
    return Apply("sub", (above, _extremum("max", first)), i64)


def _extremum(op: str, ends: Sequence[Affine]) -> Expr:
    values: list[Expr] = [IndexValue(end, i64) for end in ends]
    found = values[0]
    for value in values[1:]:
        found = Apply(op, (found, value), i64)
    return found
