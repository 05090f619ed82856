"""Blocked contractions from the program to the result: sizes around the tiles, layouts, strides, types, threads; and what the code looks like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded
from tests.pairs import pairwise

SMALL = Target("host", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""This machine with caches so small that every loop over blocks appears at test sizes."""
IN_L2 = Target("host", l1_bytes=8 * 1024, l2_bytes=1 << 20, cores=2)
SMALL_WIDE = Target("x86-64-v4", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""A machine of full vectors whatever this one has, for what is said of plans that other vectors would change; its code is looked at, not run."""
IN_L2_WIDE = Target("x86-64-v4", l1_bytes=8 * 1024, l2_bytes=1 << 20, cores=2)
LAYOUTS = {"nn": ("N K", "K M"), "nt": ("N K", "M K"), "tn": ("K N", "K M"), "tt": ("K N", "M K")}
TYPES = {"f32": (np.float32, 1e-5), "f64": (np.float64, 1e-12), "i32": (np.int32, 0.0)}


def product(left: str, right: str, out: str, dtype: str, *, finish: str = "{}") -> str:
    def subscripts(dims: str) -> str:
        return ", ".join(dims.lower().split())

    value = finish.format(f"x[{subscripts(left)}] * y[{subscripts(right)}]")
    return f'def f(x: {dtype}["{left}"], y: {dtype}["{right}"]):\n    z[{subscripts(out)}] = {value}\n    return z\n'


def operands(left: str, right: str, sizes: dict[str, int], dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = [rng.integers(-9, 10, [sizes[i] for i in dims.split()]).astype(TYPES[dtype][0]) for dims in (left, right)]
    return made[0], made[1]


def exact(left: str, right: str, out: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    spec = f"{left},{right}->{out}".replace(" ", "").lower()
    return np.einsum(spec, a.astype(np.float64), b.astype(np.float64))


def is_blocked(function: polyml.Einsum, *args: np.ndarray) -> bool:
    return "blocking" in str(function.explain(*args))


SHAPES = (("f32", 23, 47, 384), ("f32", 24, 48, 385), ("f64", 25, 49, 129), ("f32", 97, 130, 65), ("i32", 40, 70, 64))


def around_the_tiles() -> Iterator[object]:
    """Every layout and every shape; in each run, three shapes of each layout, and two or three layouts of each shape."""
    for first, layout in enumerate(LAYOUTS):
        for number, shape in enumerate(SHAPES):
            marks = [pytest.mark.slow] if (number - first) % 5 > 2 else []
            yield pytest.param(layout, *shape, marks=marks)


# Elements are small integers: every sum is exact, in any order.
@pytest.mark.parametrize(("layout", "dtype", "n", "m", "k"), list(around_the_tiles()))
@pytest.mark.few(3)
def test_products_around_the_tiles(layout: str, dtype: str, n: int, m: int, k: int) -> None:
    left, right = LAYOUTS[layout]
    a, b = operands(left, right, {"N": n, "M": m, "K": k}, dtype)
    function = polyml.einsum(product(left, right, "N M", dtype), target=SMALL, threads=1)
    assert is_blocked(function, a, b)
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact(left, right, "N M", a, b))


@pytest.mark.parametrize(("layout", "threads"), [("nn", 2), ("tt", 3)])
@pytest.mark.few(1)
def test_threads_share_packed_blocks(layout: str, threads: int) -> None:
    left, right = LAYOUTS[layout]
    a, b = operands(left, right, {"N": 203, "M": 130, "K": 150}, "f32")
    function = polyml.einsum(product(left, right, "N M", "f32"), target=SMALL, threads=threads)
    text = function.lower(a, b).text("loops")
    assert "parallel" in text
    np.testing.assert_array_equal(function(a, b), exact(left, right, "N M", a, b))


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [("D A B E", "E C", "D C B A"), ("C E", "D E B A", "D C B A"), ("C D A", "D B", "C B A")],
)
@pytest.mark.few(2)
def test_threads_have_blocks_of_their_own_where_there_are_enough(left: str, right: str, out: str) -> None:
    sizes = {"A": 37, "B": 40, "C": 18, "D": 34, "E": 33}
    a, b = operands(left, right, sizes, "f32")
    function = polyml.einsum(product(left, right, out, "f32"), target=SMALL, threads=2)
    text = polyml.einsum(product(left, right, out, "f32"), target=SMALL_WIDE, threads=2).lower(a, b).text("loops")
    # One loop over blocks, at the top or below another one, and what a thread packs is its own.
    assert re.search(r"^ {2,4}parallel for .*\n(.*\n){0,2}? *local ", text, re.M), text
    assert text.count("parallel for") == 1
    np.testing.assert_array_equal(function(a, b), exact(left, right, out, a, b))


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        ("A E B F", "F C D E", "A B C D"),
        ("C E", "D E B A", "D C B A"),
        ("B I K", "B K J", "B I J"),
        ("A I K L", "K J L", "A I J"),
        ("D C A", "B D", "C B A"),
        ("A D B", "C D", "C B A"),
    ],
)
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.few(2)
def test_contractions_of_many_indices(left: str, right: str, out: str, threads: int) -> None:
    sizes = dict(zip("ABCDEFIJKL", (17, 18, 19, 20, 18, 3, 21, 35, 18, 5), strict=True))
    a, b = operands(left, right, sizes, "f32")
    function = polyml.einsum(product(left, right, out, "f32"), target=SMALL, threads=threads)
    assert is_blocked(function, a, b)
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact(left, right, out, a, b))


@pytest.mark.parametrize(
    ("left", "right"), [("A G E D", "C B F G"), ("C G E D", "B A F G"), ("B G F D", "C A E G"), ("A E G", "F D C B G")]
)
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.few(2)
def test_short_reductions_write_the_result_in_the_order_of_memory(left: str, right: str, threads: int) -> None:
    sizes = dict(zip("ABCDEFG", (13, 6, 11, 5, 7, 4, 16), strict=True))
    a, b = operands(left, right, sizes, "f32")
    target = Target("host", l1_bytes=8192, l2_bytes=16 * 1024, cores=2)
    out = "F E D C B A"
    function = polyml.einsum(product(left, right, out, "f32"), target=target, threads=threads, verify=True)
    assert "in the order of the result" in str(function.explain(a, b))
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact(left, right, out, a, b))


@pytest.mark.parametrize(
    ("left", "right", "order", "packed"),
    [
        # All rows (b, c) of one f for each column: pieces of 96 bytes, which are packed.
        ("A G E D", "C B F G", "fedc", "xy"),
        # L1 holds them of one d only.
        ("A G F E", "C B D G", "fdec", "xy"),
        # Rows (b) are few, so columns c are read again for each d.
        ("B G F D", "C A E G", "fedc", "xy"),
    ],
)
def test_tiles_find_in_l1_what_they_share(left: str, right: str, order: str, packed: str) -> None:
    sizes = {"A": 24, "B": 20, "C": 20, "D": 24, "E": 20, "F": 20, "G": 24}
    a, b = operands(left, right, sizes, "f32")
    target = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)
    lowered = polyml.einsum(product(left, right, "F E D C B A", "f32"), target=target, threads=1).lower(a, b)
    text = lowered.text("loops")
    assert set(re.findall(r"local f32 (\w)_panels", text)) == set(packed)
    assert ("c_block" in text) == (left == "B G F D")
    tiles = text[: text.index("local f32 z_stage")]
    assert "".join(re.findall(r"for \((\w) =", tiles)).endswith(order)


@pytest.mark.parametrize(("layout", "fetched"), [("nn", {"x", "z"}), ("nt", {"x", "z"}), ("tn", {"x_panels", "z"})])
@pytest.mark.few(1)
def test_tiles_fetch_what_their_next_rows_need(layout: str, fetched: set[str]) -> None:
    """And what the next block is packed from; copies of rows fetch rows of what they copy."""
    copied = {"nn": {"y"}, "nt": {"y"}, "tn": {"x", "y"}}[layout]
    left, right = LAYOUTS[layout]
    a, b = operands(left, right, {"N": 1024, "M": 1024, "K": 1536}, "f32")
    target = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)
    lowered = polyml.einsum(product(left, right, "N M", "f32"), target=target, threads=1).lower(a, b)
    assert set(re.findall(r"prefetch L2 (\w+)\[", lowered.text("loops"))) == fetched | copied
    assert "prefetcht1" in lowered.text("asm")


def test_what_tiles_fetch_moves_evenly() -> None:
    # Anything else than an address that moves on with the sums' own takes integer instructions in each iteration.
    a, b = operands("N K", "K M", {"N": 1024, "M": 1024, "K": 1024}, "f32")
    # Half of that L1 holds no panel, along which rows would pass.
    for target in (Target("x86-64-v4", l2_bytes=4 << 20), Target("x86-64-v3", l1_bytes=24 << 10)):
        text = polyml.einsum(product("N K", "K M", "N M", "f32"), target=target, threads=1).lower(a, b).text("loops")
        places = re.findall(r"prefetch L2 [xz]\[(.*)\];", text)
        whole = [place for place in places if "m_tile_2" in place]
        assert len(whole) >= 2
        assert not any(re.search(r"\bk\)*//", place) for place in whole)


def test_tiles_fetch_rows_of_the_next_block_where_their_own_block_was_set_to_zero_as_a_whole() -> None:
    text = 'def f(x: f64["R Q P"], c: f64["P P"]):\n    x[r, q, p] = x[r, q, s] * c[s, p]\n    return x\n'
    a, b = np.zeros((40, 140, 160)), np.zeros((160, 160))
    target = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)
    loops = polyml.einsum(text, target=target, threads=1).lower(a, b).text("loops")
    block = re.search(r"for \(q_tile = \w+; q_tile < min\(140, \w+ \+ (\d+)\)", loops)
    tile = re.search(r"q_tile \+= (\d+)\).*\n *for \(p_tile", loops)
    fetched = re.search(r"prefetch L2 x\[\w+, .*?(\w+) - .* \+ (\d+), ", loops)
    assert block is not None
    assert tile is not None
    assert fetched is not None
    assert int(block[1]) > int(tile[1])
    assert fetched.groups() == ("q_tile", block[1]), "the rows of a block are in cache since they were set to zero"


def test_tiles_fetch_their_next_rows_from_inside_nested_sums() -> None:
    sizes = {"A": 96, "B": 60, "C": 60, "D": 60, "E": 40, "F": 96}
    a, b = operands("F B E A", "C E D F", sizes, "f32")
    target = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)
    lowered = polyml.einsum(product("F B E A", "C E D F", "D C B A", "f32"), target=target, threads=1).lower(a, b)
    fetched = re.search(
        r"for \(e = .*\n *for \(f_line = .*\n *prefetch L2 (y\[c, e, .*, f_line\]);\n(?: *prefetch L2 y.*\n)* *for \(f = .*\n *prefetch L2 z\[",
        lowered.text("loops"),
    )
    assert fetched is not None
    assert "d + 8" in fetched[1] or "+ d" in fetched[1], "rows of d are neighbours, those of c 225 pages apart"


def test_rows_are_packed_once_per_block_of_the_reduction() -> None:
    a, b = operands("K N", "M K", {"N": 70, "M": 300, "K": 150}, "f32")
    target = Target("host", l1_bytes=2048, l2_bytes=16 * 1024, l3_bytes=1 << 20, cores=2)
    for threads in (1, 2):
        function = polyml.einsum(product("K N", "M K", "N M", "f32"), target=target, threads=threads, verify=True)
        assert "ahead of all columns" in str(function.explain(a, b))
        np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact("K N", "M K", "N M", a, b))


@pytest.mark.parametrize(("rows", "l2"), [(384, 48 << 10), (1000, 128 << 10)])
def test_blocks_of_rows_are_packed_apart(rows: int, l2: int) -> None:
    """Many rows, packed again for each block of columns."""
    sizes = {"A": 144, "B": rows, "C": 2, "D": 18}
    a, b = operands("C D A", "D B", sizes, "f32")
    text = product("C D A", "D B", "C B A", "f32")
    caches = {"l1_bytes": 2048, "l2_bytes": l2, "l3_bytes": 0, "cores": 2}
    wide, function = (polyml.einsum(text, target=Target(t, **caches), threads=1) for t in ("x86-64-v4", "host"))
    assert re.search(r"y in panels of 8.* b by \d+", str(wide.explain(a, b)))
    assert "fallback" not in str(wide.explain(a, b)) + str(function.explain(a, b))
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact("C D A", "D B", "C B A", a, b))


def shifted(values: np.ndarray, elements: int) -> np.ndarray:
    """A copy that starts so many elements behind a multiple of 64 bytes."""
    room = np.zeros(values.size + 32, values.dtype)
    start = (-room.ctypes.data % 64) // values.itemsize + elements
    room[start : start + values.size] = values.ravel()
    return room[start : start + values.size].reshape(values.shape)


@pytest.mark.parametrize(("columns", "streams"), [(64, True), (72, False)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_large_results_of_one_block_are_streamed(columns: int, streams: bool, threads: int) -> None:
    a, b = operands("B I K", "K J", {"B": 20, "I": 19, "J": columns, "K": 16}, "f32")
    text = product("B I K", "K J", "B I J", "f32")
    caches = {"l1_bytes": 4096, "l2_bytes": 16 * 1024, "cores": 2}
    wide, function = (polyml.einsum(text, target=Target(t, **caches), threads=threads) for t in ("x86-64-v4", "host"))
    loops = wide.lower(a, b).text("loops")
    assert ("/* streaming */" in loops) == streams
    assert ("z_lead == 0" in loops) == streams
    assert ("movnt" in wide.lower(a, b).text("asm")) == streams
    for lead in (0, 3):
        out = shifted(np.full((20, 19, columns), np.nan, np.float32), lead)
        assert function(a, b, out=out) is out
        np.testing.assert_array_equal(out, exact("B I K", "K J", "B I J", a, b))


@pytest.mark.parametrize(("columns", "rows", "staged"), [(24, 4, True), (20, 3, False)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(2)
def test_rows_that_are_no_whole_vectors_are_collected(columns: int, rows: int, staged: bool, threads: int) -> None:
    sizes = {"A": columns, "B": rows, "C": 2, "D": 5, "E": 6, "F": 3, "G": 16}
    a, b = operands("A G E D", "C B F G", sizes, "f32")
    target = Target("x86-64-v4", l1_bytes=8192, l2_bytes=16 * 1024, cores=2)
    function = polyml.einsum(
        product("A G E D", "C B F G", "F E D C B A", "f32"), target=target, threads=threads, verify=True
    )
    assert ("z_stage" in function.lower(a, b).text("loops")) == staged
    assert ("movnt" in function.lower(a, b).text("asm")) == staged
    host = Target("host", l1_bytes=8192, l2_bytes=16 * 1024, cores=2)
    function = polyml.einsum(product("A G E D", "C B F G", "F E D C B A", "f32"), target=host, threads=threads)
    for lead in (0, 3):
        out = shifted(np.full([sizes[i] for i in "FEDCBA"], np.nan, np.float32), lead)
        assert function(guarded(a), guarded(b), out=out) is out
        np.testing.assert_array_equal(out, exact("A G E D", "C B F G", "F E D C B A", a, b))


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(3)
def test_skinny_products_read_the_large_operand_once_in_order(rows: int, threads: int) -> None:
    a, b = operands("N K", "K M", {"N": rows, "M": 2003, "K": 151}, "f32")
    function = polyml.einsum(product("N K", "K M", "N M", "f32"), target=SMALL, threads=threads, verify=True)
    assert "read once, in order" in str(function.explain(a, b))
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact("N K", "K M", "N M", a, b))


STREAMED = [
    ("sum[k](a[k] * b[k, m])", "f32"),
    ("tanh(sum[k](a[k] * b[k, m]) - c[m])", "f32"),
    ("2 * sum[k](b[k, m])", "f64"),
    ("max[k](a[k] + b[k, m])", "f32"),
    ("sum[k]((b[k, m] - c[m]) * (b[k, m] - c[m]))", "f64"),
]


@pytest.mark.parametrize(("value", "dtype"), STREAMED)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(3)
def test_a_vector_times_a_matrix_reads_it_in_long_rows(value: str, dtype: str, threads: int) -> None:
    text = f'def f(a: {dtype}["K"], b: {dtype}["K M"], c: {dtype}["M"]):\n    z[m] = {value}\n    return z\n'
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-4, 4, s).astype(dtype.replace("f", "float")) for s in (1201, (1201, 2051), 2051))
    function = polyml.einsum(text, target=SMALL, threads=threads, verify=True)
    assert "read once, in order" in str(function.explain(a, b, c))
    assert ("parallel" in function.lower(a, b, c).text("loops")) == (threads > 1)
    expected = {
        "sum[k](a[k] * b[k, m])": lambda: a @ b,
        "tanh(sum[k](a[k] * b[k, m]) - c[m])": lambda: np.tanh(a @ b - c),
        "2 * sum[k](b[k, m])": lambda: 2 * b.sum(0),
        "max[k](a[k] + b[k, m])": lambda: (a[:, None] + b).max(0),
        "sum[k]((b[k, m] - c[m]) * (b[k, m] - c[m]))": lambda: ((b - c) ** 2).sum(0),
    }[value]()
    np.testing.assert_allclose(function(guarded(a), guarded(b), guarded(c)), expected, rtol=1e-6)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(2)
def test_blocks_of_a_matrix_that_is_read_once_have_as_many_rows_but_for_the_last(rows: int, threads: int) -> None:
    """How often each loop runs is a number then: sums are unrolled, and ask for coming rows."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 4, s).astype(np.float32) for s in ((rows, 1203) if rows else 1203, (1203, 2051)))
    n, own = ("n, ", "N K") if rows else ("", "K")
    text = f'def f(a: f32["{own}"], b: f32["K M"]):\n    z[{n}m] = a[{n}k] * b[k, m]\n    return z\n'
    function = polyml.einsum(text, target=SMALL, threads=threads, verify=True)
    loops = function.lower(a, b).text("loops")
    assert "read once, in order" in str(function.explain(a, b))
    assert not re.search(r"k < .*min\(1203", loops)
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), a @ b)


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(1, 37, 130), (2, 64, 33), (5, 41, 64), (3, 23, 100), (8, 300, 129)]
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(3)
def test_few_rows_times_rows_run_side_by_side(rows: int, columns: int, depth: int, threads: int) -> None:
    """Lanes along the reduction: elements of the result in registers beside each other, whole tiles and the rest."""
    a, b = operands("N K", "M K", {"N": rows, "M": columns, "K": depth}, "f32")
    text = product("N K", "M K", "N M", "f32", finish="relu({} - 7)")
    function = polyml.einsum(text, target=SMALL, threads=threads, verify=True)
    assert "side by side" in str(polyml.einsum(text, target=SMALL_WIDE, threads=threads).explain(a, b))
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), np.maximum(exact("N K", "M K", "N M", a, b) - 7, 0))


def test_a_matrix_times_a_vector_takes_rows_side_by_side_that_threads_share() -> None:
    a, b = operands("N K", "K", {"N": 1003, "K": 517}, "f64")
    function = polyml.einsum(
        'def f(a: f64["N K"], b: f64["K"]):\n    y[n] = a[n, k] * b[k]\n    return y\n',
        target=SMALL,
        threads=2,
        verify=True,
    )
    assert "side by side" in str(function.explain(a, b))
    assert "parallel" in function.lower(a, b).text("loops")
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), a @ b)


def test_rows_of_a_weighted_sum_run_side_by_side() -> None:
    a, b = operands("N K", "K", {"N": 1003, "K": 517}, "f64")
    text = 'def f(w: f64, a: f64["N K"], b: f64["K"], y: f64["N"]):\n    y[n] += w * a[n, k] * b[k]\n    return y\n'
    function = polyml.einsum(text, target=SMALL, threads=2, verify=True)
    assert "side by side" in str(function.explain(2.0, a, b, np.ones(1003)))
    np.testing.assert_array_equal(function(2.0, guarded(a), guarded(b), np.ones(1003)), 2 * (a @ b) + 1)


def test_what_follows_sees_the_finished_sum() -> None:
    a, b = operands("N K", "K M", {"N": 50, "M": 70, "K": 200}, "f32")
    function = polyml.einsum(product("N K", "K M", "N M", "f32", finish="relu({} - 7)"), target=SMALL, threads=2)
    assert is_blocked(function, a, b)
    np.testing.assert_array_equal(function(a, b), np.maximum(exact("N K", "K M", "N M", a, b) - 7, 0))


def test_strided_operands() -> None:
    a, b = operands("N K", "K M", {"N": 100, "M": 140, "K": 200}, "f64")
    a, b = a[::2, ::-1], b[:, 1::2]
    function = polyml.einsum(product("N K", "K M", "N M", "f64"), target=SMALL)
    np.testing.assert_array_equal(function(a, b), exact("N K", "K M", "N M", a, b))


def test_max_plus_is_blocked_too() -> None:
    text = 'def f(a: f32["N K"], b: f32["K M"]):\n    c[n, m] = max[k](a[n, k] + b[k, m])\n    return c\n'
    a, b = operands("N K", "K M", {"N": 33, "M": 50, "K": 150}, "f32")
    function = polyml.einsum(text, target=SMALL)
    assert is_blocked(function, a, b)
    np.testing.assert_array_equal(function(a, b), (a[:, :, None] + b[None]).max(axis=1))


def test_an_empty_reduction_is_zero() -> None:
    function = polyml.einsum(product("N K", "K M", "N M", "f32"))
    result = function(np.ones((30, 0), np.float32), np.ones((0, 50), np.float32))
    np.testing.assert_array_equal(result, np.zeros((30, 50), np.float32))


def test_nothing_is_packed_for_small_or_skinny_products() -> None:
    for n, m, k in ((16, 16, 16), (64, 64, 64), (1, 512, 512), (8, 512, 512)):
        a, b = operands("N K", "K M", {"N": n, "M": m, "K": k}, "f32")
        function = polyml.einsum(product("N K", "K M", "N M", "f32"), target=Target("x86-64-v4"))
        assert not is_blocked(function, a, b), (n, m, k)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "aarch64", "apple-m1"])
@pytest.mark.few(3)
def test_register_tiles_do_not_spill(name: str, layout: str, dtype: str) -> None:
    left, right = LAYOUTS[layout]
    a, b = operands(left, right, {"N": 512, "M": 480, "K": 512}, dtype)
    target = Target(name, l1_bytes=48 * 1024, l2_bytes=2 << 20)
    assembly = polyml.einsum(product(left, right, "N M", dtype), target=target).lower(a, b).text("asm")
    kernels = [body for body in inner_loops(assembly) if len(re.findall(r"\b(vfmadd|fmla)", body)) >= 8]
    assert kernels
    for body in kernels:
        assert not spills_of(body), body


def test_products_apart_from_their_sums_have_registers() -> None:
    """Accumulators, the vectors that rows share and a broadcast; and what a product is made in where nothing is fused."""
    a, b = operands("N K", "K M", {"N": 200, "M": 240, "K": 300}, "f64")
    for name, others in (("x86-64-v2", 3), ("x86-64-v3", 1)):
        shown = str(polyml.einsum(product("N K", "K M", "N M", "f64"), target=Target(name)).explain(a, b))
        found = re.search(r"register tile (\d+) n x (\d+) vectors", shown)
        assert found is not None
        rows, vectors = int(found[1]), int(found[2])
        assert 16 - 2 <= rows * vectors + vectors + others <= 16


def spills_of(body: str) -> list[str]:
    """Instructions on vectors that load from the stack, store to it, or have an operand there."""
    return re.findall(r"^\s*v\w+\s.*\(%r[sb]p\b.*$|^\s*(?:ld|st)\w+\s+[qdv]\d+.*\[(?:sp|x29)\b.*$", body, re.MULTILINE)


def test_spills_are_seen() -> None:
    """As LLVM writes them: a load, an operand in memory behind a frame pointer, and those of ARM."""
    assert (
        len(
            spills_of(
                "\tvmovaps\t64(%rsp), %zmm1\n\tvfmadd231ps\t-96(%rbp), %ymm1, %ymm2\n\tvaddps\t(%rax), %ymm1, %ymm2\n"
            )
        )
        == 2
    )
    assert len(spills_of("\tldr\tq1, [sp, #16]\n\tstp\tq0, q1, [sp]\n\tldr\tq1, [x8, #16]\n\tldr\tx1, [sp]\n")) == 2


def inner_loops(assembly: str) -> list[str]:
    """Basic blocks that jump back to their own label."""
    found, label, lines = [], "", list[str]()
    for line in assembly.splitlines():
        if match := re.match(r"(\.?L\w+):", line):
            label, lines = match[1], []
            continue
        lines.append(line)
        if label and re.search(rf"\b(j|b|cb|tb)[\w.]*\s+(\S+, )*{re.escape(label)}$", line):
            found.append("\n".join(lines))
    return found


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 30))])
@pytest.mark.few(2)
def test_random_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = LAYOUTS[list(LAYOUTS)[seed % 4]]
    n, m, k = (int(x) for x in rng.integers(17, 150, 3))
    dtype = list(TYPES)[seed % 3]
    a, b = operands(left, right, {"N": n, "M": m, "K": k}, dtype, seed)
    run = partial(
        polyml.einsum(product(left, right, "N M", dtype), target=SMALL, threads=1 + seed % 3, verify=True), a, b
    )
    np.testing.assert_array_equal(run(), exact(left, right, "N M", a, b))


def test_loops_of_a_blocked_product(golden: Callable[[str, str], None]) -> None:
    """Small enough to read: three rows by one vector, every level of blocks, both operands packed."""
    target = Target("x86-64-v2", l1_bytes=1024, l2_bytes=8100, vector_registers=7)
    a, b = operands("K N", "K M", {"N": 17, "M": 260, "K": 60}, "f32")
    function = polyml.einsum(product("K N", "K M", "N M", "f32"), target=target, threads=1)
    golden("codegen/blocked_product", function.lower(a, b).text("schedule") + "\n" + function.lower(a, b).text("loops"))


def test_loops_of_a_contraction_of_many_indices(golden: Callable[[str, str], None]) -> None:
    """Two indices summed, two rows on either side, the result in an order of its own."""
    target = Target("x86-64-v2", l1_bytes=1024, l2_bytes=8100, vector_registers=7)
    shapes = {"A": 5, "B": 6, "C": 7, "D": 8, "E": 20}
    a, b = (np.ones([shapes[i] for i in dims.split()], np.float32) for dims in ("A C B D", "D E C"))
    function = polyml.einsum(product("A C B D", "D E C", "B A E", "f32"), target=target, threads=1)
    golden("codegen/many_indices", function.lower(a, b).text("loops"))


def test_loops_of_a_convolution(golden: Callable[[str, str], None]) -> None:
    """Lanes along the filters, weights in panels, padding copied."""
    target = Target("x86-64-v2", l1_bytes=1024, l2_bytes=8100, vector_registers=7)
    text = (
        'def f(x: f32["C H W"], w: f32["O C 3 3"]):\n'
        "    y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]\n    return y\n"
    )
    function = polyml.einsum(text, target=target, threads=1)
    a, b = np.ones((8, 9, 10), np.float32), np.ones((12, 8, 3, 3), np.float32)
    golden("codegen/convolution", function.lower(a, b).text("loops"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("batch", "depth", "n", "m"), [(3, 129, 40, 32), (1, 300, 17, 64), (2, 64, 64, 48)])
@pytest.mark.few(3)
def test_short_dense_rows_are_read_where_they_lie(threads: int, batch: int, depth: int, n: int, m: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, (batch, depth, extent)).astype(np.float32) for extent in (n, m))
    target = Target(
        "host", vector_bytes=64, vector_registers=32, l1_bytes=8 << 10, l2_bytes=1 << 20, cores=2
    )  # tiles of few registers have blocks of terms instead
    function = polyml.einsum(product("B K N", "B K M", "B N M", "f32"), target=target, threads=threads)
    assert "y read where it lies" in str(function.explain(a, b))
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), np.einsum("bkn,bkm->bnm", a, b))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("columns", "packed"), [(64, False), (250, False), (300, True)])
@pytest.mark.few(2)
def test_contiguous_rows_of_few_uses_are_not_packed(columns: int, packed: bool, threads: int) -> None:
    """They are more than half of L2, and apart along the sum."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, (700, extent)).astype(np.float32) for extent in (90, columns))
    target = Target("host", vector_bytes=64, vector_registers=32, l1_bytes=8 << 10, l2_bytes=128 << 10, cores=2)
    function = polyml.einsum(product("K N", "K M", "N M", "f32"), target=target, threads=threads)
    assert ("x in panels" in str(function.explain(a, b))) == packed
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), a.T @ b)


def test_rows_beyond_l2_are_read_in_strips_and_with_strides_packed() -> None:
    rng = np.random.default_rng(0)
    shapes = {"y read where it lies": (60, 256), "y read where it lies, in strips": (1200, 250)}
    cases = [(how, rng.integers(-9, 10, shape).astype(np.float32)) for how, shape in shapes.items()]
    cases.append(("y packed in panels", rng.integers(-9, 10, (300, 256)).astype(np.float32)[:, ::2]))
    for how, right in cases:
        left = rng.integers(-9, 10, (len(right), 40)).astype(np.float32)
        text = product("K N", "K M", "N M", "f32")
        avx2 = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
        assert how in str(polyml.einsum(text, target=avx2, threads=1).explain(left, right))
        np.testing.assert_array_equal(polyml.einsum(text, target=IN_L2, threads=1)(left, right), left.T @ right)


@pytest.mark.parametrize(
    ("left", "right", "x", "y"),
    [
        ("n, k", "k, 1, m", (97, 65), (65, 3, 130)),
        ("2, n, k", "k, m", (3, 40, 129), (129, 47)),
        ("k, n", "m, k, 0", (64, 50), (70, 64, 2)),
        ("n, 1, k", "3, m, k", (33, 2, 80), (4, 49, 80)),
    ],
)
@pytest.mark.few(1)
def test_slices_are_blocked(left: str, right: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, shape).astype(np.float32) for shape in (x, y))
    types = (f'f32["{" ".join(f"{name}{k}" for k in range(len(s)))}"]' for name, s in (("X", x), ("Y", y)))
    text = f"def f(x: {next(types)}, y: {next(types)}):\n    z[n, m] = x[{left}] * y[{right}]\n    return z\n"
    plain = [
        eval(f"v[{', '.join(s if s.isdigit() else ':' for s in spec.split(', '))}]", {"v": v})
        for v, spec in ((a, left), (b, right))
    ]
    spec = ",".join("".join(s for s in side.split(", ") if not s.isdigit()) for side in (left, right)) + "->nm"
    exact = np.einsum(spec, *plain)
    function = polyml.einsum(text, target=SMALL, threads=1 + ("1" in left))
    assert is_blocked(function, a, b)
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact)
    np.testing.assert_array_equal(polyml.einsum(text, target=SMALL).bind(y=b)(a), exact)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("columns", "apart"), [(16, 3), (33, 4), (49, 1), (300, 4), (2001, 4)])
@pytest.mark.few(3)
def test_rows_far_apart_are_packed_for_many_panels_only(dtype: str, columns: int, apart: int) -> None:
    left, right, out, sizes = "A K B", "K M", "B A M", {"A": 19, "B": apart, "K": 140, "M": columns}
    text = product(left, right, out, dtype)
    function = polyml.einsum(text, target=IN_L2, threads=1, verify=True)
    a, b = operands(left, right, sizes, dtype)
    if apart > 1:
        wide = polyml.einsum(text, target=IN_L2_WIDE, threads=1)
        assert ("x in panels" in str(wide.explain(a, b))) == (columns > 1000)
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact(left, right, out, a, b))


def test_short_sums_have_lanes_along_results_that_are_far() -> None:
    """The small operand is turned for them; lanes along what the large one is contiguous along would store each element to a line of its own."""
    left, right, out = "B E A", "E C D", "A C D B"
    text = product(left, right, out, "f64")
    function = polyml.einsum(text, target=SMALL, threads=1, verify=True)
    a, b = operands(left, right, {"A": 14, "B": 6, "C": 20, "D": 24, "E": 12}, "f64")
    assert "for the lanes of S_z along b" in str(polyml.einsum(text, target=SMALL_WIDE, threads=1).explain(a, b))
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact(left, right, out, a, b))
    # Where L2 holds the result nothing is turned.
    near = polyml.einsum(text, target=IN_L2_WIDE, threads=1)
    assert "packing" not in str(near.explain(a, b))


@pairwise(("columns", [3, 5, 11, 13, 16]), ("rows", [16, 37]), ("dtype", ["f32", "f64"]))
@pytest.mark.few(4)
def test_few_columns_have_lanes_along_sums_that_both_operands_are_contiguous_along(
    dtype: str, columns: int, rows: int
) -> None:
    wide = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=1 << 20, cores=2)
    source, sizes = product("N K", "M K", "N M", dtype), {"N": rows, "M": columns, "K": 1703}
    a, b = operands("N K", "M K", sizes, dtype)
    lanes = 16 if dtype == "f32" else 8
    if columns in (3, 5, 11, 16):
        few = columns < lanes
        assert ("side by side" in str(polyml.einsum(source, target=wide, threads=1).explain(a, b))) == few
    function = polyml.einsum(source, threads=1, verify=True)
    np.testing.assert_array_equal(function(guarded(a), guarded(b)), exact("N K", "M K", "N M", a, b))
