"""What `python -m benchmarks.models` measures: layers and blocks of networks, each one program, with the same in NumPy and torch, the operations they cannot do without, and the weights that polyml binds."""

from __future__ import annotations

import numpy as np

from benchmarks.fused_cases import Array, Case, gelu, normal

__all__ = ["CASES"]


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def layer_norm(x: Array, g: Array, b: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    result: Array = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * g + b
    return result


def weights(rng: np.random.Generator, *shape: int) -> Array:
    """Normal, scaled so that what they multiply keeps its size."""
    return normal(rng, *shape) / np.float32(np.sqrt(shape[0]))


MLP = """
def mlp(x: f32["N D"], w: f32["D H"], b: f32["H"], v: f32["H D"], c: f32["D"]):
    h[n, i] = gelu(x[n, d] * w[d, i] + b[i])
    y[n, d] = h[n, i] * v[i, d] + c[d]
    return y
"""

SWIGLU = """
def swiglu(x: f32["N D"], w: f32["D H"], u: f32["D H"], v: f32["H D"]):
    a[n, i] = x[n, d] * w[d, i]
    g[n, i] = x[n, d] * u[d, i]
    h[n, i] = a[n, i] * sigmoid(a[n, i]) * g[n, i]
    y[n, d] = h[n, i] * v[i, d]
    return y
"""

LSTM = """
def cell(x: f32["N D"], h: f32["N H"], c: f32["N H"], w: f32["D 4 H"], u: f32["H 4 H"], b: f32["4 H"]):
    g[n, a, k] = x[n, d] * w[d, a, k] + h[n, j] * u[j, a, k] + b[a, k]
    e[n, k] = sigmoid(g[n, 1, k]) * c[n, k] + sigmoid(g[n, 0, k]) * tanh(g[n, 2, k])
    y[n, k] = sigmoid(g[n, 3, k]) * tanh(e[n, k])
    return y
"""


def lstm(x: Array, h: Array, c: Array, w: Array, u: Array, b: Array) -> Array:
    gates = np.tensordot(x, w, 1) + np.tensordot(h, u, 1) + b
    i, f, g, o = (gates[:, k] for k in range(4))
    result: Array = sigmoid(o) * np.tanh(sigmoid(f) * c + sigmoid(i) * np.tanh(g))
    return result


BLOCK = """
def block(x: f32["S D"], q: f32["D H E"], k: f32["D H E"], v: f32["D H E"], o: f32["H E D"], g: f32["D"], b: f32["D"], w: f32["D F"], c: f32["F"], u: f32["F D"], d: f32["D"]):
    m[s] = sum[i](x[s, i]) / D
    z[s] = sum[i]((x[s, i] - m[s])**2) / D
    n[s, i] = (x[s, i] - m[s]) * rsqrt(z[s] + 1e-5) * g[i] + b[i]
    qs[h, s, e] = n[s, i] * q[i, h, e]
    ks[h, s, e] = n[s, i] * k[i, h, e]
    vs[h, s, e] = n[s, i] * v[i, h, e]
    scores[h, s, t] = qs[h, s, e] * ks[h, t, e] / sqrt(E)
    top[h, s] = max[t](scores[h, s, t])
    p[h, s, t] = exp(scores[h, s, t] - top[h, s])
    total[h, s] = sum[t](p[h, s, t])
    a[h, s, e] = sum[t](p[h, s, t] * vs[h, t, e]) / total[h, s]
    y[s, i] = x[s, i] + sum[h, e](a[h, s, e] * o[h, e, i])
    mm[s] = sum[i](y[s, i]) / D
    zz[s] = sum[i]((y[s, i] - mm[s])**2) / D
    nn[s, i] = (y[s, i] - mm[s]) * rsqrt(zz[s] + 1e-5) * g[i] + b[i]
    f[s, j] = gelu(nn[s, i] * w[i, j] + c[j])
    r[s, i] = y[s, i] + sum[j](f[s, j] * u[j, i]) + d[i]
    return r
"""


def block(
    x: Array, q: Array, k: Array, v: Array, o: Array, g: Array, b: Array, w: Array, c: Array, u: Array, d: Array
) -> Array:
    n = layer_norm(x, g, b)
    qs, ks, vs = (np.tensordot(n, part, 1).swapaxes(0, 1) for part in (q, k, v))
    scores = qs @ ks.swapaxes(1, 2) / np.sqrt(np.asarray(q.shape[2], q.dtype))
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    a = p @ vs / p.sum(axis=2, keepdims=True)
    y = x + np.tensordot(a.swapaxes(0, 1), o, 2)
    result: Array = y + gelu(layer_norm(y, g, b) @ w + c) @ u + d
    return result


TORCH_BLOCK = """lambda x, q, k, v, o, g, b, w, c, u, d: (lambda F, D: (lambda n: (lambda a: (lambda y: y + F.linear(F.gelu(F.linear(F.layer_norm(y, (D,), g, b), w.t(), c)), u.t(), d))(
    x + a.transpose(0, 1).reshape(-1, D) @ o.reshape(-1, D)))(
    F.scaled_dot_product_attention(*((n @ t.reshape(D, -1)).reshape(x.shape[0], t.shape[1], -1).transpose(0, 1)[None] for t in (q, k, v)))[0]))(
    F.layer_norm(x, (D,), g, b)))(torch.nn.functional, x.shape[1])"""

RESIDUAL = """
def residual(x: f32["C H W"], f: f32["O C 3 3"], s: f32["O"], t: f32["O"], g: f32["C O 3 3"], u: f32["C"], v: f32["C"]):
    h: f32["O H W"]
    h[o, i, j] = relu(sum[c, p, q](pad(x, ((0, 0), (1, 1), (1, 1)))[c, i + p, j + q] * f[o, c, p, q]) * s[o] + t[o])
    y[c, i, j] = relu(sum[o, p, q](pad(h, ((0, 0), (1, 1), (1, 1)))[o, i + p, j + q] * g[c, o, p, q]) * u[c] + v[c] + x[c, i, j])
    return y
"""


def convolution(x: Array, f: Array) -> Array:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.tensordot(f, windows, axes=((1, 2, 3), (0, 3, 4)))


def residual(x: Array, f: Array, s: Array, t: Array, g: Array, u: Array, v: Array) -> Array:
    h = np.maximum(convolution(x, f) * s[:, None, None] + t[:, None, None], 0)
    result: Array = np.maximum(convolution(h, g) * u[:, None, None] + v[:, None, None] + x, 0)
    return result


LINEAR_ATTENTION = """
def linear(q: f32["B S D"], k: f32["B S D"], v: f32["B S D"]):
    m[b, d, e] = exp(k[b, s, d]) * v[b, s, e]
    z[b, d] = sum[s](exp(k[b, s, d]))
    y[b, s, e] = sum[d](exp(q[b, s, d]) * m[b, d, e]) / sum[d](exp(q[b, s, d]) * z[b, d])
    return y
"""


def linear_attention(q: Array, k: Array, v: Array) -> Array:
    a, b = np.exp(q), np.exp(k)
    result: Array = (a @ (b.swapaxes(1, 2) @ v)) / (a @ b.sum(axis=1)[:, :, None])
    return result


MTTKRP = """
def mttkrp(x: f32["I J K"], b: f32["J R"], c: f32["K R"]):
    y[i, r] = x[i, j, k] * b[j, r] * c[k, r]
    return y
"""

CHAIN = """
def chain(a: f32["I J"], b: f32["J K"], c: f32["K L"], d: f32["L M"]):
    t[i, k] = a[i, j] * b[j, k]
    u[k, m] = c[k, l] * d[l, m]
    y[i, m] = t[i, k] * u[k, m]
    return y
"""

SCAN = """
def scan(g: f32["T D"], x: f32["T D"]):
    y: f32["T D"]
    y[0, d] = x[0, d]
    for t in range(1, T):
        y[t, d] = sigmoid(g[t, d]) * y[t - 1, d] + x[t, d]
    return y
"""


def scan(g: Array, x: Array) -> Array:
    gate, y = sigmoid(g), x.copy()
    for t in range(1, len(x)):
        y[t] += gate[t] * y[t - 1]
    return y


STATES = """
def states(x: f32["T D"], dt: f32["T D"], a: f32["D N"], b: f32["T N"], c: f32["T N"]):
    h: f32["D N"] = 0
    y: f32["T D"]
    for t in range(T):
        h[d, n] = exp(dt[t, d] * a[d, n]) * h[d, n] + dt[t, d] * x[t, d] * b[t, n]
        y[t, d] = h[d, n] * c[t, n]
    return y
"""


def states(x: Array, dt: Array, a: Array, b: Array, c: Array) -> Array:
    h, y = np.zeros_like(a), np.empty_like(x)
    for t in range(len(x)):
        h = np.exp(dt[t, :, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        y[t] = h @ c[t]
    return y


TRANSPOSED = """
def transposed(x: f32["K P Q"], w: f32["K C 4 4"]):
    y: f32["C 2*P+2 2*Q+2"] = 0
    y[c, 2*p + r, 2*q + s] += x[k, p, q] * w[k, c, r, s]
    return y
"""

GRADIENT = """
def gradient(d: f32["K P Q"], w: f32["K C R S"]):
    y: f32["C P+R-1 Q+S-1"] = 0
    y[c, p + r, q + s] += d[k, p, q] * w[k, c, r, s]
    return y
"""


def spread(x: Array, w: Array, stride: int) -> Array:
    terms = np.tensordot(w, x, (0, 0))
    c, height, width, p, q = terms.shape
    y = np.zeros((c, stride * (p - 1) + height, stride * (q - 1) + width), x.dtype)
    for r in range(height):
        for s in range(width):
            y[:, r : r + stride * p : stride, s : s + stride * q : stride] += terms[:, r, s]
    return y


JAX_LSTM = """lambda x, h, c, w, u, b: (lambda z, s: s(z[:, 3]) * jnp.tanh(s(z[:, 1]) * c + s(z[:, 0]) * jnp.tanh(z[:, 2])))(
    jnp.tensordot(x, w, 1) + jnp.tensordot(h, u, 1) + b, jax.nn.sigmoid)"""

JAX_BLOCK = """lambda x, q, k, v, o, g, b, w, c, u, d: (lambda norm: (lambda n: (lambda a: (lambda y: y + jax.nn.gelu(norm(y) @ w + c, approximate=False) @ u + d)(
    x + jnp.einsum("hse,hed->sd", a, o)))(
    (lambda qs, ks, vs: jax.nn.softmax(qs @ ks.swapaxes(1, 2) / 8, 2) @ vs)(*(jnp.einsum("si,ihe->hse", n, t) for t in (q, k, v)))))(
    norm(x)))(lambda t: jax.nn.standardize(t, 1, epsilon=1e-5) * g + b)"""

JAX_SCAN = """lambda g, x: (lambda s: jax.lax.scan(lambda y, r: ((y * r[0] + r[1]),) * 2, jnp.zeros_like(x[0]), (s, x))[1])(jax.nn.sigmoid(g))"""

JAX_STATES = """lambda x, dt, a, b, c: jax.lax.scan(lambda h, r: (lambda n: (n, n @ r[3]))(
    jnp.exp(r[1][:, None] * a) * h + (r[1] * r[0])[:, None] * r[2]), jnp.zeros_like(a), (x, dt, b, c))[1]"""

JAX_SPREAD = "lambda x, w: jax.lax.conv_transpose(x[None], w, ({stride}, {stride}), 'VALID', dimension_numbers=('NCHW', 'OIHW', 'NCHW'), transpose_kernel=True)[0]"

SCAN_LOOPS = """
@njit
def run(g, x):
    y = np.empty_like(x)
    y[0] = x[0]
    for e in prange((x.shape[1] + 255) // 256):
        for t in range(1, x.shape[0]):
            for d in range(256 * e, min(256 * e + 256, x.shape[1])):
                y[t, d] = y[t - 1, d] / (np.float32(1) + np.exp(-g[t, d])) + x[t, d]
    return y
"""

STATES_LOOPS = """
@njit
def run(x, dt, a, b, c):
    y = np.empty_like(x)
    for d in prange(x.shape[1]):
        h = np.zeros(a.shape[1], np.float32)
        for t in range(x.shape[0]):
            s = np.float32(0)
            for n in range(a.shape[1]):
                h[n] = np.exp(dt[t, d] * a[d, n]) * h[n] + dt[t, d] * x[t, d] * b[t, n]
                s += h[n] * c[t, n]
            y[t, d] = s
    return y
"""

MTTKRP_LOOPS = """
@njit
def run(x, b, c):
    y = np.zeros((x.shape[0], b.shape[1]), np.float32)
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            s = np.zeros(b.shape[1], np.float32)
            for k in range(x.shape[2]):
                for r in range(b.shape[1]):
                    s[r] += x[i, j, k] * c[k, r]
            for r in range(b.shape[1]):
                y[i, r] += s[r] * b[j, r]
    return y
"""


CASES: tuple[Case, ...] = (
    Case(
        "mlp", MLP,
        lambda rng: (normal(rng, 512, 768), weights(rng, 768, 3072), normal(rng, 3072), weights(rng, 3072, 768), normal(rng, 768)),
        lambda x, w, b, v, c: gelu(x @ w + b) @ v + c,
        "lambda x, w, b, v, c: torch.addmm(c, torch.nn.functional.gelu(torch.addmm(b, x, w)), v)",
        flops=4.0 * 512 * 768 * 3072,
        constants="w b v c",
        jax="lambda x, w, b, v, c: jax.nn.gelu(x @ w + b, approximate=False) @ v + c",
    ),
    Case(
        "swiglu", SWIGLU,
        lambda rng: (normal(rng, 256, 512), weights(rng, 512, 1408), weights(rng, 512, 1408), weights(rng, 1408, 512)),
        lambda x, w, u, v: ((x @ w) * sigmoid(x @ w) * (x @ u)) @ v,
        "lambda x, w, u, v: (torch.nn.functional.silu(x @ w) * (x @ u)) @ v",
        flops=6.0 * 256 * 512 * 1408,
        constants="w u v",
        jax="lambda x, w, u, v: (jax.nn.silu(x @ w) * (x @ u)) @ v",
    ),
    Case(
        "lstm cell", LSTM,
        lambda rng: (
            normal(rng, 64, 512), normal(rng, 64, 512), normal(rng, 64, 512),
            weights(rng, 512, 4, 512), weights(rng, 512, 4, 512), normal(rng, 4, 512),
        ),
        lstm,
        "lambda x, h, c, w, u, b: torch.lstm_cell(x, (h, c), w.reshape(w.shape[0], -1).t(), u.reshape(u.shape[0], -1).t(), b.reshape(-1), torch.zeros_like(b).reshape(-1))[0]",
        flops=4.0 * 64 * 512 * 2048,
        constants="w u b",
        jax=JAX_LSTM,
    ),
    Case(
        "transformer block", BLOCK,
        lambda rng: (
            normal(rng, 128, 512), *(weights(rng, 512, 8, 64) for _ in range(3)), weights(rng, 8, 64, 512) / 8,
            normal(rng, 512), normal(rng, 512), weights(rng, 512, 2048), normal(rng, 2048), weights(rng, 2048, 512), normal(rng, 512),
        ),
        block,
        TORCH_BLOCK,
        flops=2.0 * 128 * 512 * (4 * 512 + 2 * 2048) + 4.0 * 128 * 128 * 512,
        constants="q k v o g b w c u d",
        jax=JAX_BLOCK,
    ),
    Case(
        "residual block", RESIDUAL,
        lambda rng: (
            normal(rng, 64, 56, 56), normal(rng, 64, 64, 3, 3) / 24, normal(rng, 64), normal(rng, 64),
            normal(rng, 64, 64, 3, 3) / 24, normal(rng, 64), normal(rng, 64),
        ),
        residual,
        "lambda x, f, s, t, g, u, v: (lambda conv: torch.relu(conv(torch.relu(conv(x[None], f) * s[:, None, None] + t[:, None, None]), g) * u[:, None, None] + v[:, None, None] + x)[0])("
        "lambda a, w: torch.nn.functional.conv2d(a, w, padding=1))",
        flops=4.0 * 64 * 64 * 9 * 56 * 56,
        constants="f s t g u v",
        jax="lambda x, f, s, t, g, u, v: (lambda conv: jax.nn.relu(conv(jax.nn.relu(conv(x[None], f) * s[:, None, None] + t[:, None, None]), g) * u[:, None, None] + v[:, None, None] + x)[0])("
        "lambda a, w: jax.lax.conv(a, w, (1, 1), 'SAME'))",
    ),
    Case(
        "linear attention", LINEAR_ATTENTION,
        lambda rng: tuple(normal(rng, 8, 2048, 64) for _ in range(3)),
        linear_attention,
        "lambda q, k, v: (lambda a, b: (a @ (b.transpose(1, 2) @ v)) / (a @ b.sum(1)[:, :, None]))(q.exp(), k.exp())",
        flops=4.0 * 8 * 2048 * 64 * 64,
        jax="lambda q, k, v: (lambda a, b: (a @ (b.swapaxes(1, 2) @ v)) / (a @ b.sum(1)[:, :, None]))(jnp.exp(q), jnp.exp(k))",
    ),
    Case(
        "mttkrp", MTTKRP,
        lambda rng: (normal(rng, 200, 180, 190), normal(rng, 180, 32), normal(rng, 190, 32)),
        lambda x, b, c: np.einsum("ijk,jr,kr->ir", x, b, c, optimize=True),
        "lambda x, b, c: torch.einsum('ijr,jr->ir', torch.einsum('ijk,kr->ijr', x, c), b)",
        flops=2.0 * 200 * 180 * 190 * 32,
        jax="lambda x, b, c: jnp.einsum('ijk,jr,kr->ir', x, b, c)",
        numba=MTTKRP_LOOPS,
    ),
    Case(
        "chain of products", CHAIN,
        lambda rng: (weights(rng, 400, 300), weights(rng, 300, 500), weights(rng, 500, 200), weights(rng, 200, 450)),
        lambda a, b, c, d: (a @ b) @ (c @ d),
        "lambda a, b, c, d: (a @ b) @ (c @ d)",
        flops=2.0 * (400 * 300 * 500 + 500 * 200 * 450 + 400 * 500 * 450),
        jax="lambda a, b, c, d: (a @ b) @ (c @ d)",
    ),
    Case("gated scan", SCAN, lambda rng: (normal(rng, 2048, 1024), normal(rng, 2048, 1024)), scan, jax=JAX_SCAN, numba=SCAN_LOOPS),
    Case(
        "selective scan", STATES,
        lambda rng: (normal(rng, 1000, 256), np.abs(normal(rng, 1000, 256)) / 10, -np.abs(normal(rng, 256, 16)), normal(rng, 1000, 16), normal(rng, 1000, 16)),
        states, jax=JAX_STATES, numba=STATES_LOOPS,
    ),
    Case(
        "deconvolution", TRANSPOSED,
        lambda rng: (normal(rng, 64, 56, 56), normal(rng, 64, 64, 4, 4)),
        lambda x, w: spread(x, w, 2),
        "lambda x, w: torch.conv_transpose2d(x[None], w, None, 2)[0]",
        flops=2.0 * 64 * 56 * 56 * 64 * 16,
        constants="w",
        jax=JAX_SPREAD.format(stride=2),
    ),
    Case(
        "input gradient", GRADIENT,
        lambda rng: (normal(rng, 64, 56, 56), normal(rng, 64, 64, 3, 3)),
        lambda d, w: spread(d, w, 1),
        "lambda d, w: torch.conv_transpose2d(d[None], w)[0]",
        flops=2.0 * 64 * 56 * 56 * 64 * 9,
        constants="w",
        jax=JAX_SPREAD.format(stride=1),
    ),
)  # fmt: skip
