"""Every transformation: one use that keeps the result, and one that is refused with the dependence it would break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import polyml as pm
from polyml.errors import IllegalScheduleError, PolymlError, TransformError
from polyml.target import Target
from polyml.user_schedule import UserSchedule
from tests.schedule.transforms.support import BLUR, DENSE, JACOBI, SEIDEL, TOTAL, TRIANGLE, assert_same, written


def _A() -> str:
    """The one statement of the Seidel program (copies and renamings number the names)."""
    return written(SEIDEL).statements[-1]


def shifted_blur() -> UserSchedule:
    """Rows of h just ahead of the rows of y that need them."""
    horizontal, vertical = written(BLUR).statements[-2:]
    return written(BLUR).shift(vertical, i=1).fuse(horizontal, vertical)


def rolled_blur() -> UserSchedule:
    """All of a row at once: the rows of h that are alive are three."""
    clear, start, horizontal, vertical = written(BLUR).statements
    made = written(BLUR).fuse(clear, start).fuse(clear, horizontal)
    return made.shift(vertical, i=1).fuse(clear, vertical)


def fused_dense() -> UserSchedule:
    return written(DENSE).fuse("S_c_init", "S_c", depth=2).fuse("S_c", "S_d", depth=2)


def skewed_seidel() -> UserSchedule:
    return written(SEIDEL).skew(_A(), "i", "t")


def flat_jacobi() -> UserSchedule:
    """Both half steps in one band (2t, i) and (2t + 1, i)."""
    first, second = written(JACOBI).statements
    return written(JACOBI).scale(first, "t", 2).shift(second, t=1).fuse(first, second)


WORKS: dict[str, tuple[str, Callable[[], UserSchedule]]] = {
    "tile": (DENSE, lambda: written(DENSE).tile("S_c", i=4, j=3)),
    "tile, two levels": (DENSE, lambda: written(DENSE).tile("S_c", i=(4, 2), j=(6, 3), k=2)),
    "tile a triangle": (TRIANGLE, lambda: written(TRIANGLE).tile("S_y_1", i=3, m=2, j=2)),
    "tile a fused nest": (DENSE, lambda: fused_dense().tile("S_d", i=4, j=4)),
    "split": (DENSE, lambda: written(DENSE).split("S_c", "k", 2).interchange("S_c", "j", "k_tile")),
    "interchange": (DENSE, lambda: written(DENSE).interchange("S_c", "i", "k")),
    "reorder": (DENSE, lambda: written(DENSE).reorder("S_c", "k", "i", "j")),
    "fuse": (DENSE, fused_dense),
    "fuse across": (DENSE, lambda: written(DENSE).fuse("S_c_init", "S_c").fuse("S_c_init", "S_d")),
    "distribute": (DENSE, lambda: fused_dense().distribute("S_c", "j")),
    "distribute all": (DENSE, lambda: fused_dense().tile("S_c", j=4).distribute("S_c", "i")),
    "split_init": (DENSE, lambda: fused_dense().split_init("S_c")),
    "shift": (BLUR, lambda: shifted_blur()),
    "scale": (JACOBI, lambda: flat_jacobi()),
    "skew": (SEIDEL, lambda: skewed_seidel().interchange(_A(), "t", "i")),
    "reverse": (DENSE, lambda: written(DENSE).reverse("S_c", "i").reverse("S_c", "k")),
    "wavefront": (SEIDEL, lambda: skewed_seidel().tile(_A(), t=2, i=4).wavefront(_A(), "t_tile", "i_tile").parallelize(_A(), "i_tile")),
    "diamond": (SEIDEL, lambda: written(SEIDEL).diamond(_A(), "t", "i", size=4).parallelize(_A(), "i_tile")),
    "diamond of two statements": (JACOBI, lambda: flat_jacobi().diamond(written(JACOBI).statements[0], "t", "i", size=6)),
    "unroll": (DENSE, lambda: written(DENSE).unroll("S_c", "k", 2)),
    "unroll_and_jam": (DENSE, lambda: written(DENSE).interchange("S_c", "j", "k").unroll_and_jam("S_c", "i", 3)),
    "vectorize": (DENSE, lambda: fused_dense().vectorize("S_c", "j", 2)),
    "vectorize a reduction": (TOTAL, lambda: written(TOTAL).vectorize("S_s", "i", 2)),
    "parallelize": (DENSE, lambda: fused_dense().parallelize("S_c", "i")),
    "sequential": (DENSE, lambda: fused_dense().parallelize("S_c", "i").sequential("S_c", "i")),
    "index_set_split": (TRIANGLE, lambda: written(TRIANGLE).index_set_split("S_y_1", "i", 4).tile("S_y_1@1", j=2)),
    "separate": (DENSE, lambda: fused_dense().tile("S_c", i=2, j=4).separate("S_c").vectorize("S_c@0", "j")),
    "separate in a triangle": (TRIANGLE, lambda: written(TRIANGLE).tile("S_y_1", i=2, j=2).separate("S_y_1")),
    "privatize": (DENSE, lambda: written(DENSE).split("S_c", "k", 2).privatize("S_c", "k_tile").parallelize("S_c", "k_tile")),
    "privatize inside": (DENSE, lambda: fused_dense().split("S_c", "k", 2).privatize("S_c", "k_tile").contract()),
    "privatize a triangle": (TRIANGLE, lambda: written(TRIANGLE).split("S_y_1", "j", 3).privatize("S_y_1", "j_tile")),
    "privatize a scalar": (TOTAL, lambda: written(TOTAL).split("S_s", "i", 4).privatize("S_s", "i_tile").parallelize("S_s", "i_tile")),
    "slide": (BLUR, lambda: rolled_blur().slide("h")),
    "slide, then more": (BLUR, lambda: rolled_blur().slide("h").tile(written(BLUR).statements[-1], j=3).vectorize(written(BLUR).statements[-1], "j")),
    "contract": (DENSE, lambda: fused_dense().contract()),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_result_stays(name: str) -> None:
    text, make = WORKS[name]
    assert_same(make().check(), written(text))


def test_what_privatize_adds_has_names_of_its_own() -> None:
    text = 'def f(x: f64["N K"]):\n    c[n] = x[n, k]\n    c_part_combine[n] = c[n] * 3\n    return c_part_combine\n'
    made = pm.einsum(text).lower(np.ones((4, 9))).schedule.written().split("S_c", "k", 4).privatize("S_c", "k_tile")
    assert "S_c_part_combine_" in made.check().statements


REFUSED: dict[str, tuple[Callable[[], UserSchedule], str]] = {
    "tile": (lambda: written(SEIDEL).tile(_A(), t=2, i=4), r"flow dependence: S_a\w*\[t = .* and S_a\w*\[t = .* opposite order"),
    "interchange": (lambda: written(SEIDEL).interchange(_A(), "t", "i"), r"flow dependence: S_a\w*\[.*opposite order"),
    "fuse": (lambda: written(JACOBI).fuse(*written(JACOBI).statements), r"flow dependence: S_b\w*\[t = 0, i = \d+\] and S_a\w*\[t = 0, i = \d+\] run in the opposite order \(for T = \d+\)"),
    "distribute": (lambda: written(JACOBI).distribute(written(JACOBI).statements[0], "t"), r"opposite order"),
    "shift": (lambda: fused_dense().shift("S_c_init", i=1), r"dependence: S_c_init\[i = \d, j = \d\] and S_\w+\[i = \d, .*\] run in the opposite order"),
    "skew": (lambda: flat_jacobi().skew(written(JACOBI).statements[0], "t", "i"), "flow dependence"),
    "reverse": (lambda: written(SEIDEL).reverse(_A(), "t"), r"flow dependence: S_a\w*\[.*opposite order"),
    "wavefront": (lambda: written(SEIDEL).wavefront(_A(), "t", "i").parallelize(_A(), "i"), "flow dependence"),
    "diamond": (lambda: flat_jacobi().reverse(written(JACOBI).statements[0], "i").scale(written(JACOBI).statements[0], "i", 3).diamond(written(JACOBI).statements[0], "t", "i", size=4), "flow dependence"),
    "unroll_and_jam": (lambda: written(SEIDEL).unroll_and_jam(_A(), "t", 2), "run at once in a jam loop"),
    "vectorize": (lambda: written(SEIDEL).vectorize(_A(), "t"), "run at once in a vector loop"),
    "parallelize": (lambda: written(SEIDEL).parallelize(_A(), "t"), "run at once in a parallel loop"),
    "parallelize a reduction": (lambda: written(TOTAL).parallelize("S_s", "i"), r"reduction dependence: S_s\[i = \d+\] and S_s\[i = \d+\] update one element at once"),
    "privatize": (lambda: fused_dense().privatize("S_c", "i"), "not S_c's own"),
    "slide": (lambda: rolled_blur().slide("h", 2, 7), r"2x7 is too small for h: S_h\w*\[.*\] and S_h\w*\[.*\] share a place"),
    "split_init": (lambda: written(DENSE).split_init("S_c"), "share no loop"),
    "index_set_split": (lambda: written(SEIDEL).index_set_split(_A(), "i", 6).interchange(_A() + "@0", "t", "i"), "no perfect nest"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_dependence(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises((IllegalScheduleError, TransformError), match=message) as caught:
        make()
    if isinstance(caught.value, IllegalScheduleError):
        violation = caught.value.violation
        assert violation is not None
        assert violation.kind in ("flow", "anti", "output", "reduction", "lifetime")


def test_window_sizes() -> None:
    """Three rows of h are alive, whole."""
    storage = rolled_blur().slide("h").schedule.storage["h"]
    assert (storage.shape, storage.wraps) == ((3, 7), (True, False))
    assert "local f64 h[3, 7]" in rolled_blur().slide("h").loops()


def test_threads_widen_a_window() -> None:
    """Columns that run at once in one row do not; the rows carry dependences."""
    _, _, _, vertical = written(BLUR).statements
    storage = rolled_blur().parallelize(vertical, "j").slide("h").schedule.storage["h"]
    assert storage.shape == (3, 7)


def test_written_trees_are_proved() -> None:
    schedule = fused_dense().tile("S_c", i=4).contract()
    assert str(written(DENSE).with_tree(schedule.text())) == str(schedule)
    window = rolled_blur().slide("h")
    assert str(written(BLUR).with_tree(window.text())) == str(window)
    with pytest.raises(IllegalScheduleError, match="flow dependence"):
        written(DENSE).with_tree(
            schedule.text().replace("[(k)]", "[(-k)]").replace("S_d[i, j] -> [(i", "S_d[i, j] -> [(-2 + i")
        )
    with pytest.raises(IllegalScheduleError, match="statements S_a"):
        written(DENSE).with_tree(written(SEIDEL).text())
    with pytest.raises(IllegalScheduleError, match="same time"):
        written(DENSE).with_tree(written(DENSE).text().replace("[(k)]", "[(0)]"))
    with pytest.raises(IllegalScheduleError, match="does not read line 1"):
        written(DENSE).with_tree("domain: nothing")


def _tree(*nodes: str) -> str:
    """The Seidel program's instances under these nodes, one below the other."""
    lines = ['domain: "{ S_a_2[t, i] : 0 < t <= 5 and 0 < i <= 11 }"']
    for depth, node in enumerate(nodes):
        lines += [" " * depth + "child:", " " * (depth + 1) + node]
    return "\n".join(lines)


_BOTH = 'schedule: "[{ S_a_2[t, i] -> [(t)] }, { S_a_2[t, i] -> [(i)] }]"'
_PARALLEL = 'mark: "parallel"'


@pytest.mark.parametrize(("nodes", "message"), [
    ([_PARALLEL, _BOTH], "run at once in a parallel loop"),
    ([_PARALLEL, 'mark: "unroll:2"', _BOTH], "stand above one loop"),
    ([_PARALLEL, 'sequence:\n  - filter: "{ S_a_2[t, i] }"\n    child:\n      ' + _BOTH], "does not stand above a loop"),
    (['mark: "nonsense"', _BOTH], 'no mark "nonsense"'),
    (['mark: "unroll:-1"', _BOTH], "no number of 1 or more"),
    (['mark: "block.x:4"', _BOTH], "no mark"),
    ([_BOTH.replace("(t)", "(99999999999*t)")], "could leave 64 bits"),
    ([_BOTH.replace("[(t)]", "[(t)] : t > 9")], "no value for some"),
    (["mark: 3", _BOTH], "does not read line 3"),
    ([_BOTH.replace("]", "")], "does not read line 3, schedule"),
])  # fmt: skip
def test_trees_by_hand_are_refused(nodes: list[str], message: str) -> None:
    with pytest.raises(IllegalScheduleError, match=message):
        written(SEIDEL).with_tree(_tree(*nodes))
    assert written(SEIDEL).with_tree(_tree(_BOTH)).loops_of(_A()) == ("t", "i")


def test_files(tmp_path: Path) -> None:
    schedule = fused_dense().tile("S_c", i=4, j=4)
    schedule.save(tmp_path / "dense.schedule")
    assert str(written(DENSE).load(tmp_path / "dense.schedule")) == str(schedule)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(TransformError, match=r"in no loop z\nhint: loops of S_c: i, j, k"):
        written(DENSE).tile("S_c", z=4)
    with pytest.raises(TransformError, match=r"no statement S_z\nhint: statements: S_c_init, S_c, S_d"):
        written(DENSE).tile("S_z", i=4)
    with pytest.raises(TransformError, match="say which: S_c@0, S_c@1"):
        written(DENSE).index_set_split("S_c", "k", 2).tile("S_c", i=4)
    for size in (0, -3, 2.5, "4", (), 1 << 62):
        with pytest.raises(TransformError, match="size of loop i is"):
            written(DENSE).tile("S_c", i=size)  # type: ignore[arg-type]
    assert "i_tile" in written(DENSE).tile("S_c", i=np.int64(4)).loops_of("S_c")  # type: ignore[arg-type]
    with pytest.raises(TransformError, match="local arrays: c"):
        written(DENSE).contract("x")


def test_programs_with_several_regions_name_them() -> None:
    lowered = pm.einsum(DENSE, fusion=False).lower(np.zeros((3, 4)), np.zeros((4, 5)))
    assert len(lowered.schedules) == 2
    with pytest.raises(PolymlError, match="2 regions, each with a schedule"):
        _ = lowered.schedule
    other = pm.einsum(SEIDEL).lower(np.zeros((3, 4))).schedule
    larger, narrower = pm.einsum(DENSE).lower(np.zeros((6, 8)), np.zeros((8, 10))), np.zeros((3, 4), np.float32)
    single = pm.einsum(DENSE.replace("f64", "f32")).lower(narrower, np.zeros((4, 5), np.float32))
    whole = pm.einsum(DENSE).lower(np.zeros((3, 4)), np.zeros((4, 5)))
    for program, schedule in [(lowered, other), (whole, larger.schedule), (whole, single.schedule)]:
        with pytest.raises(PolymlError, match="no region of this lowered program"):
            program.with_schedule(schedule)


def test_kernels_run_a_schedule() -> None:
    x, w = np.random.default_rng(0).standard_normal((2, 37, 37))
    lowered = pm.einsum(DENSE).lower(x, w)
    plain = lowered.schedule.written()
    made = plain.fuse("S_c_init", "S_c", depth=2).fuse("S_c", "S_d", depth=2).tile("S_c", i=8, j=16)
    made = made.parallelize("S_c", "i_tile").unroll_and_jam("S_c", "i", 4).vectorize("S_c", "j").contract()
    run = lowered.with_schedule(made)
    assert "parallel for (i_tile" in run.text("loops")
    np.testing.assert_allclose(run.compile()(x, w), np.maximum(x @ w, 0), rtol=1e-12)


def test_a_schedule_by_hand_is_for_all_sizes() -> None:
    """The compiler's own is for sizes from which on its time tiles pay, and has other versions beside it."""
    target = Target("x86-64-v2", l1_bytes=4096, l2_bytes=32768, cores=1)
    lowered = pm.einsum(JACOBI, dynamic=True, target=target).lower(np.zeros(6), np.zeros(6), 5)
    assert lowered.stages.regions[0].schedule.worth
    first, _ = lowered.schedule.statements
    assert "i < min(100, N - 1)" in lowered.schedule.written().index_set_split(first, "i", 100).loops()


def test_statements_that_never_run_have_no_loops() -> None:
    schedule = pm.einsum(SEIDEL).lower(np.zeros((1, 4))).schedule
    with pytest.raises(TransformError, match="never runs"):
        schedule.loops_of(schedule.statements[-1])


def test_a_precise_program_keeps_sums_in_order() -> None:
    x, w = np.ones((7, 5)), np.ones((5, 9))
    precise = pm.einsum(DENSE, precise=True).lower(x, w).schedule.written()
    with pytest.raises(IllegalScheduleError, match="reduction dependence"):
        precise.reverse("S_c", "k")


@pytest.mark.parametrize("name", ["wavefront", "diamond", "separate", "privatize inside", "slide", "index_set_split"])
def test_trees(name: str, golden: Callable[[str, str], None]) -> None:
    """The tree, the loops around each statement, and the code."""
    made = WORKS[name][1]()
    golden(f"schedule/transforms/{name.replace(' ', '_')}", f"{made}\n\n{made.loops()}")


def test_marks_reach_their_loops_where_isl_adds_dimensions() -> None:
    """The half steps of (2t, 2t + 1) become one loop of step 2 and a dimension that only isl's iterators count."""
    first, _ = written(JACOBI).statements
    code = flat_jacobi().skew(first, "i", "t").tile(first, t=4, i=8).vectorize(first, "i").loops()
    assert code.count("vector(x1) for (i = ") == 2
    assert code.count("vector") == 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_the_compilers_own_schedule_can_be_changed(threads: int) -> None:
    """Its tiles, marks, panels of packed operands and contracted arrays stay through a file, and through a step that leaves their places alone."""
    shapes = np.zeros((1024, 1024), np.float32), np.zeros((1024, 1024), np.float32)
    own = pm.einsum(DENSE.replace("f64", "f32"), threads=threads).lower(*shapes).schedule.check()
    assert str(own.with_tree(own.text())) == str(own)
    parts = [line.partition(":")[0] for line in str(own).splitlines() if line.startswith("S_d")]
    changed = own.sequential(parts[0], own.loops_of(parts[0])[-1])
    shapes_of = [{name: s.shape for name, s in made.schedule.storage.items()} for made in (own, changed)]
    assert shapes_of[0] == shapes_of[1] != {}
