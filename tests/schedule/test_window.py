"""Windows of local arrays: what deciding on them costs."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.schedule import window

INTEGRAL = """
def integral(x: f64["H W"], k: int):
    s: f64["H+1 W+1"] = 0
    s[i + 1, j + 1] = sum[a <= i, b <= j](x[a, b])
    y: f64["H-k+1 W-k+1"]
    if i < H - k + 1 and j < W - k + 1:
        y[i, j] = s[i + k, j + k] - s[i, j + k] - s[i + k, j] + s[i, j]
    return y
"""


def test_lifetimes_are_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is composed of lifetimes in hundreds of pieces took seconds."""
    pieces = []
    extents = window._Lifetimes.extents

    def counted(self: window._Lifetimes, full: list[int | None]) -> list[int | None]:
        maps = self.overlaps.get_map_list()
        pieces.extend(maps.get_at(k).n_basic_map() for k in range(maps.n_map()))
        return extents(self, full)

    monkeypatch.setattr(window._Lifetimes, "extents", counted)
    x = np.random.default_rng(0).random((700, 701))
    program = polyml.einsum(INTEGRAL, threads=1)
    program.lower(x, 3)
    assert pieces
    assert max(pieces) <= 20
    sums = np.pad(x.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    np.testing.assert_allclose(program(x, 3), sums[3:, 3:] - sums[:-3, 3:] - sums[3:, :-3] + sums[:-3, :-3], rtol=1e-9)
