"""Copies of rows with padding around them: loops in parts, of which the middle asks nothing, and the same elements."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.codegen.interpret import interpret
from polyml.codegen.loops import Allocate, Assign, For, Function, Node, Place
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.vectors.cut_edges import _inner, cut_edges
from polyml.codegen.rewrite import variables_of, walk_nodes
from polyml.dtypes import f32
from polyml.expressions import Apply, Expr, Read
from polyml.sets.affine import Affine, affine
from polyml.target import Target
from polyml.testing import verify
from tests.codegen.llvm.support import run_function
from tests.codegen.programs import array, at, call, function, index, local, loop, number, put

I, J, B, T = (affine(name) for name in "ijbt")


def inside(place: Affine, extent: int) -> list[Expr]:
    return [call("ge", index(place), index(0)), call("lt", index(place), index(extent))]


def copy(high: int, wide: int, edge: int, *, gap: int = 1, blocks: int = 0, inner: int = 0) -> Function:
    """z[.., i, (b,) j] = x[i - edge, gap j + b - edge], zero outside; in blocks of rows that overlap by two. inner: the loop over b is inside of the lanes."""
    rows = (high + 2 * edge) if not blocks else (high + 2 * edge - 2) // blocks + 2
    across = -(-(wide + 2 * edge) // gap)
    row = I - edge if not blocks else T * (rows - 2) + I - edge
    column = (J * gap + B - edge) if gap > 1 else J - edge
    conditions = [*inside(row, high), *inside(column, wide)]
    condition = conditions[0]
    for part in conditions[1:]:
        condition = call("and", condition, part)
    value = call("select", condition, at("x", row, column), number(0.0))
    target = put("z", *(["t"] if blocks else []), "i", *(["b"] if gap > 1 else []), "j")
    assign = Assign(target=target, value=value)
    body = loop("b", 0, gap, assign) if inner else assign
    nest: For = loop("j", 0, across, body, kind="vector", factor=2)
    nest = loop("b", 0, gap, nest) if gap > 1 and not inner else nest
    nest = loop("i", 0, rows, nest)
    nest = loop("t", 0, blocks, nest) if blocks else nest
    shape = [*([blocks] if blocks else []), rows, *([gap] if gap > 1 else []), across]
    names = target.subscripts
    out: Node = Assign(target=Place("y", names), value=Read("z", names, f32))
    for name, extent in reversed([*zip(names, shape, strict=True)]):
        assert isinstance(name, Affine)
        out = loop(str(name), 0, extent, out)
    at_lines = (*shape[:-1], -(-across // 16) * 16)
    made = Allocate(variable=local("z", *at_lines), body=(nest, out))
    return function(made, arguments=[array("x", high, wide), array("y", *shape)], written="y")


CASES = [
    {"edge": 1},
    {"edge": 3},
    {"edge": 0},
    {"edge": 1, "gap": 2},
    {"edge": 2, "gap": 3},
    {"edge": 1, "blocks": 4},
    {"edge": 1, "gap": 2, "blocks": 2},
    {"edge": 1, "gap": 2, "inner": 1},
    {"edge": 2, "gap": 3, "inner": 1},
    {"edge": 1, "gap": 2, "blocks": 2, "inner": 1},
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("wide", [1, 7, 8, 15, 30, 31, 33, 64])
@pytest.mark.few(5)
def test_elements_are_the_same(options: dict[str, int], wide: int) -> None:
    made = copy(8, wide, **options)
    rng = np.random.default_rng(wide)
    arrays = {v.name: rng.standard_normal([e.constant for e in v.shape]).astype(np.float32) for v in made.arguments}
    wanted = {name: value.copy() for name, value in arrays.items()}
    interpret(made, wanted)
    for step in (cut_edges(made), lower_loops(made, options=LoopOptions(vector_bytes=32))[0]):
        found = {name: value.copy() for name, value in arrays.items()}
        interpret(step, found)
        np.testing.assert_array_equal(found["y"], wanted["y"])
    compiled = run_function(step, arrays, {})
    np.testing.assert_array_equal(compiled["y"], wanted["y"])


@pytest.mark.parametrize("options", CASES)
def test_the_middle_asks_nothing(options: dict[str, int]) -> None:
    """Of the rows, none does; of their vectors, those at the ends."""
    made = lower_loops(copy(8, 64, **options), options=LoopOptions(vector_bytes=32))[0]
    values = [n.value for n in walk_nodes(made.body) if isinstance(n, Assign) and n.target.variable == "z"]
    asked = [value for value in values if isinstance(value, Apply) and value.op == "select"]
    names = {name for value in asked for name in variables_of(value.args[0])}
    assert names <= {"j"}
    assert sum(isinstance(value, Read) for value in values) > 0
    assert bool(asked) == (options["edge"] > 0)


QUOTIENTS = (
    "where(5 - i//2 >= 0, x[k, i], 0)",
    "where(i//3 <= 20, x[k, i], -x[k, i])",
    "where(i % 7 < 5, x[k, i], 0)",
    "where(i//2 <= 20 and i > 3, x[k, N - 1 - i], 0)",
    "where(i//16 >= 2, x[k, i - 1], 0)",
)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("value", QUOTIENTS)
@pytest.mark.few(3)
def test_conditions_on_quotients(value: str, target: str) -> None:
    """Nothing is known of them from where a vector starts."""
    if not Target(target).runs_here:
        pytest.skip("another machine")
    program = f'def f(x: f32["M N"]):\n    y: f32["M N"]\n    y[k, i] = {value}\n    return y\n'
    x = np.arange(1, 1201, dtype=np.float32).reshape(3, 400)
    assert verify(program, x, target=target)


@pytest.mark.parametrize("low", [-20, 0, 3])
@pytest.mark.parametrize("step", [1, 8, 16])
def test_vectors_without_edges(low: int, step: int) -> None:
    """Those all of whose lanes fulfil the conditions, as looking at each of them finds."""
    rng = np.random.default_rng(step)
    loops = For(variable="i", lower=affine(low), upper=affine(low + 150), step=step, kind="vector", body=(), width=8)
    starts = range(low, low + 150, step)
    for _ in range(200):
        asked = [I * int(rng.choice([1, -1, 2, -3, 0])) + int(rng.integers(-60, 60)) for _ in range(rng.integers(1, 4))]
        each = [v for v in starts if all(d.evaluate({"i": v}) >= 0 <= d.evaluate({"i": v + 7}) for d in asked)]
        found = _inner(starts, asked, loops)
        assert found is not None
        assert list(found) == each
    assert _inner(starts, [I // 2], loops) is None
    assert len(_inner(range(0, 2**40, 16), [I - 5], loops) or ()) == 2**36 - 1  # in no time
