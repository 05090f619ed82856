"""einsum that says more than NumPy's: affine subscripts, semirings, masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import polyml
from polyml.einsum_numpy.extended import is_extended
from polyml.einsum_numpy.semirings import semiring_of
from polyml.errors import ArgumentError, DTypeError, PolymlError, ShapeError, SubscriptsSyntaxError

rng = np.random.default_rng(0)


def test_convolutions() -> None:
    x, f = rng.standard_normal((2, 3, 8, 9)), rng.standard_normal((4, 3, 3, 2))
    expected = np.einsum("nchwrs,kcrs->nkhw", sliding_window_view(x, (3, 2), axis=(2, 3)), f)
    assert np.allclose(polyml.einsum("n c h+r w+s, k c r s -> n k h w", x, f), expected)
    assert np.allclose(polyml.einsum("n c 2*h+r w+s, k c r s -> n k h w", x, f), expected[:, :, ::2])
    out = np.empty(expected.shape)
    assert polyml.einsum("n c h+r w+s, k c r s -> n k h w", x, f, out=out) is out
    assert np.allclose(out, expected)


def test_words_are_indices() -> None:
    x = rng.standard_normal((5, 4))
    assert np.allclose(polyml.einsum("row+1 col -> col row", x), x[1:].T)
    assert np.allclose(polyml.einsum("row 3-col -> row col", x), x[:, ::-1])


def pairs() -> tuple[Any, Any, Any, Any]:
    a, b = rng.standard_normal((5, 6)), rng.standard_normal((6, 4))
    return a, b, a[:, :, None], b[None]


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u2"])
@pytest.mark.few(1)
def test_semirings(dtype: str) -> None:
    a, b = (rng.integers(0, 50, shape).astype(dtype) for shape in ((5, 6), (6, 4)))
    left, right = a[:, :, None], b[None]
    for name, expected in {
        "max_plus": (left + right).max(1),
        "min_plus": (left + right).min(1),
        "max_times": (left * right).max(1),
        "max_min": np.minimum(left, right).max(1),
        "plus_times": np.einsum("ij,jk->ik", a, b),
    }.items():
        actual = polyml.einsum("ij,jk->ik", a, b, semiring=name)
        assert actual.dtype == a.dtype
        assert np.array_equal(actual, expected), name
    own = polyml.einsum("ij,jk->ik", a, b, semiring=("min", "max(a, b)"))
    assert np.array_equal(own, np.maximum(left, right).min(1))


def test_or_and() -> None:
    a, b = rng.random((5, 6)) < 0.3, rng.integers(0, 2, (6, 4))
    assert np.array_equal(polyml.einsum("ij,jk->ik", a, b, semiring="or_and"), (a @ (b != 0)))


def test_log_sum_exp_is_stable() -> None:
    a, b, left, right = pairs()
    expected = np.log(np.exp(left + right).sum(1))
    for shift in (0.0, 5000.0, -5000.0):
        assert np.allclose(polyml.einsum("ij,jk->ik", a + shift, b, semiring="log_sum_exp"), expected + shift)
    rows = np.full((4, 3), -np.inf)
    rows[1, 1], rows[2, 0], rows[3, 2] = 1000, np.inf, np.nan
    assert np.array_equal(
        polyml.einsum("ij->i", rows, semiring="log_sum_exp"), [-np.inf, 1000, np.inf, np.nan], equal_nan=True
    )
    assert np.isclose(polyml.einsum("i->", np.arange(3), semiring="log_sum_exp"), np.log(np.exp(np.arange(3)).sum()))


def test_semirings_of_half_precision_round_once() -> None:
    a, b = rng.random((5, 6)).astype("f2"), rng.random((6, 4)).astype("f2")
    for name in ("log_sum_exp", "max_plus", "plus_times"):
        actual = polyml.einsum("ij,jk->ik", a, b, semiring=name)
        wide = polyml.einsum("ij,jk->ik", a.astype("f4"), b.astype("f4"), semiring=name)
        assert actual.dtype == np.float16
        assert np.array_equal(actual, wide.astype("f2")), name


def test_masks() -> None:
    a, b, left, right = pairs()
    mask, inner = rng.random((5, 4)) < 0.5, rng.random((5, 6)) < 0.5
    assert np.allclose(polyml.einsum("ij,jk->ik", a, b, where=mask), np.where(mask, a @ b, 0))
    assert np.allclose(polyml.einsum("ij,jk->ik", a, b, where=("ij", inner)), (a * inner) @ b)
    assert np.allclose(polyml.einsum("i j, j k -> i k", a, b, where=("i j", inner)), (a * inner) @ b)
    largest = np.where(inner[:, :, None], left + right, -np.inf).max(1)
    assert np.allclose(polyml.einsum("ij,jk->ik", a, b, where=("ij", inner), semiring="max_plus"), largest)
    exact = np.log(np.where(inner[:, :, None], np.exp(left + right), 0).sum(1))
    assert np.allclose(polyml.einsum("ij,jk->ik", a, b, where=("ij", inner), semiring="log_sum_exp"), exact)
    small = rng.integers(-9, 9, (5, 4)).astype("i2")
    least = polyml.einsum("ij->i", small, where=("ij", mask), semiring="min_plus")
    assert np.array_equal(least, np.where(mask, small, np.iinfo("i2").max).min(1))


@pytest.mark.parametrize(
    ("one", "other"), [("?", "?"), ("?", "i1"), ("i1", "u1"), ("u1", "u1"), ("f2", "i2"), ("f4", "c8")]
)
def test_element_types_are_numpys(one: str, other: str) -> None:
    x, y = (rng.integers(0, 9, shape).astype(dtype) for shape, dtype in (((4, 5), one), ((5, 3), other)))
    expected = np.einsum("ij,jk->ik", x, y)
    found = polyml.einsum("ij,jk->ik", x, y, where=np.ones((4, 3), bool))
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_broadcasting_and_ellipses_stay_numpys() -> None:
    a, b = rng.standard_normal((3, 1, 5)), rng.standard_normal((4, 5))
    assert np.allclose(polyml.einsum("...i,...i->...", a, b, semiring="max_plus"), (a + b).max(-1))
    assert np.allclose(polyml.einsum("ij,kj", a[0], b, semiring="min_plus"), (a[0][:, None] + b).min(-1))


def test_a_call_is_one_program_for_all_shapes() -> None:
    from polyml.api import _EXTENDED

    before = len(_EXTENDED)
    for n in (4, 5):
        polyml.einsum("i+k, k -> i", np.ones(n), np.ones(2))
    assert len(_EXTENDED) == before + 1


def test_options_may_be_lists() -> None:
    a, b, *_ = pairs()
    expected = polyml.einsum("ij,jk->ik", a, b, semiring="max_plus")
    for tiles in ([8, 8, 8], (8, 8, 8)):
        assert np.array_equal(polyml.einsum("ij,jk->ik", a, b, semiring="max_plus", tile_sizes=tiles), expected)


def test_what_is_wrong_beside_options() -> None:
    """NumPy, which is asked for the class of error, knows no options."""
    with pytest.raises(PolymlError, match="option fusion"):
        polyml.einsum("i+k, k -> i", np.ones(4), np.ones(2), fusion=[1])
    with pytest.raises(SubscriptsSyntaxError, match="need one '->'"):
        polyml.einsum("i+1 j", np.ones((2, 2)), threads=1)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        (("i+1 j", np.ones((2, 2))), {}, SubscriptsSyntaxError, "need one '->'"),
        (("i+1 j -> i", np.ones(2)), {}, ShapeError, "operand 0 has 1 dimension, but 2 subscripts"),
        (
            ("i, i1 -> i", np.ones(2), np.ones((2, 2))),
            {},
            ShapeError,
            "operand 1 .* 1 subscript\n(.*\n)*.*separated by spaces",
        ),
        (("i+1 -> i", np.ones(2), np.ones(2)), {}, ShapeError, "name 1 operand, but 2 are given"),
        (("i+1 -> i i", np.ones(2)), {}, SubscriptsSyntaxError, "different indices"),
        (("i+$ -> i", np.ones(2)), {}, SubscriptsSyntaxError, "is no subscript"),
        (("i*j -> i", np.ones(2)), {}, ValueError, "affine"),
        (("i+1 -> i", np.array([None])), {}, ValueError, "not supported"),
        (("i->i", np.ones(2)), {"semiring": "plus"}, ArgumentError, "one of plus_times"),
        (("i->i", np.ones(2)), {"semiring": ("max", "a")}, ArgumentError, "expression in a and b"),
        (("i->i", np.ones(2)), {"where": np.ones(2)}, ArgumentError, "mask of bools"),
        (("i->i", np.ones(2)), {"semiring": "max_plus", "dtype": "f4"}, ArgumentError, "dtype= does not go"),
        (("i->i", np.array([None])), {"semiring": "max_plus"}, DTypeError, "not supported"),
        (
            ("iK,Kj->ij", np.ones((2, 3)), np.ones((4, 2))),
            {"semiring": "max_plus"},
            ShapeError,
            "K has extent 3 in operand 0 and 4",
        ),
        (
            ("ij->ij", np.ones((2, 3))),
            {"where": np.ones((2, 4), bool)},
            ShapeError,
            r"j has extent 3 in .* 4 in where \(2, 4\)",
        ),
    ],
)
def test_refusals(arguments: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        polyml.einsum(*arguments, **keywords)


def test_what_is_extended() -> None:
    assert is_extended("i+1 j -> i j")
    assert is_extended("i 2-j -> i j")
    assert not is_extended("ij -> ...j")


def test_products_replace_whole_names() -> None:
    assert semiring_of(("sum", "abs(a - b)")).combine(["x", "y", "z"]) == "(abs((abs(x - y)) - z))"
