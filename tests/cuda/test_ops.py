"""Every op on every element type: CUDA C's value on the emulator against the op's meaning in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

import polyml
from polyml.codegen.cuda.text.expression import EMITTED
from polyml.codegen.cuda.text.helpers import HELPERS
from polyml.codegen.cuda.text.types import C_TYPES, c_constant
from polyml.dtypes import DTYPES, DType, f32, f64, i8, i32, i64, u32, u64
from polyml.errors import PolymlError
from polyml.ops import FUNCTIONS, OPS, REDUCTIONS
from tests.cuda.batch import compile_batch, needs_gxx, results_of

BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
          "gt": ">", "ge": ">=", "and": "and", "or": "or", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>"}  # fmt: skip


def test_the_tables_are_complete() -> None:
    assert frozenset(OPS) == EMITTED
    assert set(C_TYPES) == set(DTYPES)
    assert {f"block_{name}" for name in REDUCTIONS} <= set(HELPERS)


def expression(op: str, dtype: DType) -> str:
    x, y = "x[n]", "y[n]"
    if op in ("and", "or"):
        return f"x[n] != 0 {BINARY[op]} y[n] != 0" if dtype.kind != "b" else f"{x} {BINARY[op]} {y}"
    if op == "not":
        return "not (x[n] != 0)" if dtype.kind != "b" else "not x[n]"
    if op == "neg":
        return f"-{x}"
    if op == "select":
        return f"where(y[n] != 0, {x}, {y})" if dtype.kind != "b" else f"where({y}, {x}, {y})"
    if op == "cast":
        return f"{'f64' if dtype.is_integer else 'i32'}({x})"
    if op in BINARY:
        return f"{x} {BINARY[op]} {y}"
    assert op in FUNCTIONS
    return f"{op}({x}, {y})" if OPS[op].arity == 2 else f"{op}({x})"


def values(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    if dtype.kind == "b":
        return np.array([False, False, True, True]), np.array([False, True, False, True])
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, np.inf, -np.inf, np.nan, 7.25]
        left, right = np.meshgrid(special, special)
        return left.ravel().astype(dtype.numpy), right.ravel().astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    some = [
        0,
        1,
        2,
        3,
        7,
        int(info.max),
        int(info.max) - 1,
        int(info.min),
        *([-1, -2, -7] if dtype.kind == "i" else []),
    ]
    left, right = np.meshgrid(np.array(some, dtype.numpy), np.array(some, dtype.numpy))
    return left.ravel(), right.ravel()


def op_programs(dtype: DType) -> list[tuple[str, list[np.ndarray]]]:
    """A few programs that use every op that the language takes for the type."""
    return [(text, list(values(dtype))) for _, text in _cases(dtype)]


@functools.cache
def _cases(dtype: DType) -> list[tuple[tuple[str, ...], str]]:
    """(ops, program) with a result per op."""
    good = [op for op in OPS if _taken(op, dtype)]
    found = []
    for first in range(0, len(good), 9):
        ops = tuple(good[first : first + 9])
        lines = [f"    z{k}[n] = {expression(op, dtype)}" for k, op in enumerate(ops)]
        body = "\n".join([*lines, f"    return {', '.join(f'z{k}' for k in range(len(ops)))}"])
        found.append((ops, f'def f(x: {dtype}["N"], y: {dtype}["N"]):\n{body}\n'))
    return found


def _taken(op: str, dtype: DType) -> bool:
    if op == "pow" and dtype.is_integer:
        return False  # below: NumPy refuses negative exponents
    if op.startswith(("pair_", "quad_", "dot_")):
        return False  # not of the language
    text = f'def f(x: {dtype}["N"], y: {dtype}["N"]):\n    z[n] = {expression(op, dtype)}\n    return z\n'
    try:
        polyml.einsum(text).trace(*values(dtype))
    except PolymlError:
        return False
    return True


@needs_gxx
def test_every_op_on_every_type() -> None:
    cases = [
        (dtype, *case)
        for dtype in (f32, f64, i8, i32, i64, u32, DTYPES["u8"], DTYPES["bool"])
        for case in _cases(dtype)
    ]
    batch = compile_batch([(text, values(dtype)) for dtype, _, text in cases])
    checked = 0
    for (dtype, ops, _), kernel in zip(cases, batch.kernels, strict=True):
        arrays = values(dtype)
        for op, actual in zip(ops, results_of(kernel(*arrays)), strict=True):
            check_op(op, dtype, arrays, actual)
            checked += 1
    assert checked > 170


def check_op(op: str, dtype: DType, arrays: tuple[np.ndarray, np.ndarray], actual: np.ndarray) -> None:
    expected = meaning(op, dtype, arrays, actual.dtype)
    if actual.dtype.kind == "f":
        limit = 1e-6 if actual.dtype == np.float32 else 1e-14
        np.testing.assert_allclose(actual, expected, rtol=limit, err_msg=f"{op} {dtype}")
        return
    if op == "cast":  # what does not fit is any value
        fits = np.isfinite(arrays[0]) & (np.abs(np.nan_to_num(arrays[0])) < 2**31)
        actual, expected = actual[fits], expected[fits]
    np.testing.assert_array_equal(actual, expected, err_msg=f"{op} {dtype}")


def meaning(op: str, dtype: DType, arrays: tuple[np.ndarray, np.ndarray], result: np.dtype[np.generic]) -> np.ndarray:
    x, y = arrays
    with np.errstate(all="ignore"):
        match op:
            case "and" | "or":
                return np.asarray(OPS[op].meaning(x != 0, y != 0))
            case "not":
                return np.asarray(x == 0)
            case "select":
                return np.where(y != 0, x, y)
            case "cast":
                return x.astype(result)
            case _:
                wide = x.astype(result), y.astype(result)
                floats = OPS[op].rule in ("float", "true_divide")
                chosen = wide if floats else (x, y)
                return np.asarray(OPS[op].meaning(*chosen[: OPS[op].arity])).astype(result)


@needs_gxx
def test_integer_powers_wrap() -> None:
    x, y = np.arange(-5, 6, dtype=np.int32), np.abs(np.arange(11, dtype=np.int32) * 3 - 8)
    text = 'def f(x: i32["N"], y: i32["N"]):\n    z[n] = x[n] ** y[n]\n    return z\n'
    batch = compile_batch([(text, [x, y])])
    assert np.array_equal(batch.kernels[0](x, y), x**y)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [(0.1, f32, "0.10000000149011612f"), (1e300, f32, "__int_as_float(0x7f800000)"), (2.0, f64, "2.0"), (-(2**31), i32, "(-2147483647 - 1)"),
     (-(2**63), i64, "(-9223372036854775807LL - 1)"), (5, u64, "5ULL"), (True, DTYPES["bool"], "true")],
)  # fmt: skip
def test_constants(value: float, dtype: DType, text: str) -> None:
    assert c_constant(value, dtype) == text


REDUCED: dict[str, Callable[..., np.ndarray]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "argmax": np.argmax,
    "argmin": np.argmin,
}


@needs_gxx
def test_reductions_across_a_block() -> None:
    cases = []
    for dtype in (f32, f64, i32, i64, u32):
        x = np.random.default_rng(1).integers(0, 50, (3, 777)).astype(dtype.numpy)
        lines = "".join(f"    {name}_[n] = {name}[k](x[n, k])\n" for name in REDUCED)
        cases.append((f'def f(x: {dtype}["N K"]):\n{lines}    return {", ".join(f"{name}_" for name in REDUCED)}\n', x))
    flags = np.random.default_rng(2).random((3, 777)) > 0.5
    flags[1], flags[2] = True, False
    logical = 'def f(x: bool["N K"]):\n    a[n] = any[k](x[n, k])\n    b[n] = all[k](x[n, k])\n    return a, b\n'
    batch = compile_batch([*((text, [x]) for text, x in cases), (logical, [flags])])
    for (text, x), kernel in zip(cases, batch.kernels, strict=False):
        for name, actual in zip(REDUCED, kernel(x), strict=True):
            assert np.array_equal(actual, REDUCED[name](x, axis=1)), f"{name} of {text}"
    some, every = batch.kernels[-1](flags)
    assert np.array_equal(some, flags.any(axis=1))
    assert np.array_equal(every, flags.all(axis=1))
    assert all(f"pm_block_{name}_" in batch.text for name in (*REDUCED, "any", "all"))
