"""Strips of few rows (strips.py) over parts of the sum that are so short that L1 holds a strip where it lies, beside the next one, which is on its way, and a tile's rows.

A tile of few registers asks for two lines of a strip for each term, and one or two of the other operand where its rows are neighbours, in six cycles: more than L2 delivers. L1 has no trouble with them. What that
costs is that sums are loaded and stored once for each part, as seldom as the elements of a panel would be, as long as there are no more rows than terms in a part. Zen 3, one thread, per cent of the peak, in parts of 32, 64,
96, 128, 256 terms and the whole sum or long parts, from L2: f32 nn 36 x 1130 x 101 -, 82, 80, 76, 64, 57, f64 27 x 1113 x 150 -, 86, 84, 78, 61, 59, tn 24 x 580 x 415 -, 85, 77, 57, 55, 51, 25 x 178 x 585 80, 66, -, -, -, 55.
"""

from __future__ import annotations

from math import prod

from polyml.schedule.blocking.shares import even_for_threads, sharing_threads
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import even, rows_along
from polyml.schedule.blocking.strips import WAY, is_narrow, strip_depth, strip_in_set
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import RegisterTile
from polyml.target import FEW_REGISTERS, Target

__all__ = ["parts_in_l1", "waits_in_l2"]

LEAST_TERMS = 32
"""Terms of a part, at least: to load and to store a sum takes as long as some four of them."""

LEAST_STRIPS = 2
"""Whole strips, at least: one is all of the operand, or nearly, and its rows lie end to end, as the hardware fetches them. Zen 3, in parts, of the time without: f32 57 x 24 x 971 1.04, 57 x 28 1.19, 55 x 12 x 161 1.13, f64 55 x 14 x 161 1.13."""

FAR = 4
"""How many times as long loading and storing takes for sums that L2 does not hold, while strips of the whole sum, packed, need none from there. Zen 3, f32, packed, in parts: 40 x 700 x 3001 85, 79 % of the peak, 24 x 384 x 4000 82, 71, 20 x 200 x
9001 74, 82, f64 20 x 400 x 4001 72, 80."""


def parts_in_l1(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, target: Target
) -> dict[str, int] | None:
    """Sizes of such parts, and of threads' blocks of the columns; None where strips are wide, or there is one, rows are more, or one tile has all of them, or too many lines of what L1 should hold meet in a set."""
    operand, size, line = sides.operand, model.itemsize, target.line_bytes
    uses = prod(model.extents[i] for i in sides.rows)
    narrow = is_narrow(tile, target) and target.vector_registers <= FEW_REGISTERS
    if operand.stride(sides.lanes) != 1 or len(sides.others) != 1 or not narrow or uses <= tile.rows:
        return None
    width = tile.vectors * target.lanes(size)
    if prod(model.extents[i] for i in sides.columns) * (model.extents[sides.lanes] // width) < LEAST_STRIPS:
        return None
    along = rows_along(sides)
    if not along and abs(sides.others[0].stride(rows) or 0) != 1:
        return None
    of_rows = tile.rows * size + (0 if along else line)
    room = 3 * target.l1_bytes // 4 // (2 * (width * size + line) + of_rows)
    far = FAR if _is_far(model, sides, width, target) else 1
    for most in (room, room // 2):
        sizes = _terms(model, sides, most, target)
        terms = prod(sizes.values())
        if max(uses * far, LEAST_TERMS) <= terms and _fit(model, sides, sizes, width, target):
            return sizes | _columns(model, sides, width, target)
    return None


def waits_in_l2(model: StatementModel, sides: Sides, target: Target) -> bool:
    """Whether the vector operand comes from L2, or the cache beyond, which keeps it from call to call: from memory its rows had better come from end to end."""
    held = prod(e for i, e in model.extents.items() if sides.operand.stride(i) != 0 and i not in sides.batch)
    return target.l1_bytes // 2 < held * model.itemsize < target.l3_bytes // 2


def _is_far(model: StatementModel, sides: Sides, width: int, target: Target) -> bool:
    """Whether L2 does not hold the sums, and strips may be of the whole sum."""
    sums = prod(e for i, e in model.extents.items() if sides.out.stride(i) != 0 and i not in sides.batch)
    whole = all(size == model.extents[i] for i, size in strip_depth(model, sides, width, target).items())
    return whole and sums * model.itemsize > target.l2_bytes // 2


def _terms(model: StatementModel, sides: Sides, room: int, target: Target) -> dict[str, int]:
    """A part of at most about so many terms: all of the innermost indices before any of the next."""
    sizes: dict[str, int] = {}
    for index in reversed(sides.reduced):
        step = target.lanes(model.itemsize) if index == sides.reduced[-1] else 1
        sizes[index] = even(model.extents[index], max(room, 1), step)
        room //= sizes[index]
    return {i: sizes[i] for i in sides.reduced}


def _columns(model: StatementModel, sides: Sides, width: int, target: Target) -> dict[str, int]:
    """Blocks of the columns where threads share them: each has its own, for all parts of the sum, and meets the others once."""
    if sharing_threads(model, sides, target) < 2:
        return {}
    columns = model.extents[sides.lanes]
    return {sides.lanes: even_for_threads(columns, columns, width, target.cores)}


def _fit(model: StatementModel, sides: Sides, sizes: dict[str, int], width: int, target: Target) -> bool:
    """Whether an eighth of each set of L1 is left, wherever a strip and what each term has of a tile's rows begin: the strip where most arrays do, behind the beginning of a line."""
    line = target.line_bytes
    met = strip_in_set(model, sides, sizes, width, target, WAY, begin=line // 4)
    if not rows_along(sides):
        other = sides.others[0]
        met += strip_in_set(model, sides, sizes, 1, target, WAY, operand=other, begin=line - model.itemsize + 1)
    return 8 * met <= 7 * (target.l1_bytes // WAY)
