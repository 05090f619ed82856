"""Elements at places that tensors tell, on machines without a quick instruction for them: a load for each lane, and nothing touched outside of the array."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.machine import machine_of
from polyml.codegen.loops import Allocate, Node
from polyml.dtypes import DTYPES, f64, i64
from polyml.expressions import Expr
from polyml.target import Target
from tests.codegen.llvm.support import apply, compile_functions, const, function_of, loop, read, store, variable
from tests.einsum_numpy.guard_pages import guarded
from tests.pairs import pairwise

NARROW = Target("x86-64-v3")
WIDE = Target("x86-64-v4", features="-prefer-256-bit")
GATHER = "masked.gather"
rng = np.random.default_rng(0)


def rows(dtype: str, index: str, form: str = "v[f[t, 2], d] - v[f[t, 0], d]") -> str:
    return f'def g(v: {dtype}["V 3"], f: {index}["T 3"]):\n    y[t, d] = {form}\n    return y\n'


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("index", ["i64", "i32", "u32", "i16", "u8"])
@pytest.mark.few(10)
def test_every_dtype_of_elements_and_places(dtype: str, index: str) -> None:
    source = f'def f(x: {dtype}["N"], i: {index}["M"]):\n    y[m] = x[i[m]]\n    return y\n'
    program = polyml.einsum(source, target=NARROW)
    for count in (0, 1, 7, 67):
        places = rng.integers(0, 100, count)
        for behind in (False, True):
            x = guarded((np.arange(100) % (2 if dtype == "bool" else 50)).astype(DTYPES[dtype].numpy), behind)
            i = guarded(places.astype(DTYPES[index].numpy), behind)
            np.testing.assert_array_equal(program(x, i), x[places])


@pairwise(
    ("faces", [1, 8, 13, 40]), ("turned", [False, True]), ("backwards", [False, True]), ("dtype", ["f32", "f64", "i32"])
)
@pytest.mark.few(8)
def test_rows_at_places_in_any_layout(faces: int, turned: bool, backwards: bool, dtype: str) -> None:
    v = rng.integers(-9, 9, (20, 3)).astype(DTYPES[dtype].numpy)
    f = rng.integers(0, 20, (faces, 3))
    if turned:
        v, f = np.asfortranarray(v), np.asfortranarray(f)
    if backwards:
        v, f = v[::-1], f.repeat(2, 0)[::-2]
    np.testing.assert_array_equal(polyml.einsum(rows(dtype, "i64"), target=NARROW)(v, f), v[f[:, 2]] - v[f[:, 0]])


def test_places_of_several_tensors_and_of_an_index() -> None:
    source = 'def g(x: f32["A B C"], i: i64["N"], j: i32["N"]):\n    y[n] = x[i[n], 3 - j[n], n] * x[2, j[n], n]\n    return y\n'
    x = rng.standard_normal((5, 4, 37), dtype=np.float32)
    i, j, n = rng.integers(0, 5, 37), rng.integers(0, 4, 37).astype(np.int32), np.arange(37)
    expected = x[i, 3 - j, n] * x[2, j, n]
    np.testing.assert_array_equal(polyml.einsum(source, target=NARROW)(x, i, j), expected)
    np.testing.assert_array_equal(polyml.einsum(source, target=NARROW, dynamic=True)(x, i, j), expected)


def test_lanes_that_a_condition_leaves_out_read_nothing() -> None:
    """Their places are no places of the array."""
    source = (
        'def f(x: f32["N"], i: i64["M"]):\n    y: f32["M"]\n    y[m] = where(i[m] > 2, x[i[m] - 3], -1)\n    return y\n'
    )
    i = rng.integers(0, 23, 61)
    for behind in (False, True):
        x = guarded(np.arange(20, dtype=np.float32), behind)
        expected = np.where(i > 2, i - 3, -1)
        np.testing.assert_array_equal(polyml.einsum(source, target=NARROW)(x, i), expected)


def test_places_that_a_step_has_just_written() -> None:
    """Of the loop's own array: in memory by then, or in a register."""
    source = 'def f(x: f32["N"], i: i64["M"]):\n    for t in range(3):\n        i[m] = (i[m] + 5) % N\n        y[m] = x[i[m]]\n    return i, y\n'.replace(
        "    for t", '    y: f32["M"] = 0\n    for t'
    )
    x, i = np.arange(20, dtype=np.float32), rng.integers(0, 20, 61)
    expected = (i + 15) % 20
    found, y = polyml.einsum(source, target=NARROW)(x, i.copy())
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(y, expected)


def test_a_place_is_read_once_for_all_that_is_read_there() -> None:
    v, f = np.zeros((20, 3), np.float32), np.zeros((64, 3), np.int64)
    form = "v[f[t, 2], 0] + v[f[t, 2], 1] * v[f[t, 2], 2]"
    source = rows("f32", "i64", form).replace("[t, d]", "[t]")
    narrow = polyml.einsum(source, target=NARROW).lower(v, f)
    assert GATHER not in narrow.text("llvm")
    # Of 64 faces each once, in turns of eight at the most: places are not moved between registers.
    assert "vpextrq" not in narrow.text("asm")
    assert "vpmuludq" not in narrow.text("asm")
    assert GATHER in polyml.einsum(source, target=WIDE).lower(v, f).text("llvm")


@pytest.mark.parametrize("scope", ["global", "register"])
def test_a_computed_place_is_another_one_when_what_tells_it_was_written(scope: str) -> None:
    """Read, moved on, and read again by the same lanes."""
    told = read("p", i64) if scope == "register" else read("p", i64, "i")
    place = apply("min", apply("mul", told, const(2, i64)), const(19, i64))
    subscripts: tuple[str, ...] = () if scope == "register" else ("i",)
    steps: list[Node] = [
        store("y", ["i"], apply("add", read("x", f64, place), read("x", f64, place))),
        store("p", subscripts, apply("add", told, const(3, i64))),
        store("z", ["i"], read("x", f64, place)),
    ]
    arrays = {"x": np.arange(20.0), "p": np.arange(8) % 5, "q": np.arange(8) % 5, "y": np.zeros(8), "z": np.zeros(8)}
    if scope == "register":
        register = variable("p", i64, scope="register", lanes=4)
        steps = [Allocate(variable=register, body=(store("p", (), read("q", i64, "i")), *steps))]
        del arrays["p"]
    body = [loop("i", 0, 8, *steps, kind="vector", step=4, width=4)]
    function = function_of(body, arrays, written=("y", "z", "p"))
    (call,) = compile_functions([function], machine=machine_of(NARROW), instructions=Instructions.of(NARROW))
    made = call(arrays, {})
    np.testing.assert_array_equal(made["y"], 2 * np.minimum(2 * arrays["q"], 19))
    np.testing.assert_array_equal(made["z"], np.minimum(2 * (arrays["q"] + 3), 19))


def test_a_place_is_computed_once_for_all_rows_of_a_tile() -> None:
    source = 'def f(x: f64["H W"], u: f64["P"], v: f64["Q"]):\n    y[p, q] = x[i64(u[p]), i64(v[q])]\n    return y\n'
    u, v = 9 * rng.random(6), 9 * rng.random(7)
    x = rng.random((10, 10))
    np.testing.assert_array_equal(polyml.einsum(source)(x, u, v), x[u.astype(int)[:, None], v.astype(int)])
    columns = [loop("q", 0, 8, *(store("y", [p, "q"], sampled(p)) for p in range(4)), kind="vector", step=4, width=4)]
    arrays = {"x": np.zeros((10, 10)), "v": np.zeros(8), "y": np.zeros((4, 8))}
    text = emit_module([function_of(columns, arrays)], Instructions.of(NARROW))
    assert text.split("@kernel(")[1].count("@polyml.fptosi") == 1


def sampled(row: int) -> Expr:
    return read("x", f64, row, apply("cast", read("v", f64, "q"), dtype=i64))
