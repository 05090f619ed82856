"""Intermediates of any size that go past the caches where they are large, and columns of rows of unknown length."""

from __future__ import annotations

import numpy as np

import polyml
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=2 << 10, l2_bytes=8 << 10)
"""This machine, with caches that small tests outgrow."""

ROWS_THEN_COLUMNS = """
def smooth(x: f64["N M"], a: f64):
    y: f64["N M"]
    r: f64["N M"]
    z: f64["N M"]
    y[i, M - 1] = x[i, M - 1]
    for j in range(M - 2, -1, -1):
        y[i, j] = a * x[i, j] + (1 - a) * y[i, j + 1]
    r[i, j] = y[i, j] + x[i, j]
    z[0, j] = r[0, j]
    for i in range(1, N):
        z[i, j] = a * r[i, j] + (1 - a) * z[i - 1, j]
    return z
"""


def smoothed(x: np.ndarray, a: float) -> np.ndarray:
    y = x.copy()
    for j in range(x.shape[1] - 2, -1, -1):
        y[:, j] = a * x[:, j] + (1 - a) * y[:, j + 1]
    z = y + x
    for i in range(1, x.shape[0]):
        z[i] = a * z[i] + (1 - a) * z[i - 1]
    return z


def test_intermediates_go_past_the_caches_where_the_first_call_has_large_ones() -> None:
    """Rows that are whole lines do; all others, and small calls, have the plain version."""
    f = polyml.einsum(ROWS_THEN_COLUMNS, dynamic=True, target=SMALL_CACHES, threads=1, verify=True)
    rng = np.random.default_rng(0)
    sizes = [(100, 104), (100, 103), (130, 96), (9, 8), (1, 1), (2, 1), (1, 2), (17, 1000), (1000, 9), (333, 128)]
    for n, m in sizes:
        x = rng.random((n, m))
        np.testing.assert_allclose(f(x, 0.3), smoothed(x, 0.3), rtol=1e-13, err_msg=f"{n} x {m}")
    assert len(f.kernels) == 1


def test_what_goes_past_the_caches() -> None:
    f = polyml.einsum(ROWS_THEN_COLUMNS, dynamic=True, target=SMALL_CACHES, threads=1)
    large, small = (f.lower(np.ones((n, 96)), 0.3).text("loops") for n in (100, 10))
    stores = [line for line in large.splitlines() if "streaming" in line]
    assert any(line.strip().startswith("r[") for line in stores)
    assert not any(line.strip().startswith("r[") for line in small.splitlines() if "streaming" in line)


BOTH_WAYS_DOWN = ROWS_THEN_COLUMNS.replace(
    "    return z\n",
    """    w: f64["N M"]
    w[N - 1, j] = r[N - 1, j]
    for i in range(N - 2, -1, -1):
        w[i, j] = a * r[i, j] + (1 - a) * w[i + 1, j]
    v[i, j] = z[i, j] + w[i, j]
    return v
""",
)


def test_the_line_where_a_vector_ends_is_asked_for_where_rows_are_no_whole_lines() -> None:
    """Where two loops walk down columns; one alone would go row by row."""
    machine = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20)
    f = polyml.einsum(BOTH_WAYS_DOWN, dynamic=True, target=machine, threads=1)
    asked = [line for line in f.lower(np.ones((100, 96)), 0.3).text("loops").splitlines() if "prefetch" in line]
    assert any("min(7, 7*M - 56*((M)//8))" in line for line in asked)
    known = polyml.einsum(BOTH_WAYS_DOWN, target=machine, threads=1).lower(np.ones((2000, 1000)), 0.3).text("loops")
    assert not any("min(" in line or "j + 7" in line for line in known.splitlines() if "prefetch" in line)
