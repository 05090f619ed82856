"""Rows that lanes go through with gaps: read and written as whole vectors where an iteration touches all of them, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.memory.phases import Rows, phases_of, written_phases
from polyml.codegen.loops import Assign, For, Node
from polyml.expressions import Expr, Subscript
from polyml.sets.affine import Affine, affine
from polyml.target import Target
from polyml.testing import verify
from polyml.testing.compare import assert_close
from tests.codegen.programs import at, call, number, put

J = affine("j")


def flat(name: str, subscripts: tuple[Subscript, ...]) -> tuple[Affine, Rows] | None:
    """Rows of 300 elements, or of an unknown length."""
    place = affine(0)
    for subscript in subscripts:
        if not isinstance(subscript, Affine):
            return None
        place = place * 300 + subscript
    if name == "z" and isinstance(subscripts[0], Affine) and isinstance(subscripts[1], Affine):
        return subscripts[1], (("N", subscripts[0]),)
    return None if name == "r" else (place, ())


def vector(*body: Node, masked: bool = False) -> For:
    return For(
        variable="j", lower=affine(0), upper=affine(64), step=16, kind="vector", width=16, masked=masked, body=body
    )


def write(place: Affine, value: Expr | None = None, row: Affine | str = "i") -> Assign:
    return Assign(target=put("y", row, place), value=number(1.0) if value is None else value)


def numbers(loop: For) -> list[tuple[int, int, bool]]:
    return [(p.number, p.gap, p.last) for p in written_phases(loop, flat).values()]


def test_written() -> None:
    rows = [write(3 * J + k) for k in (1, 0, 2)]
    assert sorted(numbers(vector(*rows))) == [(0, 3, False), (1, 3, False), (2, 3, True)]
    assert sorted(numbers(vector(*rows, masked=True))) == [(0, 3, False), (1, 3, False), (2, 3, True)]
    again = [write(3 * J + 48 + k) for k in range(3)]
    assert len(numbers(vector(*rows, *again))) == 6
    unknown = [Assign(target=put("z", "i", 2 * J + k), value=number(1.0)) for k in range(2)]
    assert len(numbers(vector(*unknown))) == 2
    other_row = [write(3 * J + k, row=affine("i") + 1) for k in range(3)]
    assert len(numbers(vector(*rows, *other_row))) == 6


@pytest.mark.parametrize(
    "body",
    [
        [write(3 * J), write(3 * J + 1)],
        [write(3 * J), write(3 * J + 1), write(3 * J + 3)],
        [write(2 * J), write(2 * J + 1), write(2 * J + 2), write(2 * J + 3)],  # rows that share elements
        [write(2 * J), write(2 * J), write(2 * J + 1)],
        [write(2 * J), write(2 * J + 1, at("y", "i", 2 * J))],
        [write(2 * J), write(2 * J + 1), write(J)],
        [write(2 * J), Assign(target=put("y", "i", 2 * J + 1), value=number(1.0), reduction="sum")],
        [write(2 * J), write(2 * J + 1, row="k")],
        [write(2 * J, row="i"), write(2 * J + 1, row="i"), write(2 * J, row="k"), write(2 * J + 1, row="k")],
        [write(J), write(J + 1)],
        [write(17 * J + k) for k in range(17)],
        [write(2 * J), write(2 * J + 1), vector(write(affine("i"), at("x", "i", "j")))],
        [Assign(target=put("z", affine("i") + k, 2 * J + k), value=number(1.0)) for k in range(2)],
        [Assign(target=put("z", J, 2 * J + k), value=number(1.0)) for k in range(2)],
        [Assign(target=put("r", 2 * J + k), value=number(1.0)) for k in range(2)],
    ],
)
def test_not_written(body: list[Node]) -> None:
    assert not numbers(vector(*body))


def test_read() -> None:
    """By the place in memory, whichever subscripts it has."""
    both = call("add", at("x", "i", 2 * J), at("x", "i", 2 * J + 1))
    assert [p.number for p in phases_of(vector(write(J, both)), flat).values()] == [0, 1]
    assert not phases_of(vector(write(J, both), masked=True), flat)
    beyond = call("add", at("x", "i", 2 * J), at("x", affine("i") + 1, 2 * J - 299))
    assert [p.number for p in phases_of(vector(write(J, beyond)), flat).values()] == [0, 1]
    compared = [call("lt", number(0.0), at("x", "i", 2 * J + k)) for k in range(2)]
    counted = call("add", *(call("select", c, number(1.0), number(0.0)) for c in compared))
    assert [p.number for p in phases_of(vector(write(J, counted)), flat).values()] == [0, 1]
    chosen = call("select", call("lt", number(0.0), at("x", "i", 2 * J)), at("x", "i", 2 * J + 1), number(0.0))
    assert not phases_of(vector(write(J, chosen)), flat)


TURNED = """
def f(x: T["N 3"], z: T["N 3"]):
    y: T["N 3"]
    y[i, 0] = x[i, 1] * z[i, 2] - x[i, 2] * z[i, 1]
    y[i, 1] = x[i, 2] * z[i, 0] - x[i, 0] * z[i, 2]
    y[i, 2] = x[i, 0] * z[i, 1] - x[i, 1] * z[i, 0]
    return y
"""


@pytest.mark.parametrize("size", [1, 7, 16, 33, 64, 200])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i16", "u8", "i64", "f16"])
@pytest.mark.few(6)
def test_cross_products(size: int, dtype: str) -> None:
    rng = np.random.default_rng(size)
    name = {"f32": "f4", "f64": "f8", "i16": "i2", "u8": "u1", "i64": "i8", "f16": "f2"}[dtype]
    x, z = rng.integers(0, 9, (2, size, 3)).astype(name)
    found = polyml.einsum(TURNED.replace("T[", f"{dtype}["))(x, z)
    np.testing.assert_array_equal(found, np.cross(x.astype("i8"), z.astype("i8")).astype(name))


@pytest.mark.parametrize("gap", [2, 4, 5, 6, 9])
@pytest.mark.parametrize("size", [5, 48, 79])
@pytest.mark.few(5)
def test_gaps(gap: int, size: int) -> None:
    """Each of a row of numbers, in another order, and whether it is positive."""
    lines = [f"    y[i, {k}] = x[i, {gap - 1 - k}] * 2" for k in range(gap)]
    lines += [f"    b[i, {k}] = x[i, {k}] > 0" for k in range(gap)]
    source = f'def f(x: f64["N {gap}"]):\n    y: f64["N {gap}"]\n    b: bool["N {gap}"]\n' + "\n".join(lines)
    x = np.random.default_rng(gap).standard_normal((size, gap))
    y, b = polyml.einsum(source + "\n    return y, b\n")(x)
    assert_close(y, 2 * x[:, ::-1])
    np.testing.assert_array_equal(b, x > 0)


def test_in_place() -> None:
    """What is read while it is written keeps its order."""
    source = """
def f(x: f64["N 2"]):
    x[i, 0] = x[i, 0] + x[i, 1]
    x[i, 1] = x[i, 0] - x[i, 1]
    return x
"""
    x = np.random.default_rng(0).integers(0, 9, (100, 2)).astype("f8")
    expected = np.stack((x.sum(1), x[:, 0]), 1)
    np.testing.assert_array_equal(polyml.einsum(source)(x), expected)


def test_whole_vectors() -> None:
    x = np.zeros((64, 3), np.float32)
    text = polyml.einsum(TURNED.replace("T[", "f32["), threads=1).lower(x, x).text("llvm")
    assert "masked.scatter" not in text
    assert "masked.gather" not in text


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("keys", [2, 3, 4, 5, 6])
@pytest.mark.few(4)
def test_rows_that_another_store_stands_between(target: str, keys: int) -> None:
    """Weights of a few keys, whose last column is written behind their sum: the first ones are not stored as columns by themselves."""
    if not Target(target).runs_here:
        pytest.skip("no AVX2")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in ((11, 3), (keys, 3), (keys, 3)))
    assert verify(ATTENTION, q, k, v, target=Target(target), threads=1)


ATTENTION = """
def attention(q: f32["Q D"], k: f32["K D"], v: f32["K D"]):
    s[i, j] = q[i, d] * k[j, d]
    m[i] = max[j](s[i, j])
    e[i, j] = exp(s[i, j] - m[i])
    z[i] = e[i, j]
    y[i, d] = sum[j](e[i, j] * v[j, d]) / z[i]
    return y
"""


@pytest.mark.parametrize("channel", [0, 2])
def test_loops_behind_the_lanes_store_one_element_after_another(channel: int) -> None:
    """Though their variable and their places are those of the loop of vectors."""
    program = polyml.einsum(
        'def f(x: f32["N 3"]):\n    y: f32["N 3"] = 0\n    for t in range(2):\n'
        + "".join(f"        y[n, {c}] = x[n, {c}] + x[n, {(c + 1) % 3}] - t\n" for c in range(3))
        + f"        for n in range(1, N):\n            y[n, {channel}] = sin(y[n - 1, {channel}]) + y[n, 1] * y[n, {2 - channel}]\n"
        "    return y\n",
        target=Target("x86-64-v3"),
    )
    assert verify(program, np.random.default_rng(0).random((40, 3), np.float32))
