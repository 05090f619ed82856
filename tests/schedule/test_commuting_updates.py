"""Updates of computed elements of one array by several statements are one loop where their order is free."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.schedule.tree import Kind, kind_of, nodes, statements_below
from polyml.testing import verify

TWO = """
def f(i: i64["N"], m: f64["N"], g: f64["K"]):
    a[n] = m[n] * m[n]
    g[i[n]] += a[n]
    g[i[n] + 1] += 1 - a[n]
"""
READ = TWO.replace("    g[i[n] + 1]", "    m[n] = g[i[n]]\n    g[i[n] + 1]")
STEPS = """
def f(i: i64["N"], m: f64["N"], g: f64["K"]):
    for t in range(3):
        m[n] = m[n] + g[i[n]]
        g[i[n]] += m[n]
        g[i[n] + 1] += t
"""
ROWS = """
def f(i: i64["N"], m: f64["N"], g: f64["K 5"]):
    if k < 4:
        g[i[n], k] += m[n]
    if k < 4:
        g[i[n] + 1, k + 1] += m[n] * m[n]
"""


def arguments(text: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (13, 5) if text is ROWS else (13,)
    return [rng.integers(0, 10, 37), rng.standard_normal(37), rng.standard_normal(shape)]


@pytest.mark.parametrize(("text", "options", "shared"), [
    (TWO, {}, True), (TWO, {"precise": True}, False), (READ, {}, False), (STEPS, {}, True), (ROWS, {}, False),
])  # fmt: skip
def test_they_share_a_loop(text: str, options: dict[str, bool], shared: bool) -> None:
    """Not where one is read between, nor where lanes of both would meet."""
    program = polyml.einsum(text, **options)
    assert isinstance(program, polyml.Einsum)
    stages = program.lower(*arguments(text)).stages
    (region,) = (r for r in stages.regions if "g" in r.scop.arrays)
    first, second = (name for name in region.scop.statements if name.startswith("S_g"))
    loops = [node for node in nodes(region.schedule.tree.get_root()) if kind_of(node) == Kind.band]
    around = [node for node in loops if {first, second} <= set(statements_below(node))]
    assert len(around) == shared + (text is STEPS)
    assert verify(program, *arguments(text))
