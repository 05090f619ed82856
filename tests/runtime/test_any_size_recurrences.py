"""Recurrences of any size: rows of scratch memory per lane, carries, blocks and tiles in versions of their own; right at every size around their conditions."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from polyml.codegen.loops import Allocate, Assign, For, Prefetch
from polyml.codegen.rewrite import walk_nodes
from polyml.target import Target

SMALL = Target("host", l1_bytes=2 << 10, l2_bytes=16 << 10, cores=1)
"""This machine, with caches that small tests outgrow."""

BOTH_WAYS = """
def both(x: f64["N M"]):
    y: f64["N M"]
    z: f64["N M"]
    y[i, 0] = x[i, 0]
    for j in range(1, M):
        y[i, j] = x[i, j] / (1 + y[i, j - 1] * y[i, j - 1])
    z[i, M - 1] = x[i, M - 1]
    for j in range(M - 2, -1, -1):
        z[i, j] = x[i, j] / (2 + z[i, j + 1] * z[i, j + 1])
    r[i, j] = y[i, j] + z[i, j]
    return r
"""

DOWN = """
def down(x: f64["N M"]):
    y: f64["N M"]
    z: f64["N M"]
    y[0, j] = x[0, j]
    for i in range(1, N):
        y[i, j] = x[i, j] / (1 + y[i - 1, j] * y[i - 1, j])
    z[N - 1, j] = x[N - 1, j]
    for i in range(N - 2, -1, -1):
        z[i, j] = x[i, j] / (2 + z[i + 1, j] * z[i + 1, j])
    r[i, j] = y[i, j] + z[i, j]
    return r
"""


def filtered(x: np.ndarray) -> np.ndarray:
    y, z = x.copy(), x.copy()
    for j in range(1, x.shape[1]):
        y[:, j] /= 1 + y[:, j - 1] ** 2
    for j in range(x.shape[1] - 2, -1, -1):
        z[:, j] /= 2 + z[:, j + 1] ** 2
    return y + z


@pytest.mark.parametrize("text", [BOTH_WAYS, DOWN], ids=["rows", "columns"])
@pytest.mark.parametrize("target", [Target("host"), SMALL], ids=["host", "small caches"])
@pytest.mark.few(1)
def test_filters_of_any_size(text: str, target: Target) -> None:
    program = polyml.einsum(text, dynamic=True, target=target, verify=True)
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 70):
        for m in (1, 2, 3, 8, 9, 16, 40, 63, 64, 65, 130):
            x = rng.standard_normal((n, m))
            expected = filtered(x) if text == BOTH_WAYS else filtered(x.T).T
            np.testing.assert_allclose(program(x), expected, rtol=1e-12, atol=1e-12, err_msg=f"{n} x {m}")
    assert len(program.kernels) == 1


def test_rows_of_symbolic_length_live_in_lanes() -> None:
    program = polyml.einsum(BOTH_WAYS, dynamic=True)
    (region,) = [r for r in program.lower(np.ones((9, 9))).stages.regions if "y" in r.scop.arrays]
    local = [
        n.variable for n in walk_nodes(region.loops.body) if isinstance(n, Allocate) and n.variable.scope == "local"
    ]
    lanes = {v.name for v in local if v.lanes > 1 and not all(e.is_constant for e in v.shape)}
    assert {"y", "z"} & {name[0] for name in lanes}
    # The backward filter's values are added up in registers: nothing but its first ones are written.
    assert any(isinstance(n, For) and n.kind == "transpose" for n in walk_nodes(region.loops.body))


def test_rooms_are_shared_and_belong_to_a_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Two vectors at once have y each (z stays in registers); what is left of the rows takes their room, the version for longer rows has one vector, and asks for memory only where it runs.
    Either is there twice: results larger than L2 go past the caches."""
    program = polyml.einsum(BOTH_WAYS, dynamic=True, target=Target("x86-64-v4"), threads=1)
    program.lower(np.ones((9, 9))).show("llvm")
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if "ptr @polyml_scratch(i64" in line and "declare" not in line]
    assert len(lines) == 2 * (2 + 1), lines
    sizes = {line.partition("@polyml_scratch(i64 ")[2].partition(")")[0] for line in lines}
    chosen = [
        line
        for line in text.splitlines()
        if "= select i1" in line and ", i64 " in line and line.split(" =")[0].strip() in sizes
    ]
    assert len(chosen) == len(sizes)


def test_blocks_of_rows_begin_at_lines() -> None:
    """Going backwards from M - 2 the first strip is shorter, so that the blocks that are written are whole lines where rows are."""
    program = polyml.einsum(BOTH_WAYS, dynamic=True, target=Target("x86-64-v4"))
    assert any(n.kind == "transpose" and "max(" in str(n.lower) for n in _loops(program))


def _loops(program: polyml.Einsum) -> list[For]:
    regions = program.lower(np.ones((9, 9))).stages.regions
    return [n for r in regions for n in walk_nodes(r.loops.body) if isinstance(n, For)]


def test_columns_are_fetched_and_streamed() -> None:
    program = polyml.einsum(DOWN, dynamic=True, target=Target("x86-64-v4"))
    nodes = [n for r in program.lower(np.ones((9, 9))).stages.regions for n in walk_nodes(r.loops.body)]
    assert any(isinstance(n, Prefetch) for n in nodes)
    assert any(isinstance(n, Assign) and n.streaming and n.aligned for n in nodes)


SHAPES = [(2, 2), (2, 3), (3, 2), (5, 40), (40, 5), (64, 67), (130, 72), (72, 130)]


@pytest.mark.parametrize("first", [(2, 2), pytest.param((40, 5), marks=pytest.mark.slow), (72, 130)])
@pytest.mark.few(1)
def test_deriche(first: tuple[int, int]) -> None:
    """Whichever size asks for the kernel."""
    kernel = KERNELS["deriche"]
    program = polyml.einsum(kernel.text, dynamic=True, target=SMALL)
    for shape in (first, *SHAPES):
        alpha, image = kernel.data(dict(zip("WH", shape, strict=True)), np.random.default_rng(0))
        np.testing.assert_allclose(program(alpha, image), kernel.reference(alpha, image)[0], rtol=1e-10)
    assert len(program.kernels) == 1


@pytest.mark.parametrize("first", [3, 40])
@pytest.mark.slow
def test_adi(first: int) -> None:
    """Whichever size asks for the kernel."""
    kernel = KERNELS["adi"]
    program = polyml.einsum(kernel.text, dynamic=True, target=SMALL)
    for n in (first, 3, 4, 9, 17, 40, 65):
        arguments = kernel.data({"TSTEPS": 3, "N": n}, np.random.default_rng(0))
        expected = kernel.reference(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
        found = program(*arguments)
        for one, other in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)
    assert len(program.kernels) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_seidel(threads: int) -> None:
    """Rows along which a recurrence runs are not cut by time tiles: there are some up to a length, and from two tiles on."""
    kernel = KERNELS["seidel-2d"]
    target = Target("host", l1_bytes=2 << 10, l2_bytes=32 << 10, cores=threads)
    program = polyml.einsum(kernel.text, dynamic=True, target=target, threads=threads)
    kept = kernel.data({"TSTEPS": 5, "N": 30}, np.random.default_rng(0))
    assert "time tiles" in program.explain(*kept)
    for n in (30, 1, 2, 3, 4, 15, 16, 17, 18, 40, 70):
        arguments = kernel.data({"TSTEPS": 5, "N": n}, np.random.default_rng(n))
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        expected = kernel.reference(*copies)[0]
        found = program(*arguments)
        np.testing.assert_allclose(found[0] if isinstance(found, tuple) else found, expected, rtol=1e-12)
    assert len(program.kernels) == 1
