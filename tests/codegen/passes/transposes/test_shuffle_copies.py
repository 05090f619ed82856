"""Blocks of copies that are put together by shuffles: compiled code against the interpreter of loops, with arrays beside which nothing may be touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Assign, For, Function
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import DType, f32, f64, u8
from polyml.sets.affine import affine
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import array, at, function, loop, put, random_arrays


def batch(count: int, rows: int, columns: int, block: int, dtype: DType, *, back: bool = False) -> Function:
    """y[b, j, i] = x[b, i, j], or with the columns of x from the last to the first, in blocks of so many b."""
    x, y = array("x", count, rows, columns, dtype=dtype), array("y", count, columns, rows, dtype=dtype)
    column = affine(columns - 1) - affine("j") if back else affine("j")
    move = Assign(target=put("y", "b", "j", "i"), value=at("x", "b", "i", column, dtype=dtype))
    nest = loop("b", 0, count, loop("j", 0, columns, loop("i", 0, rows, move)))
    return function(replace(nest, kind="shuffle", factor=block), arguments=[x, y], written="y")


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("dtype", [u8, f32, f64])
@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 7), (2, 9), (1, 6)])
@pytest.mark.few(5)
def test_any_block(rows: int, columns: int, dtype: DType, vector_bytes: int, back: bool) -> None:
    least = max(2, -(-vector_bytes // dtype.itemsize // (rows * columns)))
    for count, block in ((least, least), (2 * least + 1, least + 1), (7 * least + 3, 2 * least + 1)):
        block = min(block, count)
        program = batch(count, rows, columns, block, dtype, back=back)
        after = lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))[0]
        blocks = [node for node in walk_nodes(after.body) if isinstance(node, For) and node.kind == "shuffle"]
        assert [(node.upper - node.lower).constant for node in blocks] == [block]
        arrays = {name: values.astype(dtype.numpy) for name, values in random_arrays(program, {}).items()}
        expected = {name: values.copy() for name, values in arrays.items()}
        interpret(program, expected, {})
        found = run_function(after, arrays, {})
        np.testing.assert_array_equal(found["y"], expected["y"])


def test_a_last_block_overlaps_the_one_before() -> None:
    text = str(lower_loops(batch(10, 5, 5, 4, f32), options=LoopOptions(vector_bytes=64))[0])
    assert "for (b_block = 0; b_block < 10; b_block += 4)" in text
    assert "shuffle(4) for (b = min(6, b_block); b < min(6, b_block) + 4; b++)" in text
    whole = str(lower_loops(batch(12, 5, 5, 4, f32), options=LoopOptions(vector_bytes=64))[0])
    assert "shuffle(4) for (b = b_block; b < b_block + 4; b++)" in whole
