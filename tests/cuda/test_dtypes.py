"""Half precision and complex numbers in kernels: what CUDA C computes is what the CPU's code computes."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES
from polyml.testing import assert_close
from polyml.testing.cases import copy_with_layout
from tests.cuda.batch import compile_batch, needs_gxx, results_of
from tests.differential.test_dtypes import COMPLEX, COMPLEX_PROGRAMS, HALF_PROGRAMS, HALVES, arguments, source

NAMES = (
    "matmul",
    "sums",
    "extrema",
    "rounded",
    "mixed",
    "in place",
    "scatter",
    "conditions",
    "parts",
    "quotients",
    "comparisons",
)


@needs_gxx
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_programs_are_those_of_the_cpu() -> None:
    """Of two types of a kind each has every second program."""
    cases = []
    for k, dtype in enumerate((*HALVES, *COMPLEX)):
        bodies = HALF_PROGRAMS if dtype in HALVES else COMPLEX_PROGRAMS
        given = arguments(DTYPES[dtype], "contiguous", (9, 4, 17))
        cases += [(source(n, bodies[n], DTYPES[dtype]), given, DTYPES[dtype]) for n in NAMES[k % 2 :: 2] if n in bodies]
    batch = compile_batch([(text, [copy_with_layout(a) for a in given]) for text, given, _ in cases])
    for (text, given, dtype), kernel in zip(cases, batch.kernels, strict=True):
        mine, own = ([copy_with_layout(a) for a in given] for _ in range(2))
        actual, expected = results_of(kernel(*mine)), results_of(polyml.einsum(text)(*own))
        for a, e in zip((*actual, *mine), (*expected, *own), strict=True):
            assert_close(np.asarray(a), np.asarray(e), 16, computed_in=dtype, scale=1.0)
