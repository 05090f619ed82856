"""Elements of products side by side: the tiles that are looked at."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from polyml.schedule.strategy.contractions.side_by_side import _counts


@pytest.mark.parametrize(("limits", "most"), [((), 29), ((8,), 5), ((8, 3, 8), 29), ((2, 8, 1, 7), 13), ((8, 8), 0)])
def test_tiles_that_registers_hold_in_order(limits: tuple[int, ...], most: int) -> None:
    every = product(*(range(1, limit + 1) for limit in limits))
    assert list(_counts(limits, most)) == [c for c in every if prod(c) <= most or not limits]


def test_tiles_of_many_indices_are_few() -> None:
    assert sum(1 for _ in _counts([8] * 6, 29)) == 1118  # of 262144
