"""Elements that nobody reads are not computed, where those that are read are no box: scores beyond a diagonal, exponentials of a half.

Sums and what is made element by element only; a box of which a part of known size is read stays whole, as tiles fill it (what an `int` says, such as how much of a cache is filled, may be a small part), and so do sums over windows with edges, which are alike everywhere once there are zeros around
what they read (windows/filters.py), and what is made apart for tiles that are whole (terms_first.py).
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.graph.edit import protected_names, with_ops
from polyml.graph.elements import all_elements, elements_read
from polyml.graph.ir import Check, Equation, Graph, Loop, Op
from polyml.graph.traverse import equation_reads, read_names
from polyml.sets.affine import Affine
from polyml.sets.shapes import is_known

__all__ = ["narrow"]


def narrow(graph: Graph) -> Graph:
    """The graph with equations over what is read of their results, where that is convex and no box of known size."""
    readers = [op for op in graph.ops if isinstance(op, Equation) and not _is_known_box(op.domain)]
    if not readers:
        return graph
    needed: dict[str, isl.Set | None] = dict.fromkeys(protected_names(graph))
    made: list[Op] = []
    for op in reversed(graph.ops):
        match op:
            case Equation():
                points = needed.get(op.result.name)
                narrowed = op if points is None else _only(op, points)
                made.append(narrowed)
                for read in equation_reads(narrowed):
                    elements = elements_read(narrowed, read)
                    known = needed.setdefault(read.tensor, elements)
                    if known is not None and known is not elements:
                        needed[read.tensor] = known.union(elements).coalesce()
                if op.base is not None:
                    needed[op.base.name] = None
            case Loop() | Check():
                made.append(op)
                needed.update(dict.fromkeys(read_names(op)))
    ops = tuple(reversed(made))
    return with_ops(graph, ops)


def _only(equation: Equation, points: isl.Set) -> Equation:
    """The equation for these elements of its result."""
    if equation.base is not None or not equation.is_plain or equation.apart:
        return equation
    if equation.reduce not in (None, "sum") or points.n_basic_set() != 1:
        return equation
    if points.is_box() and (_is_known_box(points) or not is_known(equation.result.shape)):
        return equation
    if equation.reduce is not None and not equation.domain.is_box() and _is_over_windows(equation):
        return equation
    if all_elements(equation.result).is_subset(points):
        return equation
    inside = points.insert_dims(isl.dim_type.set, len(equation.left), len(equation.reduced))
    domain = equation.domain.intersect(inside.set_tuple_name(equation.result.name))
    return equation if equation.domain.is_subset(domain) else replace(equation, domain=domain)


def _is_known_box(points: isl.Set) -> bool:
    parameters = points.dim(isl.dim_type.param)
    return bool(points.is_box()) and not points.involves_dims(isl.dim_type.param, 0, parameters)


def _is_over_windows(equation: Equation) -> bool:
    subscripts = [s for read in equation_reads(equation) for s in read.subscripts]
    return any(isinstance(s, Affine) and len(s.variables()) > 1 for s in subscripts)
