"""Emitted code against the Loops interpreter, on the programs that the loop passes are tested with: as written, and with vectors and unrolling carried out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyml.codegen.loops import Function
from polyml.codegen.passes import LoopOptions, lower_loops
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import cases, run

CASES = cases()


@pytest.mark.parametrize("vector_bytes", [0, 16, 64])
@pytest.mark.parametrize(("name", "function", "sizes"), CASES, ids=[name for name, _, _ in CASES])
def test_code_does_what_the_interpreter_does(
    name: str, function: Function, sizes: dict[str, int], vector_bytes: int
) -> None:
    arrays = run(replace(function, body=()), sizes)  # as they are before
    want = run(function, sizes)
    if vector_bytes:
        function, _ = lower_loops(function, options=LoopOptions(vector_bytes=vector_bytes))
    out = run_function(function, arrays, sizes)
    for argument in function.arguments:
        np.testing.assert_array_equal(out[argument.name], want[argument.name])
