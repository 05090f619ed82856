"""Blocks of a reduction that register tiles read where they lie: meanwhile the rows of the next block come into L2, a line at a time.

Rows that lie one after the other are a stream for the hardware's prefetchers only while the first tile goes down a block; those behind it find the block in cache, and memory idles. So each of them asks for one
line of every row of the next block, at the step of its own sums. Where an operand is made for each block, each of them asks for what that is made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from math import ceil, prod

from polyml.codegen.loops import Assign, For, Function, Place
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.tile_fetches import TileFetches
from polyml.codegen.prefetch.tile_sums import large_inputs, turn_of
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Read, reads_of
from polyml.records import dataclass
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_blocks"]

ROWS = 16
"""Rows of a block, at least: fewer are there before anybody could ask for them."""


def prefetch_blocks(function: Function, caches: Caches) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches of the next block in the sums of its register tiles.

    Rewrite:
        for (s..; s += 208) for (d..; d += 13) vector for (e..) for (k = s; k < s + 208; k++) t += x[k, d] * v[k, e]; ..
        -> for (s..) for (d..) vector for (e..) for (k = s; ..) { prefetch x[k + 208, 16*(d//13)], v[k + 208, 16*(d//13)]; t += x[k, d] * v[k, e]; .. }
    """
    large = large_inputs(function, caches.l2) if caches.l2 else {}
    return _Blocks(large, caches, []).within(function)


@dataclass(frozen=True, slots=True)
class _Blocks(TileFetches):
    def lines(self, lanes: For, sums: For, loops: tuple[For, ...]) -> Iterator[Place]:
        """What an iteration of the sums asks for: in each tile another line of its row, as long as there are enough tiles."""
        at = next((k for k, loop in enumerate(loops) if sums.lower == affine(loop.variable)), None)
        if at is None or loops[at].step < ROWS or loops[at].kind != "sequential":
            return
        block, between = loops[at], loops[at + 1 :]
        trips = [Ranges(loops).constant(loop.upper - loop.lower) for loop in between]
        if None in trips:
            return
        counts = [ceil((span or 0) / loop.step) for loop, span in zip(between, trips, strict=True)]
        turn, tiles = turn_of(between, counts), prod(counts)
        # Those of tiles and of copies; the tile's own loops around the sums stay.
        inner = _variables(block) - _variables(lanes)
        reads = dict.fromkeys(_reads(sums))
        reads |= dict.fromkeys(_made_from(block, sums, {read.tensor for read in reads}))
        for read in {read.tensor: read for read in reversed(reads)}.values():
            across = self.row_lines(read, sums, inner)
            if not across or across * sums.step > tiles:
                continue
            row, line = turn % sums.step, (turn // sums.step) % across
            *outer, _ = (s for s in read.subscripts if isinstance(s, Affine))
            ahead = {sums.variable: affine(sums.variable) + block.step + row}
            itemsize = self.arguments[read.tensor].dtype.itemsize
            yield Place(read.tensor, (*(s.substitute(ahead) for s in outer), line * (self.caches.line // itemsize)))
            text = f"the next block of {read.tensor}, from inside a register tile"
            self.notes.append(Note("prefetch", block.variable, text))

    def row_lines(self, read: Read, sums: For, inner: set[str]) -> int:
        """Lines of a row of an input that the sums go down; 0 where rows are not contiguous, one after the other, or there are others at once."""
        variable = self.arguments.get(read.tensor)
        flat = None if variable is None else flat_element(variable, read.subscripts)
        if variable is None or flat is None or len(read.subscripts) < 2:
            return 0
        *outer, last = (s for s in read.subscripts if isinstance(s, Affine))
        if sums.variable in last.variables() or any(s.variables() & inner for s in outer):
            return 0
        row = variable.shape[-1].constant
        step = variable.strides[-1] if variable.strides is not None else 1
        lines, rest = divmod(row * variable.dtype.itemsize, self.caches.line)
        return lines if step == 1 and flat.stride(sums.variable) == row and not rest else 0


def _variables(loop: For) -> set[str]:
    """Of the loops inside."""
    return {node.variable for node in walk_nodes(loop.body) if isinstance(node, For)}


def _reads(loop: For) -> Iterator[Read]:
    return (read for node in walk_nodes(loop.body) if isinstance(node, Assign) for read in reads_of(node.value))


def _made_from(block: For, sums: For, arrays: Set[str]) -> Iterator[Read]:
    """What an array that the sums read is made from in the same block, as if they read that at its place."""
    for loop in walk_nodes(block.body):
        if not isinstance(loop, For) or (loop.lower, loop.upper) != (sums.lower, sums.upper):
            continue
        if any(isinstance(node, Assign) and node.target.variable in arrays for node in walk_nodes(loop.body)):
            for read in _reads(loop):
                here = {loop.variable: affine(sums.variable)}
                places = [s.substitute(here) if isinstance(s, Affine) else s for s in read.subscripts]
                yield replace(read, subscripts=tuple(places))
