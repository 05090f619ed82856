"""Rows that are swept several times: while one is computed with, the next is fetched.

A loop whose body sweeps a row in several inner loops (a maximum, then exponentials, ...) waits for memory in the first sweep and leaves memory
idle in the others, and the hardware's prefetchers start anew with every row. So one of the others asks for the line of a coming row that lies where it stands itself: the one that
computes most and does not stream its results out, or, where streaming stores wait in buffers of their own (`Target.streams_apart`), does not read the row. On cores that are asked for few bytes ahead (`Target.rows_ahead`) one that computes little leaves rows of half a page to a page to the hardware, and asks for longer ones into L2. Where one loop only reads large arrays, the hardware sees the stream by itself, unless the loop computes much: then it asks for lines further on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import inf

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import AHEAD, SOME_SIZE, Caches
from polyml.codegen.rewrite import expressions, have_no_bodies, walk_nodes, with_body
from polyml.expressions import Read, reads_of
from polyml.operation_weights import operations_of
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import element_count, is_known

__all__ = ["prefetch"]

HEAVY = 8
"""Instructions per vector that is read, from which on a loop is too slow for the hardware's prefetchers, which stop at the end of every page, to keep memory busy."""

PAGE = 4096
"""Bytes that the hardware's prefetchers follow a row without a stop."""

TRIES = 2
"""Requests for each line among stores past the caches that wait in buffers of their own: Zen 3 seems to drop some. With two in place of one softmax's gradient takes 0.9 of the time, rows over their norms out of memory 0.87 (4096 x 1024 in f32), and no program measured takes longer."""

BESIDE = 4
"""Rows side by side from which on they are more streams than every processor's prefetchers follow."""


def prefetch(function: Function, caches: Caches, near: Set[str] = frozenset()) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches of coming rows, but of arrays that are `near`: no larger than L2."""
    if not caches.l1 or not caches.l2:
        return function, ()
    numbers = dict.fromkeys((l.name for l in function.leads), 0) | dict.fromkeys(function.sizes, SOME_SIZE)
    pass_ = _Prefetch({v.name: v for v in function.arguments}, numbers, caches, function.written, near)
    body = pass_.body(function.body)
    if len(loops := pass_.rows_of(body)) == 1:
        body = pass_.with_coming_lines(body, loops[0])
    return (function if body is function.body else replace(function, body=body)), tuple(pass_.notes)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A vector loop that reads a row of the array once from end to end, or several side by side. start: the row's first element, but for a constant. bytes: of what is new in each iteration of the loop around. reads: its loads."""

    loop: For
    array: str
    start: Affine
    bytes: int
    reads: tuple[Read, ...]


class _Prefetch:
    """numbers: what stands for leads and symbolic sizes."""

    def __init__(
        self,
        arguments: Mapping[str, Variable],
        numbers: Mapping[str, int],
        caches: Caches,
        written: frozenset[str],
        near: Set[str],
    ) -> None:
        self.symbolic = frozenset(name for name, v in arguments.items() if not is_known(v.shape))
        self.near = near
        self.arguments = {
            name: replace(v, shape=tuple(extent.substitute(numbers) for extent in v.shape))
            for name, v in arguments.items()
        }
        self.numbers, self.caches, self.written = numbers, caches, written
        self.notes: list[Note] = []

    def body(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if have_no_bodies(nodes):
            return nodes
        return renewed(nodes, (self.node(node) for node in nodes))

    def node(self, node: Node) -> Node:
        node = with_body(node, self.body)
        if not isinstance(node, For) or node.kind == "vector":
            return node
        node = self.with_ends_of_blocks(node)
        loops = self.rows_of(node.body)
        beside = self.with_rows_beside(node, loops)
        if beside is not node:
            return beside
        if len(loops) == 1:
            pieces = self.with_next_pieces(node, loops[0])
            return replace(node, body=self.with_coming_lines(node.body, loops[0], node)) if pieces is node else pieces
        between = _read_by_rows(node.body) if loops else set[str]()
        sweeps = [sweep for loop in loops for sweep in self.sweeps(loop, node) if sweep.array not in between]
        fetching = self.with_next_rows(node, loops, sweeps)
        readers = [loop for loop in loops if self.streams(loop)]
        if fetching is node and len(readers) == 1:  # what the others do is adding up lanes, or short
            return replace(node, body=self.with_coming_lines(node.body, readers[0], node))
        return fetching

    def streams(self, loop: For) -> Mapping[tuple[str, Affine], tuple[Read, ...]]:
        """What the loop reads of large arrays, element after element: by array and first element (but for a constant), its loads."""
        found: dict[tuple[str, Affine], dict[Read, None]] = {}
        for node in walk_nodes(loop.body):
            for read in (r for expr in expressions(node) for r in reads_of(expr)):
                variable = self.arguments.get(read.tensor)
                flat = None if variable is None else flat_element(variable, read.subscripts)
                if variable is None or flat is None or flat.stride(loop.variable) != 1 or not self.is_large(variable):
                    continue
                start = flat - affine(loop.variable)
                found.setdefault((read.tensor, start - start.constant), {})[read] = None
        return {key: tuple(reads) for key, reads in found.items()}

    def sweeps(self, loop: For, outer: For) -> Iterator[_Sweep]:
        """The rows of large arrays that the loop reads and that move on with the outer loop."""
        trips = self.trips(loop)
        if trips is None or trips <= 0:  # the latter at the size that stands for symbolic ones
            return
        for (array, start), reads in self.streams(loop).items():
            if abs(start.stride(outer.variable) or 0) >= trips:
                rows = min(self.rows(array, reads, trips), outer.step)
                yield _Sweep(loop, array, start, rows * trips * self.arguments[array].dtype.itemsize, reads)

    def rows(self, array: str, reads: Sequence[Read], trips: int) -> int:
        """How many rows of so many elements are read side by side."""
        return len({_constant_of(self.arguments[array], read) // trips for read in reads})

    def is_large(self, variable: Variable) -> bool:
        size = variable.dtype.itemsize * element_count(variable.shape)
        return size > self.caches.l2 if variable.name not in self.symbolic else variable.name not in self.near

    def with_next_rows(self, outer: For, loops: list[For], sweeps: list[_Sweep]) -> For:
        """The loop with prefetches of each row of the sweeps, in one of its loops as long as the row: one that is no row's first sweep, or that of the row before as well, else one that sweeps this row again. Where that computes little,
        of several rows that are swept once every other one is asked for in its first sweep, so that fewer lines at a time are on their way."""
        chosen: dict[int, list[Node]] = {}
        rows = {
            (s.array, s.start): max(o.bytes for o in sweeps if (o.array, o.start) == (s.array, s.start)) for s in sweeps
        }
        first_sweeps = {id(next(s for s in sweeps if (s.array, s.start) == row).loop) for row in rows}
        first_sweeps -= {
            id(s.loop) for s in sweeps if len(self.new_reads(s.array, s.start, s.reads, outer)) < len(s.reads)
        }
        once = [row for row in rows if sum((s.array, s.start) == row for s in sweeps) == 1]
        early = once[: len(once) & ~1 : 2] if self.caches.ahead >= AHEAD else []
        for (array, start), size in rows.items():
            same = [s for s in sweeps if (s.array, s.start) == (array, start) and 2 * s.bytes > size]
            first = same[0]
            idle = [loop for loop in loops if id(loop) not in first_sweeps and self.is_host(loop, first)]
            hosts = idle or [sweep.loop for sweep in same[1:] if sweep.loop is not first.loop]
            found = self.distance(sum(rows.values()))
            if not hosts or found is None:
                continue
            distance, level = found
            host = max(hosts, key=lambda loop: (self.is_idle(loop, {id(s.loop) for s in same}), _work(loop)))
            if (array, start) in early and not (_is_heavy(host) or _streams(host)) and not _streams(first.loop):
                host = first.loop
            longest = max(rows.values())
            if self.is_light(host) and PAGE // 2 <= longest <= PAGE:
                continue
            level = 2 if self.is_light(host) and longest > PAGE else level
            moved = {first.loop.variable: affine(host.variable) - host.lower + first.loop.lower}
            if (
                array in self.symbolic and self.arguments[array].strides is None
            ):  # rows of unknown length follow each other
                bytes_ahead = self.caches.ahead // len(rows) // self.caches.line * self.caches.line
                moved[first.loop.variable] += bytes_ahead // self.arguments[array].dtype.itemsize
                ahead = f"{bytes_ahead} bytes"
            else:
                moved[outer.variable] = affine(outer.variable) + distance * outer.step
                ahead = f"{distance * outer.step} {outer.variable}"
            new = self.new_reads(array, start, first.reads, outer)
            nodes = [Prefetch(place, level) for place in self.lines(new, first.loop, host, moved)]
            chosen.setdefault(id(host), []).extend(nodes)
            text = f"the row of {array} {ahead} ahead, into L{level}"
            self.notes.append(Note("prefetch", outer.variable, text))
        return outer if not chosen else replace(outer, body=_with_nodes(outer.body, chosen))

    def with_coming_lines(self, nodes: tuple[Node, ...], loop: For, outer: For | None = None) -> tuple[Node, ...]:
        """The nodes, which are what is inside of the outer loop, with prefetches of lines further on in what their only loop reads, if it computes so much that the hardware does not see far enough ahead.
        Inputs only: what the function writes itself, step after step in tiles, comes from a cache; but where the loop goes through it as well, memory may have to deliver that, too, which counts as half of an input. Not several streams on a core whose loads wait for lines that are on their way into L1, nor several rows on one where what is asked for elsewhere pushes out what is at hand, but in loops whose stores past the caches wait in buffers of their own."""
        every = self.streams(loop)
        streams = {key: reads for key, reads in every.items() if key[0] not in self.written}
        enough = bool(streams) and 2 * _work(loop) * loop.width >= HEAVY * (len(streams) + len(every))
        several = self.caches.ahead < AHEAD and len(streams) > 1
        if not self.caches.beside and not (self.caches.streams_apart and _streams(loop)):
            trips = self.trips(loop)
            several = not trips or trips < 0 or sum(self.rows(a, r, trips) for (a, _), r in streams.items()) > 1
        if not enough or several or 3 * self.caches.l1 < 4 * AHEAD:
            return nodes
        made: list[Node] = []
        for (array, start), reads in streams.items():
            ahead = AHEAD // len(streams) // self.caches.line * self.caches.line
            elements = ahead // self.arguments[array].dtype.itemsize
            moved = {loop.variable: affine(loop.variable) + elements}
            new = self.new_reads(array, start, reads, outer)
            made += [Prefetch(place, 1) for place in self.lines(new, loop, loop, moved)]
            self.notes.append(Note("prefetch", loop.variable, f"{array} {ahead} bytes ahead, into L1"))
        return _with_nodes(nodes, {id(loop): made})

    def new_reads(self, array: str, start: Affine, reads: Sequence[Read], outer: For | None) -> tuple[Read, ...]:
        """Those that do not read what another one has read an iteration of the outer loop before."""
        step = 0 if outer is None else (start.stride(outer.variable) or 0) * outer.step
        variable = self.arguments[array]
        there = {_constant_of(variable, read) for read in reads} if step else set[int]()
        return tuple(read for read in reads if _constant_of(variable, read) + step not in there)

    def with_ends_of_blocks(self, outer: For) -> For:
        """The loop with prefetches in sweeps over a first row ahead of a loop over rows, or over the last one behind it, of the row that an iteration more would ask for: else each block of rows has one that nobody has asked for."""
        nodes = list(_directly_inside(outer.body))
        walks = [k for k, node in enumerate(nodes) if node.kind != "vector"]
        if not walks:
            return outer
        walk, sweeps = nodes[walks[-1]], self.rows_of(tuple(nodes))
        if not sweeps:
            return outer
        asked = {node.place.variable: node.place for node in walk_nodes(walk.body) if isinstance(node, Prefetch)}
        chosen: dict[int, list[Node]] = {}
        behind = {id(node) for node in nodes[walks[-1] :]}
        for loop in sweeps:
            streams = {key: reads for key, reads in self.streams(loop).items() if key[0] in asked}
            trips = self.trips(loop)
            if not streams or not trips or trips < 0 or not _is_heavy(loop) or _streams(loop):
                continue
            found = self.distance(sum(trips * self.arguments[array].dtype.itemsize for array, _ in streams))
            for (array, _), reads in streams.items():
                steps = [s.stride(walk.variable) for s in asked[array].subscripts if isinstance(s, Affine)]
                if found is None or None in steps or not any(steps):
                    continue
                distance, level = found
                moved = {loop.variable: affine(loop.variable)}
                rows = [(step or 0) * walk.step * (distance + (id(loop) in behind)) for step in steps]
                for place in self.lines(reads, loop, loop, moved):
                    there = zip(place.subscripts, rows, strict=True)
                    ahead = Place(array, tuple(s + row for s, row in there if isinstance(s, Affine)))
                    chosen.setdefault(id(loop), []).append(Prefetch(ahead, level))
        return outer if not chosen else replace(outer, body=_with_nodes(outer.body, chosen))

    def with_next_pieces(self, outer: For, loop: For) -> For:
        """The loop with prefetches of pieces of coming rows, where its only loop runs over pieces of rows with a recurrence from row to row: the hardware's prefetchers start anew with every piece.
        Inputs only."""
        trips = self.trips(loop)
        targets = {node.target.variable for node in walk_nodes(loop.body) if isinstance(node, Assign)}
        reads = {r.tensor for node in walk_nodes(loop.body) for e in expressions(node) for r in reads_of(e)}
        if trips is None or not targets & reads:
            return outer
        streams = {
            (array, start): found
            for (array, start), found in self.streams(loop).items()
            if array not in self.written and 4 * abs(start.stride(outer.variable) or 0) > 5 * trips
        }
        size = sum(trips * self.arguments[array].dtype.itemsize for array, _ in streams)
        count = max(1, -(-AHEAD // max(size, 1)))
        if not streams or size > AHEAD or (2 + count) * size > self.caches.l2 // 4:
            return outer
        made: list[Node] = []
        moved = {loop.variable: affine(loop.variable), outer.variable: affine(outer.variable) + count * outer.step}
        for (array, _), found in streams.items():
            made += [Prefetch(place, 2) for place in self.lines(found, loop, loop, moved)]
            text = f"the piece of a row of {array} {count * outer.step} {outer.variable} ahead, into L2"
            self.notes.append(Note("prefetch", outer.variable, text))
        return replace(outer, body=_with_nodes(outer.body, {id(loop): made}))

    def with_rows_beside(self, outer: For, loops: Sequence[For]) -> For:
        """The loop with prefetches of what comes next, where the one loop inside that reads large inputs reads several rows of them side by side: more streams than some prefetchers of the hardware follow.
        Further along rows that are long, and else of the next rows, which follow these in memory, unless the core sees them by itself. Nothing where such requests push out what is at hand."""
        readers = [(loop, self.streams(loop)) for loop in loops]
        readers = [(loop, streams) for loop, streams in readers if streams]
        if len(readers) != 1 or not self.caches.beside:
            return outer
        ((loop, streams),) = readers
        trips = self.trips(loop)
        if trips is None or trips <= 0:
            return outer
        made: list[Node] = []
        for (array, start), reads in streams.items():
            rows = self.rows(array, reads, trips)
            if rows < BESIDE or array in self.written or abs(start.stride(outer.variable) or 0) < trips:
                continue
            itemsize = self.arguments[array].dtype.itemsize
            ahead = max(self.caches.line, AHEAD // rows // self.caches.line * self.caches.line)
            moved = {loop.variable: affine(loop.variable), outer.variable: affine(outer.variable)}
            if trips * itemsize >= 4 * ahead:
                moved[loop.variable] += ahead // itemsize
                text = f"{rows} rows of {array} {ahead} bytes further along, into L2"
            elif not self.caches.near:
                continue
            else:
                count = max(1, AHEAD // (rows * trips * itemsize))
                moved[outer.variable] += count * outer.step
                text = f"{rows} rows of {array} {count * outer.step} {outer.variable} ahead, into L2"
            made += [Prefetch(place, 2) for place in self.lines(reads, loop, loop, moved)]
            self.notes.append(Note("prefetch", outer.variable, text))
        return replace(outer, body=_with_nodes(outer.body, {id(loop): made})) if made else outer

    def is_light(self, host: For) -> bool:
        """Whether memory is hardly ever idle in the loop, on a core whose loads wait for lines that are on their way into L1: of rows within a page the hardware fetches what comes next by itself."""
        return self.caches.ahead < AHEAD and not _is_heavy(host)

    def is_idle(self, loop: For, sweeps: Set[int]) -> bool:
        """Whether memory has time for requests while the loop runs: it stores nothing past the caches, or its stores wait in buffers of their own and it does not read the row itself (which has those `sweeps`, by id)."""
        return not _streams(loop) or (self.caches.streams_apart and id(loop) not in sweeps)

    def is_host(self, loop: For, sweep: _Sweep) -> bool:
        """Whether the loop runs over at least half as many elements as the row has."""
        trips = self.trips(loop)
        length = self.trips(sweep.loop)
        return trips is not None and length is not None and 2 * trips > length

    def rows_of(self, nodes: tuple[Node, ...]) -> list[For]:
        """The whole loops among the nodes, without those over one vector at an end of a row whose other vectors it overlaps."""
        whole = _whole_loops(nodes)
        ends = {id(loop) for loop in whole if (self.trips(loop) or inf) <= loop.width}
        long = {loop.variable for loop in whole if id(loop) not in ends}
        return [loop for loop in whole if id(loop) not in ends or loop.variable not in long]

    def trips(self, loop: For) -> int | None:
        """Iterations of a vector loop's variable; None when they are no number, or when the loop contains others."""
        trips = (loop.upper - loop.lower).substitute(self.numbers)
        if not trips.is_constant or loop.masked or any(isinstance(node, For) for node in walk_nodes(loop.body)):
            return None
        return trips.constant

    def distance(self, rows: int) -> tuple[int, int] | None:
        """How many iterations ahead, when one reads so many bytes of rows, and into which cache: coming rows must not push out the ones in use."""
        count = max(1, -(-self.caches.ahead // rows))
        # A local array as long as a row is the rule (a softmax's exponentials).
        for level, size in ((1, self.caches.l1), (2, self.caches.l2)):
            if (2 + count) * rows <= size * 3 // 4:
                return count, level
        return None

    def lines(self, reads: Sequence[Read], loop: For, host: For, moved: Mapping[str, Affine]) -> Iterator[Place]:
        """One element per cache line of as many elements as an iteration of the host has, with other values for some variables: from each of these loads of `loop` on that does
        not belong to the vectors behind another one (several rows may be read side by side). Several per line where requests are dropped (`TRIES`)."""
        array = self.arguments[reads[0].tensor]
        per_line = max(1, self.caches.line // array.dtype.itemsize)
        if self.caches.streams_apart and _streams(host):
            per_line = max(1, per_line // TRIES)
        behind: int | None = None
        for constant, read in sorted(((_constant_of(array, read), read) for read in reads), key=lambda item: item[0]):
            if behind is not None and constant < behind:
                continue
            behind = constant + loop.step
            for line in range(0, host.step, per_line):
                there = {**moved, loop.variable: moved[loop.variable] + line}
                yield Place(array.name, tuple(s.substitute(there) for s in read.subscripts if isinstance(s, Affine)))


def _constant_of(variable: Variable, read: Read) -> int:
    """Of the flat element that is read."""
    flat = flat_element(variable, read.subscripts)
    assert flat is not None, "internal: a row without an address"
    return flat.constant


def _streams(loop: For) -> bool:
    """Whether the loop stores results past the caches."""
    return any(isinstance(node, Assign) and node.streaming for node in walk_nodes(loop.body))


def _work(loop: For) -> float:
    """Instructions for each element, roughly."""
    nodes = list(walk_nodes(loop.body))
    scans = sum(isinstance(node, Assign) and node.scan is not None for node in nodes)
    # A shuffle and an operation for each time that the lanes halve, and what joins a vector to the one before.
    work = scans * 2 * loop.width.bit_length()
    return (work + sum(operations_of(e) + 1 for node in nodes for e in expressions(node))) / loop.step


def _is_heavy(loop: For) -> bool:
    return _work(loop) * loop.width >= HEAVY


def _whole_loops(nodes: tuple[Node, ...]) -> list[For]:
    """The vector loops among the nodes, one of the pieces that a loop was cut into for each: without those under masks (the first and the last vector of a row), those that go on
    with single vectors where another ends, and those that contain others."""
    whole: list[For] = []
    for loop in _directly_inside(nodes):
        if loop.kind != "vector" or loop.masked:
            continue
        rest = bool(whole) and (loop.variable, loop.lower) == (whole[-1].variable, whole[-1].upper)
        if not rest and not any(isinstance(node, For) for node in walk_nodes(loop.body)):
            whole.append(loop)
    return whole


def _read_by_rows(nodes: tuple[Node, ...]) -> set[str]:
    """What loops over rows among the nodes read: the row that comes next is one of theirs."""
    loops = (n for n in _directly_inside(nodes) if n.kind != "vector")
    return {r.tensor for loop in loops for n in walk_nodes(loop.body) for e in expressions(n) for r in reads_of(e)}


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
    """The nodes with more at the start of some loops' bodies, by the loop's id, and of loops that go on with as many vectors under masks where these end."""
    made: list[Node] = []
    before: For | None = None
    for node in nodes:
        if isinstance(node, For):
            if before is not None and (node.lower, node.step) == (before.upper, before.step):
                more, before = extra[id(before)], None
            else:
                more = extra.get(id(node), [])
                before = node if more else None
            node = replace(node, body=(*more, *node.body)) if more else node
        else:
            node = with_body(node, lambda body: _with_nodes(body, extra))
        made.append(node)
    return tuple(made)
