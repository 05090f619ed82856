"""Blocks of a large operand that are packed: while tiles use one, what the next is packed from comes into L2, a line at a time.

A block is packed while nothing is computed, and used while memory is idle. What a tile reads of a panel came from somewhere in the operand, and the next block's elements come from one block further on there. All
tiles along the rows read the same panels, and each asks for a line or two of each row.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import ceil, prod

from polyml.codegen.loops import Assign, For, Function, Place
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.coming_lines import Coming
from polyml.codegen.prefetch.tile_fetches import TileFetches
from polyml.codegen.prefetch.tile_sums import (
    LEAST_REGISTERS,
    affine_subscripts,
    asked_in,
    copies_of,
    large_inputs,
    turn_of,
)
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Read, Subscript, reads_of, variables_in
from polyml.records import dataclass
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_sources"]

MOST_TILES = 128
"""Tiles along the rows, at most: a few of them ask for all lines, the others once more. With 47 it is 1 to 3 % faster, with 128 as fast as without, with 880 (fcea,debf->dcba) 1 to 4 % slower."""


def prefetch_sources(function: Function, caches: Caches, registers: int) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches of what is packed next in the sums of its register tiles. registers: of vectors, that the machine has.

    Rewrite:
        for (s..; s += 288) { pack p from v; for (n..; n += 8) for (m..; m += 48) for (k = s..; k += 2) t += r[n, k] * p[(m - m0)/48, k - s, 0]; .. }
        -> for (s..) { pack p from v; for (n..) for (m..) for (k..) { prefetch v[k + 288 + n//8 % 2, m + 16*(n//16 % 3) + 15]; t += r[n, k] * p[(m - m0)/48, k - s, 0]; .. } }
    """
    large = large_inputs(function, caches.l2) if caches.l2 and registers >= LEAST_REGISTERS else {}
    return _Sources(large, caches, [], outside(function)).within(function, beside=True)


@dataclass(frozen=True, slots=True)
class _Sources(TileFetches):
    """known: of the function's sizes."""

    known: Ranges

    def lines(self, lanes: For, sums: For, loops: tuple[For, ...]) -> Iterator[Place]:
        """What an iteration of the sums asks for, of either operand."""
        asked = asked_in(sums)
        for read, around, width in self.sources(lanes, sums, loops):
            if read.tensor not in asked:
                yield from self.of_source(read, around, width, lanes, sums, loops)

    def of_source(
        self, read: Read, around: tuple[For, ...], width: int, lanes: For, sums: For, loops: tuple[For, ...]
    ) -> Iterator[Place]:
        """What an iteration asks for of one operand. around: the loops of which the innermost one goes on to another block; width: what a tile reads of a row of the panel."""
        inside = (*loops[len(around) :], lanes, *(n for n in walk_nodes(lanes.body) if isinstance(n, For)))
        there = _next_block(around, inside)
        chosen = _choosing(read, inside)
        again = [loop for loop in loops[len(around) :] if loop.variable not in chosen]
        if not again:
            return
        counts = self.counts(loops, again)
        variable = self.arguments[read.tensor]
        flat = flat_element(variable, read.subscripts)
        if not 0 < prod(counts) <= MOST_TILES or flat is None or flat.substitute(there) == flat:
            return
        line = self.caches.line // variable.dtype.itemsize
        coming = Coming(read, width, there, turn_of(again, counts), prod(counts), line, beside=True)
        places: tuple[Place, ...] = ()
        if flat.stride(lanes.variable) == 1 or (lanes.variable not in chosen and width <= line):
            places = tuple(coming.down(lanes, sums))
        elif flat.stride(sums.variable) == 1:
            places = tuple(coming.across(lanes, sums))
        if places:
            yield from places
            text = f"what the next block of {read.tensor} is packed from, from inside a register tile"
            self.notes.append(Note("prefetch", around[-1].variable, text))

    def sources(self, lanes: For, sums: For, loops: tuple[For, ...]) -> Iterator[tuple[Read, tuple[For, ...], int]]:
        """What the panels are packed from that the sums read: the first element, the loops around the copy, and how many elements of a row are a tile's."""
        reads = dict.fromkeys(r for node in sums.body if isinstance(node, Assign) for r in reads_of(node.value))
        found: set[str] = set()
        width = lanes.upper - lanes.lower
        for depth in range(len(loops), 0, -1):
            copies = copies_of(loops[depth - 1], self.arguments)
            copies |= _of_first_lanes(loops[depth - 1], self.arguments)
            for r in reads:
                read = copies.get((r.tensor, r.subscripts))
                if read is None or read.tensor in found:
                    continue
                found.add(read.tensor)
                along = any(lanes.variable in s.variables() for s in affine_subscripts(r))
                if along and width.is_constant:
                    yield read, loops[:depth], width.constant
                elif not along:
                    yield read, loops[:depth], len({o.subscripts for o in reads if o.tensor == r.tensor}) // sums.step

    def counts(self, loops: Sequence[For], again: Sequence[For]) -> list[int]:
        """How often each of these loops runs; 0 where that is not known."""
        ranges = reduce(Ranges.enter, loops, self.known)
        return [ceil((ranges.highest(loop.upper - loop.lower) or 0) / loop.step) for loop in again]


def _of_first_lanes(loop: For, inputs: Container[str]) -> dict[tuple[str, Sequence[Subscript]], Read]:
    """What the loop copies to the first lane of rows of a panel: tiles read such an element by its number."""
    found: dict[tuple[str, Sequence[Subscript]], Read] = {}
    for lanes in walk_nodes(loop.body):
        if isinstance(lanes, For) and lanes.kind == "vector":
            first = {lanes.variable: lanes.lower}
            for (panel, places), read in copies_of(lanes, inputs).items():
                target = tuple(s.substitute(first) if isinstance(s, Affine) else s for s in places)
                source = tuple(s.substitute(first) if isinstance(s, Affine) else s for s in read.subscripts)
                found[panel, target] = replace(read, subscripts=source)
    return found


def _next_block(around: Sequence[For], inside: Sequence[For]) -> dict[str, Affine]:
    """Where the variables that move are in the next iteration of the innermost loop around; after its last one, in the next one of the loop around it."""
    *outer, block = around
    variable, span = affine(block.variable), block.upper - block.lower
    there = {block.variable: variable + block.step}
    if outer and span.is_constant:
        beyond, trips = outer[-1], ceil(span.constant / block.step)
        turn = (variable - block.lower) // block.step + 1
        there[beyond.variable] = affine(beyond.variable) + turn // trips * beyond.step
        there[block.variable] = block.lower.substitute(there) + turn % trips * block.step
    for loop in inside:
        moved = loop.lower.substitute(there) - loop.lower
        if moved != affine(0):
            there[loop.variable] = affine(loop.variable) + moved
    return there


def _choosing(read: Read, inside: Sequence[For]) -> set[str]:
    """The variables that decide what is read."""
    chosen = variables_in(affine_subscripts(read))
    for loop in reversed(inside):
        if loop.variable in chosen:
            chosen |= loop.lower.variables()
    return chosen
