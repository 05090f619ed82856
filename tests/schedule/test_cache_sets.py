"""Lines that meet in one set of a cache: rows at powers of two, behind the beginning of a line, backwards, none."""

from __future__ import annotations

import pytest

from polyml.schedule.cache_sets import lines_in_set


@pytest.mark.parametrize(
    ("places", "length", "met"),
    [
        (range(0, 64 * 4096, 4096), 64, 64),
        (range(0, 64 * 4160, 4160), 64, 1),
        (range(0, 64 * 2048, 2048), 64, 32),
        (range(0, 64 * 2048, 2048), 192, 32),
        (range(0, -64 * 4096, -4096), 64, 64),
        ((60, 64, 4096 + 70), 64, 2),
        ((0,), 2 * 4096, 2),
        ((), 64, 0),
        ((0, 4096), 0, 0),
    ],
)
def test_lines_that_meet(places: tuple[int, ...], length: int, met: int) -> None:
    assert lines_in_set(places, length, 4096, 64) == met
