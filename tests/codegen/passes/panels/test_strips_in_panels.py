"""Strips of columns of a matrix that a recurrence goes on with, in panels: where there are any, and results of sizes around tiles, chunks and vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml as pm
from benchmarks.polybench import KERNELS
from polyml.codegen.loops import Assign
from polyml.codegen.passes.panels.strips_in_panels import strips_in_panels
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.printer import loops_text
from polyml.sets.affine import affine
from tests.codegen.llvm.reductions.test_numbers_kept import folded
from tests.codegen.programs import agree, array, at, call, function, loop, put

NUSSINOV = KERNELS["nussinov"]


def text_of(target: pm.Target, n: int, **options: object) -> str:
    program = NUSSINOV.program(target=target, threads=1, **options)
    return program.lower(np.zeros(n), np.zeros((n, n))).text("loops")


def test_short_vectors_read_strips_from_panels() -> None:
    """Of large matrices, and where a vector is less than a line."""
    cache = {"l1_bytes": 32 << 10, "l2_bytes": 256 << 10}
    assert "local f64 table_panel[64, 16]" in text_of(pm.Target("x86-64-v3", **cache), 520)
    assert "table_panel" not in text_of(pm.Target("x86-64-v4", **cache), 520)
    assert "table_panel" not in text_of(pm.Target("x86-64-v3", **cache), 400), "rows of less than a page"
    assert "table_panel" not in text_of(pm.Target("x86-64-v3", l1_bytes=8 << 10, l2_bytes=256 << 10), 520), "L1"


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("n", "threads", "spoiled"),
    [
        pytest.param(512, 1, False, marks=pytest.mark.slow),
        (523, 2, True),
        pytest.param(578, 1, True, marks=pytest.mark.slow),
    ],
)
def test_foldings(n: int, threads: int, spoiled: bool) -> None:
    """A NaN that comes along in the middle is in all elements behind."""
    target = pm.Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=256 << 10, cores=2)
    program = NUSSINOV.program(target=target, threads=threads)
    bases, table = NUSSINOV.data({"N": n}, np.random.default_rng(n))
    assert "table_panel" in program.lower(bases, table).text("loops")
    table[250, 300] = np.nan if spoiled else 7
    np.testing.assert_array_equal(program(bases, table.copy()), folded(bases, table))


@pytest.mark.slow
def test_foldings_of_any_size() -> None:
    target = pm.Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=256 << 10)
    program = NUSSINOV.program(target=target, threads=1, dynamic=True)
    for n in (531, 1, 257, 64):
        bases, table = NUSSINOV.data({"N": n}, np.random.default_rng(n))
        np.testing.assert_array_equal(program(bases, table.copy()), NUSSINOV.reference(bases, table.copy())[0])


def test_strips_that_end_before_they_begin_have_no_panel() -> None:
    update = Assign(target=put("z", "i", "j"), value=call("mul", at("x", "i", "k"), at("y", "k", "j")), reduction="sum")
    tiles = loop("i", 0, 32, loop("j", affine("C"), affine("M"), loop("k", 0, 32, update), kind="vector"))
    arrays = [array("x", 32, 32), array("y", 32, 1024), array("z", 32, 1024)]
    before = function(tiles, arguments=arrays, written="z", sizes=("C", "M"))
    before = replace(before, bounds=(("C", 0, 12), ("M", 0, 12)))
    after = strips_in_panels(vectorize(before, vector_bytes=32)[0], l1_bytes=32 << 10)
    assert "y_panel" in loops_text(after)
    for start, end in ((2, 9), (5, 5), (12, 1)):
        agree(before, after, {"C": start, "M": end})
