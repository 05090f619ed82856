"""Rows that are swept several times: while one is computed with, the next is fetched.

A loop whose body sweeps a row of a large array in several inner loops (a maximum, then exponentials, ...) waits for memory in the first sweep and leaves memory
idle in the others, and the hardware's prefetchers start anew with every row. So the sweep that computes most asks for the line of a coming row that lies where
its own read lies. Where rows are swept once only, the hardware sees the stream by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from polyml.codegen.loops import Allocate, Block, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.rewrite import expressions, walk_nodes, with_body
from polyml.codegen.streams import flat_element
from polyml.expressions import Read, reads_of
from polyml.schedule.cost import operations_of
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine

__all__ = ["Caches", "prefetch"]

AHEAD = 16_384
"""Bytes that should be on their way: what memory delivers within a few times its latency."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of one core's caches and of a line; 0: unknown."""

    l1: int
    l2: int
    line: int


def prefetch(function: Function, caches: Caches) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches of coming rows."""
    if not caches.l1 or not caches.l2:
        return function, ()
    pass_ = _Prefetch({v.name: v for v in function.arguments}, frozenset(l.name for l in function.leads), caches)
    body = pass_.body(function.body)
    return (function if body is function.body else replace(function, body=body)), tuple(pass_.notes)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A vector loop that reads `row` = `array[...]` once from end to end. read: the first of its loads. work: instructions per iteration."""

    loop: For
    array: str
    start: Affine
    bytes: int
    reads: tuple[Read, ...]
    work: float


class _Prefetch:
    def __init__(self, arguments: Mapping[str, Variable], leads: frozenset[str], caches: Caches) -> None:
        self.arguments, self.leads, self.caches = arguments, leads, caches
        self.notes: list[Note] = []

    def body(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        made = tuple(self.node(node) for node in nodes)
        return nodes if all(a is b for a, b in zip(made, nodes, strict=True)) else made

    def node(self, node: Node) -> Node:
        node = with_body(node, self.body)
        if not isinstance(node, For) or node.kind == "vector":
            return node
        loops = [loop for loop in _directly_inside(node.body) if loop.kind == "vector"]
        if len(loops) < 2:
            return node
        sweeps = [sweep for loop in loops for sweep in self.sweeps(loop, node)]
        return self.with_next_rows(node, sweeps)

    def sweeps(self, loop: For, outer: For) -> Iterator[_Sweep]:
        """The rows of large arrays that the loop reads and that move on with the outer loop."""
        trips = (loop.upper - loop.lower).substitute(dict.fromkeys(self.leads, 0))
        if not trips.is_constant or loop.masked or any(isinstance(node, For) for node in walk_nodes(loop.body)):
            return
        rows: dict[tuple[str, Affine], list[Read]] = {}
        for node in walk_nodes(loop.body):
            for read in (r for expr in expressions(node) for r in reads_of(expr)):
                variable = self.arguments.get(read.tensor)
                flat = None if variable is None else flat_element(variable, read.subscripts)
                if variable is None or flat is None or flat.stride(loop.variable) != 1 or not self.is_large(variable):
                    continue
                size = variable.dtype.itemsize
                if abs(flat.stride(outer.variable) or 0) * size < trips.constant * size:
                    continue
                start = flat - affine(loop.variable)
                rows.setdefault((read.tensor, start - start.constant), []).append(read)
        work = sum(operations_of(e) + 1 for node in walk_nodes(loop.body) for e in expressions(node))
        for (array, start), reads in rows.items():
            itemsize = self.arguments[array].dtype.itemsize
            yield _Sweep(loop, array, start, trips.constant * itemsize, tuple(dict.fromkeys(reads)), work / loop.step)

    def is_large(self, variable: Variable) -> bool:
        extents = [extent for extent in variable.shape if extent.is_constant]
        size = variable.dtype.itemsize * prod(extent.constant for extent in extents)
        return len(extents) < len(variable.shape) or size > self.caches.l2

    def with_next_rows(self, outer: For, sweeps: list[_Sweep]) -> For:
        """The loop with a prefetch in the heaviest sweep of each row that is swept more than once."""
        chosen: dict[int, list[Node]] = {}
        rows = {
            (s.array, s.start): max(o.bytes for o in sweeps if (o.array, o.start) == (s.array, s.start)) for s in sweeps
        }
        for (array, start), size in rows.items():
            same = [s for s in sweeps if (s.array, s.start) == (array, start)]
            if len({id(s.loop) for s in same if 2 * s.bytes > size}) < 2:
                continue
            found = self.distance(size, sum(rows.values()))
            if found is None:
                continue
            distance, level = found
            heaviest = max(same[1:], key=lambda s: s.work)
            nodes = [Prefetch(place, level) for place in self.lines(heaviest, outer, distance)]
            chosen.setdefault(id(heaviest.loop), []).extend(nodes)
            text = f"the row of {array} {distance * outer.step} {outer.variable} ahead, into L{level}"
            self.notes.append(Note("prefetch", outer.variable, text))
        return outer if not chosen else replace(outer, body=_with_nodes(outer.body, chosen))

    def distance(self, row: int, rows: int) -> tuple[int, int] | None:
        """How many rows ahead, and into which cache: coming rows must not push out the ones in use."""
        count = max(1, -(-AHEAD // row))
        # A local array as long as a row is the rule (a softmax's exponentials).
        for level, size in ((1, self.caches.l1), (2, self.caches.l2)):
            if 2 * rows + count * row <= size * 3 // 4:
                return count, level
        return None

    def lines(self, sweep: _Sweep, outer: For, distance: int) -> Iterator[Place]:
        """One element per cache line that an iteration of the sweep reads, `distance` rows ahead."""
        per_line = max(1, self.caches.line // self.arguments[sweep.array].dtype.itemsize)
        ahead = {outer.variable: affine(outer.variable) + distance * outer.step}
        seen: set[int] = set()
        for read in sweep.reads:
            flat = flat_element(self.arguments[sweep.array], read.subscripts)
            assert flat is not None, "internal: a row without an address"
            line = flat.constant // per_line
            if line not in seen:
                seen.add(line)
                yield Place(sweep.array, tuple(s.substitute(ahead) for s in read.subscripts if isinstance(s, Affine)))


def _directly_inside(nodes: tuple[Node, ...]) -> Iterator[For]:
    """The loops among the nodes, in order, with no other loop or condition around."""
    for node in nodes:
        match node:
            case For():
                yield node
            case Allocate() | Block():
                yield from _directly_inside(node.body)
            case _:
                pass


def _with_nodes(nodes: tuple[Node, ...], extra: Mapping[int, list[Node]]) -> tuple[Node, ...]:
    """The nodes with more at the start of some loops' bodies, by the loop's id."""
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, For):
            node = replace(node, body=(*extra[id(node)], *node.body)) if id(node) in extra else node
        else:
            node = with_body(node, lambda body: _with_nodes(body, extra))
        made.append(node)
    return tuple(made)
