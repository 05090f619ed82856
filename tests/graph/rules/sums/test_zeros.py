"""Elements that a mask makes zero in a tensor: which sums leave them out, which ones need them, and that results are the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation

SCORES = """
def scores(q: f32["H S D"], k: f32["H T D"], v: f32["H T E"], g: f32["H"]):
    s[h, i, j] = where({mask}, q[h, i, d] * k[h, j, d], 0)
    y[h, i, e] = s[h, i, j] * v[h, j, e]
    return {results}
"""
DECAYED = SCORES.replace("q[h, i, d] * k[h, j, d], 0", "(q[h, i, d] * k[h, j, d]) * g[h] ** (i - j), 0")
TURNED = SCORES.replace("where({mask}, q[h, i, d] * k[h, j, d], 0)", "where(not ({mask}), 0, q[h, i, d] * k[h, j, d])")
TWICE = SCORES.replace("    return", "    z[h, i] = s[h, i, j] * v[h, j, 0]\n    y[h, i, e] /= z[h, i] + 1\n    return")
COLUMNS = SCORES.replace("    y[h, i, e] = s[h, i, j] * v[h, j, e]", "    y[h, j, e] = s[h, i, j] * v[h, i, e]")
FORMS = {"at once": SCORES, "decayed": DECAYED, "turned": TURNED, "twice": TWICE, "columns": COLUMNS}
MASKS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "j <= i": lambda i, j: j <= i,
    "j <= i and j > i - 20": lambda i, j: (j <= i) & (j > i - 20),
    "j > 2*i - 70": lambda i, j: j > 2 * i - 70,
}
SHAPES = ((64, 64, 8), (97, 65, 5), (65, 130, 16), (70, 70, 1))


def operands(s: int, t: int, d: int) -> list[np.ndarray]:
    rng = np.random.default_rng(s + t + d)
    shapes = [(2, s, d), (2, t, d), (2, t, 5), (2,)]
    return [rng.random(shape, dtype=np.float32) * 0.5 + 0.5 for shape in shapes]


def expected(form: str, mask: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> np.ndarray:
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    i, j = np.indices((q.shape[1], k.shape[1]))
    s = np.where(MASKS[mask](i, j), np.einsum("hid,hjd->hij", q, k), 0)
    if form == "columns":
        return np.einsum("hij,hie->hje", s, v)
    if form == "decayed":
        s = s * g[:, None, None] ** np.maximum(i - j, -500)
        s = np.where(MASKS[mask](i, j), s, 0)
    y = s @ v
    return y / (y[:, :, :1] + 1) if form == "twice" else y


def whole(source: str, *shape: int, **options: object) -> bool:
    """Whether a sum over the masked rows, or what makes them, is over all of them."""
    ops = polyml.einsum(source, **options).trace(*operands(*shape)).ops
    found = [op for op in ops if isinstance(op, Equation) and {"i", "j"} <= {*op.indices}]
    assert len(found) >= 2
    return any(op.domain.is_box() for op in found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.some(8)
def test_what_a_mask_takes_out_is_not_computed(form: str, mask: str) -> None:
    assert not whole(FORMS[form].format(mask=mask, results="y"), 70, 70, 8)


@pytest.mark.parametrize(
    ("source", "results", "shape"),
    [
        (SCORES, "y, s", (70, 70, 8)),  # the zeros are results
        (SCORES, "y", (70, 40, 8)),  # short rows
        (SCORES.replace("s[h, i, j] * v[h, j, e]", "sum[j](exp(s[h, i, j]) * v[h, j, e])"), "y", (70, 70, 8)),
        (SCORES.replace("= s[h, i, j] * v[h, j, e]", "= max[j](s[h, i, j] * v[h, j, e])"), "y", (70, 70, 8)),
        (SCORES.replace("s[h, i, j] * v[h, j, e]", "sum[j](s[h, i, j] + v[h, j, e])"), "y", (70, 70, 8)),
    ],
)
def test_what_is_needed_stays(source: str, results: str, shape: tuple[int, int, int]) -> None:
    assert whole(source.format(mask="j <= i", results=results), *shape)


def test_zeros_around_something_stay() -> None:
    assert whole(SCORES.format(mask="2 <= i < 60 and j < 68", results="y"), 70, 70, 8)


def test_the_written_order_keeps_all() -> None:
    assert whole(SCORES.format(mask="j <= i", results="y"), 70, 70, 8, precise=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.few(1)
def test_results(form: str, mask: str) -> None:
    n = [*product(FORMS, MASKS)].index((form, mask))
    s, t, d = SHAPES[n % len(SHAPES)]
    arguments = operands(s, s if form == "columns" else t, d)
    got = polyml.einsum(FORMS[form].format(mask=mask, results="y"), verify=n == 0)(*arguments)
    whole = expected(form, mask, *arguments)
    np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max())


def test_half_precision() -> None:
    text = DECAYED.format(mask="j <= i", results="y").replace("f32", "f16")
    arguments = [x.astype(np.float16) for x in operands(70, 70, 4)]
    ops = [op for op in polyml.einsum(text).trace(*arguments).ops if isinstance(op, Equation)]
    assert not any(op.domain.is_box() for op in ops if {"i", "j"} <= {*op.indices})
    got = polyml.einsum(text)(*arguments)
    np.testing.assert_allclose(got, expected("decayed", "j <= i", *arguments), rtol=0.02)


def test_rows_and_columns_that_a_mask_leaves_nothing_of_are_zero() -> None:
    q, k, v, g = operands(70, 80, 4)
    y = polyml.einsum(SCORES.format(mask="j < i - 9", results="y"))(q, k, v, g)
    assert not y[:, :10].any()
    assert y[:, 10:].all()
