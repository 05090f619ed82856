"""Masked updates of computed elements: loops that the mask does not know are inside, and skipped where it says so."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import If
from polyml.codegen.rewrite import nodes_of
from polyml.testing import verify

VOTES = """
def f(e: bool["A B"], s: f64["C"], x: f64["A B"], h: i64["C K"], g: f64["C K"], k: f32["K C"]):
    h[c, i64(round(a * s[c] + b * s[c])) % 9] += where(e[a, b], 1, 0)
"""
ROWS = VOTES.replace(
    "h[c, i64(round(a * s[c] + b * s[c])) % 9] += where(e[a, b], 1, 0)", "k[i64(x[a, b]), c] -= f32(e[a, b])"
)
WEIGHTS = VOTES.replace("h[c,", "g[c,").replace("where(e[a, b], 1, 0)", "where(e[a, b], x[a, b], 0) * s[c]")
BOTH = VOTES + WEIGHTS.partition('k: f32["K C"]):\n')[2].lstrip("\n")
STEPS = VOTES.replace("    h[", "    for t in range(3):\n        h[")
MOVING = VOTES.replace("where(e[a, b],", "where(e[a, b] and s[c] > 0.1,")


def arguments(columns: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.random((3, 4)) * 8
    e = rng.random((3, 4)) < 0.3
    return [
        e, rng.random(columns) / 2, x, np.zeros((columns, 9), np.int64), rng.random((columns, 9)), rng.random((9, columns), np.float32),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "columns", "options", "skipped"), [
    (VOTES, 66, {}, True), pytest.param(VOTES, 66, {"precise": True}, True, marks=pytest.mark.slow), (VOTES, 15, {}, False), pytest.param(STEPS, 66, {}, True, marks=pytest.mark.slow), (MOVING, 66, {}, False),
    (ROWS, 66, {}, True), (ROWS, 66, {"precise": True}, False), (WEIGHTS, 66, {}, True), (BOTH, 66, {"dynamic": True, "threads": 2}, True),
])  # fmt: skip
def test_a_loop_is_skipped(text: str, columns: int, options: dict[str, bool], skipped: bool) -> None:
    """Not a short one, nor with a mask that goes along it, nor where floating-point numbers keep their order."""
    program = polyml.einsum(text, **options)
    assert isinstance(program, polyml.Einsum)
    assert verify(program, *arguments(columns))
    regions = program.lower(*arguments(columns)).stages.regions
    assert skipped == any(
        isinstance(n, If) and "e[a, b]" in str(n.condition) for r in regions for n in nodes_of(r.loops)
    )


LATER = """
def f(e: bool["N"], s: f64["T"], h: i64["9"], x: f64["N"]):
    for n in range(N):
        x[n] = x[n] + h[0]
        if t < n - 5:
            h[i64(round(7 * s[t] + n)) % 9] += where(e[n - 6], 1, 0)
"""


def test_no_mask_is_read_ahead_of_a_loop_without_iterations() -> None:
    """There is no e[n - 6] where n is below 6."""
    given = [np.ones(60, np.bool_), np.ones(50), np.zeros(9, np.int64), np.ones(60)]
    (region,) = polyml.einsum(LATER).lower(*given).stages.regions
    conditions = [n for n in nodes_of(region.loops) if isinstance(n, If) and "e[n - 6]" in str(n.condition)]
    around = [n for n in nodes_of(region.loops) if isinstance(n, If) and n.then[0] in conditions]
    assert len(conditions) == 1
    assert [str(n.condition) for n in around] == ["(0 < min(50, n - 5))"]
