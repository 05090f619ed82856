"""Contractions in tiles for symbolic sizes, and in sequential loops, whose steps are launches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import polyml
import polyml.runtime.cuda.pycuda_device as cuda
from polyml.codegen.cuda.proofs.barriers import barrier_faults
from polyml.codegen.loops import Allocate, Block, Node
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_regions
from tests.cuda.batch import Batch, compile_batch, needs_gxx, results_of
from tests.cuda.emulator.device import EmulatedDevice
from tests.cuda.test_tiles import BATCH, DENSE, FILTER, HALF, MATMUL, ONWARD, SMALL, TRANSPOSED, arrays, filtered

MIXED = 'def f(x: f32["N 24"], w: f32["24 M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'

ANY_SIZE = [
    (MATMUL, lambda n, m, k: arrays((n, k), (k, m)), lambda x, w: x @ w),
    (DENSE, lambda n, m, k: arrays((n, k), (k, m), (m,)), lambda x, w, b: np.maximum(x @ w + b, 0)),
    (HALF, lambda n, m, k: arrays((n, k), (k, m), dtype=np.float16), lambda x, w: x @ w),
    (TRANSPOSED, lambda n, m, k: arrays((n, k), (m, k)), lambda x, w: x @ w.T),
    (ONWARD, lambda n, m, k: arrays((n, m), (n, k), (k, m)), lambda c, x, w: c + x @ w),
    (MIXED, lambda n, m, k: arrays((n, 24), (24, m)), lambda x, w: x @ w),
]
SIZES = [(128, 128, 32), (129, 75, 21), (1, 1, 1), (5, 200, 16), (64, 3, 50)]

MORE = [
    (FILTER, arrays((7, 66), (33, 7, 3)), filtered),
    (BATCH, arrays((3, 20, 33), (3, 20, 40), dtype=np.float64), lambda x, w: np.einsum("bkn,bkm->bnm", x, w)),
]

ROWS = 'def f(T: int, h: f32["N M"], w: f32["M M"]):\n    for t in range(T):\n        h[n, m] = tanh(h[n, k] * w[k, m])\n    return h\n'
POWER = 'def f(T: int, p: f32["N N"]):\n    for t in range(T):\n        p[n, m] = p[n, k] * p[k, m]\n    return p\n'
RECURRENT = """
def f(x: f32["T N K"], h: f32["N M"], w: f32["K M"], u: f32["M M"]):
    for t in range(T):
        h[n, m] = tanh(x[t, n, k] * w[k, m] + h[n, j] * u[j, m])
    return h
"""
BACKWARDS = """
def f(x: f32["T N K"], h: f32["N M"], u: f32["M M"]):
    for t in range(T - 1, -1, -2):
        h[n, m] = 0.5 * (h[n, k] * u[k, m]) + x[t, n, k] * u[k, m]
    return h
"""


def small(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [a / 8 for a in arrays(*shapes)]


def of_rows(steps: int, h: np.ndarray, w: np.ndarray) -> np.ndarray:
    for _ in range(steps):
        h = np.tanh(h @ w)
    return h


def power(steps: int, p: np.ndarray) -> np.ndarray:
    for _ in range(steps):
        p = p @ p
    return p


def recurrent(x: np.ndarray, h: np.ndarray, w: np.ndarray, u: np.ndarray) -> np.ndarray:
    for row in x:
        h = np.tanh(row @ w + h @ u)
    return h


def backwards(x: np.ndarray, h: np.ndarray, u: np.ndarray) -> np.ndarray:
    for t in range(len(x) - 1, -1, -2):
        h = 0.5 * (h @ u) + x[t] @ u
    return h


LOOPS = [
    (ROWS, [3, *small((70, 37), (37, 37))], of_rows),
    (POWER, [3, *small((45, 45))], power),
    (RECURRENT, small((3, 33, 18), (33, 40), (18, 40), (40, 40)), recurrent),
    (BACKWARDS, small((5, 40, 33), (40, 33), (33, 33)), backwards),
]


def agree(batch: Batch, number: int, given: list[object], exact: object, orders: range = range(4)) -> None:
    kernel = batch.kernels[number]
    wanted = exact(*(a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in given))  # type: ignore[operator]
    for order in orders:
        kernel.module.orders = itertools.cycle((order,))
        (found,) = results_of(kernel(*(a.copy() if isinstance(a, np.ndarray) else a for a in given)))
        bound = 4e-3 if found.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound)


@needs_gxx
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_any_sizes(few: bool) -> None:
    """One kernel for all of them: whole tiles, edges, and less than a tile."""
    any_size, more = (ANY_SIZE[1:3], MORE[:1]) if few else (ANY_SIZE[:1] + ANY_SIZE[3:], MORE[1:])
    programs = [(text, make(40, 40, 40)) for text, make, _ in any_size] + [(text, given) for text, given, _ in more]
    batch = compile_batch(programs, target=SMALL, dynamic=True)
    for kernel in batch.kernels:
        assert any("_tile[" in batch.text[batch.text.index(f" {k.name}(") :][:1500] for k in kernel.cuda.kernels)
    for number, (_, make, exact) in enumerate(any_size):
        for k, (n, m, depth) in enumerate(SIZES):
            agree(batch, number, make(n, m, depth), exact, range(4) if k < 2 else range(k % 4, k % 4 + 1))
    for number, (_, given, exact) in enumerate(more, len(any_size)):
        agree(batch, number, given, exact)


@needs_gxx
def test_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice()
    monkeypatch.setattr(cuda, "the_device", lambda: device)
    f = polyml.einsum(MATMUL, target=SMALL, dynamic=True)
    for n, m, k in ((0, 5, 4), (3, 2, 0), (2, 3, 4)):
        x, w = arrays((n, k), (k, m))
        np.testing.assert_allclose(f(x, w), x @ w, rtol=1e-4, atol=1e-5)


@needs_gxx
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_loops_of_launches(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    monkeypatch.setattr("polyml.schedule.strategy.cuda.nests.LAUNCH", 1)
    cases = LOOPS[1:2] if dynamic else LOOPS
    batch = compile_batch([(text, given) for text, given, _ in cases], target=SMALL, dynamic=dynamic)
    for number, (text, given, exact) in enumerate(cases):
        names = [k.name for k in batch.kernels[number].cuda.kernels]
        assert any("_tile[" in batch.text[batch.text.index(f" {name}(") :][:1500] for name in names), text
        agree(batch, number, given, exact)
    if not dynamic:
        agree(batch, 0, [0, *LOOPS[0][1][1:]], of_rows, range(1))


ATTENTION = """
def f(q: f32["B S D"], k: f32["B S D"], v: f32["B S D"]):
    a[b, i, j] = q[b, i, d] * k[b, j, d]
    m[b, i] = max[j](a[b, i, j])
    e[b, i, j] = exp((a[b, i, j] - m[b, i]) / sqrt(D))
    s[b, i] = e[b, i, j]
    y[b, i, d] = sum[j](e[b, i, j] * v[b, j, d]) / s[b, i]
    return y
"""
LAYER = """
def f(x: f32["N K"], w: f32["K M"], g: f32["M"]):
    h[n, m] = x[n, k] * w[k, m]
    e[n, m] = exp(h[n, m] - max[l](h[n, l])) * g[m]
    y[n, m] = e[n, m] / sum[l](e[n, l])
    return y
"""


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    a = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2])
    e = np.exp(a - a.max(2, keepdims=True))
    return e @ v / e.sum(2, keepdims=True)


def layer(x: np.ndarray, w: np.ndarray, g: np.ndarray) -> np.ndarray:
    h = x @ w
    e = np.exp(h - h.max(1, keepdims=True)) * g
    return e / e.sum(1, keepdims=True)


AMONG_OTHERS = [
    (ATTENTION, small((2, 67, 40), (2, 67, 40), (2, 67, 40)), attended),
    (LAYER, [*small((70, 33), (33, 50)), np.ones(50, np.float32)], layer),
]

TURNED = 'def f(x: f32["A D B"], y: f32["C D"]):\n    z[c, b, a] = x[a, d, b] * y[c, d]\n    return z\n'
PAIRS = 'def f(x: f32["E A D"], y: f32["B C D"]):\n    z[e, b, c, a] = x[e, a, d] * y[b, c, d]\n    return z\n'


@needs_gxx
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("unreported")
def test_operands_of_three_dimensions(count: int) -> None:
    """A tile's rows are padded, not its single elements; and tiles may be 24 or 96 wide."""
    cases = [
        (TURNED, small((100, 21, 3), (24, 21)), lambda x, y: np.einsum("adb,cd->cba", x, y)),
        (PAIRS, small((2, 90, 18), (3, 95, 18)), lambda x, y: np.einsum("ead,bcd->ebca", x, y)),
    ][:count]
    batch = compile_batch([(text, given) for text, given, _ in cases], target=SMALL, verify=True)
    for number, (_, given, exact) in enumerate(cases):
        agree(batch, number, given, exact)
    told = polyml.einsum(TURNED, target="cuda-sm_90").explain(
        np.empty((384,) * 3, np.float32), np.empty((24, 384), np.float32)
    )
    assert "tiles of 24 c x 128 a" in told
    assert " 1 x 1 x 1 threads" not in told


@needs_gxx
@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_contractions_among_reductions_of_rows() -> None:
    """Their tiles have kernels of their own where that saves more than device memory costs."""
    batch = compile_batch([(text, given) for text, given, _ in AMONG_OTHERS], target=SMALL, verify=True)
    for number, ((_, given, exact), tiles) in enumerate(zip(AMONG_OTHERS, ("qkev", "xw"), strict=True)):
        kernels = batch.kernels[number].cuda.kernels
        names = {n.variable.name for k in kernels for n in walk_nodes(k.function.body) if isinstance(n, Allocate)}
        assert {f"{name}_tile" for name in tiles} <= names
        agree(batch, number, given, exact)
    # In order: else scores would stay in the block.
    kept = [
        polyml.einsum(ATTENTION, target="cuda", precise=True).explain(*(np.ones((1, s, 64), np.float32),) * 3)
        for s in (4096, 20_000)
    ]
    assert ["staged through shared memory" in text for text in kept] == [True, False], "1.6 GB are too much"


def without_barriers(node: Node) -> Node:
    node = replace(node, barrier=False) if isinstance(node, Block) else node
    return with_body(node, lambda body: tuple(map(without_barriers, body)))


@pytest.mark.parametrize(
    ("text", "given", "dynamic"),
    [(MATMUL, arrays((40, 40), (40, 40)), True), pytest.param(POWER, LOOPS[1][1], False, marks=pytest.mark.slow)],
)
def test_storage_and_barriers_are_proved(
    monkeypatch: pytest.MonkeyPatch, text: str, given: list[object], dynamic: bool
) -> None:
    """`verify` asks isl for both; without a barrier the second proof fails."""
    monkeypatch.setattr("polyml.schedule.strategy.cuda.nests.LAUNCH", 1)
    program = polyml.einsum(text, target=SMALL, dynamic=dynamic, verify=True)
    stages = lower_program(program.program, program.key_of(*given), program.options)
    kernels = [k for region in cuda_regions(stages) for k in region.kernels]
    (tiled, *_) = [k for k in kernels if k.shared_bytes > 2000]

    bare = tuple(map(without_barriers, tiled.function.body))
    assert barrier_faults(replace(tiled, function=replace(tiled.function, body=bare))) != []


def test_little_work_per_step_stays_in_a_block() -> None:
    text = compile_batch([(ROWS, [3, *small((20, 37), (37, 37))])], target=SMALL, build=False).text
    assert "_tile[" not in text
    large = compile_batch([(ROWS, [3, *arrays((512, 512), (512, 512))])], target="cuda", build=False).text
    assert "h_tile[" in large
