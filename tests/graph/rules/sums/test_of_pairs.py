"""Reductions over pairs of indices in order are reductions of running ones."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.testing import verify
from tests.sampled import in_turn

SUMS = {
    "of one row": "sum[i, j, i < j](x[n, i] * x[n, j])",
    "the diagonal, too": "sum[i, j, i <= j](x[n, i] * z[n, j])",
    "the other half": "sum[i, j, i > j](x[n, i] * z[n, j])",
    "far from each other": "sum[i, j, i + 3 <= j](x[n, i] * z[n, j])",
    "one more factor": "sum[i, j, i < j](x[n, i] * z[n, j] * x[i, i] * 2)",
    "three in order": "sum[i, j, k, i < j, j < k](x[n, i] * z[n, j] * x[n, k])",
    "beside another sum": "sum[i, j, k, i < j](x[n, i] * z[k, j])",
    "a product between": "sum[i, j, k, i < j](x[n, i] * w[i, k] * z[j, k])",
    "twice as far": "sum[i, j, i <= 2*j, i < K](x[n, i] * z[n, j])",
}
EXTREMA = {
    "largest difference": "max[i, j, i < j](x[n, j] - z[n, i])",
    "smallest difference": "min[i, j, i < j](x[n, j] - x[n, i])",
    "largest fall": "max[i, j, i <= j](x[n, i] - x[n, j])",
    "largest sum": "max[i, j, i < j](x[n, i] + z[n, j])",
    "smallest sum": "min[i, j, i > j](x[n, i] * x[n, i] + z[n, j])",
}
OTHERS = {
    "one factor": "sum[i, j, i < j, j < K](x[n, i])",
    "the outer index alone": "sum[i, j, i < j, i < K](x[n, j])",
    "all pairs": "sum[i, j](x[n, i] * z[n, j])",
    "a number for each pair": "sum[i, j, i < j](x[n, i] * w[i, j])",
    "near each other": "sum[i, j, i < j, j <= i + 3](x[n, i] * z[n, j])",
    "other functions": "sum[i, j, i < j](exp(x[n, i] - x[n, j]))",
    "largest products": "max[i, j, i < j](x[n, i] * z[n, j])",
    "rests": "max[i, j, i < j](x[n, i] - (z[n, j] - x[n, i]))",
}


def program(body: str, dtype: str = "f64", **options: object) -> polyml.api.Einsum:
    text = f'def f(x: {dtype}["N K"], z: {dtype}["N K"], w: {dtype}["K K"]):\n    y: {dtype}["N"]\n    y[n] = {body}\n    return y\n'
    return polyml.einsum(text, **options)


def arguments(rows: int, length: int, dtype: str = "f8") -> list[np.ndarray]:
    rng = np.random.default_rng(length)
    shapes = ((rows, length), (rows, length), (length, length))
    return [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("body", [*SUMS.values(), *EXTREMA.values()], ids=[*SUMS, *EXTREMA])
def test_loops(body: str) -> None:
    assert " in range(" in str(program(body).trace(*arguments(20, 20)))


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others_stay(body: str) -> None:
    assert " in range(" not in str(program(body).trace(*arguments(20, 20)))


NOT_OF_PAIRS = [pytest.param(name, dynamic, marks=pytest.mark.slow) for name in OTHERS for dynamic in (False, True)]


@pytest.mark.parametrize(("name", "dynamic"), [*in_turn([*SUMS, *EXTREMA], (False, True)), *NOT_OF_PAIRS])
@pytest.mark.few(3)
def test_the_same_numbers(name: str, dynamic: bool) -> None:
    body = (SUMS | EXTREMA | OTHERS)[name]
    made = program(body, dynamic=dynamic, verify=not dynamic)
    square = "x[i, i]" in body
    assert verify(made, *arguments(12 if square else 5, 12))
    assert square or not dynamic or verify(made, *arguments(17, 9))


def test_whole_numbers_wrap() -> None:
    """Sums of products go round as they did; the largest difference of numbers that went round is another one."""
    given = [(10**8 * a).astype("i4") for a in arguments(14, 14)]
    for body in (SUMS["of one row"], EXTREMA["largest difference"]):
        compiled = program(body, "i32", dynamic=False, verify=True)
        assert (" in range(" in compiled.lower(*given).text("graph")) is body.startswith("sum")
        assert verify(compiled, *given)


def test_sums_as_written() -> None:
    """With precise=True sums of floats stay; extrema round nothing."""
    assert " in range(" not in str(program(SUMS["of one row"], precise=True).trace(*arguments(20, 20)))
    assert " in range(" in str(program(EXTREMA["largest fall"], precise=True).trace(*arguments(20, 20)))


@pytest.mark.parametrize("body", EXTREMA.values(), ids=EXTREMA)
@pytest.mark.few(2)
def test_no_numbers_and_infinities(body: str) -> None:
    running, one_by_one = program(body, dynamic=False), program(body, dynamic=False, scheduler="written")
    x, z, w = arguments(10, 30)
    rng = np.random.default_rng(1)
    for values in ([np.inf], [-np.inf], [np.nan], [np.inf, -np.inf]):
        for a in (x, z):
            some = rng.integers(0, 30, (2, 10))
            a[::2] = rng.standard_normal(a[::2].shape)
            for places in some:
                a[np.arange(10), places] = rng.choice(values, 10)
        want = np.array(_slow(body, x, z))
        np.testing.assert_array_equal(running(x, z, w), want)
        np.testing.assert_array_equal(one_by_one(x, z, w), want)


def _slow(body: str, x: np.ndarray, z: np.ndarray) -> list[float]:
    head, _, term = body.partition("](")
    pairs = head.rpartition(", ")[2]
    i, j = np.indices(2 * x.shape[1:])
    i, j = (index[eval(pairs, {"i": i, "j": j})] for index in (i, j))
    with np.errstate(invalid="ignore"):
        terms = [eval(term[:-1], {"x": x, "z": z, "n": n, "i": i, "j": j}) for n in range(len(x))]
    return [np.max(row) if body.startswith("max") else np.min(row) for row in terms]


def test_inside_of_loops_and_few_pairs() -> None:
    compiled = polyml.einsum(
        """
def f(x: f64["T N"]):
    s: f64["T"]
    m: f64["T"] = 0
    for t in range(T):
        s[t] = sum[i, j, i < j](x[t, i] * x[t, j])
        m[t] = max[i, j, i <= j](x[t, j] - x[t, i])
    return s, m
""",
        verify=True,
        dynamic=True,
    )
    for shape in ((3, 20), (2, 1), (4, 2), (1, 9)):
        assert verify(compiled, np.random.default_rng(0).standard_normal(shape)), shape
