"""Updates by atomic operations: only where the option asks for them, only for updates that commute, and proved like any schedule."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_regions, cuda_text
from polyml.errors import IllegalScheduleError
from polyml.schedule.legality import check
from polyml.schedule.strategy.cuda.atomics import parted
from polyml.schedule.strategy.cuda.model import CudaModel
from polyml.schedule.tree import statements_below
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx, results_of

HISTOGRAM = 'def f(ids: i32["N"], h: i32["K"]):\n    h[ids[n]] += 1\n'
SCATTER = 'def f(ids: i64["N"], x: f32["N D"], g: f32["K D"]):\n    g[ids[n], d] += x[n, d]\n'
TOTAL = 'def f(x: f32["N"]):\n    s = sum[i](x[i] * x[i])\n    return s\n'
ROWS = 'def f(x: f64["N M"]):\n    s[i] = max[j](x[i, j])\n    return s\n'
PLANES = 'def f(x: f32["N M K"]):\n    s[i] = sum[j, k](x[i, j, k])\n    return s\n'
COLUMNS = 'def f(x: f32["N M"]):\n    s[j] = x[i, j]\n    return s\n'
NARROW = 'def f(x: u8["N"]):\n    s = max[i](x[i])\n    return s\n'
WINNER = 'def f(x: f32["N"]):\n    s = argmax[i](x[i])\n    return s\n'

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 20, 5000)


def scattered(ids: np.ndarray, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    made = g.astype(np.float64)
    np.add.at(made, ids, x)
    return made


CASES = [
    (HISTOGRAM, [IDS.astype(np.int32), np.zeros(20, np.int32)], lambda ids, h: np.bincount(ids, minlength=20)),
    (SCATTER, [IDS, RNG.standard_normal((5000, 7), dtype=np.float32), np.ones((20, 7), np.float32)], scattered),
    (TOTAL, [RNG.standard_normal(70_001, dtype=np.float32)], lambda x: (x * x).sum()),
    (ROWS, [RNG.standard_normal((3, 70_000))], lambda x: x.max(1)),
    (PLANES, [RNG.standard_normal((3, 250, 280), dtype=np.float32)], lambda x: x.sum((1, 2))),
]  # fmt: skip


@needs_gxx
def test_results() -> None:
    batch = compile_batch([(text, given) for text, given, _ in CASES], atomics=True)
    assert batch.text.count("pm_atomic_") >= 2 * len(CASES)
    for (text, given, exact), kernel in zip(CASES, batch.kernels, strict=True):
        arguments = [a.copy() for a in given]
        found = results_of(kernel(*arguments)) or arguments[-1:]
        wanted = exact(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in given))
        np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-4, err_msg=text)


def stages_of(text: str, given: list[np.ndarray], **options: object) -> polyml.compiler.driver.Stages:  # type: ignore[name-defined]
    program = polyml.einsum(text, target=Target("cuda"), **options)
    return lower_program(program.program, program.key_of(*given), program.options)


@pytest.mark.parametrize(("text", "given", "exact"), CASES)
def test_only_by_option(text: str, given: list[np.ndarray], exact: object) -> None:
    for options in ({}, {"atomics": True, "precise": True}):
        assert "pm_atomic" not in cuda_text(cuda_regions(stages_of(text, given, **options)))


@pytest.mark.parametrize(("text", "given", "exact"), CASES)
def test_plain_updates_in_their_places_are_refused(text: str, given: list[np.ndarray], exact: object) -> None:
    """The planted bug that an emulator of one thread after another cannot see: the proof does."""
    (found,) = (r.schedule for r in stages_of(text, given, atomics=True).regions if r.schedule.atomic)
    check(found)
    with pytest.raises(IllegalScheduleError, match="update"):
        check(replace(found, atomic=frozenset()))


@pytest.mark.parametrize(("text", "given"), [
    (COLUMNS, [np.ones((9000, 33), np.float32)]), (NARROW, [np.ones(90_000, np.uint8)]), (WINNER, [np.ones(90_000, np.float32)]),
    (ROWS, [np.ones((4000, 300))]),
])  # fmt: skip
def test_what_gains_nothing_stays(text: str, given: list[np.ndarray]) -> None:
    assert "pm_atomic" not in cuda_text(cuda_regions(stages_of(text, given, atomics=True)))


CROSSED = """
def f(i: i64["N"], g: f32["T K"], h: f32["K"]):
    for t in range(T):
        g[t, i[n]] += h[i[n]]
        h[i[n]] += g[t, i[n]]
"""
BESIDE = """
def f(i: i64["N"], g: f32["T K"], h: f32["K"]):
    h[i[n]] += 1
    h[i[n] + 1] += 2
"""


@pytest.mark.parametrize(("text", "apart"), [(CROSSED, False), (BESIDE, True)])
def test_loops_of_several_updates_are_parted_where_these_commute(
    text: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where a step of one reads what the step before of the other wrote."""
    found: dict[tuple[str, ...], bool] = {}

    def spy(node: isl.ScheduleNode, model: CudaModel) -> isl.ScheduleNode | None:
        made = parted(node, model)
        found[statements_below(node)] = made is not None
        return made

    monkeypatch.setattr("polyml.schedule.strategy.cuda.strategy.parted", spy)
    given = [RNG.integers(0, 5, 300), np.zeros((4, 9), np.float32), np.ones(9, np.float32)]
    polyml.einsum(text, target="cuda", atomics=True).lower(*given).text("schedule")
    (both,) = (names for names in found if sum(name.startswith(("S_g", "S_h")) for name in names) == 2)
    assert found[both] is apart
