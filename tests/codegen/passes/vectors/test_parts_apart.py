"""Scratch arrays of complex numbers as two arrays of their parts: the same results, and no shuffles in loops that compute."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Assign, For, Function, Place, Variable
from polyml.codegen.passes.vectors.parts_apart import store_parts_apart
from polyml.codegen.rewrite import nodes_of
from polyml.dtypes import c128, f64
from polyml.expressions import Apply, Expr, Read
from polyml.sets.affine import affine
from polyml.target import Target

TRANSFER = """
def f(m: c128["W L 2 2"]):
    z: c128["W 2 2"]
    z[w, i, j] = where(i == j, 1, 0)
    for l in range(L):
        z[w, i, j] = z[w, i, k] * m[w, l, k, j]
    return z
"""


def function(*body: Assign, kind: str = "sequential") -> Function:
    """A loop over n with scratch memory z, from a to b."""
    n = affine("N")
    given = [Variable(name=name, dtype=c128, shape=(n,), scope="global") for name in "ab"]
    loop = For(
        variable="n", lower=affine(0), upper=n, kind="transpose" if kind == "transpose" else "sequential", body=body
    )
    scratch = Variable(name="z", dtype=c128, shape=(n,), scope="local")
    return Function(
        name="f",
        arguments=tuple(given),
        written=frozenset("b"),
        sizes=("N",),
        body=(Allocate(variable=scratch, body=(loop,)),),
    )


def read(name: str, part: str = "") -> Expr:
    whole = Read(name, (affine("n"),), c128)
    return Apply(part, (whole,), f64) if part else whole


def put(name: str, value: Expr, reduction: str | None = None) -> Assign:
    return Assign(target=Place(name, (affine("n"),)), value=value, reduction=reduction)


def swapped(name: str) -> Expr:
    return Apply("complex", (read(name, "imag"), read(name, "real")), c128)


def scratch_types(made: Function) -> list[str]:
    return [
        node.variable.dtype.name
        for node in nodes_of(made)
        if isinstance(node, Allocate) and node.variable.scope == "local"
    ]


def test_parts_of_what_is_overwritten_are_read_before() -> None:
    made = store_parts_apart(function(put("z", read("a")), put("z", swapped("z")), put("b", read("z"))))
    assert scratch_types(made) == ["f64", "f64"]
    steps = [str(node.target) for node in nodes_of(made) if isinstance(node, Assign)]
    assert steps == ["z[n]", "z_imag[n]", "z_real", "z_imag[n]", "z[n]", "b[n]"]


@pytest.mark.parametrize("refused", ["whole", "sum", "dear", "moved"])
def test_what_stays_as_it_is(refused: str) -> None:
    root = Apply("sqrt", (read("a", "real"),), f64)
    step = {
        "whole": put("b", Apply("select", (Apply("lt", (root, root), f64), read("z"), read("a")), c128)),
        "sum": put("z", swapped("a"), "sum"),
        "dear": put("z", Apply("complex", (root, Apply("add", (root, root), f64)), c128)),
        "moved": put("z", read("a")),
    }[refused]
    given = function(step, kind="transpose" if refused == "moved" else "")
    assert store_parts_apart(given) is given


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (37, 4)])
@pytest.mark.parametrize("kind", ["c64", "c128"])
@pytest.mark.few(2)
def test_small_matrices_in_a_loop(size: tuple[int, int], kind: str) -> None:
    rng = np.random.default_rng(0)
    m = (rng.standard_normal((*size, 2, 2)) + 1j * rng.standard_normal((*size, 2, 2))).astype(
        "F" if kind == "c64" else "D"
    )
    expected: np.ndarray = np.broadcast_to(np.eye(2), (size[0], 2, 2)).astype(complex)
    for layer in range(size[1]):
        expected = expected @ m[:, layer]
    rtol = 1e-4 if kind == "c64" else 1e-10
    for options in ({}, {"dynamic": True}, {"precise": True}):
        program = polyml.einsum(TRANSFER.replace("c128", kind), **options)
        np.testing.assert_allclose(program(m), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", ["c64", "c128"])
@pytest.mark.few(1)
def test_numbers_that_are_not_side_by_side_are_one_load_and_one_store_each(kind: str) -> None:
    source = f'def f(x: {kind}["N 5"]):\n    y: {kind}["N 6"] = 0\n    y[n, 2] = x[n, 1] * x[n, 3]\n    return y\n'
    type_ = {"c64": np.complex64, "c128": np.complex128}[kind]
    rng = np.random.default_rng(0)
    for size in (0, 1, 4, 7, 67):
        x = (rng.standard_normal((size, 5)) + 1j * rng.standard_normal((size, 5))).astype(type_)
        for options in ({}, {"dynamic": True}):
            program = polyml.einsum(source, **options)
            for given in (x, x[::-1], np.asfortranarray(x)):
                expected = np.zeros((size, 6), type_)
                expected[:, 2] = given[:, 1].astype(complex) * given[:, 3]
                np.testing.assert_allclose(program(given), expected, rtol=1e-5)
    lowered = polyml.einsum(source, target=Target("x86-64-v3"), threads=1).lower(np.ones((64, 5), type_))
    assert "vpextrq" not in lowered.text("asm")
