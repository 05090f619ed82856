"""Pictures of schedules: what is drawn, looked at through matplotlib's own objects."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.quiver import Quiver

from polyml.errors import PolymlError
from polyml.viz import draw
from tests.schedule.transforms.support import DENSE, JACOBI, SEIDEL, written


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    mpl.use("agg")
    yield
    pyplot.close("all")


def test_instances_arrows_and_order() -> None:
    """Five steps of eleven points; each of the four later ones has 3 arrows into it, less one at both ends."""
    (S,) = written(SEIDEL).statements
    axes = draw(written(SEIDEL), S, dependences=True, order=True)
    arrows, points = axes.collections
    assert len(points.get_offsets()) == 5 * 11
    assert isinstance(arrows, Quiver)
    assert arrows.N == 4 * (3 * 11 - 2)
    directions = np.round(np.column_stack([arrows.U, arrows.V])).tolist()  # i to the right, t upwards
    assert {tuple(d) for d in directions} == {(-1, 1), (0, 1), (1, 1)}
    line = np.column_stack(axes.lines[0].get_data())
    assert line[:2].tolist() == [[1, 1], [2, 1]]  # i to the right, t upwards: along a row first
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("i", "t")


def test_tiles_and_fronts_have_colours() -> None:
    (S,) = written(SEIDEL).statements
    tiled = written(SEIDEL).skew(S, "i", "t").tile(S, t=2, i=4)
    tiles = draw(tiled, S).collections[0].get_array()
    fronts = draw(tiled.wavefront(S, "t_tile", "i_tile"), S).collections[0].get_array()
    assert tiles is not None
    assert fronts is not None
    assert 6 < len(set(tiles.tolist())) <= 20
    assert sorted(fronts.tolist()) == fronts.tolist()  # fronts run one after another


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(PolymlError, match="no index z"):
        draw(written(DENSE), "S_c", axes=("i", "z"))
    with pytest.raises(PolymlError, match="the size T is symbolic"):
        draw(written(JACOBI), written(JACOBI).statements[0])
    axes = draw(written(JACOBI), written(JACOBI).statements[0], sizes={"T": 3})
    assert len(axes.collections[0].get_offsets()) == 3 * 11
