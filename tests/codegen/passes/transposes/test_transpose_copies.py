"""Copies whose contiguous directions differ go through registers in transposed blocks: compiled code against the interpreter, guarded arrays."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Assign, For, Function
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import DType, f32, f64
from polyml.sets.affine import affine
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import Extent, array, at, function, loop, put, random_arrays


def transposed(n: int, m: int, first: int, last: Extent, dtype: DType, *, back: bool = False) -> Function:
    """y[k, j] = x[j, k] for k from first to last, lanes along j; or x[j, k] = y[k, j]."""
    x, y = array("x", n, m, dtype=dtype), array("y", m, n, dtype=dtype)
    move = Assign(target=put("y", "k", "j"), value=at("x", "j", "k", dtype=dtype))
    if back:
        move = Assign(target=put("x", "j", "k"), value=at("y", "k", "j", dtype=dtype))
    sizes = [last] if isinstance(last, str) else []
    nest = loop("j", 0, n, loop("k", first, affine(last) if isinstance(last, str) else last, move), kind="vector")
    return function(nest, arguments=[x, y], written="x" if back else "y", sizes=sizes)


def lowered(program: Function, vector_bytes: int = 64) -> Function:
    return lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))[0]


def is_transposed(program: Function) -> bool:
    return any(isinstance(node, For) and node.kind == "transpose" for node in walk_nodes(program.body))


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize(("n", "m", "first"), [(16, 16, 0), (33, 47, 0), (7, 20, 3), (40, 18, 1)])
@pytest.mark.few(13)
def test_blocks_and_edges(n: int, m: int, first: int, vector_bytes: int, dtype: DType, back: bool) -> None:
    program = transposed(n, m, first, m, dtype, back=back)
    after = lowered(program, vector_bytes)
    assert is_transposed(after)
    arrays = {
        k: values.astype(np.float64 if dtype == f64 else np.float32) for k, values in random_arrays(program, {}).items()
    }
    expected = {name: values.copy() for name, values in arrays.items()}
    interpret(program, expected, {})
    found = run_function(after, arrays, {})
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("size", [0, 1, 3, 16, 35, 48])
def test_any_number_of_columns(size: int) -> None:
    program = transposed(20, 48, 2, "N", f32)
    after = lowered(program)
    assert is_transposed(after)
    arrays = random_arrays(program, {"N": size})
    expected = {name: values.copy() for name, values in arrays.items()}
    interpret(program, expected, {"N": size})
    found = run_function(after, arrays, {"N": size})
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_what_is_contiguous_both_ways_or_computed_stays_a_loop() -> None:
    x, y = array("x", 32, 32), array("y", 32, 32)
    for target, value, rows in [
        (put("y", "k", "j"), at("x", "k", "j"), False),
        (put("y", "j", "k"), at("x", "j", "k"), True),  # lanes across rows of both: these are transposed, in strips
        (put("y", "k", "j"), at("x", affine("j") + affine("k"), "k"), False),
    ]:
        nest = loop("j", 0, 16, loop("k", 0, 16, Assign(target=target, value=value)), kind="vector")
        made = lowered(function(nest, arguments=[x, y], written="y"))
        assert is_transposed(made) == rows
        assert ("y_rows" in str(made) and "x_rows" in str(made)) == rows
