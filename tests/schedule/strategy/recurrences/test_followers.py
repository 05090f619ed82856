"""Loops that run along with a recurrence inside of lanes: which ones, and the results against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.schedule.transforms.follow import join_follower
from polyml.source import Source
from polyml.testing import assert_close

HEAD = """
def f(x: f64["N M"], a: f64):
    y: f64["N M"] = 0
    s: f64["N M"] = 0
    for i in range(N):
        y[i, M - 1] = 0
        y[i, M - 2] = x[i, M - 1]
        for j in range(M - 3, -1, -1):
            y[i, j] = x[i, j + 1] + a * y[i, j + 1] - 0.5 * y[i, j + 2]
"""
FOLLOWS = {
    "backwards": "s[i, j] = y[i, j] + x[i, j]",
    "neighbours": "if j < M - 2:\n            s[i, j] = y[i, j] + 2 * y[i, j + 1] + y[i, j + 2]",
    "shifted": "if j < M - 1:\n            s[i, j] = y[i, j + 1] - x[i, j]",
    "in part": "if j < M - 9:\n            s[i, j] = y[i, j] * x[i, j + 9]",
}
STAYS = {
    "the other way round": "s[i, j] = y[i, j] + y[i, M - 1 - j]",
    "the whole row": "s[i, j] = y[i, j] - y[i, 0]",
}
SMALL = pm.Target(l1_bytes=1024, l2_bytes=64)
"""Caches so small that rows stay apart, and the loops over them are worth joining."""


def text(body: str) -> str:
    return f"{HEAD}        {body}\n    return s\n"


def explained(source: str, n: int, m: int) -> str:
    program = pm.einsum(source, target=SMALL, verify=True)
    notes = (note for region in program.lower(np.ones((n, m)), 0.5).stages.regions for note in region.schedule.notes)
    return "\n".join(note.text for note in notes)


@pytest.mark.parametrize("name", FOLLOWS)
def test_what_follows_runs_along(name: str) -> None:
    assert "runs along" in explained(text(FOLLOWS[name]), 24, 23)


@pytest.mark.parametrize("name", STAYS)
def test_what_does_not_follow_stays(name: str) -> None:
    assert "runs along" not in explained(text(STAYS[name]), 24, 23)


def test_without_lanes_outside_it_stays() -> None:
    # One row: the sum has lanes of its own, which it would lose.
    source = """
def f(x: f64["M"], g: f64["M"]):
    y: f64["M"] = 0
    for j in range(1, M):
        y[j] = x[j] / (2 + y[j - 1])
    s[j] = y[j] * g[j]
    return s
"""
    program = pm.einsum(source)
    notes = [
        note.text for region in program.lower(np.ones(40), np.ones(40)).stages.regions for note in region.schedule.notes
    ]
    assert not any("runs along" in note for note in notes)


@pytest.mark.parametrize("name", [*FOLLOWS, *STAYS])
@pytest.mark.few(1)
def test_against_the_interpreter(name: str) -> None:
    source = text((FOLLOWS | STAYS)[name])
    for n, m in ((24, 23), (19, 14)):
        x = np.random.default_rng(n).random((n, m))
        found = pm.einsum(source, target=SMALL, verify=True)(x, 0.5)
        assert_close(found, interpret(parse(Source(source, "<test>")), x, 0.5))


def test_the_rest_follows() -> None:
    import islpy as isl

    schedule = isl.Schedule(
        """{ domain: "{ S[i] : 0 <= i < 8; T[i] : 0 <= i < 10 }", child: { sequence: [
        { filter: "{ S[i] }", child: { schedule: "[{ S[i] -> [(i)] }]" } },
        { filter: "{ T[i] }", child: { schedule: "[{ T[i] -> [(i)] }]" } } ] } }"""
    )
    sequence = schedule.get_root().child(0)
    row = isl.UnionPwAff("{ T[i] -> [(7 - i)] }")
    node = join_follower(sequence, 0, row, isl.UnionSet("{ T[i] : 0 <= i < 8 }"))
    order = isl.UnionMap("{ S[i] -> [0, i, 0]; T[i] -> [0, 7 - i, 1] : i < 8; T[i] -> [1, i, 0] : i >= 8 }")
    made = node.get_schedule().get_map().intersect_domain(schedule.get_domain())
    # The same pairs of instances come after each other.
    wanted = order.intersect_domain(schedule.get_domain())
    assert made.lex_lt_union_map(made).is_equal(wanted.lex_lt_union_map(wanted))


def test_values_whose_distance_is_half_a_row() -> None:
    """What is left of them to wait for is N/2, of even N: nothing that isl finds a greatest value of."""
    program = pm.einsum(
        """
def halves(x: f32["N M"]):
    y: f32["(N+1)//2 M"] = 0
    y[i//2, j] += x[i, j]
    s[i, j] = y[i, j]
    for t in range(1, (N+1)//2):
        s[t, j] = y[t, j] + s[t - 1, j]
    return s
""",
        dynamic=True,
        precise=True,
    )
    for n in (12, 7):
        x = np.arange(n * 5, dtype="f4").reshape(n, 5)
        sums = np.add.reduceat(x, np.arange(0, n, 2), axis=0)
        assert np.array_equal(program(x), np.cumsum(sums, axis=0))
    assert len(program.kernels) == 1
