"""Copies in blocks by shuffles: a loop of kind "shuffle" becomes blocks of as many iterations as its factor, the last of which overlaps the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, Node, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import nodes_of, walk_nodes, with_body
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.renewed import renewed
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
    variables = {v.name: v for v in function.arguments}
    variables |= {n.variable.name: n.variable for n in nodes_of(function) if isinstance(n, Allocate)}
    blocks = _Blocks(variables, vector_bytes, names_in(function))
    return replace(function, body=blocks.body(function.body, outside(function)))


@dataclass(frozen=True, slots=True)
class _Blocks:
    variables: Mapping[str, Variable]
    vector_bytes: int
    taken: set[str]

    def body(self, nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
        return renewed(nodes, (self.node(node, ranges) for node in nodes))

    def node(self, node: Node, ranges: Ranges) -> Node:
        if not isinstance(node, For):
            return with_body(node, lambda body: self.body(body, ranges))
        if node.kind != "shuffle":
            inside = ranges.enter(node)
            return with_body(node, lambda body: self.body(body, inside))
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
