"""Register tiles as prefetches see them: vector loops around sums, in whose innermost loop something more is asked for."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Prefetch, Variable
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.expressions import Read, Subscript
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, operands

__all__ = [
    "LEAST",
    "LEAST_REGISTERS",
    "affine_subscripts",
    "asked_in",
    "copies_of",
    "fetching",
    "large_inputs",
    "map_tiles",
    "most_of",
    "only_sums",
    "turn_of",
    "with_prefetches",
]

LEAST = 8
"""Sums in the innermost loop below which there is no time for anything else."""

LEAST_REGISTERS = 32
"""Vector registers from which on tiles have time to ask. One of 6 x 2 vectors (16 registers) issues 20 instructions in six cycles, one of 8 x 3 twice as many FMAs for each of the others, and each line, of a page of its own, takes more of these.
Zen 3, per cent of the peak with and without: f64 512 nn 84, 91, nt 90, 92, f32 512 tn 91, 93, out of memory 85 and 91; dca,cbd->ba 0.93 of the time without."""

Change = Callable[[For, tuple[For, ...]], For]
"""A vector loop, and the loops around it, to what takes its place."""


def large_inputs(function: Function, least: int) -> dict[str, Variable]:
    """Arguments of known shape that the function only reads, of more bytes than that."""
    return {v.name: v for v in function.arguments if v.name not in function.written and (v.bytes or 0) > least}


def map_tiles(nodes: tuple[Node, ...], change: Change, loops: tuple[For, ...] = ()) -> tuple[Node, ...]:
    """The nodes with their vector loops changed; the same object where none is."""

    def changed(node: Node) -> Node:
        if not isinstance(node, For):
            return with_body(node, lambda body: map_tiles(body, change, loops))
        if node.kind == "vector" and node.width > 1:
            return change(node, loops)
        return with_body(node, lambda body: map_tiles(body, change, (*loops, node)))

    return renewed(nodes, map(changed, nodes))


def fetching(
    lines: Callable[[For, For, tuple[For, ...]], Iterable[Place]], *, least: int = LEAST, beside: bool = False
) -> Change:
    """What puts the places that `lines` (of the vector loop, its sums, and the loops around) finds into the sums of unmasked tiles with at least so many of them. beside: of tiles that ask for something already, too."""

    def change(node: For, loops: tuple[For, ...]) -> For:
        inner = (part for part in walk_nodes(node.body) if isinstance(part, For))
        sums = next((part for part in inner if only_sums(part, asking=beside)), None)
        if sums is None or node.masked or len(sums.body) < least:
            return node
        places = tuple(Prefetch(place, 2) for place in lines(node, sums, loops))
        return replace(node, body=with_prefetches(node.body, sums, places)) if places else node

    return change


def most_of(loop: For) -> int | None:
    """From the loop's lower bound to its upper one, at most; None where that is not a number."""
    lengths = [upper - loop.lower for upper in operands(loop.upper, "min")]
    return min((length.constant for length in lengths if length.is_constant), default=None)


def turn_of(loops: Sequence[For], counts: Sequence[int]) -> Affine:
    """The number of an iteration of the nest, from 0, when the loops run so often."""
    turn = affine(0)
    for loop, count in zip(loops, counts, strict=True):
        turn = turn * count + (affine(loop.variable) - loop.lower) // loop.step
    return turn


def only_sums(loop: For, *, asking: bool = False) -> bool:
    """Whether a sequential loop does nothing but add up (asking: and prefetch)."""
    nodes = [n for n in loop.body if not (asking and isinstance(n, Prefetch))]
    return loop.kind == "sequential" and all(isinstance(n, Assign) and n.reduction is not None for n in nodes)


def asked_in(loop: For) -> set[str]:
    """The arrays that the loop's body asks for lines of."""
    return {node.place.variable for node in loop.body if isinstance(node, Prefetch)}


def with_prefetches(nodes: tuple[Node, ...], loop: For, extra: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with more at the start of the loop's body."""
    made: list[Node] = []
    for node in nodes:
        match node:
            case For() if node is loop:
                made.append(replace(node, body=(*extra, *node.body)))
            case Allocate() | If() | For():
                made.append(with_body(node, lambda body: with_prefetches(body, loop, extra)))
            case _:
                made.append(node)
    return tuple(made)


def copies_of(loop: For, inputs: Container[str]) -> dict[tuple[str, Sequence[Subscript]], Read]:
    """What the loop copies from these inputs, by the elements it is copied to."""
    return {
        (node.target.variable, node.target.subscripts): node.value
        for node in walk_nodes(loop.body)
        if isinstance(node, Assign) and isinstance(node.value, Read) and node.value.tensor in inputs
    }


def affine_subscripts(read: Read) -> tuple[Affine, ...]:
    """The subscripts of a read that are no values."""
    return tuple(s for s in read.subscripts if isinstance(s, Affine))
