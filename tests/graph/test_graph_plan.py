"""Storage and plans: values survive in shared memory, updates happen in place where they may, temporaries are reused and freed."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.graph.fuse import fuse
from polyml.graph.ir import Graph
from polyml.graph.plan import Allocate, CheckFlag, Launch, Plan, plan
from polyml.graph.reference import execute
from polyml.graph.storage import settle_results
from tests.graph import programs
from tests.graph.graph_text import graph
from tests.graph.memory_machine import run_plan

RNG = np.random.default_rng(3)


def make(text: str) -> tuple[Graph, Plan]:
    g = settle_results(graph(text))
    return g, plan(g, fuse(g))


def agrees(text: str) -> tuple[Graph, Plan]:
    """Runs the plan in shared memory and compares outputs and written inputs with the reference."""
    g, p = make(text)
    arguments = []
    for item in g.inputs:
        shape = tuple(e.constant for e in item.tensor.shape)
        numbers = RNG.integers(1, 3, shape) if item.tensor.dtype.kind != "f" else RNG.standard_normal(shape)
        arguments.append(np.asarray(numbers).astype(item.tensor.dtype.numpy))
    ours, theirs = [a.copy() for a in arguments], [a.copy() for a in arguments]
    got = run_plan(g, fuse(g), p, ours)
    for one, other in zip(got, execute(g, theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    for item, one, other in zip(g.inputs, ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=item.tensor.name)
    return g, p


def test_a_chain_of_updates_shares_one_array() -> None:
    _, p = agrees(
        """
        x: f32[6]
        y0[i] = x[i] + 1.0
        y1(y0)[5 - i] = x[i]
        y2(y1)[i] += x[i]
        return y2
    """.replace("y1(y0)[5 - i]", "y1(y0)[5 - i]")
    )
    assert {p.storage[n] for n in ("y0", "y1", "y2")} == {"y2"}


def test_an_old_version_that_is_read_later_keeps_its_own_memory() -> None:
    _, p = agrees("""
        x: f32[6]
        y0[i] = x[i] + 1.0
        y1(y0)[i] = x[i]
        z[i] = y0[i] + y1[i]
        return z
    """)
    assert p.storage["y0"] != p.storage["y1"]


def test_written_inputs_are_updated_in_the_callers_array() -> None:
    _, p = agrees("""
        x: f32[6]
        y: f32[6]
        x1(x)[i] = x[5 - i] + y[i]
        x2(x1)[i] += x1[i]
        final(x, x2)
        return x2
    """)
    assert p.storage["x2"] == "x"
    assert p.outputs == ("x",)
    assert not any(isinstance(step, Allocate) for step in p.steps)


def test_the_old_value_of_a_written_input_can_be_used_after_the_update() -> None:
    g, p = agrees("""
        x: f32[6]
        x1(x)[i] = x[i] + x[i]
        y[i] = x[i] + x1[i]
        final(x, x1)
        return y
    """)
    assert p.storage[g.inputs[0].final.name] == "x"
    assert p.storage["x1"] != "x"


def test_swapped_inputs() -> None:
    agrees("""
        x: f32[6]
        y: f32[6]
        final(x, y)
        final(y, x)
        z[i] = x[i]
        return z
    """)


def test_an_input_that_is_returned_and_written_is_copied_first() -> None:
    agrees("""
        x: f32[6]
        x1(x)[i] = x[i] + x[i]
        final(x, x1)
        return x, x1
    """)
    agrees("""
        x: f32[6]
        return x
    """)


def test_a_read_only_input_is_not_updated_in_place() -> None:
    _, p = agrees("""
        x: f32[6]
        x1(x)[i] = x[5 - i]
        return x1
    """)
    assert p.storage["x1"] != "x"


def test_loops_carry_in_place() -> None:
    _, p = agrees("""
        x: f32[6, 3]
        z: f32[3]
        h0[i] = z[i] + 1.0
        for t in range(0, 6):
            carry(h0, h, h2, h3)
            g[i] = h[i] * 0.5
            h2[i] = g[i] + x[t, i]
        y[i] = h3[i] + 1.0
        return y
    """)
    assert len({p.storage[n] for n in ("h0", "h", "h2", "h3")}) == 1


def test_a_loop_does_not_overwrite_what_is_read_behind_it_or_inside_it() -> None:
    _, p = agrees("""
        x: f32[6, 3]
        h0: f32[3]
        for t in range(0, 6):
            carry(h0, h, h2, h3)
            h2[i] = h[i] * 0.5 + h0[i]
            g[i] = h[i] + h2[i]
        y[i] = h3[i] + h0[i]
        return y
    """)
    assert p.storage["h0"] == "h0"
    assert p.storage["h"] != "h0"
    agrees("""
        h0: f32[3]
        a0: f32[3]
        for t in range(0, 4):
            carry(h0, h, h2, h3)
            carry(a0, a, a2, a3)
            tensor(h2, f32[3])
            h2[i] = h[2 - i] * 0.5
            a2[i] = a[i] + h[i]
        return h3, a3
    """)


def test_nested_loops() -> None:
    agrees("""
        a0: f32[5, 5]
        for t in range(0, 3):
            carry(a0, a, a3, a4)
            for k in range(4, -1, -1):
                carry(a, b, b2, a3)
                b2(b)[i, j] = min(b[i, j], b[i, k] + b[k, j])
        final(a0, a4)
        return a4
    """)


def test_temporaries_are_reused_and_freed() -> None:
    g = graph("""
        x: f32[64, 64]
        a[i, j] = sum[k](x[i, k] * x[k, j])
        b[i, j] = sum[k](a[i, k] * a[k, j])
        c[i, j] = sum[k](b[i, k] * b[k, j])
        d[i, j] = sum[k](c[i, k] * c[k, j])
        return d
    """)
    regions = fuse(g)
    assert len(regions) == 4
    p = plan(g, regions)
    assert sum(isinstance(step, Allocate) for step in p.steps) == 2
    x = RNG.standard_normal((64, 64)).astype(np.float32)
    (got,) = run_plan(g, regions, p, [x])
    np.testing.assert_allclose(got, execute(g, [x])[0], rtol=1e-6)
    assert str(p).splitlines()[:2] == ["allocate a: 16384 bytes", "launch region 0 (x, a)"]


def test_checks_come_before_anything_is_written() -> None:
    g, p = agrees("""
        x: f32[6]
        ids: i32[6]
        bad = any[n](ids[n] > 5)
        check(bad)
        x1(x)[ids[n]] += x[n]
        final(x, x1)
        return x1
    """)
    kinds = [type(step) for step in p.steps]
    assert kinds.index(CheckFlag) < max(n for n, k in enumerate(kinds) if k is Launch)
    ids = np.array([0, 1, 2, 9, 4, 5], np.int32)
    x = np.ones(6, np.float32)
    with pytest.raises(IndexError, match="bad is set"):
        run_plan(g, fuse(g), p, [x, ids])
    np.testing.assert_array_equal(x, 1)


def test_symbolic_sizes_reuse_equal_shapes_only() -> None:
    g = settle_results(
        graph("""
        sizes(N)
        x: f32[N, N]
        a[i, j] = sum[k](x[i, k] * x[k, j])
        b[i, j] = sum[k](a[i, k] * a[k, j])
        c[i, j] = sum[k](b[i, k] * b[k, j])
        d[i, j] = sum[k](c[i, k] * c[k, j])
        return d
    """)
    )
    p = plan(g, fuse(g))
    allocated = [step for step in p.steps if isinstance(step, Allocate)]
    assert [step.bytes for step in allocated] == [None, None]
    assert p.buffers[allocated[0].buffer].size_in_bytes({"N": 5}) == 100


@pytest.mark.parametrize("text", [programs.RESIDUAL_NORM, programs.DENSE])
def test_whole_programs(text: str) -> None:
    agrees(text.replace("512", "12").replace("256", "8"))
