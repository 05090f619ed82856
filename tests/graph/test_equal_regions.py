"""Regions that are the same but for names and places: one is compiled, and launched with the arrays of each; what differs in anything else stays apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import polyml
from polyml.graph.host_steps import Launch
from polyml.testing import verify
from polyml.testing.c_program import CProgram


def launches(text: str, *arguments: object, **options: object) -> list[int]:
    """The numbers of the regions in the order in which they run, each statement a region of its own."""
    options = {"fusion": False, **options}
    program = polyml.einsum(text, **options)
    stages = program.lower(*arguments).stages
    found = [step.region for step in stages.plan.steps if isinstance(step, Launch)]
    assert sorted(set(found)) == list(range(len(stages.regions)))
    return found


def program(lines: Sequence[str], *, results: str, parameters: str = 'x: f32["N N"]') -> str:
    return f"def f({parameters}):\n    " + "\n    ".join([*lines, f"return {results}"]) + "\n"


def x(n: int = 8) -> np.ndarray:
    return np.random.default_rng(0).random((n, n), np.float32)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_layers_are_one_region(dynamic: bool) -> None:
    count = 3 if dynamic else 5
    layers = [f"h{k + 1}[i,j] = h{k}[i,k]*w{k}[k,j]" for k in range(1, count + 1)]
    weights = ", ".join(f'w{k}: f32["N N"]' for k in range(1, count + 1))
    text = program(layers, results=f"h{count + 1}", parameters=f'h1: f32["N N"], {weights}')
    arguments = [x(), *(x() + k for k in range(count))]
    # The last one's result is the caller's alone.
    assert launches(text, *arguments, dynamic=dynamic) == [*[0] * (count - 1), 1]
    expected = arguments[0]
    for weight in arguments[1:]:
        expected = expected @ weight
    np.testing.assert_allclose(polyml.einsum(text, fusion=False, dynamic=dynamic)(*arguments), expected, rtol=1e-5)


def test_results_of_any_size_are_those_of_one_region() -> None:
    lines = [f"h{k + 1}[i,j] = h{k}[i,j]*w{k}[j,i]" for k in range(3)]
    text = program(
        lines, results="h1, h2, h3", parameters=", ".join(f'{n}: f32["N N"]' for n in ("h0", "w0", "w1", "w2"))
    )
    arguments = [x(), *(x() + k for k in range(3))]
    assert launches(text, *arguments, dynamic=True) == [0, 0, 1]
    expected = arguments[0]
    for found, weight in zip(polyml.einsum(text, fusion=False, dynamic=True)(*arguments), arguments[1:], strict=True):
        expected = expected * weight.T
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_names_of_indices_and_loops_do_not_count() -> None:
    def steps(variable: str, index: str, name: str) -> list[str]:
        loop = [f"for {variable} in range(1, N):", f"    {name}[{variable},{index}] += {name}[{variable}-1,{index}]"]
        return [f"{name}[{index},z] = x[{index},z]*2", *loop]

    text = program([*steps("t", "i", "a"), *steps("s", "j", "b")], results="a, b")
    assert launches(text, x()) == [0, 1, 0, 1]
    for made in polyml.einsum(text, fusion=False)(x()):
        np.testing.assert_allclose(made, np.cumsum(2 * x(), axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x[i,j] + 1", "x[i,j] + 2"),
        ("x[i,j] * 0.5", "x[i,j] * 0.25"),
        ("x[i,j] + 0.0", "x[i,j] - 0.0"),
        ("exp(x[i,j])", "log(x[i,j])"),
        ("x[i,j] + x[j,i]", "x[j,i] + x[j,i]"),
        ("x[i,j] * y[i,j]", "x[i,j] * x[i,j]"),
        ("sum[k](x[i,k] + y[j,k])", "max[k](x[i,k] + y[j,k])"),
        ("sum[k, k < i](x[i,k] + y[j,k])", "sum[k, k <= i](x[i,k] + y[j,k])"),
        ("x[i,j] + i", "x[i,j] + j"),
    ],
)
def test_other_computations_are_other_regions(one: str, other: str) -> None:
    text = program([f"a[i,j] = {one}", f"b[i,j] = {other}"], results="a, b", parameters='x: f32["N N"], y: f32["N N"]')
    assert launches(text, x(), x() + 1) == [0, 1]


def test_shapes_types_and_strides_count() -> None:
    lines = ["a[i,j] = v[i,j] * 3", "b[i,j] = w[i,j] * 3"]
    parameters = 'v: f32["N M"], w: f32["K L"]'
    assert launches(program(lines, results="a, b", parameters=parameters), x(8), x(8)) == [0, 0]
    assert launches(program(lines, results="a, b", parameters=parameters), x(8), x(9)) == [0, 1]
    assert launches(program(lines, results="a, b", parameters=parameters), x(8), x(8).T) == [0, 1]
    parameters = 'v: f32["N M"], w: f64["K L"]'
    assert launches(program(lines, results="a, b", parameters=parameters), x(8), x(8).astype("f8")) == [0, 1]


def test_updates_in_place_are_told_from_new_results() -> None:
    text = program(
        ["v[i,j] = 2*v[i,j] + 1", "a[i,j] = 2*w[i,j] + 1"], results="a", parameters='v: f32["N N"], w: f32["N N"]'
    )
    assert launches(text, x(), x()) == [0, 1]


def test_two_updates_in_place_are_one_region() -> None:
    lines = ["v[i,j] = 2*v[i,j] + 1", "w[i,j] = 2*w[i,j] + 1"]
    text = f'def f(v: f32["N N"], w: f32["N N"]):\n    {lines[0]}\n    {lines[1]}\n'
    v, w = x(), x() + 1
    assert launches(text, v, w) == [0, 0]
    polyml.einsum(text, fusion=False)(v, w)
    np.testing.assert_array_equal(v, 2 * x() + 1)
    np.testing.assert_array_equal(w, 2 * (x() + 1) + 1)


def test_a_schedule_by_hand_and_c_are_those_of_the_one_region() -> None:
    text = program(
        ["a[i,j] = v[i,j] * 3", "b[i,j] = w[i,j] * 3"], results="a, b", parameters='v: f32["N N"], w: f32["N N"]'
    )
    lowered = polyml.einsum(text, fusion=False).lower(x(), x() + 1)
    (schedule,) = lowered.schedules.values()
    a, b = lowered.with_schedule(schedule).compile()(x(), x() + 1)
    np.testing.assert_array_equal(a, 3 * x())
    np.testing.assert_array_equal(b, 3 * (x() + 1))
    assert lowered.text("c").count("* 3") <= 2
    assert lowered.text("plan").count("launch region 0") == 2


def test_bound_weights_are_packed_once_each_by_one_function() -> None:
    n = 256
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((n, n), np.float32) / 16 for k in range(4)}
    layers = [f"h{k + 1}[i,j] = relu(h{k}[i,k]*w{k}[k,j])" for k in range(4)]
    parameters = 'h0: f32["M N"], ' + ", ".join(f'{name}: f32["N N"]' for name in weights)
    x = rng.standard_normal((32, n), np.float32)
    expected = x
    for weight in weights.values():
        expected = np.maximum(expected @ weight, 0)
    text = program(layers, results="h4", parameters=parameters)
    bound = polyml.einsum(text).bind(**weights)
    stages = bound.lower(x).stages
    launched = [step for step in stages.plan.steps if isinstance(step, Launch)]
    assert [step.region for step in launched] == [0, 0, 0, 1]
    packed = [a.buffer for step in launched for a in step.arguments if "panels" in a.array]
    assert len(packed) == len(set(packed)) == 4
    assert "launched 3 times" in bound.lower(x).explain()
    for _ in range(2):
        np.testing.assert_allclose(bound(x), expected, rtol=1e-3, atol=1e-4)


def test_a_bound_weight_is_told_from_one_that_is_given() -> None:
    parameters = 'x: f32["N N"], v: f32["N N"], w: f32["N N"]'
    text = program(["a[i,j] = x[i,k]*v[k,j]", "b[i,j] = x[i,k]*w[k,j]"], results="a, b", parameters=parameters)
    stages = polyml.einsum(text, fusion=False).bind(v=x(48)).lower(x(48), x(48) + 1).stages
    assert len(stages.regions) == 2
    a, b = polyml.einsum(text, fusion=False).bind(v=x(48))(x(48), x(48) + 1)
    np.testing.assert_allclose(a, x(48) @ x(48), rtol=1e-5)
    np.testing.assert_allclose(b, x(48) @ (x(48) + 1), rtol=1e-5)


SLICES = [
    "h1[i,j] = h0[i,k]*w[0,k,j]",
    "h2[i,j] = h1[i,k]*w[1,k,j]",
    "h3[i,j] = h2[i,k]*w[2,k,j]",
    "y[i,j] = h3[i,j] + 1",
]


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_layers_of_one_tensor_are_one_region(bound: bool, strided: bool) -> None:
    text = program(SLICES, results="y", parameters='h0: f32["N N"], w: f32["L N N"]')
    w = np.random.default_rng(1).random((3, 48, 96 if strided else 48), np.float32)[:, :, :: 2 if strided else 1]
    h = x(48)
    expected = h @ w[0] @ w[1] @ w[2] + 1
    prepared = polyml.einsum(text, fusion=False, verify=True)
    prepared = prepared.bind(w=w) if bound else prepared
    arguments = [h] if bound else [h, w]
    stages = prepared.lower(*arguments).stages
    assert [step.region for step in stages.plan.steps if isinstance(step, Launch)] == [0, 0, 0, 1]
    np.testing.assert_allclose(prepared(*arguments), expected, rtol=1e-5)


BOXES = """
def f(v: f32["N N"], x: f32["M K"]):
    v[0, j+1] = x[j, 1] + 1
    v[1, j+2] = x[j, 2] + 1
    v[3, j+7] = x[j, 0] + 1
    v[i+2, i+1] = x[i, 0] + 1
    return v
"""


def updated(v: np.ndarray, x: np.ndarray) -> np.ndarray:
    v, n = v.copy(), len(x)
    for k, (row, column) in enumerate([(0, 1), (1, 2), (3, 7)]):
        v[row, column : column + n] = x[:, (1, 2, 0)[k]] + 1
    v[2 + np.arange(n), 1 + np.arange(n)] = x[:, 0] + 1
    return v


@pytest.mark.parametrize("strided", [False, True])
def test_boxes_of_an_array(strided: bool) -> None:
    """What is beside them stays as it was; a diagonal is no box."""
    step = 2 if strided else 1
    v, given = x(40)[::step, ::step][:20, :20], x(10)[:5]
    expected = updated(v, given)
    assert launches(BOXES, v, given) == [0, 0, 0, 1]
    np.testing.assert_array_equal(polyml.einsum(BOXES, fusion=False, verify=True)(v, given), expected)


def test_boxes_in_c() -> None:
    lowered = polyml.einsum(BOXES, fusion=False).lower(x(20), x(10)[:5].copy())
    assert "x_part in x from 2 on" in lowered.text("plan")
    v, given = x(20), x(10)[:5].copy()
    expected = updated(v, given)
    np.testing.assert_array_equal(CProgram(lowered)(v, given)[0], expected)


@pytest.mark.parametrize(
    "lines",
    [
        ["v[i+1, i+1] = x[i, 1] + 1", "v[i+2, i+1] = x[i, 1] + 1"],  # no boxes
        ["v[0, j+1] = v[1, j+2] + x[j, 1]", "v[1, j+1] = v[2, j+2] + x[j, 1]"],  # read as well
        ["v[0, j+1] += x[j, 1]", "v[1, j+1] += x[j, 1]"],
        ["v[0, j+1] = x[j, 1]", "v[1, 2*j+1] = x[j, 1]"],  # rows with gaps
        ["v[0, j+1] = x[j, 0]", "v[1, j+1] = x[j // 2, 0]"],
    ],
)
def test_what_is_no_box_stays_apart(lines: list[str]) -> None:
    text = program(lines, results="v", parameters='v: f32["N N"], x: f32["M K"]')
    assert launches(text, x(20), x(10)[:5]) == [0, 1]
    assert verify(text, x(20), x(10)[:5], fusion=False)
