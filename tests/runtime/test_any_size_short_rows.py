"""`dynamic=True` over short rows: their lengths are numbers for the first few kinds, and no call compiles more than these and one for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import polyml
from polyml.runtime.arguments import Layout
from polyml.runtime.keys import FEW_VALUES, LEAST_ROWS, SHORT

NORMALIZED = 'def f(x: f32["N C"], b: f32["C"]):\n    s[n] = max[c](x[n, c])\n    y[n, c] = x[n, c] - s[n] + b[c]\n    return y\n'
POINTS = 'def f(x: f32["N C"], r: f32["C D"]):\n    y[n, d] = x[n, c] * r[c, d]\n    return y\n'
RNG = np.random.default_rng(5)


def signatures(f: polyml.Einsum) -> list[str]:
    return [str(kernel.signature).removeprefix("f") for kernel in f.kernels]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def checks(f: polyml.Einsum, rows: int, row: int) -> None:
    x, b = normal(rows, row), normal(row)
    if row:
        assert np.allclose(f(x, b), x - x.max(axis=1, keepdims=True) + b, atol=1e-5), (rows, row)


def test_lengths_of_short_rows_are_numbers() -> None:
    f = polyml.einsum(NORMALIZED, dynamic=True)
    for rows in (1000, 333, 1, 64, 7):
        checks(f, rows, 3)
    assert signatures(f) == ["(x: f32[N, 3], b: f32[3]) -> f32[N, 3]"]


def test_no_more_than_a_few_and_one_for_all() -> None:
    f = polyml.einsum(NORMALIZED, dynamic=True)
    for row in range(1, SHORT + 3):
        for rows in (100, 101, 5):
            checks(f, rows, row)
    checks(f, 70, 1)  # of a kind that there is a kernel for
    assert len(f.kernels) == FEW_VALUES + 1
    assert signatures(f)[-1] == "(x: f32[N, C], b: f32[C]) -> f32[N, C]"


def test_the_kernel_for_all_is_the_last_one() -> None:
    f = polyml.einsum(NORMALIZED, dynamic=True)
    checks(f, 100, 3)
    checks(f, 100, 40)
    checks(f, 100, 4)
    checks(f, 1000, 5)
    f(np.asfortranarray(normal(500, 6)), normal(6))  # which is copied first
    assert signatures(f) == ["(x: f32[N, 3], b: f32[3]) -> f32[N, 3]", "(x: f32[N, C], b: f32[C]) -> f32[N, C]"]


def test_short_rows_run_in_their_kernel_after_others() -> None:
    """The kernel for all would take them, and is asked later."""
    f = polyml.einsum(NORMALIZED, dynamic=True)
    checks(f, 100, 3)
    short, *_ = f.kernels
    checks(f, 100, 40)
    assert f._front[0] is short
    assert f.kernel_for(normal(12, 3), normal(3)) is short


@pytest.mark.parametrize("shape", [(LEAST_ROWS - 1, 3), (LEAST_ROWS, SHORT + 1), (3, 1000), (1, 1)])
@pytest.mark.few(1)
def test_a_call_that_says_nothing(shape: tuple[int, int]) -> None:
    f = polyml.einsum(NORMALIZED, dynamic=True)
    checks(f, *shape)
    checks(f, 1000, 3)
    assert signatures(f) == ["(x: f32[N, C], b: f32[C]) -> f32[N, C]"]


@pytest.mark.parametrize("dynamic", [("N", "C"), ("C",)])
def test_sizes_that_are_named_stay_symbolic(dynamic: tuple[str, ...]) -> None:
    f = polyml.einsum(NORMALIZED, dynamic=dynamic)
    for row in (3, 4, 5):
        checks(f, 1000, row)
    assert len(f.kernels) == 1
    assert "C" in f.kernels[0].signature.sizes


def test_small_arrays_beside_the_rows() -> None:
    f = polyml.einsum(POINTS, dynamic=True)
    for rows in (100, 999):
        x, r = normal(rows, 3), normal(3, 4)
        assert np.allclose(f(x, r), x @ r, atol=1e-5)
    assert signatures(f) == ["(x: f32[N, 3], r: f32[3, 4]) -> f32[N, 4]"]


def test_what_there_are_many_of_is_no_part_of_a_row() -> None:
    """Neither the batch, of which another argument has one element each, nor the number of filters beside a large image."""
    f = polyml.einsum(
        'def f(x: f32["B N C"], b: f32["B"]):\n    y[b, n, c] = x[b, n, c] * b[b]\n    return y\n'.replace(
            "[b]", "[q]"
        ).replace("[b, n, c]", "[q, n, c]"),
        dynamic=True,
    )
    for batch in (2, 3, 4):
        x, b = normal(batch, 70, 3), normal(batch)
        assert np.allclose(f(x, b), x * b[:, None, None])
    assert signatures(f) == ["(x: f32[B, N, 3], b: f32[B]) -> f32[B, N, 3]"]
    g = polyml.einsum(
        'def f(x: f32["H W"], k: f32["F R S"]):\n    y[f, h, w] = x[h + r, w + s] * k[f, r, s]\n    return y\n',
        dynamic=True,
    )
    g(normal(100, 90), normal(2, 3, 3))
    assert signatures(g) == ["(x: f32[H, W], k: f32[F, 3, 3]) -> f32[F, H - 2, W - 2]"]


def test_empty_calls_say_nothing() -> None:
    f = polyml.einsum('def f(x: f32["N C"]):\n    y[n, c] = 2 * x[n, c]\n    return y\n', dynamic=True)
    assert f(normal(0, 3)).shape == (0, 3)
    for rows in (100, 0, 1):
        x = normal(rows, 3)
        assert np.array_equal(f(x), 2 * x)
    assert any("f32[N, 3]" in text for text in signatures(f))


def test_what_is_shown_is_what_runs() -> None:
    f = polyml.einsum(NORMALIZED, dynamic=True)
    x, b = normal(100, 3), normal(3)
    f.lower(x, b)
    f.explain(normal(5, 4), normal(4))
    assert not f.kernels
    f(x, b)
    assert "f32[N, 3]" in str(f.kernels[0].signature)
    shapes: Sequence[object] = [
        layout.shape
        for layout in f.key_of(normal(9, 3), b)
        if not isinstance(layout, Layout) and hasattr(layout, "shape")
    ]
    assert [str(extent) for extent in shapes[0]] == ["N", "3"]  # type: ignore[index]  # a shape
