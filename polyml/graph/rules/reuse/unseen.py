"""Elements that nobody sees are neither kept nor started: a tensor that is filled and then overwritten in pieces, and the half of a matrix of sums that has nothing to sum.

`c: f64["M M"]` with `if i <= j: c[i, j] = ..` and `if i > j: c[i, j] = c[j, i]` starts from zeros of which none is left; sums over one half of a matrix are started (and zeroed) in that half only,
where the other is never read.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.graph.edit import protected_names, with_ops
from polyml.graph.elements import all_elements, elements_at, elements_read
from polyml.graph.ir import Check, Equation, Graph, Loop, Op
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.traverse import equation_reads, read_names, results_of
from polyml.sets.affine import Affine

__all__ = ["leave_unseen"]

_Seen = dict[str, isl.Set | None]
"""Per tensor the elements that something needs; None: all."""


def leave_unseen(graph: Graph) -> Graph:
    """The graph with fills that no element is left of dropped, and sums started where they are read."""
    fills = {op.result.name for op in graph.ops if isinstance(op, Equation) and not read_names(op)}
    if not any(isinstance(op, Equation) and (_starts_apart(op) or _covers_fill(op, fills)) for op in graph.ops):
        return graph
    seen: _Seen = dict.fromkeys(protected_names(graph), None)
    made: list[Op] = []
    for op in reversed(graph.ops):
        match op:
            case Equation():
                made.append(_changed(op, seen, fills))
                _note(op, seen)
            case Loop() | Check():
                made.append(op)
                seen.update(dict.fromkeys((*read_names(op), *(t.name for t in results_of(op)))))
    changed = with_ops(graph, reversed(made))
    return graph if changed is graph else remove_dead(changed)


def _starts_apart(equation: Equation) -> bool:
    """Whether it is a sum over plain indices that has something to sum for some elements only."""
    return (
        bool(equation.reduced)
        and equation.base is None
        and equation.instances is None
        and equation.is_plain
        and not equation.domain.is_box()
    )


def _covers_fill(equation: Equation, fills: set[str]) -> bool:
    affine_target = all(isinstance(s, Affine) for s in equation.target)
    certain = affine_target and not equation.accumulate and equation.only_if is None
    return equation.base is not None and equation.base.name in fills and certain


def _left_points(equation: Equation) -> isl.Set:
    """Points of the left side that the equation gives a value, or with `instances` the identity."""
    if equation.instances is not None:
        return equation.instances
    return equation.domain.project_out(isl.dim_type.set, len(equation.left), len(equation.reduced))


def _hit(equation: Equation) -> isl.Set:
    return elements_at(_left_points(equation), equation.left, equation.target)


def _changed(equation: Equation, seen: _Seen, fills: set[str]) -> Equation:
    needed = seen.get(equation.result.name, isl.Set.empty(all_elements(equation.result).get_space()))
    if needed is None:
        needed = all_elements(equation.result)
    name = equation.result.name
    if _covers_fill(equation, fills) and needed.is_subset(_hit(equation)):
        points = _left_points(equation).set_tuple_name(name) if equation.reduce is not None else equation.instances
        return replace(equation, base=None, instances=points)
    if _starts_apart(equation):
        points = _left_points(equation)
        if not all_elements(equation.result).is_subset(points.reset_tuple_id()) and needed.is_subset(
            points.reset_tuple_id()
        ):
            return replace(equation, instances=points.set_tuple_name(name))
    return equation


def _note(equation: Equation, seen: _Seen) -> None:
    """What the equation needs of other tensors."""
    for read in equation_reads(equation):
        _need(read.tensor, elements_read(equation, read), seen)
    if equation.only_if is not None:
        seen[equation.only_if.name] = None
    if equation.base is None:
        return
    needed = seen.get(equation.result.name, isl.Set.empty(all_elements(equation.result).get_space()))
    # What a flag may leave out hits nothing for certain.
    exact = equation.only_if is None and not equation.accumulate and all(isinstance(s, Affine) for s in equation.target)
    if needed is not None and exact:
        _need(equation.base.name, needed.subtract(_hit(equation)), seen)
    elif exact:
        _need(equation.base.name, all_elements(equation.result).subtract(_hit(equation)), seen)
    else:
        seen[equation.base.name] = None


def _need(name: str, elements: isl.Set, seen: _Seen) -> None:
    if name not in seen:
        seen[name] = elements
    elif (known := seen[name]) is not None:
        seen[name] = known.union(elements).coalesce()
