"""Recurrences in lanes: the same results, interpreted and compiled, and which loops they are found in."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from polyml import einsum
from polyml.codegen.interpret import interpret
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.loops import Assign, For, Function, If, Scan
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.sums.scans import find_scans
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import i64
from polyml.expressions import Const, Expr
from polyml.sets.affine import Affine, affine
from polyml.target import Target
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import Extent, agree, array, at, call, function, loop, number, put, random_arrays
from tests.pairs import pairwise

I, J = affine("i"), affine("j")


def along(
    n: Extent, value: Expr, *, start: int = 1, end: Extent | None = None, place: Affine = J, rows: int = 1
) -> Function:
    """y[i, place] = value for j from start, in each of the rows."""
    step = Assign(target=put("y", "i", place), value=value)
    nest = loop("i", 0, rows, loop("j", start, n if end is None else end, step))
    sizes = [n] if isinstance(n, str) else []
    arrays = [array("x", rows + 1, n), array("y", rows + 1, n)]
    return function(nest, arguments=arrays, written="y", sizes=sizes)


def add(*terms: Expr) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = call("add", total, term)
    return total


BEFORE = at("y", "i", J - 1)


def cumsum(n: Extent) -> Function:
    return along(n, add(BEFORE, at("x", "i", "j")))


def alternating(n: Extent) -> Function:
    """With a factor, and neighbours that are not written yet."""
    value = call("sub", add(at("x", "i", "j"), at("y", "i", "j")), call("mul", number(1.0), BEFORE))
    return along(n, value, rows=2)


def halved(n: Extent) -> Function:
    """Sums of halves stay exact for a while: the factor is a quotient; and another row."""
    value = call(
        "div",
        add(call("mul", number(4.0), at("x", "i", "j")), at("y", I + 1, J - 1), call("mul", number(-2.0), BEFORE)),
        number(2.0),
    )
    return along(n, value)


def gated(n: Extent) -> Function:
    """A factor per element: 1 or -1 by its sign."""
    sign = call(
        "sub",
        call("mul", number(2.0), call("min", number(1.0), call("max", number(0.0), at("x", "i", "j")))),
        number(1.0),
    )
    return along(n, add(call("mul", BEFORE, sign), at("x", "i", "j")))


def from_the_end(n: int) -> Function:
    """Against the direction of memory."""
    here = n - 2 - J
    return along(n, add(at("y", "i", here + 1), at("x", "i", here)), start=0, end=n - 1, place=here)


def highest(n: Extent) -> Function:
    return along(n, call("max", call("max", at("x", "i", "j"), BEFORE), at("y", "i", "j")))


def aligned(n: Extent) -> Function:
    """A score: the best of a step along the row, one from the row behind, and a start of its own."""
    across = add(at("y", I + 1, J - 1), at("x", "i", "j"))
    return along(n, call("max", call("max", number(-1.0), call("sub", BEFORE, number(2.0))), across))


def warped(n: Extent) -> Function:
    """The shortest way so far: what is added differs from element to element."""
    return along(n, call("add", at("x", "i", "j"), call("min", at("y", I + 1, "j"), BEFORE)))


def whole_numbers(n: int) -> Function:
    step = Assign(target=put("y", "j"), value=call("add", at("y", J - 1, dtype=i64), at("x", "j", dtype=i64)))
    arrays = [array("x", n, dtype=i64), array("y", n, dtype=i64)]
    return function(loop("j", 1, n, step), arguments=arrays, written="y")


def whole_factors(n: int) -> Function:
    """With a factor per element, which wraps around."""
    value = add(call("mul", at("y", J - 1, dtype=i64), at("a", "j", dtype=i64)), at("x", "j", dtype=i64))
    arrays = [array(name, n, dtype=i64) for name in "axy"]
    return function(loop("j", 1, n, Assign(target=put("y", "j"), value=value)), arguments=arrays, written="y")


def whole_scores(n: int) -> Function:
    """Whose sums wrap around: the greatest of all ways is not the greatest step by step."""
    moved = call("sub", at("y", J - 1, dtype=i64), at("a", "j", dtype=i64))
    value = call("max", moved, at("x", "j", dtype=i64))
    arrays = [array(name, n, dtype=i64) for name in "axy"]
    return function(loop("j", 1, n, Assign(target=put("y", "j"), value=value)), arguments=arrays, written="y")


SECOND = at("y", "i", J - 2)


def waves(n: Extent) -> Function:
    """Of second order, with a period of six."""
    return along(n, add(call("sub", BEFORE, SECOND), at("x", "i", "j")), start=2)


def sums_of_sums(n: Extent) -> Function:
    """With neighbours that are not written yet, and another row."""
    twice = call("sub", call("mul", BEFORE, number(2.0)), SECOND)
    return along(n, add(at("y", "i", "j"), twice, at("y", I + 1, J - 2)), start=2)


def twice_from_the_end(n: int) -> Function:
    here = n - 3 - J
    value = add(call("neg", at("y", "i", here + 2)), at("x", "i", here), at("y", "i", here + 1))
    return along(n, value, start=0, end=n - 2, place=here)


TWICE = (waves, sums_of_sums, twice_from_the_end)
MAKERS = (cumsum, alternating, halved, gated, from_the_end, highest, aligned, warped)
SIZES = (2, 16, 17, 40, 67)


def cases() -> list[tuple[str, Function, dict[str, int]]]:
    found: list[tuple[str, Function, dict[str, int]]] = []
    for make in MAKERS:
        found += [(f"{make.__name__}-{n}", make(n), {}) for n in SIZES]
    for make in (cumsum, alternating, gated, highest, aligned, warped):
        found += [(f"{make.__name__}-N{n}", make("N"), {"N": n}) for n in (0, 1, 2, 35)]
    for make in TWICE:
        found += [(f"{make.__name__}-{n}", make(n), {}) for n in (3, 16, 18, 40, 67, 130)]
    for make in (waves, sums_of_sums):
        found += [(f"{make.__name__}-N{n}", make("N"), {"N": n}) for n in (0, 1, 2, 3, 35)]
    for whole in (whole_numbers, whole_factors, whole_scores):
        found += [(f"{whole.__name__}-{n}", whole(n), {}) for n in (5, 40, 70, 71)]
    return found


def scans(program: Function) -> list[Scan]:
    return [n.scan for n in walk_nodes(program.body) if isinstance(n, Assign) and n.scan is not None]


@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize(("name", "program", "sizes"), cases())
@pytest.mark.few(50)
def test_same_results(name: str, program: Function, sizes: dict[str, int], vector_bytes: int) -> None:
    after, _ = lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))
    agree(program, after, sizes, name)


@pytest.mark.parametrize("vector_bytes", [32, 64])
@pytest.mark.parametrize(("name", "program", "sizes"), cases()[::2])
@pytest.mark.few(20)
def test_compiled(name: str, program: Function, sizes: dict[str, int], vector_bytes: int) -> None:
    # Arrays end at a guard page.
    expected = random_arrays(program, sizes)
    given = {key: value.copy() for key, value in expected.items()}
    interpret(program, expected, sizes)
    after, _ = lower_loops(program, options=LoopOptions(vector_bytes=vector_bytes))
    found = run_function(after, given, sizes)
    np.testing.assert_array_equal(found["y"], expected["y"], err_msg=name)


@pytest.mark.parametrize("make", [cumsum, halved, highest])
def test_a_vector_waits_for_one_operation(make: Callable[[int], Function]) -> None:
    # No lane is taken out of a vector and spread again: the carry has lanes; and LLVM does not know what is shifted in, for which it would take slower instructions.
    after, _ = lower_loops(make(64), options=LoopOptions(vector_bytes=64))
    text = emit_module([after])
    assert "extractelement" not in text
    assert "store <16 x float>" in text
    assert ", <16 x float> zeroinitializer, <16 x i32>" not in text


@pytest.mark.parametrize("make", MAKERS)
def test_found(make: object) -> None:
    assert callable(make)
    after, (note, *_) = find_scans(make(64), vector_bytes=32)
    (scan,) = scans(after)
    assert (scan.factor is None) == (make in (cumsum, from_the_end, highest))
    assert note.stage == "scan"


def test_precise_sums_stay_in_order() -> None:
    for make in (cumsum, aligned, warped):
        assert find_scans(make(64), vector_bytes=32, precise=True)[0] == make(64)
    for make in (highest, whole_numbers, whole_scores):  # these do not depend on the order
        assert scans(find_scans(make(64), vector_bytes=32, precise=True)[0])


def test_an_empty_loop_reads_nothing() -> None:
    after, _ = find_scans(cumsum("N"), vector_bytes=32)
    assert any(isinstance(node, If) for node in walk_nodes(after.body))
    after, _ = find_scans(cumsum(64), vector_bytes=32)
    assert not any(isinstance(node, If) for node in walk_nodes(after.body))


@pytest.mark.parametrize("make", TWICE)
def test_second_order(make: Callable[[int], Function]) -> None:
    after, (note, *_) = find_scans(make(64), vector_bytes=32)
    (scan,) = scans(after)
    assert scan.second is not None
    assert len(scan.carries) == 2
    assert "second order" in note.text
    assert find_scans(make(64), vector_bytes=32, precise=True)[0] == make(64)


@pytest.mark.parametrize(
    "value",
    [
        SECOND,
        add(BEFORE, call("mul", at("x", "i", "j"), SECOND)),  # factors that change
        add(call("mul", at("x", "i", "j"), BEFORE), SECOND),
        add(BEFORE, call("mul", BEFORE, SECOND)),
        add(BEFORE, call("max", SECOND, number(0.0))),
        add(call("mul", BEFORE, number(1e9)), SECOND),  # whose powers are beyond all numbers
        add(BEFORE, SECOND, at("y", "i", J - 3)),
        add(BEFORE, SECOND, at("y", "i", 3)),
        call("mul", BEFORE, BEFORE),
        call("div", number(1.0), BEFORE),
        call("max", call("mul", number(2.0), BEFORE), number(1.0)),
        call("max", call("sub", number(2.0), BEFORE), number(1.0)),  # the least of all ways, then the greatest
        call("max", call("min", BEFORE, at("x", "i", "j")), number(1.0)),
        add(BEFORE, at("y", I + 1, 0), at("y", "i", 3)),  # an element that is written on the way
        call("max", BEFORE, BEFORE),
        at("x", "i", "j"),
    ],
)  # fmt: skip
def test_not_found(value: Expr) -> None:
    program = along(64, value, start=2)
    assert find_scans(program, vector_bytes=32)[0] is program


def test_short_and_strange_loops() -> None:
    for program in (cumsum(8), function(loop("j", 1, 60, kind="vector"), arguments=[], written="")):
        assert find_scans(program, vector_bytes=32)[0] is program
    two = (
        Assign(target=put("y", "i", "j"), value=BEFORE),
        Assign(target=put("x", "i", "j"), value=Const(1.0, at("x").dtype)),
    )
    program = function(
        loop("i", 0, 2, loop("j", 1, 60, *two)), arguments=[array("x", 2, 60), array("y", 2, 60)], written="x y"
    )
    assert find_scans(program, vector_bytes=32)[0] is program
    assert not any(isinstance(n, For) and n.kind == "vector" for n in walk_nodes(program.body))


@pairwise(
    (
        "step",
        [
            "y[i, j - 1] * 1e30 + x[i, j]",
            "y[i, j - 1] * 1e30 * 1e300 + x[i, j]",
            "y[i, j - 1] * 1e-30 + x[i, j]",
            "y[i, j - 1] * a[i, j] + x[i, j]",
            "y[i, j - 1] * a[i, 0] + x[i, j]",
            "x[i, j] - y[i, j - 1] * a[3, j]",
            "where(x[i, j] > 2, x[i, j], y[i, j - 1] * a[i, j] + x[i, j])",
        ],
    ),
    ("target", ["host", "x86-64-v3", "x86-64"]),
    ("dtype", ["f32", "f64"]),
    ("dynamic", [False, True]),
)
@pytest.mark.few(3)
def test_factors_without_end(step: str, dtype: str, target: str, dynamic: bool) -> None:
    """Products of several factors overflow, or are infinities that meet zeros, where the steps in order do not."""
    if not Target(target).runs_here:
        pytest.skip("another machine")
    program = (
        f'def f(x: {dtype}["N M"], a: {dtype}["N M"]):\n    y: {dtype}["N M"]\n    y[i, j] = x[i, j]\n'
        f"    for j in range(1, M):\n        y[i, j] = {step}\n    return y\n"
    )
    rng = np.random.default_rng(0)
    kind = np.float32 if dtype == "f32" else np.float64
    x, a = np.zeros((6, 70), kind), np.ones((6, 70), kind)
    a[1], a[2] = 1e30, rng.choice([1e30, 1e-30], 70)
    a[3, 20], a[4, 5] = np.inf, 0
    a[4, 9] = np.inf
    x[2:], x[5, 30] = 1, np.inf
    a[5] = 1e-30
    in_order = einsum(program, precise=True, dynamic=dynamic, target=target)(x, a)
    found = einsum(program, dynamic=dynamic, target=target)(x, a)
    assert np.array_equal(np.isnan(found), np.isnan(in_order))
    with np.errstate(invalid="ignore"):
        assert np.allclose(found, in_order, equal_nan=True, rtol=1e-5)


@pairwise(
    (
        "step",
        [
            "max(y[i, j - 1] + a[i, j], x[i, j])",
            "max(y[i, j - 1] + a[i, 0], x[i, j])",
            "min(y[i, j - 1] - a[i, j], x[i, j])",
            "where(x[i, j] > 2, x[i, j], max(y[i, j - 1] + a[i, j], x[i, j]))",
        ],
    ),
    ("target", ["host", "x86-64-v3", "x86-64"]),
    ("dtype", ["f32", "f64"]),
    ("dynamic", [False, True]),
)
@pytest.mark.few(3)
def test_sums_of_steps_without_end(step: str, dtype: str, target: str, dynamic: bool) -> None:
    """Sums of several steps overflow, or are of both infinities, where the steps in order meet neither."""
    if not Target(target).runs_here:
        pytest.skip("another machine")
    program = (
        f'def f(x: {dtype}["N M"], a: {dtype}["N M"]):\n    y: {dtype}["N M"]\n    y[i, j] = x[i, j]\n'
        f"    for j in range(1, M):\n        y[i, j] = {step}\n    return y\n"
    )
    kind = np.float32 if dtype == "f32" else np.float64
    large = 0.75 * np.finfo(kind).max
    sign = -1 if step.startswith("min") else 1
    x, a = np.full((6, 70), -np.inf, kind), np.zeros((6, 70), kind)
    a[0] = large
    x[1, 0], a[1, 1::4], a[1, 2::4], a[1, 3::4] = -large, large, large, -large / 1.5
    x[2, ::20], a[2, ::3], a[2, ::7] = 1, -np.inf, np.inf
    x[3], a[3, 3::8] = 1, -np.inf
    x[4, 0], a[4] = large, -large / 2
    a[5, 5] = np.nan
    in_order = einsum(program, precise=True, dynamic=dynamic, target=target)(sign * x, a)
    found = einsum(program, dynamic=dynamic, target=target)(sign * x, a)
    assert np.array_equal(np.isnan(found), np.isnan(in_order))
    with np.errstate(invalid="ignore"):
        assert np.allclose(found / large, in_order / large, equal_nan=True, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_lanes_move_by_one_instruction_that_keeps_its_operands(dtype: str) -> None:
    """Sums in AVX-512: valign, where a permutation would take a register for the order and overwrite an operand."""
    wide = Target("x86-64-v4")
    if not wide.runs_here:
        pytest.skip("text that another processor's assembler reads")
    text = f'def f(x: {dtype}["N M"]):\n    for j in range(1, M):\n        x[i, j] = 0.3 * x[i, j - 1] + x[i, j]\n    return x\n'
    program = einsum(text, target=wide, threads=1)
    for rows, columns in ((3, 100), (1, 37), (5, 17)):
        x = np.random.default_rng(columns).standard_normal((rows, columns)).astype({"f32": "f4", "f64": "f8"}[dtype])
        expected = x.astype(np.float64)
        for j in range(1, columns):
            expected[:, j] += 0.3 * expected[:, j - 1]
        np.testing.assert_allclose(program(x.copy()), expected, rtol=0, atol=2e-6 if dtype == "f32" else 1e-14)
    loops = re.split(r"^\.L\w+:\n", program.lower(np.zeros((1, 1000), x.dtype)).text("asm"), flags=re.M)
    steps = 4 if dtype == "f32" else 3
    moving = [part for part in loops if "valign" in part]
    assert moving
    assert all(part.count("valign") % steps == 0 for part in moving)
    assert not any("vpermt2" in part for part in moving)


def test_lanes_move_by_one_shuffle_where_there_is_no_valign() -> None:
    """AVX2: the neutral lanes are blended in (an element that comes from the other end of a vector takes three shuffles in place of one); paths of least cost, whose first lanes are taken out again, need no neutral lanes."""
    narrow, wide = Target("x86-64-v3"), Target("x86-64-v4")
    text = 'def f(x: f32["N M"]):\n    for j in range(1, M):\n        x[i, j] = x[i, j - 1] + x[i, j]\n    return x\n'
    written = einsum(text, target=narrow, threads=1).lower(np.zeros((1, 1000), np.float32)).text("llvm")
    moved = re.findall(r"shufflevector <8 x float> .*<8 x i32> <(.*)>", written)
    assert any(lanes.startswith("i32 8, i32 0, i32 1") for lanes in moved)
    assert any(lanes.startswith("i32 8, i32 9, i32 0") for lanes in moved)
    text = """def f(c: f32["N M"]):
    for i in range(1, N):
        for j in range(1, M):
            c[i, j] = c[i, j] + min(c[i - 1, j], c[i, j - 1])
    return c
"""
    written = einsum(text, target=wide, threads=1).lower(np.zeros((300, 400), np.float32)).text("llvm")
    assert "<16 x float>" in written
    assert "valign" not in written
