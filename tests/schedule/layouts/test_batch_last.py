"""Small matrices of a batch, one for each lane: the same results, and where lanes have better to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.expressions import plain_indices
from polyml.schedule.layouts import batch_last
from polyml.scop.dependences import analyse
from polyml.source import Source
from tests.codegen.llvm.support import guarded
from tests.pairs import pairwise

Array = npt.NDArray[Any]

CHOLESKY = """
def f(a: {0}["B N N"]):
    L: {0}["B N N"] = 0
    for j in range(N):
        L[b, j, j] = sqrt(a[b, j, j] - sum[k < j](L[b, j, k] * L[b, j, k]))
        if i > j:
            L[b, i, j] = (a[b, i, j] - sum[k < j](L[b, i, k] * L[b, j, k])) / L[b, j, j]
    return L
"""
SOLVE = """
def f(a: {0}["B N N"], c: {0}["B N"]):
    m: {0}["B N N"]
    x: {0}["B N"]
    m[q, i, j] = a[q, i, j]
    x[q, i] = c[q, i]
    for k in range(N):
        l[q, i] = m[q, i, k] / m[q, k, k]
        if i > k:
            x[q, i] -= l[q, i] * x[q, k]
        if i > k and j > k:
            m[q, i, j] -= l[q, i] * m[q, k, j]
    for k in range(N - 1, -1, -1):
        x[q, k] = (x[q, k] - sum[j, j > k](m[q, k, j] * x[q, j])) / m[q, k, k]
    return x
"""
IN_PLACE = """
def f(m: {0}["N B N"], g: {0}["N"], s: {0}):
    for k in range(1, N):
        if i >= k:
            m[i, b, j] -= g[k] * m[k - 1, b, j] + s
"""
POWERS = """
def f(a: {0}["B N N"], t: int):
    x: {0}["B N"] = 1
    for k in range(t):
        y[b, i] = a[b, i, j] * x[b, j]
        s[b] = y[b, i] * y[b, i]
        x[b, i] = y[b, i] / sqrt(s[b])
    return x
"""


def matrices(batch: int, n: int, dtype: str) -> Array:
    """Positive definite, well conditioned."""
    x = np.random.default_rng(batch + n).standard_normal((batch, n, n))
    return (x @ x.transpose(0, 2, 1) + n * np.eye(n)).astype(polyml.dtypes.DTYPES[dtype].numpy)


def is_used(function: Any, *given: object) -> bool:
    return "_last" in str(function.explain(*given))


@pairwise(
    ("batch, n", [(16, 3), (37, 4), (65, 7), (130, 12), (33, 17), (500, 1), (1, 5), (0, 5)]),
    ("threads", [1, 2]),
    ("dtype", ["f32", "f64"]),
)
@pytest.mark.few(1)
def test_factors_and_solutions(batch: int, n: int, threads: int, dtype: str) -> None:
    a = matrices(batch, n, dtype)
    c = np.random.default_rng(0).standard_normal((batch, n)).astype(a.dtype)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == "f32" else {"rtol": 1e-10, "atol": 1e-10}
    exact = a.astype(np.float64)
    factor = polyml.einsum(CHOLESKY.format(dtype), threads=threads)
    np.testing.assert_allclose(factor(guarded(a) if a.size else a), np.linalg.cholesky(exact), **close)
    solve = polyml.einsum(SOLVE.format(dtype), threads=threads)
    np.testing.assert_allclose(solve(a, c), np.linalg.solve(exact, c[..., None])[..., 0], **close)
    if batch >= 33 and n in (4, 7, 12, 17):
        assert is_used(factor, a)
        assert is_used(solve, a, c)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "c64"])
@pytest.mark.few(1)
def test_against_the_interpreter(dtype: str) -> None:
    rng, kind = np.random.default_rng(0), polyml.dtypes.DTYPES[dtype].numpy
    for text in (IN_PLACE, POWERS):
        if text is POWERS and dtype in ("i32", "c64"):
            continue
        text = text.format(dtype)
        m, g = rng.integers(-2, 3, (6, 50, 6)).astype(kind), rng.integers(-2, 3, 6).astype(kind)
        views = (m, m[:, ::-1, :], m.transpose(0, 1, 2)[..., ::-1])
        for view in views[::2] if dtype == "f32" else views[1:2]:
            given: list[Any] = [view.copy(order="K"), g, kind.type(2)]
            if "t: int" in text:
                given = [np.ascontiguousarray(view.transpose(1, 0, 2)), 3]
                assert is_used(polyml.einsum(text), *given)  # however many steps there are
            expected = [x.copy() if isinstance(x, np.ndarray) else x for x in given]
            wanted = interpret(parse(Source(text)), *expected)
            found = polyml.einsum(text)(*given)
            if wanted is None:
                wanted, found = expected[0], given[0]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_strided_matrices() -> None:
    a = matrices(40, 6, "f32")
    wide = np.zeros((40, 12, 9), np.float32)
    view = wide[::-1, ::2, :6]
    view[...] = a
    factor = polyml.einsum(CHOLESKY.format("f32"))
    assert is_used(factor, view)
    np.testing.assert_allclose(factor(view), np.linalg.cholesky(a.astype(np.float64)), rtol=1e-4, atol=1e-4)
    assert np.array_equal(view, a)


@pytest.mark.parametrize(
    ("batch", "n"),
    [
        (3, 5),  # fewer matrices than lanes
        (40, 200),  # rows of many vectors
        (16, 128),
    ],
)
@pytest.mark.few(2)
def test_where_lanes_have_better_to_do(batch: int, n: int) -> None:
    a = matrices(batch, n, "f32")
    factor = polyml.einsum(CHOLESKY.format("f32"), threads=1)
    assert not is_used(factor, a)


@pytest.mark.parametrize(("n", "batch", "used"), [(20, 6, True), (20, 3, False), (34, 6, False)])
@pytest.mark.few(2)
def test_complex_numbers_count_as_two_where_they_are_used_again(n: int, batch: int, used: bool) -> None:
    text = """
    def f(x: c128["B N N"]):
        a[b, i, j] = x[b, i, j]
        for k in range(N):
            if i > k:
                a[b, i, k] = a[b, i, k] / a[b, k, k]
            if i > k and j > k:
                a[b, i, j] = a[b, i, j] - a[b, i, k]*a[b, k, j]
        return a
    """
    a = matrices(batch, n, "f64") * (1 + 0.5j)
    # A target of its own: lanes are those of its vectors.
    factor = polyml.einsum(text, target=polyml.Target("x86-64-v3"), threads=1)
    assert is_used(factor, a) == used
    found = polyml.einsum(text)(a)
    lower, upper = np.tril(found, -1) + np.eye(n), np.triu(found)
    np.testing.assert_allclose(lower @ upper, a, rtol=1e-10, atol=1e-10)


def test_matrices_that_meet_stay() -> None:
    """A step that reads other matrices of the batch, or adds them up."""
    a, few = matrices(64, 6, "f32"), matrices(16, 5, "f32")
    for step in ("x[b, i] = a[b, i, j] * x[B - 1 - b, j]", "x[b, i] = sum[c, j](a[c, i, j] * x[b, j]) / 1000"):
        text = f'def f(a: f32["B N N"]):\n    x: f32["B N"] = 1\n    for k in range(3):\n        {step}\n    return x\n'
        function = polyml.einsum(text, threads=1)
        assert not is_used(function, a)
        assert not is_used(function, few)
        np.testing.assert_allclose(function(few), interpret(parse(Source(text)), few), rtol=1e-4)


FACTORS_IN_LOOPS = """
def f(a: {0}["B N N"]):
    L: {0}["B N N"] = 0
    for b in range(B):
        for j in range(N):
            L[b, j, j] = sqrt(a[b, j, j] - sum[k, k < j](L[b, j, k] * L[b, j, k]))
            for i in range(j + 1, N):
                L[b, i, j] = (a[b, i, j] - sum[k, k < j](L[b, i, k] * L[b, j, k])) / L[b, j, j]
    return L
"""
LU_IN_LOOPS = """
def f(a: {0}["B N N"]):
    for b in range(B):
        for k in range(N):
            for i in range(k + 1, N):
                a[b, i, k] /= a[b, k, k]
                for j in range(k + 1, N):
                    a[b, i, j] -= a[b, i, k] * a[b, k, j]
    return a
"""


@pairwise(
    ("batch, n", [(16, 3), (37, 4), (65, 7), (33, 17), (40, 24), (500, 1), (1, 5), (0, 5)]),
    ("threads", [1, 2]),
    ("dtype", ["f32", "f64"]),
)
@pytest.mark.few(1)
def test_batches_that_are_loops(batch: int, n: int, threads: int, dtype: str) -> None:
    a = matrices(batch, n, dtype)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == "f32" else {"rtol": 1e-10, "atol": 1e-10}
    exact = a.astype(np.float64)
    factor = polyml.einsum(FACTORS_IN_LOOPS.format(dtype), threads=threads)
    np.testing.assert_allclose(factor(guarded(a) if a.size else a), np.linalg.cholesky(exact), **close)
    lu = polyml.einsum(LU_IN_LOOPS.format(dtype), threads=threads)
    found = lu(a.copy()).astype(np.float64)
    lower, upper = np.tril(found, -1) + np.eye(n), np.triu(found)
    np.testing.assert_allclose(lower @ upper, exact, rtol=1e-4, atol=1e-3 if dtype == "f32" else 1e-10)
    if batch >= 33 and n in (4, 7, 17):
        assert is_used(factor, a)
        assert is_used(lu, a)


def test_strided_batches_that_are_loops() -> None:
    a = matrices(40, 6, "f64")
    view = np.zeros((40, 12, 9))[::-1, ::2, :6]
    view[...] = a
    found = polyml.einsum(LU_IN_LOOPS.format("f64"), verify=True)(view)
    np.testing.assert_allclose((np.tril(found, -1) + np.eye(6)) @ np.triu(found), a, rtol=1e-10)


@pytest.mark.parametrize(
    "step",
    [
        "for i in range(3):\n            for j in range(90):\n                x[b, i, j] = 2 * x[b, i, j]",  # nothing has an order
        "for i in range(1, 3):\n            for j in range(90):\n                x[b, i, j] = x[b, i - 1, j] + 1",  # whole vectors along rows
    ],
)
def test_loops_that_have_lanes_of_their_own(step: str) -> None:
    text = f'def f(x: f32["B 3 90"]):\n    for b in range(B):\n        {step}\n    return x\n'
    x = np.random.default_rng(0).random((20, 3, 90), np.float32)
    assert not is_used(polyml.einsum(text, threads=1), x)
    np.testing.assert_allclose(polyml.einsum(text)(x.copy()), interpret(parse(Source(text)), x.copy()), rtol=1e-6)


def test_rows_of_several_lines_with_short_vectors() -> None:
    """Six vectors of AVX2, three lines; as many vectors as AVX-512 has in four lines are too many of its own."""
    for name, used in (("x86-64-v3", {24: True, 32: True, 40: False}), ("x86-64-v4", {24: True, 40: False})):
        target = polyml.Target(name, l2_bytes=1 << 20)
        for n, expected in used.items():
            for text in (CHOLESKY, FACTORS_IN_LOOPS)[: 2 if n == 24 else 1]:
                program = polyml.einsum(text.format("f64"), target=target, threads=1)
                assert is_used(program, matrices(64, n, "f64")) == expected


def test_subscripts_are_read_once_for_all_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of indices that may be the batch."""
    asked: list[int] = []

    def counted(subscripts: Any) -> list[str | None]:
        asked.append(1)
        return plain_indices(subscripts)

    monkeypatch.setattr(batch_last, "plain_indices", counted)
    program = polyml.einsum(POWERS.format("f32"))
    assert isinstance(program, polyml.Einsum)
    scops = [region.scop for region in program.lower(np.zeros((3, 4, 4), np.float32), 3).stages.regions]
    asked.clear()
    for scop in scops:
        batch_last.lay_batches_last(scop, analyse(scop), polyml.Target("x86-64-v3"))
    assert len(asked) <= sum(len(s.accesses) for scop in scops for s in scop.statements.values())


SORTED = """
def f(x: {0}["B N"]):
    y: {0}["B N"]
    y[b, j] = x[b, j]
    for i in range(N - 1):
        for j in range(N - 1 - i):
            s[b] = min(y[b, j], y[b, j + 1])
            t[b] = max(y[b, j], y[b, j + 1])
            y[b, j] = s[b]
            y[b, j + 1] = t[b]
    return y
"""
SWEEPS = """
def f(u: {0}["B N"]):
    for t in range(3):
        for i in range(1, N - 1):
            u[b, i] = u[b, i - 1] + 2 * u[b, i + 1] - u[b, i]
    return u
"""


@pairwise(
    ("batch, n", [(16, 3), (37, 4), (65, 8), (33, 17), (500, 2), (1, 5), (0, 5)]),
    ("threads", [1, 2]),
    ("dtype", ["f32", "f64", "i32", "u8"]),
)
@pytest.mark.few(1)
def test_rows_that_loops_go_through_several_times(batch: int, n: int, threads: int, dtype: str) -> None:
    """Each row is a lane's, which has its elements beside those of the other lanes: as they lie, each was gathered and scattered in each step."""
    x = np.random.default_rng(n).integers(0, 99, (batch, n)).astype(polyml.dtypes.DTYPES[dtype].numpy)
    ordered = polyml.einsum(SORTED.format(dtype), threads=threads)
    np.testing.assert_array_equal(ordered(x), np.sort(x, axis=1))
    np.testing.assert_array_equal(ordered(x[::-1, ::-1]), np.sort(x, axis=1)[::-1])
    sweeps = polyml.einsum(SWEEPS.format(dtype), threads=threads)
    np.testing.assert_array_equal(sweeps(x.copy()), interpret(parse(Source(SWEEPS.format(dtype))), x.copy()))
    if batch >= max(33, polyml.Target().lanes(x.itemsize)) and n > 2:
        assert is_used(ordered, x)
        assert is_used(sweeps, x)


def test_rows_that_one_loop_goes_through_stay() -> None:
    """They are transposed in blocks on the way (codegen/passes/transposes/transposes.py)."""
    text = 'def f(u: f32["B N"]):\n    for i in range(1, N):\n        u[b, i] += 0.5 * u[b, i - 1]\n    return u\n'
    assert not is_used(polyml.einsum(text, threads=1), np.ones((64, 24), np.float32))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (
            'def f(x: f32["A B C"]):\n    y: f32["A B C"]\n    y[a, b, c] = sum[j <= a](x[j, b, c])\n    return y\n',
            [(9, 33, 7)],
        ),
        (
            'def f(x: f32["B A C"]):\n    y: f32["B A C"]\n    y[b, a, c] = sum[j <= a](x[b, j, c])\n    return y\n',
            [(33, 9, 3)],
        ),
        (
            'def f(x: f32["A B C"], g: f32["B C"]):\n    h: f32["B C"] = 0\n    for t in range(A):\n        h[b, c] = h[b, c] * g[b, c] + x[t, b, c]\n    return h\n',
            [(9, 33, 8), (33, 8)],
        ),
    ],
)
def test_scans_that_use_each_element_once_go_along_short_rows(text: str, shapes: list[tuple[int, ...]]) -> None:
    given = [np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32) for shape in shapes]
    program = polyml.einsum(text, verify=True)
    assert not is_used(program, *given)
    np.testing.assert_array_equal(program(*given), interpret(parse(Source(text)), *given))
