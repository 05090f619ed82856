"""Minima and maxima of minima and maxima: one look at the leaves for NaN, which wins wherever it is."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm
from polyml.testing import verify

AVX512 = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)
AVX2 = pm.Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024)

MEDIAN = """
def median(a: {t}["N"], b: {t}["N"], c: {t}["N"], d: {t}["N"], e: {t}["N"]):
    p[i] = min(a[i], b[i])
    q[i] = max(a[i], b[i])
    r[i] = min(c[i], d[i])
    s[i] = max(c[i], d[i])
    u[i] = max(p[i], r[i])
    v[i] = min(q[i], s[i])
    y[i] = max(min(u[i], v[i]), min(max(u[i], v[i]), e[i]))
    return y
"""
OTHERS = """
def others(x: f64["N"], y: f64["N"], z: f64["N"]):
    p[i] = max(min(x[i], y[i]), min(z[i], 0.5))
    q[i] = min(max(p[i] - y[i], x[i]), max(p[i], z[i]), max(-1, y[i]))
    r[i] = max(p[i], min(q[i], max(x[i], z[i])))
    return p, q, r
"""
CARRIED = """
def carried(x: f64["N M"]):
    y: f64["N M"] = 0
    for j in range(2, M):
        y[i, j] = max(min(x[i, j], x[i, j - 1], x[i, j - 2]), min(y[i, j - 1], max(y[i, j - 2], x[i, j])) * 0.5)
    s[i] = max(min(x[i, 0], x[i, 1]), min(max(x[i, 0], x[i, 1]), y[i, M - 1]))
    return y, s
"""
BRANCHES = """
def branches(x: f32["M"], a: f32, b: f32, c: f32["M"], d: f32["M"]):
    y: f32["M"] = 0
    for m in range(1, M):
        y[m] = where(y[m - 1] > 0, max(min(min(min(a, b), x[m]), c[m]), d[m]), 0.25)
        y[m] += min(max(min(a, b), c[m], x[m - 1]), max(d[m], y[m - 1]))
    return y
"""
NO_NUMBER = """
def no_number(x: {t}["N"], y: {t}["N"], z: {t}["N"], w: {t}["N"]):
    p[i] = max(min(x[i], y[i]), min(z[i], nan), max(w[i], x[i]))
    q[i] = max(min(x[i], y[i]), min(z[i], inf), max(w[i], x[i]))
    return p, q
"""


def numbers(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    found = rng.standard_normal(shape)
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        found[rng.random(shape) < 0.06] = value
    return found


@pytest.mark.parametrize("t", ["f64", "f32", "f16"])
def test_median_of_five(t: str) -> None:
    program = pm.einsum(MEDIAN.format(t=t))
    for n in (1, 37, 200):
        x = numbers(5, n).astype(f"f{int(t[1:]) // 8}")
        np.testing.assert_array_equal(program(*x), np.median(x, axis=0))


@pytest.mark.parametrize("precise", [False, True])
def test_trees_whose_parts_are_seen_too(precise: bool) -> None:
    program, (x, y, z) = pm.einsum(OTHERS, precise=precise), numbers(3, 203)
    with np.errstate(invalid="ignore"):
        p = np.maximum(np.minimum(x, y), np.minimum(z, 0.5))
        q = np.minimum(np.minimum(np.maximum(p - y, x), np.maximum(p, z)), np.maximum(-1, y))
    r = np.maximum(p, np.minimum(q, np.maximum(x, z)))
    for found, want in zip(program(x, y, z), (p, q, r), strict=True):
        np.testing.assert_array_equal(found, want)
    for found, want in zip(program(x[::-2], y[::-2], z[::-2]), (p, q, r), strict=True):
        np.testing.assert_array_equal(found, want[::-2])


def test_what_recurrences_carry() -> None:
    x = numbers(13, 9)
    y = np.zeros_like(x)
    for j in range(2, 9):
        before = np.minimum(y[:, j - 1], np.maximum(y[:, j - 2], x[:, j]))
        y[:, j] = np.maximum(x[:, j - 2 : j + 1].min(axis=1), before * 0.5)
    s = np.maximum(x[:, :2].min(axis=1), np.minimum(x[:, :2].max(axis=1), y[:, -1]))
    for found, want in zip(pm.einsum(CARRIED)(x), (y, s), strict=True):
        np.testing.assert_array_equal(found, want)


def test_each_branch_has_its_own_steps() -> None:
    """What is computed ahead of the loop, min(a, b), is a part of a tree in a branch and of one behind it."""
    x, c, d = np.random.default_rng(1).standard_normal((3, 41), np.float32)
    assert verify(pm.einsum(BRANCHES), x, np.float32(0.75), np.float32(0.25), c, d)


@pytest.mark.parametrize("t", ["f64", "f32", "f16"])
def test_constants_that_are_no_numbers(t: str) -> None:
    x, y, z, w = numbers(4, 77).astype(f"f{int(t[1:]) // 8}")
    p, q = pm.einsum(NO_NUMBER.format(t=t))(x, y, z, w)
    assert np.isnan(p).all()
    np.testing.assert_array_equal(q, np.maximum(np.maximum(np.minimum(x, y), z), np.maximum(w, x)))


@pytest.mark.parametrize(("target", "steps"), [(AVX2, 10), (AVX512, 10)], ids=lambda v: getattr(v, "name", ""))
def test_one_comparison_for_two_leaves(target: pm.Target, steps: int) -> None:
    x = np.zeros((5, 1000))
    code = pm.einsum(MEDIAN.format(t="f64"), target=target, threads=1).lower(*x).text("asm")
    bodies = [b for b in re.split(r"^\.L\w+:\n", code, flags=re.M) if "vmaxpd" in b and "vcmpunordpd" in b]
    body = min(bodies, key=len)
    vectors = max(1, len(re.findall(r"vmov[au]pd\s+%[yz]mm\d+, .*\(", body)))
    assert len(re.findall(r"v(?:min|max)pd", body)) == steps * vectors
    assert body.count("vcmpunordpd") == 3 * vectors
    assert "vblendvpd" not in body
