"""Products of any size whose rows are packed: all of a block of them ahead of all columns, and the right result on all sides of the blocks' ends."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=16 << 10, l2_bytes=16 << 10, l3_bytes=64 << 10, cores=2)
"""This machine, with caches that small tests outgrow: blocks of some rows."""

AVX2 = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)

PROGRAMS = {
    "ki,kj->ij": 'u: f32["K I"], v: f32["K J"]',
    "bki,bjk->bij": 'u: f32["B K I"], v: f32["B J K"]',
    "kai,kj->aij": 'u: f32["K A I"], v: f32["K J"]',
    "ki,kaj->iaj": 'u: f32["K I"], v: f32["K A J"]',
}


def program(notation: str, target: Target, *, threads: int = 1, verify: bool = False) -> polyml.Function:
    operands, out = notation.split("->")
    u, v = (", ".join(part) for part in operands.split(","))
    text = f"def f({PROGRAMS[notation]}):\n    y[{', '.join(out)}] = u[{u}] * v[{v}]\n    return y\n"
    return polyml.einsum(text, dynamic=True, target=target, threads=threads, verify=verify)


def arguments(notation: str, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(sizes.values()))
    parts = notation.split("->")[0].split(",")
    return [rng.integers(-4, 5, [sizes[i] for i in part]).astype(np.float32) for part in parts]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("notation", PROGRAMS)
@pytest.mark.few(1)
def test_all_sizes_have_the_right_result(notation: str, threads: int) -> None:
    made = program(notation, SMALL_CACHES, threads=threads, verify=threads == 2)
    for i, j, k in ((33, 31, 200), (70, 150, 333), (1, 40, 17), (18, 1, 170), (29, 129, 64), (131, 17, 16), (0, 5, 20)):
        u, v = arguments(notation, a=3, b=3, i=i, j=j, k=k)
        np.testing.assert_array_equal(made(u, v), np.einsum(notation, u, v, optimize=True))


def test_rows_are_packed_once_for_all_columns() -> None:
    """Not for each block of columns again, a tenth of what is computed with them."""
    lowered = program("ki,kj->ij", AVX2).lower(*arguments("ki,kj->ij", i=101, j=103, k=99))
    assert "u in panels of 6 ahead of all columns; blocks of k by 336, j by 96, i by 1560" in str(lowered.explain())
    loops = lowered.text("loops")
    assert loops.index("u_panels_2[") < loops.index("for (j_") < loops.index("v_panels_2[")


def test_rows_of_several_indices_are_blocks_too() -> None:
    lowered = program("kai,kj->aij", AVX2).lower(*arguments("kai,kj->aij", a=20, i=101, j=103, k=99))
    text = str(lowered.explain())
    assert "ahead of all columns" in text
    assert "i by" in text
