"""Contractions whose rows are short in the result, and long in an array of their own that a copy lays out: a block of that stays in a cache until it goes to where it belongs.

`z_laid[f, b, e] = sum[g](x[f, b, g] * y[g, e])` with `z[f, c, b, a] = z_laid[f, b, 9*c + a]` (scop/joined_rows.py): lanes run along whole vectors of e. A block is what some values of c, all of a and all rows along one index make;
the copy of it writes pieces of nine elements, all of b beside each other, so that memory gets the result in long pieces.

A piece takes a load and a store for each power of two in its length, a third to a half of a cycle for an element; sums of 40 terms take 2.5 of 16 registers' tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod

from polyml.expressions import Read, plain_indices
from polyml.records import dataclass
from polyml.schedule.blocking.blocks import Blocking, blocks_of
from polyml.schedule.blocking.register_tile import contraction_tile
from polyml.schedule.blocking.sizes import by_stride, even
from polyml.schedule.blocking.symbolic import Contraction, at_large
from polyml.schedule.cost import StatementModel
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["LaidBlocks", "laid_blocks"]

SHARE = 8
"""The part of L2 that a block of results may take, beside panels and what comes next."""


@dataclass(frozen=True, slots=True)
class LaidBlocks:
    """plan: of the contraction; begin: what its sums begin with; copy: what lays a block out. places: what each index of the plan is in terms of the copy's indices, as isl text; order: these, in the order of its target."""

    plan: Blocking
    begin: str
    copy: str
    places: Mapping[str, str]
    order: tuple[str, ...]


def laid_blocks(scop: Scop, models: Mapping[str, StatementModel], target: Target) -> LaidBlocks | None:
    """The blocks of a region that is such a contraction and its copy; None for any other."""
    if len(scop.statements) != 3 or scop.sizes:
        return None
    begin, update, copy = scop.statements.values()
    if (begin.kind, update.kind, copy.kind) != (
        "init",
        "update",
        "assign",
    ) or begin.target.array != update.target.array:
        return None
    if not isinstance(copy.value, Read) or copy.value.tensor != update.target.array:
        return None
    given = at_large(scop, models[update.name])
    if given is None or given.sides.batch or len(given.sides.others) != 1 or not given.sides.rows:
        return None
    own, target_indices = plain_indices(update.target.subscripts), plain_indices(copy.target.subscripts)
    if None in own or None in target_indices or own[-1] != given.sides.lanes:
        return None
    subscripts = copy.value.subscripts
    places = {str(i): f"({s.isl_text()})" for i, s in zip(own, subscripts, strict=True) if isinstance(s, Affine)}
    last = subscripts[-1]
    if len(places) < len(own) or not isinstance(last, Affine) or len(last.variables()) < 2:
        return None
    plan = _plan(given, target)
    return LaidBlocks(plan, begin.name, copy.name, places, tuple(map(str, target_indices)))


def _plan(given: Contraction, target: Target) -> Blocking:
    """Blocks of all rows along one index, and of as many columns as L2 has room for: of their panels, and of results."""
    model, sides = given.model, given.sides
    inner = by_stride(sides.rows, sides.out)[::-1]
    rows, tile = contraction_tile(model, sides.lanes, inner, 1, target, most=4, rest=0.0)
    width = tile.vectors * target.lanes(model.itemsize)
    deep = prod(model.extents[i] for i in sides.reduced)
    panels = ceil(model.extents[sides.lanes] / width) * width * model.itemsize
    room = min(target.l2_bytes // 4 // (panels * deep), target.l2_bytes // SHARE // (panels * model.extents[rows]))
    sizes = {i: model.extents[i] for i in (*sides.reduced, sides.lanes, *sides.rows)}
    for index in by_stride(sides.columns, sides.out)[::-1]:
        sizes[index] = even(model.extents[index], max(room, 1), 1)
        room //= sizes[index]
    return replace(blocks_of(model, sides, rows, tile, width, sizes, packed=True), turned=True)
