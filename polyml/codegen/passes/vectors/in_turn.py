"""Elementwise loops that take two vectors at once, instruction by instruction in turn: those that compute so much for each that a core hardly looks ahead to the next one.

A function is one long chain: its instructions wait for each other, and the units have time for other vectors'. A core finds those as far as its window reaches (`Target.window`): of 256 instructions four or five
exponentials, but of powers or functions of functions one vector and a part of the next, whose last instructions the core waits for alone. Lanes of two registers make LLVM write each instruction
twice, one for each vector, so that two chains are always on their way. Short bodies gain nothing: the core does as well, and two vectors' numbers leave fewer registers for constants.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyml.codegen.loops import Allocate, Assign, For
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Apply, Expr, Read, Subscript, reads_of, walk
from polyml.operation_weights import operations_of, weight_of
from polyml.sets.affine import Affine

__all__ = ["IN_TURN", "is_long"]

IN_TURN = 2
"""Vectors."""

_SHARE = 8
"""Of a core's window, the part that is a long chain, in the instructions of `weight_of`, which leaves out about half of what recipes take."""


def is_long(loop: For, window: int) -> bool:
    """Whether the loop's vectors are worth taking in turn: straight elementwise statements, neighbours in memory, which are one long chain of instructions, if not for less than half of them. window: Target's; 0: never."""
    chains: dict[str, float] = {}
    work = 0.0
    for node in walk_nodes(loop.body):
        match node:
            case Allocate() if node.variable.scope == "register":
                pass
            case Assign(reduction=None, scan=None, across=False):
                places = (node.target.subscripts, *(read.subscripts for read in reads_of(node.value)))
                if not all(_is_side_by_side(subscripts, loop.variable) for subscripts in places):
                    return False
                work += operations_of(node.value)
                chains[node.target.variable] = _chain(node.value, chains)
            case _:
                return False
    longest = max(chains.values(), default=0.0)
    return 0 < window <= _SHARE * longest and work <= 2 * longest


def _chain(value: Expr, chains: Mapping[str, float]) -> float:
    """Instructions of the longest chain that ends in the value. chains: of what the statements before have made, by its name."""
    lengths: dict[Expr, float] = {}
    for node in reversed(list(walk(value))):  # what is below it first
        match node:
            case Apply():
                lengths[node] = weight_of(node) + max((lengths[arg] for arg in node.args), default=0.0)
            case Read():
                lengths[node] = chains.get(node.tensor, 0.0)
            case _:
                lengths[node] = 0.0
    return lengths[value]


def _is_side_by_side(subscripts: tuple[Subscript, ...], variable: str) -> bool:
    """Whether lanes along the variable read neighbours of a row, or one element."""
    strides = [s.stride(variable) if isinstance(s, Affine) else None for s in subscripts]
    return all(stride == 0 for stride in strides[:-1]) and all(stride in (0, 1) for stride in strides[-1:])
