"""How the rows of a large matrix are cut into blocks and parts (sweeps/row_sums.py): for numbers, and for sizes that stay symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from polyml.records import dataclass
from polyml.schedule.schedule import Product
from polyml.schedule.statement_models import UNKNOWN_EXTENT
from polyml.scop.scop import Array
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import element_count
from polyml.target import Target

__all__ = ["BEYOND", "RowCut", "any_cut", "elements_of", "known_cut"]

BEYOND = 2
"""Times L1 from which on a matrix is worth blocks of rows."""

STREAMS = 16
"""Rows of a block where they are long: as many streams as a core's prefetcher follows with ease."""

LEAST_ROWS = 4
"""Rows of a block: with fewer, sums are loaded and stored as often as the matrix."""

BESIDE = 2
"""Rows' worth of vectors that L1 holds beside a block: what its rows are multiplied with, and the sums down its columns."""

MOST_NEAR = 64
"""Rows of a block in L1, at most: more save nothing."""

NEAR_PARTS = 4
"""Parts of a matrix as large as L2, where no more than L1 is asked of a block."""

NEAR_PART_ROWS = 128
"""Rows of such a part, at least: what starts and combines its sums is nothing beside them."""

MOST_PARTS = 32
"""Parts with sums of their own."""

ANY_PARTS = 8
"""The same for an unknown number of rows."""

LEAST_BLOCKS = 2
"""Blocks of a part below which an unknown number of rows is not worth sums of their own."""


@dataclass(frozen=True, slots=True)
class RowCut:
    """size: rows of a block. near: which L1 holds. part: rows of a part; None: blocks are dealt out to the parts in turns. count: of the parts. worth: what must hold for it to pay."""

    size: int
    part: int | None
    count: int
    worth: tuple[Product, ...] = ()
    near: bool = False


def elements_of(array: Array) -> int:
    """How many there are, with an assumed number where that is not known."""
    return element_count(array.shape, UNKNOWN_EXTENT)


def known_cut(array: Array, along: int, sums: Sequence[Array], target: Target, *, once: bool) -> RowCut | None:
    """For extents that are numbers; None where blocks or sums do not fit in cache, or nothing is gained.

    Args:
        along: the dimension of rows. sums: the arrays over them. once: each element is loaded once for all sums, so that it is no matter where a block stays.
    """
    whole, extent = elements_of(array) * array.dtype.itemsize, array.shape[along].constant
    row = whole // extent
    longest = max(elements_of(summed) for summed in sums)
    if longest * array.dtype.itemsize > target.l2_bytes // 4:
        return None
    near = None if once else _near_size(row, extent, target)
    size = near or min(max(STREAMS, target.l1_bytes // 2 // row), target.l2_bytes // 2 // row, extent)
    if size < LEAST_ROWS or (near is None and not once and whole <= target.l2_bytes):
        return None
    several = whole // target.l2_bytes
    if near or once:
        several = max(several, min(NEAR_PARTS * whole // target.l2_bytes, extent // NEAR_PART_ROWS))
    return _in_parts(size, extent, several, near=near is not None)


def _near_size(row: int, extent: int, target: Target) -> int | None:
    """Rows of a block that L1 holds beside a row of each vector that the sums take and make, side by side where that is possible and in blocks of one size where that divides their number; None where
    L1 holds too few."""
    room = min(target.l1_bytes // row - BESIDE, extent) if row else 0
    step = next((step for step in (2 * LEAST_ROWS, LEAST_ROWS) if room >= step), None)
    if step is None:
        return None
    # Beyond what goes side by side half of L1, since the next block's lines come meanwhile.
    most = min(room, max(step, target.l1_bytes // 2 // row), MOST_NEAR) // step * step
    return next((size for size in range(most, most // 2, -step) if extent % size == 0), most)


def _in_parts(size: int, extent: int, wanted: int, *, near: bool) -> RowCut:
    """So many parts as are wanted, or somewhat more where all are of one size then."""
    blocks, wanted = ceil(extent / size), max(1, min(MOST_PARTS, wanted))
    if extent % size == 0:
        wanted = next(
            (count for count in range(wanted, min(MOST_PARTS, 2 * wanted) + 1) if blocks % count == 0), wanted
        )
    part = size * ceil(blocks / wanted)
    return RowCut(size, part, ceil(extent / part), near=near)


def any_cut(array: Array, along: int, sums: Sequence[Array], target: Target) -> RowCut | None:
    """The same for sizes that are known at the call only; None where its conditions are no products of extents."""
    row = [extent for d, extent in enumerate(array.shape) if d != along]
    limits = [_at_most(row, target.l2_bytes // 2 // STREAMS // array.dtype.itemsize)]
    limits += [_at_most(summed.shape, target.l2_bytes // 4 // array.dtype.itemsize) for summed in sums]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return None
    large = Product(array.shape, target.l2_bytes // array.dtype.itemsize + 1)
    many = Product((array.shape[along],), LEAST_BLOCKS * STREAMS * ANY_PARTS)
    return RowCut(STREAMS, None, ANY_PARTS, tuple(dict.fromkeys((large, many, *known))))


def _at_most(extents: Sequence[Affine], most: int) -> Product | None:
    """That their product does not exceed a number; None where more than one of them is unknown."""
    unknown = [extent for extent in extents if not extent.is_constant]
    if len(unknown) > 1:
        return None
    numbers = prod(extent.constant for extent in extents if extent.is_constant)
    return Product((affine(most) - (unknown[0] if unknown else affine(1)) * numbers,), 0)
