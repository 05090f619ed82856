"""Blocks that are transposed by functions of their own: what they compute, and that blocks of a kind share one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.interpret import interpret
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.memory import transpose
from polyml.codegen.loops import Assign, Function
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.dtypes import f32
from tests.codegen.llvm.support import guarded, run_function
from tests.codegen.passes.transposes.test_transpose_copies import transposed
from tests.codegen.passes.transposes.test_transposes import backwards, both_sides, forwards
from tests.codegen.programs import array, at, function, loop, put, random_arrays

SMALL = pm.Target("x86-64-v4", l1_bytes=512, l2_bytes=1024, l3_bytes=1024)


def checked(program: Function, sizes: dict[str, int], vector_bytes: int) -> None:
    after = lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))[0]
    arrays = random_arrays(program, sizes)
    expected = {name: values.copy() for name, values in arrays.items()}
    interpret(program, expected, sizes)
    found = run_function(after, arrays, sizes)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)
    assert "call void @transpose." in emit_module([after])


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("n", "m", "vector_bytes"), [(33, 47, 64), (7, 20, 32)])
def test_copies(n: int, m: int, vector_bytes: int, back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transpose, "MANY", 0)
    checked(transposed(n, m, 0, m, f32, back=back), {}, vector_bytes)
    checked(transposed(n, 48, 2, "N", f32, back=back), {"N": m}, vector_bytes)  # as many columns as only the call knows


@pytest.mark.parametrize("called", [False, True])
def test_rows_of_unknown_length_lie_a_stride_apart(called: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their addresses are numbers: of the products of vectors that would be one for each lane none is inside of a loop."""
    monkeypatch.setattr(transpose, "MANY", 0 if called else 99)
    f = pm.einsum('def f(x: f32["N M"]):\n    y[j, i] = x[i, j]\n    return y', dynamic=True, threads=1)
    x = np.arange(70 * 41, dtype=np.float32).reshape(70, 41)
    text = f.lower(x).text("llvm")
    assert ("call void @transpose." in text) == called
    begin = text[: text.index("br ")]
    assert [line for line in text.splitlines() if "mul <" in line] == [l for l in begin.splitlines() if "mul <" in l]
    for n, m in ((70, 41), (16, 64), (7, 3), (33, 100), (1, 9)):
        wide = np.random.default_rng(n).random((n, m + 3), np.float32)
        np.testing.assert_array_equal(f(wide[:, :m].copy()), wide[:, :m].T)  # type: ignore[operator]
        np.testing.assert_array_equal(f(wide[::-1, :m].copy()), wide[::-1, :m].T)  # type: ignore[operator]


def test_rows_of_recurrences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transpose, "MANY", 0)
    for make in (forwards, backwards, both_sides):
        checked(make(35, 67), {}, 64)


def test_blocks_of_a_kind_share_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks and those at the edge are kinds of their own; so are other distances between rows."""
    x, y, z = array("x", 40, 40), array("y", 40, 40), array("z", 40, 80)
    nests = [
        loop("j", 0, 32, loop("k", 0, 32, Assign(target=put("y", "k", "j"), value=at(name, "j", "k"))), kind="vector")
        for name in ("x", "x", "z", "x")
    ]
    after = lower_loops(function(*nests, arguments=[x, y, z], written="y"), options=LoopOptions(vector_bytes=64))[0]
    assert "@transpose." not in emit_module([after])
    monkeypatch.setattr(transpose, "MANY", 3)
    text = emit_module([after])
    assert text.count("define internal void @transpose.") == 2
    assert text.count("call void @transpose.") == 4


def test_lanes_that_do_not_act_have_the_address_of_one_that_does() -> None:
    """Four of sixteen rows: the addresses of the others, which may be pages that are not there, are not asked for."""
    nest = loop("j", 0, 4, loop("k", 0, 32, Assign(target=put("y", "k", "j"), value=at("x", "j", "k"))), kind="vector")
    unknown = loop(
        "j", 0, "N", loop("k", 0, 32, Assign(target=put("y", "k", "j"), value=at("x", "j", "k"))), kind="vector"
    )
    for made, sizes in ((nest, ""), (unknown, "N")):
        x, y = array("x", sizes or 4, 32), array("y", 32, sizes or 4)
        program = function(made, arguments=[x, y], written="y", sizes=sizes.split())
        after = lower_loops(program, options=LoopOptions(vector_bytes=64))[0]
        text = emit_module([after])
        assert ("select i1" in text and "@llvm.cttz.i16" in text) == bool(sizes), text
        arrays = random_arrays(program, dict.fromkeys(sizes.split(), 4))
        found = run_function(after, arrays, dict.fromkeys(sizes.split(), 4))
        np.testing.assert_array_equal(found["y"], found["x"].T)


@pytest.mark.parametrize(("columns", "rows"), [(12, 48), (16, 48), (12, 50)])
def test_whole_columns_go_past_the_caches(columns: int, rows: int) -> None:
    """All lanes of some columns, too, where these begin at lines."""
    f = pm.einsum('def f(x: f32["N M"]):\n    y[j, i] = x[i, j]\n    return y\n', target=SMALL, threads=1)
    text = f.lower(np.zeros((rows, columns), np.float32)).text("llvm")
    assert ("!nontemporal" in text) == (rows % 16 == 0)


COLUMNS = "def f(x: {0}['N M'], a: {0}['N M']):\n    y: {0}['N M']\n    y[i, 0] = x[i, 0]\n    for j in range(1, M):\n        y[i, j] = a[i, j] * y[i, j - 1] + x[i, j]\n    return y\n"


@pytest.mark.parametrize(("dtype", "machine", "called"), [("u8", "x86-64-v3", True), ("i16", "x86-64-v3", True), ("f32", "x86-64-v3", False), ("u8", "x86-64-v4", False)])  # fmt: skip
@pytest.mark.few(2)
def test_masks_that_are_branches_per_element_stand_in_the_module_once(dtype: str, machine: str, called: bool) -> None:
    """AVX2 has no masks for small elements: hundreds of masked rows, of which LLVM made 30,000 blocks, took it 12 s."""
    numbers = np.zeros((20, 77), pm.dtypes.DTYPES[dtype].numpy)
    target = pm.Target(machine)
    text = pm.einsum(COLUMNS.format(dtype), dynamic=True, target=target).lower(numbers, numbers).text("llvm")
    loads = text.count(f" @llvm.masked.load.v{target.lanes(numbers.itemsize)}")
    assert ("@masked.load." in text) == called
    assert loads
    assert (loads <= 4) == called


@pytest.mark.parametrize(("dtype", "called"), [("u8", True), ("f32", False)])
def test_blocks_of_64_lanes_are_called_sooner(dtype: str, called: bool) -> None:
    """Eight of them were 19,000 lines, for which LLVM took 5 s."""
    text = f'def f(a: {dtype}["N"], M: int):\n    h: {dtype}["N M"]\n    h[n, m] = a[n]\n    y: {dtype}["N M"]\n    y[n, 0] = h[n, 0]\n    for t in range(1, M):\n        y[n, t] = max(y[n, t - 1], h[n, t])\n    return y\n'
    program = pm.einsum(text, dynamic=True, target=pm.Target("x86-64-v4"))
    found = program.lower(np.zeros(33, pm.dtypes.DTYPES[dtype].numpy), 65).text("llvm")
    assert ("call void @transpose." in found) == called
    assert len(found.splitlines()) < 10_000


@pytest.mark.parametrize("dtype", ["u8", "i16"])
def test_small_numbers_under_masks(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 77), (20, 77), (33, 31), (70, 130)):
        x, a = (guarded(rng.integers(0, 100, shape).astype(pm.dtypes.DTYPES[dtype].numpy)) for _ in range(2))
        expected = x.copy()
        for j in range(1, shape[1]):
            expected[:, j] += a[:, j] * expected[:, j - 1]
        np.testing.assert_array_equal(columns(dtype)(x, a), expected)
        np.testing.assert_array_equal(columns(dtype)(x[:, ::-1][:, ::-1], a), expected)


@pytest.mark.parametrize(("rows", "columns"), [(4, 10), (16, 40), (20, 33)])
def test_rows_that_run_backwards_in_memory(rows: int, columns: int) -> None:
    """Also where lanes go round an edge, so that they are at no one distance: blocks were read forwards from there, out of the array."""
    text = 'def f(x: f32["K N"], w: f32["3 K C"]):\n    y: f32["C N"]\n    y[c, h] = sum[k, r](x[k, (h + r - 1) % N] * w[r, k, c])\n    return y\n'
    rng = np.random.default_rng(rows)
    x = np.asfortranarray(rng.integers(-2, 3, (rows, columns)).astype(np.float32))
    w = rng.integers(-2, 3, (3, rows, 7)).astype(np.float32)
    program = pm.einsum(text)
    for given in (x[::-1, ::-1], x[::-1], x):
        around = np.stack([np.roll(given, 1 - r, axis=1) for r in range(3)])
        np.testing.assert_array_equal(program(given, w), np.einsum("rkh,rkc->ch", around, w))


@cache
def columns(dtype: str) -> pm.Einsum:
    return pm.einsum(COLUMNS.format(dtype), dynamic=True)
