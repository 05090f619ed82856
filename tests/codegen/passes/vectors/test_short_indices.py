"""argmax and argmin with results along lanes: indices have 32 bits beside numbers of no more, and are what they were."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.loops import Assign, Function, Node, Place, UpdateArgument
from polyml.codegen.passes.vectors import short_indices
from polyml.codegen.passes.vectors.privatize import is_short
from polyml.codegen.passes.vectors.short_indices import shorten_indices
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import DType, f32, f64, i64
from polyml.expressions import Const, IndexValue, Read
from polyml.sets.affine import Affine, affine
from tests.codegen.programs import agree, array, at, loop

TYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i16": np.int16, "u8": np.uint8}

N, K, Z = affine("n"), affine("k"), affine("Z")

PAIRS = """
def f(a: {0}["N K"], b: {0}["K M"]):
    y[n, m] = {1}[k](a[n, k] + b[k, m])
    return y
"""


def numbers(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 9, shape).astype(TYPES[kind])  # few of them, so that many are equal


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.few(1)
def test_first_winners(kind: str, op: str) -> None:
    """With and without a register tile, around whole tiles and vectors, and where NaN wins."""
    f = pm.einsum(PAIRS.format(kind, op))
    g = pm.einsum(f'def g(x: {kind}["N M"]):\n    y[m] = {op}[n](x[n, m])\n    return y')
    for n, k, m in ((1, 1, 1), (5, 7, 15), (8, 70, 17), (13, 100, 33), (4, 3, 64)):
        a, b = numbers(kind, (n, k), n), numbers(kind, (k, m), m)
        every = a[:, :, None] + b
        np.testing.assert_array_equal(f(a, b), getattr(np, op)(every, axis=1))
        np.testing.assert_array_equal(g(b), getattr(np, op)(b, axis=0))
        np.testing.assert_array_equal(g(b[:, ::-1]), getattr(np, op)(b[:, ::-1], axis=0))
        if kind.startswith("f"):
            a[n // 2, k // 2], b[k // 3, m // 2] = np.nan, -np.inf
            np.testing.assert_array_equal(f(a, b), getattr(np, op)(a[:, :, None] + b, axis=1))
            np.testing.assert_array_equal(g(b), getattr(np, op)(b, axis=0))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_lanes_are_those_of_numbers(target: str) -> None:
    """As many as of 32 bits each, and no register tile with more than fits: the best number and its index take one each."""
    a, b = np.zeros((60, 70), np.float32), np.zeros((70, 64), np.float32)
    made = pm.einsum(PAIRS.format("f32", "argmin"), target=pm.Target(target)).lower(a, b).text("loops")
    lanes = pm.Target(target).lanes(4)
    assert f"register i32x{lanes} y_place" in made
    assert "i64x" not in made
    tile = made[made.index("for (k") :].split("}")[0]
    assert 1 < tile.count("argmin") <= {8: 4, 16: 12}[lanes]


def test_a_subscript_that_all_lanes_share_takes_none() -> None:
    """`ids[t]` is read once for all of them, whatever its bits."""
    source = 'def f(x: f32["V K"], ids: i64["T"]):\n    y[t, k] = 2 * x[ids[t], k]\n    return y'
    x, ids = np.zeros((9, 64), np.float32), np.zeros(5, np.int64)
    made = pm.einsum(source, target=pm.Target("x86-64-v3")).lower(x, ids).text("loops")
    row = made[made.rindex("vector") :]
    assert row.startswith("vector(8)")


def columns(candidate: DType, steps: Affine | int, *between: Node, place: tuple[Affine, ...] = (N,)) -> Function:
    """y[n] = argmax[k](x[k, n]), lanes along n."""
    y = Place("y", place)
    step = UpdateArgument(
        kind="argmax",
        best=Place("m", (N,)),
        argument=y,
        candidate=Read("x", (K, N), candidate),
        candidate_index=IndexValue(K, i64),
    )
    begin = Assign(target=y, value=Const(-1, i64))
    body = loop("n", 0, 11, begin, *between, loop("k", 0, steps, step), kind="vector")
    return Function(
        name="f",
        arguments=(array("x", 9, 11, dtype=candidate), array("m", 11, dtype=candidate), array("y", 11, dtype=i64)),
        written=frozenset({"m", "y"}),
        sizes=("Z",) if isinstance(steps, Affine) else (),
        body=(body,),
    )


def test_same_results_with_a_register() -> None:
    before = columns(f32, 9)
    after = shorten_indices(before)
    (update,) = (node for node in walk_nodes(after.body) if isinstance(node, UpdateArgument))
    assert update.argument == Place("y_place", ())
    agree(before, after, {})


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(columns(f64, 9), id="longer numbers"),
        pytest.param(columns(f32, Z), id="steps that may be too many"),
        pytest.param(columns(f32, 9, place=(affine(3),)), id="one index for all lanes"),
        pytest.param(columns(f32, 9, Assign(target=Place("y", (affine(0),)), value=Const(4, i64))), id="written"),
        pytest.param(columns(f32, 9, Assign(target=Place("m", (N,)), value=at("y", N))), id="read"),
    ],
)
def test_left_alone(program: Function) -> None:
    assert shorten_indices(program) is program


ROWS = 'def f(x: f32["N M"]):\n    r[i] = argmin[j](x[i, j])\n    c[j] = argmax[i](x[i, j])\n    return r, c'


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_sizes_that_are_not_known_are_taken_for_short_ones(kind: str) -> None:
    """Beside numbers of as many bits; others have lanes as they are."""
    f = pm.einsum(ROWS.replace("f32", kind), target=pm.Target("x86-64-v3"), dynamic=True)
    made = f.lower(numbers(kind, (60, 70), 0)).text("loops")
    assert made.count("(M <= 2147483647) and (N <= 2147483647)") == (kind == "f32")
    assert ("i32x8" in made) == (kind == "f32")
    assert ("i64x4" in made) == (kind == "f64")


def test_longer_ones_are_done_without_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_indices, "LONGEST", 40)
    f = pm.einsum(ROWS, dynamic=True)
    for n, m in ((60, 70), (33, 17), (33, 70), (70, 33), (1, 1), (40, 41)):
        x = numbers("f32", (n, m), n)
        r, c = f(x)
        np.testing.assert_array_equal(r, x.argmin(axis=1))
        np.testing.assert_array_equal(c, x.argmax(axis=0))
    assert len(f.kernels) == 1


@pytest.mark.parametrize(("length", "short"), [((1 << 31) - 1, True), (1 << 31, False)])
def test_the_greatest_number_is_no_index(length: int, short: bool) -> None:
    """It says that no lane has seen anything."""
    places = {"best": Place("b", ()), "argument": Place("i", ())}
    step = UpdateArgument(kind="argmax", **places, candidate=at("x", K), candidate_index=IndexValue(K, i64))
    assert is_short(step, Ranges().enter(loop("k", 0, length, step))) == short
