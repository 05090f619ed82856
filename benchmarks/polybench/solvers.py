"""Factorizations and triangular systems: PolyBench's linear-algebra/solvers."""

from __future__ import annotations

import numpy as np

from benchmarks.polybench.kernel import Array, Kernel

__all__ = ["SOLVERS"]


def dominant(n: int, rng: np.random.Generator) -> Array:
    """A matrix whose factorization needs no pivoting."""
    return rng.random((n, n)) + n * np.eye(n)


def positive_definite(n: int, rng: np.random.Generator) -> Array:
    half = rng.random((n, n))
    return half @ half.T / n + np.eye(n)


def cholesky(a: Array) -> tuple[Array, ...]:
    return (np.tril(np.linalg.cholesky(a)) + np.triu(a, 1),)


def durbin(r: Array) -> tuple[Array, ...]:
    """The Yule-Walker system that Durbin's recursion solves: Toeplitz, ones on the diagonal."""
    n = len(r)
    column = np.concatenate([[1.0], r[: n - 1]])
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return (np.linalg.solve(column[distance], -r),)


def gramschmidt(a: Array) -> tuple[Array, ...]:
    """Of a wide matrix, as the small data sets have it, only what the first columns of Q and rows of R are is determined."""
    q, r = np.linalg.qr(a)
    signs = np.sign(np.diag(r))
    return q * signs, r * signs[:, None]


def lu(a: Array) -> tuple[Array, ...]:
    for k in range(len(a) - 1):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return (a,)


def ludcmp(a: Array, b: Array) -> tuple[Array, ...]:
    return (np.linalg.solve(a, b),)


def trisolv(lower: Array, b: Array) -> tuple[Array, ...]:
    return (np.linalg.solve(np.tril(lower), b),)


LU = """
    for i in range(N):
        for j in range(i):
            if k < j:
                A[i, j] -= A[i, k] * A[k, j]
            A[i, j] /= A[j, j]
        if j >= i and k < i:
            A[i, j] -= A[i, k] * A[k, j]
"""

SOLVERS = (
    Kernel(
        name="cholesky",
        text="""
def cholesky(A: f64["N N"]):
    for i in range(N):
        for j in range(i):
            if k < j:
                A[i, j] -= A[i, k] * A[j, k]
            A[i, j] /= A[j, j]
        if k < i:
            A[i, i] -= A[i, k] * A[i, k]
        A[i, i] = sqrt(A[i, i])
    return A
""",
        data=lambda n, rng: (positive_definite(n["N"], rng),),
        reference=cholesky,
    ),
    Kernel(
        name="durbin",
        text="""
def durbin(r: f64["N"]):
    y: f64["N"] = 0
    y[0] = -r[0]
    alpha = -r[0]
    beta = 1.0
    for k in range(1, N):
        beta = (1 - alpha * alpha) * beta
        alpha = -(r[k] + sum[i, i < k](r[k - i - 1] * y[i])) / beta
        if i < k:
            y[i] += alpha * y[k - i - 1]
        y[k] = alpha
    return y
""",
        data=lambda n, rng: (0.5 * rng.random(n["N"]) / (2 + np.arange(n["N"])) ** 2,),
        reference=durbin,
    ),
    Kernel(
        name="gramschmidt",
        text="""
def gramschmidt(A: f64["M N"]):
    Q: f64["M N"] = 0
    R: f64["N N"] = 0
    for k in range(N):
        R[k, k] = sqrt(sum[i](A[i, k] * A[i, k]))
        Q[i, k] = A[i, k] / R[k, k]
        if j > k:
            R[k, j] = Q[i, k] * A[i, j]
            A[i, j] -= Q[i, k] * R[k, j]
    return Q, R
""",
        data=lambda n, rng: (rng.random((n["M"], n["N"])) + np.eye(n["M"], n["N"]) * n["M"] ** 0.5,),
        reference=gramschmidt,
    ),
    Kernel(
        name="lu",
        text=f"""
def lu(A: f64["N N"]):{LU}    return A
""",
        data=lambda n, rng: (dominant(n["N"], rng),),
        reference=lu,
    ),
    Kernel(
        name="ludcmp",
        text=f"""
def ludcmp(A: f64["N N"], b: f64["N"]):
    y: f64["N"] = 0
    x: f64["N"] = 0{LU}    for i in range(N):
        y[i] = b[i] - sum[j, j < i](A[i, j] * y[j])
    for i in range(N - 1, -1, -1):
        x[i] = (y[i] - sum[j, j > i](A[i, j] * x[j])) / A[i, i]
    return x
""",
        data=lambda n, rng: (dominant(n["N"], rng), rng.random(n["N"])),
        reference=ludcmp,
    ),
    Kernel(
        name="trisolv",
        text="""
def trisolv(L: f64["N N"], b: f64["N"]):
    x: f64["N"] = 0
    for i in range(N):
        x[i] = (b[i] - sum[j, j < i](L[i, j] * x[j])) / L[i, i]
    return x
""",
        data=lambda n, rng: (dominant(n["N"], rng), rng.random(n["N"])),
        reference=trisolv,
    ),
)
