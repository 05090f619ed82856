"""Every scalar op in C against NumPy, on awkward values, in one file that compiles without warnings."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from polyml.codegen.c.emit import assemble, function_text
from polyml.codegen.c.expression import EMITTED
from polyml.codegen.loops import Assign, For, Function, Place, Variable
from polyml.dtypes import DTYPES, DType
from polyml.expressions import Apply, Expr, Read
from polyml.ops import OPS, result_dtype
from polyml.sets.affine import affine
from polyml.testing.c_program import WARNINGS, build_shared, compiler_path
from tests.codegen.llvm.test_llvm_arithmetic import ARITHMETIC, FLOAT_ONLY, awkward, takes

needs_gcc = pytest.mark.skipif(compiler_path() is None, reason="gcc is not installed")
COUNT = 203
C_DTYPES = [DTYPES[name] for name in ("f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")]
CASES = [(op, dtype) for op in ARITHMETIC for dtype in C_DTYPES if takes(op, dtype)]
CASES += [(op, dtype) for op in sorted(FLOAT_ONLY | {"pow"}) for dtype in C_DTYPES[:2]]


def test_every_op_has_c() -> None:
    assert OPS.keys() <= EMITTED


def elementwise(name: str, value: Expr, result: DType, arrays: dict[str, DType]) -> Function:
    shape = (affine(COUNT),)
    variables = [Variable(name=n, dtype=d, shape=shape, scope="global") for n, d in {"y": result, **arrays}.items()]
    body = Assign(target=Place("y", (affine("i"),)), value=value)
    loop = For(variable="i", lower=affine(0), upper=affine(COUNT), body=(body,))
    return Function(name=name, arguments=tuple(variables), written=frozenset("y"), sizes=(), body=(loop,))


def call(library: ctypes.CDLL, name: str, *arrays: np.ndarray) -> np.ndarray:
    library[name](*(ctypes.c_void_p(a.ctypes.data) for a in arrays))
    return arrays[0]


@needs_gcc
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ops_are_numpys() -> None:
    functions = []
    for op, dtype in CASES:
        arrays = dict.fromkeys("ab"[: OPS[op].arity], dtype)
        result = result_dtype(op, dtype)
        reads = tuple(Read(name, (affine("i"),), dtype) for name in arrays)
        functions.append(elementwise(f"{op}_of_{dtype}", Apply(op, reads, result), result, arrays))
    text = assemble([function_text(function, linkage="") for function in functions])
    library = build_shared(text, "gcc", ["-O1", "-fwrapv", *WARNINGS])
    for op, dtype in CASES:
        given = [awkward(dtype, seed) for seed in (1, 2)][: OPS[op].arity]
        want = OPS[op].meaning(*given)
        found = call(library, f"{op}_of_{dtype}", np.zeros(COUNT, result_dtype(op, dtype).numpy), *given)
        if op in FLOAT_ONLY | {"pow"}:
            tolerance = 4e-6 if dtype.bits == 32 else 1e-14
            np.testing.assert_allclose(found, want, rtol=tolerance, atol=1e-300, err_msg=f"{op} of {dtype}")
        else:
            np.testing.assert_array_equal(found, want.astype(found.dtype), err_msg=f"{op} of {dtype}")


@needs_gcc
def test_casts_are_numpys() -> None:
    pairs = [(a, b) for a in C_DTYPES for b in C_DTYPES if a != b]
    functions = [
        elementwise(f"from_{a}_to_{b}", Apply("cast", (Read("a", (affine("i"),), a),), b), b, {"a": a})
        for a, b in pairs
    ]
    library = build_shared(assemble([function_text(f, linkage="") for f in functions]), "gcc", ["-O1", *WARNINGS])
    for a, b in pairs:
        given = np.resize(np.array([0, 1, 2, 100, 3, 7], a.numpy), COUNT)
        found = call(library, f"from_{a}_to_{b}", np.zeros(COUNT, b.numpy), given)
        np.testing.assert_array_equal(found, given.astype(b.numpy), err_msg=f"{a} to {b}")
