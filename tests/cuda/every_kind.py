"""Programs for every kind of kernel, for the compilers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyml.demo.showcase import SHOWCASES
from polyml.dtypes import f32, f64, i8, i64, u32
from tests.cuda.test_halo import CASES as WINDOWS
from tests.cuda.test_ops import op_programs
from tests.cuda.test_partial_sums import CASES as PARTS
from tests.cuda.test_programs import ROWS, SHAPES, random_cases
from tests.cuda.test_tiles import CASES, LARGE, MATMUL

__all__ = ["every_kind"]


def every_kind() -> tuple[list[tuple[str, Sequence[object]]], int]:
    """Texts with arguments, and how many of them, from the first on, are known programs; the rest is random."""
    rng = np.random.default_rng(0)
    programs = [(c.text, [rng.standard_normal(s, dtype=np.float32) for s in SHAPES[c.name]]) for c in SHOWCASES]
    programs += [(ROWS, [np.ones((3, 400), np.float32)])]
    programs += [pair for dtype in (f32, f64, i8, i64, u32) for pair in op_programs(dtype)]
    programs += [(MATMUL, LARGE), *((text, given) for text, given, _ in CASES)]
    programs += {text: (text, given) for text, given, _ in WINDOWS}.values()
    programs += [(text, [x]) for text, x, _ in PARTS]
    known = len(programs)
    return [*programs, *((case.text, case.arguments) for case in random_cases(6))], known
