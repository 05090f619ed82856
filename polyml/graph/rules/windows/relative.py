"""Reductions over ranges that go along with an index of the result are counted from its place: windows and segments.

    y[i] = max_{i <= k < i + 5} x[k]           =>     y[i] = max_{r < 5} x[i + r]
    y[s] = sum_{100 s <= k < 100 s + 100} x[k]  =>     y[s] = sum_{r < 100} x[100 s + r]

The ranges are boxes then, or what is left of boxes at the edges, for which lanes, register tiles and the rules for windows are. The terms keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import substitute
from polyml.graph.builder.parts import variables_of
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.ops import REDUCTIONS
from polyml.sets.affine import affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.from_isl import constraints_of

__all__ = ["count_from_places"]

_OPERATIONS = 50_000
"""isl's operations for the questions about one equation."""


def count_from_places(graph: Graph) -> Graph:
    """The graph with such ranges counted from the index's place."""
    ops = map_equations(graph.ops, _counted)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _counted(equation: Equation) -> Equation:
    if equation.reduce is None or REDUCTIONS[equation.reduce].combine is None or equation.only_if is not None:
        return equation
    free = set(equation.left) - variables_of(equation.body) if equation.reduced else set()
    # An index of the left side that the terms know nothing of, and that is no more than repeated, leaves a box.
    if not free or equation.domain.is_box():
        return equation
    try:
        with operation_budget(_OPERATIONS, phase="windows counted from their places"):
            for reduced in equation.reduced:
                for left, step in _steps(equation, reduced, free):
                    moved = _from_place(equation, reduced, left, step)
                    if moved is not None:
                        equation = moved
                        break
    except BudgetExhausted:
        pass
    return equation


def _steps(equation: Equation, reduced: str, free: set[str]) -> Iterator[tuple[str, int]]:
    """Indices of the left side that bounds of a reduced one go along with, and by how much."""
    found: set[tuple[str, int]] = set()
    for piece in equation.domain.compute_divs().get_basic_sets():
        for constraint in constraints_of(piece, equation.indices):
            own = constraint.value.stride(reduced)
            for left in free:
                step = constraint.value.stride(left)
                if own in (1, -1) and step and -step * own > 0:
                    found.add((left, -step * own))
    yield from sorted(found)


def _from_place(equation: Equation, reduced: str, left: str, step: int) -> Equation | None:
    """The equation with the reduced index counted from so many times the other one; None where that leaves as many values of it."""
    names, domain = equation.indices, equation.domain
    own = names.index(reduced)
    moved = _moved(domain, names, reduced, f"{step}*{left}")
    low, high = moved.dim_min_val(own), moved.dim_max_val(own)
    if not low.is_int() or not high.is_int():
        return None
    first, count = low.to_python(), high.to_python() - low.to_python() + 1
    before = domain.dim_min_val(own), domain.dim_max_val(own)
    if all(value.is_int() for value in before) and 2 * count > before[1].to_python() - before[0].to_python() + 1:
        return None
    place = affine(reduced) + affine(left) * step + first
    domain = _moved(moved, names, reduced, str(first)).coalesce()
    return replace(equation, domain=domain, body=substitute(equation.body, {reduced: place}))


def _moved(points: isl.Set, names: Sequence[str], index: str, by: str) -> isl.Set:
    """The points over these indices, one of which is less by so much."""
    tuple_name = points.get_tuple_name()
    places = [f"{name} - {by}" if name == index else name for name in names]
    return points.apply(isl.Map(f"{{ {tuple_name}[{', '.join(names)}] -> {tuple_name}[{', '.join(places)}] }}"))
