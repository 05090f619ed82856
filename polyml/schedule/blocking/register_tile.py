"""The register tile of a contraction: rows of the result by vectors along its lanes, with the fewest cycles for the whole product, its edges included.

Source: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (TOMS 2016), on the parameters of the micro-kernel.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from polyml.schedule.blocking.shares import MEETING, unevenness
from polyml.schedule.blocking.sides import Sides, exchanged
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import TALLEST, RegisterTile
from polyml.target import Target

__all__ = [
    "contraction_tile",
    "last_tiles",
    "rest_lanes",
    "rows_at_once",
    "side_by_side",
    "tile_across",
    "tile_and_rest",
]

APART = 0.9
"""Cost of a register tile, relative to one whose rows are neighbours in C, at which rows that are further apart are worth it."""

EVEN = 1.02
"""Parts of the busiest of several threads, relative to even ones, up to which another register tile gains nothing."""

MOST_LEFT = 4
"""Columns that are left beside whole vectors, at most, for sums with lanes along them."""

SIDE_BY_SIDE = 3, 4
"""Three of four registers have sums at a time, at most. Zen 3, f64, 11 columns, 12 instead of 18 sums in 16 registers: 0.73 to 0.89 of the time."""

LEAST_SUM = 2
"""Vectors of a sum at least: it ends with the lanes of its register."""

LEAST_ROWS = 16
"""Rows that use a copied column, at least."""

LEAST_ACROSS = 4
"""Columns of the result, at least, for lanes across its rows: so many are transposed together."""

LONGEST_ACROSS = 1024
"""Terms of a sum, at most, for them: each lies in a page of its own, perhaps."""

TURNED = 0.25
"""Cycles of an element in a block that is transposed in registers."""

ACROSS_GAIN = 0.95
"""Cycles with lanes across the result's rows, relative to those along them, at which they are worth it."""

ENDS = 3.0
"""Cycles until the lanes of a sum are a number, where several end together."""

APART_FROM_SUMS = 2
"""Registers of a product that is made apart from its sum, where multiplications are not fused with additions: its own, and its broadcast's, which lives as long as the row."""

LEFT_GAIN = 0.95
"""Cycles, relative to another vector for these columns, below which they are worth code of their own."""


def contraction_tile(
    model: StatementModel,
    lanes: str,
    row_side: list[str],
    operands: int,
    target: Target,
    *,
    most: int,
    rest: float,
    tallest: int = TALLEST,
    threads: int = 1,
) -> tuple[str, RegisterTile]:
    """The rows' index and the tile with the fewest cycles for the whole product, its edges included. row_side: innermost in C first; most: vectors; rest: what another kind of tile, at an
    edge, costs beside its cycles, as a part of all. tallest: the most rows. threads: those that share columns, or rows."""
    width = target.lanes(model.itemsize)
    # Rows of a turned result are whole tiles of whole vectors; where masks have registers of their own, no other value needs one.
    spare = target.vector_registers > 16 and not (rest and target.masked)
    free = target.vector_registers - (2 if spare else 0) - (0 if target.fma else APART_FROM_SUMS)
    best: tuple[str, RegisterTile] | None = None
    for rows_index in row_side or [""]:
        extent = model.extents.get(rows_index, 1)
        for vectors in range(1, most + 1):
            for rows in range(1, tallest + 1):
                # Accumulators, the vectors that rows share, a broadcast; and two more where there are plenty, for masks' sake.
                if rows * vectors + vectors + 1 > free and (rows, vectors) != (1, 1):
                    continue
                if rows > extent or (vectors - 1) * width >= model.extents[lanes]:
                    continue
                cost = 0.0
                for count, r in _parts(extent, rows):
                    for panels, v in _vector_parts(model.extents[lanes], vectors, width):
                        cost += count * panels * _step_cycles(model, r, v, operands)
                cost /= extent * model.extents[lanes] / width
                kinds = len(_parts(extent, rows)) * len(_vector_parts(model.extents[lanes], vectors, width))
                cost *= 1 + rest * (kinds - 1)
                if threads > 1:
                    cost *= _waiting(model, lanes, rows_index, rows, vectors * width, threads, target)
                # An index further out in C must gain more: the tile's rows are then far apart.
                gain = 0.995 if best is None or best[0] == rows_index else APART
                if best is None or cost < best[1].cost * gain:
                    best = rows_index, RegisterTile(rows, vectors, cost)
    assert best is not None, "internal: no register tile at all"
    return best


def _waiting(
    model: StatementModel, lanes: str, rows_index: str, rows: int, columns: int, threads: int, target: Target
) -> float:
    """The time of the busiest of these threads, relative to even parts, where they share panels of the vector operand or else the rows of each block."""
    by_columns = unevenness(model.extents[lanes], columns, threads)
    operand = next(a for a in model.accesses if not a.write and a.stride(lanes) != 0)
    size = model.itemsize * prod(n for i, n in model.extents.items() if operand.stride(i) != 0)
    meetings = 2 * ceil(4 * size / target.l2_bytes)
    work = model.instances / target.lanes(model.itemsize) / 2
    tiles = ceil(model.extents.get(rows_index, 1) / rows)
    by_rows = unevenness(tiles, 1, threads) + meetings * MEETING * threads / work
    return 1.0 if by_columns <= EVEN else min(by_columns, by_rows)


def tile_and_rest(
    model: StatementModel, sides: Sides, row_side: list[str], target: Target, *, most: int
) -> tuple[str, RegisterTile, int]:
    """The rows' index, the tile, and how many columns are better left to lanes along something else (blocking/rest_columns.py, rest_lanes). The tile's cost is that of all columns."""
    plain = contraction_tile(model, sides.lanes, row_side, len(sides.others), target, most=most, rest=0.0)
    width, columns = target.lanes(model.itemsize), model.extents[sides.lanes]
    left, along = columns % width, rest_lanes(model, sides, target)
    if along is None or columns < width or not 0 < left <= (MOST_LEFT if along in sides.reduced else width // 2):
        return *plain, 0
    (index,) = sides.reduced
    whole = replace(model, extents={**model.extents, sides.lanes: columns - left})
    rows, tile = contraction_tile(whole, sides.lanes, row_side, 1, target, most=most, rest=0.0)
    length = model.extents[index]
    if along == index:
        high = rows_at_once(tile.rows, left, side_by_side(target))
        steps = ceil(length / width) * _step_cycles(model, high, left, 1) / (high * left)
        rest = width * (steps + ENDS) / length
    elif length > target.l1_bytes // 4 // (tile.rows * model.itemsize):
        return *plain, 0  # several blocks of the sum (blocking/sizes.py), whose partial sums would be gathered
    else:
        rest_model = replace(model, extents={**model.extents, sides.lanes: left})
        rest = contraction_tile(rest_model, along, [sides.lanes], 1, target, most=4, rest=0.0)[1].cost
        rest += TURNED * width / length
    cost = (tile.cost * (columns - left) + rest * left) / columns
    if cost > LEFT_GAIN * plain[1].cost:
        return *plain, 0
    return rows, replace(tile, cost=cost), left


def tile_across(model: StatementModel, sides: Sides, target: Target) -> tuple[Sides, RegisterTile] | None:
    """The sides and the tile with lanes across the rows of the result, whose blocks are transposed when they are stored (codegen/llvm/memory/column_stores.py); None where lanes along the rows are as good.

    50 columns take four vectors of 16 in each of 320 rows; the rows are 20 vectors, whole ones."""
    across = exchanged(sides)
    if across is None or not _may_cross(model, across, target):
        return None
    width = target.lanes(model.itemsize)
    _, tile = contraction_tile(model, across.lanes, across.rows, 1, target, most=4, rest=0.0)
    cost = tile.cost + TURNED * width / model.extents[sides.reduced[0]]
    along = tile_and_rest(model, sides, sides.rows, target, most=4)[1].cost
    if sides.operand.stride(sides.lanes) != 1:
        along += TURNED * width / model.extents[across.lanes]
    return (across, replace(tile, cost=cost)) if cost < ACROSS_GAIN * along else None


def _may_cross(model: StatementModel, across: Sides, target: Target) -> bool:
    """Whether strips of the operand that has lanes can be read where they lie, by all rows of the other one: L2 holds it, and of both what is used at a time."""
    (index,), width = across.reduced, target.lanes(model.itemsize)
    rows, lanes, length = model.extents[across.rows[0]], model.extents[across.lanes], model.extents[index]
    least = rows >= LEAST_ACROSS and lanes >= width and length >= width
    held = model.itemsize * prod(e for i, e in model.extents.items() if across.operand.stride(i) != 0)
    used = max(rows, 4 * width) * length * model.itemsize
    return least and length <= LONGEST_ACROSS and held <= target.l2_bytes and used <= target.l2_bytes // 4


def last_tiles(model: StatementModel, lanes: str, tile: RegisterTile, operands: int, target: Target) -> tuple[int, ...]:
    """Vectors of the last two tiles along the lanes, as even as can be, where a whole one and what is left would take longer; else none.

    One vector is bound by its broadcasts: behind 21 tiles of three it takes half as long as one of these, and four vectors are two tiles of two."""
    width, columns = target.lanes(model.itemsize), model.extents[lanes]
    rest = columns % (tile.vectors * width)
    if columns % width or not rest or columns < tile.vectors * width:
        return ()
    vectors = tile.vectors + rest // width
    pair = (-(-vectors // 2), vectors // 2)
    even, uneven = (
        sum(_step_cycles(model, tile.rows, v, operands) for v in parts)
        for parts in (pair, (tile.vectors, rest // width))
    )
    return pair if even < uneven else ()


def side_by_side(target: Target) -> int:
    """Sums in registers at a time, at most, beside what their products are loaded to."""
    few, all_of = SIDE_BY_SIDE
    return few * target.vector_registers // all_of


def rows_at_once(rows: int, left: int, sums: int) -> int:
    """Of a register tile with so many rows, how many have the sums of their `left` columns in registers at a time, as even as can be. sums: side_by_side."""
    return ceil(rows / ceil(rows * left / sums))


def rest_lanes(model: StatementModel, sides: Sides, target: Target) -> str | None:
    """What lanes of columns that are left beside whole vectors can run along, where the other operand is contiguous: the sum, if it is long enough, and enough rows use what is copied; or the rows."""
    if len(sides.reduced) != 1 or len(sides.others) != 1 or sides.columns or model.operations > 1:
        return None
    (index,), (other,), width = sides.reduced, sides.others, target.lanes(model.itemsize)
    reuse, length = prod(model.extents[i] for i in sides.rows), model.extents[index]
    if length < LEAST_SUM * width or reuse < LEAST_ROWS:
        return None
    if other.stride(index) == 1:
        return index
    rows = sides.rows[0] if len(sides.rows) == 1 else None
    return rows if rows is not None and other.stride(rows) == 1 and model.extents[rows] >= width else None


def _parts(extent: int, step: int) -> list[tuple[int, int]]:
    """(how many, of which size)."""
    parts = [(extent // step, step), (1, extent % step)]
    return [(count, size) for count, size in parts if count and size]


def _vector_parts(extent: int, vectors: int, width: int) -> list[tuple[int, int]]:
    full, rest = divmod(extent, vectors * width)
    # Vectors of the rest overlap (codegen/passes/vectors/overlap.py).
    parts = [(full, vectors), (1, -(-rest // width))]
    return [(count, size) for count, size in parts if count and size]


def _step_cycles(model: StatementModel, rows: int, vectors: int, operands: int) -> float:
    """Two arithmetic and two load instructions a cycle, latency 4; loads that hide cost a little, vectors more: they stream from L2."""
    loads = vectors + rows * operands
    return max(max(model.operations, 1.0) * rows * vectors / 2, loads / 2, 4.0) + 0.2 * rows * operands + 0.5 * vectors
