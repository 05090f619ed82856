"""Every transformation: one use that keeps the result, and one that is refused with the dependence it would break."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyml.errors import IllegalScheduleError, TransformError
from polyml.user_schedule import UserSchedule
from tests.schedule.transforms.support import BLUR, DENSE, JACOBI, SEIDEL, TOTAL, TRIANGLE, assert_same, written


def _A() -> str:
    """The one statement of the Seidel program (copies and renamings number the names)."""
    return written(SEIDEL).statements[-1]


def shifted_blur() -> UserSchedule:
    """Rows of h just ahead of the rows of y that need them."""
    horizontal, vertical = written(BLUR).statements[-2:]
    return written(BLUR).shift(vertical, i=1).fuse(horizontal, vertical)


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
    "contract": (DENSE, lambda: fused_dense().contract()),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_result_stays(name: str) -> None:
    text, make = WORKS[name]
    assert_same(make().check(), written(text))


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
        assert violation.kind in ("flow", "anti", "output", "reduction")
