"""What `python -m benchmarks.fused` measures: programs with their inputs, the same in NumPy, torch and onnx, and the work they cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyml.demo.showcase import SHOWCASES

__all__ = ["CASES", "Array", "Case"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Case:
    """text: the einsum program. arguments: its f32 inputs. numpy: NumPy's best formulation. torch: a function of torch tensors, or None.
    onnx: makes the nodes of an onnx graph with inputs i0, i1, ... and output y, or None. flops: floating-point operations by its definition, where they rather than
    memory may be what bounds it."""

    name: str
    text: str
    arguments: Callable[[np.random.Generator], tuple[Array, ...]]
    numpy: Callable[..., Array]
    torch: str | None = None
    onnx: Callable[[], list[object]] | None = None
    flops: float = 0.0
    constants: str = ""


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def onnx_nodes(*rows: tuple[str, list[str], str, dict[str, object]]) -> list[object]:
    from onnx import helper

    return [helper.make_node(op, inputs, [output], **attributes) for op, inputs, output, attributes in rows]


def logsumexp(x: Array) -> Array:
    m = x.max(axis=1)
    e = np.exp(x - m[:, None])
    return m + np.log(e.sum(axis=1))


def erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26 (error 1.5e-7), the usual NumPy-only formulation; SciPy's where it is installed."""
    try:
        from scipy.special import erf as exact
    except ImportError:
        t = 1 / (1 + 0.3275911 * np.abs(x))
        tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        return np.sign(x) * (1 - tail * np.exp(-x * x))
    return exact(x)


def rms_norm(x: Array, g: Array) -> Array:
    scale = 1 / np.sqrt(np.einsum("nk,nk->n", x, x) / x.shape[1] + 1e-6)
    return x * scale[:, None].astype(x.dtype) * g


def residual_norm(x: Array, r: Array, g: Array, b: Array) -> Array:
    h = x + r
    h -= h.mean(axis=1, keepdims=True)
    h *= 1 / np.sqrt(np.einsum("nk,nk->n", h, h)[:, None] / h.shape[1] + 1e-5)
    h *= g
    h += b
    return h


def gelu(z: Array) -> Array:
    half, root = np.asarray(0.5, z.dtype), np.asarray(np.sqrt(0.5), z.dtype)
    return half * z * (1 + erf(z * root)).astype(z.dtype)


def gelu_dense(x: Array, w: Array, b: Array) -> Array:
    z = x @ w
    z += b
    return gelu(z)


def distances(x: Array, y: Array) -> Array:
    d = x @ y.T
    d *= -2
    d += (x * x).sum(axis=1)[:, None]
    d += (y * y).sum(axis=1)[None, :]
    return d


SHOWN = {case.name: case for case in SHOWCASES}


def shown(
    name: str, torch: str | None = None, onnx: Callable[[], list[object]] | None = None, flops: float = 0.0
) -> Case:
    case = SHOWN[name]
    return Case(name, case.text, case.arguments, case.numpy, torch, onnx, flops)


CASES: tuple[Case, ...] = (
    shown(
        "softmax",
        "lambda x: torch.softmax(x, 1)",
        lambda: onnx_nodes(("Softmax", ["i0"], "y", {"axis": 1})),
    ),
    shown(
        "layer norm",
        "lambda x, g, b: torch.nn.functional.layer_norm(x, (x.shape[1],), g, b)",
        lambda: onnx_nodes(("LayerNormalization", ["i0", "i1", "i2"], "y", {"axis": 1, "epsilon": 1e-5})),
    ),
    Case(
        "logsumexp",
        """
def lse(x: f32["N K"]):
    m[n] = max[k](x[n, k])
    y[n] = log(sum[k](exp(x[n, k] - m[n]))) + m[n]
    return y
""",
        lambda rng: (normal(rng, 4096, 1024),),
        logsumexp,
        "lambda x: torch.logsumexp(x, 1)",
        lambda: onnx_nodes(("ReduceLogSumExp", ["i0", "axes"], "y", {"keepdims": 0})),
    ),
    Case(
        "rms norm",
        """
def rms(x: f32["N K"], g: f32["K"]):
    q[n] = sum[k](x[n, k]**2)
    y[n, k] = x[n, k] * rsqrt(q[n] / K + 1e-6) * g[k]
    return y
""",
        lambda rng: (normal(rng, 4096, 1024), normal(rng, 1024)),
        rms_norm,
        "lambda x, g: torch.nn.functional.rms_norm(x, (x.shape[1],), g, 1e-6)",
        lambda: onnx_nodes(
            ("SimplifiedLayerNormalization", ["i0", "i1"], "y", {"axis": -1, "epsilon": 1e-6}),
        ),
    ),
    Case(
        "residual + norm",
        """
def residual(x: f32["N K"], r: f32["N K"], g: f32["K"], b: f32["K"]):
    h[n, k] = x[n, k] + r[n, k]
    m[n] = sum[k](h[n, k]) / K
    v[n] = sum[k]((h[n, k] - m[n])**2) / K
    y[n, k] = (h[n, k] - m[n]) * rsqrt(v[n] + 1e-5) * g[k] + b[k]
    return y
""",
        lambda rng: (normal(rng, 4096, 1024), normal(rng, 4096, 1024), normal(rng, 1024), normal(rng, 1024)),
        residual_norm,
        "lambda x, r, g, b: torch.nn.functional.layer_norm(x + r, (x.shape[1],), g, b)",
        lambda: onnx_nodes(
            ("Add", ["i0", "i1"], "h", {}),
            ("LayerNormalization", ["h", "i2", "i3"], "y", {"axis": 1, "epsilon": 1e-5}),
        ),
    ),
    Case(
        "gelu(a) * b + c",
        """
def chain(a: f32["N K"], b: f32["N K"], c: f32["N K"]):
    y[n, k] = gelu(a[n, k]) * b[n, k] + c[n, k]
    return y
""",
        lambda rng: tuple(normal(rng, 4096, 1024) for _ in range(3)),
        lambda a, b, c: gelu(a) * b + c,
        "lambda a, b, c: torch.addcmul(c, torch.nn.functional.gelu(a), b)",
        lambda: onnx_nodes(
            ("Gelu", ["i0"], "g", {}),
            ("Mul", ["g", "i1"], "h", {}),
            ("Add", ["h", "i2"], "y", {}),
        ),
    ),
    Case(
        "cumsum of rows",
        """
def cumsum_rows(x: f32["N K"]):
    y: f32["N K"]
    y[n, 0] = x[n, 0]
    for k in range(1, K):
        y[n, k] = y[n, k - 1] + x[n, k]
    return y
""",
        lambda rng: (normal(rng, 4096, 1024),),
        lambda x: np.cumsum(x, axis=1),
        "lambda x: torch.cumsum(x, 1)",
        lambda: onnx_nodes(("CumSum", ["i0", "axes"], "y", {})),
    ),
    Case(
        "cumsum of columns",
        """
def cumsum_columns(x: f32["N K"]):
    y: f32["N K"]
    y[0, k] = x[0, k]
    for n in range(1, N):
        y[n, k] = y[n - 1, k] + x[n, k]
    return y
""",
        lambda rng: (normal(rng, 4096, 1024),),
        lambda x: np.cumsum(x, axis=0),
        "lambda x: torch.cumsum(x, 0)",
    ),
    Case(
        "gelu(x @ w + b)",
        """
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = gelu(x[n, k] * w[k, m] + b[m])
    return y
""",
        lambda rng: (normal(rng, 1024, 512), normal(rng, 512, 1024), normal(rng, 1024)),
        gelu_dense,
        "lambda x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w))",
        flops=2.0 * 1024 * 512 * 1024,
    ),
    shown(
        "attention",
        "lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        flops=4.0 * 8 * 512 * 512 * 64,
    ),
    Case(
        "pairwise distances",
        """
def distances(x: f32["N K"], y: f32["M K"]):
    d[n, m] = sum[k]((x[n, k] - y[m, k])**2)
    return d
""",
        lambda rng: (normal(rng, 4096, 16), normal(rng, 4096, 16)),
        distances,
        "lambda x, y: torch.cdist(x, y).square_()",
        flops=4.0 * 4096 * 4096 * 16,  # a subtraction takes as long as a fused multiply-add
    ),
    shown("Jacobi sweeps"),
    shown("k-means assignment", flops=2.0 * 32768 * 256 * 32),
    shown(
        "padded convolution",
        "lambda x, f: torch.nn.functional.conv2d(x, f, padding=1)",
        flops=2.0 * 32 * 32 * 9 * 56 * 56,
    ),
)
