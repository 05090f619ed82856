"""Tiles along the diagonal of a triangle: where they are computed as a whole, and that nothing of the triangle is left out."""

from __future__ import annotations

import islpy as isl
import pytest

from polyml.graph.diagonal_tiles import WholeTiles, whole_tiles, widest_tile


def test_few_registers_make_whole_tiles_and_many_make_narrower_ones() -> None:
    assert whole_tiles(16, 8) == WholeTiles(6, 16)
    assert whole_tiles(16, 4) == WholeTiles(6, 8)
    # Eight rows have sums enough for the latency of one vector, and panels begin where tiles do.
    assert whole_tiles(32, 16) is None
    assert whole_tiles(32, 8) is None


@pytest.mark.parametrize("registers", [4, 8, 16, 32])
def test_the_widest_tile_fits_its_registers(registers: int) -> None:
    rows, vectors, cost = widest_tile(registers)
    assert rows * vectors + vectors + 1 <= registers
    assert cost >= 0.5


@pytest.mark.parametrize("tiles", [WholeTiles(6, 16), WholeTiles(6, 8), WholeTiles(5, 7), WholeTiles(4, 8)])
@pytest.mark.parametrize("rows", [1, 6, 16, 17, 50])
def test_each_tile_that_has_an_element_of_the_triangle_is_there(tiles: WholeTiles, rows: int) -> None:
    within = f"{{ [a, b] : 0 <= a < {rows} and 0 <= b < {rows} and b < {tiles.last_column('a')} }}"
    found: set[tuple[int, int]] = set()
    isl.Set(within).foreach_point(
        lambda p: found.add(
            (
                p.get_coordinate_val(isl.dim_type.set, 0).to_python(),
                p.get_coordinate_val(isl.dim_type.set, 1).to_python(),
            )
        )
    )
    needed = {(a // tiles.rows, b // tiles.width) for a in range(rows) for b in range(a + 1)}
    expected = {(a, b) for a in range(rows) for b in range(rows) if (a // tiles.rows, b // tiles.width) in needed}
    assert found == expected
    every = -(-rows // tiles.rows) * -(-rows // tiles.width)
    assert tiles.share(rows) == pytest.approx(len(needed) / every)
