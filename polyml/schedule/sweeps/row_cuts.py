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

__all__ = ["RowCut", "any_cut", "elements_of", "known_cut"]

STREAMS = 16
"""Rows of a block where they are long: as many streams as a core's prefetcher follows with ease."""

LEAST_ROWS = 4
"""Rows of a block: with fewer, sums are loaded and stored as often as the matrix."""

MOST_PARTS = 32
"""Parts with sums of their own."""

ANY_PARTS = 8
"""The same for an unknown number of rows."""

LEAST_BLOCKS = 2
"""Blocks of a part below which an unknown number of rows is not worth sums of their own."""


@dataclass(frozen=True, slots=True)
class RowCut:
    """size: rows of a block. part: rows of a part; None: blocks are dealt out to the parts in turns. count: of the parts. worth: what must hold for it to pay."""

    size: int
    part: int | None
    count: int
    worth: tuple[Product, ...] = ()


def elements_of(array: Array) -> int:
    """How many there are, with an assumed number where that is not known."""
    return element_count(array.shape, UNKNOWN_EXTENT)


def known_cut(array: Array, along: int, sums: Sequence[Array], target: Target) -> RowCut | None:
    """For extents that are numbers; None where blocks or sums do not fit in cache. along: the dimension of rows; sums: the arrays over them."""
    whole, extent = elements_of(array) * array.dtype.itemsize, array.shape[along].constant
    row = whole // extent
    size = min(max(STREAMS, target.l1_bytes // 2 // row), target.l2_bytes // 2 // row, extent)
    longest = max(elements_of(summed) for summed in sums)
    if size < LEAST_ROWS or longest * array.dtype.itemsize > target.l2_bytes // 4:
        return None
    wanted = max(1, min(MOST_PARTS, whole // target.l2_bytes))
    part = size * ceil(extent / (size * wanted))
    return RowCut(size, part, ceil(extent / part))


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
