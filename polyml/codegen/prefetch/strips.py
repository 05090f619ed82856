"""Strips of an operand that are read where they lie, by one register tile after the other: meanwhile the next strip comes into L2, a line at a time.

A strip is a few lines of each of many rows, which lie in pages of their own, where no prefetcher of the hardware follows. Its first tile would wait for each of them. Those before it have time:
each asks for a line or two of every row. The next strip may lie anywhere: beside this one, at the start of the next row of strips, or in another row of the operand. Strips across rows that are contiguous along the sum, which are
transposed as they are packed, are asked for row by row. A row that one vector loop makes alone has its next ones asked for by its first vectors: the strip is needed no later than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce
from math import ceil, prod

from polyml.codegen.loops import Assign, For, Function, If, Place
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.along import MOST_ROWS
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.columns import PAGE
from polyml.codegen.prefetch.coming_lines import Coming
from polyml.codegen.prefetch.tile_fetches import TileFetches
from polyml.codegen.prefetch.tile_sums import affine_subscripts, asked_in, copies_of, large_inputs, most_of, turn_of
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Expr, IndexValue, Read, Subscript, reads_of, variables_in, walk
from polyml.records import dataclass
from polyml.schedule.cache_sets import L2_WAYS, lines_in_set
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_strips"]

SHARE = 8
"""The part of L2 that an operand must exceed."""

LEAST_ROW = 2
"""Lines of a strip's row, at least, for it to need room that is counted."""

LONG, MOST_IN_SET = 512, 2
"""Terms of a sum from which on lines of a strip are counted that meet in a set, and how many there may be for each way, where the strip is packed and the last cache is far."""


def prefetch_strips(
    function: Function, caches: Caches, far: Set[str] = frozenset()
) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches of the next strip in the sums of its register tiles. far: arguments of symbolic size that are known to be larger than L2.

    Rewrite:
        for (m..; m += 48) for (n..; n += 8) vector for (l = m; l < m + 48; ..) for (k..; k += 2) s += r[n, k] * v[k, l]; ..
        -> for (m..) for (n..) vector for (l..) for (k..) { prefetch v[k + n//8 % 2, l + 48 + 16*(n//16 % 3) + 15]; s += r[n, k] * v[k, l]; .. }
    """
    if not caches.l2:
        return function, ()
    large = large_inputs(function, caches.l2 // SHARE)
    large |= {v.name: v for v in function.arguments if v.name in far and v.name not in function.written}
    return _Strips(large, caches, [], outside(function)).within(function, beside=True)


@dataclass(frozen=True, slots=True)
class _Strips(TileFetches):
    """known: of the function's sizes."""

    known: Ranges

    def lines(self, lanes: For, sums: For, loops: tuple[For, ...]) -> Iterator[Place]:
        """What an iteration of the sums asks for."""
        lanes = _from_strip(lanes, loops)
        found = self.strip(lanes, sums, loops)
        if found is None or found[0].tensor in asked_in(sums):
            return
        read, around, width = found
        if not self.caches.beside and self.is_few_rows(read, sums, loops):
            return
        between, used = loops[len(around) :], variables_in(affine_subscripts(read))
        for node in walk_nodes(lanes.body):
            used |= (
                {v for bound in (node.lower, node.upper) for v in bound.variables()} if isinstance(node, For) else set()
            )
        turns = self.turns(loops, between, lanes, apart=self.is_apart(read, sums))
        following = self.following(around, lanes, read)
        one_row = turns is None and not between and self.is_one_row(read, lanes, sums, loops)
        if one_row:
            turns = self.turns((*loops, lanes), (lanes,), lanes, apart=True)
            width, following[lanes.variable] = _whole_row(lanes, loops), lanes.lower
        if turns is None or any(loop.variable in used for loop in between):
            return
        if not (self.caches.near_l3 or self.has_room(read, width, turns[1], lanes, sums)):
            return
        coming = Coming(
            read,
            width,
            following,
            *turns,
            self.caches.line // self.arguments[read.tensor].dtype.itemsize,
            self.is_neighbour(around[-1], lanes, sums, read, width),
        )
        if one_row:
            coming = coming.soon()
        places = tuple(coming.across(lanes, sums) if self.is_across(read, lanes) else coming.down(lanes, sums))
        if places:
            yield from places
            self.notes.append(
                Note("prefetch", around[-1].variable, f"the next strip of {read.tensor}, from inside a register tile")
            )

    def turns(
        self, loops: tuple[For, ...], between: tuple[For, ...], lanes: For, *, apart: bool
    ) -> tuple[Affine, int] | None:
        """The number of a tile among those that share a strip, and how many these are; None where that is not known. apart: whether rows are (is_apart)."""
        counts = self.counts(loops, between)
        if counts is not None:
            return turn_of(between, counts), prod(counts)
        # Two tiles of different rows have no loop around them.
        vectors = [n for n in loops[-1].body if isinstance(n, For) and n.kind == "vector"]
        own = next((loop for loop in vectors if loop.body is lanes.body), None)
        tiles = [loop for loop in vectors if own is not None and loop.lower == own.lower]
        if between or own is None or len(tiles) < 2 or self.caches.beside or not apart:
            return None
        return affine(tiles.index(own)), len(tiles)

    def is_apart(self, read: Read, sums: For) -> bool:
        """Whether rows of the operand lie in pages of their own, or L2 does not hold it: Zen 3, two tiles of four and three rows, with requests, of the time without, rows of 824 bytes 1.2, of 1640 1.12 to 1.2, of 3280 in f64 1.1, of 6400 0.8."""
        row = self.row_bytes(read, sums)
        return row is None or row >= PAGE or (self.arguments[read.tensor].bytes or 0) > self.caches.l2

    def has_room(self, read: Read, width: int, tiles: int, lanes: For, sums: For) -> bool:
        """Whether L2 has room for a strip beside the panel that the one at hand is packed in, and the rows that the tiles go along: in five eighths of it, and in its sets. Lines that find none push out what tiles read. A strip that is
        read where it lies pushes out nothing that would not be read again, and is asked for wherever it goes; so is one whose rows are a line, as tiles of 16 registers have them (code for AVX2 there, 64 rows times 768 x 3072, 1024 x 4096, 128 times 512 x
        2048 without requests 1.19, 1.20, 1.08 of the time).

        Ice Lake, f32, panels of 48, of the time without requests for the next strip: 64 rows of 600, 800, 1000, 1200, 1700 terms (0.33, 0.39, 0.49, 0.58, 0.83 of L2) 0.88, 0.87, 0.89, 1.01, 1.15, 192 rows of 600, 800, 1200 (0.53, 0.70, 1.05) 1.01, 1.07,
        1.08, f64 64 rows of 600, 800 (0.41, 0.55) 0.90, 1.0, 192 rows of 1200 1.15; 64 rows of 200 terms 32 KiB apart (f64; five lines for each way) 0.86, of 512 and 768 terms 8 and 12 KiB apart (3.2, 2.4) 0.96, 1.04, of 1024 16 KiB apart (12.8) 1.2."""
        reads = dict.fromkeys(r for node in sums.body if isinstance(node, Assign) for r in reads_of(node.value))
        size, line = self.arguments[read.tensor].dtype.itemsize, self.caches.line
        if read in reads or width * size < LEAST_ROW * line:
            return True
        spans = [most_of(n) for n in walk_nodes(lanes.body) if isinstance(n, For) and sums in walk_nodes((n,))]
        terms = prod(span or 1 for span in spans)
        rows = sum(lanes.variable not in variables_in(affine_subscripts(r)) for r in reads) // sums.step
        if 8 * terms * (tiles * rows + 2 * width) * size > 5 * self.caches.l2:
            return False
        step, span = self.row_bytes(read, sums) or 0, most_of(sums) or 0
        if self.is_across(read, lanes) or span < LONG:
            return True
        met = lines_in_set(range(0, step * span, step or 1), width * size, self.caches.l2 // L2_WAYS, line)
        return met <= MOST_IN_SET * L2_WAYS

    def is_one_row(self, read: Read, lanes: For, sums: For, loops: tuple[For, ...]) -> bool:
        """Whether the vectors of one whole row, and nothing else, go down pieces of rows that lie in pages of their own."""
        if loops[-1].step > 1 or any(_follows(lanes, loop) for loop in loops):
            return False
        row = self.row_bytes(read, sums)
        inside = [n for n in walk_nodes(lanes.body) if isinstance(n, For)]
        return row is not None and row >= PAGE and inside == [sums]

    def row_bytes(self, read: Read, sums: For) -> int | None:
        """How far apart the rows are that the sums go down; None where that depends on sizes."""
        variable = self.arguments[read.tensor]
        flat = flat_element(variable, read.subscripts)
        return None if flat is None else abs(flat.stride(sums.variable) or 0) * variable.dtype.itemsize

    def is_few_rows(self, read: Read, sums: For, loops: tuple[For, ...]) -> bool:
        """Whether the strip is a piece of a few rows of many, which are read from end to end (along.py). Terms that are left of the loop's steps are behind it."""
        rows = Ranges(loops).constant(sums.upper - sums.lower)
        if rows is None or rows > MOST_ROWS:
            return False
        shape = self.arguments[read.tensor].shape
        whole = (n for n, s in zip(shape, affine_subscripts(read), strict=True) if s.stride(sums.variable))
        return not any(extent.is_constant and 0 <= extent.constant - rows < sums.step for extent in whole)

    def strip(self, lanes: For, sums: For, loops: tuple[For, ...]) -> tuple[Read, tuple[For, ...], int] | None:
        """The operand's first read, the loops of which the last goes on to another strip, and the strip's width."""
        own = next((k for k, loop in enumerate(loops) if _follows(lanes, loop)), None)
        span = lanes.upper - lanes.lower
        read = self.operand(lanes, sums, {} if own is None else copies_of(loops[own], self.arguments))
        if read is None or (own is None and not span.is_constant):
            return None
        moving = [k for k, loop in enumerate(loops) if k == own or ((own is None or k > own) and _picks(read, loop))]
        if not moving:
            return None
        return read, loops[: moving[-1] + 1], span.constant if own is None else loops[own].step

    def following(self, around: Sequence[For], lanes: For, read: Read) -> dict[str, Affine]:
        """Where the variables of the loops and of the lanes are in the next iteration of the innermost loop; after its last one, in the next one of the loop around it."""
        *outer, inner = around
        variable, span = affine(inner.variable), inner.upper - inner.lower
        moved = {inner.variable: variable + inner.step}
        beyond = outer[-1] if outer and span.is_constant else None
        if beyond is not None and (
            _follows(lanes, beyond)
            or (_picks(read, beyond) and (not _follows(lanes, inner) or self.is_row(inner, lanes, read)))
        ):
            turn, trips = (variable - inner.lower) // inner.step + 1, ceil(span.constant / inner.step)
            moved[beyond.variable] = affine(beyond.variable) + turn // trips * beyond.step
            first = inner.lower.substitute({beyond.variable: moved[beyond.variable]})
            moved[inner.variable] = first + turn % trips * inner.step
        shift = next(
            (
                moved[loop.variable] - affine(loop.variable)
                for loop in (inner, beyond)
                if loop and _follows(lanes, loop)
            ),
            affine(0),
        )
        return {**moved, lanes.variable: affine(lanes.variable) + shift}

    def is_neighbour(self, loop: For, lanes: For, sums: For, read: Read, width: int) -> bool:
        """Whether the rows of the loop's next strip begin where those of this one end."""
        flat = flat_element(self.arguments[read.tensor], read.subscripts, whole_rows=True)
        row = sums.upper - sums.lower if self.is_across(read, lanes) else affine(width)
        if _follows(lanes, loop):
            return not self.is_across(read, lanes)
        return flat is not None and affine((flat.stride(loop.variable) or 0) * loop.step) == row

    def is_across(self, read: Read, lanes: For) -> bool:
        """Whether lanes run across rows that are contiguous along the sums, and are copied so."""
        flat = flat_element(self.arguments[read.tensor], read.subscripts, whole_rows=True)
        return flat is not None and flat.stride(lanes.variable) != 1

    def is_row(self, strips: For, lanes: For, read: Read) -> bool:
        """Whether the strips are all of a row."""
        shape = self.arguments[read.tensor].shape
        rows = [extent for extent, s in zip(shape, affine_subscripts(read), strict=True) if s.stride(lanes.variable)]
        ends = [strips.upper - row for row in rows]
        return strips.lower == affine(0) and [e.is_constant and 0 <= e.constant < strips.step for e in ends] == [True]

    def counts(self, loops: Sequence[For], between: Sequence[For]) -> list[int] | None:
        """How often each of the loops around a tile runs; of the outermost one, whose number need not be known, how often at least. None where that is not known."""
        ranges = reduce(Ranges.enter, loops, self.known)
        found: list[int] = []
        for loop in between:
            span = ranges.highest(loop.upper - loop.lower)
            if span is None and not found:
                span = ranges.lowest(loop.upper - loop.lower)
            if span is None:
                return None
            found.append(ceil(span / loop.step))
        return found or None

    def operand(self, lanes: For, sums: For, copies: Mapping[tuple[str, Sequence[Subscript]], Read]) -> Read | None:
        """The first read of the operand that lanes run along, and that the sums go down, or what is copied from there."""
        found: dict[str, tuple[int, Read]] = {}
        reads = (r for node in sums.body if isinstance(node, Assign) for r in reads_of(node.value))
        for read in (copies.get((r.tensor, r.subscripts), r) for r in reads):
            variable = self.arguments.get(read.tensor)
            flat = None if variable is None else flat_element(variable, read.subscripts, whole_rows=True)
            moves = any(sums.variable in s.variables() for s in affine_subscripts(read)) if flat is not None else False
            if flat is None or not moves or 1 not in (flat.stride(lanes.variable), flat.stride(sums.variable)):
                continue
            if flat.stride(lanes.variable) != 1 and read not in copies.values():
                continue
            if read.tensor not in found or flat.constant < found[read.tensor][0]:
                found[read.tensor] = flat.constant, read
        return next(iter(found.values()))[1] if len(found) == 1 else None


def _from_strip(lanes: For, loops: Sequence[For]) -> For:
    """The vector loop as it is; where each strip has a kind of tile of its own (the last one is narrower), in terms of the loop over strips."""
    for loop in reversed(loops):
        at = lanes.lower - loop.lower
        fits = at.is_constant and at.constant % loop.step == 0 and loop.kind == "sequential"
        chosen = (n for n in walk_nodes(loop.body) if isinstance(n, If) and _values(n.condition) == {loop.variable})
        if fits and any(node is lanes for n in chosen for node in walk_nodes((*n.then, *n.otherwise))):
            lower = affine(loop.variable)
            return replace(lanes, lower=lower, upper=lower + (lanes.upper - lanes.lower))
    return lanes


def _values(condition: Expr) -> set[str]:
    """The variables that a condition asks about."""
    return {v for part in walk(condition) if isinstance(part, IndexValue) for v in part.affine.variables()}


def _whole_row(lanes: For, loops: Sequence[For]) -> int:
    """Elements of the row that a vector loop of known length begins, with those that no whole vector has."""
    rest = (n for n in loops[-1].body if isinstance(n, For) and n.masked and n.lower == lanes.upper)
    return (next(rest, lanes).upper - lanes.lower).constant


def _follows(lanes: For, loop: For) -> bool:
    """Whether the loop goes from strip to strip along the lanes."""
    return loop.variable in lanes.lower.variables()


def _picks(read: Read, loop: For) -> bool:
    """Whether the loop's variable alone is one of the subscripts."""
    return affine(loop.variable) in read.subscripts
