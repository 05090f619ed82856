"""Every kind of sum that einsum makes, for every element type, against numpy.einsum: exactly for integers, to the length of the sum for floats."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import polyml

OURS = ["f2", "f4", "f8", "F", "D", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
NUMPYS = ["g", "G", "O"]
SIZES = [1, 5, 17]

SUBSCRIPTS: list[tuple[str, tuple[tuple[str, ...], ...]]] = [
    # one operand: sums over axes, diagonals, traces, transposes
    ("i->", (("n",),)), ("...->...", (("n", "m"),)), ("i->i", (("n",),)), ("i...->...", (("n", "m"),)),
    ("i...->...", (("n", "m", "2"),)), ("...i->...", (("2", "n", "m"),)), ("ij->j", (("m", "n"),)), ("ij->ji", (("m", "n"),)),
    ("ii", (("n", "n"),)), ("ii->i", (("n", "n"),)), ("...ii->...i", (("2", "n", "n"),)), ("iij->j", (("n", "n", "m"),)),
    ("ijk->", (("n", "m", "3"),)), ("ijk->ki", (("n", "m", "3"),)), ("iii->i", (("n", "n", "n"),)), ("i...i->...", (("n", "m", "n"),)),
    # an operand and a scalar, broadcasting
    ("..., ...", (("n", "m"), ("n", "m"))), ("i, ->i", (("n",), ())), (", i->i", ((), ("n",))), ("i, ->", (("n",), ())), (", ->", ((), ())),
    ("...,...->...", (("m", "n"), ("1", "n"))), ("ij,ij->ij", (("m", "n"), ("m", "1"))), ("...ij,...jk->...ik", (("3", "1", "n", "m"), ("2", "m", "n"))),
    # outer products and inner ones
    ("i,j", (("n",), ("m",))), ("i,j->ji", (("n",), ("m",))), ("i,i", (("n",), ("n",))), ("i...,i...->...", (("n", "m"), ("n", "m"))),
    ("...i,...i->...", (("m", "n"), ("m", "n"))), ("i,i->i", (("n",), ("n",))), ("ij,kj->", (("n", "m"), ("3", "m"))),
    # matrix and vector, matrix and matrix, their transposes
    ("ij,j", (("m", "n"), ("n",))), ("ji,j", (("n", "m"), ("n",))), ("...j,j->...", (("2", "m", "n"), ("n",))), ("ij,jk", (("m", "n"), ("n", "6"))),
    ("ij,kj->ik", (("m", "n"), ("6", "n"))), ("ji,jk->ik", (("n", "m"), ("n", "6"))), ("ij,jk->ki", (("m", "n"), ("n", "6"))),
    ("bij,bjk->bik", (("3", "m", "n"), ("3", "n", "2"))), ("ijk,jil->kl", (("2", "m", "n"), ("m", "2", "3"))), ("ij,ij->", (("m", "n"), ("m", "n"))),
    ("ijkl,kl->ij", (("2", "3", "m", "n"), ("m", "n"))), ("ab,ab->ba", (("n", "m"), ("n", "m"))), ("aab,b->a", (("n", "n", "m"), ("m",))),
    # three and more
    ("ij,jk,kl->il", (("m", "n"), ("n", "6"), ("6", "2"))), ("a,ab,abc->abc", (("n",), ("n", "m"), ("n", "m", "2"))), ("a,b,ab->", (("n",), ("m",), ("n", "m"))),
    ("i,i,i->i", (("n",), ("n",), ("n",))), ("a,b,c", (("n",), ("2",), ("m",))), ("ij,jk,ki->", (("m", "n"), ("n", "2"), ("2", "m"))), ("a,ac,ab,ad,cd,bd,bc->", (("n",), ("n", "2"), ("n", "m"), ("n", "3"), ("2", "3"), ("m", "3"), ("m", "2"))),
]  # fmt: skip


def operands(dtype: str, shapes: tuple[tuple[str, ...], ...], n: int, seed: int = 0) -> list[Any]:
    """Small integers, signed where the type is: sums of three factors stay exact in f4, and small integer types wrap."""
    rng, sizes = np.random.default_rng(seed), {"n": n, "m": n % 5 + 2}
    made = []
    for shape in shapes:
        extents = tuple(sizes.get(e) or int(e) for e in shape)
        values = rng.integers(0 if dtype[0] in "u?" else -4, 5, extents)
        made.append(
            (values + 1j * rng.integers(-3, 4, extents)).astype(dtype) if dtype in "FDG" else values.astype(dtype)
        )
    return made


def expected(subscripts: str, given: list[Any], **keywords: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of complex numbers cast to real ones
        return np.einsum(subscripts, *given, **keywords)


def check(subscripts: str, given: list[Any], **keywords: Any) -> None:
    wanted = expected(subscripts, given, **keywords)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=np.exceptions.ComplexWarning)
        warnings.filterwarnings("error", message="numpy.einsum computes")  # polyml should have compiled it
        found = polyml.einsum(subscripts, *given, **keywords)
    where = f"{subscripts} {[(a.dtype.str, a.shape) for a in given]} {keywords}"
    if not keywords.get("optimize"):  # NumPy gives 0-d arrays then
        assert type(found) is type(wanted), where
    if isinstance(wanted, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
    if getattr(wanted, "dtype", np.dtype("O")).kind in "fc":
        eps = float(np.finfo(wanted.dtype).eps)
        assert np.allclose(
            found, wanted, rtol=64 * eps, atol=64 * eps * max(1.0, float(np.abs(wanted).max(initial=0)))
        ), where
    else:
        assert np.array_equal(found, wanted), where


def calls(dtype: str, sizes: list[int], every: int = 1) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Every so-maniest of the sums, each type from another one on, with and without optimize."""
    for subscripts, shapes in SUBSCRIPTS[ord(dtype[0]) % every :: every]:
        for n in sizes:
            given = operands(dtype, shapes, n)
            yield subscripts, given, {}
            if len(given) > 1:
                yield subscripts, given, {"optimize": True}


@pytest.mark.parametrize(("dtype", "every"), [("f4", 3), ("i8", 2), ("u8", 4), ("g", 1), ("D", 4)])
@pytest.mark.few(1)
def test_sums(dtype: str, every: int) -> None:
    for subscripts, given, keywords in calls(dtype, [5], every):
        check(subscripts, given, **keywords)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*OURS, *NUMPYS])
def test_sums_of_all_types_and_sizes(dtype: str) -> None:
    for subscripts, given, keywords in calls(dtype, SIZES if dtype in OURS else list(range(1, 18))):
        check(subscripts, given, **keywords)


@pytest.mark.parametrize("dtype", ["f4", "i2", "u8", "g", "D", "?"])
@pytest.mark.few(1)
def test_views_of_operands(dtype: str) -> None:
    base = operands(dtype, (("n", "n"),), 17)[0]
    vector = base[0]
    odd = np.ndarray((8, 8), base.dtype, np.zeros(8 * 8 * base.itemsize + 1, "u1")[1:].data)  # not aligned
    odd[...] = base[:8, :8]
    for subscripts, given in (
        ("i,i", [vector[1:], vector[:-1]]),
        ("i,i->i", [vector[::-1], vector[::1]]),
        ("i->", [vector[::2]]),
        ("ij,jk", [base[::2, 1:], base[1:, ::-3]]),
        ("ij,j->i", [base.T, vector]),
        ("ij->i", [np.broadcast_to(vector, (4, 17))]),
        ("ij,jk->ik", [odd, base[:8]]),
        ("ij,jk->ik", [base.astype(base.dtype.newbyteorder()), base]),
    ):
        check(subscripts, given)


@pytest.mark.parametrize(
    ("source", "target"),
    [("f4", "f8"), ("i4", "f4"), ("f8", "i8"), ("D", "f8"), ("i8", "u4"), ("u8", "D"), ("g", "f4")],
)
@pytest.mark.few(5)
def test_out_and_dtype(source: str, target: str) -> None:
    a, b = operands(source, (("n", "m"), ("m", "3")), 5)
    for keywords in ({"dtype": target, "casting": "unsafe"}, {"casting": "unsafe"}):
        check("ij,jk", [a, b], **keywords)
        mine, theirs = np.zeros((5, 3), target), np.zeros((5, 3), target)
        expected("ij,jk", [a, b], out=theirs, **keywords)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert polyml.einsum("ij,jk", a, b, out=mine, **keywords) is mine
        assert np.allclose(mine, theirs), keywords
    if not np.can_cast(source, target, "safe"):
        with pytest.raises(TypeError):
            polyml.einsum("ij,jk", a, b, dtype=target, casting="safe")


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
@pytest.mark.parametrize("dtype", ["f8", "u8", "D"])
@pytest.mark.few(1)
def test_orders(order: str, dtype: str) -> None:
    a, b = operands(dtype, (("n", "m"), ("m", "3")), 4)
    for given in ([a, b], [np.asfortranarray(a), np.asfortranarray(b)]):
        for subscripts in ("ij,jk->ik", "ij,jk->ki", "ij,jk->ikj"):
            found, wanted = polyml.einsum(subscripts, *given, order=order), np.einsum(subscripts, *given, order=order)
            assert (found.strides, found.flags.c_contiguous) == (wanted.strides, wanted.flags.c_contiguous)
            assert np.array_equal(found, wanted)


def test_wrapping_and_large_numbers() -> None:
    for dtype in ("i8", "u8", "i4", "u4"):
        info = np.iinfo(dtype)
        a = np.array([info.max, info.max, 1, 3, info.min, info.max // 2], dtype)
        for subscripts, given in (("i,i", [a, a]), ("i->", [a]), ("i,j->ij", [a, a]), ("i,i,i->", [a, a, a])):
            assert np.array_equal(polyml.einsum(subscripts, *given), np.einsum(subscripts, *given)), (dtype, subscripts)


def test_paths_are_numpys() -> None:
    a, b, c = operands("f8", (("n", "m"), ("m", "3"), ("3", "n")), 7)
    for optimize in ("greedy", "optimal", ("greedy", 20), False):
        path, text = polyml.einsum_path("ij,jk,kl->il", a, b, c, optimize=optimize)
        assert (path, text) == np.einsum_path("ij,jk,kl->il", a, b, c, optimize=optimize)
        assert np.allclose(polyml.einsum("ij,jk,kl->il", a, b, c, optimize=path), a @ b @ c)
    assert polyml.einsum_path(a, [0, 1], b, [1, 2])[0] == np.einsum_path(a, [0, 1], b, [1, 2])[0]


def test_a_complex_operand_that_lanes_read_across_its_rows() -> None:
    for dtype in ("F", "D"):
        given = operands(dtype, (("n",), ("n", "2"), ("n", "m"), ("n", "3"), ("2", "3"), ("m", "3"), ("m", "2")), 5)
        check("a,ac,ab,ad,cd,bd,bc->", given)
