"""Lines of an operand that register tiles will read: each tile asks for some of them, in the steps of its own sums, so that all tiles together ask for every one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil

from polyml.codegen.loops import For, Place
from polyml.codegen.prefetch.tile_sums import affine_subscripts, most_of
from polyml.expressions import Read
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, minimum

__all__ = ["Coming"]

MOST_LINES = 2
"""Lines that a step of the sums asks for, at most."""


@dataclass(frozen=True, slots=True)
class Coming:
    """What tiles read next of an operand, by their first read of what they read now. width: elements along the lanes. there: where variables are then, if elsewhere. turn, tiles: the number of a tile among those that ask for it, and how many these are. line: elements of one.

    beside: whether rows begin where those at hand end, or others that are asked for. Their first line is at hand then, or begins there, and those of each line's last elements are enough.
    """

    read: Read
    width: int
    there: Mapping[str, Affine]
    turn: Affine
    tiles: int
    line: int
    beside: bool

    def soon(self) -> Coming:
        """The same with all lines asked for by the first tiles, as few as can: those behind them ask again."""
        return replace(self, tiles=min(self.tiles, ceil(self.lines(self.width) / MOST_LINES)))

    def down(self, lanes: For, sums: For) -> Iterator[Place]:
        """Of rows along the lanes: a line or two of each that an iteration goes on by, so that all tiles together ask for every one."""
        lines, rows = self.lines(self.width), sums.step
        together = ceil(lines * rows / max(self.tiles, 1))
        if together > MOST_LINES * rows:
            return
        for part in range(together):
            own = self.turn + part * self.tiles if part else self.turn
            column = self.column((own // rows) % lines, self.width)
            yield self.place(lanes, sums, column, affine(sums.variable) + own % rows)

    def across(self, lanes: For, sums: For) -> Iterator[Place]:
        """Of rows along the sums: an iteration asks for some lines of a row or two, and those of a tile for as many of each row."""
        span = most_of(sums)
        if span is None or span < sums.step:
            return
        rows = ceil(self.width / (span // sums.step))
        lines = self.lines(span)
        together = ceil(lines / max(self.tiles, 1))
        if together * rows > MOST_LINES * sums.step:
            return
        first = (affine(sums.variable) - sums.lower) // sums.step * rows
        for row in range(rows):
            for part in range(together):
                column = self.column(self.turn % ceil(lines / together) * together + part, span)
                yield self.place(lanes, sums, first + row, sums.lower + column)

    def lines(self, row: int) -> int:
        return ceil(row / self.line) + (not self.beside)

    def column(self, number: Affine, row: int) -> Affine:
        """The element of a row for which its line of that number is asked."""
        return number * self.line + (self.line - 1) if self.beside else minimum((number * self.line, affine(row - 1)))

    def place(self, lanes: For, sums: For, lane: Affine, term: Affine) -> Place:
        lanes_then, sums_then = (self.there.get(loop.variable, affine(loop.variable)) for loop in (lanes, sums))
        moved = {
            **self.there,
            lanes.variable: lanes_then + lane,
            sums.variable: sums_then + (term - affine(sums.variable)),
        }
        return Place(self.read.tensor, tuple(s.substitute(moved) for s in affine_subscripts(self.read)))
