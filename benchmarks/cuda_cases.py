"""What benchmarks/cuda.py measures: programs at sizes that fill a GPU, the same in NumPy (for the reference in float64), and in torch's words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.contractions import CASES as CONTRACTIONS
from benchmarks.contractions import read_cases
from polyml.demo.showcase import SHOWCASES

__all__ = ["CASES", "Array", "Case", "contractions"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Case:
    """name, text: the program. shapes: of its f32 inputs. numpy: the same function. flops, bytes: at least needed. torch: the same with torch tensors x, y, z, as text.
    triton: a function of cuda_triton.py that does the same, or "". compile: whether torch.compile is a contender. family: cases that a bound speaks of together.
    dynamic: polyml's kernel is one for any sizes."""

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    numpy: Callable[..., Array]
    flops: float
    bytes: float
    torch: str
    triton: str = ""
    compile: bool = False
    family: str = ""
    dynamic: bool = False

    def arguments(self, rng: np.random.Generator) -> tuple[Array, ...]:
        return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in self.shapes)


MATMUL = 'def matmul(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
POINTWISE = 'def bias_gelu(x: f32["N K"], b: f32["K"], r: f32["N K"]):\n    y[n, k] = gelu(x[n, k] + b[k]) + r[n, k]\n    return y\n'
COPY = 'def copy(x: f32["N"]):\n    y[n] = x[n]\n    return y\n'
CONVOLUTION = 'def conv(x: f32["B C N M"], w: f32["F C K L"]):\n    y[b, f, i, j] = x[b, c, i + u, j + v] * w[f, c, u, v]\n    return y\n'
BLUR = 'def blur(x: f32["N M"], w: f32["K L"]):\n    y[i, j] = x[i + u, j + v] * w[u, v]\n    return y\n'
POWER = """
def power(x: f32["N N"]):
    y[n, m] = x[n, m]
    for t in range(4):
        y[n, m] = y[n, k] * x[k, m]
    return y
"""
"""Sequential steps with a contraction each."""
TOTAL = 'def total(x: f32["N"]):\n    s = x[n]\n    return s\n'
_SHOWN = {case.name: case for case in SHOWCASES}
_BIG = 8192


def _gelu(x: Array, b: Array, r: Array) -> Array:
    """erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26): far below the tolerance, and a hundred times as fast as math.erf for each element."""
    z = x + b
    a = np.abs(z) * math.sqrt(0.5)
    t = 1 / (1 + 0.3275911 * a)
    rest = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return 0.5 * z * (1 + np.sign(z) * (1 - rest * np.exp(-a * a))) + r


def _powers(x: Array) -> Array:
    return np.linalg.multi_dot([x] * 5)


def _convolved(x: Array, w: Array) -> Array:
    total: Array | None = None
    rows, columns = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    for u in range(w.shape[2]):
        for v in range(w.shape[3]):
            part = np.einsum("bcij,fc->bfij", x[:, :, u : u + rows, v : v + columns], w[:, :, u, v], optimize=True)
            total = part if total is None else total + part
    assert total is not None
    return total


CASES: tuple[Case, ...] = (
    Case("copy", COPY, ((1 << 26,),), lambda x: x.copy(), 0, 2 * 4 * (1 << 26), "x.clone()", triton="copy"),
    Case("sum", TOTAL, ((1 << 26,),), np.sum, 1 << 26, 4 * (1 << 26), "x.sum()"),
    Case("matmul 4096", MATMUL, ((4096, 4096), (4096, 4096)), np.matmul, 2 * 4096**3, 3 * 4 * 4096**2, "x @ y", triton="matmul"),
    Case("matmul 4096, any sizes", MATMUL, ((4096, 4096), (4096, 4096)), np.matmul, 2 * 4096**3, 3 * 4 * 4096**2, "x @ y", dynamic=True),
    Case("matmul 1000 x 3000 x 517", MATMUL, ((1000, 3000), (3000, 517)), np.matmul, 2.0 * 1000 * 3000 * 517, 4 * (1000 * 3000 + 3000 * 517 + 1000 * 517), "x @ y"),
    Case(
        "bias, gelu, residual", POINTWISE, ((_BIG, _BIG // 2), (_BIG // 2,), (_BIG, _BIG // 2)), _gelu, 0, 3 * 4 * _BIG * _BIG // 2,
        "torch.nn.functional.gelu(x + y) + z", compile=True, family="copy bandwidth",
    ),
    Case("softmax", _SHOWN["softmax"].text, ((_BIG, _BIG),), _SHOWN["softmax"].numpy, 0, 2 * 4 * _BIG**2, "torch.softmax(x, 1)",
         triton="softmax", compile=True, family="copy bandwidth"),
    Case(
        "layer norm", _SHOWN["layer norm"].text, ((_BIG, _BIG), (_BIG,), (_BIG,)), _SHOWN["layer norm"].numpy, 0, 2 * 4 * _BIG**2,
        "torch.nn.functional.layer_norm(x, x.shape[1:], y, z)", compile=True, family="copy bandwidth",
    ),
    Case(
        "attention", _SHOWN["attention"].text, ((4, 16, 1024, 64),) * 3, _SHOWN["attention"].numpy, 4 * 4 * 16 * 1024**2 * 64,
        4 * 4 * 4 * 16 * 1024 * 64, "torch.softmax(x @ y.transpose(-1, -2) / x.shape[-1] ** 0.5, -1) @ z", compile=True,
    ),
    Case(
        "power, 4 steps", POWER, ((2048, 2048),), _powers, 4 * 2 * 2048**3, 5 * 4 * 2048**2,
        "functools.reduce(lambda p, _: p @ x, range(4), x)",
    ),
    Case(
        "convolution 3 x 3", CONVOLUTION, ((32, 64, 58, 58), (64, 64, 3, 3)), _convolved, 2.0 * 32 * 64 * 56 * 56 * 64 * 9,
        4.0 * 32 * 64 * (58 * 58 + 56 * 56), "torch.nn.functional.conv2d(x, y)",
    ),
    Case(
        "blur 5 x 5", BLUR, ((_BIG, _BIG), (5, 5)), lambda x, w: _convolved(x[None, None], w[None, None])[0, 0], 50.0 * _BIG**2,
        2 * 4 * _BIG**2, "torch.nn.functional.conv2d(x[None, None], y[None, None])[0, 0]",
    ),
)  # fmt: skip
"""The first one says what the device's copy bandwidth is."""


def contractions() -> Iterator[Case]:
    """The cases of data/contractions.csv in f32, beside torch.einsum."""
    for case in read_cases(CONTRACTIONS):
        if case.dtype == "float32":
            first, second, out = case.shapes()
            size = 4.0 * sum(math.prod(shape) for shape in (first, second, out))
            yield Case(
                case.name, case.program(), (first, second),
                lambda x, y, notation=case.einsum: np.einsum(notation, x, y, optimize=True),
                case.flops, size, f"torch.einsum({case.einsum!r}, x, y)", family="torch.einsum",
            )  # fmt: skip
