"""Programs of the sciences (docs/performance/programs.md) against NumPy, at small odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

import polyml

BOLTZMANN = """
def boltzmann(f0: f64["9 H W"], cx: f64["9"], cy: f64["9"], w: f64["9"], om: f64, T: int):
    f: f64["9 H W"]
    g: f64["9 H W"]
    f[q, i, j] = f0[q, i, j]
    for t in range(T):
        rho[i, j] = f[q, i, j]
        u[i, j] = sum[q](cx[q] * f[q, i, j]) / rho[i, j]
        v[i, j] = sum[q](cy[q] * f[q, i, j]) / rho[i, j]
        c[q, i, j] = cx[q] * u[i, j] + cy[q] * v[i, j]
        g[q, i, j] = f[q, i, j] + om * (rho[i, j] * w[q] * (1 + 3 * c[q, i, j] + 4.5 * c[q, i, j] ** 2 - 1.5 * (u[i, j] ** 2 + v[i, j] ** 2)) - f[q, i, j])
        STREAM
    return f
"""
CX, CY = np.array([0, 1, 0, -1, 0, 1, -1, -1, 1]), np.array([0, 0, 1, 0, -1, 1, 1, -1, -1])
STREAM = "\n        ".join(
    f"f[{q}, i, j] = g[{q}, (i - {x}) % H, (j - {y}) % W]".replace("- -", "+ ")
    for q, (x, y) in enumerate(zip(CX, CY, strict=True))
)


@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 9)), 21])
def test_lattice_boltzmann(size: int) -> None:
    """Nine slices go round in nine directions, step after step."""
    w = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
    f = w[:, None, None] * (1 + 0.1 * np.random.default_rng(0).random((9, size, size + 1)))
    found = polyml.einsum(BOLTZMANN.replace("STREAM", STREAM))(f, CX * 1.0, CY * 1.0, w, 1.2, 3)
    for _ in range(3):
        rho = f.sum(0)
        u, v = (np.tensordot(c, f, 1) / rho for c in (CX, CY))
        c = CX[:, None, None] * u + CY[:, None, None] * v
        g = f + 1.2 * (rho * w[:, None, None] * (1 + 3 * c + 4.5 * c**2 - 1.5 * (u**2 + v**2)) - f)
        f = np.stack([np.roll(g[q], (CX[q], CY[q]), (0, 1)) for q in range(9)])
    np.testing.assert_allclose(found, f, rtol=1e-12)


ISING = """
def ising(s: i32["H W"], r: f64["T H W"], beta: f64):
    for t in range(T):
        for c in range(2):
            if (i + j) % 2 == c:
                s[i, j] = where(r[t, i, j] < exp(-beta * 2.0 * s[i, j] * (s[(i + 1) % H, j] + s[(i - 1) % H, j] + s[i, (j + 1) % W] + s[i, (j - 1) % W])), -s[i, j], s[i, j])
    return s
"""


@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 8)), 22])
def test_ising_model(size: int) -> None:
    """Each half of a checkerboard is updated in place from the other one, across its borders."""
    rng = np.random.default_rng(1)
    s, r = rng.choice(np.array([-1, 1], np.int32), (size, size + 2)), rng.random((3, size, size + 2))
    want = s.copy()
    parity = np.add.outer(np.arange(size), np.arange(size + 2)) % 2
    for step in r:
        for c in (0, 1):
            near = sum(np.roll(want, shift, axis) for shift in (-1, 1) for axis in (0, 1))
            want = np.where((parity == c) & (step < np.exp(-0.8 * want * near)), -want, want)
    np.testing.assert_array_equal(polyml.einsum(ISING)(s, r, 0.4), want)


ADVECTION = """
def advection(us: f64["I J K"], uo: f64["I J K"], w: f64["I+1 J K"], up: f64["I J K"], dtr: f64):
    c: f64["I J K"]
    d: f64["I J K"]
    x: f64["I J K"]
    a: f64["I J"]
    g: f64["I J"]
    v: f64["I J"]
    for k in range(K):
        if i < I:
            a[i, j] = -0.125 * (w[i + 1, j, k] + w[i, j, k])
        if k == 0 and i < I:
            g[i, j] = 0.125 * (w[i + 1, j, 1] + w[i, j, 1])
            c[i, j, 0] = g[i, j] / (dtr - g[i, j])
            d[i, j, 0] = (dtr * up[i, j, 0] + us[i, j, 0] - g[i, j] * (uo[i, j, 1] - uo[i, j, 0])) / (dtr - g[i, j])
        if 0 < k < K - 1 and i < I:
            g[i, j] = 0.125 * (w[i + 1, j, k + 1] + w[i, j, k + 1])
            v[i, j] = 1 / (dtr - a[i, j] - g[i, j] - c[i, j, k - 1] * a[i, j])
            c[i, j, k] = g[i, j] * v[i, j]
            d[i, j, k] = (dtr * up[i, j, k] + us[i, j, k] - a[i, j] * (uo[i, j, k - 1] - uo[i, j, k]) - g[i, j] * (uo[i, j, k + 1] - uo[i, j, k]) - d[i, j, k - 1] * a[i, j]) * v[i, j]
        if k == K - 1:
            d[i, j, k] = (dtr * up[i, j, k] + us[i, j, k] - a[i, j] * (uo[i, j, k - 1] - uo[i, j, k]) - d[i, j, k - 1] * a[i, j]) / (dtr - a[i, j] - c[i, j, k - 1] * a[i, j])
    x[i, j, K - 1] = d[i, j, K - 1]
    for k in range(K - 2, -1, -1):
        x[i, j, k] = d[i, j, k] - c[i, j, k] * x[i, j, k + 1]
    y[i, j, k] = dtr * (x[i, j, k] - up[i, j, k])
    return y
"""


@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5)), 13])
def test_vertical_advection(size: int) -> None:
    """A tridiagonal system along the last dimension, with cases by the loop's variable."""
    rng = np.random.default_rng(2)
    us, uo, up = rng.random((3, size, size + 1, size + 2))
    w = rng.random((size + 1, size + 1, size + 2))
    found = polyml.einsum(ADVECTION)(us, uo, w, up, 3.0)
    last = size + 1
    side = 0.125 * (w[1:] + w[:-1])
    lower, upper = np.zeros_like(us), np.zeros_like(us)
    lower[..., 1:], upper[..., :-1] = -side[..., 1:], side[..., 1:]
    right = 3.0 * up + us
    right[..., 1:] -= lower[..., 1:] * (uo[..., :-1] - uo[..., 1:])
    right[..., :-1] -= upper[..., :-1] * (uo[..., 1:] - uo[..., :-1])
    matrix = np.zeros((*us.shape, last + 1))
    at = np.arange(last + 1)
    matrix[..., at, at] = 3.0 - lower - upper
    matrix[..., at[1:], at[:-1]], matrix[..., at[:-1], at[1:]] = lower[..., 1:], upper[..., :-1]
    want = 3.0 * (np.linalg.solve(matrix, right[..., None])[..., 0] - up)
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-9)


PERLIN = """
def perlin(g: f64["Q Q 2"], P: int, N: int):
    f: f64["N"]
    y: f64["N N"]
    f[i] = (i % P) / P
    u[i] = f[i] ** 3 * (f[i] * (f[i] * 6 - 15) + 10)
    y[i, j] = (g[i // P, j // P, 0] * f[i] + g[i // P, j // P, 1] * f[j]) * (1 - u[j]) * (1 - u[i]) + (g[i // P, j // P + 1, 0] * f[i] + g[i // P, j // P + 1, 1] * (f[j] - 1)) * u[j] * (1 - u[i]) + (g[i // P + 1, j // P, 0] * (f[i] - 1) + g[i // P + 1, j // P, 1] * f[j]) * (1 - u[j]) * u[i] + (g[i // P + 1, j // P + 1, 0] * (f[i] - 1) + g[i // P + 1, j // P + 1, 1] * (f[j] - 1)) * u[j] * u[i]
    return y
"""


@pytest.mark.parametrize(("cells", "points"), [(1, 5), (3, 7), (4, 16)])
@pytest.mark.few(2)
def test_perlin_noise(cells: int, points: int) -> None:
    """Quotients and remainders of two indices by an int beside each other."""
    g = np.random.default_rng(3).standard_normal((cells + 1, cells + 1, 2))
    at = np.arange(cells * points)
    cell, f = at // points, (at % points) / points
    u = f**3 * (f * (f * 6 - 15) + 10)

    def corner(a: int, b: int) -> np.ndarray:
        near = g[cell[:, None] + a, cell[None] + b]
        return near[..., 0] * (f[:, None] - a) + near[..., 1] * (f[None] - b)

    rows = [corner(a, 0) * (1 - u) + corner(a, 1) * u for a in (0, 1)]
    want = rows[0] * (1 - u[:, None]) + rows[1] * u[:, None]
    np.testing.assert_allclose(polyml.einsum(PERLIN)(g, points, cells * points), want, rtol=1e-11, atol=1e-12)


def _fourier(stages: int) -> str:
    """A Fourier transform of 2**stages numbers after Stockham: in each stage, blocks of half as many neighbours become pairs of sums and differences."""
    n, lines, before = 2**stages, [], "x"
    for k in range(stages):
        half, near = n >> (k + 1), 1 << k
        lines += [f'a{k}: c128["{half} {near}"]', f'b{k}: c128["{half} {near}"]', f'y{k}: c128["{n}"]']
        first, second = f"{before}[q + {near}*p]", f"{before}[q + {near}*p + {near * half}]"
        lines += [
            f"a{k}[p, q] = {first} + {second}",
            f"b{k}[p, q] = ({first} - {second}) * exp(-2j * pi * p / {2 * half})",
        ]
        lines += [f"if p < {half} and q < {near}:"]
        lines += [f"    y{k}[q + {2 * near}*p] = a{k}[p, q]", f"    y{k}[q + {2 * near}*p + {near}] = b{k}[p, q]"]
        before = f"y{k}"
    return f'def fourier(x: c128["{n}"]):\n    ' + "\n    ".join([*lines, f"return {before}"]) + "\n"


@pytest.mark.parametrize("stages", [1, pytest.param(3, marks=pytest.mark.slow), 6])
def test_stages_of_a_fourier_transform(stages: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(2**stages) + 1j * rng.standard_normal(2**stages)
    np.testing.assert_allclose(polyml.einsum(_fourier(stages))(x), np.fft.fft(x), rtol=1e-12, atol=1e-12)
