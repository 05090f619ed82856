"""Scores behind a mask: which sums leave them out, which ones need them, and that results are the same with NaN and infinities among the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation

ATTENTION = """
def attention(q: f32["H S D"], k: f32["H T D"], v: f32["H T D"]):
    s[h, i, j] = where({mask}, sum[d](q[h, i, d] * k[h, j, d]) / sqrt(D), -inf)
    m[h, i] = max[j](s[h, i, j])
    e[h, i, j] = exp(s[h, i, j] - m[h, i])
    z[h, i] = e[h, i, j]
    y[h, i, d] = sum[j](e[h, i, j] * v[h, j, d]) / z[h, i]
    return {results}
"""
LATE = (
    ATTENTION.replace("where({mask}, sum[d](", "sum[d](")
    .replace("/ sqrt(D), -inf)", "/ sqrt(D)")
    .replace("s[h, i, j] = ", "u[h, i, j] = ", 1)
)
LATE = LATE.replace("    m[", "    s[h, i, j] = where({mask}, u[h, i, j], -inf)\n    m[", 1)
TURNED = ATTENTION.replace("where({mask}, ", "where(not ({mask}), -inf, ").replace(", -inf)", ")")
SCALED = ATTENTION.replace(" / sqrt(D), -inf)", ", -inf) / sqrt(D)")
AFTER = ATTENTION.replace(" / sqrt(D), -inf)", ", -inf)").replace(
    "exp(s[h, i, j] - m[h, i])", "exp((s[h, i, j] - m[h, i]) / sqrt(D))"
)
WEIGHTS = ATTENTION.replace("sum[j](e[h, i, j] * v[h, j, d]) / z[h, i]", "sum[j](p[h, i, j] * v[h, j, d])")
WEIGHTS = WEIGHTS.replace("    y[", "    p[h, i, j] = e[h, i, j] / z[h, i]\n    y[", 1)
AGAIN = ATTENTION.replace("    e[h, i, j] = exp(s[h, i, j] - m[h, i])\n", "").replace(
    "= e[h, i, j]\n", "= sum[j](exp(s[h, i, j] - m[h, i]))\n"
)
AGAIN = AGAIN.replace("sum[j](e[h, i, j] * v", "sum[j](exp(s[h, i, j] - m[h, i]) * v")
FORMS = {
    "at once": ATTENTION,
    "turned": TURNED,
    "late": LATE,
    "scaled": SCALED,
    "scaled after": AFTER,
    "weights": WEIGHTS,
    "again": AGAIN,
}

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]
MASKS: dict[str, Mask] = {
    "j <= i": lambda i, j: j <= i,
    "j <= i and j > i - 20": lambda i, j: (j <= i) & (j > i - 20),
    "not (j > i + 3)": lambda i, j: j <= i + 3,
    "2*j <= i + 5": lambda i, j: 2 * j <= i + 5,
}


def operands(s: int, t: int, d: int, heads: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(s + t + d)
    return [rng.standard_normal((heads, n, d), dtype=np.float32) for n in (s, t, t)]


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
    """The result and the exponentials in float64, 0 * NaN included."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    i, j = np.indices((q.shape[1], k.shape[1]))
    with np.errstate(invalid="ignore"):
        s = np.where(mask(i, j), np.einsum("hid,hjd->hij", q, k) / np.sqrt(q.shape[2]), -np.inf)
        e = np.exp(s - s.max(axis=2, keepdims=True))
        return e @ v / e.sum(axis=2, keepdims=True), e


def whole_sums(source: str, *shape: int, **options: object) -> bool:
    """Whether sums take the exponentials behind the mask, too."""
    ops = polyml.einsum(source, **options).trace(*operands(*shape)).ops
    sums = [op for op in ops if isinstance(op, Equation) and op.reduce == "sum" and {"i", "j"} & {*op.reduced}]
    assert len(sums) >= 2
    return any(op.domain.is_box() for op in sums)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.few(9)
def test_what_a_mask_takes_out_is_not_computed(form: str, mask: str) -> None:
    assert not whole_sums(FORMS[form].format(mask=mask, results="y"), 70, 70, 8)


@pytest.mark.parametrize(
    ("mask", "results", "shape"),
    [
        ("j <= i", "y, e", (70, 70, 8)),  # whose NaN would become zeros
        ("j < i", "y", (70, 70, 8)),  # the first row has no score, so it is NaN
        ("j <= i", "y", (70, 40, 8)),  # short rows
    ],
)
def test_what_is_needed_stays(mask: str, results: str, shape: tuple[int, ...]) -> None:
    assert whole_sums(ATTENTION.format(mask=mask, results=results), *shape)


def test_sums_over_rows_need_all() -> None:
    columns = ATTENTION.replace("    return", "    c[h, j] = sum[i](e[h, i, j])\n    return")
    assert whole_sums(columns.format(mask="j <= i", results="y, c"), 70, 70, 8)


def test_the_written_order_keeps_all() -> None:
    assert whole_sums(ATTENTION.format(mask="j <= i", results="y"), 70, 70, 8, precise=True)


SHAPES = ((64, 64, 8), (65, 65, 33), (130, 130, 16), (97, 70, 5), (70, 97, 16), (1, 80, 4))


def cases() -> Iterator[object]:
    """Form, mask, shape: in each run every form with every mask, in one shape."""
    for n, (form, mask) in enumerate(product(FORMS, MASKS)):
        for s, shape in enumerate(SHAPES):
            yield pytest.param(form, mask, shape, marks=[] if s == n % len(SHAPES) else [pytest.mark.slow])


@pytest.mark.parametrize(("form", "mask", "shape"), list(cases()))
@pytest.mark.few(1)
def test_results(form: str, mask: str, shape: tuple[int, int, int]) -> None:
    arguments = operands(*shape)
    got = polyml.einsum(FORMS[form].format(mask=mask, results="y"), verify=shape[0] == 65)(*arguments)
    np.testing.assert_allclose(got, expected(*arguments, MASKS[mask])[0], rtol=1e-4, atol=1e-5)


@cache
def compiled(form: str) -> polyml.api.Einsum:
    """One kernel for all values, which do not decide about it."""
    return polyml.einsum(FORMS[form].format(mask="j <= i", results="y"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("array", "at", "value"), [(0, 3, np.nan), (1, 40, np.nan), (1, 40, np.inf), (0, 0, -np.inf)])
@pytest.mark.few(1)
def test_rows_of_nan_and_infinities(form: str, array: int, at: int, value: float) -> None:
    arguments = operands(70, 70, 8)
    arguments[array][0, at, 0] = value
    got = compiled(form)(*arguments)
    whole = expected(*arguments, MASKS["j <= i"])[0]
    np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-5)
    assert np.isnan(whole).any()
    assert not np.isnan(whole).all()


HALVES = [form for form in FORMS if form != "weights"]
"""Weights that are rounded after they are divided are elements by themselves."""


def halves(form: str, mask: str) -> tuple[str, list[np.ndarray]]:
    return FORMS[form].format(mask=mask, results="y").replace("f32[", "f16["), [
        x.astype(np.float16) for x in operands(70, 70, 8)
    ]


@pytest.mark.parametrize("form", HALVES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.few(1)
def test_half_precision_keeps_zeros_and_infinities(form: str, mask: str) -> None:
    text, arguments = halves(form, mask)
    program = polyml.einsum(text)
    ops = [op for op in program.trace(*arguments).ops if isinstance(op, Equation)]
    sums = [op for op in ops if op.reduce is not None and "j" in op.reduced]
    assert sums
    assert not any(op.domain.is_box() for op in sums)
    np.testing.assert_allclose(program(*arguments), expected(*arguments, MASKS[mask])[0], rtol=0.02, atol=0.005)


@cache
def of_text(text: str) -> polyml.Einsum:
    return polyml.einsum(text)


@pytest.mark.parametrize(("array", "at", "value"), [(1, 40, np.nan), (0, 3, np.inf), (0, 5, 6e4), (0, 0, -np.inf)])
def test_rows_of_scores_beyond_half_precision(array: int, at: int, value: float) -> None:
    text, arguments = halves("at once", "j <= i")
    arguments[array][0, at] = value
    arguments[1][0, :, 1:] = 2  # a score of 6e4 times what 8 elements make of it is an infinity
    got = of_text(text)(*arguments)
    with np.errstate(all="ignore"):
        q, k, v = (x.astype(np.float32) for x in arguments)
        i, j = np.indices((70, 70))
        s = np.where(j <= i, np.einsum("hid,hjd->hij", q, k) / np.sqrt(np.float32(8)), -np.inf).astype(np.float16)
        e = np.exp((s - s.max(axis=2, keepdims=True)).astype(np.float32))
        whole = e @ v / e.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(got, whole, rtol=0.02, atol=0.005)
    assert np.isnan(whole).any()


def test_returned_exponentials_are_what_they_were() -> None:
    arguments = operands(70, 70, 8)
    arguments[0][0, 5, 0] = np.nan
    _, e = polyml.einsum(ATTENTION.format(mask="j <= i", results="y, e"))(*arguments)
    np.testing.assert_allclose(e, expected(*arguments, MASKS["j <= i"])[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", ["1e-60", "1e60"])
def test_scales_that_the_type_does_not_have(scale: str) -> None:
    """As f32 they are zero and infinity, and minus infinity times (divided by) these is no number."""
    op = "*" if scale == "1e-60" else "/"
    text = f"""
def f(s: f32["N N"], v: f32["N"]):
    t[i, j] = where(j <= i, s[i, j], -inf) {op} {scale}
    m[i] = max[j](t[i, j])
    y[i] = sum[j](exp(t[i, j] - m[i]) * v[j])
    return y
"""
    y = polyml.einsum(text)(np.ones((70, 70), np.float32), np.ones(70, np.float32))
    assert np.isnan(y[:-1]).all()
    assert y[-1] == 70
