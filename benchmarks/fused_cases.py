"""What `python -m benchmarks.fused` measures: programs with their inputs, the same in NumPy, torch and onnx, and the work they cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.peers import Array, Formulation
from polyml.demo.showcase import SHOWCASES

__all__ = ["CASES", "Array", "Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """text: the einsum program. arguments: its f32 inputs. numpy: NumPy's best formulation. torch, onnx, jax, numba: as in benchmarks.peers.Formulation.
    flops: floating-point operations by its definition, where they rather than memory may be what bounds it. constants: names of the parameters that never change."""

    name: str
    text: str
    arguments: Callable[[np.random.Generator], tuple[Array, ...]]
    numpy: Callable[..., Array]
    torch: str | None = None
    onnx: Callable[[], list[object]] | None = None
    flops: float = 0.0
    constants: str = ""
    jax: str | None = None
    numba: str | None = None

    @property
    def peers(self) -> Formulation:
        return Formulation(torch=self.torch, jax=self.jax, onnx=self.onnx, numba=self.numba)


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


def attended(q: Array, k: Array, v: Array) -> Array:
    """Attention whose queries see the keys up to their own."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.asarray(q.shape[-1], q.dtype))
    s = np.where(np.tri(q.shape[2], dtype=bool), s, np.asarray(-np.inf, q.dtype))
    e = np.exp(s - s.max(axis=3, keepdims=True))
    result: Array = e @ v / e.sum(axis=3, keepdims=True)
    return result


SHOWN = {case.name: case for case in SHOWCASES}


def shown(
    name: str,
    torch: str | None = None,
    onnx: Callable[[], list[object]] | None = None,
    flops: float = 0.0,
    *,
    jax: str | None = None,
    numba: str | None = None,
) -> Case:
    case = SHOWN[name]
    return Case(name, case.text, case.arguments, case.numpy, torch, onnx, flops, jax=jax, numba=numba)


JACOBI = """
@njit
def run(a):
    a = a.copy()
    b = a.copy()
    for t in range(20):
        for i in prange(1, a.shape[0] - 1):
            for j in range(1, a.shape[1] - 1):
                b[i, j] = np.float32(0.2) * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i - 1, j] + a[i + 1, j])
        a, b = b, a
    return a
"""

ASSIGNMENT = """
@njit
def run(x, c):
    y = np.empty(x.shape[0], np.int64)
    for n in prange(x.shape[0]):
        least = np.float32(np.inf)
        for k in range(c.shape[0]):
            d = np.float32(0)
            for j in range(x.shape[1]):
                d += (x[n, j] - c[k, j]) ** 2
            if d < least:
                least = d
                y[n] = k
    return y
"""

DISTANCES = """
@njit
def run(x, y):
    d = np.empty((x.shape[0], y.shape[0]), np.float32)
    for n in prange(x.shape[0]):
        for m in range(y.shape[0]):
            s = np.float32(0)
            for k in range(x.shape[1]):
                s += (x[n, k] - y[m, k]) ** 2
            d[n, m] = s
    return d
"""

SUMS_OF_COLUMNS = """
@njit
def run(x):
    y = np.empty_like(x)
    y[0] = x[0]
    for b in prange((x.shape[1] + 255) // 256):
        for n in range(1, x.shape[0]):
            for k in range(256 * b, min(256 * b + 256, x.shape[1])):
                y[n, k] = y[n - 1, k] + x[n, k]
    return y
"""


CASES: tuple[Case, ...] = (
    shown(
        "softmax",
        "lambda x: torch.softmax(x, 1)",
        lambda: onnx_nodes(("Softmax", ["i0"], "y", {"axis": 1})),
        jax="lambda x: jax.nn.softmax(x, 1)",
    ),
    shown(
        "layer norm",
        "lambda x, g, b: torch.nn.functional.layer_norm(x, (x.shape[1],), g, b)",
        lambda: onnx_nodes(("LayerNormalization", ["i0", "i1", "i2"], "y", {"axis": 1, "epsilon": 1e-5})),
        jax="lambda x, g, b: jax.nn.standardize(x, 1, epsilon=1e-5) * g + b",
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
        jax="lambda x: jax.nn.logsumexp(x, 1)",
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
        jax="lambda x, g: x * jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-6) * g",
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
        jax="lambda x, r, g, b: jax.nn.standardize(x + r, 1, epsilon=1e-5) * g + b",
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
        jax="lambda a, b, c: jax.nn.gelu(a, approximate=False) * b + c",
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
        jax="lambda x: jnp.cumsum(x, 1)",
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
        jax="lambda x: jnp.cumsum(x, 0)",
        numba=SUMS_OF_COLUMNS,
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
        jax="lambda x, w, b: jax.nn.gelu(x @ w + b, approximate=False)",
    ),
    shown(
        "attention",
        "lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        flops=4.0 * 8 * 512 * 512 * 64,
        jax="lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(2, 3) / 8, 3) @ v",
    ),
    Case(
        "attention of 2048 keys",
        SHOWN["attention"].text,
        lambda rng: tuple(normal(rng, 1, 8, 2048, 64) for _ in range(3)),
        SHOWN["attention"].numpy,
        "lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        flops=4.0 * 8 * 2048 * 2048 * 64,
        jax="lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(2, 3) / 8, 3) @ v",
    ),
    Case(
        "causal attention",
        """
def causal(q: f32["B H S D"], k: f32["B H S D"], v: f32["B H S D"]):
    a[b, h, i, j] = where(j <= i, sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(D), -inf)
    m[b, h, i] = max[j](a[b, h, i, j])
    e[b, h, i, j] = exp(a[b, h, i, j] - m[b, h, i])
    s[b, h, i] = e[b, h, i, j]
    y[b, h, i, d] = sum[j](e[b, h, i, j] * v[b, h, j, d]) / s[b, h, i]
    return y
""",
        lambda rng: tuple(normal(rng, 1, 8, 2048, 64) for _ in range(3)),
        attended,
        "lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        flops=4.0 * 8 * 2048 * 2049 / 2 * 64,
        jax="lambda q, k, v: jax.nn.softmax(jnp.where(jnp.tri(2048, dtype=bool), q @ k.swapaxes(2, 3) / 8, -jnp.inf), 3) @ v",
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
        jax="lambda x, y: ((x[:, None] - y) ** 2).sum(2)",
        numba=DISTANCES,
    ),
    shown(
        "Jacobi sweeps",
        jax="lambda a: jax.lax.fori_loop(0, 20, lambda t, a: a.at[1:-1, 1:-1].set("
        "0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[:-2, 1:-1] + a[2:, 1:-1])), a)",
        numba=JACOBI,
    ),
    shown(
        "k-means assignment",
        "lambda x, c: (c.square().sum(1) - 2 * (x @ c.t())).argmin(1)",
        flops=2.0 * 32768 * 256 * 32,
        jax="lambda x, c: ((c * c).sum(1) - 2 * (x @ c.T)).argmin(1)",
        numba=ASSIGNMENT,
    ),
    shown(
        "padded convolution",
        "lambda x, f: torch.nn.functional.conv2d(x, f, padding=1)",
        flops=2.0 * 32 * 32 * 9 * 56 * 56,
        jax='lambda x, f: jax.lax.conv(x, f, (1, 1), "SAME")',
    ),
)
