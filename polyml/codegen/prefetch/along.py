"""A few rows of a large matrix at a time, read from end to end by one register tile after the other: each tile asks for the same rows further along.

The prefetchers of some processors follow fewer streams than that, or start too late behind the end of a page. What they have brought already costs an instruction. Where such requests come into L1 (Target.fills_l2), they push out what is at hand, and nothing is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from polyml.codegen.loops import Assign, For, Function, Place
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import AHEAD, Caches
from polyml.codegen.prefetch.tile_fetches import TileFetches
from polyml.codegen.prefetch.tile_sums import affine_subscripts, large_inputs
from polyml.codegen.ranges import Ranges
from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.schedule import Note
from polyml.sets.affine import affine

__all__ = ["MOST_ROWS", "prefetch_along"]

MOST_ROWS = 32
"""Rows at a time from which on tiles go down a block, and not along rows."""

MANY = 4
"""Rows of the result from which on all cores are asked: Ice Lake follows eight rows of the operand by itself, and gets to memory sooner without requests. f32, of the time with them, 1 to 3 rows times 4096 x 4096 0.91 to 0.94, times 2000 x 3000 0.88 to 0.94, f64
0.95 to 0.98, 0.94 to 1.02; 5 to 8 rows 0.95 to 0.97, 1.0 to 1.05, 0.96 to 1.02, 1.02 to 1.12."""


def prefetch_along(function: Function, caches: Caches, *, always: bool = True) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches along the rows in the sums of such tiles. always: those of few rows of the result, too (Target.asks_along).

    Rewrite:
        for (k0..; k0 += 8) for (j0..; j0 += 64) vector for (j..) for (k = k0; k < k0 + 8; k++) t += x[k] * y[k, j]
        -> for (k0..) for (j0..) vector for (j..) for (k..) { prefetch y[k, j + 256]; t += x[k] * y[k, j]; }
    """
    large = large_inputs(function, caches.l2) if caches.l2 and caches.beside else {}
    return _Along(large, caches, [], always).within(function, least=1)


@dataclass(frozen=True, slots=True)
class _Along(TileFetches):
    """always: as above."""

    always: bool

    def lines(self, lanes: For, sums: For, loops: tuple[For, ...]) -> Iterator[Place]:
        """What an iteration of the sums asks for: the lines that it reads, further along."""
        rows = Ranges(loops).constant(sums.upper - sums.lower)
        block = next((loop for loop in loops if sums.lower == affine(loop.variable)), None)
        if rows is None or rows > MOST_ROWS or block is None:
            return
        uses = Counter(r for node in sums.body if isinstance(node, Assign) for r in reads_of(node.value))
        for read, results in uses.items():
            if not self.always and results < MANY:
                continue
            variable = self.arguments.get(read.tensor)
            flat = None if variable is None else flat_element(variable, read.subscripts)
            if variable is None or flat is None or flat.stride(lanes.variable) != 1:
                continue
            itemsize = variable.dtype.itemsize
            ahead = AHEAD // rows // self.caches.line * self.caches.line
            row = flat.stride(sums.variable) or 0
            length = row * itemsize
            if row <= 0 or flat.constant % row * itemsize % self.caches.line:
                continue
            if length >= 4 * ahead:
                moved = {lanes.variable: affine(lanes.variable) + ahead // itemsize}
            else:
                moved = {sums.variable: affine(sums.variable) + block.step}
            yield Place(read.tensor, tuple(s.substitute(moved) for s in affine_subscripts(read)))
            self.notes.append(Note("prefetch", block.variable, f"rows of {read.tensor} {ahead} bytes further along"))
