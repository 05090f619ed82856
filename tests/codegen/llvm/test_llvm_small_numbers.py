"""Products of two numbers of 16 bits and of four of 8, by the instructions and one by one, in vectors of every width and in C, against NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from polyml.codegen.c.emit import assemble, function_text
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.machine import compile_object, host, load_object
from polyml.codegen.loops import Allocate, Function, Variable
from polyml.dtypes import DType, i8, i16, i32, u8, u32
from polyml.expressions import Expr
from polyml.ops import OPS
from polyml.sets.affine import affine
from polyml.target import Target
from polyml.testing.c_program import WARNINGS, build_shared, compiler_path
from tests.codegen.llvm.support import apply, const, loop, read, store, variable, vector

SIZE = 45
KINDS: dict[str, tuple[str, DType, DType, int]] = {
    "dot_i16": ("pair_i16", i16, i16, 2),
    "dot_i8": ("quad_i8", u8, i8, 4),
}


def kernel(dot: str, width: int, *, reduction: str | None) -> Function:
    """y[i] (+)= the products of x's and w's numbers at i, w from its end."""
    pair, left, right, count = KINDS[dot]
    index = affine("i")
    groups = [
        apply(pair, *(read(name, dtype, place + k) for k in range(count)), dtype=u32)
        for name, dtype, place in (("x", left, index * count), ("w", right, affine(count * (SIZE - 1)) - index * count))
    ]
    body = store("y", "i", apply(dot, *groups, dtype=i32), reduction=reduction)
    arguments = (variable("y", i32, SIZE), variable("x", left, count * SIZE), variable("w", right, count * SIZE))
    nest = vector("i", SIZE, width, body) if width > 1 else loop("i", 0, SIZE, body)
    return Function(name="kernel", arguments=arguments, written=frozenset("y"), sizes=(), body=(nest,))


def operands(dot: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of all sizes, and the largest ones, whose sums wrap."""
    _, left, right, count = KINDS[dot]
    rng = np.random.default_rng(0)
    found = []
    for dtype in (left, right):
        info = np.iinfo(dtype.numpy)
        found.append(rng.integers(info.min, info.max, count * SIZE, endpoint=True).astype(dtype.numpy))
    x, w = found
    x[: 4 * count], w[-4 * count :] = np.iinfo(x.dtype).max, np.iinfo(w.dtype).min
    x[: 2 * count] = np.iinfo(x.dtype).min
    y = rng.integers(-(1 << 31), (1 << 31) - 1, SIZE).astype(np.int32)
    return y, x, w


def expected(dot: str, reduction: str | None) -> np.ndarray:
    y, x, w = (a.astype(np.int64) for a in operands(dot))
    count = KINDS[dot][3]
    sums = (x.reshape(SIZE, count) * w.reshape(SIZE, count)[::-1]).sum(axis=1)
    return (sums if reduction is None else sums + y).astype(np.uint64).astype(np.uint32).view(np.int32)


def called(dot: str, address: int) -> np.ndarray:
    arrays = operands(dot)
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(address)(*(a.ctypes.data for a in arrays))
    return arrays[0]


def forms(dot: str) -> list[bool]:
    here = Target.host()
    return [False, True] if (here.multiplies_i8 if dot == "dot_i8" else here.multiplies_i16) else [False]


@pytest.mark.parametrize(("dot", "native"), [(dot, native) for dot in KINDS for native in forms(dot)])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("reduction", [None, "sum"])
@pytest.mark.few(12)
def test_products(dot: str, native: bool, width: int, reduction: str | None) -> None:
    if native and 4 * width > Target.host().vector_bytes:
        pytest.skip("vectors of this machine are shorter")
    text = emit_module([kernel(dot, width, reduction=reduction)], Instructions(dot_i16=native, dot_i8=native))
    assert ("@llvm.x86" in text) == (native and width <= 16)
    loaded = load_object(compile_object(text, host()), ("kernel",))
    np.testing.assert_array_equal(called(dot, loaded.addresses["kernel"]), expected(dot, reduction))


@pytest.mark.parametrize(("first", "step", "at_once"), [(0, 1, True), (3, 1, True), (0, -1, False), (0, 2, False)])
@pytest.mark.parametrize("width", [1, 16])
def test_neighbours_are_read_at_once_whatever_is_added_to_each(
    first: int, step: int, at_once: bool, width: int
) -> None:
    """Four of i8 as u8 with 128 more; those in another order, or with gaps, are put together."""

    def element(k: int) -> Expr:
        place = affine("i") * 8 + (first + (3 + step * k if step < 0 else step * k))
        return apply("add", apply("cast", read("x", i8, place), dtype=u8), const(128, u8), dtype=u8)

    body = store("y", "i", apply("quad_i8", *map(element, range(4)), dtype=u32))
    arguments = (variable("y", u32, SIZE), variable("x", i8, 8 * SIZE + 8))
    nest = vector("i", SIZE, width, body) if width > 1 else loop("i", 0, SIZE, body)
    text = emit_module([Function(name="kernel", arguments=arguments, written=frozenset("y"), sizes=(), body=(nest,))])
    assert ("shl" in text) != at_once
    x = np.random.default_rng(0).integers(-128, 128, 8 * SIZE + 8).astype(np.int8)
    y = np.zeros(SIZE, np.uint32)
    address = load_object(compile_object(text, host()), ("kernel",))
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)(address.addresses["kernel"])(y.ctypes.data, x.ctypes.data)
    places = first + 8 * np.arange(SIZE)[:, None] + (step * np.arange(4) if step > 0 else np.arange(4)[::-1])
    np.testing.assert_array_equal(y, (x.view(np.uint8) + np.uint8(128))[places].copy().view(np.uint32)[:, 0])


@pytest.mark.parametrize("dot", KINDS)
def test_sums_of_products_in_masked_lanes_need_no_selections(dot: str) -> None:
    arguments = (variable("y", i32, "N"), variable("x", u32, "K", "N"), variable("w", u32, "K"))
    products = apply(dot, read("x", u32, "k", "i"), read("w", u32, "k"), dtype=i32)
    total = Variable(name="total", dtype=i32, shape=(), scope="register", lanes=16)
    steps = (
        store("total", (), const(0, i32)),
        loop("k", 0, "K", store("total", (), products, reduction="sum")),
        store("y", "i", read("total", i32)),
    )
    body = (vector("i", "N", 16, Allocate(variable=total, body=steps)),)
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=("N", "K"), body=body)
    text = emit_module([function], Instructions(dot_i16=True, dot_i8=True))
    assert text.count("select <16 x i1>") == 1  # where the sum begins


@pytest.mark.skipif(compiler_path() is None, reason="gcc is not installed")
@pytest.mark.parametrize("dot", KINDS)
def test_in_c(dot: str) -> None:
    text = assemble([function_text(kernel(dot, 1, reduction="sum"), linkage="")])
    library = build_shared(text, "gcc", ["-O1", "-fwrapv", *WARNINGS])
    address = ctypes.cast(library.kernel, ctypes.c_void_p).value
    assert address is not None
    np.testing.assert_array_equal(called(dot, address), expected(dot, "sum"))


@pytest.mark.parametrize("dot", KINDS)
def test_meaning(dot: str) -> None:
    pair, _, _, count = KINDS[dot]
    _, x, w = operands(dot)
    groups = [OPS[pair].meaning(*(v[k::count] for k in range(count))) for v in (x, w)]
    products = (x.astype(np.int64) * w).reshape(SIZE, count).sum(axis=1)
    np.testing.assert_array_equal(
        OPS[dot].meaning(*groups), products.astype(np.uint64).astype(np.uint32).view(np.int32)
    )
