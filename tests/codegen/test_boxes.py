"""Trees over boxes are scanned without isl: the loops are those of isl's code, and what is beyond boxes is left to it."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.codegen import generate as stage
from polyml.codegen.boxes import scan_boxes
from polyml.codegen.instances import scan_by_isl
from polyml.codegen.loops import Function
from polyml.codegen.printer import loops_text
from polyml.schedule.schedule import Schedule
from polyml.user_schedule import UserSchedule
from tests.schedule.transforms.support import results

AVX2 = pm.Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024)
AVX512 = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 * 1024 * 1024)

BOXES = {
    "panels, blocks of the sum": ("y[i, j] = x[i, k] * w[k, j]", (700, 900), (900, 520)),
    "rest columns": ("y[o, p] = w[o, c] * x[c, p]", (96, 130), (130, 49)),
    "rows that are turned": ("y[i, j] = x[k, i] * w[k, j]", (64, 100), (64, 37)),
    "batches": ("y[b, i, j] = x[b, i, k] * w[b, k, j]", (3, 33, 20), (3, 20, 41)),
    "a window": ("y[i, j] = x[i + r, j + s] * w[r, s]", (30, 61), (3, 5)),
    "steps of a window": ("y[i, j] = x[2*i + r, 2*j + s] * w[r, s]", (31, 61), (3, 3)),
    "one element": ("y[i] = x[i, k] * w[k]", (1, 1), (1,)),
    "four indices": ("y[d, b, c, a] = x[c, e, a] * w[b, d, e]", (12, 18, 20), (18, 10, 18)),
    "by elements": ("y[i, j] = relu(x[i, j]) + w[j]", (7, 33), (33,)),
    "a softmax": ("m[i] = max[j](x[i, j])\n    e[i, j] = exp(x[i, j] - m[i]) * w[j]\n    y[i, j] = e[i, j] / sum[k](e[i, k])", (9, 70), (70,)),
}  # fmt: skip


def schedules(text: str, *shapes: tuple[int, ...], target: pm.Target = AVX2) -> list[Schedule]:
    letters = "ABCDEFG"
    declared = ", ".join(
        f'{name}: f32["{" ".join(f"{name.upper()}{letters[k]}" for k in range(len(shape)))}"]'
        for name, shape in zip("xw", shapes, strict=True)
    )
    if text.startswith("y[o"):
        declared = declared.replace("x:", "t:").replace("w:", "x:").replace("t:", "w:")
    program = pm.einsum(f"def program({declared}):\n    {text}\n    return y\n", target=target)
    lowered = program.lower(*(np.zeros(shape, np.float32) for shape in shapes))
    return [made.schedule for made in lowered.schedules.values()]


def by_isl(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> Function:
    with monkeypatch.context() as patched:
        patched.setattr(stage, "scan_schedule", scan_by_isl)
        return stage.generate(schedule, name="f")


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("name", BOXES)
def test_loops_are_those_of_isl(name: str, target: pm.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for schedule in schedules(*BOXES[name], target=target):
        assert scan_boxes(schedule) is not None
        found = stage.generate(schedule, name="f")
        assert loops_text(found) == loops_text(by_isl(schedule, monkeypatch))
        assert found == by_isl(schedule, monkeypatch)


def dense(n: int, m: int, k: int) -> UserSchedule:
    program = pm.einsum("def f(x: f64['N K'], w: f64['K M']):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n")
    return program.lower(np.zeros((n, k)), np.zeros((k, m))).schedule.written()


@pytest.mark.parametrize("size", [5, 6, 7, 12, 13, 96])
def test_tiles_of_tiles(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tiled = dense(size, 24, 7).fuse("S_y_init", "S_y", depth=2).tile("S_y", n=(12, 6), m=8)
    assert scan_boxes(tiled.schedule) is not None
    assert stage.generate(tiled.schedule, name="f") == by_isl(tiled.schedule, monkeypatch)


@pytest.mark.parametrize("at", [1, 8, 12, 16, 23])
def test_parts_of_a_box(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = dense(5, 24, 3).fuse("S_y_init", "S_y", depth=2)
    cut = start.index_set_split("S_y", "m", at)
    assert stage.generate(cut.schedule, name="f") == by_isl(cut.schedule, monkeypatch)
    # Tiles that one part or the other has nothing of: isl leaves out conditions where loops are empty, and bounds say less then.
    within = start.tile("S_y", m=8).index_set_split("S_y", "m", at)
    assert (scan_boxes(within.schedule) is not None) == (at == 16)
    found = results(within)
    with monkeypatch.context() as patched:
        patched.setattr(stage, "scan_schedule", scan_by_isl)
        np.testing.assert_array_equal(found["y"], results(within)["y"])


def test_what_is_no_box_is_left_to_isl() -> None:
    start = dense(9, 24, 7)
    assert scan_boxes(start.schedule) is not None
    assert scan_boxes(start.skew("S_y", "m", "n", 1).schedule) is None
    assert scan_boxes(start.reverse("S_y", "m").schedule) is None
    triangle = pm.einsum("def f(x: f64['N N']):\n    s[i] = sum[j, j < i](x[i, j])\n    return s\n")
    assert [scan_boxes(s.schedule) for s in triangle.lower(np.zeros((9, 9))).schedules.values()] == [None]
    any_size = pm.einsum("def f(x: f64['N M']):\n    y[i, j] = x[i, j] + 1\n    return y\n", dynamic=True)
    assert [scan_boxes(s.schedule) for s in any_size.lower(np.zeros((9, 9))).schedules.values()] == [None]
