"""Trees over boxes are scanned without isl: the loops are those of isl's code, and what is beyond boxes is left to it."""

from __future__ import annotations

import random

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


SLANTED = {
    "taps at the edges": """
def f(x: f32["C H V"], w: f32["C O R S"]):
    y: f32["O 21 21"] = 0
    y[o, 2*i + r, 2*j + s] += x[c, i, j] * w[c, o, r, s]
    return y
""",
    "tiles that begin at 1, tiles that do not, parts at both ends": """
def f(x: f32["C H V"], w: f32["C O R S"]):
    y: f32["O 28 28"] = 0
    if 0 <= 3*i + r - 1 < 28 and 0 <= 3*j + s - 1 < 28:
        y[o, 3*i + r - 1, 3*j + s - 1] += x[c, i, j] * w[c, o, r, s]
    return y
""",
    "sums of terms, phases of unequal lengths": """
def f(x: f32["C H V"], w: f32["C O R S"]):
    y: f32["64 38 38"] = 0
    if 0 <= 4*i + r - 3 < 38 and 0 <= 4*j + s - 3 < 38:
        y[o, 4*i + r - 3, 4*j + s - 3] += x[c, i, j] * w[c, o, r, s]
    return y
""",
    "steps of a window in phases": """
def f(x: f32["C H V"], w: f32["C R S"]):
    y[c, i, j] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, 2*i + r, 2*j + s] * w[c, r, s]
    return y
""",
    "a triangle": """
def f(x: f32["C H V"], w: f32["C R S"]):
    y[i, j] = sum[c, c <= i, i < H, j < V](x[c, i, j]) + w[0, 0, 0]
    return y
""",
}  # fmt: skip
SHAPES = {
    "taps at the edges": ((4, 10, 10), (4, 16, 3, 3)),
    "tiles that begin at 1, tiles that do not, parts at both ends": ((4, 9, 9), (4, 8, 5, 5)),
    "sums of terms, phases of unequal lengths": ((96, 10, 10), (96, 64, 7, 7)),
    "steps of a window in phases": ((8, 112, 112), (8, 3, 3)),
    "a triangle": ((9, 9, 12), (9, 1, 1)),
}


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
@pytest.mark.few(9)
def test_loops_are_those_of_isl(name: str, target: pm.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for schedule in schedules(*BOXES[name], target=target):
        assert scan_boxes(schedule) is not None
        found = stage.generate(schedule, name="f")
        assert loops_text(found) == loops_text(by_isl(schedule, monkeypatch))
        assert found == by_isl(schedule, monkeypatch)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("name", SLANTED)
@pytest.mark.few(3)
def test_indices_that_bound_each_other(name: str, target: pm.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = pm.einsum(SLANTED[name], target=target).lower(*(np.zeros(shape, np.float32) for shape in SHAPES[name]))
    slanted = 0
    for made in lowered.schedules.values():
        schedule = made.schedule
        found = scan_boxes(schedule)
        slanted += found is not None and not all(s.domain.is_box() for s in schedule.scop.statements.values())
        if found is not None:
            assert stage.generate(schedule, name="f") == by_isl(schedule, monkeypatch)
    assert slanted


STEPS = {
    2: """
def f(x: f32["C H V"], w: f32["C O R S"]):
    y: f32["O 33 33"] = 0
    y[o, 2*i + r, 2*j + s] += x[c, i, j] * w[c, o, r, s]
    return y
""",
    3: """
def f(x: f32["C H"], w: f32["C O R"]):
    y: f32["O 1500"] = 0
    if 0 <= 3*i + r - 1 < 1500:
        y[o, 3*i + r - 1] += x[c, i] * w[c, o, r]
    return y
""",
}


@pytest.mark.parametrize(
    ("step", "shapes"),
    [pytest.param(2, ((128, 16, 16), (128, 64, 3, 3)), marks=pytest.mark.slow), (3, ((64, 500), (64, 64, 5)))],
)
def test_loops_in_steps(step: int, shapes: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second or third tap, where terms that are not finite are added up in the written order: r with (i + r) % 2 == 0."""
    lowered = pm.einsum(STEPS[step], target=AVX2).lower(*(np.zeros(shape, np.float32) for shape in shapes))
    found = [made.schedule for made in lowered.schedules.values()]
    texts = [loops_text(stage.generate(schedule, name="f")) for schedule in found if scan_boxes(schedule) is not None]
    assert any(f"r += {step})" in text for text in texts)
    for schedule in found:
        assert stage.generate(schedule, name="f") == by_isl(schedule, monkeypatch)


def condition(rng: random.Random) -> str:
    """An inequality, a congruence or an equation of one to three indices."""
    used = rng.sample("ijk", rng.choice((1, 2, 2, 3)))
    total = " + ".join(f"{rng.choice((1, 1, 1, -1, -1, 2, -2, 3))}*{index}" for index in used)
    number, divisor = rng.randint(-6, 12), rng.choice((2, 3, 4))
    texts = [f"{total} <= {number}", f"{total} >= {-number}", f"({total}) % {divisor} == {number % divisor}"]
    return rng.choice([texts[0], *texts, f"{total} == {number}"])


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.few(16)
def test_any_conditions(seed: int) -> None:
    """Whichever of them are scanned without isl: each element is added once, and no other."""
    rng = random.Random(seed)
    shape = tuple(rng.choice((1, 2, 3, 5, 8, 13)) for _ in "ijk")
    left = rng.choice(("i", "ij", ""))
    summed = [index for index in "ijk" if index not in left]
    conditions = [condition(rng) for _ in range(rng.choice((1, 2, 3)))]
    place = f"y[{', '.join(left)}]" if left else "y"
    text = f"def f(x: f64['I J K']):\n    {place} = sum[{', '.join(summed + conditions)}](x[i, j, k])\n    return y\n"
    x = np.random.default_rng(seed).standard_normal(shape)
    inside = np.ones(shape, bool)
    for one in conditions:
        inside &= eval(one, dict(zip("ijk", np.indices(shape), strict=True)))
    expected = np.where(inside, x, 0).sum(tuple("ijk".index(index) for index in summed))
    np.testing.assert_allclose(pm.einsum(text, target=AVX2, threads=1, verify=True)(x), expected, atol=1e-12)


WEIGHTS = """
def f(x: f32["B C H V"], d: f32["B O P Q"]):
    g: f32["64 64 3 3"] = 0
    g[o, c, r, s] += x[b, c, 2*p + r, 2*q + s] * d[b, o, p, q]
    return g
"""


def test_the_first_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over several loops of blocks begin where all of these do: one condition of two parts."""
    x, d = np.zeros((4, 64, 57, 57), np.float32), np.zeros((4, 64, 28, 28), np.float32)
    found = list(pm.einsum(WEIGHTS, target=AVX2).lower(x, d).schedules.values())
    assert any(" and " in loops_text(stage.generate(made.schedule, name="f")) for made in found)
    for made in found:
        assert scan_boxes(made.schedule) is not None
        assert stage.generate(made.schedule, name="f") == by_isl(made.schedule, monkeypatch)


def test_tiles_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of eight in blocks of 252."""
    program = pm.einsum(
        "def f(x: f64['K N'], w: f64['K M']):\n    y[n, m] = x[k, n] * w[k, m]\n    return y\n", target=AVX2, threads=1
    )
    for made in program.lower(np.zeros((1000, 1000)), np.zeros((1000, 1000))).schedules.values():
        assert "8*(k//8)" in str(made.schedule.tree) or "252" in loops_text(stage.generate(made.schedule, name="f"))
        assert scan_boxes(made.schedule) is not None
        assert stage.generate(made.schedule, name="f") == by_isl(made.schedule, monkeypatch)


def dense(n: int, m: int, k: int) -> UserSchedule:
    program = pm.einsum("def f(x: f64['N K'], w: f64['K M']):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n")
    return program.lower(np.zeros((n, k)), np.zeros((k, m))).schedule.written()


@pytest.mark.parametrize("size", [5, 6, 7, 12, 13, 96])
def test_tiles_of_tiles(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tiled = dense(size, 24, 7).fuse("S_y_init", "S_y", depth=2).tile("S_y", n=(12, 6), m=8)
    assert scan_boxes(tiled.schedule) is not None
    assert stage.generate(tiled.schedule, name="f") == by_isl(tiled.schedule, monkeypatch)


@pytest.mark.parametrize("at", [1, 8, 12, 16, 23])
@pytest.mark.few(3)
def test_parts_of_a_box(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = dense(5, 24, 3).fuse("S_y_init", "S_y", depth=2)
    cut = start.index_set_split("S_y", "m", at)
    assert stage.generate(cut.schedule, name="f") == by_isl(cut.schedule, monkeypatch)
    # Tiles that one part or the other has nothing of: isl leaves out conditions where loops are empty, and bounds say less then.
    within = start.tile("S_y", m=8).index_set_split("S_y", "m", at)
    assert (scan_boxes(within.schedule) is not None) == (at in (16, 23))
    found = results(within)
    with monkeypatch.context() as patched:
        patched.setattr(stage, "scan_schedule", scan_by_isl)
        np.testing.assert_array_equal(found["y"], results(within)["y"])


def test_what_is_no_box_is_left_to_isl() -> None:
    start = dense(9, 24, 7)
    assert scan_boxes(start.schedule) is not None
    assert scan_boxes(start.skew("S_y", "m", "n", 1).schedule) is None
    assert scan_boxes(start.reverse("S_y", "m").schedule) is None
    strides = pm.einsum("def f(x: f64['N N']):\n    s[i] = sum[j, (i + j) % 3 < 2](x[i, j])\n    return s\n")
    assert [scan_boxes(s.schedule) for s in strides.lower(np.zeros((9, 9))).schedules.values()] == [None]
    any_size = pm.einsum("def f(x: f64['N M']):\n    y[i, j] = x[i, j] + 1\n    return y\n", dynamic=True)
    assert [scan_boxes(s.schedule) for s in any_size.lower(np.zeros((9, 9))).schedules.values()] == [None]
