"""Random calls in numpy.einsum's form against numpy.einsum: what is planned for thousands, what is compiled for some."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import polyml
from polyml.einsum_numpy import calls
from polyml.einsum_numpy.compiled import Planned
from polyml.einsum_numpy.layout import Array
from polyml.testing.einsum_calls import RandomChooser, compare, generate_call


@dataclass(frozen=True, eq=False)
class Executed:
    """Computes a planned contraction as it stands, without a program: element types, sizes and strides are what is tested."""

    planned: Planned
    at_once: bool = False

    def run(self, arrays: list[Array], out: Array | None) -> Any:
        given, dtype = self.planned.contraction, self.planned.contraction.dtype.numpy
        numbers = {label: k for k, label in enumerate(given.sizes)}
        arguments: list[Any] = []
        for term, array, copied in zip(given.terms, arrays, self.planned.copied, strict=True):
            base = np.array(array, array.dtype.newbyteorder("="), order="C") if copied else array
            shape = tuple(given.sizes[label] for label in term.labels)
            view = as_strided(base, shape, tuple(s * base.itemsize for s in term.strides.values()))
            arguments += [view.astype(dtype), [numbers[label] for label in term.labels]]
        block = np.array(np.einsum(*arguments, [numbers[label] for label in given.result], order="C", dtype=dtype))
        strides = tuple(s * dtype.itemsize for s in self.planned.strides[-1])
        result: Array = np.ndarray(self.planned.shapes[-1], dtype, block.data, 0, strides)
        if out is None:
            return result[()]
        np.copyto(out, result, casting="unsafe")
        return out


@pytest.fixture
def only_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(planned: Planned, options: Mapping[str, object]) -> Executed:
        return Executed(planned)

    monkeypatch.setattr(calls, "compile_planned", stand_in)
    monkeypatch.setattr(calls, "FORMS", {})
    monkeypatch.setattr("polyml.api.FORMS", {})
    monkeypatch.setattr(calls, "_WITH_KEYWORDS", {})


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("only_planned")
@pytest.mark.few(1)
def test_planned_calls_are_numpys(seed: int) -> None:
    chooser = RandomChooser(random.Random(seed))
    for _ in range(600):
        compare(generate_call(chooser), polyml.einsum)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("only_planned")
def test_malformed_calls_raise_what_numpy_raises(seed: int) -> None:
    chooser = RandomChooser(random.Random(100 + seed))
    for _ in range(600):
        compare(generate_call(chooser, malformed=100), polyml.einsum)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_compiled_calls_are_numpys(seed: int) -> None:
    chooser = RandomChooser(random.Random(200 + seed))
    for _ in range(25):
        call = generate_call(chooser, malformed=0, others=4)
        compare(call, polyml.einsum)
        compare(call, polyml.einsum)  # now through the entry point, where it is found


@pytest.mark.slow
def test_many_compiled_calls_are_numpys() -> None:
    chooser = RandomChooser(random.Random(300))
    for _ in range(2000):
        compare(generate_call(chooser, malformed=3, others=4), polyml.einsum)


def test_the_comparison_notices() -> None:
    x = np.arange(6.0).reshape(2, 3)
    call = generate_call(RandomChooser(random.Random(0)))
    for wrong in (lambda *a, **k: None, lambda *a, **k: 1 / 0):
        with pytest.raises(AssertionError):
            compare(call, wrong)
    from polyml.testing.einsum_calls import Call

    for subscripts, other in (
        ("ij->ji", lambda s, a: a.T.copy()),
        ("ij->i", lambda s, a: a.sum(axis=1) + 1),
        ("ij->i", lambda s, a: a.sum(axis=1).astype("f4")),
        ("i,ij->ij", lambda s, a, b: np.asfortranarray(np.einsum(s, a, b))),
    ):
        operands = (x[:, 0], x) if "," in subscripts else (x,)
        compare(Call((subscripts, *operands)), np.einsum)
        with pytest.raises(AssertionError):
            compare(Call((subscripts, *operands)), other)


@pytest.mark.parametrize(
    ("subscripts", "operands"),
    [
        ("i,i->", ([1, 2], [3.5, 4])), ("ij,jk->ik", ([[1, 2], [3, 4]], np.eye(2))), (",ij->ij", (2, np.eye(2, dtype=np.float32))), (",->", (True, 2)),
        (",->", (np.float64(0.5), 3)), ("ij->ji", ([[1, 2, 3]],)), ("i->i", ((1.5, 2),)), ("i->", ([],)), ("ij->j", (((1, 2), (3, 4)),)), ("->", (3,)),
    ],
)  # fmt: skip
def test_numbers_and_lists(subscripts: str, operands: tuple[object, ...]) -> None:
    """What numpy.einsum gives, of its type, the first time and later."""
    expected = np.einsum(subscripts, *operands)
    for _ in range(3):
        found = polyml.einsum(subscripts, *operands)
        assert type(found) is type(expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)


def test_ragged_lists_are_refused_as_numpy_does() -> None:
    for call in (np.einsum, polyml.einsum):
        with pytest.raises(ValueError, match="inhomogeneous"):
            call("ij->i", [[1, 2], [3]])


@pytest.mark.parametrize("optimize", [3, 2.5, {}, [(0, 1)], ["einsum_path", (0, 2)], ["einsum_path", (0, 5)]])
@pytest.mark.parametrize("operands", [1, 2, 3])
def test_a_malformed_path(optimize: object, operands: int) -> None:
    """Refused whatever there is to order."""
    x = [np.ones((2, 2))] * operands
    subscripts = ",".join(["ij", "jk", "kl"][:operands])
    subscripts = "ij->j" if operands == 1 else subscripts
    with pytest.raises(Exception) as expected:  # noqa: PT011  # of any class
        np.einsum(subscripts, *x, optimize=optimize)  # type: ignore[call-overload]
    with pytest.raises(expected.type):
        polyml.einsum(subscripts, *x, optimize=optimize)


def test_a_result_in_the_other_byte_order() -> None:
    """numpy.einsum itself gives native numbers under the type that was asked for: here they are right, in native order."""
    x = np.arange(6.0).reshape(2, 3)
    for _ in range(2):
        assert np.array_equal(polyml.einsum("ij,kj->ik", x, x, dtype=np.dtype("f8").newbyteorder()), x @ x.T)


def test_in_the_place_of_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """`np.einsum = polyml.einsum` for code that one cannot change: what is left to NumPy's goes to the function that was there."""
    for name in ("einsum", "einsum_path"):
        monkeypatch.setattr(np, name, getattr(polyml, name))
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    objects = np.array([[1, 2], [3, 4]], dtype=object)
    assert np.array_equal(np.einsum("ij,jk->ik", a, b), a @ b)
    assert np.array_equal(np.einsum(objects, [0, 1], objects, [1, 2]), objects.dot(objects))
    assert np.shares_memory(np.einsum("ij->ji", a), a)
    path, _ = np.einsum_path("ij,jk,kl->il", a, b, b.T, optimize="optimal")
    assert np.allclose(np.einsum("ij,jk,kl->il", a, b, b.T, optimize=path), a @ b @ b.T)
    assert isinstance(np.einsum("ij,jk->ik", np.ma.masked_array(a), b), np.ndarray)
    for call in (("ij,jk->iz", a, b), ("ij->", b, b), (a,)):
        with pytest.raises((ValueError, TypeError)):
            np.einsum(*call)  # type: ignore[call-overload]
