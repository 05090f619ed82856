"""Copies in blocks by shuffles: a loop of kind "shuffle" becomes blocks of as many iterations as its factor, the last of which overlaps the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import nodes_of, variables_by_name, walk_nodes
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import affine, minimum
from polyml.sets.picked import LARGEST

__all__ = ["shuffle_copies"]


def shuffle_copies(function: Function, *, vector_bytes: int) -> Function:
    """The function with loops of blocks, whose width is how many elements a vector register has.

    Rewrite:
        shuffle(4) for (b = 0; b < 10; b++) for (i ..) for (j ..) y[b, j, i] = x[b, i, j];
        -> for (c = 0; c < 10; c += 4) shuffle(16) for (b = min(c, 6); b < min(c, 6) + 4; b++) for (i ..) for (j ..) y[b, j, i] = x[b, i, j];
    """
    if not any(isinstance(node, For) and node.kind == "shuffle" for node in nodes_of(function)):
        return function
    return map_loops(function, _Blocks(variables_by_name(function), vector_bytes, names_in(function)).in_blocks)


@dataclass(frozen=True, slots=True)
class _Blocks:
    variables: Mapping[str, Variable]
    vector_bytes: int
    taken: set[str]

    def in_blocks(self, node: For, ranges: Ranges, _: For | None) -> Node | None:
        if node.kind != "shuffle":
            return None
        span, count = node.upper - node.lower, node.factor
        least = ranges.lowest(span)
        assert least is not None, "internal: a block of a copy of unknown length"
        assert least >= count, "internal: a block of a copy that has fewer iterations"
        move = next(inner for inner in walk_nodes(node.body) if isinstance(inner, Assign))
        size = min(self.variables[move.target.variable].dtype.itemsize, LARGEST)
        block = replace(node, width=self.vector_bytes // size)
        if ranges.constant(span) == count:
            return block
        start = fresh(f"{node.variable}_block", self.taken)
        first = affine(start)
        if ranges.multiple(span) % count:
            first = minimum([first, node.upper - count])
        block = replace(block, lower=first, upper=first + count)
        return For(variable=start, lower=node.lower, upper=node.upper, step=count, body=(block,))
