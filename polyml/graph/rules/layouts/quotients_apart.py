"""What is moved element by element along an index that operands know by its quotient or its remainder goes along both, where lanes run along that index:

    y[i] = x[i // 3] * z[i]    becomes    y[3*q + r] = x[q] * z[3*q + r],    and with x[i % 3]    y[3*q + r] = x[r] * z[3*q + r]

Lanes along i would be a load each. Lanes along q go through whole rows of r, which are shuffled (codegen/passes/unrolling/unroll_rows.py); long rows have lanes of their own. Behind all rules that look for plain indices; beside
layouts/index_blocks.py, which does the same for sums before them.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyml.expressions import reads_of
from polyml.graph.edit import replace_equations, with_ops
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.layouts.index_blocks import has_whole_blocks, in_blocks, quotients_of
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.sets.affine import Affine
from polyml.sets.turns import MOST_ROWS

__all__ = ["part_quotients"]


def part_quotients(graph: Graph, *, vector_bytes: int) -> Graph:
    """The graph with such indices apart. vector_bytes: lanes that one block feeds, or several whole vectors, are left as they are."""
    return with_ops(graph, replace_equations(graph.ops, lambda equation: _apart(equation, vector_bytes)))


def _apart(equation: Equation, vector_bytes: int) -> Sequence[Equation]:
    if not is_elementwise(equation) or equation.base is not None or equation.only_if is not None or not equation.target:
        return [equation]
    last = equation.target[-1]
    index = last.name if isinstance(last, Affine) else None
    size = quotients_of(equation).get(index) if index is not None else None
    if index is None or size is None or not has_whole_blocks(equation, index, size):
        return [equation]
    if _takes_turns(size, equation, vector_bytes):
        return [equation]
    return [in_blocks(equation, index, size)]


def _takes_turns(size: int, equation: Equation, vector_bytes: int) -> bool:
    """Whether vectors along the index are a few loads and shuffles as they are (codegen/llvm/memory/zipped.py), or one or two broadcasts."""
    widest = max(dtype.itemsize for dtype in (equation.result.dtype, *(r.dtype for r in reads_of(equation.body))))
    lanes = vector_bytes // widest
    return size % lanes == 0 or (lanes % size == 0 and (size <= MOST_ROWS or lanes <= 2 * size))
