"""Stencils over time: PolyBench's stencils."""

from __future__ import annotations

import numpy as np

from benchmarks.polybench.kernel import Array, Kernel

__all__ = ["STENCILS"]


def adi(steps: int, u: Array) -> tuple[Array, ...]:
    n = len(u)
    mul1, mul2 = 2.0 * n * n / steps, 1.0 * n * n / steps
    a, b, d, e = -mul1 / 2, 1 + mul1, -mul2 / 2, 1 + mul2

    def sweep(x: Array, off: float, main: float, right: float) -> Array:
        """The tridiagonal systems (off, main, off) along axis 0, ones at both ends; `right` weighs the other direction's neighbours."""
        sides = -right * x[:-2, 1:-1] + (1 + 2 * right) * x[1:-1, 1:-1] - right * x[2:, 1:-1]
        p, q = np.zeros(n), np.ones((n, n - 2))
        for j in range(1, n - 1):
            p[j] = -off / (off * p[j - 1] + main)
            q[j] = (sides[:, j - 1] - off * q[j - 1]) / (off * p[j - 1] + main)
        y = np.ones((n, n - 2))
        for j in range(n - 2, 0, -1):
            y[j] = p[j] * y[j + 1] + q[j]
        return y

    v = np.zeros((n, n))
    for _ in range(steps):
        v[:, 1:-1] = sweep(u.T, a, b, d)
        u[1:-1, :] = sweep(v, d, e, a).T
    return (u,)


def fdtd_2d(ex: Array, ey: Array, hz: Array, source: Array) -> tuple[Array, ...]:
    for value in source:
        ey[0] = value
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


def _heat(a: Array) -> Array:
    inner = a[1:-1, 1:-1, 1:-1]
    total = inner.copy()
    for axis in range(3):
        cut = [slice(1, -1)] * 3
        before, after = cut.copy(), cut.copy()
        before[axis], after[axis] = slice(None, -2), slice(2, None)
        total += 0.125 * (a[tuple(after)] - 2 * inner + a[tuple(before)])
    return total


def heat_3d(steps: int, a: Array, b: Array) -> tuple[Array, ...]:
    for _ in range(steps):
        b[1:-1, 1:-1, 1:-1] = _heat(a)
        a[1:-1, 1:-1, 1:-1] = _heat(b)
    return a, b


def jacobi_1d(steps: int, a: Array, b: Array) -> tuple[Array, ...]:
    for _ in range(steps):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])
    return a, b


def _cross(a: Array) -> Array:
    inner: Array = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])
    return inner


def jacobi_2d(steps: int, a: Array, b: Array) -> tuple[Array, ...]:
    for _ in range(steps):
        b[1:-1, 1:-1] = _cross(a)
        a[1:-1, 1:-1] = _cross(b)
    return a, b


def seidel_2d(steps: int, a: Array) -> tuple[Array, ...]:
    n = len(a)
    for _ in range(steps):
        for i in range(1, n - 1):
            known = a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 1:-1] + a[i, 2:]
            known += a[i + 1, :-2] + a[i + 1, 1:-1] + a[i + 1, 2:]
            for j in range(1, n - 1):
                a[i, j] = (known[j - 1] + a[i, j - 1]) / 9
    return (a,)


STENCILS = (
    Kernel(
        name="adi",
        text="""
def adi(T: int, u: f64["N N"]):
    mul1 = 2.0 * N * N / T
    mul2 = 1.0 * N * N / T
    a = -mul1 / 2
    b = 1 + mul1
    c = a
    d = -mul2 / 2
    e = 1 + mul2
    f = d
    v: f64["N N"] = 0
    p: f64["N N"] = 0
    q: f64["N N"] = 0
    for t in range(T):
        for i in range(1, N - 1):
            v[0, i] = 1.0
            p[i, 0] = 0.0
            q[i, 0] = v[0, i]
            for j in range(1, N - 1):
                p[i, j] = -c / (a * p[i, j - 1] + b)
                q[i, j] = (-d * u[j, i - 1] + (1 + 2 * d) * u[j, i] - f * u[j, i + 1] - a * q[i, j - 1]) / (a * p[i, j - 1] + b)
            v[N - 1, i] = 1.0
            for j in range(N - 2, 0, -1):
                v[j, i] = p[i, j] * v[j + 1, i] + q[i, j]
        for i in range(1, N - 1):
            u[i, 0] = 1.0
            p[i, 0] = 0.0
            q[i, 0] = u[i, 0]
            for j in range(1, N - 1):
                p[i, j] = -f / (d * p[i, j - 1] + e)
                q[i, j] = (-a * v[i - 1, j] + (1 + 2 * a) * v[i, j] - c * v[i + 1, j] - d * q[i, j - 1]) / (d * p[i, j - 1] + e)
            u[i, N - 1] = 1.0
            for j in range(N - 2, 0, -1):
                u[i, j] = p[i, j] * u[i, j + 1] + q[i, j]
    return u
""",
        data=lambda n, rng: (n["TSTEPS"], rng.random((n["N"], n["N"]))),
        reference=adi,
    ),
    Kernel(
        name="fdtd-2d",
        text="""
def fdtd_2d(ex: f64["NX NY"], ey: f64["NX NY"], hz: f64["NX NY"], source: f64["T"]):
    for t in range(T):
        ey[0, j] = source[t]
        if i >= 1:
            ey[i, j] -= 0.5 * (hz[i, j] - hz[i - 1, j])
        if j >= 1:
            ex[i, j] -= 0.5 * (hz[i, j] - hz[i, j - 1])
        if i < NX - 1 and j < NY - 1:
            hz[i, j] -= 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])
    return ex, ey, hz
""",
        data=lambda n, rng: (*rng.random((3, n["NX"], n["NY"])), np.arange(n["TMAX"], dtype=np.float64)),
        reference=fdtd_2d,
    ),
    Kernel(
        name="heat-3d",
        text="""
def heat_3d(T: int, A: f64["N N N"], B: f64["N N N"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < N - 1 and 1 <= k < N - 1:
            B[i, j, k] = A[i, j, k] + (0.125 * (A[i + 1, j, k] - 2.0 * A[i, j, k] + A[i - 1, j, k])
                                     + 0.125 * (A[i, j + 1, k] - 2.0 * A[i, j, k] + A[i, j - 1, k])
                                     + 0.125 * (A[i, j, k + 1] - 2.0 * A[i, j, k] + A[i, j, k - 1]))
            A[i, j, k] = B[i, j, k] + (0.125 * (B[i + 1, j, k] - 2.0 * B[i, j, k] + B[i - 1, j, k])
                                     + 0.125 * (B[i, j + 1, k] - 2.0 * B[i, j, k] + B[i, j - 1, k])
                                     + 0.125 * (B[i, j, k + 1] - 2.0 * B[i, j, k] + B[i, j, k - 1]))
    return A, B
""",
        data=lambda n, rng: (n["TSTEPS"], *rng.random((2, n["N"], n["N"], n["N"]))),
        reference=heat_3d,
    ),
    Kernel(
        name="jacobi-1d",
        text="""
def jacobi_1d(T: int, A: f64["N"], B: f64["N"]):
    for t in range(T):
        if 1 <= i < N - 1:
            B[i] = 0.33333 * (A[i - 1] + A[i] + A[i + 1])
            A[i] = 0.33333 * (B[i - 1] + B[i] + B[i + 1])
    return A, B
""",
        data=lambda n, rng: (n["TSTEPS"], *rng.random((2, n["N"]))),
        reference=jacobi_1d,
    ),
    Kernel(
        name="jacobi-2d",
        text="""
def jacobi_2d(T: int, A: f64["N N"], B: f64["N N"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < N - 1:
            B[i, j] = 0.2 * (A[i, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j])
            A[i, j] = 0.2 * (B[i, j] + B[i, j - 1] + B[i, j + 1] + B[i + 1, j] + B[i - 1, j])
    return A, B
""",
        data=lambda n, rng: (n["TSTEPS"], *rng.random((2, n["N"], n["N"]))),
        reference=jacobi_2d,
    ),
    Kernel(
        name="seidel-2d",
        text="""
def seidel_2d(T: int, A: f64["N N"]):
    for t in range(T):
        for i in range(1, N - 1):
            for j in range(1, N - 1):
                A[i, j] = (A[i - 1, j - 1] + A[i - 1, j] + A[i - 1, j + 1] + A[i, j - 1] + A[i, j] + A[i, j + 1]
                           + A[i + 1, j - 1] + A[i + 1, j] + A[i + 1, j + 1]) / 9.0
    return A
""",
        data=lambda n, rng: (n["TSTEPS"], rng.random((n["N"], n["N"]))),
        reference=seidel_2d,
    ),
)
