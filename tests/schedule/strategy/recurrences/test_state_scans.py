"""Scans whose state is an operand of a sum, as in selective state spaces: lanes run along what is independent, and rows that are scanned keep theirs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from tests.pairs import pairwise

SELECTIVE = """
def f(x: f64["T D"], dt: f64["T D"], a: f64["D N"], b: f64["T N"], c: f64["T N"]):
    h: f64["D N"] = 0
    y: f64["T D"]
    for t in range(T):
        h[d, n] = exp(dt[t, d] * a[d, n]) * h[d, n] + dt[t, d] * x[t, d] * b[t, n]
        y[t, d] = h[d, n] * c[t, n]
    return y, h
"""
TROPICAL = SELECTIVE.replace("= h[d, n] * c[t, n]", "= max[n](h[d, n] + c[t, n])")


def states(
    x: npt.NDArray[np.float64],
    dt: npt.NDArray[np.float64],
    a: npt.NDArray[np.float64],
    b: npt.NDArray[np.float64],
    c: npt.NDArray[np.float64],
    *,
    tropical: bool,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    h, y = np.zeros(a.shape), np.zeros(x.shape)
    for t in range(len(x)):
        h = np.exp(dt[t, :, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        y[t] = (h + c[t]).max(1) if tropical else h @ c[t]
    return y, h


def inputs(t: int, d: int, n: int) -> list[npt.NDArray[np.float64]]:
    rng = np.random.default_rng(t + d + n)
    return [rng.standard_normal((t, d)), rng.random((t, d)), -rng.random((d, n)), *rng.standard_normal((2, t, n))]


@pairwise(
    ("size", [(1, 1, 1), (7, 1, 16), (5, 9, 3), (40, 33, 16), (33, 64, 5), (0, 9, 3), (200, 130, 16)]),
    ("threads", [1, 2]),
    ("dynamic", [False, True]),
    ("source", [SELECTIVE, TROPICAL]),
)
@pytest.mark.few(2)
def test_results(size: tuple[int, int, int], threads: int, dynamic: bool, source: str) -> None:
    arguments = inputs(*size)
    found = polyml.einsum(source, threads=threads, dynamic=dynamic)(*arguments)
    for result, expected in zip(found, states(*arguments, tropical=source is TROPICAL), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("source", [SELECTIVE, TROPICAL])
def test_every_loop_has_lanes(source: str) -> None:
    """None of the exponentials is computed alone."""
    lines = polyml.einsum(source, threads=1).lower(*inputs(100, 64, 16)).text("loops").splitlines()
    (update,) = [k for k, line in enumerate(lines) if "exp(" in line and "h" in line][:1]
    around = [line for line in lines[:update] if line.lstrip().startswith(("for", "vector"))]
    depth = len(lines[update]) - len(lines[update].lstrip())
    enclosing = dict[int, str]()
    for line in around:
        own = len(line) - len(line.lstrip())
        enclosing = {at: text for at, text in enclosing.items() if at < own} | {own: line}
    assert any("vector" in text for at, text in enclosing.items() if at < depth)


def test_rows_that_are_scanned_stay_scans() -> None:
    source = """
    def f(x: f32["R N"]):
        y: f32["R N"] = 0
        for n in range(1, N):
            y[r, n] = y[r, n - 1] + x[r, n]
        return y
    """
    assert "scan_sum" in polyml.einsum(source, threads=1).lower(np.ones((100, 1000), "f4")).text("loops")


@pytest.mark.parametrize(("n", "copies"), [(16, 4), (5, 3), (4, 4), (1, 1)])
def test_states_walk_side_by_side(n: int, copies: int) -> None:
    """A step loads its rows once for several states, whose sum keeps its order."""
    lowered = polyml.einsum(SELECTIVE, threads=1).lower(*inputs(100, 64, n))
    walks = [note for note in lowered.explain().splitlines() if "walks for n at once" in note]
    assert len(walks) == (copies > 1)
    (step, *_) = [
        body for body in lowered.text("loops").split("for (t = 0; t < 100; t++) {") if "exp(" in body.split("}")[0]
    ]
    lines = step.split("}")[0].splitlines()
    vectors = len({line.split("x[t, ")[1].split("]")[0] for line in lines if "x[t, " in line})
    assert sum("exp(" in line for line in lines) == copies * vectors
    assert sum(line.lstrip().startswith("y_3[t") for line in lines) == vectors


def test_walks_that_wait_for_each_other_do_not_go_side_by_side() -> None:
    """h[d, n] needs h[d, n - 1] of the next step."""
    source = """
    def f(x: f64["T D"], a: f64["D N"]):
        h: f64["D N"] = 0
        y: f64["T D"]
        for t in range(T):
            h[d, n] = a[d, n] * h[d, n] + x[t, d]
            y[t, d] = sum[n](h[d, n] * h[d, n])
            for n in range(1, N):
                h[d, n] = h[d, n] + h[d, n - 1]
        return y
    """
    x, a = np.random.default_rng(0).random((2, 40, 24)) / 8
    h, y = np.zeros((24, 6)), np.zeros((40, 24))
    for t in range(40):
        h = a[:24, :6] * h + x[t][:, None]
        y[t] = (h * h).sum(1)
        h = np.cumsum(h, 1)
    lowered = polyml.einsum(source, threads=1).lower(x, np.ascontiguousarray(a[:24, :6]))
    assert "walks" not in lowered.explain()
    found = polyml.einsum(source, threads=1)(x, np.ascontiguousarray(a[:24, :6]))
    np.testing.assert_allclose(found, y, rtol=1e-11)


def test_an_order_that_was_asked_for_stays() -> None:
    assert "walks" not in polyml.einsum(SELECTIVE, threads=1, precise=True).lower(*inputs(100, 64, 16)).explain()


@pytest.mark.parametrize("fusion", ["none", "smart", "maximal"])
def test_the_last_step_of_an_int(fusion: str) -> None:
    """What follows the loop runs once, at a time that a size gives: it is no loop over an index of that name."""
    text = """
    def f(x: f32["M"], c: int):
        for n in range(c):
            if 1 <= i < M - 1:
                x[i] = (x[i - 1] + x[i + 1]) / 2
        return x
    """
    function = polyml.einsum(text, fusion=fusion, verify=True)
    for steps in (0, 1, 5):
        x = np.random.default_rng(0).standard_normal(40, np.float32)
        expected = x.copy()
        for _ in range(steps):
            expected[1:-1] = (expected[:-2] + expected[2:]) / 2
        np.testing.assert_allclose(function(x, steps), expected, rtol=1e-5, atol=1e-6)
