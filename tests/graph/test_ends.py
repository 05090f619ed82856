"""Subscripts that go one way along an index, checked at its ends: refused exactly where some value is out of range."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from tests.graph.built import graph, program

VALUES = (0.0, -0.0, 0.3, -1.5, 4.0, 2.0**61, -(2.0**70), 1e300, np.inf, -np.inf, np.nan)

PLACES: dict[str, Callable[..., npt.NDArray[np.float64]]] = {
    "i64(a * i + b)": lambda a, b, i, j: np.trunc(a * i + b),
    "i64(round(i * a + j * b)) + 2": lambda a, b, i, j: np.round(i * a + j * b) + 2,
    "min(i64(floor((a - i) * b)), 7)": lambda a, b, i, j: np.where(
        abs((a - i) * b) < 2.0**63, np.minimum(np.floor((a - i) * b), 7), -1
    ),
    "i64(i / a - b)": lambda a, b, i, j: np.trunc(i / a - b),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_is_refused_where_one_of_all_is_out_of_range(place: str) -> None:
    text = program(
        'a: f64, b: f64, x: f64["8"], z: f64["5 7"]', 'y: f64["5 7"]', f"y[i, j] = x[{place}] + z[i, j]", "return y"
    )
    x, z = np.arange(8.0), np.zeros((5, 7))
    made = graph(text, 0.0, 0.0, x, z)
    check = next(line for line in graph_text(made).splitlines() if "out_of_range =" in line)
    assert "any_" not in check or "any_i" not in check
    i, j = np.meshgrid(np.arange(5.0), np.arange(7.0), indexing="ij")
    for a, b in product(VALUES, VALUES):
        with np.errstate(all="ignore"):
            places = PLACES[place](a, b, i, j)
        inside = bool(((places >= 0) & (places < 8)).all())
        if not inside:
            with np.errstate(all="ignore"), pytest.raises(IndexError):
                execute(made, [np.float64(a), np.float64(b), x, z])
        else:
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(
                    execute(made, [np.float64(a), np.float64(b), x, z])[0], x[places.astype(int)]
                )


@pytest.mark.parametrize(
    ("place", "ends"),
    [
        ("i64(a * i)", True),
        ("i64(a * i) + k[j]", False),
        ("k[j] - i64(a * i)", False),
        ("max(i64(a * i), 0)", False),
        ("i64(abs(a * i))", False),
        ("i64(i * i * a)", False),
        ("i64(a / (i + 1))", False),
        ("i64(min(a * i, 3.0))", False),
        ("i64(a * v[i])", False),
    ],
)
def test_what_turns_round_or_wraps_is_checked_everywhere(place: str, ends: bool) -> None:
    text = program(
        'a: f64, k: i64["7"], v: f64["5"], x: f64["8"]', 'y: f64["5 7"]', f"y[i, j] = x[{place}]", "return y"
    )
    made = graph_text(graph(text, 0.0, np.zeros(7, np.int64), np.zeros(5), np.zeros(8)))
    (check,) = (line for line in made.splitlines() if "out_of_range =" in line)
    assert ("any_i" not in check) == ends


def test_kernels_check_the_corners_of_a_turned_image() -> None:
    f = polyml.einsum("""
def turned(x: f32["H W"], c: f64, s: f64):
    y: f32["9 11"]
    y[i, j] = x[i64(round(c * i - s * j)) + 12, i64(round(s * i + c * j)) + 1]
    return y
""")
    x = np.arange(30 * 31, dtype=np.float32).reshape(30, 31)
    i, j = np.mgrid[:9, :11]
    for angle in (0.0, 0.3, 1.0):
        c, s = np.cos(angle), np.sin(angle)
        expected = x[np.round(c * i - s * j).astype(int) + 12, np.round(s * i + c * j).astype(int) + 1]
        np.testing.assert_array_equal(f(x, c, s), expected)
    with pytest.raises(IndexError, match="dimension 0 of x"):
        f(x, 0.0, 1.5)
    with pytest.raises(IndexError, match="dimension 1 of x"):
        f(x, 0.9, -0.4)
    with pytest.raises(IndexError):
        f(x, np.nan, 0.0)
