"""Sums that read a diagonal again and again: it is copied once, and read as rows.

    z[a, b] = sum[i](x[a, i, i] * y[b, i, i])   becomes   x_diagonal[a, i] = x[a, i, i];  y_diagonal[b, i] = y[b, i, i]
                                                          z[a, b] = sum[i](x_diagonal[a, i] * y_diagonal[b, i])

Neighbours of a diagonal lie a row and one element apart, so that lanes along any index are gathered, a line for each; no panel is packed of it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.expressions import Read, map_reads, plain_indices
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine

__all__ = ["copy_diagonals"]

LEAST_USES = 8
"""Times that each element is read, at least: gathering one takes as long as copying it."""

LEAST_WORK = 1 << 12
"""Terms of all sums below which it does not matter."""


def copy_diagonals(graph: Graph) -> Graph:
    """The graph with such diagonals copied: reads whose last subscript is an index that another subscript is, too, and whose subscripts are nothing but indices. Sizes are numbers."""
    tensors = tensors_of(graph)
    made: list[Op] = []
    for op in graph.ops:
        made += (isinstance(op, Equation) and _copied(op, tensors)) or (op,)
    return graph if len(made) == len(graph.ops) else replace(graph, ops=tuple(made))


def _copied(equation: Equation, tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    """The copies and the sum that reads them; nothing where the equation stays."""
    if equation.reduce is None or not equation.is_plain or equation.instances is not None:
        return ()
    extents = box_extents(equation)
    if extents is None or prod(extents.values()) < LEAST_WORK:
        return ()
    made: dict[tuple[str, tuple[int, ...], tuple[Affine, ...]], Equation] = {}

    def change(read: Read) -> Read:
        indices = plain_indices(read.subscripts)
        own = tuple(dict.fromkeys(i for i in indices if i is not None))
        diagonal = None not in indices and indices.count(indices[-1]) > 1 if indices else False
        if not diagonal or not extents.keys() >= set(own):
            return read
        if prod(n for i, n in extents.items() if i not in own) < LEAST_USES:
            return read
        shape = tuple(affine(extents[i]) for i in own)
        key = read.tensor, tuple(own.index(str(i)) for i in indices), shape
        if key not in made:
            result = Tensor(
                fresh_name(f"{read.tensor}_diagonal", tensors), read.dtype, shape, tensors[read.tensor].label
            )
            tensors[result.name] = result
            names = {index: affine(f"i{k}") for k, index in enumerate(own)}
            value = Read(read.tensor, tuple(names[str(i)] for i in indices), read.dtype)
            made[key] = replace(fill(result, value, equation.span), apart=True)
        return Read(made[key].result.name, tuple(map(affine, own)), read.dtype)

    body = map_reads(equation.body, change)
    return (*made.values(), replace(equation, body=body)) if made else ()
