"""Programs go to other processes as what they are made of: the program, its options, its constants."""
# ruff: noqa: F722, F821, UP037, RET504 - decorated functions are programs of the language, not Python

from __future__ import annotations

import copy
import doctest
import inspect
import pickle
import sys

import numpy as np
import pytest

import polyml

SCALE = 3


@polyml.einsum(threads=1, dynamic=("N",))
def scaled(x: polyml.f32["N"]):
    """A row times a number of the module.

    >>> scaled(np.ones(2, np.float32))
    array([3., 3.], dtype=float32)
    """
    y[n] = SCALE * x[n]
    return y


@polyml.einsum(precise=True)
def product(x: polyml.f32["N K"], w: polyml.f32["K"]):
    y[n] = x[n, k] * w[k]
    z = scaled(y)
    return z


def pickled(value: object) -> object:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
def test_programs(again: object) -> None:
    x, w = np.ones((4, 5), np.float32), np.arange(5, dtype=np.float32)
    product(x, w)
    other = again(product)
    assert other.options == product.options
    assert str(other) == str(product)
    assert not other.kernels
    np.testing.assert_array_equal(other(x, w), 30)


def test_bound_constants() -> None:
    w = np.arange(5, dtype=np.float32)
    layer = product.bind(w=w)
    other = pickled(layer)
    w[:] = 0
    np.testing.assert_array_equal(other(np.ones((4, 5), np.float32)), 30)


def test_kernels_are_of_their_process() -> None:
    kernel = scaled.compile(np.ones(3, np.float32))
    for again in (pickled, copy.copy, copy.deepcopy):
        with pytest.raises(
            polyml.PolymlError, match=r"a kernel of scaled is machine code(.|\n)*hint: pickle the program"
        ):
            again(kernel)


def test_stages_are_of_their_process() -> None:
    lowered = scaled.lower(np.ones(3, np.float32))
    for again in (pickled, copy.copy, copy.deepcopy):
        with pytest.raises(polyml.PolymlError, match=r"the stages of scaled are(.|\n)*hint: pickle the program"):
            again(lowered)


def test_a_decorated_function_keeps_its_documentation() -> None:
    assert scaled.__module__ == __name__
    assert scaled.__doc__.startswith("A row times a number of the module.\n")
    assert inspect.getsource(scaled).startswith("@polyml.einsum(threads=1, ")
    assert str(inspect.signature(scaled)) == "(x, *, out=None)"  # that of a call, not of the text
    found = doctest.DocTestFinder().find(sys.modules[__name__])
    examples = [test for test in found if test.name.endswith(".scaled")]
    assert [len(test.examples) for test in examples] == [1]
    assert doctest.DocTestRunner().run(examples[0]).failed == 0
    assert scaled.__name__ == scaled.__qualname__ == "scaled"
