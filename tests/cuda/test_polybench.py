"""PolyBench at MINI on the emulator, one block at a time."""

from __future__ import annotations

import copy

import pytest

from benchmarks.polybench import KERNELS
from benchmarks.polybench.kernel import worst_error
from tests.cuda.batch import compile_batch, needs_gxx

ERROR = 1e-11
"""Above what rounding leaves at these sizes, below what one missing or doubled term would."""


@needs_gxx
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 6))])
def test_mini(part: int) -> None:
    arguments = {name: KERNELS[name].arguments("MINI") for name in list(KERNELS)[part::6]}
    batch = compile_batch([(KERNELS[name].text, given) for name, given in arguments.items()])
    wrong = {}
    for (name, given), kernel in zip(arguments.items(), batch.kernels, strict=True):
        expected = KERNELS[name].reference(*copy.deepcopy(given))
        error = worst_error(kernel(*given), expected)
        if not error < ERROR:
            wrong[name] = error
    assert wrong == {}
    assert batch.device.live == {}
