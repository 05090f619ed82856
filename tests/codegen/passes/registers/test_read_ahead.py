"""Rows that are overwritten from their beginning on are read where they are, without a copy."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.testing import verify

AHEAD = {
    "the next one": "if i < N - 1:\n        v[b, i] = 0.5 * v[b, i + 1] + 0.25 * v[b, i]",
    "several": "if i < N - 3:\n        v[b, i] = v[b, i + 1] - v[b, i + 3] * v[b, i] + x[b, i]",
    "a vector ahead": "if i < N - 8:\n        v[b, i] = v[b, i + 8] * v[b, i]",
    "few ahead of a vector": "if i < N - 9:\n        v[b, i] = v[b, i + 9] * x[b, i + 1] + v[b, i + 2]",
    "not written": "if i < N - 1:\n        v[b, i] = v[b, i + 1]",
    "chosen": "if i < N - 1:\n        v[b, i] = where(x[b, i] > 0, v[b, i + 1], v[b, i])",
    "beginning later": "if 4 <= i < N - 3:\n        v[b, i - 2] = v[b, i + 3] - v[b, i - 2]",
    "steps that shrink": "for t in range(N - 1):\n        if i < N - 1 - t:\n            v[b, i] = 0.5 * v[b, i + 1] + 0.25 * v[b, i]",
}
BEHIND = {
    "the one before": "if 1 <= i < N:\n        v[b, i] = 0.5 * v[b, i - 1] + 0.25 * v[b, i]",
    "both sides": "if 1 <= i < N - 1:\n        v[b, i] = v[b, i - 1] + v[b, i + 1]",
    "from the end": "v[b, i] = v[b, N - 1 - i] + x[b, i]",
    "turned pairs": "if 2 * i < N:\n        v[b, i] = v[b, 2 * i] + x[b, i]",
    "another row": "if i < N - 1:\n        v[b, i] = v[0, i + 1] + x[b, i]",
}


BODIES = AHEAD | BEHIND


def program(body: str, dtype: str = "f64", **options: object) -> polyml.api.Einsum:
    text = f'def f(v: {dtype}["B N"], x: {dtype}["B N"]):\n    {body}\n    return v\n'
    return polyml.einsum(text, **options)


def arguments(rows: int, length: int, dtype: str = "f8") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(length)
    return rng.standard_normal((rows, length)).astype(dtype), rng.standard_normal((rows, length)).astype(dtype)


@pytest.mark.parametrize("body", AHEAD.values(), ids=AHEAD)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(6)
def test_there_is_no_copy(body: str, dynamic: bool) -> None:
    assert "_old" not in program(body, dynamic=dynamic, threads=1).lower(*arguments(9, 70)).text("loops")


@pytest.mark.parametrize("body", BEHIND.values(), ids=BEHIND)
def test_other_rows_are_copied(body: str) -> None:
    assert "_old" in program(body, threads=1).lower(*arguments(9, 70)).text("loops")


@pytest.mark.parametrize("dtype", ["f64", "narrow"])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.few(3)
def test_the_same_numbers(name: str, dtype: str) -> None:
    """By turns in f32 and f16, too: the order of reads does not depend on types."""
    body = BODIES[name]
    dtype = ("f32", "f16")[[*BODIES].index(name) % 2] if dtype == "narrow" else dtype
    exact, of_any_size = program(body, dtype, dynamic=False, verify=True), program(body, dtype, dynamic=True)
    for k, shape in enumerate(((3, 70), (1, 37), (5, 12), (2, 16))):
        v, x = arguments(*shape, {"f64": "f8", "f32": "f4", "f16": "f2"}[dtype])
        assert verify(exact, v.copy(), x, computed_by=of_any_size), shape
        if k == [*BODIES].index(name) % 4:  # of known sizes at one shape each
            one, other = exact(v.copy(), x), of_any_size(v.copy(), x)
            np.testing.assert_allclose(one, other, rtol=1e-2 if dtype == "f16" else 1e-5)


def test_views_with_strides_and_threads() -> None:
    body = AHEAD["several"]
    v, x = arguments(40, 301)
    want = v.copy()
    want[:, :-3] = v[:, 1:-2] - v[:, 3:] * v[:, :-3] + x[:, :-3]
    wide = np.zeros((40, 602))
    wide[:, ::2] = v
    np.testing.assert_allclose(program(body)(wide[:, ::2], x), want)
    np.testing.assert_allclose(program(body, threads=2)(v, x), want)
