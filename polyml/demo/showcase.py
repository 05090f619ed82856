"""Kernels on real arrays, side by side with NumPy's best formulation: one einsum program and one NumPy function each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyml.records import dataclass

__all__ = ["SHOWCASES", "Showcase"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Showcase:
    """One comparison. arguments: makes the inputs (f32 where floating); numpy: the same function of the same arguments, in whatever
    float type they have, so that it gives both the peer's time (f32) and the reference (float64)."""

    name: str
    text: str
    arguments: Callable[[np.random.Generator], tuple[Array, ...]]
    numpy: Callable[..., Array]


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def _softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return e


def _layer_norm(x: Array, g: Array, b: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.einsum("nk,nk->n", centred, centred)[:, None] / x.shape[1]
    centred *= 1 / np.sqrt(variance + 1e-5)
    result: Array = centred * g + b
    return result


def _convolution(x: Array, f: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.tensordot(windows, f, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def _attention(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(np.asarray(q.shape[-1], q.dtype))
    result: Array = _softmax(scores) @ v
    return result


def _assignment(x: Array, c: Array) -> Array:
    result: Array = np.argmin((c * c).sum(axis=1) - 2 * (x @ c.T), axis=1)
    return result


def _jacobi(a: Array) -> Array:
    a = a.copy()
    fifth = np.asarray(0.2, a.dtype)
    for _ in range(20):
        a[1:-1, 1:-1] = fifth * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[:-2, 1:-1] + a[2:, 1:-1])
    return a


SHOWCASES: tuple[Showcase, ...] = (
    Showcase(
        "softmax",
        """
def softmax(x: f32["N K"]):
    m[n] = max[k](x[n, k])
    e[n, k] = exp(x[n, k] - m[n])
    s[n] = e[n, k]
    y[n, k] = e[n, k] / s[n]
    return y
""",
        lambda rng: (_normal(rng, 4096, 1024),),
        _softmax,
    ),
    Showcase(
        "layer norm",
        """
def layer_norm(x: f32["N K"], g: f32["K"], b: f32["K"]):
    mean[n] = sum[k](x[n, k]) / K
    var[n] = sum[k]((x[n, k] - mean[n])**2) / K
    r[n] = rsqrt(var[n] + 1e-5)
    y[n, k] = (x[n, k] - mean[n]) * r[n] * g[k] + b[k]
    return y
""",
        lambda rng: (_normal(rng, 4096, 1024), _normal(rng, 1024), _normal(rng, 1024)),
        _layer_norm,
    ),
    Showcase(
        "padded convolution",
        """
def convolution(x: f32["N C H W"], f: f32["K C 3 3"]):
    y: f32["N K H W"]
    y[n, k, h, w] = sum[c, r, s, 0 <= h + r - 1 < H, 0 <= w + s - 1 < W](x[n, c, h + r - 1, w + s - 1] * f[k, c, r, s])
    return y
""",
        lambda rng: (_normal(rng, 1, 32, 56, 56), _normal(rng, 32, 32, 3, 3)),
        _convolution,
    ),
    Showcase(
        "attention",
        """
def attention(q: f32["B H S D"], k: f32["B H S D"], v: f32["B H S D"]):
    a[b, h, i, j] = q[b, h, i, d] * k[b, h, j, d]
    m[b, h, i] = max[j](a[b, h, i, j])
    e[b, h, i, j] = exp((a[b, h, i, j] - m[b, h, i]) / sqrt(D))
    s[b, h, i] = e[b, h, i, j]
    y[b, h, i, d] = sum[j](e[b, h, i, j] * v[b, h, j, d]) / s[b, h, i]
    return y
""",
        lambda rng: (_normal(rng, 1, 8, 512, 64), _normal(rng, 1, 8, 512, 64), _normal(rng, 1, 8, 512, 64)),
        _attention,
    ),
    Showcase(
        "k-means assignment",
        """
def assignment(x: f32["N D"], c: f32["K D"]):
    s[k] = sum[j](c[k, j]**2)
    d[n, k] = s[k] - 2 * x[n, j] * c[k, j]
    y[n] = argmin[k](d[n, k])
    return y
""",
        lambda rng: (_normal(rng, 32768, 32), _normal(rng, 256, 32)),
        _assignment,
    ),
    Showcase(
        "Jacobi sweeps",
        """
def jacobi(a: f32["N M"]):
    b: f32["N M"]
    b[i, j] = a[i, j]
    for t in range(20):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            b[i, j] = 0.2 * (b[i, j] + b[i, j - 1] + b[i, j + 1] + b[i - 1, j] + b[i + 1, j])
    return b
""",
        lambda rng: (_normal(rng, 1000, 1000),),
        _jacobi,
    ),
)
