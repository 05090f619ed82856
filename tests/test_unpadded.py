"""Copies with zeros around a tensor are left out of the plan where nothing reads the zeros."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import polyml
from polyml.compiler.constants import lower_bound
from polyml.compiler.unpadded import without_padded_copies
from polyml.graph.plan import Launch, Plan
from polyml.target import Target
from tests.codegen.passes.sums.test_skip_zeros import PADDED, expected

TARGET = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=1)
PAD = "pad({}, ((0, 0), (1, 1), (1, 1)))[c, h + r, v + s]"
Numbers = npt.NDArray[np.float64]


def plan_of(text: str, constants: set[str], *shapes: tuple[int, ...]) -> Plan:
    program = polyml.einsum(text, target=TARGET, threads=1)
    values = [np.zeros(shape, np.float32) for shape in shapes]
    return lower_bound(program.program, program.key_of(*values), program.options, constants).calls[1]


def launches(plan: Plan) -> int:
    return sum(isinstance(step, Launch) for step in plan.steps)


def test_a_layer_is_one_region() -> None:
    for side in (7, 14, 28, 56):
        plan = plan_of(PADDED.format(1, 1, 1, 1), {"w"}, (64, side, side), (96, 64, 3, 3))
        assert str(plan).startswith(f"launch region 0 (f_1_w_panels, x_padded in x from {-side - 1} on, y")
        assert len(plan.steps) == 1


def test_what_is_shown_is_what_runs() -> None:
    text, w = PADDED.format(1, 1, 1, 1), np.zeros((96, 64, 3, 3), np.float32)
    for side, runs in (14, ["f_1"]), (32, ["f_0", "f_1"]):
        x = np.zeros((64, side, side), np.float32)
        lowered = polyml.einsum(text, target=TARGET, threads=1).lower(x, w)
        assert [region.region.name for region in lowered.stages.regions] == ["f_0", "f_1"]
        llvm = lowered.text("llvm")
        assert [name for name in ("f_0", "f_1") if f"define i32 @{name}(" in llvm] == runs
        assert lowered.text("plan").count("launch") == len(runs)
        for explained in (lowered.explain(), polyml.einsum(text, target=TARGET, threads=1).bind(w=w).explain(x)):
            assert ("never launched: nothing reads the zeros" in explained) == (len(runs) == 1)


def test_planes_that_would_meet_in_caches_are_kept_apart() -> None:
    assert launches(plan_of(PADDED.format(1, 1, 1, 1), {"w"}, (64, 32, 32), (96, 64, 3, 3))) == 2
    assert launches(plan_of(PADDED.format(1, 1, 1, 1), {"w"}, (8, 32, 32), (96, 8, 3, 3))) == 1


def test_a_copy_that_somebody_asks_for_stays() -> None:
    text = """def f(x: f32["C H W"], w: f32["O C 3 3"]):
        z[c, h, v] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, h, v]
        y[o, h, v] = z[c, h + r, v + s] * w[o, c, r, s]
        return y, z
    """
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (40, 14, 14)), rng.integers(-9, 9, (32, 40, 3, 3))
    y, z = polyml.einsum(text).bind(w=w.astype(np.float32))(x.astype(np.float32))
    np.testing.assert_array_equal(z, np.pad(x, ((0, 0), (1, 1), (1, 1))))
    np.testing.assert_array_equal(y, expected(x.astype(float), w.astype(float), 1, 1, 1, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("side", "size", "numbers"),
    [
        (28, 3, (1, 1, 1, 1)),
        (14, 3, (1, 1, 1, 1)),
        (7, 3, (1, 1, 1, 1)),
        (13, 5, (2, 2, 1, 1)),
        (14, 3, (4, 4, 1, 4)),
        (27, 3, (1, 1, 2, 1)),
        (12, 3, (0, 2, 1, 1)),
        (12, 3, (2, 0, 1, 1)),
        (6, 3, (7, 7, 1, 1)),
        (1, 3, (1, 1, 1, 1)),
    ],
)
@pytest.mark.few(1)
def test_nothing_beside_the_tensor_is_read(
    side: int, size: int, numbers: tuple[int, int, int, int], dtype: str
) -> None:
    rng = np.random.default_rng(side)
    x, w = rng.integers(-9, 9, (40, side, side)), rng.integers(-9, 9, (33, 40, size, size))
    around = np.full(x.size + 4000, np.nan, dtype)
    inside = around[2000 : 2000 + x.size].reshape(x.shape)
    inside[...] = x
    layer = polyml.einsum(PADDED.format(*numbers).replace("f32", f"f{8 * around.itemsize}")).bind(w=w.astype(dtype))
    np.testing.assert_array_equal(layer(inside), expected(x.astype(float), w.astype(float), *numbers))


def test_rows_that_are_not_neighbours() -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(-9, 9, (40, 19, 35)).astype(np.float32)
    w = rng.integers(-9, 9, (32, 40, 3, 3)).astype(np.float32)
    layer = polyml.einsum(PADDED.format(1, 1, 1, 1)).bind(w=w)
    for x in (whole[:, 2:16, 5:19], whole[:, ::-1, ::-2], whole[::-1, 1:15, 3:30:2]):
        np.testing.assert_array_equal(layer(x), expected(x.astype(float), w.astype(float), 1, 1, 1, 1))


def network(*layers: str) -> str:
    weights = ", ".join(f'w{k}: f32["32 32 3 3"]' for k in range(len(layers)))
    lines = [f"t{k}[o, h, v] = relu({layer})" for k, layer in enumerate(layers)]
    body = "\n    ".join(lines)
    return f'def net(x: f32["32 14 14"], {weights}):\n    {body}\n    return t{len(layers) - 1}\n'


def layer(number: int, source: str, *added: str) -> str:
    return " + ".join([f"{PAD.format(source)} * w{number}[o, c, r, s]", *(f"{name}[o, h, v]" for name in added)])


NETWORKS = {
    "chain": [("x",), ("t0",), ("t1",), ("t2",), ("t3",)],
    "residual": [("x",), ("t0", "x"), ("t1",), ("t2", "t1"), ("t3",), ("t4", "t3")],
    "later": [("x",), ("t0",), ("t1", "t0"), ("t2", "t0"), ("t3", "t2", "t1")],
    "twice": [("x",), ("t0",), ("t0", "t1"), ("t1", "t2"), ("t0", "t3")],
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.few(1)
def test_tensors_between_layers(name: str) -> None:
    sources = NETWORKS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 14, 14))
    weights = [rng.standard_normal((32, 32, 3, 3)) / 17 for _ in sources]
    text = network(*(layer(k, *own) for k, own in enumerate(sources)))
    plan = plan_of(text, {f"w{k}" for k in range(len(sources))}, x.shape, *(w.shape for w in weights))
    assert launches(plan) == len(sources)
    values: dict[str, Numbers] = {"x": x}
    for k, (source, *added) in enumerate(sources):
        made = expected(values[source], weights[k], 1, 1, 1, 1) + sum(values[a] for a in added)
        values[f"t{k}"] = np.maximum(made, 0)
    bound = {f"w{k}": w.astype(np.float32) for k, w in enumerate(weights)}
    net = polyml.einsum(text, threads=1 + len(sources) % 2).bind(**bound)
    for _ in range(2):
        np.testing.assert_allclose(net(x.astype(np.float32)), values[f"t{len(sources) - 1}"], atol=1e-4)


def test_weights_that_are_not_bound() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (40, 28, 28)), rng.integers(-9, 9, (32, 40, 3, 3))
    values, text = [a.astype(np.float32) for a in (x, w)], PADDED.format(1, 1, 1, 1)
    stages = polyml.einsum(text, target=TARGET, threads=1).lower(*values).stages
    plan, functions = without_padded_copies(
        stages.plan, stages.functions, [lowered.region for lowered in stages.regions]
    )
    assert str(plan) == "launch region 0 (x_padded in x from -29 on, w, y)"
    assert len(functions) == 1
    found = polyml.einsum(text, threads=1)(*values)
    np.testing.assert_array_equal(found, expected(x.astype(float), w.astype(float), 1, 1, 1, 1))
