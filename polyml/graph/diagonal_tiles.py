"""Which register tiles a contraction over a triangle runs in (schedule/pivots/slanted.py), and whether those along the diagonal are computed as a whole.

A tile across the diagonal has fewer columns for its first rows than for its last ones. Narrower tiles, a vector at a time, leave out most of what is not asked for; but where few registers make tiles of few rows, these have too few sums in flight
for the latency of an addition, and panels begin within tiles of rows, whose last rows would go one by one. Whole tiles compute more, without masks.
"""

from __future__ import annotations

from math import ceil

from polyml.records import dataclass

__all__ = ["WholeTiles", "whole_tiles", "widest_tile"]

_LATENCY = 4.0
"""Cycles of a multiply-add, of which two start in each."""


@dataclass(frozen=True, slots=True)
class WholeTiles:
    """Rows of a register tile, and the columns of a panel of the vector operand."""

    rows: int
    width: int

    def last_column(self, row: str) -> str:
        """One more than the last column of what a row's tile needs, in isl's notation: the columns of the panels that begin no later than the tile ends."""
        return (
            f"{self.width}*floor(({self.rows}*floor({row}/{self.rows}) + {self.rows - 1})/{self.width}) + {self.width}"
        )

    def share(self, extent: int) -> float:
        """The part of a square's tiles that is left."""
        tiles, panels = ceil(extent / self.rows), ceil(extent / self.width)
        return sum(tiles - panel * self.width // self.rows for panel in range(panels)) / (tiles * panels)


def whole_tiles(registers: int, lanes: int) -> WholeTiles | None:
    """The tiles along the diagonal; None where narrower ones take less time. registers: how many vectors these are; lanes: elements of a vector.

    Model, in cycles for each term and panel: two multiply-adds a cycle, and no tile takes less than the latency of one.
    """
    rows, vectors, _ = widest_tile(registers)
    width = vectors * lanes
    tiles = range(0, width, rows)
    needed = sum(ceil(min(row + rows, width) / lanes) for row in tiles)
    if needed * max(rows / 2, _LATENCY) < len(tiles) * max(rows * vectors / 2, _LATENCY):
        return None
    return WholeTiles(rows, width)


def widest_tile(registers: int) -> tuple[int, int, float]:
    """Rows, vectors, and cycles of each vector operation where these are fewest: two arithmetic and two load instructions a cycle, latency 4; loads that hide cost a little, vectors more."""
    tiles: list[tuple[float, int, int]] = []
    spare = 2 if registers > 16 else 0
    for vectors in range(1, 5):
        for rows in range(1, 15):
            if rows * vectors + vectors + 1 <= registers - spare:
                cycles = max(rows * vectors / 2, (vectors + rows) / 2, _LATENCY) + 0.2 * rows + 0.5 * vectors
                tiles.append((cycles / (rows * vectors), vectors, rows))
    cost, vectors, rows = min(tiles)
    return rows, vectors, cost
