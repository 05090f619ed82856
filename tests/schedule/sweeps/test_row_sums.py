"""Products with a matrix and its transpose in one sweep over blocks of rows: results, whatever the shape and the threads; which programs do, and which must not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import polyml
from benchmarks.polybench import KERNELS
from polyml.codegen.loops import Allocate, Assign, For, If
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import reads_of
from polyml.target import Target

SMALL = Target("host", l1_bytes=4096, l2_bytes=32 * 1024, cores=2)
"""This machine with caches so small that blocks appear at test sizes."""

LAYER = """
def backward(g: f32["N M"], x: f32["N M"], w: f32["M"]):
    dw[j] = g[i, j] * x[i, j]
    db[j] = sum[i](g[i, j])
    c[i] = g[i, j] * x[i, j] * w[j]
    dx[i, j] = g[i, j] * w[j] - c[i] * x[i, j]
    return dx, dw, db
"""


def blocks(program: polyml.Einsum, *arguments: object) -> list[str]:
    """What is said about blocks of rows, and nothing fell back."""
    notes = [note for region in program.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in notes if note.stage == "fallback"]
    return [note.text for note in notes if "rows of" in note.text and "summed over" in note.text]


MATRICES = {(name, (n, n)) for name in ("mvt", "gemver") for n in (97, 203)}
MATRICES |= {(name, shape) for name in ("atax", "bicg") for shape in ((203, 131), (64, 401), (2051, 9), (97, 97))}


@pytest.mark.parametrize(("name", "shape"), sorted(MATRICES))
@pytest.mark.few(1)
def test_products_with_a_matrix_and_its_transpose(name: str, shape: tuple[int, int]) -> None:
    kernel = KERNELS[name]
    rows, columns = shape
    sizes = {"M": rows, "N": columns} if name == "atax" else {"N": rows, "M": columns}
    arguments = kernel.data(sizes, np.random.default_rng(1))
    expected = kernel.reference(*(np.copy(a) for a in arguments))
    found = []
    for threads in (1, 3):
        program = kernel.program(target=SMALL, threads=threads, verify=threads == 1)
        assert blocks(program, *arguments)
        result = program(*(np.copy(a) for a in arguments))
        found.append(result if isinstance(result, tuple) else (result,))
        for got, want in zip(found[-1], expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)
        assert all(np.array_equal(a, b) for a, b in zip(found[0], found[-1], strict=True)), "threads change results"


def test_a_matrix_and_its_transpose_take_one_loop_over_rows() -> None:
    program = polyml.einsum(
        """
def pair(A: f32["N M"], x: f32["M"]):
    y[i] = A[i, j] * x[j]
    h[i] = max(y[i], 0)
    z[j] = A[i, j] * h[i]
    return y, z
""",
        target=SMALL,
    )
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((301, 77), np.float32), rng.standard_normal(77, np.float32)
    assert len(program.lower(a, x).stages.regions) == 1
    (note,) = blocks(program, a, x)
    assert note == "blocks of 8 rows of A for all that reads them; z: summed over 2 parts"
    y, z = program(a, x)
    wide = a.astype(float)
    np.testing.assert_allclose(y, wide @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(z, wide.T @ np.maximum(wide @ x, 0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("machine", "rows"), [("x86-64-v4", 8), ("x86-64-v3", 4)])
def test_sums_that_need_no_other_take_elements_together(machine: str, rows: int) -> None:
    """Some rows side by side: a vector of each is loaded once, and the columns' sums once for all of them."""
    target = Target(machine, l1_bytes=4096, l2_bytes=32 * 1024, cores=1)
    for name, together in (("bicg", True), ("mvt", True), ("atax", False)):
        kernel = KERNELS[name]
        sizes = dict.fromkeys(("N", "M"), 128)
        lowered = kernel.program(target=target).lower(*kernel.data(sizes, np.random.default_rng(1)))
        (function,) = lowered.stages.functions
        loops = [n for n in walk_nodes(function.body) if isinstance(n, For) and n.kind == "vector"]
        steps = [[step for step in walk_nodes(loop.body) if isinstance(step, Assign)] for loop in loops]
        both = [s for s in steps if sum(any(r.tensor == "A" for r in reads_of(a.value)) for a in s) > 2 * rows]
        assert together == any("loaded once" in note.text for note in lowered.stages.regions[0].notes)
        assert not together or both
        for inner in both if together else ():
            stored = [a for a in inner if a.target.subscripts]
            assert len(stored) * rows * 2 == sum(a.reduction is not None for a in inner)


CHANGED = """
def changed(A: f64["N M"], u: f64["N"], v: f64["M"], r: f64["N"], p: f64["M"]):
    A[i, j] += u[i] * v[j]
    s[j] = A[i, j] * r[i]{0}
    return A, s{1}
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize("shape", [(128, 96), (151, 171)])
@pytest.mark.few(2)
def test_what_changes_the_matrix_goes_with_its_sums(sums: int, threads: int, shape: tuple[int, int]) -> None:
    n, m = shape
    text = CHANGED.format(*(("\n    q[i] = A[i, j] * p[j]", ", q") if sums == 2 else ("", "")))
    program = polyml.einsum(text, target=SMALL, threads=threads, verify=True)
    rng = np.random.default_rng(0)
    a, u, v, r, p = (rng.standard_normal(extents) for extents in ((n, m), n, m, n, m))
    (note,) = blocks(program, a, u, v, r, p)
    assert "each element loaded once for all sums" in note
    made = a + np.outer(u, v)
    found = program(a.copy(), u, v, r, p)
    for got, want in zip(found, (made, made.T @ r, made @ p), strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_what_reads_the_changed_matrix_runs_behind_its_rows() -> None:
    """A product that takes no elements with the others is made when the block's are there."""
    text = """
def f(a: f32["N K"], c: i8["K M"]):
    x[k, m] = f32(c[k, m]) * 2.0
    z[m] = x[k, m]
    y[n, m] = a[n, k] * x[k, m]
    return y, z
"""
    rng = np.random.default_rng(0)
    a, c = rng.integers(-3, 4, (5, 400)).astype(np.float32), rng.integers(-9, 9, (400, 37), np.int8)
    program = polyml.einsum(text, target=SMALL, verify=True)
    (note,) = blocks(program, a, c)
    assert "each element loaded once for all sums; z, y: summed" in note
    y, z = program(a, c)
    x = np.float32(2) * c
    assert np.array_equal(y, a @ x)
    assert np.array_equal(z, x.sum(0))


def test_sums_of_a_matrix_that_is_made_of_other_rows() -> None:
    text = CHANGED.replace("+= u[i] * v[j]", "= 0.5 * B[i, j] + u[i] * B[N - 1 - i, j]").replace("A: f64", "B: f64")
    program = polyml.einsum(text.format("", ""), target=SMALL, verify=True)
    rng = np.random.default_rng(0)
    b, u, v, r, p = (rng.standard_normal(extents) for extents in ((151, 171), 151, 171, 151, 171))
    made = 0.5 * b + u[:, None] * b[::-1]
    found = program(b, u, v, r, p)
    np.testing.assert_allclose(found[0], made, rtol=1e-12)
    np.testing.assert_allclose(found[1], made.T @ r, rtol=1e-12, atol=1e-12)


def test_gradients_of_rows() -> None:
    rng = np.random.default_rng(0)
    g, x, w = rng.standard_normal((263, 65)), rng.standard_normal((263, 65)), rng.standard_normal(65)
    single = [v.astype(np.float32) for v in (g, x, w)]
    program = polyml.einsum(LAYER, target=SMALL, verify=True)
    assert blocks(program, *single)
    dx, dw, db = program(*single)
    g, x, w = (v.astype(float) for v in single)
    np.testing.assert_allclose(dw, (g * x).sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db, g.sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dx, g * w - (g * x * w).sum(1)[:, None] * x, rtol=1e-4, atol=1e-3)


GRADIENT = """
def gradient(A: f64["M N"], x: f64["N"], b: f64["M"]):
    t[i] = A[i, j] * x[j]
    p[i] = 1 / (1 + exp(-t[i])) - b[i]
    g[j] = A[i, j] * p[i]
    s[j] = A[i, j] * b[i]
    return g, s, t
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(203, 131), (64, 401), (65, 401), (97, 97), (95, 97)])
@pytest.mark.few(1)
def test_what_is_made_of_a_rows_sum_waits_for_it(shape: tuple[int, int], threads: int) -> None:
    """Two sums down the columns, of which one could do without; whole blocks and rests of them, parts of unequal lengths."""
    rng = np.random.default_rng(2)
    a, x, b = rng.random(shape), rng.random(shape[1]) / shape[1], rng.random(shape[0])
    program = polyml.einsum(GRADIENT, target=SMALL, threads=threads, verify=True)
    (note,) = blocks(program, a, x, b)
    assert "S_g one block late; g, s: summed over" in note
    t = a @ x
    for got, want in zip(program(a, x, b), (a.T @ (1 / (1 + np.exp(-t)) - b), a.T @ b, t), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


STEPS = """
def steps(A: f64["N M"], b: f64["N"], T: int):
    x: f64["M"] = 0
    h: f64["T N"]
    for t in range(T):
        e[i] = 1 / (1 + exp(-(sum[j](A[i, j] * x[j])))) - b[i] + t / 64
        x[j] -= sum[i](A[i, j] * e[i]) / N
        h[t, i] = e[i]
    return x, h
"""


def stepped(a: np.ndarray, b: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    x, h = np.zeros(a.shape[1]), np.zeros((count, len(a)))
    for t in range(count):
        h[t] = 1 / (1 + np.exp(-(a @ x))) - b + t / 64
        x = x - a.T @ h[t] / len(a)
    return x, h


@pytest.mark.parametrize(("shape", "rows"), [((203, 13), 16), ((256, 40), 8), ((97, 65), 4), ((64, 401), 5)])
@pytest.mark.few(1)
def test_steps_of_a_loop_go_through_the_rows_once_each(shape: tuple[int, int], rows: int) -> None:
    """Blocks that L1 holds, of which 203 and 97 rows leave a part, and blocks that L2 holds; threads change no result."""
    rng = np.random.default_rng(2)
    a, b = rng.random(shape), rng.random(shape[0])
    found = []
    for threads in (1, 2):
        program = polyml.einsum(STEPS, target=SMALL, threads=threads, verify=threads == 1)
        (note,) = blocks(program, a, b, 3)
        assert note.startswith(f"blocks of {rows} rows of A for all that reads them; x_sum: summed over")
        for count in (3, 1, 0):
            found.append(program(a, b, count))
            for got, want in zip(found[-1], stepped(a, b, count), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)
    assert all(
        np.array_equal(x, y)
        for one, two in zip(found[:3], found[3:], strict=True)
        for x, y in zip(one, two, strict=True)
    )


def test_loops_within_loops_go_through_the_rows_once_each() -> None:
    program = polyml.einsum(
        """
def balanced(A: f64["N M"], x: f64["M"], w: f64["3"], T: int):
    for s in range(3):
        for t in range(T):
            y[i] = 1 / sum[j](A[i, j] * x[j])
            x[j] = w[s] / sum[i](A[i, j] * y[i])
    return x
""",
        target=SMALL,
        verify=True,
    )
    rng = np.random.default_rng(0)
    a, x, w = rng.random((150, 40)), rng.random(40), rng.random(3)
    assert blocks(program, a, x, w, 2)
    want = x.copy()
    for s in (0, 0, 1, 1, 2, 2):
        want = w[s] / (a.T @ (1 / (a @ want)))
    np.testing.assert_allclose(program(a, x.copy(), w, 2), want, rtol=1e-12)


def test_rows_that_a_step_leaves_out_stay() -> None:
    """Which rows there are depends on the step."""
    program = polyml.einsum(
        """
def some(A: f64["N M"], x: f64["M"], T: int):
    for t in range(T):
        y[i] = sum[j, i >= t](A[i, j] * x[j])
        x[j] -= sum[i, i >= t](A[i, j] * y[i]) / N
    return x
""",
        target=SMALL,
        verify=True,
    )
    a, x = np.random.default_rng(0).random((110, 40)), np.random.default_rng(1).random(40)
    want = x.copy()
    for t in range(3):
        want = want - a[t:].T @ (a[t:] @ want) / len(a)
    np.testing.assert_allclose(program(a, x.copy(), 3), want, rtol=1e-12)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_sums_that_wait_at_any_size(threads: int) -> None:
    program = polyml.einsum(GRADIENT, target=SMALL, threads=threads, dynamic=True, verify=True)
    rng = np.random.default_rng(0)
    for n, m in ((203, 131), (17, 400), (389, 33), (256, 64), (257, 9), (2051, 2), (5, 3), (1, 1)):
        a, x, b = rng.standard_normal((n, m)) / 8, rng.standard_normal(m), rng.standard_normal(n)
        if not program.kernels:
            (note,) = blocks(program, a, x, b)
            assert "S_g one block late" in note
        t = a @ x
        for got, want in zip(program(a, x, b), (a.T @ (1 / (1 + np.exp(-t)) - b), a.T @ b, t), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    assert len(program.kernels) == 1


def test_columns_of_a_matrix_that_lies_the_other_way() -> None:
    """Blocks go along the longest strides: here columns."""
    kernel = KERNELS["bicg"]
    arguments = kernel.data({"N": 150, "M": 170}, np.random.default_rng(1))
    turned = (np.asfortranarray(arguments[0]), *arguments[1:])
    program = kernel.program(target=SMALL, verify=True)
    assert blocks(program, *turned)
    for got, want in zip(program(*turned), kernel.reference(*arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


STAY = {
    "all of the sum is needed": "y[j] = A[i, j] * r[i]\n    z[i] = A[i, j] * y[j]\n    return y, z",
    "through a number": "y[j] = A[i, j] * r[i]\n    t = sum[j](y[j])\n    z[i] = sum[j](max(A[i, j], t))\n    return y, z",
    "both over the rows": "y[j] = A[i, j] * r[i]\n    z[j] = A[i, j] * A[i, j]\n    return y, z",
    "other rows": "y[j] = A[i, j] * r[i]\n    z[i] = sum[j](A[N - 1 - i, j])\n    return y, z",
    "rows of its own transpose": "y[j] = A[i, j] * r[i]\n    z[i] = sum[j](A[i, j] * A[j, i])\n    return y, z",
}


@pytest.mark.parametrize("case", STAY)
def test_others_stay(case: str) -> None:
    program = polyml.einsum(f'def f(A: f64["N N"], r: f64["N"]):\n    {STAY[case]}\n', target=SMALL, verify=True)
    a, r = np.random.default_rng(0).random((110, 110)), np.random.default_rng(1).random(110)
    assert not blocks(program, a, r)
    y = a.T @ r
    z = {
        "all of the sum is needed": lambda: a @ y,
        "through a number": lambda: np.maximum(a, y.sum()).sum(1),
        "both over the rows": lambda: (a * a).sum(0),
        "other rows": lambda: a[::-1].sum(1),
        "rows of its own transpose": lambda: (a * a.T).sum(1),
    }[case]()
    for got, want in zip(program(a, r), (y, z), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_precise_sums_and_small_matrices_stay() -> None:
    kernel = KERNELS["bicg"]
    arguments = kernel.data({"N": 150, "M": 170}, np.random.default_rng(1))
    assert not blocks(kernel.program(target=SMALL, precise=True), *arguments)
    assert not blocks(kernel.program(target=Target("host", l1_bytes=128 * 1024, l2_bytes=1 << 20)), *arguments)


MENU = {
    "along": ("{n}[i] = A[i, j] * x[j]", lambda a, x, r: a @ x),
    "down": ("{n}[j] = A[i, j] * r[i]", lambda a, x, r: a.T @ r),
    "scaled sums": ("{n}[j] = sum[i](A[i, j] * x[j])", lambda a, x, r: a.sum(0) * x),
    "below": ("{n}[j] = sum[i](max(A[i, j], x[j]))", lambda a, x, r: np.maximum(a, x).sum(0)),
    "largest": ("{n}[j] = max[i](A[i, j])", lambda a, x, r: a.max(0)),
    "scaled": ("{n}[i, j] = A[i, j] * r[i]", lambda a, x, r: a * r[:, None]),
    "all": ("{n} = sum[i, j](A[i, j])", lambda a, x, r: a.sum()),
}
THEN = {
    "matrix": ("A[i, j] += 2 * x[j]", "a"),
    "rows": ("r[i] += A[i, j] * x[j]", "r"),
    "columns": ("x[j] += A[i, j] * r[i]", "x"),
    "none": ("", ""),
}


@settings(deadline=None, max_examples=1)
@given(
    steps=st.lists(st.tuples(st.sampled_from(list(MENU)), st.sampled_from(list(THEN))), min_size=1, max_size=4),
    rows=st.integers(40, 120) | st.integers(256, 300),
    dynamic=st.booleans(),
)
@example(
    steps=[("largest", "rows"), ("scaled sums", "rows"), ("scaled", "rows"), ("all", "none")], rows=256, dynamic=True
)  # both versions go past the caches, at the starts of rows of different loops
def test_any_order_of_readers_and_writers(steps: list[tuple[str, str]], rows: int, dynamic: bool) -> None:
    rng = np.random.default_rng(rows)
    a, x, r = rng.random((rows, 50)) / 8, rng.random(50) / 8, rng.random(rows) / 8
    lines, expected = [], []
    now = {"a": a.copy(), "x": x.copy(), "r": r.copy()}
    for k, (reader, writer) in enumerate(steps):
        lines.append(MENU[reader][0].format(n=f"v{k}"))
        expected.append(MENU[reader][1](**now))
        text, changed = THEN[writer]
        if changed:
            lines.append(text)
        if changed == "a":
            now["a"] = now["a"] + 2 * now["x"]
        elif changed == "r":
            now["r"] = now["r"] + now["a"] @ now["x"]
        elif changed == "x":
            now["x"] = now["x"] + now["a"].T @ now["r"]
    returned = ", ".join(["A", "x", "r", *(f"v{k}" for k in range(len(steps)))])
    body = "\n    ".join([*lines, f"return {returned}"])
    tiny = Target("host", l1_bytes=1024, l2_bytes=16384, cores=2)
    text = f'def f(A: f64["N M"], x: f64["M"], r: f64["N"]):\n    {body}\n'
    program = polyml.einsum(text, target=tiny, verify=True, dynamic=dynamic)
    for got, want in zip(program(a, x, r), (now["a"], now["x"], now["r"], *expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


PAIR = """
def pair(A: f64["N M"], x: f64["M"], r: f64["N"]):
    y[i] = A[i, j] * x[j]
    z[j] = A[i, j] * r[i]
    w[j] = sum[i](max(A[i, j], x[j]))
    return y, z, w
"""


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_any_size_takes_blocks_of_rows_where_they_pay(threads: int) -> None:
    """Around all conditions: bytes of the matrix, a few blocks for each part, rows and sums that fit in cache."""
    target = Target("host", l1_bytes=4096, l2_bytes=16 * 1024, cores=2)
    program = polyml.einsum(PAIR, target=target, dynamic=True, verify=True, threads=threads)
    rng = np.random.default_rng(0)
    shapes = [(0, 5), (1, 1), (3, 0), (17, 400), (255, 9), (256, 8), (256, 9), (257, 9), (383, 64), (384, 65)]
    shapes += [(401, 7), (389, 33), (300, 512), (300, 513), (300, 700), (2051, 2)]
    for n, m in shapes:
        a, x, r = rng.standard_normal((n, m)), rng.standard_normal(m), rng.standard_normal(n)
        y, z, w = program(a, x, r)
        np.testing.assert_allclose(y, a @ x, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(z, a.T @ r, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(w, np.maximum(a, x).sum(0), rtol=1e-9, atol=1e-9)
    (note,) = blocks(program, a, x, r)
    assert note == "blocks of 16 rows of A, each element loaded once for all sums; z, w: summed over 8 parts"
    assert len(program.kernels) == 3, "one for all sizes, and one for each shape without elements"


def test_any_size_has_blocks_for_large_matrices_only() -> None:
    """One of the two versions has parts of sums; which one runs is asked at each call."""
    program = polyml.einsum(PAIR, target=SMALL, dynamic=True)
    (function,) = program.lower(np.ones((3, 4)), np.ones(4), np.ones(3)).stages.functions
    (choice,) = function.body
    assert isinstance(choice, If)
    large, small = (
        {node.variable.name for node in walk_nodes(body) if isinstance(node, Allocate)}
        for body in (choice.then, choice.otherwise)
    )
    assert {"z_part", "w_part"} <= {name.rstrip("_0123456789") for name in large}
    assert not any(name.startswith(("z_part", "w_part")) for name in small)


@pytest.mark.parametrize("name", ["atax", "bicg", "mvt", "gemver"])
@pytest.mark.few(1)
def test_any_size_of_a_matrix_and_its_transpose(name: str) -> None:
    kernel = KERNELS[name]
    program = kernel.program(target=SMALL, verify=True, dynamic=True)
    for shape in ((300, 131), (517, 257), (5, 3)):
        sizes = {"M": shape[0], "N": shape[1]} if name == "atax" else {"N": shape[0], "M": shape[1]}
        arguments = kernel.data(sizes, np.random.default_rng(1))
        expected = kernel.reference(*(np.copy(a) for a in arguments))
        assert program.kernels or blocks(program, *arguments)
        result = program(*(np.copy(a) for a in arguments))
        for got, want in zip(result if isinstance(result, tuple) else (result,), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-11)


@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_into_elements_that_values_choose(dynamic: bool) -> None:
    """There is no part of such a sum: which elements it has is not known ahead."""
    source = """
def f(ids: i32["N"], A: f64["N M"]):
    t: f64["N M"]
    if j % 2 == 0:
        t[i, j] = 2 * A[i, j]
    else:
        t[i, j] = A[i, j]
    z: f64["M"] = 0
    z[ids[i]] += t[i, j]
    return z
"""
    rng = np.random.default_rng(0)
    ids, a = rng.integers(0, 40, 300).astype("i4"), rng.random((300, 40))
    expected = np.zeros(40)
    np.add.at(expected, ids, (a * np.where(np.arange(40) % 2, 1, 2)).sum(axis=1))
    np.testing.assert_allclose(polyml.einsum(source, target=SMALL, dynamic=dynamic)(ids, a), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_sums_over_an_index_that_nothing_is_read_by(n: int) -> None:
    source = 'def f(x: f32["N"]):\n    y: f32["N"]\n    y[i] = i + sum[k, r < N](x[k] + x[i // 2])\n    return y\n'
    x = np.arange(n, dtype="f4") - 1
    np.testing.assert_array_equal(polyml.einsum(source)(x), np.arange(n) + n * (x.sum() + n * x[np.arange(n) // 2]))
