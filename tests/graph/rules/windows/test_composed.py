"""Long windows are put together from shorter ones, boxes go along one index after the other; what is no window, and what is short, stays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import verify
from tests.sampled import in_turn

COMPOSED = {
    "rows": ('y: T["N M-12"]', "y[n, m] = sum[r < 13](x[n, m + r])"),
    "largest": ('y: T["N M-16"]', "y[n, m] = max[r < 17](x[n, m + r])"),
    "smallest of columns": ('y: T["N-24 M"]', "y[n, m] = min[r < 25](x[n + r, m])"),
    "a range": ('y: T["N M-12"]', "y[n, m] = sum[k, m <= k < m + 13](x[n, k])"),
    "with edges": ('y: T["N M"]', "y[n, m] = sum[k, m - 6 <= k <= m + 6](x[n, k])"),
    "largest, with edges": ('y: T["N M"]', "y[n, m] = max[r, 0 <= m + r - 8 < M, r < 12](x[n, m + r - 8])"),
    "behind": ('y: T["N M"]', "y[n, m] = sum[r < 9, m - r >= 0](x[n, m - r])"),
    "held inside": ('y: T["N M"]', "y[n, m] = sum[r < 11](x[n, min(max(m + r - 5, 0), M - 1)])"),
    "round": ('y: T["N M"]', "y[n, m] = max[r < 11](x[n, (m + r) % M])"),
    "of what is computed": ('y: T["N M-8"]', "y[n, m] = sum[r < 9](x[n, m + r] * x[n, m + r] + 1)"),
    "a factor": ('y: T["N M-8"]', "y[n, m] = sum[r < 9](x[n, m + r] * x[n, 0])"),
    "a box": ('y: T["N-7 M-7"]', "y[n, m] = sum[r < 8, s < 8](x[n + r, m + s])"),
    "a small box": ('y: T["N-4 M-4"]', "y[n, m] = max[r < 5, s < 5](x[n + r, m + s])"),
    "a box with edges": (
        'y: T["N M"]',
        "y[n, m] = max[r < 9, s < 7, 0 <= n + r - 4 < N, 0 <= m + s - 3 < M](x[n + r - 4, m + s - 3])",
    ),
    "and all rows": ('y: T["M-4"]', "y[m] = sum[n, r < 5](x[n, m + r])"),
    "along both": ('y: T["N-10"]', "y[n] = sum[r < 11](x[n + r, n + r])"),
    "a filter for each direction": (
        'y: T["N-6 M-6"]',
        "y[n, m] = sum[r < 7, s < 7](x[n + r, m + s] * x[0, r] * x[1, s + 1])",
    ),
    "backwards": ('y: T["N-6 M-6"]', "y[n, m] = sum[r < 7, s < 7](x[n + 6 - r, m + s] * x[r, 0] * x[0, s])"),
    "in a loop": ('y: T["N M-12"]', "for t in range(2):\n        y[n, m] = sum[r < 13](x[n, m + r] + t)"),
    "two of them": ('y: T["N M-18"]', "e[n, k] = max[r < 10](x[n, k + r])\n    y[n, m] = min[r < 10](e[n, m + r])"),
}
OTHERS = {
    "short": ('y: T["N M-4"]', "y[n, m] = sum[r < 5](x[n, m + r])"),
    "short columns": ('y: T["N-9 M"]', "y[n, m] = sum[r < 10](x[n + r, m])"),
    "one filter": ('y: T["N-6 M-6"]', "y[n, m] = sum[r < 7, s < 7](x[n + r, m + s] * x[r, s])"),
    "weights": ('y: T["N M-12"]', "y[n, m] = sum[r < 13](x[n, m + r] * x[0, r])"),
    "steps": ('y: T["N 9"]', "y[n, m] = sum[r < 13](x[n, 2*m + r])"),
    "gaps": ('y: T["N M-24"]', "y[n, m] = sum[r < 13](x[n, m + 2*r])"),
    "growing": ('y: T["N M"]', "y[n, m] = sum[k, k <= m, 0 <= k](x[n, k] * x[n, m - k])"),
    "a hole": ('y: T["N M-12"]', "y[n, m] = sum[r < 13, r != 4](x[n, m + r])"),
}
SHAPES = [(27, 33), (26, 40), (30, 31)]


def text_of(rows: tuple[str, str], dtype: str = "f64") -> str:
    declared, body = rows
    text = f'def f(x: T["N M"]):\n    {declared} = 0\n    {body}\n    return y\n'
    return text.replace("T[", f"{dtype}[")


def program(rows: tuple[str, str], dtype: str = "f64", **options: object) -> polyml.api.Einsum:
    return polyml.einsum(text_of(rows, dtype), **options)


def numbers(shape: tuple[int, int], dtype: npt.DTypeLike = "f8") -> npt.NDArray[np.generic]:
    return np.random.default_rng(0).integers(-9, 10, shape).astype(dtype)


@pytest.mark.parametrize("rows", COMPOSED.values(), ids=COMPOSED)
def test_windows_are_composed(rows: tuple[str, str]) -> None:
    assert "_part" in str(program(rows).trace(numbers((27, 33))))


@pytest.mark.parametrize("rows", OTHERS.values(), ids=OTHERS)
def test_others_stay(rows: tuple[str, str]) -> None:
    assert "_part" not in str(program(rows).trace(numbers((27, 33))))


@pytest.mark.parametrize(("name", "dynamic"), in_turn(COMPOSED, (False, True)))
@pytest.mark.few(3)
def test_the_same_numbers(name: str, dynamic: bool) -> None:
    """Of any size at all shapes, of known ones at two."""
    rows = COMPOSED[name]
    sizes = True if dynamic and "% M" not in rows[1] else ("N",) if dynamic else False
    made = program(rows, dynamic=sizes, threads=1 + dynamic, verify=not dynamic)
    for shape in SHAPES if dynamic else SHAPES[[*COMPOSED].index(name) // 2 % 2 :][:2]:
        x = numbers(shape)
        np.testing.assert_array_equal(made(x), interpret(parse(Source(text_of(rows))), x))


@pytest.mark.parametrize("name", ["rows", "largest, with edges", "a small box"])
@pytest.mark.few(1)
def test_against_the_interpreter(name: str) -> None:
    for shape in ((9, 33), (6, 20)):
        assert verify(program(COMPOSED[name], dynamic=False), numbers(shape))


@pytest.mark.parametrize("dtype", ["f32", "i32", "u32"])
@pytest.mark.parametrize("name", ["rows", "largest", "with edges", "a box"])
@pytest.mark.few(2)
def test_types_and_strides(name: str, dtype: str) -> None:
    rows = COMPOSED[name]
    wide = 40 * np.random.default_rng(1).standard_normal((28, 70))
    x = np.abs(wide).astype({"f32": "f4", "i32": "i4", "u32": "u4"}[dtype])
    composed, written = program(rows, dtype, dynamic=False), program(rows, "f64", precise=True)
    for view in (x[:, ::2], x[::-1, ::-2], np.asfortranarray(x[:, :35])):
        np.testing.assert_allclose(composed(view), written(view.astype("f8")), rtol=1e-6)


def test_bytes_and_truths() -> None:
    x = np.random.default_rng(2).integers(0, 256, (5, 60), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(x, 20, 1)
    largest = polyml.einsum('def f(x: u8["N M"]):\n    y[n, m] = max[r < 20](x[n, m + r])\n    return y\n')
    sums = polyml.einsum('def f(x: u8["N M"]):\n    y[n, m] = sum[r < 20](i32(x[n, m + r]))\n    return y\n')
    every = polyml.einsum('def f(x: u8["N M"]):\n    y[n, m] = all[r < 20](x[n, m + r] > 9)\n    return y\n')
    np.testing.assert_array_equal(largest(x), windows.max(2))
    np.testing.assert_array_equal(sums(x), windows.sum(2))
    np.testing.assert_array_equal(every(x), (windows > 9).all(2))


@pytest.mark.parametrize("name", ["rows", "largest", "with edges", "a small box"])
@pytest.mark.few(3)
def test_no_numbers_and_infinities_reach_their_windows_alone(name: str) -> None:
    x = numbers((27, 60))
    x[2, 15], x[4, 7], x[4, 30], x[20, 11] = np.nan, np.inf, -np.inf, np.inf
    np.testing.assert_array_equal(program(COMPOSED[name])(x), program(COMPOSED[name], precise=True, dynamic=False)(x))


def test_large_terms_leave_no_trace() -> None:
    """A difference of running sums would lose all that is behind a large term."""
    x = np.ones((1, 100), np.float32)
    x[0, 20] = 1e30
    y = program(COMPOSED["rows"], "f32")(x)
    np.testing.assert_array_equal(y[0, np.r_[:8, 21:88]], 13)


def test_precise_sums_keep_their_order() -> None:
    x = numbers((27, 33))
    assert "_part" not in str(program(COMPOSED["rows"], precise=True).trace(x))
    assert "_part" in str(program(COMPOSED["largest"], precise=True).trace(x))
    assert "_part" in str(program(COMPOSED["rows"], "i64", precise=True).trace(x.astype("i8")))


def test_one_window_and_none() -> None:
    x = numbers((3, 13))
    np.testing.assert_array_equal(program(COMPOSED["rows"], dynamic=False)(x), x.sum(1, keepdims=True))
    np.testing.assert_array_equal(program(COMPOSED["rows"], dynamic=False)(x[:, :12]), np.zeros((3, 0)))
    np.testing.assert_array_equal(program(COMPOSED["rows"], dynamic=False)(x[:0]), np.zeros((0, 1)))


@pytest.mark.parametrize("weight", [0, 2])
@pytest.mark.few(1)
def test_weights_of_places_without_terms_are_left_out(weight: int) -> None:
    """Columns without any s are 0, whatever the weights of the rows are, and rows beside x meet no weight."""
    made = polyml.einsum("""
def f(x: f32["N M"], w: f32["9"], v: f32["2"]):
    y: f32["N M"]
    z: f32["N M"]
    y[i, j] = sum[r < 9, s < 2, 0 <= i + r - 2 < N, 0 <= j + s - 3 < M](x[i + r - 2, j + s - 3] * w[r] * v[s])
    z[i, j] = sum[r < 9, s < 2, 0 <= j + r - 2 < M, 0 <= i + s - 3 < N](x[i + s - 3, j + r - 2] * w[r] * v[s])
    return y, z
""")
    w = np.ones(9, np.float32)
    w[weight] = np.nan
    assert verify(made, np.ones((9, 9), np.float32), w, np.ones(2, np.float32))
