"""Matrix and vector products: PolyBench's linear-algebra/blas and linear-algebra/kernels."""

from __future__ import annotations

import numpy as np

from benchmarks.polybench.kernel import Array, Kernel

__all__ = ["LINEAR_ALGEBRA"]


def gemver(alpha: float, beta: float, a: Array, *vectors: Array) -> tuple[Array, ...]:
    u1, v1, u2, v2, w, x, y, z = vectors
    a = a + np.outer(u1, v1) + np.outer(u2, v2)
    x = x + beta * (a.T @ y) + z
    return a, x, w + alpha * (a @ x)


def symm(alpha: float, beta: float, c: Array, a: Array, b: Array) -> tuple[Array, ...]:
    symmetric = np.tril(a) + np.tril(a, -1).T
    return (beta * c + alpha * (symmetric @ b),)


def syr2k(alpha: float, beta: float, c: Array, a: Array, b: Array) -> tuple[Array, ...]:
    return (np.tril(beta * c + alpha * (a @ b.T + b @ a.T)) + np.triu(c, 1),)


def syrk(alpha: float, beta: float, c: Array, a: Array) -> tuple[Array, ...]:
    return (np.tril(beta * c + alpha * (a @ a.T)) + np.triu(c, 1),)


def trmm(alpha: float, a: Array, b: Array) -> tuple[Array, ...]:
    return (alpha * (b + np.tril(a, -1).T @ b),)


LINEAR_ALGEBRA = (
    Kernel(
        name="2mm",
        text="""
def two_mm(alpha: f64, beta: f64, A: f64["NI NK"], B: f64["NK NJ"], C: f64["NJ NL"], D: f64["NI NL"]):
    tmp[i, j] = alpha * A[i, k] * B[k, j]
    D[i, l] = beta * D[i, l] + tmp[i, j] * C[j, l]
    return D
""",
        data=lambda n, rng: (
            1.5,
            1.2,
            rng.random((n["NI"], n["NK"])),
            rng.random((n["NK"], n["NJ"])),
            rng.random((n["NJ"], n["NL"])),
            rng.random((n["NI"], n["NL"])),
        ),
        reference=lambda alpha, beta, a, b, c, d: (alpha * (a @ b) @ c + beta * d,),
    ),
    Kernel(
        name="3mm",
        text="""
def three_mm(A: f64["NI NK"], B: f64["NK NJ"], C: f64["NJ NM"], D: f64["NM NL"]):
    E[i, j] = A[i, k] * B[k, j]
    F[j, l] = C[j, m] * D[m, l]
    G[i, l] = E[i, j] * F[j, l]
    return G
""",
        data=lambda n, rng: (
            rng.random((n["NI"], n["NK"])),
            rng.random((n["NK"], n["NJ"])),
            rng.random((n["NJ"], n["NM"])),
            rng.random((n["NM"], n["NL"])),
        ),
        reference=lambda a, b, c, d: ((a @ b) @ (c @ d),),
    ),
    Kernel(
        name="atax",
        text="""
def atax(A: f64["M N"], x: f64["N"]):
    tmp[i] = A[i, j] * x[j]
    y[j] = A[i, j] * tmp[i]
    return y
""",
        data=lambda n, rng: (rng.random((n["M"], n["N"])), rng.random(n["N"])),
        reference=lambda a, x: (a.T @ (a @ x),),
    ),
    Kernel(
        name="bicg",
        text="""
def bicg(A: f64["N M"], p: f64["M"], r: f64["N"]):
    s[j] = r[i] * A[i, j]
    q[i] = A[i, j] * p[j]
    return s, q
""",
        data=lambda n, rng: (rng.random((n["N"], n["M"])), rng.random(n["M"]), rng.random(n["N"])),
        reference=lambda a, p, r: (r @ a, a @ p),
    ),
    Kernel(
        name="doitgen",
        text="""
def doitgen(A: f64["NR NQ NP"], C4: f64["NP NP"]):
    A[r, q, p] = A[r, q, s] * C4[s, p]
    return A
""",
        data=lambda n, rng: (rng.random((n["NR"], n["NQ"], n["NP"])), rng.random((n["NP"], n["NP"]))),
        reference=lambda a, c4: (a @ c4,),
    ),
    Kernel(
        name="mvt",
        text="""
def mvt(x1: f64["N"], x2: f64["N"], y1: f64["N"], y2: f64["N"], A: f64["N N"]):
    x1[i] += A[i, j] * y1[j]
    x2[i] += A[j, i] * y2[j]
    return x1, x2
""",
        data=lambda n, rng: (*rng.random((4, n["N"])), rng.random((n["N"], n["N"]))),
        reference=lambda x1, x2, y1, y2, a: (x1 + a @ y1, x2 + a.T @ y2),
    ),
    Kernel(
        name="gemm",
        text="""
def gemm(alpha: f64, beta: f64, C: f64["NI NJ"], A: f64["NI NK"], B: f64["NK NJ"]):
    C[i, j] = beta * C[i, j] + alpha * A[i, k] * B[k, j]
    return C
""",
        data=lambda n, rng: (
            1.5,
            1.2,
            rng.random((n["NI"], n["NJ"])),
            rng.random((n["NI"], n["NK"])),
            rng.random((n["NK"], n["NJ"])),
        ),
        reference=lambda alpha, beta, c, a, b: (beta * c + alpha * (a @ b),),
    ),
    Kernel(
        name="gemver",
        text="""
def gemver(alpha: f64, beta: f64, A: f64["N N"], u1: f64["N"], v1: f64["N"], u2: f64["N"], v2: f64["N"],
           w: f64["N"], x: f64["N"], y: f64["N"], z: f64["N"]):
    A[i, j] += u1[i] * v1[j] + u2[i] * v2[j]
    x[i] += beta * A[j, i] * y[j]
    x[i] += z[i]
    w[i] += alpha * A[i, j] * x[j]
    return A, x, w
""",
        data=lambda n, rng: (1.5, 1.2, rng.random((n["N"], n["N"])), *rng.random((8, n["N"]))),
        reference=gemver,
    ),
    Kernel(
        name="gesummv",
        text="""
def gesummv(alpha: f64, beta: f64, A: f64["N N"], B: f64["N N"], x: f64["N"]):
    y[i] = alpha * A[i, j] * x[j] + beta * B[i, j] * x[j]
    return y
""",
        data=lambda n, rng: (1.5, 1.2, *rng.random((2, n["N"], n["N"])), rng.random(n["N"])),
        reference=lambda alpha, beta, a, b, x: (alpha * (a @ x) + beta * (b @ x),),
    ),
    Kernel(
        name="symm",
        text="""
def symm(alpha: f64, beta: f64, C: f64["M N"], A: f64["M M"], B: f64["M N"]):
    C[i, j] = beta * C[i, j] + alpha * (sum[k, k <= i](A[i, k] * B[k, j]) + sum[k, k > i](A[k, i] * B[k, j]))
    return C
""",
        data=lambda n, rng: (
            1.5,
            1.2,
            rng.random((n["M"], n["N"])),
            rng.random((n["M"], n["M"])),
            rng.random((n["M"], n["N"])),
        ),
        reference=symm,
    ),
    Kernel(
        name="syr2k",
        text="""
def syr2k(alpha: f64, beta: f64, C: f64["N N"], A: f64["N M"], B: f64["N M"]):
    if j <= i:
        C[i, j] = beta * C[i, j] + alpha * A[j, k] * B[i, k] + alpha * B[j, k] * A[i, k]
    return C
""",
        data=lambda n, rng: (1.5, 1.2, rng.random((n["N"], n["N"])), *rng.random((2, n["N"], n["M"]))),
        reference=syr2k,
    ),
    Kernel(
        name="syrk",
        text="""
def syrk(alpha: f64, beta: f64, C: f64["N N"], A: f64["N M"]):
    if j <= i:
        C[i, j] = beta * C[i, j] + alpha * A[i, k] * A[j, k]
    return C
""",
        data=lambda n, rng: (1.5, 1.2, rng.random((n["N"], n["N"])), rng.random((n["N"], n["M"]))),
        reference=syrk,
    ),
    Kernel(
        name="trmm",
        text="""
def trmm(alpha: f64, A: f64["M M"], B: f64["M N"]):
    B[i, j] = alpha * (B[i, j] + sum[k, k > i](A[k, i] * B[k, j]))
    return B
""",
        data=lambda n, rng: (1.5, rng.random((n["M"], n["M"])), rng.random((n["M"], n["N"]))),
        reference=trmm,
    ),
)
