"""Elements whose value differs by the remainder of the index that lanes go along, beside what its quotient reads, are written in turn:

    y[n, d] = x[n, d] * c[n, d // 2] + where(d % 2 == 0, -x[n, d + 1], x[n, d - 1]) * s[n, d // 2]

(rotary embeddings) becomes one equation for the even places and one for the odd ones, `y[n, 2*h] = x[n, 2*h] * c[n, h] - x[n, 2*h + 1] * s[n, h]`. Which case an element is one of is known then, each computes its own, and c and s are read as they lie. Rows that go between each other
are loaded and stored whole, and shuffled (codegen/llvm/memory/zipped.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from polyml.graph.edit import replace_equations, with_name, with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.algebra.simplify import simplify
from polyml.graph.rules.layouts.index_blocks import has_whole_blocks
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.rules.sums.remainders import cases_of, of_remainder
from polyml.graph.traverse import tensors_of
from polyml.sets.affine import Affine

__all__ = ["write_remainders"]

_MOST = 4
"""Remainders, at most: vectors of so many registers are shuffled into each other."""


def write_remainders(graph: Graph) -> Graph:
    """The graph with such equations taken apart."""
    tensors = tensors_of(graph)
    apart = with_ops(graph, replace_equations(graph.ops, lambda equation: _parts(equation, tensors)))
    return graph if apart is graph else simplify(apart)  # which case is one of numbers now


def _parts(equation: Equation, tensors: dict[str, Tensor]) -> Sequence[Op]:
    """The equation, or what it becomes; each part keeps what the ones before it have written."""
    if not is_elementwise(equation) or equation.only_if is not None or not equation.target:
        return [equation]
    last = equation.target[-1]
    index = last.name if isinstance(last, Affine) else None
    found = None if index is None else next(cases_of(equation, (index,), _MOST), None)
    if found is None or not has_whole_blocks(equation, *found):  # rows of several lengths do not go between each other
        return [equation]
    parts = [of_remainder(equation, *found, remainder, tensors) for remainder in range(found[1])]
    parts[-1] = with_name(parts[-1], equation.result)
    return [parts[0], *(replace(part, base=before.result) for before, part in itertools.pairwise(parts))]
