"""Several steps in one sweep: what comes out is right, for any number of threads; and what has no such form keeps its order."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.target import Target

SMALL_CACHES = Target("x86-64-v3", l1_bytes=4096, l2_bytes=16 * 1024, cores=2)

PATHS = """
def paths(a: f64["N N"]):
    for k in range(N):
        a[i, j] = min(a[i, j], a[i, k] + a[k, j])
    return a
"""


def paths(a: np.ndarray) -> np.ndarray:
    for k in range(len(a)):
        a = np.minimum(a, a[:, k, None] + a[k])
    return a


def lowered(text: str, *shape: int, threads: int = 1) -> polyml.Lowered:
    return polyml.einsum(text, target=SMALL_CACHES, threads=threads).lower(np.zeros(shape))


@pytest.mark.parametrize(("n", "threads"), [(64, 1), (71, 2), pytest.param(83, 1, marks=pytest.mark.slow)])
@pytest.mark.few(1)
def test_shortest_paths(n: int, threads: int) -> None:
    a = np.random.default_rng(n).integers(1, 1000, (n, n)).astype(np.float64)
    a[3, 5] = np.nan
    program = polyml.einsum(PATHS, target=SMALL_CACHES, threads=threads)
    assert "steps of k in one sweep over i" in program.explain(a)
    expected = paths(a)
    np.testing.assert_array_equal(program(a.copy()), expected)


def test_negative_cycles_take_the_same_steps() -> None:
    """No algebra of shortest paths is used: elements that become smaller on their own row and column count as they are at each step."""
    a = np.random.default_rng(0).integers(-3, 9, (70, 70)).astype(np.float64)
    np.testing.assert_array_equal(polyml.einsum(PATHS, target=SMALL_CACHES)(a.copy()), paths(a))


def test_the_steps_own_rows_run_ahead() -> None:
    text = lowered(PATHS, 64, 64).text("loops")
    assert "local f64 a_2_old1[16, 8, 4];" in text, "a row for each step of a block"
    first, then = text.index("a_2_old1["), text.index("for (e0_tile = 0; e0_tile < k_tile;")
    assert text.index("] = a[k, ", first) < then


def test_the_steps_rows_lie_in_panels() -> None:
    """A tile of one vector reads one panel from its beginning to its end."""
    text = lowered(PATHS, 71, 71).text("loops")
    assert "local f64 a_2_old1[18, 8, 4];" in text, "4 elements of each of 8 rows, one after the other"
    assert re.search(r"vector\(4\) for \(j = j_tile; j < j_tile \+ 4; j \+= 4\)", text)
    assert "a_lead" not in text, "vectors begin where panels do"
    assert "masked.gather" not in lowered(PATHS, 71, 71).text("llvm")


def test_no_panels_where_a_vector_is_a_line() -> None:
    target = replace(SMALL_CACHES, vector_bytes=64, vector_registers=32)
    text = polyml.einsum(PATHS, target=target).lower(np.zeros((64, 64))).text("loops")
    assert "local f64 a_2_old1[8, 64];" in text


def test_panels_of_rows_that_begin_later() -> None:
    """Steps that begin at another number than 0, rows that are no whole vectors."""
    a = np.random.default_rng(6).integers(1, 1000, (75, 75)).astype(np.float64)
    expected = a.copy()
    for k in range(3, 75):
        expected = np.minimum(expected, expected[:, k, None] + expected[k])
    program = polyml.einsum(PATHS.replace("range(N)", "range(3, N)"), target=SMALL_CACHES)
    assert "one sweep over i" in program.explain(a)
    np.testing.assert_array_equal(program(a.copy()), expected)


def test_beyond_the_steps_rows_and_columns_are_register_tiles() -> None:
    text = lowered(PATHS, 64, 64).text("loops")
    assert "local f64 a_2_old0[8, 64];" in text, "a column for each step of a block"
    assert re.search(
        r"a_value\w* = a\[.*\];\n(?:\s+prefetch .*\n)*\s+for \(k = k_tile; .*\{\n\s+a_value = min\(a_value, ", text
    )


def test_rows_are_those_of_memory() -> None:
    """Stored by columns, these take the rows' place."""
    a = np.random.default_rng(4).integers(1, 1000, (66, 66)).astype(np.float64)
    turned = np.asfortranarray(a)
    program = polyml.einsum(PATHS, target=SMALL_CACHES)
    assert "in one sweep over j" in program.explain(turned)
    np.testing.assert_array_equal(program(turned), paths(a))


def test_a_whole_number_type_and_a_view() -> None:
    a = np.random.default_rng(5).integers(1, 1000, (80, 100)).astype(np.int32)
    program = polyml.einsum(PATHS.replace("f64", "i32"), target=SMALL_CACHES)
    assert "one sweep over i" in program.explain(a[:, :80])
    expected = paths(a[:, :80])
    np.testing.assert_array_equal(program(a[:, :80]), expected)


OTHER_COLUMNS = """
def f(a: f64["N N"]):
    for k in range(N):
        a[i, j] = min(a[i, j], a[i, N - 1 - k] + a[k, j])
    return a
"""


def test_rows_alone() -> None:
    """Columns of other numbers: rows still run in turn."""
    a = np.random.default_rng(3).integers(1, 1000, (64, 64)).astype(np.float64)
    expected = a.copy()
    for k in range(64):
        expected = np.minimum(expected, expected[:, 63 - k, None] + expected[k])
    program = polyml.einsum(OTHER_COLUMNS, target=SMALL_CACHES)
    assert "one sweep over i" in program.explain(a)
    np.testing.assert_array_equal(program(a.copy()), expected)


OTHER_ROWS = """
def other(a: f64["N N"]):
    for k in range(N):
        a[i, j] = min(a[i, j], a[i, k] + a[N - 1 - k, j])
    return a
"""


@pytest.mark.parametrize(
    ("text", "n"), [(OTHER_ROWS, 64), (PATHS.replace("+ a[k, j]", "+ a[j, k]"), 64), (PATHS, 16)], ids=range(3)
)
def test_others_keep_their_order(text: str, n: int) -> None:
    """Rows of other numbers, columns that lie across all rows, and what stays in cache."""
    assert "one sweep" not in polyml.einsum(text, target=SMALL_CACHES).explain(np.zeros((n, n)))
