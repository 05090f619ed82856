"""Random sequences of transformations: each step is either refused or leaves the result unchanged, and the proof's verdict is that of enumeration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from polyml.errors import CodegenError, IllegalScheduleError, TransformError
from polyml.schedule.legality import check
from polyml.schedule.schedule import Schedule
from polyml.schedule.storage import contract_storage, expanded
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.transforms import fusion, marks, pieces, privatize, reorder, rows, tile, wavefront
from polyml.schedule.transforms.loops import loops_around, parts_of
from polyml.schedule.window import slide_storage
from tests.schedule.transforms.brute_force import is_legal
from tests.schedule.transforms.support import (
    BLUR,
    DENSE,
    FIXED_JACOBI,
    JACOBI,
    SEIDEL,
    TOTAL,
    TRIANGLE,
    assert_same,
    written,
)
from tests.schedule.transforms.test_transforms import WORKS, rolled_blur

SIZES = {"T": 5}
Move = Callable[[Schedule, str, str, str, str, int], Schedule]
"""Schedule, statement, another one, two of the first one's loops, a small number."""

MOVES: dict[str, Move] = {
    "tile": lambda s, a, b, i, j, n: tile.tile(s, a, {i: n + 1, j: 3}),
    "split": lambda s, a, b, i, j, n: tile.split(s, a, i, n + 1),
    "interchange": lambda s, a, b, i, j, n: reorder.interchange(s, a, i, j),
    "fuse": lambda s, a, b, i, j, n: fusion.fuse(s, a, b, depth=1 + n % 2),
    "distribute": lambda s, a, b, i, j, n: fusion.distribute(s, a, i),
    "split_init": lambda s, a, b, i, j, n: fusion.split_init(s, a),
    "shift": lambda s, a, b, i, j, n: rows.shift(s, a, {i: n - 1}),
    "scale": lambda s, a, b, i, j, n: rows.scale(s, a, i, n + 1),
    "skew": lambda s, a, b, i, j, n: rows.skew(s, a, i, j, n - 1),
    "reverse": lambda s, a, b, i, j, n: rows.reverse(s, a, i),
    "wavefront": lambda s, a, b, i, j, n: wavefront.wavefront(s, a, i, j),
    "diamond": lambda s, a, b, i, j, n: wavefront.diamond(s, a, i, j, size=2 * n + 2),
    "parallelize": lambda s, a, b, i, j, n: marks.parallelize(s, a, i),
    "vectorize": lambda s, a, b, i, j, n: marks.vectorize(s, a, i, 1 + n % 2),
    "unroll": lambda s, a, b, i, j, n: marks.unroll(s, a, i, n + 1),
    "unroll_and_jam": lambda s, a, b, i, j, n: marks.unroll_and_jam(s, a, i, n + 1),
    "index_set_split": lambda s, a, b, i, j, n: pieces.index_set_split(s, a, i, n + 1),
    "separate": lambda s, a, b, i, j, n: pieces.separate(s, a),
    "privatize": lambda s, a, b, i, j, n: privatize.privatize(s, a, i),
}
steps = st.tuples(
    st.sampled_from(sorted(MOVES)), st.integers(0, 11), st.integers(0, 11), st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)
)  # fmt: skip


def _apply(schedule: Schedule, step: tuple[str, int, int, int, int, int]) -> Schedule:
    """The step on what there is of statements and loops.

    Raises:
        TransformError: it does not fit.
    """
    name, first, second, one, other, number = step
    parts = [
        f"{s}@{k}" if count > 1 else s
        for s in schedule.scop.statements
        for count in [len(parts_of(schedule.tree, s))]
        for k in range(count)
    ]
    a, b = parts[first % len(parts)], parts[second % len(parts)]
    loops = [l.name for l in loops_around(schedule, a)] or ["none"]
    first_loop = one % len(loops)
    second_loop = (first_loop + 1 + other % max(1, len(loops) - 1)) % len(loops)
    i, j = loops[min(first_loop, second_loop)], loops[max(first_loop, second_loop)]
    if other >= 3 and name != "diamond":
        i, j = j, i
    made = MOVES[name](schedule, a, b, i, j, number)
    note(f"{name}: {a} {b} {i} {j} {number}")
    return made


def _try(start: str, chosen: list[tuple[str, int, int, int, int, int]], storage: str) -> None:
    text, made_start = START[start]
    original = written(text)
    schedule = expanded(made_start().schedule)
    for step in chosen:
        try:
            made = _apply(schedule, step)
        except TransformError:
            continue
        try:
            check(made)
            proved = True
        except IllegalScheduleError:
            proved = False
        # A proof holds for all sizes, a refusal for some.
        if proved or not made.scop.sizes:
            assert proved == is_legal(made, SIZES)
        if proved:
            schedule = made
    if storage == "contract":
        schedule = contract_storage(schedule)
    if storage == "slide":
        for array in [a.name for a in schedule.scop.arrays.values() if a.kind == "local"]:
            try:
                schedule = slide_storage(schedule, array)
            except TransformError:
                continue
    assert storage_faults(schedule) == []
    try:
        assert_same(replace(original, schedule=schedule), original)
    except CodegenError as refusal:
        # isl gives some bounds of tiles of tiles by cases, which the loop language has no word for.
        if "by cases" not in str(refusal):
            raise


START = {
    "dense": (DENSE, lambda: written(DENSE)),
    "jacobi": (JACOBI, lambda: written(JACOBI)),
    "jacobi, five steps": (FIXED_JACOBI, lambda: written(FIXED_JACOBI)),
    "seidel": (SEIDEL, lambda: written(SEIDEL)),
    "triangle": (TRIANGLE, lambda: written(TRIANGLE)),
    "blur": (BLUR, lambda: written(BLUR)),
    "total": (TOTAL, lambda: written(TOTAL)),
    **{
        name: WORKS[name]
        for name in (
            "fuse",
            "tile, two levels",
            "scale",
            "skew",
            "shift",
            "wavefront",
            "index_set_split",
            "privatize inside",
        )
    },
    "rows at once": (BLUR, rolled_blur),
}
every = given(
    start=st.sampled_from(sorted(START)),
    chosen=st.lists(steps, min_size=1, max_size=5),
    storage=st.sampled_from(["full", "contract", "slide"]),
)


DIAMOND = ("diamond", 0, 0, 0, 0, 0)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@example(start="fuse", chosen=[DIAMOND, DIAMOND, ("diamond", 0, 0, 0, 1, 1)], storage="contract")
@example(
    start="jacobi",
    chosen=[DIAMOND, ("split", 0, 0, 0, 0, 1), ("separate", 0, 0, 0, 0, 0), ("fuse", 0, 1, 0, 0, 0)],
    storage="full",
)
@example(start="dense", chosen=[("tile", 1, 0, 0, 1, 0), ("vectorize", 1, 0, 1, 0, 1)], storage="full")
@every
def test_refused_or_unchanged(start: str, chosen: list[tuple[str, int, int, int, int, int]], storage: str) -> None:
    _try(start, chosen, storage)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@every
def test_refused_or_unchanged_at_length(
    start: str, chosen: list[tuple[str, int, int, int, int, int]], storage: str
) -> None:
    _try(start, chosen, storage)
