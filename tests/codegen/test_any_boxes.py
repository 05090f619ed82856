"""Trees over boxes of symbolic sizes are scanned without isl: what the loops compute is what isl's do, at sizes with and without rests, and what is beyond boxes is left to it."""

from __future__ import annotations

import re

import islpy as isl
import numpy as np
import pytest

import polyml as pm
from polyml.codegen import generate as stage
from polyml.codegen.any_boxes import scan_any_boxes
from polyml.codegen.instances import scan_by_isl
from polyml.codegen.interpret import interpret
from polyml.codegen.loops import For, Function, If
from polyml.codegen.rewrite import walk_nodes
from polyml.codegen.scanned import Code
from polyml.codegen.size_facts import SizeFacts, facts_of
from polyml.schedule.schedule import Schedule
from polyml.sets.affine import Affine, FloorDiv, affine

SMALL = pm.Target("x86-64-v3", l1_bytes=4096, l2_bytes=16384)
"""Its blocks are short enough to go beyond in an interpreter."""
AVX512 = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 * 1024 * 1024)

BOXES: dict[str, tuple[str, int]] = {
    "a product": ('x: f32["N K"], w: f32["K M"]):\n    y[i, j] = x[i, k] * w[k, j]', 3),
    "the first operand turned": ('x: f32["K N"], w: f32["K M"]):\n    y[i, j] = x[k, i] * w[k, j]', 3),
    "batches": ('x: f32["B N K"], w: f32["B K M"]):\n    y[b, i, j] = x[b, i, k] * w[b, k, j]', 4),
    "two indices of the sum": ('x: f32["N K L"], w: f32["L M K"]):\n    y[i, j] = x[i, k, l] * w[l, j, k]', 4),
    "a bias": ('x: f32["N K"], w: f32["K M"], b: f32["M"]):\n    y[i, j] = relu(x[i, k] * w[k, j] + b[j])', 3),
    "f64": ('x: f64["N K"], w: f64["K M"]):\n    y[i, j] = x[i, k] * w[k, j]', 3),
    "by elements": ('x: f32["N M"], w: f32["M"]):\n    y[i, j] = relu(x[i, j]) + w[j]', 2),
    "a softmax": (
        'x: f32["N M"]):\n    e[i, j] = exp(x[i, j] - max[k](x[i, k]))\n    y[i, j] = e[i, j] / sum[k](e[i, k])',
        2,
    ),
}
TEXTS = {name: f"def f({text}\n    return y\n" for name, (text, _) in BOXES.items()}


def schedules(text: str, monkeypatch: pytest.MonkeyPatch, size: int = 40, **options: object) -> list[Schedule]:
    """Those of all versions of a program for any sizes."""
    program = pm.einsum(text, dynamic=True, **options)
    found: list[Schedule] = []

    def scan(schedule: Schedule) -> Code:
        found.append(schedule)
        return scan_by_isl(schedule)

    declared = [(kind, len(sizes.split())) for kind, sizes in re.findall("f(32|64)\\[[\"']([A-Z ]+)", text)]
    with monkeypatch.context() as patched:
        patched.setattr(stage, "scan_schedule", scan)
        program.lower(*(np.zeros((size,) * rank, f"float{kind}") for kind, rank in declared))
    return found


def by_isl(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> Function:
    with monkeypatch.context() as patched:
        patched.setattr(stage, "scan_schedule", scan_by_isl)
        return stage.generate(schedule, name="f")


def computed(function: Function, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    values = dict(sizes)
    for name, factors in function.products.items():
        values[name] = int(np.prod([factor.evaluate(sizes) for factor in factors]))
    rng = np.random.default_rng(0)
    arrays = {}
    for argument in function.arguments:
        shape = tuple(extent.evaluate(values) for extent in argument.shape)
        arrays[argument.name] = rng.integers(-4, 5, shape).astype(argument.dtype.numpy)
    interpret(function, arrays, sizes)
    return {name: arrays[name] for name in function.written}


def _each_second(first: int) -> list[object]:
    """The others are slow, since isl takes long."""
    marks = [[pytest.mark.slow], []]
    return [pytest.param(name, marks=marks[k % 2 == first]) for k, name in enumerate(BOXES)]


@pytest.mark.parametrize("name", _each_second(0))
@pytest.mark.few(1)
def test_results_are_those_of_isl(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = BOXES[name][1]
    made = schedules(TEXTS[name], monkeypatch, target=SMALL)
    for schedule in made:
        assert scan_any_boxes(schedule) is not None
        function, other = stage.generate(schedule, name="f"), by_isl(schedule, monkeypatch)
        names = [size for size in schedule.scop.sizes if size not in schedule.scop.products]
        for numbers in [(1, 1, 1, 1), (2, 17, 9, 3), (7, 3, 18, 2), (12, 16, 2, 1)]:
            sizes = dict(zip(names, numbers[:rank], strict=False))
            expected = computed(other, sizes)
            for array, values in computed(function, sizes).items():
                np.testing.assert_allclose(values, expected[array], rtol=1e-6)


@pytest.mark.parametrize("name", _each_second(1))
@pytest.mark.few(1)
def test_marks_are_those_of_isl(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for schedule in schedules(TEXTS[name], monkeypatch, size=600, target=AVX512):
        assert scan_any_boxes(schedule) is not None
        kinds = [
            [(node.kind, node.factor, node.step) for node in walk_nodes(function.body) if isinstance(node, For)]
            for function in (stage.generate(schedule, name="f"), by_isl(schedule, monkeypatch))
        ]
        assert kinds[0] == kinds[1]


def test_sizes_of_two_names_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'def f(x: f32["N K"], w: f32["L M"]):\n    y[i, j] = x[i, k] * w[k, j]\n    return y\n'
    for schedule in schedules(text, monkeypatch, target=SMALL):
        assert scan_any_boxes(schedule) is not None
        function, other = stage.generate(schedule, name="f"), by_isl(schedule, monkeypatch)
        sizes = dict.fromkeys(schedule.scop.sizes, 17) | {"N": 7}
        np.testing.assert_array_equal(computed(function, sizes)["y"], computed(other, sizes)["y"])


def test_a_tile_or_none_is_a_condition_with_an_opposite(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of one tile each: a loop over the one tile would look as if another one came behind it, which prefetches fetch."""
    found = 0
    for schedule in schedules(TEXTS["the first operand turned"], monkeypatch, target=SMALL):
        nodes = [
            list(walk_nodes(function.body))
            for function in (stage.generate(schedule, name="f"), by_isl(schedule, monkeypatch))
        ]
        choices = [[node for node in some if isinstance(node, If) and node.otherwise] for some in nodes]
        assert len(choices[0]) == len(choices[1])
        found += len(choices[0])
    assert found


def test_what_is_no_box_is_left_to_isl(monkeypatch: pytest.MonkeyPatch) -> None:
    triangle = "def f(x: f32['N N']):\n    y[i] = sum[j, j < i](x[i, j])\n    return y\n"
    assert [scan_any_boxes(schedule) for schedule in schedules(triangle, monkeypatch)] == [None]
    numbers = pm.einsum("def f(x: f32['N M']):\n    y[i, j] = x[i, j] + 1\n    return y\n").lower(np.zeros((9, 9), "f"))
    assert [scan_any_boxes(made.schedule) for made in numbers.schedules.values()] == [None]


def test_a_piece_that_becomes_several_is_left_to_isl() -> None:
    """Of every second row that is there, of any height, in half precision: its integer divisions take two pieces to say."""
    window = pm.einsum(
        """
def f(x: f16["N C H W"], f: f16["C R S"], b: f16["C"]):
    y: f16["N C 5 6"]
    y[n, c, h, w] = sum[r, s, 0 <= 2*h + r - 3 < H, 0 <= 2*w + s < W](x[n, c, 2*h + r - 3, 2*w + s] * f[c, r, s]) + b[c]
    return y
""",
        dynamic=True,
    )
    rng = np.random.default_rng(0)
    for n, c, height, width in ((1, 17, 7, 11), (2, 3, 6, 9)):
        x, f, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((n, c, height, width), (c, 3, 1), (c,)))
        wide = np.zeros((n, c, 11, 12))
        wide[:, :, 3 : 3 + height, :width] = x
        expected = sum(wide[:, :, r : r + 9 : 2, ::2] * f[None, :, r, 0, None, None] for r in range(3))
        np.testing.assert_array_equal(window(x, f, b), expected + b[:, None, None])


def test_places_that_are_sizes_are_left_to_isl() -> None:
    """Maximal fusion puts a copy behind the loop over a sum of any length: at C, which is no index."""
    text = (
        'def f(x: f32["C H"], w: f32["K C 3"]):\n    y: f32["K H"]\n'
        "    y[k, h] = sum[c, r, 0 <= h + r - 1 < H](x[c, h + r - 1] * w[k, c, r])\n    return y\n"
    )
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (17, 28)).astype("f"), rng.integers(-3, 4, (17, 17, 3)).astype("f")
    padded = np.pad(x, ((0, 0), (1, 1)))
    expected = sum(w[:, :, r] @ padded[:, r : r + 28] for r in range(3))
    np.testing.assert_array_equal(pm.einsum(text, dynamic=True, fusion="maximal")(x, w), expected)


def test_equal_sizes() -> None:
    context = isl.Set("[A, B, C, D, E] -> { : A = C and D = C and B >= 2 and 2*E = A }")
    facts = facts_of(context, ("A", "B", "C", "D", "E"))
    assert facts.least["B"] == 2
    assert facts.same == {"C": affine("A"), "D": affine("A")}
    assert facts.of(affine("D") + affine("C") - affine("B")) == affine("A") * 2 - affine("B")


def test_what_is_sure_of_sizes() -> None:
    n, m = affine("N"), affine("M")

    def quotient(value: Affine, size: int) -> Affine:
        return affine(FloorDiv(value, size))

    facts = SizeFacts({"N": 1})
    assert facts.at_most(quotient(n, 16) * 16, n)
    assert not facts.at_most(n, quotient(n, 16) * 16)
    assert facts.at_most(n, quotient(n, 16) * 16 + 15)
    assert not facts.at_most(n, quotient(n, 16) * 16 + 14)
    assert facts.at_most(quotient(n + 15, 16), quotient(n, 16) + 1)
    assert facts.at_most(quotient(n, 60) * 60, quotient(n, 6) * 6)
    assert facts.at_most(affine(1), quotient(n + 255, 256))
    assert not facts.at_most(affine(1), quotient(n, 256))
    assert facts.at_most(affine(1), n)
    assert not facts.at_most(affine(1), m)
    assert not facts.at_most(n, affine(100))
    assert facts.smallest([n, quotient(n, 16) * 16, m]) == facts.smallest([m, quotient(n, 16) * 16])
    assert facts.smallest([n, n]) == n
