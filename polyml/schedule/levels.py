"""Lanes over the steps of a stencil in place: the numbers of such a schedule, which says what its lanes are and where values are meanwhile (schedule/layouts/time_lanes.py, codegen/time_lanes.py)."""

from __future__ import annotations

from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["TimeLanes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLanes:
    """statement: the one that steps, over a box of time, rows and columns. first, end: the box in these three, in which those of time alone may have sizes. reach: how far it reads around an element, up, down, left and right.

    lanes: steps of a block, `width` of them a vector, each `lag` rows behind the one before. slant: columns that strips of `strip` columns move to the left by, a row. window: rows of a strip that are alive. halo: columns beside a strip that it reads. line: numbers of a cache line. in_order: sums are added up as they are written.
    """

    statement: str
    first: tuple[Affine, Affine, Affine]
    end: tuple[Affine, Affine, Affine]
    reach: tuple[int, int, int, int]
    lanes: int
    width: int
    lag: int
    slant: int
    strip: int
    window: int
    halo: int
    line: int
    in_order: bool

    @property
    def cell(self) -> int:
        """Numbers of a cell: an element's levels, one more than lanes; neighbours are whole vectors apart."""
        return self.lanes + self.width
