"""Schedules written by hand, generated, lowered and compiled: what NumPy computes, on arrays that end at a guard page."""

from __future__ import annotations

import numpy as np

from polyml.codegen.generate import generate
from polyml.codegen.loops import Function
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from tests.codegen.hand import dense_schedule, softmax_schedule
from tests.codegen.llvm.support import run_function


def compiled(program: Function, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> dict[str, np.ndarray]:
    after, _ = lower_loops(program, options=LoopOptions(vector_bytes=32))
    return run_function(after, arrays, sizes)


def test_dense() -> None:
    n, m, k = 13, 39, 5
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(s).astype(np.float32) for s in ((n, k), (k, m), (m,)))
    function = generate(dense_schedule(n, m, k), name="dense")
    found = compiled(function, {"x": x, "w": w, "b": b, "y": np.zeros((n, m), np.float32)}, {})
    np.testing.assert_allclose(found["y"], np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-6)


def test_softmax() -> None:
    x = np.random.default_rng(0).standard_normal((3, 71)).astype(np.float32)
    function = generate(softmax_schedule(3, 71), name="softmax")
    found = compiled(function, {"x": x, "y": np.zeros((3, 71), np.float32)}, {})
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found["y"], e / e.sum(1, keepdims=True), rtol=1e-5)
