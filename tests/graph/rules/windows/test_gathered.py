"""Sums scattered into overlapping windows are gathered: the same numbers, one store per element, and nothing else is touched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.graph.rules.windows.gathered import LONGEST, gather_windows
from polyml.graph.rules.windows.overlapping import MOST
from tests.graph.graph_text import graph
from tests.pairs import pairwise

Array = npt.NDArray[np.generic]

FULL = """
def f(x: {t}["N"], w: {t}["R"]):
    y: {t}["{s}*N+{e}*R-{s}-{e}+1"] = 0
    y[{s}*h + {e}*r] += x[h] * w[r]
    return y
"""
PLANES = """
def f(x: f64["B K P Q"], w: f64["K C R S"]):
    y: f64["B C {s}*P+R-{s} {s}*Q+S-{s}"] = 0
    y[b, c, {s}*p + r, {s}*q + s] += x[b, k, p, q] * w[k, c, r, s]
    return y
"""


def scattered(x: Array, w: Array, s: int, e: int, y: Array | None = None) -> Array:
    if y is None:
        y = np.zeros(s * (len(x) - 1) + e * (len(w) - 1) + 1, np.result_type(x, w))
    for h in range(len(x)):
        for r in range(len(w)):
            y[s * h + e * r] += x[h] * w[r]
    return y


def is_gathered(source: str, *args: object, **options: object) -> bool:
    """Whether no sum of the program is into windows."""
    text = str(polyml.einsum(source, **options).trace(*args))  # type: ignore[arg-type]
    return "sum_" in text


@pytest.mark.parametrize(("s", "e"), [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (4, 6), (7, 1), (2, 2)])
@pytest.mark.parametrize(("n", "r"), [(0, 3), (1, 1), (1, 5), (2, 2), (5, 1), (40, 16), (37, 9), (3, 30)])
@pytest.mark.few(7)
def test_one_dimension(s: int, e: int, n: int, r: int) -> None:
    rng = np.random.default_rng(n + r)
    x, w = rng.integers(-4, 5, n).astype("f8"), rng.integers(-4, 5, r).astype("f8")
    program = FULL.format(t="f64", s=s, e=e)
    if n == 0:
        program = program.replace(f"{s}*N+{e}*R-{s}-{e}+1", "9")
        np.testing.assert_array_equal(polyml.einsum(program, threads=1)(x, w), np.zeros(9))
        return
    np.testing.assert_array_equal(polyml.einsum(program, threads=1)(x, w), scattered(x, w, s, e))


@pytest.mark.parametrize("t", ["f32", "i32", "i64", "u8", "c128"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(3)
def test_types(t: str, dynamic: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 5, n).astype(polyml.dtypes.DTYPES[t].numpy) for n in (53, 7))
    f = polyml.einsum(FULL.format(t=t, s=2, e=1), threads=1, dynamic=dynamic)
    np.testing.assert_array_equal(f(x, w), scattered(x, w, 2, 1))


@pairwise(
    ("s", [1, 2, 3, 5]),
    ("shape", [(1, 1, 1, 1, 1, 1, 1), (2, 3, 5, 6, 4, 3, 3), (1, 17, 9, 33, 20, 4, 2), (2, 8, 1, 7, 16, 5, 5)]),
    ("threads", [1, 2]),
)
@pytest.mark.few(3)
def test_planes(s: int, shape: tuple[int, ...], threads: int) -> None:
    b, k, p, q, c, height, width = shape
    rng = np.random.default_rng(s)
    x, w = rng.random((b, k, p, q)), rng.random((k, c, height, width))
    expected = np.zeros((b, c, s * (p - 1) + height, s * (q - 1) + width))
    for i in range(p):
        for j in range(q):
            expected[:, :, s * i : s * i + height, s * j : s * j + width] += np.einsum(
                "bk,kcrs->bcrs", x[:, :, i, j], w
            )
    np.testing.assert_allclose(polyml.einsum(PLANES.format(s=s), threads=threads)(x, w), expected, rtol=1e-12)


def test_what_was_there_stays() -> None:
    """Updates of an argument in place, of which some elements are not met, in a loop whose variable moves the windows."""
    program = """
    def f(y: f64["M"], x: f64["T N"], w: f64["R"]):
        for t in range(T):
            if h < N - 2:
                y[h + r + t + 3] += x[t, h] * w[r]
    """
    rng = np.random.default_rng(0)
    y, x, w = rng.random(60), rng.random((4, 41)), rng.random(5)
    expected = y.copy()
    for t in range(4):
        scattered(x[t, :39], w, 1, 1, expected[t + 3 :])
    polyml.einsum(program, threads=1)(y, x, w)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_products() -> None:
    program = 'def f(x: f64["N"], w: f64["R"]):\n    y: f64["N+R"] = 2\n    y[h + r] *= x[h] + w[r]\n    return y\n'
    x, w = np.linspace(0.5, 1, 20), np.linspace(0, 0.5, 5)
    expected = np.full(25, 2.0)
    for h in range(20):
        expected[h : h + 5] *= x[h] + w
    np.testing.assert_allclose(polyml.einsum(program, threads=1)(x, w), expected, rtol=1e-12)


def test_what_is_gathered() -> None:
    x = np.ones(100)
    assert is_gathered(FULL.format(t="f64", s=1, e=1), x, np.ones(5))
    assert is_gathered(FULL.format(t="f64", s=2, e=1), x, np.ones(5))
    assert not is_gathered(FULL.format(t="f64", s=5, e=1), x, np.ones(5)), "windows side by side"
    assert not is_gathered(FULL.format(t="f64", s=1, e=100), x, np.ones(5)), "rows side by side"
    assert not is_gathered(FULL.format(t="f64", s=1, e=1), x, np.ones(LONGEST + 1)), "as long as sums of their own"
    assert not is_gathered(FULL.format(t="f64", s=1, e=1), x, np.ones(5), precise=True), "another order of terms"


def test_remainders() -> None:
    """An index for all of them; where some have more terms than others an equation each, if they are few."""
    text = """
        x: f64[40]
        w: f64[{r}]
        y0: f64[300]
        y(y0)[{s}*h + r] += x[h] * w[r]
        return y
    """
    before = graph(text.format(r=MOST + 2, s=MOST))
    after = gather_windows(before)
    assert len(after.ops) == MOST
    assert after.ops[-1].result is before.ops[-1].result  # type: ignore[union-attr]
    assert gather_windows(after) is after
    for r, s in ((2 * MOST, MOST), (MOST + 3, MOST + 1)):
        (one,) = gather_windows(graph(text.format(r=r, s=s))).ops
        assert set(one.indices) == {"h", "r_rest", "r"}  # type: ignore[union-attr]
        assert one.reduced == ("r",)  # type: ignore[union-attr]
