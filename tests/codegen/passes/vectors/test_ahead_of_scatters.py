"""Places and values of updates, computed a block ahead in vectors: the same sums in the same order, whatever is left of a block."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Assign, For, Function, Node, Place, Variable
from polyml.codegen.passes.vectors.ahead_of_scatters import compute_ahead_of_scatters
from polyml.dtypes import f64, i64
from polyml.expressions import Apply, Expr, Read
from polyml.sets.affine import affine
from polyml.target import Target

WEIGHTED = """
def f(x: f64["N"], w: f64["N"], B: int):
    h: f64["B 3"] = 0
    h[max(0, min(i64(x[n] * B), B - 1)), n % 3] += exp(-w[n])
    return h
"""
TARGETS = [Target("x86-64-v3"), Target("x86-64-v4", features="-prefer-256-bit")]


def weighted(x: np.ndarray, w: np.ndarray, bins: int) -> np.ndarray:
    h = np.zeros((bins, 3), x.dtype)
    places = np.clip(np.where(np.isfinite(x), x * bins, -np.inf), 0, bins - 1).astype(int)
    for n, place in enumerate(places):
        h[place, n % 3] += np.exp(-w[n])
    return h


@pytest.mark.parametrize("size", [0, 1, 31, 33, 255, 256, 257, 1500])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.few(5)
def test_any_size(size: int, dtype: str) -> None:
    rng = np.random.default_rng(size)
    x, w = (rng.random(size).astype("f" if dtype == "f32" else "d") for _ in range(2))
    x[::7], x[3::11] = np.nan, 1.0
    with np.errstate(invalid="ignore"):
        expected = weighted(x, w, 5)
    for options in ({}, {"dynamic": True}, {"precise": True}):
        program = polyml.einsum(WEIGHTED.replace("f64", dtype), threads=1, **options)
        np.testing.assert_allclose(program(x, w, 5), expected, rtol=1e-5 if dtype == "f32" else 1e-12)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_dear_goes_ahead(target: Target) -> None:
    x = np.ones(1000)
    for value, ahead in (("exp(-w[n])", 2), ("w[n]", 1)):
        program = polyml.einsum(WEIGHTED.replace("exp(-w[n])", value), target=target, threads=1)
        text = program.lower(x, x, 5).text("loops")
        assert text.count("local") == ahead
    cheap = WEIGHTED.replace("max(0, min(i64(x[n] * B), B - 1))", "i64(x[n])").replace("exp(-w[n])", "w[n]")
    assert "local" not in polyml.einsum(cheap, target=target, threads=1).lower(x, x, 5).text("loops")


def scatter(*, place: str = "p", kind: str = "sequential", value: str = "x", extra: tuple[Node, ...] = ()) -> Function:
    """A loop over n that adds exponentials of an array at the places that another one tells."""
    n = affine("n")
    shape = (affine(1000),)
    arrays = [Variable(name=name, dtype=i64 if name in "pq" else f64, shape=shape, scope="global") for name in "hpqx"]
    told: Expr = Apply("floordiv", (Read(place, (n,), i64), Read("p", (n,), i64)), i64)
    update = Assign(target=Place("h", (told,)), value=Apply("exp", (Read(value, (n,), f64),), f64), reduction="sum")
    loop = For(
        variable="n",
        lower=affine(0),
        upper=affine(1000),
        kind="vector" if kind == "vector" else "sequential",
        body=(update, *extra),
    )
    return Function(name="f", arguments=tuple(arrays), written=frozenset("hq"), sizes=(), body=(loop,))


def moved(function: Function) -> Function:
    return compute_ahead_of_scatters(function, vector_bytes=32, l1_bytes=1 << 15)


def test_what_the_loop_writes_is_read_in_its_turn() -> None:
    later = Assign(target=Place("q", (affine("n") + 1,)), value=Read("p", (affine("n"),), i64))
    assert str(moved(scatter())).count("_ahead") > str(moved(scatter(value="h"))).count("_ahead") > 0
    assert str(moved(scatter(place="q", extra=(later,)))).count("local") == 1
    both = scatter(place="q", value="h", extra=(later,))
    assert moved(both) is both


def test_loops_of_lanes_and_short_vectors_stay() -> None:
    for given in (scatter(kind="vector"),):
        assert moved(given) is given
    given = scatter()
    assert compute_ahead_of_scatters(given, vector_bytes=8, l1_bytes=1 << 15) is given


def test_loops_that_end_before_they_begin() -> None:
    """From a step on there is nothing left to scatter, and other statements go on."""
    program = polyml.einsum(
        'def f(x: f64["T N"], w: f64["N"], B: int):\n    h: f64["B"] = 0\n    s: f64["T"] = 0\n    for t in range(T):\n'
        "        if n >= 2*t + 40:\n            h[min(max(i64(x[t, n] * B), 0), B - 1)] += exp(-w[n]) * x[t, n]\n"
        "        s[t] = 2 * h[b]\n    return h, s\n",
        threads=1,
    )
    rng = np.random.default_rng(0)
    x, w, h, s = rng.random((400, 600)), rng.random(600), np.zeros(16), np.zeros(400)
    assert "_ahead" in program.lower(x, w, 16).text("loops")
    for t in range(400):
        here = slice(2 * t + 40, None)
        np.add.at(h, (x[t, here] * 16).astype(int), np.exp(-w[here]) * x[t, here])
        s[t] = 2 * h.sum()
    for found, expected in zip(program(x, w, 16), (h, s), strict=True):
        np.testing.assert_allclose(found, expected)
