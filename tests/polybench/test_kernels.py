"""All of PolyBench against NumPy, under every scheduler, and against the interpreter where it is quick."""

from __future__ import annotations

import copy
from typing import get_args

import numpy as np
import pytest

from benchmarks.polybench import KERNELS
from benchmarks.polybench.kernel import generator, worst_error
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.options import Scheduler
from polyml.source import Source

ERROR = 1e-11
"""Above what rounding leaves at these sizes, below what one missing or doubled term would."""


def error_of(name: str, size: str, **options: object) -> float:
    kernel = KERNELS[name]
    arguments = kernel.arguments(size)
    expected = kernel.reference(*copy.deepcopy(arguments))
    return worst_error(kernel.program(**options)(*arguments), expected)


MAIN = "ilp"
"""The scheduler that is not asked for: at the larger size, where loops have whole tiles and parts of tiles, for all kernels in every run, at the smaller one for every second. Storage and order are proved
once for each."""


@pytest.mark.parametrize("scheduler", get_args(Scheduler))
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.slow
def test_mini(name: str, scheduler: str) -> None:
    assert error_of(name, "MINI", scheduler=scheduler, verify=True) < ERROR


@pytest.mark.parametrize("scheduler", get_args(Scheduler))
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.some(30)
def test_small(name: str, scheduler: str) -> None:
    assert (
        error_of(name, "SMALL", scheduler=scheduler, verify=scheduler != MAIN or [*KERNELS].index(name) % 2 == 0)
        < ERROR
    )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.few(20)
def test_interpreter(name: str) -> None:
    """The programs say what the references compute: tiny sizes, all different."""
    kernel = KERNELS[name]
    tiny = {size: 5 + k for k, size in enumerate(kernel.sizes("MINI"))}
    arguments = kernel.data(tiny, generator(name))
    expected = kernel.reference(*copy.deepcopy(arguments))
    assert worst_error(interpret(parse(Source(kernel.text)), *arguments), expected) < ERROR


def test_all_thirty() -> None:
    assert len(KERNELS) == 30


def test_arguments_are_reproducible() -> None:
    for one, other in zip(KERNELS["lu"].arguments("MINI"), KERNELS["lu"].arguments("MINI"), strict=True):
        assert np.array_equal(one, other)
