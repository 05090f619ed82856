"""Register tiles of a large result: while one is summed up, lines of the result are fetched.

A tile's rows lie far apart, a few lines each, which no prefetcher of the hardware follows. Where sums are added to the result, they cannot start before the next tile's are there. Where they are only stored, stores wait for
lines one after the other, and those of the next tile for these; so a tile asks for what its rows go on with, or else for its own, to write, when its sums begin. What goes past the caches needs no lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from polyml.codegen.loops import Assign, For, Function, If, Node, Place, Prefetch, Variable
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import have_no_bodies, nodes_of, subscript_variables, with_body
from polyml.expressions import Apply, Read, reads_of
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_tiles"]

LEAST_TILE = 8
"""Elements (vectors) of a tile below which the processor looks far enough ahead by itself."""

LEAST_SUMS = 16
"""Iterations of the summing loop that a fetch should have time for."""

LATENCY = 1024
"""Steps of sums in registers, all of a tile together, in which a line comes from memory: half as many cycles. Tiles that take less are asked for several ahead."""

FARTHEST = 8
"""Tiles ahead, at most."""

LEAST_TIME = 64
"""Sums of a tile, all iterations together, from which on it is worth asking for the lines that it is stored to: half as many cycles, in which the last cache delivers, and memory has begun to."""

BESIDE = 512
"""Bytes from a tile's rows to those of the next one, at most, for these to be what the rows go on with: while the tiles of other rows are summed up, memory has time to bring them. Zen 3, of the time with requests for a tile's own lines,
`cadg,bgfe->fedcba` of 19 x 5 x 21 x 19 x 25 x 5 with 31 terms, f32, 19 MB, 0.71, of 9 x 7 x 21 x 15 x 7 x 29 with 11, 16 MB, 0.73."""

SHARE = 8
"""The part of L2 that a result must exceed whose lines are asked for to be written."""


def prefetch_tiles(function: Function, caches: Caches) -> Function:
    """The function with a prefetch per line of the next tile ahead of each loop that only sums up a tile in registers.

    Rewrite:
        for (i..; i += 8) { s0 = c[i, j]; s1 = c[i + 1, j]; ..; for (k ..) { s0 += ..; s1 += ..; .. } c[i, j] = s0; .. }
        -> for (i..; i += 8) { s0 = c[i, j]; ..; prefetch c[i + 8, j]; ..; for (k ..) { .. } c[i, j] = s0; .. }
        vector for (j ..) { s0 = c[i, j]; ..; for (k ..) { s0 += ..; .. } .. } -> vector for (j ..) { s0 = c[i, j]; ..; prefetch c[i, j + 4*16]; ..; for (k ..) { s0 += ..; .. } .. }
        vector for (j ..) { s0 = 0; s1 = 0; ..; for (k ..) { s0 += ..; s1 += ..; .. } c[i, j] = s0; c[i + 1, j] = s1; .. }
        -> vector for (j ..) { s0 = 0; ..; prefetch c[i, j] to write; prefetch c[i + 1, j] to write; ..; for (k ..) { .. } c[i, j] = s0; .. }
    """
    if not caches.l2:
        return function
    written = [v for v in function.arguments if v.name in function.written]
    large = {v.name: v for v in written if _is_large(v, caches.l2)}
    read = {r.tensor for n in nodes_of(function) if isinstance(n, Assign) for r in reads_of(n.value)}
    stored = {v.name: v for v in written if v.name not in read and _is_large(v, caches.l2 // SHARE)}
    body = _body(function.body, _Tiles(large, stored, caches), outside(function)) if large or stored else function.body
    return function if body is function.body else replace(function, body=body)


class _Tiles:
    """arrays: large results. stored: results that are not read, which a cache may hold, too."""

    def __init__(self, arrays: Mapping[str, Variable], stored: Mapping[str, Variable], caches: Caches) -> None:
        self.arrays, self.stored, self.caches = arrays, stored, caches
        self.all = {**arrays, **stored}

    def next_tile(self, loads: list[Read], ranges: Ranges) -> Iterator[Node]:
        """The lines of the tile that the innermost loop that moves it goes to next."""
        used = {name for read in loads for name in subscript_variables(read.subscripts)}
        moving = next((l for l in reversed(ranges.loops) if l.kind == "sequential" and l.variable in used), None)
        if moving is None:
            return
        ahead = {moving.variable: affine(moving.variable) + moving.step}
        for read in self.lines(loads):
            there = tuple(s.substitute(ahead) for s in read.subscripts if isinstance(s, Affine))
            yield Prefetch(Place(read.tensor, there), 1)

    def tiles_ahead(self, loads: list[Read], sums: For, ranges: Ranges) -> Iterator[Node]:
        """The lines of a tile farther along the rows, where those follow each other in the vector loop around; it asks for as many tiles ahead as memory takes."""
        lanes, trips = ranges.loops[-1], ranges.highest(sums.upper - sums.lower)
        if lanes.kind != "vector" or lanes.masked or trips is None:
            return
        ahead = min(FARTHEST, -(-LATENCY // max(1, trips * len(loads)))) * lanes.step
        for read in self.lines(loads):
            flat = flat_element(self.all[read.tensor], read.subscripts)
            if flat is not None and flat.stride(lanes.variable) == 1:
                there = tuple(
                    s.substitute({lanes.variable: affine(lanes.variable) + ahead})
                    for s in read.subscripts
                    if isinstance(s, Affine)
                )
                yield Prefetch(Place(read.tensor, there), 1)

    def own_tile(self, nodes: Sequence[Node], ranges: Ranges) -> Iterator[Node]:
        """The lines that the tile is stored to behind its sums, which come first among the nodes, and those of their terms that are written out."""
        sums, *behind = nodes
        lanes = ranges.loops[-1] if ranges.loops else None
        if lanes is None or lanes.kind != "vector" or not isinstance(sums, For):
            return
        if lanes.masked and lanes.lower != affine(0):  # what is left of a row shares lines with what was stored before
            return
        vectors: list[Read] = []
        for node in behind:
            if _is_term(node):
                continue
            if not isinstance(node, Assign) or node.target.variable not in self.stored or node.streaming:
                break
            flat = flat_element(self.stored[node.target.variable], node.target.subscripts)
            if node.reduction is not None or flat is None or flat.stride(lanes.variable) != 1:
                break
            vectors.append(Read(node.target.variable, node.target.subscripts, node.value.dtype))
        if len(vectors) >= LEAST_TILE and (_time([sums], ranges) or 0) >= LEAST_TIME:
            ahead = self.beside(vectors, ranges)
            for read in self.lines(vectors):
                there = tuple(s.substitute(ahead) for s in read.subscripts if isinstance(s, Affine))
                yield Prefetch(Place(read.tensor, there), 1, write=True)

    def beside(self, vectors: Sequence[Read], ranges: Ranges) -> dict[str, Affine]:
        """The next value of the outermost loop that goes on to a tile beside this one in the rows' memory, where that comes so soon that L1 holds the lines of all tiles until then; nothing where there is none."""
        variable, asked = self.all[vectors[0].tensor], len(tuple(self.lines(vectors))) * self.caches.line
        flat, (*around, lanes) = flat_element(variable, vectors[0].subscripts), ranges.loops
        tiles = ranges.highest(lanes.upper - lanes.lower)
        if flat is None or tiles is None or tiles > lanes.step:
            return {}
        found: dict[str, Affine] = {}
        for loop in reversed(around):
            step, trips = flat.stride(loop.variable), ranges.highest(loop.upper - loop.lower)
            strip = lanes.lower.stride(loop.variable)  # lanes begin where a loop over strips is
            if (
                step is None
                or trips is None
                or loop.kind not in ("sequential", "parallel")
                or 2 * asked > self.caches.l1
            ):
                break
            # Tile by tile along a row the hardware follows, and nobody would ask for the first one. Of a result that L2 holds the next strip is near enough when its time comes.
            apart = strip == 0 or (strip is not None and loop is not around[-1] and variable.name in self.arrays)
            shift = (step + (strip or 0)) * loop.step
            if apart and 0 < shift * variable.dtype.itemsize <= BESIDE:
                moved = affine(lanes.variable) + (strip or 0) * loop.step
                found = {loop.variable: affine(loop.variable) + loop.step, lanes.variable: moved}
            asked *= ceil(trips / loop.step)
        return found

    def lines(self, vectors: Sequence[Read]) -> Iterator[Read]:
        """The first one in each line."""
        seen: set[tuple[object, ...]] = set()
        for read in vectors:
            variable = self.all[read.tensor]
            flat = flat_element(variable, read.subscripts, whole_rows=True)
            if flat is None:
                continue
            rows = tuple(s for s, step in zip(read.subscripts, variable.memory_strides, strict=True) if step is None)
            number = flat.constant * variable.dtype.itemsize // self.caches.line
            line = (read.tensor, rows, flat - flat.constant, number)
            if line not in seen:
                seen.add(line)
                yield read


def _is_term(node: Node) -> bool:
    """Whether it adds to a register."""
    return isinstance(node, Assign) and node.reduction is not None and not node.target.subscripts


def _body(nodes: tuple[Node, ...], tiles: _Tiles, ranges: Ranges) -> tuple[Node, ...]:
    if have_no_bodies(nodes):
        return nodes
    made: list[Node] = []
    loads: list[Read] = []
    for position, node in enumerate(nodes):
        match node:
            case Assign(target=Place(subscripts=()), value=Read() as read) if read.tensor in tiles.arrays:
                loads.append(read)
            case For() if len(loads) >= LEAST_TILE and _sums_up(node, ranges):
                made.extend(tiles.next_tile(loads, ranges))
                loads = []
            case For(kind="sequential") if len(loads) >= LEAST_TILE and _finds_extrema(node) and ranges.loops:
                made.extend(tiles.tiles_ahead(loads, node, ranges))
                loads = []
            case For():
                made.extend(tiles.own_tile(nodes[position:], ranges))
                loads = []
            case _:
                loads = []
        made.append(_inside(node, tiles, ranges))
    return renewed(nodes, tuple(made))


def _inside(node: Node, tiles: _Tiles, ranges: Ranges) -> Node:
    inner = ranges.enter(node) if isinstance(node, For) else ranges
    return with_body(node, lambda body: _body(body, tiles, inner))


def _sums_up(loop: For, ranges: Ranges) -> bool:
    """Whether the loop does nothing but add to registers, often enough."""
    trips = ranges.highest(loop.upper - loop.lower)
    long = trips is None or trips >= LEAST_SUMS
    return long and all(map(_is_term, loop.body))


def _finds_extrema(loop: For) -> bool:
    """Whether the loop does nothing but compare what is in registers with other values."""
    return all(
        isinstance(n, Assign)
        and isinstance(n.value, Apply)
        and n.value.op in ("min", "max")
        and n.reduction is None
        and not n.target.subscripts
        and any(isinstance(arg, Read) and arg.tensor == n.target.variable for arg in n.value.args)
        for n in loop.body
    )


def _time(nodes: Sequence[Node], ranges: Ranges) -> int | None:
    """Sums of all iterations of nests that do nothing but add to registers, at most; None where they do something else, or it is not known."""
    total = 0
    for node in nodes:
        found: int | None
        match node:
            case Assign() if _is_term(node):
                found = 1
            case Prefetch():
                found = 0
            case If():
                found = _time((*node.then, *node.otherwise), ranges)
            case For(kind="sequential"):
                trips, inside = ranges.highest(node.upper - node.lower), _time(node.body, ranges.enter(node))
                found = None if trips is None or inside is None else ceil(trips / node.step) * inside
            case _:
                found = None
        if found is None:
            return None
        total += found
    return total


def _is_large(variable: Variable, least: int) -> bool:
    """Whether the array has more bytes than that; of symbolic extents it has."""
    return variable.bytes is None or variable.bytes > least
