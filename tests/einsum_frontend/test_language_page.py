"""The programs and statements of the language page, as polyml reads them."""

from __future__ import annotations

import pytest

from .marked import check_refused, printed, program, resolved

NCHW = 'x: f32["N C H W"], f: f32["K C R S"]'

READ = {
    "dense": (
        'x: f32["N K"], w: f32["K M"], b: f32["M"]',
        ["y[n, m] = relu(x[n, k] * w[k, m] + b[m])", "return y"],
        ["y[n, m] = relu(sum[k](x[n, k] * w[k, m]) + b[m])", "return y"],
    ),
    "shortest paths": (
        'p: f32["N N"]',
        ["for k in range(N):", "    p[i, j] = min(p[i, j], p[i, k] + p[k, j])"],
        ["for k in range(0, N, 1):", "    p[i, j] = min(p[i, j], p[i, k] + p[k, j])"],
    ),
    "affine left side": (
        'y: f32["P"], x: f32["H R"]',
        ["y[2 * h + r] += x[h, r]"],
        ["y[2 * h + r] += x[h, r]"],
    ),
    "histogram": ('h: i64["B"], ids: i32["N"]', ["h[ids[n]] += 1"], ["h[ids[n]] += 1"]),
    "embedding": (
        'table: f32["V D"], ids: i64["N"]',
        ["y[n, d] = table[ids[n], d]", "return y"],
        ["y[n, d] = table[ids[n], d]", "return y"],
    ),
    "trapezoid": (
        'a: f32["N M"]',
        ["y: f32['N M'] = 0", "for k in range(N - 1, -1, -1):", "    if i > k and 0 <= j < N - 1:", "        y[i, j] += a[i, j]", "    else:", "        y[i, j] -= 1", "return y"],
        ['y: f32["N M"] = 0', "for k in range(N - 1, -1, -1):", "    if i > k and 0 <= j < N - 1:", "        y[i, j] += a[i, j]", "    else:", "        y[i, j] -= 1", "return y"],
    ),
    "scalars": (
        'x: f32["N"]',
        ["s = x[n] * x[n]", "m = max[n](x[n])", "y[n] = (x[n] - m) / sqrt(s) + pi", "return y"],
        ["s = sum[n](x[n] * x[n])", "m = max[n](x[n])", "y[n] = (x[n] - m) / sqrt(s) + pi", "return y"],
    ),
    "strided convolution": (
        NCHW,
        ["y[n, k, h, w] = x[n, c, 2 * h + r - 1, w + s] * f[k, c, r, s]", "return y"],
        ["y[n, k, h, w] = sum[c, r, s](x[n, c, 2 * h + r - 1, w + s] * f[k, c, r, s])", "return y"],
    ),
    "tiles": ('a: f32["N M"]', ["y[i] = a[i // 4, i % 4]", "return y"], ["y[i] = a[i // 4, i % 4]", "return y"]),
    "pooling": (
        'x: f32["H W"]',
        ["y[h, w] = max[r < 3, s < 3](x[2 * h + r, 2 * w + s])", "return y"],
        ["y[h, w] = max[r, s, r < 3, s < 3](x[2 * h + r, 2 * w + s])", "return y"],
    ),
    "triangle": (
        'a: f32["N N"]',
        ["y[i] = sum[k, k <= i](a[i, k])", "return y"],
        ["y[i] = sum[k, k <= i](a[i, k])", "return y"],
    ),
    "transposed convolution": (
        'x: f32["H"], f: f32["R"], q: f32["P"]',
        ["q[p] = sum[h, r, 2 * h + r == p](x[h] * f[r])"],
        ["q[p] = sum[h, r, 2 * h + r == p](x[h] * f[r])"],
    ),
    "padding by conditions": (
        NCHW,
        [
            'y: f32["N K H W"]',
            "y[n, k, h, w] = sum[c, r, s, 0 <= h + r - 1 < H, 0 <= w + s - 1 < W](x[n, c, h + r - 1, w + s - 1] * f[k, c, r, s])",
            "return y",
        ],
        [
            'y: f32["N K H W"]',
            "y[n, k, h, w] = sum[c, r, s, 0 <= h + r - 1 < H, 0 <= w + s - 1 < W](x[n, c, h + r - 1, w + s - 1] * f[k, c, r, s])",
            "return y",
        ],
    ),
    "padding by pad": (
        NCHW,
        ["y[n, k, h, w] = pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))[n, c, h + r, w + s] * f[k, c, r, s]", "return y"],
        ["y[n, k, h, w] = sum[c, r, s](pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))[n, c, h + r, w + s] * f[k, c, r, s])", "return y"],
    ),
    "padding by where": (
        'x: f32["N"], f: f32["R"]',
        ["y[n] = sum[r < 3](where(n + r >= 1, x[n + r - 1], 0) * f[r])", "return y"],
        ["y[n] = sum[r, r < 3](where(n + r >= 1, x[n + r - 1], 0) * f[r])", "return y"],
    ),
    "two sums": (
        'A: f32["N N"], B: f32["N N"], x: f32["N"], alpha: f32, beta: f32',
        ["y[i] = alpha * A[i, j] * x[j] + beta * B[i, j] * x[j]", "return y"],
        ["y[i] = sum[j](alpha * A[i, j] * x[j]) + sum[j](beta * B[i, j] * x[j])", "return y"],
    ),
    "several results and in-place parameters": (
        'x: f32["N"], g: f32["N"]',
        ["x[n] -= 0.1 * g[n]", "a[n] = abs(x[n])", "b = 1", "return a, b"],
        ["x[n] -= 0.1 * g[n]", "a[n] = abs(x[n])", "b = 1", "return a, b"],
    ),
    "weak numbers and casts": (
        'x: f32["N D"]',
        ["y[n] = sum[d](f64(x[n, d])) / sqrt(D)", "return y"],
        ["y[n] = sum[d](f64(x[n, d])) / sqrt(D)", "return y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_reading(name: str) -> None:
    parameters, lines, expected = READ[name]
    assert printed(*lines, parameters=parameters) == expected


REFUSED = [
    ("y[n] = exp(-beta * «x[n, k]»)", "sum[k](exp(-beta * x[n, k]))"),
    ("y[n] = 2 * («x[n, k]» + b[n])", "2 * (sum[k](x[n, k]) + b[n])"),
    ("y[n, m] = «x[n, m] / x[n, k]»", "x[n, m] / sum[k](x[n, k])"),
    ("y[n] = «x[n, k] ** 2»", "sum[k](x[n, k]) ** 2"),
    ("y[n] = «where(k < n, b[k], 0)»", "sum[k](where(k < n, b[k], 0))"),
]


@pytest.mark.parametrize(("statement", "hint"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(statement: str, hint: str) -> None:
    text = program(statement, "return y", parameters='x: f32["N K"], b: f32["N"], beta: f32')
    check_refused(text, "it is not clear how 'k'", hint=hint)


def test_shapes_of_the_page() -> None:
    text = program("y[t] = x[t, b, c]", "return y", parameters='x: f32["T+1 B 4"], T: int')
    p = resolved(text)
    assert p.parameters[1].is_size
    assert (
        printed("y[t] = x[t, b, c]", "return y", parameters='x: f32["T+1 B 4"], T: int')[0]
        == "y[t] = sum[b, c](x[t, b, c])"
    )
