"""Lines that meet in one set of a cache: rows at powers of two, behind the beginning of a line, backwards, none."""

from __future__ import annotations

import pytest

from polyml.schedule.cache_sets import lines_in_set, places_of
from polyml.schedule.cost import AccessModel


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


def test_places_of_elements() -> None:
    """In bytes, of all indices that are given; an index along which nothing moves has its places as often."""
    access = AccessModel("x", {"i": 100, "j": -1, "k": 0}, write=False)
    assert list(places_of(access, {"i": 2, "j": 3}, 4)) == [0, -4, -8, 400, 396, 392]
    assert list(places_of(access, {"k": 2}, 8)) == [0, 0]
    assert list(places_of(access, {}, 8)) == [0]
