"""Time tiling: small stencils under tiny caches and odd tile sizes, against the interpreter; what must not be tiled; the model's sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

import polyml as pm
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.schedule.strategy.sequential import time_tiles
from polyml.source import Source
from polyml.testing import assert_close
from tests.schedule.seen import schedule_of
from tests.schedule.stencils import FIELD_STEP

SMALL = pm.Target(l2_bytes=64)
"""Nothing stays in its caches."""

Arguments = tuple[object, ...]


@cache
def interpreted(text: str, make: Callable[[], Arguments]) -> object:
    """What the reference interpreter makes of the arguments; once for all numbers of threads."""
    return interpret(parse(Source(text)), *make())


def grids(*shape: int, count: int = 2, dtype: type = np.float64) -> list[NDArray[np.floating]]:
    rng = np.random.default_rng(7)
    return [rng.random(shape).astype(dtype) for _ in range(count)]


def unread(*shape: int, count: int = 2) -> list[NDArray[np.floating]]:
    """For code that is looked at only."""
    return [np.empty(shape) for _ in range(count)]


JACOBI_1D = """
def f(T: int, A: f64["N"], B: f64["N"]):
    for t in range(T):
        if 1 <= i < N - 1:
            B[i] = 0.3 * (A[i - 1] + A[i] + A[i + 1])
            A[i] = 0.4 * (B[i - 1] + B[i] + B[i + 1])
    return A, B
"""
WIDE_1D = """
def f(T: int, A: f64["N"], B: f64["N"]):
    for t in range(T):
        if 2 <= i < N - 2:
            B[i] = A[i - 2] + 0.5 * A[i + 2] - A[i]
        A[0] = B[3]
        if 1 <= i < N - 1:
            A[i] = 0.25 * B[i]
    return A
"""
HISTORY_1D = """
def f(a: f64["T N"]):
    for t in range(1, T):
        if 1 <= i < N - 1:
            a[t, i] = (a[t - 1, i - 1] + a[t - 1, i] + a[t - 1, i + 1]) / 3
    return a
"""
JACOBI_2D = """
def f(T: int, A: f32["N M"], B: f32["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            B[i, j] = 0.2 * (A[i, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j])
            A[i, j] = 0.2 * (B[i, j] + B[i, j - 1] + B[i, j + 1] + B[i + 1, j] + B[i - 1, j])
    return A, B
"""
WAVE_2D = """
def f(T: int, u: f64["N M"], c: f64["N M"], p: f64["T"]):
    old: f64["N M"] = 0
    new: f64["N M"] = 0
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            new[i, j] = 2 * u[i, j] - old[i, j] + c[i, j] * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j])
        new[0, j] = p[t]
        new[i, 0] = new[i, 1]
        old[i, j] = u[i, j]
        u[i, j] = new[i, j]
    return u, old
"""
FDTD = f"""
def f(ex: f64["N M"], ey: f64["N M"], hz: f64["N M"], source: f64["T"]):
    for t in range(T):
        ey[0, j] = source[t]
{FIELD_STEP}    return ex, ey, hz
"""
SEIDEL = """
def f(T: int, A: f64["N N"]):
    for t in range(T):
        for i in range(1, N - 1):
            for j in range(1, N - 1):
                A[i, j] = (A[i - 1, j - 1] + A[i - 1, j] + A[i - 1, j + 1] + A[i, j - 1] + A[i, j] + A[i, j + 1] + A[i + 1, j]) / 7
    return A
"""
HEAT_3D = """
def f(T: int, A: f64["N N N"], B: f64["N N N"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < N - 1 and 1 <= k < N - 1:
            B[i, j, k] = A[i, j, k] + 0.1 * (A[i + 1, j, k] + A[i - 1, j, k] + A[i, j + 1, k] + A[i, j - 1, k] + A[i, j, k + 1] + A[i, j, k - 1])
            A[i, j, k] = 0.6 * B[i, j, k]
    return A, B
"""
IN_PLACE = """
def f(a: f32["N M"]):
    for t in range(9):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            a[i, j] = 0.2 * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
    return a
"""
SIXTH_ORDER = """
def f(T: int, A: f64["N M"], B: f64["N M"]):
    for t in range(T):
        if 3 <= i < N - 3 and 3 <= j < M - 3:
            B[i, j] = 0.1 * (A[i, j - 3] + A[i, j + 3] + A[i + 3, j] + A[i - 3, j])
            A[i, j] = 0.1 * (B[i, j - 3] + B[i, j + 3] + B[i + 3, j] + B[i - 3, j])
    return A, B
"""
HANDED_ON = """
def f(T: int, u: f64["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            a[i, j] = u[i, j] - u[i - 1, j]
            b[i, j] = u[i + 1, j] - u[i, j]
            c[i, j] = u[i, j] * u[i, j - 1]
            d[i, j] = max(a[i, j], c[i, j]) - b[i, j] * u[i, j + 1]
            u[i, j] += 0.1 * d[i, j] * (1 - a[i, j])
    return u
"""
COMPONENTS = """
def f(T: int, q: f64["3 N"]):
    for t in range(T):
        if 1 <= i < N - 1:
            s[k, i] = 0.5 * (q[k, i + 1] - q[k, i - 1])
            p[i] = q[0, i] * s[1, i] - s[2, i] * s[0, i]
            q[k, i] += 0.1 * p[i] * s[k, i]
    return q
"""
SAVED_ROWS = """
def f(T: int, u: f64["N"], v: f64["N"]):
    for t in range(1, T):
        if 3 <= i < N - 2:
            u[i] += 0.3 * v[i - 1]
            u[i] = 0.5 * u[i - 1]
    return u
"""

STENCILS: dict[str, tuple[str, Callable[[], Arguments], tuple[int, ...]]] = {
    "jacobi-1d": (JACOBI_1D, lambda: (9, *grids(30)), (3, 7)),
    "wide-1d": (WIDE_1D, lambda: (7, *grids(29)), (2, 11)),
    "history-1d": (HISTORY_1D, lambda: tuple(grids(8, 31, count=1)), (3, 5)),
    "jacobi-2d": (JACOBI_2D, lambda: (6, *grids(13, 39, dtype=np.float32)), (2, 5, 20)),
    "wave-2d": (WAVE_2D, lambda: (5, *grids(9, 12), np.arange(5.0)), (2, 3, 9)),
    "fdtd": (FDTD, lambda: (*grids(9, 13, count=3), np.arange(6.0)), (4, 3, 5)),
    "seidel": (SEIDEL, lambda: (6, *grids(12, 12, count=1)), (3, 4, 6)),
    "in place": (IN_PLACE, lambda: tuple(grids(13, 39, count=1, dtype=np.float32)), (2, 5, 20)),
    "sixth order": (SIXTH_ORDER, lambda: (5, *grids(17, 23)), (2, 4, 9)),
    "heat-3d": (HEAT_3D, lambda: (5, *grids(7, 7, 7)), (2, 3, 2)),
    "handed on": (HANDED_ON, lambda: (6, *grids(12, 19, count=1)), (3, 4, 8)),
    "saved rows": (SAVED_ROWS, lambda: (9, *grids(37)), (7, 3)),
    "components": (COMPONENTS, lambda: (7, *grids(3, 31, count=1)), (3, 2, 8)),
}


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        *((name, 1) for name in STENCILS),
        ("jacobi-1d", 3),
        ("saved rows", 2),
        ("fdtd", 2),
        ("seidel", 8),
        ("heat-3d", 2),
    ],
)
@pytest.mark.few(2)
def test_tiles_change_nothing(name: str, threads: int) -> None:
    text, make, sizes = STENCILS[name]
    arguments = make()
    expected = interpreted(text, make)
    made = pm.einsum(text, target=SMALL, tile_sizes=sizes, threads=threads, verify=True)
    lowered = made.lower(*arguments)
    assert "time tiles: t" in lowered.explain()
    assert "fallback" not in lowered.explain()
    assert ("pipelined for" in lowered.text("loops")) == (threads > 1)
    found = lowered.compile()(*arguments)
    for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
        assert_close(got, want, reduction_length=50)


ADVECTION = """
def f(T: int, a: f64["N M"], b: f64["N M"]):
    for t in range(T):
        if i >= 1 and j >= 2:
            b[i, j] = a[i, j] + 0.25 * (a[i - 1, j] - a[i, j - 2])
        if i < N - 1 and j < M - 1:
            a[i, j] = 0.5 * (b[i, j] + b[i + 1, j + 1])
    return a, b
"""
STRIPS: dict[str, tuple[str, Callable[[], Arguments]]] = {
    "jacobi": (JACOBI_2D.replace("f32", "f64"), lambda: (6, *grids(7, 141))),
    "in place": (IN_PLACE.replace("f32", "f64"), lambda: tuple(grids(7, 141, count=1))),
    "wave": (WAVE_2D, lambda: (5, *grids(7, 130), np.arange(5.0))),
    "fdtd": (FDTD, lambda: (*grids(7, 140, count=3), np.arange(6.0))),
    "advection": (ADVECTION, lambda: (5, *grids(7, 143))),
}


@pytest.mark.parametrize("name", STRIPS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_strips_move_by_vectors(name: str, threads: int) -> None:
    text, make = STRIPS[name]
    arguments = make()
    expected = interpreted(text, make)
    made = pm.einsum(text, target=SMALL, tile_sizes=(3, 4, 64), threads=threads, verify=True)
    lowered = made.lower(*arguments)
    assert "fallback" not in lowered.explain()
    (band,) = re.findall(r"band\[.*64\*.*", lowered.text("schedule"))
    lanes = SMALL.lanes(8)
    skews = [int(c) for c in re.findall(r"j \+ (\d+)\*t", band)]
    shifts = [int(c) for c in re.findall(r"[+-] (\d+)\)//64", band)]
    assert skews
    assert all(c % lanes == 0 for c in skews)
    assert len({c % lanes for c in (0, *shifts)}) <= 2, "all strips begin at one place of a line"
    found = lowered.compile()(*arguments)
    for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
        assert_close(got, want, reduction_length=50)


MATMULS = """
def f(T: int, A: f64["N N"], B: f64["N N"]):
    for t in range(T):
        B[i, j] = A[i, k] * A[k, j]
        A[i, j] = B[i, j] / 2
    return A
"""
LU = """
def f(A: f64["N N"]):
    for k in range(N):
        if i > k:
            A[i, k] /= A[k, k]
        if i > k and j > k:
            A[i, j] -= A[i, k] * A[k, j]
    return A
"""


@pytest.mark.parametrize(("text", "arguments"), [(MATMULS, (6, *grids(40, 40))), (LU, tuple(grids(40, 40, count=1)))])
def test_only_short_dependences_are_tiled(text: str, arguments: Arguments) -> None:
    lowered = pm.einsum(text, target=pm.Target(l2_bytes=64), tile_sizes=(2, 8, 8), threads=1).lower(*arguments)
    assert "time tiles" not in lowered.explain()


def tiles_of(program: pm.Einsum, *arguments: object) -> str:
    """What is said of tiles."""
    return "; ".join(n.text for n in schedule_of(program, *arguments).notes if "time tiles" in n.text)


def sizes_of(text: str, *arguments: object, **fields: int) -> str:
    """The same, for a target with these fields."""
    named = {"l1_bytes": 48 * 1024, "l2_bytes": 2048 * 1024, **fields}
    return tiles_of(pm.einsum(text, target=pm.Target("x86-64-v4", **named), threads=1), *arguments)


def test_sizes_follow_from_the_caches() -> None:
    large = (100, *unread(1300, 1300))
    double = JACOBI_2D.replace("f32", "f64")
    assert sizes_of(double, *large) == "time tiles: t by 48, i by 16, j by 128"
    assert sizes_of(double, *large, l1_bytes=96 * 1024) == "time tiles: t by 96, i by 32, j by 128"
    assert sizes_of(FDTD, *unread(1000, 1200, count=3), np.zeros(60), l1_bytes=32 * 1024).endswith("i by 8, j by 128")
    # Shorter vectors: strips of as many lines, not of as many vectors, where eight rows leave room for them.
    narrow = {"vector_bytes": 32, "l1_bytes": 32 * 1024}
    assert sizes_of(double, *large, **narrow) == "time tiles: t by 24, i by 8, j by 128"
    assert sizes_of(double, 100, *unread(600, 140), **narrow).endswith("i by 8, j by 128")
    assert sizes_of(FDTD, *unread(1000, 1200, count=3), np.zeros(60), **narrow).endswith("i by 8, j by 104")
    assert sizes_of(double, 100, *unread(70, 70)) == ""  # it stays in L1 from step to step
    assert sizes_of(HEAT_3D, 100, *unread(120, 120, 120)).endswith(
        "t by 16, j by 32, i by 4"
    )  # the rows that are jammed
    caches = {"l1_bytes": 32 * 1024, "l2_bytes": 1024 * 1024}
    assert sizes_of(HEAT_3D, 100, *unread(200, 200, 200), **caches).endswith("j by 20, i by 4")  # in a quarter of L2
    assert sizes_of(HEAT_3D, 100, *unread(200, 200, 200), **{**caches, "l2_bytes": 256 * 1024}) == ""
    caches["l2_bytes"] = 512 * 1024
    assert sizes_of(SEIDEL.replace("f32", "f64"), 100, *unread(2000, 2000, count=1), **caches).endswith("i by 8")
    assert sizes_of(SEIDEL.replace("f32", "f64"), 100, *unread(2400, 2400, count=1), **caches) == ""
    assert sizes_of(SIXTH_ORDER, *large) == "time tiles: t by 16, i by 16, j by 128"
    in_place = IN_PLACE.replace("range(9)", "range(100)").replace("f32", "f64")  # to a second place and back
    assert sizes_of(in_place, large[1]) == "time tiles: t_pair by 50, i by 16, j by 128"  # all 50 pairs
    assert sizes_of(double, 3, *large[1:]) != ""  # an integer that is not known
    history = HISTORY_1D.replace('f64["T N"]', 'f64["3 N"]').replace("range(1, T)", "range(1, 3)")
    assert sizes_of(history, *unread(3, 1_000_000, count=1)) == ""  # too few steps


def test_what_an_iteration_hands_on_is_not_parted() -> None:
    """Where differences to both sides are used at once, in place, rows are skewed by two, and no statement of a loop begins later than another."""
    lowered = pm.einsum(HANDED_ON, target=pm.Target("x86-64-v3"), threads=1).lower(100, *unread(300, 320, count=1))
    assert "time tiles: t" in lowered.explain()
    assert not re.search(r"if \(.*[ij] ", lowered.text("loops").split("t_tile", 1)[1])
    assert "register f64x4 b;" in lowered.text("loops")


def test_components_are_not_cut() -> None:
    caches = {"l1_bytes": 32 * 1024, "l2_bytes": 512 * 1024, "vector_bytes": 32}
    assert sizes_of(COMPONENTS, 100, *unread(3, 10_000, count=1), **caches) == "time tiles: t by 48, i by 390"


def test_threads_get_as_many_steps_each() -> None:
    def steps(threads: int, count: int, *, known: bool = False) -> str:
        text = JACOBI_2D.replace("f32", "f64")
        if known:
            text = text.replace("T: int, ", "").replace("range(T)", f"range({count})")
        target = pm.Target("x86-64-v4", l1_bytes=32 * 1024, l2_bytes=1024 * 1024)
        arguments = unread(1300, 1300) if known else [count, *unread(1300, 1300)]
        said = tiles_of(pm.einsum(text, target=target, threads=threads), *arguments)
        return re.findall(r"time tiles: t by (\d+)", said)[0]

    assert steps(1, 20) == steps(1, 500) == "24"  # other calls may have more
    assert (steps(2, 500), steps(2, 5)) == ("23", "8")
    assert (steps(2, 20, known=True), steps(1, 100, known=True)) == ("10", "25")


def test_rows_that_share_elements_run_side_by_side() -> None:
    named = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)

    def jams(target: pm.Target, size: int) -> tuple[int, int]:
        program = pm.einsum(JACOBI_2D.replace("f32", "f64"), target=target, threads=1)
        tree = str(schedule_of(program, 100, *unread(size, size)).tree)
        return tree.count("jam:4"), tree.count("jam:2")

    few = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2048 * 1024, vector_registers=16)
    assert jams(named, 1300) == (2, 0)
    assert jams(few, 1300) == (0, 2)
    # Vectors shorter than lines are not shifted out of each other: what one row reads alone is an operand in memory.
    assert jams(pm.Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024), 1300) == (2, 0)
    assert jams(named, 70) == (0, 0)  # no tiles


def test_rows_of_windows_that_are_added_up_take_a_register_each() -> None:
    """Three rows of windows are sums that several rows of results have; terms of their own weights are as many vectors."""
    target = pm.Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024)
    places = [(p, q) for p in (-1, 0, 1) for q in (-1, 0, 1)]

    def step(to: str, of: str, *, weighed: bool) -> str:
        terms = [f"{of}[i + {p}, j + {q}]".replace("+ -", "- ") for p, q in places]
        if weighed:
            return f"{to}[i, j] = " + " + ".join(f"0.0{k + 1} * {term}" for k, term in enumerate(terms))
        return f"{to}[i, j] = 0.11 * ({' + '.join(terms)})"

    def jams(*, weighed: bool, precise: bool = False) -> tuple[int, int]:
        text = f"""
def f(T: int, a: f64["N M"], b: f64["N M"]):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            {step("b", "a", weighed=weighed)}
            {step("a", "b", weighed=weighed)}
    return a
"""
        program = pm.einsum(text, target=target, threads=1, precise=precise)
        tree = str(schedule_of(program, 100, *unread(1300, 1300)).tree)
        return tree.count("jam:4"), tree.count("jam:2")

    assert jams(weighed=False) == (2, 0)
    assert jams(weighed=False, precise=True) == jams(weighed=True) == (0, 2)


def test_short_rows_run_side_by_side() -> None:
    """Rows that share nothing, where they are strips of a tile: the end of a row's loop costs as much as some of its vectors."""
    text = """
def f(a: f64["N M"], b: f64["N M"]):
    for t in range(100):
        if j >= 1:
            a[i, j] -= 0.5 * (b[i, j] - b[i, j - 1])
        if i < N - 1:
            b[i, j] -= 0.5 * (a[i + 1, j] - a[i, j])
    return a, b
"""

    def jammed(rows: int, columns: int, registers: int = 32) -> list[str]:
        target = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2048 * 1024, vector_registers=registers)
        notes = schedule_of(pm.einsum(text, target=target, threads=1), *grids(rows, columns)).notes
        return [n.subject[:3] for n in notes if "jam i by 4; lanes along j" in n.text]

    assert jammed(1000, 1200) == ["S_a", "S_b"]
    assert jammed(1000, 1200, 12) == [], "four rows need more registers"
    assert jammed(40, 100) == [], "no tiles"


@pytest.mark.parametrize("steps", ["range(T)", "range(1, T, 3)"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(1)
def test_tiles_of_a_long_row(steps: str, dynamic: bool) -> None:
    """Of a wavefront over them isl would make no code in any time, of whatever target: that this ends is tested, too."""
    text = f"""
def f(a: f64["N"], b: f64["N"], T: int):
    for t in {steps}:
        if 0 < i < N - 1:
            b[i] = (a[i - 1] + a[i] + a[i + 1]) / 3
        if 0 < i < N - 1:
            a[i] = (b[i - 1] + b[i] + b[i + 1]) / 3
    return a, b
"""
    target = pm.Target("host", l1_bytes=32 * 1024, l2_bytes=1024 * 1024, cores=3)
    function = pm.einsum(text, target=target, threads=3, dynamic=dynamic)
    rng = np.random.default_rng(0)
    written = pm.einsum(text, scheduler="written", parallel=False, dynamic=True)
    for n in (20_000, 20_001) if dynamic else (20_001,):
        a, b = rng.random(n), rng.random(n)
        if not function.kernels:
            (region,) = function.lower(a, b, 50).stages.regions
            assert any(note.text.startswith("time tiles") for note in region.notes)
            assert not any(note.stage == "fallback" for note in region.notes)
        expected = [x.copy() for x in (a, b)]
        written(*expected, 50)
        function(a, b, 50)
        np.testing.assert_allclose(a, expected[0], rtol=1e-12)
        np.testing.assert_allclose(b, expected[1], rtol=1e-12)


@pytest.mark.parametrize(("side", "looked"), [(4, False), (5, True)])
def test_bands_are_looked_for_where_a_block_is_less_than_all(
    monkeypatch: pytest.MonkeyPatch, side: int, looked: bool
) -> None:
    """Along many short indices the search takes long, and a block has no fewer than four rows."""
    asked: list[object] = []
    monkeypatch.setattr(time_tiles, "skewed_band", lambda *given: asked.append(given) or ())
    pm.einsum(JACOBI_2D, target=SMALL, threads=1).lower(9, *grids(side + 2, side + 2, dtype=np.float32))
    assert bool(asked) == looked
