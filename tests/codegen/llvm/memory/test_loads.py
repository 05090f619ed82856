"""Accesses by stride, masked tails, selects and guards: right values, and nothing touched outside."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.llvm.machine import machine_of
from polyml.codegen.loops import Allocate, For, Function, If
from polyml.dtypes import DTYPES, boolean, f32, f64, i32, i64
from polyml.expressions import Expr, IndexValue
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.llvm.support import (
    apply,
    compile_functions,
    const,
    function_of,
    loop,
    read,
    run,
    run_each,
    store,
    variable,
    vector,
)

I = affine("i")
ODD_SIZES = (0, 1, 15, 16, 17, 35)


def numbers(shape: int | tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_copy_of_every_dtype_and_odd_size(dtype: str) -> None:
    d = DTYPES[dtype]
    variables = [variable("y", d, "N"), variable("x", d, "N")]
    body = [vector("i", "N", 16, store("y", "i", read("x", d, "i")))]
    (copy,) = compile_functions([function_of(body, {}, ["N"], variables=variables)])
    for size in ODD_SIZES:
        x = numbers(size, "bool" if dtype == "bool" else "int32").astype(d.numpy)
        out = copy({"y": np.zeros(size, d.numpy), "x": x}, {"N": size})
        np.testing.assert_array_equal(out["y"], x, err_msg=str(size))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_known_number_of_lanes_is_stored_in_pieces(dtype: str) -> None:
    """Nothing behind them is written: a guard page is there. Of a vector inside a loop, the bounds' difference is what is known."""
    d = DTYPES[dtype]
    width = max(2, 32 // d.itemsize)
    counts = sorted({1, 2, 3, width // 2 + 1, width - 1} & set(range(1, width)))
    given = [numbers((3, count), "bool" if dtype == "bool" else "int32").astype(d.numpy) for count in counts]
    variables = [variable("y", d, "N"), variable("x", d, "N")]
    bodies = []
    for count in counts:
        row = replace(vector("i", affine("r") + count, width, store("y", "i", read("x", d, "i"))), lower=affine("r"))
        bodies.append([loop("r", 0, "N", row, step=count)])
    copies = compile_functions([function_of(body, {}, ["N"], variables=variables) for body in bodies])
    for copy, x in zip(copies, given, strict=True):
        out = copy({"y": np.zeros(x.size, d.numpy), "x": x.ravel()}, {"N": x.size})
        np.testing.assert_array_equal(out["y"], x.ravel(), err_msg=str(x.shape))
    text = emit_module([function_of(bodies[-1], {}, ["N"], variables=variables)])
    assert ("masked.store" in text) == (d.kind == "c")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.few(9)
def test_a_number_of_lanes_is_stored_in_pieces_where_masks_are_vectors(dtype: str) -> None:
    """Of every number that comes up when it runs, none or more than there are lanes as well; a guard page is behind them."""
    d, target = DTYPES[dtype], Target("x86-64-v3")
    if not target.runs_here:
        pytest.skip("another machine's instructions")
    variables = [variable("y", d, "N"), variable("x", d, "N")]
    widths = (2, 4, 8, 32)
    bodies = [
        [replace(vector("i", "N", width, store("y", "i", read("x", d, "i"))), lower=affine("L"))] for width in widths
    ]
    functions = [function_of(body, {}, ["N", "L"], variables=variables) for body in bodies]
    instructions = Instructions.of(target)
    copies = compile_functions(functions, machine=machine_of(target), instructions=instructions)
    for copy, width in zip(copies, widths, strict=True):
        for size in range(width + 3):
            x = numbers(size, "bool" if dtype == "bool" else "int32").astype(d.numpy)
            for first in {0, size // 2, size}:
                out = copy({"y": np.zeros(size, d.numpy), "x": x}, {"N": size, "L": first})
                expected = np.where(np.arange(size) < first, np.zeros_like(x), x)
                np.testing.assert_array_equal(out["y"], expected, err_msg=f"{first} to {size} of {width}")
    assert ("masked.store" in emit_module(functions, instructions)) == (d.kind == "c")


@pytest.mark.parametrize("size", [16, 32, 29])
def test_loads_of_every_stride(size: int) -> None:
    strides = (-5, -2, -1, 0, 1, 2, 3, 4, 5)
    subscripts = [I * stride + (0 if stride >= 0 else (size - 1) * -stride) for stride in strides]
    given = [
        {"y": np.zeros(size, "f"), "x": numbers(max(1, (size - 1) * abs(stride) + 1), "float32")} for stride in strides
    ]
    bodies = [[vector("i", size, 16, store("y", "i", read("x", f32, subscript)))] for subscript in subscripts]
    calls = compile_functions([function_of(*pair) for pair in zip(bodies, given, strict=True)])
    for call, arrays, subscript in zip(calls, given, subscripts, strict=True):
        want = arrays["x"][[subscript.evaluate({"i": i}) for i in range(size)]]
        np.testing.assert_array_equal(call(arrays, {})["y"], want, err_msg=str(subscript))


@pytest.mark.parametrize(("width", "dtype"), [(8, "f64"), (16, "f32"), (64, "u8")])
def test_lanes_from_an_iteration_on(width: int, dtype: str) -> None:
    """Vectors from before the array's first element on; the mask is one comparison, and nothing outside is touched."""
    d = DTYPES[dtype]
    variables = [variable("y", d, "N"), variable("x", d, "N")]
    condition = apply("le", IndexValue(affine("first"), i64), IndexValue(I, i64), dtype=boolean)
    kept = If(condition=condition, then=(store("y", "i", read("x", d, "i")),))
    rows = loop("i", -width, "N", kept, kind="vector", step=width, width=width, masked=True)
    function = function_of([loop("first", 0, "M", rows)], {}, ["N", "M"], variables=variables)
    assert re.search(rf"icmp sge <{width} x i{32 if width <= 16 else 8}>", emit_module([function]))
    (copy,) = compile_functions([function])
    page = 4096 // d.itemsize  # the first element of which lies behind a page that faults
    x = numbers(page, "int32").astype(d.numpy)
    out = copy({"y": np.zeros(page, d.numpy), "x": x}, {"N": page, "M": 1})
    np.testing.assert_array_equal(out["y"], x)
    for first in (1, width - 1, width, 3 * width + 5, page):
        each = loop("first", first, "M", rows)
        (copy,) = compile_functions([function_of([each], {}, ["N", "M"], variables=variables)])
        out = copy({"y": np.zeros(page, d.numpy), "x": x}, {"N": page, "M": first + 1})
        np.testing.assert_array_equal(out["y"], np.where(np.arange(page) < first, 0, x))


@pytest.mark.parametrize("stride", [-3, -1, 1, 2, 3])
@pytest.mark.parametrize("size", [16, 29])
def test_stores_of_every_stride_leave_what_lies_between(stride: int, size: int) -> None:
    y = np.full((size - 1) * abs(stride) + 1, -1.0)
    subscript = I * stride + (0 if stride >= 0 else (size - 1) * -stride)
    x = numbers(size, "float64")
    out = run([vector("i", size, 8, store("y", [subscript], read("x", f64, "i")))], {"y": y, "x": x})
    want = y.copy()
    want[[subscript.evaluate({"i": i}) for i in range(size)]] = x
    np.testing.assert_array_equal(out["y"], want)


def test_a_store_of_all_lanes_to_one_element_keeps_the_last() -> None:
    for size in (16, 21):
        x = numbers(size, "float32")
        out = run([vector("i", size, 16, store("y", [0], read("x", f32, "i")))], {"y": np.zeros(1, "f"), "x": x})
        assert out["y"][0] == x[-1]


@pytest.mark.parametrize("size", ODD_SIZES)
def test_gather_and_scatter(size: int) -> None:
    table, permutation = numbers((7, 3), "float32"), np.random.default_rng(1).permutation(size)
    ids = numbers(size, "int32") % 7
    gathered = read("table", f32, read("ids", i32, "i"), 1)
    body = [vector("i", size, 16, store("y", [read("p", i64, "i")], gathered))]
    out = run(body, {"y": np.zeros(size, "f"), "table": table, "ids": ids, "p": permutation})
    want = np.zeros(size, "f")
    want[permutation] = table[ids, 1]
    np.testing.assert_array_equal(out["y"], want)


def test_scattered_sums_meet_in_one_element() -> None:
    ids = numbers(37, "int64") % 3
    body = [vector("i", 37, 16, store("y", [read("ids", i64, "i")], const(1, f32), reduction="sum"))]
    out = run(body, {"y": np.zeros(3, "f"), "ids": ids})
    np.testing.assert_array_equal(out["y"], np.bincount(ids, minlength=3))


def test_floor_divisions_of_the_lane_variable() -> None:
    x = numbers((5, 4), "float32")
    upsampled = read("x", f32, (I // 6), (I % 6) // 3 + I // 15)
    out = run([vector("i", 29, 16, store("y", "i", upsampled))], {"y": np.zeros(29, "f"), "x": x})
    np.testing.assert_array_equal(out["y"], [x[i // 6, i % 6 // 3 + i // 15] for i in range(29)])


def test_a_flattened_index_is_contiguous_again() -> None:
    x = numbers((5, 7), "float32")
    out = run([vector("i", 35, 8, store("y", "i", read("x", f32, I // 7, I % 7)))], {"y": np.zeros(35, "f"), "x": x})
    np.testing.assert_array_equal(out["y"], x.ravel())


def test_strides_that_are_known_at_run_time_only() -> None:
    x = numbers((5, 19), "float64")
    variables = [variable("y", f64, "M", "N"), variable("x", f64, "N", "M")]
    body = [loop("j", 0, "M", vector("i", "N", 8, store("y", "ji", read("x", f64, "i", "j"))))]
    arrays = {"y": np.zeros((19, 5)), "x": x}
    out = run(body, arrays, {"N": 5, "M": 19}, variables=variables)
    np.testing.assert_array_equal(out["y"], x.T)


def test_select_never_reads_the_branch_that_is_not_taken() -> None:
    x = numbers(20, "float32")
    inside = apply("le", const(3, i64), IndexValue(I, i64), dtype=boolean)
    shifted = apply("select", inside, read("x", f32, I - 3), const(-1, f32))
    want = [x[i - 3] if i >= 3 else -1 for i in range(23)]
    for body in (vector("i", 23, 16, store("y", "i", shifted)), loop("i", 0, 23, store("y", "i", shifted))):
        out = run([body], {"y": np.zeros(23, "f"), "x": x})
        np.testing.assert_array_equal(out["y"], want)


def test_select_guards_uniform_reads_too() -> None:
    x = numbers(4, "float32")
    taken = apply("lt", IndexValue(affine("k"), i64), IndexValue(I - 30, i64), dtype=boolean)
    value = apply("select", taken, read("x", f32, affine("k") * 100000), const(2, f32))
    body = [loop("k", 0, 3, vector("i", 31, 16, store("y", "ki", value)))]
    out = run(body, {"y": np.zeros((3, 31), "f"), "x": x})
    np.testing.assert_array_equal(out["y"], np.full((3, 31), 2))


def test_nested_selects_narrow_the_lanes() -> None:
    x = numbers(16, "float32")
    low = apply("lt", IndexValue(I, i64), const(24, i64), dtype=boolean)
    high = apply("ge", IndexValue(I, i64), const(8, i64), dtype=boolean)
    value = apply("select", high, apply("select", low, read("x", f32, I - 8), const(1, f32)), const(2, f32))
    out = run([vector("i", 40, 16, store("y", "i", value))], {"y": np.zeros(40, "f"), "x": x})
    np.testing.assert_array_equal(out["y"], [x[i - 8] if 8 <= i < 24 else 1 if i >= 8 else 2 for i in range(40)])


@pytest.mark.parametrize("dynamic", [False, True])
def test_small_numbers_are_read_without_a_mask_where_all_of_them_are_there(dynamic: bool) -> None:
    """AVX2 has no instruction for such a mask: LLVM branches for each lane."""
    text = """
def pick(x: u16["N M"], z: i8["N M"]):
    y: f32["N M"]
    y[n, m] = where((n + m) % 2 == 0, f32(x[n, m]), f32(z[n, m]))
    if (n + 2 * m) % 3 == 0:
        y[n, m] += f32(z[n, m])
    return y
"""
    pick = polyml.einsum(text, dynamic=dynamic, threads=1, target=Target("x86-64-v3"))
    x, z = numbers((5, 67), "uint16"), numbers((5, 67), "int8", 1)
    odd, third = np.add.outer(np.arange(5), np.arange(67)) % 2, np.add.outer(np.arange(5), 2 * np.arange(67)) % 3
    np.testing.assert_array_equal(pick(x, z), np.where(odd, z, x.astype("f")) + np.where(third == 0, z, 0))
    whole = pick.lower(x[:, :64].copy(), z[:, :64].copy()).text("llvm")
    assert dynamic or "masked.load" not in whole  # of any size, a last vector has a mask


def test_other_numbers_are_read_without_a_mask_where_remainders_choose() -> None:
    x = numbers((40,), "float32")
    even = apply("eq", IndexValue(I - 2 * (I // 2), i64), const(0, i64), dtype=boolean)
    for shift, masked in ((2, False), (-2, True)):
        value = apply("select", even, read("x", f32, I + shift), const(1, f32))
        body = [vector("i", 32, 8, store("y", "i", value))]
        made = emit_module([function_of(body, {"y": np.zeros(32, "f"), "x": x})])
        assert ("masked.load" in made) == masked
    out = run(
        [vector("i", 32, 8, store("y", "i", apply("select", even, read("x", f32, I + 2), const(1, f32))))],
        {"y": np.zeros(32, "f"), "x": x},
    )
    np.testing.assert_array_equal(out["y"], np.where(np.arange(32) % 2 == 0, x[2:34], 1))


def test_if_masks_lanes_and_branches_on_scalars() -> None:
    x = numbers(29, "int32")
    big = apply("gt", read("x", i32, "i"), const(50, i32), dtype=boolean)
    node = If(condition=big, then=(store("y", "i", const(1, i32)),), otherwise=(store("y", "i", read("x", i32, "i")),))
    for body in (vector("i", 29, 16, node), loop("i", 0, 29, node)):
        out = run([body], {"y": np.full(29, -1, "i4"), "x": x})
        np.testing.assert_array_equal(out["y"], np.where(x > 50, 1, x))


def test_a_uniform_store_under_a_mask_happens_only_if_a_lane_acts() -> None:
    for limit, want in ((100, -1.0), (20, 5.0)):
        far = apply("ge", IndexValue(I, i64), const(limit, i64), dtype=boolean)
        body = [vector("i", 29, 16, If(condition=far, then=(store("y", [0], const(5, f32)),)))]
        assert run(body, {"y": np.full(1, -1, "f")})["y"][0] == want


def test_inner_loops_whose_bounds_differ_between_lanes() -> None:
    x = numbers((29, 29), "float32")
    accumulate = store("y", "i", read("x", f32, "i", "k"), reduction="sum")
    body = [vector("i", 29, 8, loop("k", I, 29, accumulate))]
    out = run(body, {"y": np.zeros(29, "f"), "x": x})
    np.testing.assert_array_equal(out["y"], np.triu(x).sum(1))


@pytest.mark.parametrize("size", [10, 40_000])
def test_local_arrays_on_stack_and_heap(size: int) -> None:
    temporary = variable("t", f32, "N", scope="local")
    inner = (
        vector("i", "N", 16, store("t", "i", apply("add", read("x", f32, "i"), const(1, f32)))),
        vector("i", "N", 16, store("y", "i", read("t", f32, affine("N") - 1 - I))),
    )
    x = numbers(size, "float32")
    variables = [variable("y", f32, "N"), variable("x", f32, "N")]
    arrays = {"y": np.zeros(size, "f"), "x": x}
    out = run([Allocate(variable=temporary, body=inner)], arrays, {"N": size}, variables=variables)
    np.testing.assert_array_equal(out["y"], x[::-1] + 1)


@pytest.mark.parametrize("columns", [1, 7, 500])
def test_rows_of_scratch_memory_lie_beside_those_of_an_argument(columns: int) -> None:
    """Modulo a page 1536 bytes from the argument's, the second array twice as far: tiles of rows of all three are in an L1 that has a page for each of its ways."""
    rows = 40
    scratch = [variable(name, f32, "N", "M", scope="local") for name in "st"]
    value = apply("add", read("s", f32, affine("N") - 1 - I, "j"), read("t", f32, "i", "j"))
    body: tuple[For | Allocate, ...] = (
        loop("i", 0, "N", vector("j", "M", 16, store("s", ["i", "j"], read("x", f32, "i", "j")))),
        loop("i", 0, "N", vector("j", "M", 16, store("t", ["i", "j"], apply("neg", read("x", f32, "i", "j"))))),
        loop("i", 0, "N", vector("j", "M", 16, store("y", ["i", "j"], value))),
    )
    for made in scratch:
        body = (Allocate(variable=made, body=body),)
    variables = [variable("y", f32, "N", "M"), variable("x", f32, "N", "M")]
    x = numbers((rows, columns), "float32")
    out = run(body, {"y": np.zeros_like(x), "x": x}, {"N": rows, "M": columns}, variables=variables)
    np.testing.assert_array_equal(out["y"], x[::-1] - x)

    def moved(rows_of: str) -> list[str]:
        arguments = (variable("y", f32, "N", rows_of), variable("x", f32, "N", rows_of))
        nest = (loop("i", 0, "N", vector("j", "M", 16, store("y", ["i", "j"], read("s", f32, "i", "j")))),)
        function = Function(
            name="f", arguments=arguments, written=frozenset("y"), sizes=("N", "M", "K"),
            body=(Allocate(variable=scratch[0], body=(Allocate(variable=scratch[1], body=nest),)),),
        )  # fmt: skip
        return re.findall(r"add i64 %[\w.]+, (\d+)\n.*sub i64.*\n.*and i64 %[\w.]+, 4032", emit_module([function]))

    assert moved("M") == ["1536", "3072"]
    assert moved("K") == []


@pytest.mark.parametrize("parallel", [True, False])
def test_parallel_loops_get_what_they_use(parallel: bool) -> None:
    scratch = variable("t", f32, 16, scope="local")
    scale = variable("s", f32, scope="register")
    work = (
        loop("k", 0, 16, store("t", "k", apply("mul", read("x", f32, "j", "k"), read("s", f32)))),
        vector("k", 16, 16, store("y", ["r", "j", "k"], read("t", f32, "k"))),
    )
    rows = loop("j", 0, "N", Allocate(variable=scratch, body=work), kind="parallel", step=2)
    body = [
        Allocate(variable=scale, body=(store("s", [], const(3, f32)), loop("r", 0, 2, rows))),
    ]
    x = numbers((9, 16), "float32")
    variables = [variable("y", f32, 2, "N", 16), variable("x", f32, "N", 16)]
    arrays = {"y": np.zeros((2, 9, 16), "f"), "x": x}
    out = run(body, arrays, {"N": 9}, variables=variables, parallel=parallel)
    want = np.zeros((2, 9, 16), "f")
    want[:, ::2] = 3 * x[::2]
    np.testing.assert_array_equal(out["y"], want)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_other_machines_of_this_family(name: str) -> None:
    if not Target(name).runs_here:
        pytest.skip(f"{name} does not run here")
    x = numbers(35, "float32")
    body = [
        vector(
            "i",
            35,
            16,
            store("y", "i", apply("exp", apply("neg", apply("mul", const(0.5, f32), read("x", f32, affine(34) - I))))),
        )
    ]
    out = run(body, {"y": np.zeros(35, "f"), "x": x}, machine=machine_of(Target(name)))
    np.testing.assert_allclose(out["y"], np.exp(-x[::-1].astype("d") / 2), rtol=3e-7)


@pytest.mark.parametrize("step", [1, 2, 5, -3])
def test_floor_divisions_by_any_number(step: int) -> None:
    divisors = (1, 2, 3, 7, 16, 100)
    values = [IndexValue((I * step - 50) // divisor, i64) for divisor in divisors]
    bodies = [[vector("i", 50, 16, store("y", "i", value))] for value in values]
    for divisor, out in zip(divisors, run_each(bodies, {"y": np.zeros(50, "i8")}), strict=True):
        np.testing.assert_array_equal(out["y"], (np.arange(50) * step - 50) // divisor, err_msg=str(divisor))


@pytest.mark.parametrize("first", [0, -40])
def test_remainders_in_rows_of_any_length(first: int) -> None:
    """Quotients that make a remainder are taken together; others, and sums of several, are not changed by that."""
    k = affine("k")
    rows = [
        k // 2 - k // 2 // 8 * 8 + k // 16 * 0,
        k // 3 - k // 3 // 4 * 4,
        k % 4 + k // 8 - k // 32 * 4,
        k // 4 - k // 8,
    ]
    rows += [k // 2 * 3 - k // 2 // 4 * 12, k // 2 - k // 2 // 4 * 2]
    for row in rows:
        values = [row.evaluate({"k": number}) for number in range(first, first + 64)]
        low = min(values)
        x = numbers((max(values) - low + 1, 5), "float32")
        where = k - first
        body = [loop("k", first, first + 64, store("y", [where], read("x", f32, row - low, 3)))]
        variables = [variable("y", f32, 64), variable("x", f32, "N", "M")]
        out = run(body, {"y": np.zeros(64, "f"), "x": x}, {"N": len(x), "M": 5}, variables=variables)
        np.testing.assert_array_equal(out["y"], x[np.array(values) - low, 3], err_msg=str(row))


def test_a_quotient_that_no_lane_changes_needs_no_gather() -> None:
    panels = read("x", f32, I // 16, affine("k"), I % 16)
    body = [loop("k", 0, 3, loop("i", 0, 64, store("y", ["k", "i"], panels), kind="vector", step=16, width=16))]
    x = numbers((4, 3, 16), "float32")
    out = run(body, {"y": np.zeros((3, 64), "f"), "x": x})
    np.testing.assert_array_equal(out["y"], x.transpose(1, 0, 2).reshape(3, 64))
    arguments = (variable("y", f32, 3, 64), variable("x", f32, 4, 3, 16))
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=tuple(body))
    text = emit_module([function])
    assert "gather" not in text
    assert "load <16 x float>" in text


def test_names_of_arrays_do_not_meet_names_of_the_emitter() -> None:
    names = ["entry", "t", "v1", "loop", "size", "lower", "context"]
    arrays = {name: numbers(5, "float32", seed) for seed, name in enumerate(names)}
    total: Expr = read(names[1], f32, "i")
    for name in names[2:]:
        total = apply("add", total, read(name, f32, "i"))
    body = [loop("i", 0, 5, store("entry", "i", total), kind="parallel")]
    out = run(body, arrays, written=("entry",))
    np.testing.assert_array_equal(out["entry"], sum(arrays[name] for name in names[1:]))


MIRRORED = """
def f(x: {0}["N"], y: {0}["N"]):
    z[k] = x[N - 1 - k] * y[k]
    return z
"""


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_vectors_in_the_opposite_order_are_loaded_first(dtype: str) -> None:
    """Lanes move between the halves of a register at half the speed where they come from memory."""
    x = np.zeros(600, DTYPES[dtype].numpy)
    asm = polyml.einsum(MIRRORED.format(dtype), target=Target("x86-64-v3")).lower(x, x).text("asm")
    moved = [line for line in asm.splitlines() if "vpermp" in line]
    assert moved
    assert not any("(" in line for line in moved)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "i8", "i16", "i64", "c64"])
@pytest.mark.parametrize("n", [0, 1, 3, 37, 130])
@pytest.mark.few(11)
def test_the_opposite_order(dtype: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.integers(-5, 6, (2, 2 * n)).astype(DTYPES[dtype].numpy)
    program = polyml.einsum(MIRRORED.format(dtype))
    np.testing.assert_array_equal(program(x[:n], y[:n]), x[:n][::-1] * y[:n])
    np.testing.assert_array_equal(program(x[::-2], y[::2]), x[::-2][::-1] * y[::2])
