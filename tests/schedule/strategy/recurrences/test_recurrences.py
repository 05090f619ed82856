"""Recurrences along rows and columns, end to end: filters, tridiagonal sweeps and scans against the interpreter, under several targets."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.loops import Allocate, For
from polyml.codegen.rewrite import walk_nodes
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close

FILTER = """
def f(x: f64["N M"], a: f64):
    y: f64["N M"] = 0
    z: f64["N M"] = 0
    for i in range(N):
        y[i, 0] = x[i, 0]
        y[i, 1] = x[i, 1] + a * y[i, 0]
        for j in range(2, M):
            y[i, j] = x[i, j] + 0.5 * x[i, j - 1] + a * y[i, j - 1] - 0.25 * y[i, j - 2]
    for i in range(N):
        z[i, M - 1] = 0
        for j in range(M - 2, -1, -1):
            z[i, j] = x[i, j + 1] + a * z[i, j + 1]
    s[i, j] = y[i, j] + z[i, j]
    return s
"""
COLUMNS = """
def f(x: f64["N M"]):
    y: f64["N M"] = 0
    z: f64["N M"] = 0
    y[0, j] = x[0, j]
    for i in range(1, N):
        for j in range(M):
            y[i, j] = x[i, j] + 0.5 * y[i - 1, j]
    z[N - 1, j] = 0
    for i in range(N - 2, -1, -1):
        for j in range(M):
            z[i, j] = x[i + 1, j] - 0.5 * z[i + 1, j]
    s[i, j] = y[i, j] + z[i, j]
    return s
"""
SWEEPS = """
def f(T: int, u: f64["N M"]):
    v: f64["N M"] = 0
    p: f64["N M"] = 0
    q: f64["N M"] = 0
    for t in range(T):
        for i in range(1, N - 1):
            p[i, 0] = 0
            q[i, 0] = 1
            for j in range(1, M - 1):
                p[i, j] = 1 / (4 - p[i, j - 1])
                q[i, j] = (u[i - 1, j] + u[i + 1, j] + q[i, j - 1]) / (4 - p[i, j - 1])
            v[i, M - 1] = 1
            for j in range(M - 2, 0, -1):
                v[i, j] = p[i, j] * v[i, j + 1] + q[i, j]
        for i in range(1, N - 1):
            p[i, 0] = 0
            for j in range(1, M - 1):
                p[i, j] = 1 / (3 - p[i, j - 1])
                u[i, j] = v[i, j] * p[i, j]
    return u
"""
SOLVE = """
def f(L: f64["N N"], b: f64["R N"]):
    x: f64["R N"] = 0
    for i in range(N):
        x[r, i] = (b[r, i] - sum[j, j < i](L[i, j] * x[r, j])) / L[i, i]
    return x
"""
SCAN = """
def f(x: f32["N M"], g: f32["N M"]):
    h: f32["N M"] = 0
    for i in range(N):
        for j in range(1, M):
            h[i, j] = g[i, j] * h[i, j - 1] + x[i, j]
    return h
"""
SEIDEL = """
def f(T: int, a: f64["N M"]):
    for t in range(T):
        for i in range(1, N - 1):
            for j in range(1, M - 1):
                a[i, j] = (a[i - 1, j - 1] + a[i - 1, j + 1] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j]) / 5
    return a
"""


def random(*shape: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(3).random(shape).astype(dtype)


def arguments(text: str, n: int, m: int) -> tuple[object, ...]:
    match text:
        case _ if text is FILTER:
            return random(n, m), 0.5
        case _ if text is COLUMNS:
            return (random(n, m),)
        case _ if text is SWEEPS or text is SEIDEL:
            return 2, random(n, m)
        case _ if text is SOLVE:
            return random(m, m) + 3 * np.eye(m), random(n, m)
    return random(n, m, dtype=np.float32), random(n, m, dtype=np.float32)


@functools.cache
def expected(name: str, n: int, m: int) -> object:
    """What the interpreter says, which takes longer than most compilations."""
    text = PROGRAMS[name]
    return interpret(parse(Source(text, "<test>")), *arguments(text, n, m))


PROGRAMS = {"filter": FILTER, "columns": COLUMNS, "sweeps": SWEEPS, "solve": SOLVE, "scan": SCAN, "seidel": SEIDEL}
TARGETS = {
    "here": None,
    "tiny caches": pm.Target(l1_bytes=1024, l2_bytes=64),
    "large caches": pm.Target(l2_bytes=1 << 10),
    "avx2": "x86-64-v3",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.few(1)
def test_against_the_interpreter(name: str, target: str) -> None:
    text = PROGRAMS[name]
    for n, m in ((16, 24), (19, 23))[target != "here" :]:
        given = arguments(text, n, m)
        options = {} if TARGETS[target] is None else {"target": TARGETS[target]}
        found = pm.einsum(text, verify=True, **options)(*copy.deepcopy(given))
        assert_close(found, expected(name, n, m))


@pytest.mark.parametrize("name", ["filter", "scan", "seidel"])
def test_precise_is_exact(name: str) -> None:
    # Rows in lanes reassociate nothing; one row in lanes does, and is not tried.
    text = PROGRAMS[name]
    found = pm.einsum(text, precise=True)(*arguments(text, 16, 24))
    np.testing.assert_array_equal(found, expected(name, 16, 24))


def test_dead_fills_are_gone_and_rows_live_in_lanes() -> None:
    given = arguments(FILTER, 16, 300)
    program = pm.einsum(FILTER, target=pm.Target(l2_bytes=1 << 20))
    (region,) = [r for r in program.lower(*given).stages.regions if "s" in r.scop.arrays]
    # The loops and the sum are one region, in which nothing is filled with zeros any more, and the filters' rows are a block of lanes each.
    assert not any(statement in region.scop.statements for statement in ("S_y", "S_z"))
    nodes = list(walk_nodes(region.loops.body))
    room = [n.variable for n in nodes if isinstance(n, Allocate)]
    rows = {name: [v for v in room if v.name.split("_")[0] == name] for name in ("y", "z")}
    assert all(rows.values()), room
    assert all(v.lanes > 1 for v in (*rows["y"], *rows["z"])), room
    # The way back needs a row of the first filter; of the second no more than the step before, and the end, where the row starts.
    assert any(v.shape and v.scope == "local" for v in rows["y"]), room
    assert all(v.scope == "register" for v in rows["z"]), room
    assert any(isinstance(n, For) and n.kind == "transpose" for n in nodes)
