"""The register tile of a contraction: rows of the result by vectors along its lanes, with the fewest cycles for the whole product, its edges included.

Source: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (TOMS 2016), on the parameters of the micro-kernel.
"""

from __future__ import annotations

from polyml.schedule.cost import TALLEST, RegisterTile, StatementModel
from polyml.target import Target

__all__ = ["contraction_tile"]

APART = 0.9
"""Cost of a register tile, relative to one whose rows are neighbours in C, at which rows that are further apart are worth it."""


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
) -> tuple[str, RegisterTile]:
    """The rows' index and the tile with the fewest cycles for the whole product, its edges included. row_side: innermost in C first; most: vectors; rest: what another kind of tile, at an
    edge, costs beside its cycles, as a part of all. tallest: the most rows."""
    width = target.lanes(model.itemsize)
    # Rows of a turned result are whole tiles of whole vectors; where masks have registers of their own, no other value needs one.
    spare = target.vector_registers > 16 and not (rest and target.masked)
    best: tuple[str, RegisterTile] | None = None
    for rows_index in row_side or [""]:
        extent = model.extents.get(rows_index, 1)
        for vectors in range(1, most + 1):
            for rows in range(1, tallest + 1):
                # Accumulators, the vectors that rows share, a broadcast; and two more where there are plenty, for masks' sake.
                if rows * vectors + vectors + 1 > target.vector_registers - (2 if spare else 0):
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
                # An index further out in C must gain more: the tile's rows are then far apart.
                gain = 0.995 if best is None or best[0] == rows_index else APART
                if best is None or cost < best[1].cost * gain:
                    best = rows_index, RegisterTile(rows, vectors, cost)
    assert best is not None, "internal: no register tile at all"
    return best


def _parts(extent: int, step: int) -> list[tuple[int, int]]:
    """(how many, of which size)."""
    parts = [(extent // step, step), (1, extent % step)]
    return [(count, size) for count, size in parts if count and size]


def _vector_parts(extent: int, vectors: int, width: int) -> list[tuple[int, int]]:
    full, rest = divmod(extent, vectors * width)
    # Vectors of the rest overlap (codegen/overlap.py).
    parts = [(full, vectors), (1, -(-rest // width))]
    return [(count, size) for count, size in parts if count and size]


def _step_cycles(model: StatementModel, rows: int, vectors: int, operands: int) -> float:
    """Two arithmetic and two load instructions a cycle, latency 4; loads that hide cost a little, vectors more: they stream from L2."""
    loads = vectors + rows * operands
    return max(max(model.operations, 1.0) * rows * vectors / 2, loads / 2, 4.0) + 0.2 * rows * operands + 0.5 * vectors
