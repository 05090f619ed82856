"""How reductions of unknown length are cut for a GPU (partial_sums.py): into parts of a fixed length, so that their number, and with it the grid, follows from the sizes of a call,
and results are the same each time. Whether that pays is asked at each call: there have to be few results, of long reductions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.boxes import box_of
from polyml.schedule.cost import StatementModel
from polyml.schedule.schedule import Product
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text
from polyml.target import Target

__all__ = ["LEAST_PARTS", "LEAST_WORK", "LINE", "AnyCut", "any_parts", "in_columns"]

LEAST_WORK = 16384
"""Iterations of a part below which another block is not worth its launch and its result."""

LEAST_PARTS = 4
"""That make a second kernel worth while."""

LINE = 256
"""Results that one block computes at a time where neighbouring threads have neighbouring ones."""

NEIGHBOURS = 1024
"""Neighbours in memory of a part, where it has rows of them."""


@dataclass(frozen=True, slots=True)
class AnyCut:
    """parts: the indices that are cut, with the iterations of a part and how many parts there are. worth: what must hold at a call for it to pay."""

    parts: tuple[tuple[str, int, Affine], ...]
    worth: tuple[Product, ...]


def any_parts(scop: Scop, model: StatementModel, target: Target) -> AnyCut | None:
    """The cuts of one update; None where it reduces nothing of unknown length or into results that have more elements together than what is read."""
    s = scop.statements[model.name]
    extents = box_of(scop, s)
    if extents is None or not all(_counts(scop, extent) for extent in extents.values()):
        return None
    out = next(a for a in model.accesses if a.write)
    reads = [a for a in model.accesses if not a.write]
    free, reduced = ([i for i in s.indices if (out.stride(i) != 0) == moves] for moves in (True, False))
    if not any(all(a.stride(i) != 0 for i in free) for a in reads) or (s.argument is not None and len(reduced) > 1):
        return None
    columns = in_columns(model)
    line = LINE if columns else 1
    reduced.sort(key=lambda i: min((abs(a.stride(i) or 1 << 40) for a in reads), default=0))
    parts = _parts(reduced, extents, LEAST_WORK // line)
    if not parts:
        return None
    long = Product(tuple(extents[i] for i in reduced), LEAST_PARTS * LEAST_WORK // line)
    work = Product(tuple(extents[i] for i in (*free, *reduced)), LEAST_PARTS * LEAST_WORK)
    few = Product(tuple(extents[i] for i in free), most=target.cores // 2 * line)
    return AnyCut(parts, tuple(dict.fromkeys((long, work, few))))


def in_columns(model: StatementModel) -> bool:
    """Whether what a reduction runs over has neighbouring elements for neighbouring results."""
    out = next(a for a in model.accesses if a.write)
    free, reduced = ([i for i in model.extents if (out.stride(i) != 0) == moves] for moves in (True, False))
    over = [a for a in model.accesses if not a.write and any(a.stride(i) != 0 for i in reduced)]
    return any(a.stride(i) == 1 for a in over for i in free)


def _parts(reduced: Sequence[str], extents: Mapping[str, Affine], work: int) -> tuple[tuple[str, int, Affine], ...]:
    """The cuts of a reduction over these indices, the innermost first, so that a part has so many iterations."""
    found = []
    for position, index in enumerate(reduced):
        rows = any(not extents[i].is_constant or extents[i].constant > 1 for i in reduced[position + 1 :])
        size = min(work, NEIGHBOURS) if rows else work
        work = max(1, work // size)
        extent = extents[index]
        if extent.is_constant:
            work = max(1, work * size // min(size, extent.constant))
            if extent.constant <= size:
                continue
        found.append((index, size, (extent + (size - 1)) // size))
    return tuple(found)


def _counts(scop: Scop, extent: Affine) -> bool:
    """Whether it is never less than nothing."""
    below = isl.Set(f"{parameters_text(scop.sizes)}{{ : {(extent - affine(0)).isl_text()} < 0 }}")
    return below.intersect(scop.context.params()).is_empty()
