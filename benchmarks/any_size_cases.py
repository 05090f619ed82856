"""What `python -m benchmarks.any_size` measures: programs and large arguments for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.convolutions import Convolution
from benchmarks.fused_cases import CASES as FUSED
from benchmarks.fused_cases import Array, normal
from benchmarks.model_cases import CASES as MODELS
from benchmarks.polybench import KERNELS

__all__ = ["CASES", "Array", "Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """text: the einsum program. arguments: its inputs. dynamic: the sizes that are symbolic."""

    name: str
    text: str
    arguments: Callable[[np.random.Generator], tuple[Any, ...]]
    dynamic: bool | tuple[str, ...] = True


def contraction(notation: str, *shapes: tuple[int, ...], kind: str = "f32") -> Case:
    """An einsum of tensors of these shapes."""
    operands, out = notation.split("->")
    parts = operands.split(",")
    names = "uvwx"[: len(parts)]
    declared = ", ".join(f'{n}: {kind}["{" ".join(part.upper())}"]' for n, part in zip(names, parts, strict=True))
    terms = " * ".join(f"{n}[{', '.join(part)}]" for n, part in zip(names, parts, strict=True))
    text = f"def product({declared}):\n    y[{', '.join(out)}] = {terms}\n    return y\n"
    dtype = {"f32": np.float32, "f64": np.float64}[kind]

    def arguments(rng: np.random.Generator) -> tuple[Array, ...]:
        return tuple(normal(rng, *shape).astype(dtype) for shape in shapes)

    sizes = " ".join("x".join(map(str, shape)) for shape in shapes)
    return Case(f"{notation} {kind} {sizes}", text, arguments)


def contractions() -> tuple[Case, ...]:
    """Contractions of tensors of three to six indices: such that join, TCCG's at medium sizes, and batches."""
    return tuple(
        contraction(notation, *(tuple(extents[i] for i in part) for part in notation.split("->")[0].split(",")))
        for notation, extents in (
            (notation, dict(zip(sorted(set(notation) - set(",->")), numbers, strict=True)))
            for notation, numbers in TENSORS.items()
        )
    )


def convolution(channels: int, height: int, filters: int, kernel: int, stride: int, padding: int) -> Case:
    """One layer: its channels, filters and image are symbolic, and short windows numbers."""
    layer = Convolution("", channels, height, height, filters, kernel, stride, padding, 1)
    image, weights, _ = layer.shapes()
    name = f"convolution {kernel}x{kernel} {channels}->{filters} at {height}, stride {stride}, padding {padding}"
    return Case(name, layer.program(), lambda rng: (normal(rng, *image), normal(rng, *weights)))


def polybench(name: str, **sizes: int) -> Case:
    """A kernel of PolyBench at these sizes."""
    kernel = KERNELS[name]
    shown = " ".join(map(str, sizes.values()))
    return Case(f"{name} {shown}", kernel.text, lambda rng: kernel.data(sizes, rng))


def simple(name: str, text: str, *shapes: tuple[int, ...], dynamic: bool | tuple[str, ...] = True) -> Case:
    return Case(name, text, lambda rng: tuple(normal(rng, *shape) for shape in shapes), dynamic)


ATTENTION = """
def attention(q: f32["B H S D"], k: f32["B H T D"], v: f32["B H T D"]):
    a[b, h, i, j] = q[b, h, i, d] * k[b, h, j, d]
    m[b, h, i] = max[j](a[b, h, i, j])
    e[b, h, i, j] = exp((a[b, h, i, j] - m[b, h, i]) / sqrt(D))
    s[b, h, i] = e[b, h, i, j]
    y[b, h, i, d] = sum[j](e[b, h, i, j] * v[b, h, j, d]) / s[b, h, i]
    return y
"""

SINGLE = """
def attention(q: f32["S D"], k: f32["T D"], v: f32["T D"]):
    a[i, j] = q[i, d] * k[j, d]
    m[i] = max[j](a[i, j])
    e[i, j] = exp((a[i, j] - m[i]) / sqrt(D))
    s[i] = e[i, j]
    y[i, d] = sum[j](e[i, j] * v[j, d]) / s[i]
    return y
"""

JACOBI = """
def jacobi(a: f32["N M"], steps: f32["T"]):
    b: f32["N M"]
    b[i, j] = a[i, j]
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            b[i, j] = 0.2 * (b[i, j] + b[i, j - 1] + b[i, j + 1] + b[i - 1, j] + b[i + 1, j])
    return b
"""

WAVE = """
def wave(u: f32["N M"], v: f32["N M"], steps: f32["T"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            v[i, j] = 2 * u[i, j] - v[i, j] + 0.1 * (u[i, j - 1] + u[i, j + 1] + u[i - 1, j] + u[i + 1, j] - 4 * u[i, j])
            u[i, j] = 2 * v[i, j] - u[i, j] + 0.1 * (v[i, j - 1] + v[i, j + 1] + v[i - 1, j] + v[i + 1, j] - 4 * v[i, j])
    return u, v
"""

SCAN = """
def scan(x: f32["S C"], g: f32["S C"]):
    h: f32["S C"]
    h[0, c] = x[0, c]
    for s in range(1, S):
        h[s, c] = sigmoid(g[s, c]) * h[s - 1, c] + x[s, c]
    return h
"""

BOX = """
def box(x: f32["N M"]):
    for t in range(3):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            x[i, j] = sum[a, b, 0 <= a < 3, 0 <= b < 3](x[i + a - 1, j + b - 1]) / 9
    return x
"""

SEPARABLE = """
def separable(x: f32["N M"], w: f32["5"]):
    r[i, j] = sum[k, 0 <= k < 5](w[k] * x[i, j + k])
    y[i, j] = sum[k, 0 <= k < 5](w[k] * r[i + k, j])
    return y
"""

SMOOTH_ROWS = """
def smooth(x: f64["N M"], a: f64):
    y: f64["N M"]
    z: f64["N M"]
    y[i, 0] = x[i, 0]
    for j in range(1, M):
        y[i, j] = a * x[i, j] + (1 - a) * y[i, j - 1]
    z[i, M - 1] = y[i, M - 1]
    for j in range(M - 2, -1, -1):
        z[i, j] = a * y[i, j] + (1 - a) * z[i, j + 1]
    return z
"""

SMOOTH_COLUMNS = """
def smooth(x: f64["N M"], a: f64):
    y: f64["N M"]
    z: f64["N M"]
    y[0, j] = x[0, j]
    for i in range(1, N):
        y[i, j] = a * x[i, j] + (1 - a) * y[i - 1, j]
    z[N - 1, j] = y[N - 1, j]
    for i in range(N - 2, -1, -1):
        z[i, j] = a * y[i, j] + (1 - a) * z[i + 1, j]
    return z
"""

STABLE = """
def stable(x: f32["N M"]):
    y: f32["N M"]
    y[i, 0] = x[i, 0]
    for j in range(1, M):
        y[i, j] = x[i, j] / (1 + y[i, j - 1] * y[i, j - 1])
    return y
"""

GAUSS_SEIDEL = """
def gauss_seidel(u: f64["N M"], f: f64["N M"], steps: f32["T"]):
    for t in range(T):
        for i in range(1, N - 1):
            for j in range(1, M - 1):
                u[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - f[i, j])
    return u
"""

ASSIGNMENT = """
def assignment(x: f32["N D"], c: f32["K D"]):
    d[n, k] = sum[j]((x[n, j] - c[k, j])**2)
    y[n] = argmin[k](d[n, k])
    return y
"""

ROWS = """
def f(x: f32["N M"], a: f32["M"], b: f32["N"]):
    r[n] = x[n, m] * a[m]
    s[m] = x[n, m] * b[n]
    return r, s
"""

GELU = """
def layer(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = gelu(x[n, k] * w[k, m] + b[m])
    return y
"""

TENSORS: dict[str, tuple[int, ...]] = {
    "ea,ebcd->abcd": (72, 60, 60, 60, 72),
    "efab,cdef->abcd": (40, 40, 40, 40, 40, 40),
    "ijkl,kl->ij": (60, 60, 50, 50),
    "dbea,ec->abcd": (60, 50, 50, 50, 60),
    "adb,cd->cba": (200, 200, 24, 200),
    "aebd,ce->dcba": (64, 56, 24, 64, 64),
    "dabe,ec->dcba": (64, 56, 24, 56, 64),
    "afbce,df->edcba": (32, 24, 24, 16, 32, 32),
    "ae,dcbe->dcba": (64, 48, 48, 48, 64),
    "ce,deba->dcba": (64, 48, 48, 48, 64),
    "dca,cbd->ba": (160, 150, 150, 160),
    "dca,bd->cba": (200, 190, 190, 200),
    "cda,db->cba": (200, 190, 190, 200),
    "ceda,dbe->cba": (64, 56, 56, 56, 64),
    "fbea,cedf->dcba": (40, 36, 36, 36, 36, 40),
    "fcea,debf->dcba": (40, 36, 36, 36, 36, 40),
    "cfae,edfb->dcba": (40, 40, 36, 36, 40, 36),
    "aged,cbfg->fedcba": (16, 14, 14, 16, 14, 14, 16),
    "cged,bafg->fedcba": (16, 14, 14, 16, 14, 14, 16),
    "bgfd,caeg->fedcba": (16, 14, 14, 16, 14, 14, 16),
    "abij,jk->abik": (16, 12, 50, 64, 64),
    "bhik,bhkj->bhij": (4, 8, 100, 100, 64),
    "bhik,bhjk->bhij": (4, 8, 100, 100, 64),
    "bijk,bjkl->bil": (10, 60, 20, 20, 70),
    "abcd,cdef->abef": (24, 24, 24, 24, 24, 24),
    "cdab,cdef->abef": (24, 24, 24, 24, 24, 24),
    "abc,dc->abd": (60, 70, 80, 90),
    "abc,cd->dab": (60, 70, 80, 90),
    "nhwc,cd->nhwd": (64, 64, 28, 4, 28),
    "nchw,dc->ndhw": (64, 64, 28, 4, 28),
}
"""Contractions, and the extents of their indices in the order of the alphabet."""

CASES: tuple[Case, ...] = (
    simple("attention 1x8x512x64", ATTENTION, *((1, 8, 512, 64),) * 3),
    simple("attention 4x8x512x64", ATTENTION, *((4, 8, 512, 64),) * 3),
    simple("attention 4x8x512x64, D a number", ATTENTION, *((4, 8, 512, 64),) * 3, dynamic=("B", "H", "S", "T")),
    simple("attention 1x8x128x64", ATTENTION, *((1, 8, 128, 64),) * 3),
    simple("attention 2x4x1000x128", ATTENTION, *((2, 4, 1000, 128),) * 3),
    simple("attention 1x2x2048x64", ATTENTION, *((1, 2, 2048, 64),) * 3),
    simple("attention 1x4x333x80", ATTENTION, *((1, 4, 333, 80),) * 3),
    simple("attention 1x16x64x2048x32", ATTENTION, (1, 16, 64, 32), (1, 16, 2048, 32), (1, 16, 2048, 32)),
    simple("attention 512x64", SINGLE, *((512, 64),) * 3),
    simple("attention 2048x64", SINGLE, *((2048, 64),) * 3),
    simple("jacobi 500x500 10", JACOBI, (500, 500), (10,)),
    simple("jacobi 2000x1500 40", JACOBI, (2000, 1500), (40,)),
    simple("jacobi 300x4001 20", JACOBI, (300, 4001), (20,)),
    simple("wave 800x900 20", WAVE, (800, 900), (800, 900), (20,)),
    simple("gated scan 4096x1024", SCAN, (4096, 1024), (4096, 1024)),
    simple("gated scan 500x3001", SCAN, (500, 3001), (500, 3001)),
    simple("box filter 1000x1203", BOX, (1000, 1203)),
    simple("separable filter 1000x1203", SEPARABLE, (1000, 1203), (5,)),
    Case("smooth rows 1001x1203", SMOOTH_ROWS, lambda rng: (rng.random((1001, 1203)), 0.3)),
    Case("smooth columns 1001x1203", SMOOTH_COLUMNS, lambda rng: (rng.random((1001, 1203)), 0.3)),
    simple("nonlinear rows 1000x700", STABLE, (1000, 700)),
    Case(
        "gauss-seidel 601x703 20",
        GAUSS_SEIDEL,
        lambda rng: (rng.random((601, 703)), rng.random((601, 703)), normal(rng, 20)),
    ),
    simple("k-means 8192x32x256", ASSIGNMENT, (8192, 32), (256, 32)),
    simple("rows and columns 2000x2000", ROWS, (2000, 2000), (2000,), (2000,)),
    simple("gelu(x w + b) 1024x512x1024", GELU, (1024, 512), (512, 1024), (1024,)),
    simple("gelu(x w + b) 300x300x300", GELU, (300, 300), (300, 300), (300,)),
    *(
        Case(case.name, case.text, case.arguments)
        for case in FUSED
        if case.name not in ("attention", "padded convolution", "k-means assignment")
    ),
    *(
        contraction(f"{left},{right}->ij", *(tuple(sizes[i] for i in part) for part in (left, right)), kind=kind)
        for left in ("ik", "ki")
        for right in ("kj", "jk")
        for sizes, kind in (
            ({"i": 512, "j": 512, "k": 512}, "f32"),
            ({"i": 1000, "j": 700, "k": 333}, "f32"),
            ({"i": 500, "j": 500, "k": 500}, "f64"),
        )
    ),
    contraction("bik,bkj->bij", (16, 128, 128), (16, 128, 128)),
    contraction("bik,bjk->bij", (64, 100, 64), (64, 100, 64)),
    contraction("ik,kj->ij", (8, 2048), (2048, 2048)),
    contraction("ik,kj->ij", (4, 1024), (1024, 4096)),
    contraction("ik,kj->ij", (7, 1000), (1000, 3000)),
    contraction("ik,kj->ij", (300, 300), (300, 300)),
    contraction("ik,kj->ij", (30000, 180), (180, 32)),
    contraction("ik,k->i", (3000, 3000), (3000,)),
    contraction("ki,k->i", (3000, 3000), (3000,)),
    contraction("ijk,jr,kr->ir", (200, 150, 180), (150, 32), (180, 32)),
    contraction("ij,jk,kl->il", (400, 300), (300, 500), (500, 200)),
    contraction("abc,ad,be->dec", (60, 70, 80), (60, 50), (70, 40)),
    contraction("abcd,dc->ab", (40, 50, 32, 48), (48, 32)),
    contraction("abc,bd->adc", (96, 96, 96), (96, 96)),
    contraction("abc,dca->bd", (48, 64, 80), (100, 80, 48)),
    *contractions(),
    contraction("i,j->ij", (3000,), (3000,)),
    contraction("ij->ji", (3000, 3000)),
    contraction("abc->cba", (200, 200, 200)),
    contraction("ij->j", (3000, 3000)),
    convolution(64, 56, 64, 3, 1, 1),
    convolution(256, 14, 256, 3, 1, 1),
    convolution(512, 7, 512, 3, 1, 1),
    convolution(128, 56, 128, 3, 2, 1),
    convolution(3, 224, 64, 7, 2, 3),
    convolution(50, 67, 50, 5, 1, 0),
    convolution(1, 1000, 1, 5, 1, 0),
    *(
        Case(case.name, case.text, case.arguments)
        for case in MODELS
        if case.name not in ("gated scan", "residual block")
    ),
    *(
        polybench(name, **sizes)
        for name, sizes in {
            "correlation": {"M": 500, "N": 600},
            "covariance": {"M": 500, "N": 600},
            "2mm": {"NI": 400, "NJ": 450, "NK": 500, "NL": 600},
            "doitgen": {"NQ": 70, "NR": 75, "NP": 80},
            "atax": {"M": 1900, "N": 2100},
            "gemver": {"N": 2000},
            "gesummv": {"N": 1300},
            "symm": {"M": 500, "N": 600},
            "syr2k": {"M": 500, "N": 600},
            "syrk": {"M": 500, "N": 600},
            "trmm": {"M": 500, "N": 600},
            "cholesky": {"N": 600},
            "durbin": {"N": 2000},
            "gramschmidt": {"M": 400, "N": 500},
            "lu": {"N": 600},
            "trisolv": {"N": 2000},
            "deriche": {"W": 1000, "H": 1200},
            "floyd-warshall": {"N": 500},
            "nussinov": {"N": 400},
            "adi": {"TSTEPS": 10, "N": 600},
            "fdtd-2d": {"TMAX": 30, "NX": 700, "NY": 800},
            "heat-3d": {"TSTEPS": 20, "N": 120},
            "jacobi-1d": {"TSTEPS": 200, "N": 100_000},
            "jacobi-2d": {"TSTEPS": 50, "N": 1000},
            "seidel-2d": {"TSTEPS": 20, "N": 500},
        }.items()
    ),
)
