"""What the machine code looks like where it matters, for a fixed target; loading and unloading."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable

import numpy as np
import pytest

from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.machine import assembly, compile_object, host, load_object, machine_of, optimized
from polyml.codegen.loops import Allocate, Assign, Block, Function, Node, Variable
from polyml.dtypes import f32
from polyml.sets.affine import affine
from polyml.target import Target
from tests.codegen.llvm.support import apply, const, loop, read, run_function, store, variable, vector

V4 = machine_of(Target("x86-64-v4"))


def register_tile(rows: int, vectors: int, n: int) -> Function:
    """C = A @ B, n x n, over tiles of rows x (16 vectors) kept in registers along k."""
    row, column = affine("i"), affine("j") + affine("l")
    start: list[Node] = []
    steps: list[Assign] = []
    end: list[Node] = []
    names = [(r, v, f"c_{r}_{v}") for r in range(rows) for v in range(vectors)]
    for r, v, name in names:
        product = apply("mul", read("A", f32, row + r, "k"), read("B", f32, "k", column + 16 * v))
        start.append(store(name, [], const(0, f32)))
        steps.append(store(name, [], product, reduction="sum"))
        end.append(store("C", [row + r, column + 16 * v], read(name, f32)))
    lanes = {"kind": "vector", "step": 16, "width": 16}
    over_k = loop("k", 0, n, loop("l", 0, 16, *steps, **lanes))
    node: Node = Block((loop("l", 0, 16, *start, **lanes), over_k, loop("l", 0, 16, *end, **lanes)))
    for _, _, name in names:
        node = Allocate(variable=variable(name, f32, scope="register", lanes=16), body=(node,))
    nest = loop("i", 0, n, loop("j", 0, n, node, step=16 * vectors), step=rows)
    arguments = tuple(variable(name, f32, n, n) for name in "CAB")
    return Function(name="gemm", arguments=arguments, written=frozenset("C"), sizes=(), body=(nest,))


def test_a_register_tile_is_fused_multiply_adds_without_spills() -> None:
    text = assembly(emit_module([register_tile(8, 3, 96)]), V4)
    inner = max(re.split(r"^\.L\w+:\n", text, flags=re.M), key=lambda block: block.count("vfmadd"))
    inner = re.split(r"^\tj\w+\t", inner, flags=re.M)[0]
    assert inner.count("vfmadd") == 24
    assert inner.count("zmm") >= 24
    assert "rsp" not in inner
    assert len(inner.splitlines()) <= 24 + 3 + 8 + 8  # loads of B, broadcasts, loop control


def test_vectors_that_registers_do_not_hold_lie_in_lines() -> None:
    text = assembly(emit_module([register_tile(14, 3, 96)]), V4)
    assert re.search(r"vmovaps\t%zmm\d+, -?\d*\(%rsp\)", text)
    assert not re.search(r"vmovups\t%zmm\d+, -?\d*\(%rsp\)|vmovups\t-?\d*\(%rsp\), %zmm", text)
    assert "andq\t$-64, %rsp" in text


def test_a_register_tile_multiplies() -> None:
    a, b = (np.random.default_rng(s).integers(-4, 5, (96, 96)).astype("f") for s in (0, 1))
    out = run_function(register_tile(8, 3, 96), {"C": np.zeros((96, 96), "f"), "A": a, "B": b}, {})
    np.testing.assert_array_equal(out["C"], a @ b)


@pytest.mark.parametrize("alignment", [64, None])
def test_streaming_stores_need_a_proved_alignment(alignment: int | None) -> None:
    arguments = (variable("y", f32, 64, 32, alignment=alignment), variable("x", f32, 64, 32))
    row = loop("j", 0, 32, store("y", "ij", read("x", f32, "i", "j"), streaming=True), kind="vector", step=16, width=16)
    body = (loop("i", 0, 64, row),)
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=body)
    assert ("vmovntps" in assembly(emit_module([function]), V4)) == (alignment == 64)


def test_masked_tails_use_mask_registers() -> None:
    arguments = (variable("y", f32, "N"), variable("x", f32, "N"))
    body = (vector("i", "N", 16, store("y", "i", read("x", f32, "i"))),)
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=("N",), body=body)
    text = assembly(emit_module([function]), V4)
    assert re.search(r"vmovups\t\S+, %zmm\d+ \{%k1\} \{z\}", text)
    assert "masked.load" in optimized(emit_module([function]), V4)


@pytest.mark.parametrize("inside", [True, False])
def test_sums_in_registers_of_a_masked_loop_need_no_selections(inside: bool) -> None:
    """Nobody sees their other lanes, unless the register lives longer than the loop."""
    arguments = (variable("y", f32, "N"), variable("x", f32, "K", "N"), variable("w", f32, "K"))
    product = apply("mul", read("x", f32, "k", "i"), read("w", f32, "k"))
    sums = loop("k", 0, "K", store("total", (), product, reduction="sum"))
    begin, end = store("total", (), const(0.0, f32)), store("y", "i", read("total", f32))
    total = Variable(name="total", dtype=f32, shape=(), scope="register", lanes=16)
    if inside:
        body: tuple[Node, ...] = (vector("i", "N", 16, Allocate(variable=total, body=(begin, sums, end))),)
    else:
        body = (Allocate(variable=total, body=(vector("i", "N", 16, begin, sums, end),)),)
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=("N", "K"), body=body)
    text = emit_module([function])
    assert text.count("select <16 x i1>") == (1 if inside else 2)  # where the sum begins


def test_extrema_are_three_instructions() -> None:
    arguments = (variable("y", f32, 16), variable("x", f32, 16))
    body = (loop("i", 0, 16, store("y", "i", read("x", f32, "i"), reduction="max"), kind="vector", step=16, width=16),)
    function = Function(name="f", arguments=arguments, written=frozenset("y"), sizes=(), body=body)
    text = assembly(emit_module([function]), V4)
    assert text.count("vmaxps") == 1
    assert text.count("vcmp") == 1


def test_code_is_unloaded_with_its_owner() -> None:
    code = compile_object("define i64 @answer() {\n  ret i64 42\n}", host())
    loaded = [load_object(code, ("answer",)) for _ in range(3)]
    functions = [ctypes.CFUNCTYPE(ctypes.c_int64)(one.addresses["answer"]) for one in loaded]
    assert [f() for f in functions] == [42, 42, 42]
    del loaded[0]
    gc.collect()
    assert [f() for f in functions[1:]] == [42, 42]


def test_missing_symbols_are_reported() -> None:
    code = compile_object(
        "declare void @polyml_nowhere()\ndefine void @f() {\n  call void @polyml_nowhere()\n  ret void\n}", host()
    )
    with pytest.raises(RuntimeError, match="Failed to materialize symbols"):
        load_object(code, ("f",))


def test_the_text_of_a_small_function(golden: Callable[[str, str], None]) -> None:
    # Guards the shape of the text: addresses hoisted to the loop that fixes them, one load per block, a masked tail.
    sizes = ("N", "M")
    arguments = (variable("y", f32, "N", "M"), variable("x", f32, "N", "M"), variable("b", f32, "M"))
    total = apply("add", apply("mul", read("x", f32, "i", "j"), const(2, f32)), read("b", f32, "j"))
    body = (loop("i", 0, "N", vector("j", "M", 8, store("y", "ij", total))),)
    function = Function(name="affine_rows", arguments=arguments, written=frozenset("y"), sizes=sizes, body=body)
    golden("codegen/llvm/affine_rows", emit_module([function]))
