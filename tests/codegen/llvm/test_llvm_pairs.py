"""Products of pairs of bf16, by the instruction and in f32, one by one and in vectors of every width, against NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from polyml.codegen.c.emit import assemble, function_text
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.machine import compile_object, host, load_object
from polyml.codegen.loops import Function
from polyml.dtypes import bf16, f32, u32
from polyml.ops import OPS
from polyml.sets.affine import affine
from polyml.target import Target
from polyml.testing.c_program import WARNINGS, build_shared, compiler_path
from tests.codegen.llvm.support import apply, loop, read, store, variable, vector

ml_dtypes = pytest.importorskip("ml_dtypes")

FORMS = [False, *([True] if Target.host().multiplies_bf16 else [])]
SIZE = 45


def kernel(width: int, *, reduction: str | None) -> Function:
    """y[i] (+)= x[2i] * w[last - 1 - i] + x[2i + 1] * w[last - i]."""
    index = affine("i")
    pairs = [
        apply("pair_bf16", *(read(name, bf16, place + k) for k in range(2)), dtype=u32)
        for name, place in (("x", index * 2), ("w", affine(2 * SIZE - 2) - index))
    ]
    body = store("y", "i", apply("dot_bf16", *pairs, dtype=f32), reduction=reduction)
    arguments = (variable("y", f32, SIZE), variable("x", bf16, 2 * SIZE), variable("w", bf16, 2 * SIZE))
    nest = vector("i", SIZE, width, body) if width > 1 else loop("i", 0, SIZE, body)
    return Function(name="kernel", arguments=arguments, written=frozenset("y"), sizes=(), body=(nest,))


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers with few digits: their products are exact."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-50, 50, 2 * SIZE).astype(bf16.numpy) for _ in range(2))
    x[7], w[40], x[60] = np.nan, np.inf, -np.inf
    return rng.integers(-9, 9, SIZE).astype(np.float32), x, w


def expected(reduction: str | None) -> np.ndarray:
    y, x, w = operands()
    a, b = x.astype(np.float32), w.astype(np.float32)
    i = np.arange(SIZE)
    with np.errstate(all="ignore"):
        found = a[2 * i] * b[2 * SIZE - 2 - i] + a[2 * i + 1] * b[2 * SIZE - 1 - i]
        return found if reduction is None else y + found


def called(address: int) -> np.ndarray:
    arrays = operands()
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(address)(*(a.ctypes.data for a in arrays))
    return arrays[0]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("native", FORMS)
@pytest.mark.parametrize("reduction", [None, "sum"])
def test_products_of_pairs(width: int, native: bool, reduction: str | None) -> None:
    text = emit_module([kernel(width, reduction=reduction)], Instructions(dot_bf16=native))
    assert ("dpbf16ps" in text) == (native and width <= 16)
    loaded = load_object(compile_object(text, host()), ("kernel",))
    np.testing.assert_array_equal(called(loaded.addresses["kernel"]), expected(reduction))


@pytest.mark.skipif(compiler_path() is None, reason="gcc is not installed")
def test_in_c() -> None:
    text = assemble([function_text(kernel(1, reduction="sum"), linkage="")])
    library = build_shared(text, "gcc", ["-O1", *WARNINGS])
    address = ctypes.cast(library.kernel, ctypes.c_void_p).value
    assert address is not None
    np.testing.assert_array_equal(called(address), expected("sum"))


def test_meaning() -> None:
    x, y = (np.array([1.5, -2.0], bf16.numpy), np.array([3.0, 0.5], bf16.numpy))
    pairs = OPS["pair_bf16"].meaning(x[::-1], y[::-1]), OPS["pair_bf16"].meaning(x, y)
    assert [hex(p) for p in pairs[1]] == ["0x40403fc0", "0x3f00c000"]
    assert OPS["dot_bf16"].meaning(*pairs).tolist() == [-3.0 + 1.5, -3.0 + 1.5]
