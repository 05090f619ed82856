"""Stores past the caches, and prefetches of coming rows: where they are chosen, that vectors are aligned, and that results stay the same."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.interpret import interpret
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.machine import Machine, assembly
from polyml.codegen.loops import Allocate, Assign, For, Function, LoopKind, Prefetch, Scan, Variable
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.swept_rows import prefetch
from polyml.codegen.printer import loops_text
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f32
from polyml.sets.affine import affine
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import array, at, call, function, loop, number, put

V4 = Machine("x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit")
CACHES = Caches(l1=48 << 10, l2=2 << 20, line=64)


def scaled_rows(rows: int, columns: int, kind: LoopKind = "sequential") -> Function:
    """y[i, j] = 3 * x[i, j], streaming."""
    value = call("mul", at("x", "i", "j"), number(3.0))
    row = loop("j", 0, columns, Assign(target=put("y", "i", "j"), value=value, streaming=True), kind="vector", factor=2)
    nest = loop("i", 0, rows, row, kind=kind, factor=2 if kind == "jam" else 1)
    return function(nest, arguments=[array("x", rows, columns), array("y", rows, columns)], written="y")


def centred_rows(rows: int, columns: int, factor: int = 1, *, computing: bool = False) -> Function:
    """s = sum of a row of x; y = (x - s)^2 - s: two sweeps over the row. computing: of exp(x) - s in place of x - s."""
    total = Assign(target=put("s", "i"), value=at("x", "i", "j"), reduction="sum")
    x = call("exp", at("x", "i", "j")) if computing else at("x", "i", "j")
    difference = call("sub", x, at("s", "i"))
    value = call("sub", call("mul", difference, difference), at("s", "i"))
    body = (
        Assign(target=put("s", "i"), value=number(0.0)),
        loop("j", 0, columns, total, kind="vector"),
        loop("j", 0, columns, Assign(target=put("y", "i", "j"), value=value), kind="vector", factor=factor),
    )
    arguments = [array("x", rows, columns), array("s", rows), array("y", rows, columns)]
    return function(loop("i", 0, rows, *body), arguments=arguments, written="s y")


def shifted(values: np.ndarray, elements: int) -> np.ndarray:
    """A copy that starts so many elements behind a multiple of 64 bytes."""
    room = np.zeros(values.size + 32, values.dtype)
    start = (-room.ctypes.data % 64) // 4 + elements
    room[start : start + values.size] = values.ravel()
    return room[start : start + values.size].reshape(values.shape)


@pytest.mark.parametrize("columns", [1024, 1000, 1023])
@pytest.mark.parametrize("elements", [0, 1, 4, 15])
@pytest.mark.few(4)
def test_any_alignment_gives_the_same(columns: int, elements: int) -> None:
    program, _ = lower_loops(scaled_rows(3, columns), options=LoopOptions(vector_bytes=64))
    assert [lead.array for lead in program.leads] == ["y"]
    x = np.random.default_rng(0).standard_normal((3, columns)).astype("f")
    y = shifted(np.full((3, columns), np.nan, "f"), elements)
    interpret(program, {"x": x, "y": y})
    np.testing.assert_array_equal(y, 3 * x)


@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("columns", [1024, 1001, 260])
def test_compiled_between_guard_pages(rows: int, columns: int) -> None:
    # Arrays end at a guard page: with these sizes they start at many alignments.
    program, _ = lower_loops(scaled_rows(rows, columns, "parallel"), options=LoopOptions(vector_bytes=64))
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype("f")
    out = run_function(program, {"x": x, "y": np.zeros_like(x)}, {})
    np.testing.assert_array_equal(out["y"], 3 * x)


@pytest.mark.parametrize("columns", [1024, 1000])
def test_whole_vectors_are_streamed(columns: int) -> None:
    program, _ = lower_loops(scaled_rows(64, columns), options=LoopOptions(vector_bytes=64))
    text = assembly(emit_module([program]), V4)
    assert len(re.findall(r"vmovntps\t%zmm", text)) == 3  # two vectors in the main loop, one in the loop after it
    assert re.search(r"\tmfence|\tlock\b", text)  # streaming stores are done before the function is


@pytest.mark.parametrize(("columns", "elements"), [(1000, 3), (1023, 15)])
def test_vectors_shorter_than_a_line_are_streamed_as_lines(columns: int, elements: int) -> None:
    """What a line has before and behind them stays in cache with the rest of it."""
    program, _ = lower_loops(scaled_rows(3, columns), options=LoopOptions(vector_bytes=32))
    assert [lead.bytes for lead in program.leads] == [64]
    streams = [
        n
        for n in walk_nodes(program.body)
        if isinstance(n, For) and "streaming" in loops_text(replace(program, body=(n,)))
    ]
    (rows,) = (n for n in streams if n.kind == "sequential")
    (main,) = (n for n in streams if n is not rows)
    for i, lead in ((0, 0), (1, 0), (2, 13)):
        start, end = (bound.evaluate({"i": i, program.leads[0].name: lead}) for bound in (main.lower, main.upper))
        assert (columns * i + start - lead) % 16 == (end - start) % 16 == 0
        assert columns - 31 < end - start
    x = np.random.default_rng(0).standard_normal((3, columns)).astype("f")
    y = shifted(np.full((3, columns), np.nan, "f"), elements)
    interpret(program, {"x": x, "y": y})
    np.testing.assert_array_equal(y, 3 * x)


def test_rows_that_are_whole_lines_are_streamed_vector_by_vector() -> None:
    """The line that two neighbours share is written by one behind the other."""
    program, _ = lower_loops(scaled_rows(3, 1024), options=LoopOptions(vector_bytes=32))
    assert [lead.bytes for lead in program.leads] == [32]


def test_short_rows_are_not_streamed() -> None:
    program, _ = lower_loops(scaled_rows(64, 128), options=LoopOptions(vector_bytes=64))
    assert program.leads == ()
    assert "vmovnt" not in assembly(emit_module([program]), V4)


def test_jammed_rows_are_not_streamed() -> None:
    program, _ = vectorize(scaled_rows(64, 1024, "jam"), vector_bytes=64)
    assert program.leads == ()


def prefetches(program: Function) -> list[Prefetch]:
    return [node for node in walk_nodes(program.body) if isinstance(node, Prefetch)]


def test_the_heaviest_sweep_fetches_coming_rows() -> None:
    program, _ = vectorize(centred_rows(4096, 1024), vector_bytes=64)
    after, notes = prefetch(program, CACHES)
    assert [str(note.text) for note in notes] == ["the row of x 4 i ahead, into L1"]
    sweeps = [n for n in walk_nodes(after.body) if isinstance(n, For) and any(isinstance(c, Prefetch) for c in n.body)]
    assert len(sweeps) == 1
    assert "y[i, j] =" in loops_text(after).split("prefetch")[-1]
    assert {str(p.place) for p in prefetches(after)} == {"x[i + 4, j + x_lead]"}  # from its first line on


def standardized_rows(rows: int, columns: int, *, computing: bool = False) -> Function:
    """h = x + r; s = sum of a row of h; v = sum of (h - s)^4; y = (h - s) * v, streaming: x and r are swept once, y's loop keeps memory busy itself. computing: y = exp((h - s) * v)."""
    h, difference = at("h", "i", "j"), call("sub", at("h", "i", "j"), at("s", "i"))
    square = call("mul", difference, difference)
    scaled = call("mul", difference, at("v", "i"))
    sweeps = (
        Assign(target=put("h", "i", "j"), value=call("add", at("x", "i", "j"), at("r", "i", "j"))),
        Assign(target=put("s", "i"), value=h, reduction="sum"),
        Assign(target=put("v", "i"), value=call("mul", square, square), reduction="sum"),
        Assign(target=put("y", "i", "j"), value=call("exp", scaled) if computing else scaled, streaming=True),
    )
    body = (loop("j", 0, columns, sweep, kind="vector") for sweep in sweeps)
    arguments = [array(name, rows, columns) for name in "xrhy"] + [array(name, rows) for name in "sv"]
    return function(loop("i", 0, rows, *body), arguments=arguments, written="hsvy")


def test_a_loop_that_leaves_memory_idle_fetches_rows_that_are_swept_once() -> None:
    program, _ = vectorize(standardized_rows(4096, 1024), vector_bytes=64)
    after, _ = prefetch(program, CACHES)
    first, host, rest = (
        n for n in walk_nodes(after.body) if isinstance(n, For) and any(isinstance(c, Prefetch) for c in n.body)
    )
    # Neither computes much: each asks for a row of what is swept once.
    asked = [{p.place.variable for p in n.body if isinstance(p, Prefetch)} for n in (first, host)]
    assert asked == [{"x"}, {"r", "h"}]
    assert {str(p.place) for p in first.body if isinstance(p, Prefetch)} == {"x[i + 2, j]"}
    assert rest.masked
    assert rest.lower == host.upper
    assert not any(isinstance(node, Assign) and node.streaming for node in host.body)


def test_stores_past_the_caches_leave_time_for_requests_where_they_wait_apart() -> None:
    """The loop that streams asks for both rows, twice for each line; not for a row that it reads itself, unless no other loop can."""
    apart = replace(CACHES, streams_apart=True)
    program, _ = vectorize(standardized_rows(4096, 1024, computing=True), vector_bytes=32)
    after, _ = prefetch(program, apart)
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for host in (n for n in walk_nodes(after.body) if isinstance(n, For)):
        streams = any(isinstance(node, Assign) and node.streaming for node in host.body)
        asked[streams] |= {str(node.place) for node in host.body if isinstance(node, Prefetch)}
    assert {place[0] for place in asked[True]} == {"x", "r"}
    assert {place[0] for place in asked[False]} <= {"h"}
    wide, _ = vectorize(streamed_rows(4096, 1024, sweeps=2), vector_bytes=64)
    line = "x[i + 4, j + x_lead - y_lead"
    for caches, places in ((CACHES, {f"{line}]"}), (apart, {f"{line}]", f"{line} + 8]"})):
        assert {str(p.place) for p in prefetches(prefetch(wide, caches)[0])} == places
    other, _ = vectorize(streamed_rows(4096, 1024, sweeps=3), vector_bytes=64)
    assert prefetch(other, apart)[0] == prefetch(other, CACHES)[0]


def streamed_rows(rows: int, columns: int, *, sweeps: int) -> Function:
    """s = sum of a row of x, y = x * s, streaming; of three sweeps the one between is t = sum of (x - s)^2."""
    x, s = at("x", "i", "j"), at("s", "i")
    difference = call("sub", x, s)
    steps = [
        Assign(target=put("s", "i"), value=x, reduction="sum"),
        Assign(target=put("t", "i"), value=call("mul", difference, difference), reduction="sum"),
        Assign(target=put("y", "i", "j"), value=call("mul", x, s), streaming=True),
    ]
    body = (loop("j", 0, columns, step, kind="vector") for step in (steps if sweeps == 3 else steps[::2]))
    arguments = [array("x", rows, columns), array("y", rows, columns), array("s", rows), array("t", rows)]
    return function(loop("i", 0, rows, *body), arguments=arguments, written="yst")


def computed_rows(rows: int, columns: int, op: str) -> Function:
    """y[i, j] = op(x[i, j]) + z[i, j], streaming."""
    value = call("add", call(op, at("x", "i", "j")), at("z", "i", "j"))
    row = loop("j", 0, columns, Assign(target=put("y", "i", "j"), value=value, streaming=True), kind="vector", factor=2)
    arguments = [array(name, rows, columns) for name in "xzy"]
    return function(loop("i", 0, rows, row), arguments=arguments, written="y")


def test_the_only_loop_fetches_what_comes_when_it_computes_much() -> None:
    heavy, _ = vectorize(computed_rows(4096, 1024, "gelu"), vector_bytes=64)
    after, notes = prefetch(heavy, CACHES)
    assert [str(note.text) for note in notes] == ["x 8192 bytes ahead, into L1", "z 8192 bytes ahead, into L1"]
    assert {str(p.place) for p in prefetches(after)} == {
        f"{name}[i, j + {k}]" for name in "xz" for k in (2048, 2064)
    }  # two vectors, a line each
    light, _ = vectorize(computed_rows(4096, 1024, "neg"), vector_bytes=64)
    assert prefetch(light, CACHES) == (light, ())
    # Two streams are left to the hardware on cores that are asked for few bytes ahead.
    assert prefetch(heavy, replace(CACHES, ahead=4 << 10)) == (heavy, ())
    # So are two rows where a line of L2 is one of L1 as well, unless stores past the caches wait apart: then twice for each line.
    assert prefetch(heavy, replace(CACHES, beside=False)) == (heavy, ())
    after, _ = prefetch(heavy, replace(CACHES, beside=False, streams_apart=True))
    assert {str(p.place) for p in prefetches(after)} == {
        f"{name}[i, j + {k}]" for name in "xz" for k in range(2048, 2080, 8)
    }


def test_what_is_updated_in_place_moves_too() -> None:
    """A momentum's update computes no more than the hardware's prefetchers keep up with, beside three arrays; an exponential does."""
    for op, found in ((None, []), ("exp", ["g 16384 bytes ahead, into L1"])):
        step = at("g", "i") if op is None else call(op, at("g", "i"))
        ahead = call("add", at("g", "i"), call("mul", number(0.9), at("v", "i")))
        steps = (
            Assign(target=put("v", "i"), value=call("add", call("mul", number(0.9), at("v", "i")), step)),
            Assign(target=put("p", "i"), value=call("sub", at("p", "i"), call("mul", number(0.1), ahead))),
        )
        arguments = [array(name, 1 << 20) for name in "vgp"]
        sweep = function(loop("i", 0, 1 << 20, *steps, kind="vector"), arguments=arguments, written="v p")
        program, _ = vectorize(sweep, vector_bytes=64)
        assert [str(note.text) for note in prefetch(program, CACHES)[1]] == found


def test_a_scan_fetches_what_comes() -> None:
    """Its shuffles count; a copy along the same rows leaves that to the hardware."""
    arguments = [array("x", 4096, 1024), array("y", 4096, 1024)]
    carry = Variable(name="carry", dtype=f32, shape=(), scope="register")
    for scan, found in ((Scan("carry", None), ["x 16384 bytes ahead, into L1"]), (None, [])):
        reduction = None if scan is None else "sum"
        step = Assign(
            target=put("y", "i", "j"), value=at("x", "i", "j"), reduction=reduction, scan=scan, streaming=True
        )
        rows = loop("i", 0, 4096, Allocate(variable=carry, body=(loop("j", 0, 1024, step, kind="vector", factor=2),)))
        program, _ = vectorize(function(rows, arguments=arguments, written="y"), vector_bytes=64)
        assert [str(note.text) for note in prefetch(program, CACHES)[1]] == found


def test_a_sum_that_computes_much_fetches_what_comes() -> None:
    """Beside loops over lanes, and none that sweeps the row again."""
    total = Assign(target=put("s", "i"), value=call("exp", at("x", "i", "j")), reduction="sum")
    arguments = [array("x", 4096, 1024), array("s", 4096)]
    rows = function(loop("i", 0, 4096, loop("j", 0, 1024, total, kind="vector")), arguments=arguments, written="s")
    program, _ = vectorize(rows, vector_bytes=64)
    after, notes = prefetch(program, CACHES)
    assert [str(note.text) for note in notes] == ["x 16384 bytes ahead, into L1"]
    assert {str(p.place) for p in prefetches(after)} == {f"x[i, j + {4096 + 16 * k}]" for k in range(4)}


@pytest.mark.parametrize(("step", "rows"), [(2, (4, 5)), (1, (5,))])
def test_rows_side_by_side_are_all_fetched(step: int, rows: tuple[int, ...]) -> None:
    """But those that the iteration before has read."""
    both = call("add", at("x", "i", "j"), at("x", affine("i") + 1, "j"))
    sweeps = (
        Assign(target=put("s", "i"), value=both, reduction="sum"),
        Assign(target=put("t", "i"), value=call("mul", both, at("s", "i")), reduction="sum"),
    )
    body = (loop("j", 0, 1024, sweep, kind="vector") for sweep in sweeps)
    arguments = [array("x", 4097, 1024), array("s", 4096), array("t", 4096)]
    program, _ = vectorize(
        function(loop("i", 0, 4096, *body, step=step), arguments=arguments, written="st"), vector_bytes=64
    )
    places = {str(p.place) for p in prefetches(prefetch(program, CACHES)[0])}
    assert places == {f"x[i + {row}, j{k}]" for row in rows for k in ("", " + 16", " + 32", " + 48")}


def test_distance_and_level_follow_the_row() -> None:
    for columns, place, level in ((512, "x[i + 8, j]", 1), (16384, "x[i + 1, j + x_lead]", 2)):
        program, _ = vectorize(centred_rows(8192, columns), vector_bytes=64)
        found = prefetches(prefetch(program, CACHES)[0])
        assert {(str(p.place), p.level) for p in found} == {(place, level)}


def test_little_computing_leaves_rows_of_a_page_to_the_hardware() -> None:
    """On cores that are asked for few bytes ahead."""
    few = replace(CACHES, ahead=4 << 10)
    for columns, level in ((256, 1), (500, 1), (2048, 2)):
        program, _ = vectorize(centred_rows(16384, columns), vector_bytes=64)
        assert {p.level for p in prefetches(prefetch(program, few)[0])} == {level}
    for columns in (512, 1024):
        program, _ = vectorize(centred_rows(16384, columns), vector_bytes=64)
        assert prefetch(program, few) == (program, ())
        assert prefetches(prefetch(program, CACHES)[0])


def test_how_far_ahead_is_the_processors() -> None:
    program, _ = vectorize(centred_rows(4096, 1024, computing=True), vector_bytes=64)
    for ahead, rows in ((4 << 10, 1), (6 << 10, 2), (16 << 10, 4)):
        found = prefetches(prefetch(program, replace(CACHES, ahead=ahead))[0])
        assert {str(p.place) for p in found} == {f"x[i + {rows}, j + x_lead]"}


def test_one_prefetch_per_line() -> None:
    program, _ = vectorize(centred_rows(4096, 1024, factor=4), vector_bytes=16)
    for line, count in ((16, 4), (32, 2), (64, 1)):
        found = prefetches(prefetch(program, Caches(l1=48 << 10, l2=2 << 20, line=line))[0])
        assert len(found) == count


def test_no_prefetch_where_it_cannot_help() -> None:
    small, _ = vectorize(centred_rows(64, 1024), vector_bytes=64)  # it stays in cache
    once, _ = vectorize(scaled_rows(4096, 1024), vector_bytes=64)  # the hardware sees the stream
    huge, _ = vectorize(centred_rows(16, 1 << 20), vector_bytes=64)  # a row is larger than the cache
    for program in (small, once, huge):
        assert prefetch(program, CACHES) == (program, ())


def test_prefetches_change_nothing_and_may_leave_the_array() -> None:
    caches = {"l1_bytes": 48 << 10, "l2_bytes": 16 << 10}
    program, _ = lower_loops(centred_rows(5, 1024), options=LoopOptions(vector_bytes=64, **caches))
    assert prefetches(program)
    x = np.random.default_rng(0).integers(-4, 5, (5, 1024)).astype("f")
    out = run_function(program, {"x": x, "s": np.zeros(5, "f"), "y": np.zeros_like(x)}, {})
    s = x.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(out["y"], (x - s) ** 2 - s)


STENCIL = """
def f(T: int, A: f64["N M"], B: f64["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            B[i, j] = A[i, j] + 0.1 * (A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j])
            A[i, j] = 0.5 * B[i, j]
    return A, B
"""


@pytest.mark.parametrize("sizes", [None, (2, 5, 100)])
@pytest.mark.parametrize("leads", [(0, 0), (1, 1), (7, 3), (4, 5)])
@pytest.mark.few(3)
def test_neighbours_start_at_a_line(sizes: tuple[int, ...] | None, leads: tuple[int, int]) -> None:
    """Vectors start at an aligned element wherever the arrays lie, in whole rows and in strips of tiles."""
    rng = np.random.default_rng(3)
    shape = (14, 320)
    given = []
    for lead in leads:
        room = np.empty(shape[0] * shape[1] + 16)
        start = (-room.ctypes.data // 8) % 8 + lead
        given.append(room[start : start + shape[0] * shape[1]].reshape(shape))
        given[-1][...] = rng.random(shape)
    a, b = (array.copy() for array in given)
    for _ in range(5):
        cross = a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1]
        b[1:-1, 1:-1] = a[1:-1, 1:-1] + 0.1 * cross
        a[1:-1, 1:-1] = 0.5 * b[1:-1, 1:-1]
    options = {"target": pm.Target(l2_bytes=64), "tile_sizes": sizes} if sizes else {}
    lowered = pm.einsum(STENCIL, threads=1, **options).lower(5, *given)
    if pm.Target.host().vector_bytes >= 32:
        assert "_lead" in lowered.text("loops")
    found = lowered.compile()(5, *given)
    assert np.allclose(found[0], a, rtol=1e-13)
    assert np.allclose(found[1], b, rtol=1e-13)


def test_the_first_vector_lies_as_all_others_do() -> None:
    """Under a mask, from the aligned element before the first one that is computed."""
    a, b = np.zeros((2, 14, 320))
    target = pm.Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20)
    text = pm.einsum(STENCIL.replace("T: int, ", "").replace("(T)", "(5)"), target=target).lower(a, b).text("loops")
    head = re.search(r"for \(j = (.*); j < (.*); j \+= 8\) \{\n *if \(1 <= j\)", text)
    assert head is not None
    for lead in range(8):
        first, end = (
            eval(bound.replace("min", "_min"), {"A_lead": lead, "B_lead": lead, "i": 1, "_min": min})
            for bound in head.groups()
        )
        assert first == end - 8 * (end > 1)
        assert (end - lead) % 8 == 0


SMOOTHED = """
def smoothed(x: {dtype}["N K"], y: {dtype}["N K"]):
    if 1 <= k < K - 1:
        y[n, k] += x[n, k - 1] + x[n, k] + x[n, k + 1]
    return y
"""


@pytest.mark.parametrize(("dtype", "columns"), [("f32", 258), ("f64", 130)])
def test_rows_with_slow_ends_start_at_a_line_where_they_are_long(dtype: str, columns: int) -> None:
    """The ends of a row that starts at a line are stored under masks, which AVX2 has in vectors."""
    program = SMOOTHED.format(dtype=dtype)
    for target, width, leads in (
        ("x86-64-v3", columns, True),
        ("x86-64-v3", columns - 8, False),
        ("x86-64-v4", columns - 8, True),
    ):
        x = np.zeros((50, width), f"f{int(dtype[1:]) // 8}")
        text = pm.einsum(program, target=pm.Target(target), threads=1).lower(x, x).text("loops")
        assert ("_lead" in text) == leads


STEPS = """
def steps(T: int, a: {dtype}["N M"], b: {dtype}["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            b[i, j] = 0.2 * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
            a[i, j] = 0.2 * (b[i, j] + b[i, j - 1] + b[i, j + 1] + b[i + 1, j] + b[i - 1, j])
    return a, b
"""
ALONG = """
def along(T: int, a: {dtype}["N M"], b: {dtype}["N M"]):
    for t in range(T):
        if 1 <= j < M - 1:
            b[i, j] = a[i, j - 1] + a[i, j] + a[i, j + 1]
            a[i, j] = b[i, j - 1] + b[i, j] + b[i, j + 1]
    return a, b
"""
IN_PLACE = """
def in_place(T: int, a: {dtype}["N M"], b: {dtype}["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            b[i, j] += 0.2 * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
            a[i, j] += 0.2 * (b[i, j] + b[i, j - 1] + b[i, j + 1] + b[i + 1, j] + b[i - 1, j])
    return a, b
"""


def test_rows_that_may_be_computed_twice_have_no_masked_ends() -> None:
    """With AVX2 a row of eight vectors or more begins with a vector where it begins, goes on with those that start at a line, and ends with one where it ends."""

    def lowered(text: str, columns: int, target: str) -> str:
        program = pm.einsum(text.format(dtype="f64"), target=pm.Target(target), threads=1)
        return program.lower(2, *np.zeros((2, 30, columns))).text("loops")

    assert "masked" not in lowered(STEPS, 72, "x86-64-v3")
    assert "_lead" in lowered(STEPS, 72, "x86-64-v3")
    assert "masked" in lowered(STEPS, 24, "x86-64-v3")  # too short
    assert "masked" in lowered(IN_PLACE, 72, "x86-64-v3")
    assert "masked" in lowered(ALONG, 72, "x86-64-v3")  # most accesses cross lines wherever vectors start
    assert "masked" in lowered(STEPS, 72, "x86-64-v4")
    assert "prefetch" not in lowered(STEPS, 72, "x86-64-v3")


@pytest.mark.parametrize("text", [STEPS, IN_PLACE])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("columns", [36, 72, 75, 80, 120])
@pytest.mark.few(1)
def test_ends_of_rows_wherever_they_lie(text: str, dtype: str, columns: int) -> None:
    machine = pm.Target("x86-64-v3")
    if not machine.runs_here:
        pytest.skip("not this machine's code")
    program = pm.einsum(text.format(dtype=dtype), target=machine, threads=1)
    itemsize = int(dtype[1:]) // 8
    start = np.random.default_rng(columns).random((2, 9, columns)).astype(f"f{itemsize}")
    expected = start.astype(float)
    a, b = expected
    for _ in range(3):
        for x, y in ((a, b), (b, a)):
            cross = x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[2:, 1:-1] + x[:-2, 1:-1]
            y[1:-1, 1:-1] = 0.2 * cross + (y[1:-1, 1:-1] if text is IN_PLACE else 0)
    for first, second in ((0, 0), (1, 1), (3, 3), (7, 7), (2, 5)):
        arrays = []
        for values, elements in zip(start, (first, second), strict=True):
            room = np.zeros(values.nbytes + 128, np.uint8)
            begin = -room.ctypes.data % 64 + elements * itemsize
            arrays.append(room[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape))
            arrays[-1][...] = values
        program(3, *arrays)
        np.testing.assert_allclose(arrays, expected, rtol=1e-5 if dtype == "f32" else 1e-12)


NORM = """
def norm(x: {dtype}["N K"]):
    m[n] = sum[k](x[n, k]) / K
    v[n] = sum[k]((x[n, k] - m[n])**2) / K
    return m, v
"""
SUMS = """
def sums(x: {dtype}["N K"]):
    y: {dtype}["2 N"]
    y[0, n] = sum[k](x[n, k])
    y[1, n] = sum[k](x[n, k]**2)
    return y
"""


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("columns", [1024, 1040, 1001])
@pytest.mark.parametrize("text", [NORM, SUMS])
@pytest.mark.few(7)
def test_sums_are_the_same_bits_wherever_a_row_lies(text: str, columns: int, dtype: str, target: str) -> None:
    machine = pm.Target(target)
    if not machine.runs_here:
        pytest.skip("not this machine's code")
    program = pm.einsum(text.format(dtype=dtype), target=machine)
    itemsize = int(dtype[1:]) // 8
    x = np.random.default_rng(5).standard_normal((5, columns)).astype(f"f{itemsize}")
    results = []
    for elements in (0, 1, 4, 7):
        room = np.zeros(x.nbytes + 128, np.uint8)
        start = -room.ctypes.data % 64 + elements * itemsize
        moved = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
        moved[...] = x
        results.append(np.stack(program(moved)))
    for found in results[1:]:
        np.testing.assert_array_equal(found, results[0])


def test_which_sums_start_at_a_line() -> None:
    """Those of long rows that are whole lines, which computing little with makes loads count; not extrema, which look for NaN at the end of each loop, nor sums that are combined neighbour by neighbour."""
    target = pm.Target("x86-64-v4")

    def leads(text: str, columns: int = 1024, dtype: str = "f32") -> bool:
        x = np.zeros((4, columns), f"f{int(dtype[1:]) // 8}")
        return "x_lead" in pm.einsum(text.format(dtype=dtype), target=target).lower(x).text("loops")

    assert leads(NORM)
    assert leads(NORM, dtype="f64")
    assert leads(SUMS)
    assert not leads(NORM, 512)
    assert not leads(NORM, 1025)
    assert not leads(SUMS, dtype="f64")
    one = 'def one(x: {{dtype}}["N K"]):\n    y[n] = {0}\n    return y\n'
    assert leads(one.format("sum[k](abs(x[n, k]))"))
    assert not leads(one.format("sum[k](exp(x[n, k]))"))
    assert not leads(one.format("max[k](x[n, k])"))


def test_vectors_that_a_led_sum_leaves_over_fetch_like_all_others() -> None:
    x = np.zeros((4096, 1024), np.float32)
    target = pm.Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20)
    text = pm.einsum(NORM.format(dtype="f32"), target=target).lower(x).text("loops")
    fetching = re.findall(r"vector\(16(, masked)?\) for \(k = .*\{\n *prefetch", text)
    assert fetching == ["", ", masked"]


def test_a_stencil_fetches_nothing() -> None:
    """Its rows were written a step ago: they come from a cache, and lines far ahead are of no use to a tile."""
    text = """
def f(T: int, A: f64["N N N"], B: f64["N N N"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < N - 1 and 1 <= k < N - 1:
            B[i, j, k] = sqrt(A[i, j, k]) + (A[i + 1, j, k] + A[i - 1, j, k] + A[i, j + 1, k] + A[i, j - 1, k] + A[i, j, k + 1]) / 5
            A[i, j, k] = B[i, j, k] * 0.5
    return A
"""
    grids = np.random.default_rng(1).random((2, 80, 80, 80))
    assert "prefetch" not in pm.einsum(text, threads=1).lower(3, *grids).text("loops")


def test_strips_of_which_the_last_one_is_short() -> None:
    """Elementwise results of any length leave past the caches."""
    target = pm.Target("x86-64-v3", l2_bytes=512 * 1024)
    f = pm.einsum('def f(x: f32["N K"]):\n    y[n, k] = 2 * x[n, k]\n    return y', target=target)
    x = np.random.default_rng(0).standard_normal((1500, 1001)).astype("f")
    assert "vmovntps" in f.lower(x).text("asm")
    if target.runs_here:
        np.testing.assert_array_equal(f(x), 2 * x)
