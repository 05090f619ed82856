"""An image filter, shortest paths, and RNA folding: PolyBench's medley."""

from __future__ import annotations

import numpy as np

from benchmarks.polybench.kernel import Array, Kernel

__all__ = ["MEDLEY"]


def _one_way(x: Array, now: float, before: float, b1: float, b2: float) -> Array:
    """y[n] = now*x[n] + before*x[n-1] + b1*y[n-1] + b2*y[n-2] along axis 0."""
    y = now * x
    y[1:] += before * x[:-1]
    for n in range(len(x)):
        y[n] += (b1 * y[n - 1] if n > 0 else 0) + (b2 * y[n - 2] if n > 1 else 0)
    return y


def _both_ways(x: Array) -> Array:
    """Deriche's smoothing filter along axis 0: the sum of a causal and an anticausal recursion."""
    a = 0.25
    k = (1 - np.exp(-a)) ** 2 / (1 + 2 * a * np.exp(-a) - np.exp(2 * a))
    b1, b2 = 2**-a, -np.exp(-2 * a)
    forward = _one_way(x, k, k * np.exp(-a) * (a - 1), b1, b2)
    shifted = np.concatenate([np.zeros_like(x[:1]), x[::-1][:-1]])
    return forward + _one_way(shifted, k * np.exp(-a) * (a + 1), -k * np.exp(-2 * a), b1, b2)[::-1]


def deriche(alpha: float, image: Array) -> tuple[Array, ...]:
    del alpha  # 0.25, as in the data
    return (_both_ways(np.ascontiguousarray(_both_ways(np.ascontiguousarray(image.T)).T)),)


def floyd_warshall(path: Array) -> tuple[Array, ...]:
    for k in range(len(path)):
        path = np.minimum(path, path[:, k, None] + path[k])
    return (path,)


def nussinov(bases: Array, table: Array) -> tuple[Array, ...]:
    n = len(bases)
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            pair = float(i < j - 1 and bases[i] + bases[j] == 3)
            best = max(table[i, j], table[i, j - 1], table[i + 1, j], table[i + 1, j - 1] + pair)
            table[i, j] = max(best, np.max(table[i, i + 1 : j] + table[i + 2 : j + 1, j], initial=best))
    return (table,)


MEDLEY = (
    Kernel(
        name="deriche",
        text="""
def deriche(alpha: f64, image: f64["W H"]):
    k = (1 - exp(-alpha)) * (1 - exp(-alpha)) / (1 + 2 * alpha * exp(-alpha) - exp(2 * alpha))
    a1 = k
    a2 = k * exp(-alpha) * (alpha - 1)
    a3 = k * exp(-alpha) * (alpha + 1)
    a4 = -k * exp(-2 * alpha)
    b1 = 2.0 ** -alpha
    b2 = -exp(-2 * alpha)
    y1: f64["W H"] = 0
    y2: f64["W H"] = 0
    z1: f64["W H"] = 0
    z2: f64["W H"] = 0
    for i in range(W):
        y1[i, 0] = a1 * image[i, 0]
        y1[i, 1] = a1 * image[i, 1] + a2 * image[i, 0] + b1 * y1[i, 0]
        for j in range(2, H):
            y1[i, j] = a1 * image[i, j] + a2 * image[i, j - 1] + b1 * y1[i, j - 1] + b2 * y1[i, j - 2]
    for i in range(W):
        y2[i, H - 1] = 0
        y2[i, H - 2] = a3 * image[i, H - 1]
        for j in range(H - 3, -1, -1):
            y2[i, j] = a3 * image[i, j + 1] + a4 * image[i, j + 2] + b1 * y2[i, j + 1] + b2 * y2[i, j + 2]
    r[i, j] = y1[i, j] + y2[i, j]
    z1[0, j] = a1 * r[0, j]
    z1[1, j] = a1 * r[1, j] + a2 * r[0, j] + b1 * z1[0, j]
    for i in range(2, W):
        for j in range(H):
            z1[i, j] = a1 * r[i, j] + a2 * r[i - 1, j] + b1 * z1[i - 1, j] + b2 * z1[i - 2, j]
    z2[W - 1, j] = 0
    z2[W - 2, j] = a3 * r[W - 1, j]
    for i in range(W - 3, -1, -1):
        for j in range(H):
            z2[i, j] = a3 * r[i + 1, j] + a4 * r[i + 2, j] + b1 * z2[i + 1, j] + b2 * z2[i + 2, j]
    out[i, j] = z1[i, j] + z2[i, j]
    return out
""",
        data=lambda n, rng: (0.25, rng.random((n["W"], n["H"]))),
        reference=deriche,
    ),
    Kernel(
        name="floyd-warshall",
        text="""
def floyd_warshall(path: f64["N N"]):
    for k in range(N):
        path[i, j] = min(path[i, j], path[i, k] + path[k, j])
    return path
""",
        data=lambda n, rng: (rng.integers(1, 1000, (n["N"], n["N"])).astype(np.float64),),
        reference=floyd_warshall,
    ),
    Kernel(
        name="nussinov",
        text="""
def nussinov(bases: f64["N"], table: f64["N N"]):
    for i in range(N - 1, -1, -1):
        for j in range(i + 1, N):
            table[i, j] = max(table[i, j], table[i, j - 1])
            table[i, j] = max(table[i, j], table[i + 1, j])
            if i < j - 1:
                table[i, j] = max(table[i, j], table[i + 1, j - 1] + where(bases[i] + bases[j] == 3, 1.0, 0.0))
                table[i, j] = max(table[i, j], max[k, i < k < j](table[i, k] + table[k + 1, j]))
            else:
                table[i, j] = max(table[i, j], table[i + 1, j - 1])
    return table
""",
        data=lambda n, rng: (rng.integers(0, 4, n["N"]).astype(np.float64), np.zeros((n["N"], n["N"]))),
        reference=nussinov,
    ),
)
