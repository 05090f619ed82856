"""Loops asked to be jammed: several iterations run side by side, so that what their bodies share is loaded once and their chains of additions overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, If, Node, UpdateArgument
from polyml.codegen.passes.simplify import simplify_nodes
from polyml.codegen.passes.unrolling.jam import CannotJam, jam, names_in
from polyml.codegen.passes.vectors.boundaries import cut_interior, depends_on
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue
from polyml.renewed import renewed
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine, maximum

__all__ = ["unroll_and_jam"]

_SMALLER = 4
"""The last of the rest iterations that are jammed are so many at most: a loop of single iterations then runs three times at most."""

_TALL = 8
"""Tiles of more rows than this have a rest worth tiles of half as many rows, and so on: a row of the whole's takes half the time of one of two rows."""


def unroll_and_jam(function: Function, *, guarded: bool = False) -> tuple[Function, tuple[Note, ...]]:
    """The function with loops of kind "jam" carried out: `factor` copies of the body, their inner loops shared, and the rest of the iterations.

    With a known number of iterations the rest is one straight copy of all of them; else a loop with a smaller factor, then single iterations. When bounds of
    inner loops depend on the variable the loop becomes sequential, with a Note. With `guarded` a loop that has `factor` iterations at most, how many is not known,
    becomes as many copies, each under a condition. That the copies may run side by side is the schedule's promise.

    Rewrite:
        jam(2) for (i = 0; i < 5; i++) { for (k ..) s[i] += x[i, k]; }
        -> for (i = 0; i < 4; i += 2) { for (k ..) { s[i] += x[i, k]; s[i + 1] += x[i + 1, k]; } } for (k ..) s[4] += x[4, k];
    """
    pass_ = _Jam(names_in(function), guarded)
    body = pass_.body(function.body, outside(function))
    return (function if body is function.body else replace(function, body=body)), tuple(pass_.notes)


class _Jam:
    def __init__(self, taken: set[str], guarded: bool) -> None:
        self.taken = taken
        self.guarded = guarded
        self.notes: list[Note] = []

    def body(self, nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
        return renewed(nodes, (new for node in nodes for new in self.node(node, ranges)))

    def node(self, node: Node, ranges: Ranges) -> tuple[Node, ...]:
        inner = ranges.enter(node) if isinstance(node, For) else ranges
        node = with_body(node, lambda body: self.body(body, inner))
        if not isinstance(node, For) or node.kind != "jam":
            return (node,)
        plain = replace(node, kind="sequential", factor=1)
        if node.factor < 2:
            return (plain,)
        try:
            pieces = list(_pieces(plain, node.factor, ranges))
            if all(factor == 1 for _, factor in pieces):
                raise CannotJam("bounds of inner loops depend on it")
            return tuple(part for piece in pieces for part in self.parts(*piece, ranges))
        except CannotJam as refusal:
            self.notes.append(Note("jam", node.variable, f"loop {node.variable} is not jammed: {refusal}"))
            return (plain,)

    def parts(self, loop: For, factor: int, ranges: Ranges) -> Iterator[Node]:
        """The loops that replace `loop`, which has kind sequential."""
        if factor < 2:
            yield loop
            return
        span = loop.upper - loop.lower
        known = ranges.constant(span)
        if known is None:
            yield from self.symbolic(loop, factor, ranges)
            return
        trips = max(0, -(-known // loop.step))
        factor = max(1, min(factor, trips))
        whole = trips // factor * factor
        middle = loop.lower + whole * loop.step
        if whole:
            yield self.copies(loop, factor, loop.lower, middle)
        if trips > whole:
            yield self.copies(loop, trips - whole, middle, middle + (trips - whole) * loop.step)

    def symbolic(self, loop: For, factor: int, ranges: Ranges) -> Iterator[Node]:
        span = loop.upper - loop.lower
        low = ranges.lowest(span)
        if low is None or low < 0:
            span = maximum([span, affine(0)])
        trips = (span + (loop.step - 1)) // loop.step
        most = ranges.highest(loop.upper - loop.lower)
        if self.guarded and most is not None and most <= factor * loop.step:
            yield self.all_at_once(loop, -(-most // loop.step), ranges)
            return
        # A tile of whole groups has a rest at the edges only; of a size that is not known the edge may be all there is.
        known = span.variables() <= {around.variable for around in ranges.loops}
        whole = known and most is not None and most % (factor * loop.step) == 0
        start, done, larger = loop.lower, affine(0), list[int]()
        for count in (factor,) if whole else _counts(factor):
            # All that is done is a number of these, too, or what is left is counted.
            nested = all(before % count == 0 for before in larger)
            done = trips // count * count if nested else done + (trips - done) // count * count
            end = loop.lower + done * loop.step
            yield self.copies(loop, count, start, end)
            start = end
            larger.append(count)
        yield replace(loop, lower=start)

    def all_at_once(self, loop: For, count: int, ranges: Ranges) -> Node:
        """As many copies as there may be iterations, assignments under the condition that theirs is one of them."""
        condition = Apply("lt", (IndexValue(affine(loop.variable), i64), IndexValue(loop.upper, i64)), boolean)
        low = ranges.lowest(loop.upper - loop.lower)
        if low is None or -(-low // loop.step) < count:
            loop = replace(loop, body=_guarded(loop.body, condition))
        return self.copies(loop, count, loop.lower, loop.lower + count * loop.step)

    def copies(self, loop: For, count: int, lower: Affine, upper: Affine) -> Node:
        """The iterations from `lower` on, `count` at a time, until exactly `upper`."""
        values = [affine(loop.variable) + j * loop.step for j in range(count)]
        body = jam(loop.body, loop.variable, values, taken=self.taken)
        return replace(loop, lower=lower, upper=upper, step=count * loop.step, body=body)


def _counts(factor: int) -> Iterator[int]:
    """How many iterations are jammed: `factor`, then fewer for the rest, the last of which are single ones."""
    yield factor
    if factor <= _TALL:
        smaller = max(count for count in range(1, _SMALLER + 1) if factor % count == 0 and count < factor)
        yield from (smaller,) if smaller > 1 else ()
        return
    while factor > 2:
        factor = (factor + 1) // 2
        yield factor


def _guarded(nodes: tuple[Node, ...], condition: Expr) -> tuple[Node, ...]:
    """The assignments in the nodes under a condition."""

    def visit(node: Node) -> Node:
        if isinstance(node, Assign | UpdateArgument):
            return If(condition=condition, then=(node,))
        return with_body(node, lambda body: _guarded(body, condition))

    return tuple(map(visit, nodes))


def _pieces(loop: For, factor: int, ranges: Ranges) -> Iterator[tuple[For, int]]:
    """The loop, or the interior of its range with the factor and edges without, where inner bounds are different at the edges."""
    if not depends_on(loop):
        yield loop, factor
        return
    for piece in cut_interior(loop, ranges, grain=1, at_least=factor):
        piece = replace(piece, body=simplify_nodes(piece.body, ranges.enter(piece)))
        yield piece, 1 if depends_on(piece) else factor
