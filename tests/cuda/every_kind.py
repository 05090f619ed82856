"""Programs for every kind of kernel, for the compilers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from polyml.demo.showcase import SHOWCASES
from polyml.dtypes import f32, i64, u32
from tests.cuda.batch import compile_batch
from tests.cuda.test_halo import CASES as WINDOWS
from tests.cuda.test_ops import op_programs
from tests.cuda.test_partial_sums import CASES as PARTS
from tests.cuda.test_programs import ROWS, SHAPES, random_cases
from tests.cuda.test_tiles import CASES, LARGE, MATMUL

__all__ = ["every_kind"]


@functools.cache
def every_kind() -> tuple[str, int, int]:
    """The kernels' text, how many programs it is of, and how many of them, from the first on, are known ones; the rest is random."""
    rng = np.random.default_rng(0)
    programs: list[tuple[str, Sequence[object]]] = [
        (c.text, [rng.standard_normal(s, dtype=np.float32) for s in SHAPES[c.name]]) for c in SHOWCASES
    ]
    programs += [(ROWS, [np.ones((3, 400), np.float32)])]
    programs += [pair for dtype in (f32, i64, u32) for pair in op_programs(dtype)]
    programs += [(MATMUL, LARGE), *((text, given) for text, given, _ in CASES)]
    programs += {text: (text, given) for text, given, _ in WINDOWS}.values()
    programs += [(text, [x]) for text, x, _ in PARTS]
    known = len(programs)
    programs += [(case.text, case.arguments) for case in random_cases(6)]
    return compile_batch(programs, build=False).text, len(programs), known
