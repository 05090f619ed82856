"""Contractions of several operands in any semiring, in steps: where that is allowed, and that it changes nothing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.dtypes import DTYPES, DType
from polyml.einsum_numpy.extended import program_of, request_of
from polyml.einsum_numpy.semirings import SEMIRINGS, Semiring
from polyml.errors import ArgumentError

rng = np.random.default_rng(0)

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "any": np.logical_or, "all": np.logical_and}
PRODUCT = {
    "a * b": np.multiply,
    "a + b": np.add,
    "min(a, b)": np.minimum,
    "max(a, b)": np.maximum,
    "a and b": np.logical_and,
    "a or b": np.logical_or,
}
PAIRS = [Semiring(reducer, product) for reducer, product in itertools.product(REDUCE, PRODUCT)]


def numbers(dtype: DType) -> np.ndarray:
    """Values of a type at which laws break: ends of the range, zeros, NaN."""
    if dtype.is_float:  # sums and products of these are exact
        return np.array([-np.inf, -4, -1, -0.0, 0, 0.5, 3, 1024, np.nan], dtype.numpy)
    if dtype.kind == "b":
        return np.array([False, True])
    info = np.iinfo(dtype.numpy)
    return np.array([info.min, info.max, info.max // 2 + 1, 0, 1, 2, 3], dtype.numpy)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i64", "u8", "u64", "bool"])
@pytest.mark.parametrize("semiring", PAIRS, ids=lambda s: f"{s.reducer} of {s.product}")
def test_what_is_said_to_distribute_does(semiring: Semiring, dtype: str) -> None:
    reduce, times = REDUCE[semiring.reducer], PRODUCT[semiring.product]
    logical = semiring.reducer in ("any", "all") or " and " in semiring.product or " or " in semiring.product
    values = numbers(DTYPES[dtype])
    if semiring.reducer == "sum" and DTYPES[dtype].is_float:
        values = values[np.isfinite(values)]  # 0 * inf: NumPy's paths do not care either
    a, b, c = (v.ravel() for v in np.meshgrid(values, values, values))
    if logical:
        a, b, c = a != 0, b != 0, c != 0
    with np.errstate(all="ignore"):
        law = np.array_equal(times(reduce(a, b), c), reduce(times(a, c), times(b, c)), equal_nan=not logical)
        law &= np.array_equal(times(a, b), times(b, a), equal_nan=not logical)
        law &= np.array_equal(times(times(a, b), c), times(a, times(b, c)), equal_nan=not logical)
    if semiring.distributes(DTYPES[dtype]):
        assert law


@pytest.mark.parametrize(
    ("reducer", "product", "dtype"),
    [("max", "a * b", "f64"), ("min", "a * b", "f64"), ("max", "a + b", "i8"), ("min", "a + b", "u8"), ("sum", "a + b", "f64"),
     ("max", "a * b", "u8"), ("sum", "max(a, b)", "f32"), ("sum", "abs(a - b)", "f64")],
)  # fmt: skip
def test_what_does_not_distribute(reducer: str, product: str, dtype: str) -> None:
    assert not Semiring(reducer, product).distributes(DTYPES[dtype])


def steps(subscripts: str, operands: list[np.ndarray], semiring: Any, optimize: Any = True, where: Any = None) -> int:
    """How many statements of contraction the program has."""
    request, _ = request_of(subscripts, operands, semiring, where, optimize)
    return sum(not name.startswith(("peak_", "base_")) for name in _targets(program_of(request)))


def _targets(program: Any) -> list[str]:
    return [statement.target for statement in program.body if hasattr(statement, "target")]


CHAIN = "ij,jk,kl->il"


def chain(dtype: str = "f8") -> list[np.ndarray]:
    return [rng.integers(-9, 9, shape).astype(dtype) for shape in ((6, 7), (7, 8), (8, 5))]


@pytest.mark.parametrize("name", SEMIRINGS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
@pytest.mark.few(2)
def test_steps_give_what_one_nest_gives(name: str, dtype: str) -> None:
    operands = chain(dtype)
    assert steps(CHAIN, operands, name, optimize=False) == 1
    distributes = SEMIRINGS[name].distributes(polyml.dtypes.from_numpy(np.dtype(dtype)))
    assert steps(CHAIN, operands, name) == (2 if distributes or name == "log_sum_exp" else 1)
    if dtype == "f8" or not (distributes or name == "log_sum_exp"):
        return  # f4 has all cases of f8, and one nest is what it is compared with
    expected = polyml.einsum(CHAIN, *operands, semiring=name, optimize=False)
    actual = polyml.einsum(CHAIN, *operands, semiring=name)
    assert actual.dtype == expected.dtype
    if name == "log_sum_exp":
        assert np.allclose(actual, expected, rtol=1e-5)
    else:
        assert np.array_equal(actual, expected)


def test_infinities_and_nan_come_out_the_same() -> None:
    a, b, c = chain()
    a[0, 1], b[2], c[3, 0] = -np.inf, -np.inf, np.nan
    for name in ("max_plus", "min_max"):
        expected = polyml.einsum(CHAIN, a, b, c, semiring=name, optimize=False)
        assert np.array_equal(polyml.einsum(CHAIN, a, b, c, semiring=name), expected, equal_nan=True), name
    lost = np.full((6, 7), -np.inf)
    assert (polyml.einsum(CHAIN, lost, np.ones((7, 8)), np.ones((8, 5)), semiring="log_sum_exp") == -np.inf).all()


def test_masks_of_the_result_go_into_the_last_step() -> None:
    operands = chain()
    mask, inner = rng.random((6, 5)) < 0.5, rng.random((6, 7)) < 0.5
    best = (operands[0][:, :, None, None] + operands[1][:, :, None] + operands[2]).max((1, 2))
    found = polyml.einsum(CHAIN, *operands, semiring="max_plus", where=mask)
    assert np.array_equal(found, np.where(mask, best, -np.inf))
    assert steps(CHAIN, operands, "max_plus", where=mask) == 2
    assert steps(CHAIN, operands, "max_plus", where=("ij", inner)) == 1
    assert np.allclose(polyml.einsum(CHAIN, *operands, where=mask), np.where(mask, np.linalg.multi_dot(operands), 0))


def test_broadcasting_ellipses_and_repeated_labels() -> None:
    a, b, c = rng.random((3, 1, 4, 4)), rng.random((5, 4, 6)), rng.random((1, 6, 1))
    expected = (np.einsum("...jj->...j", a)[..., None] + b)[..., None] + c[:, None]
    for optimize in (True, False):
        found = polyml.einsum("...jj,...jk,...kl->...l", a, b, c, semiring="max_plus", optimize=optimize)
        assert np.allclose(found, expected.max((-3, -2)))


def test_intermediates_are_bounded() -> None:
    operands = [rng.random(shape) for shape in ((10, 3), (10, 3), (10, 3), (10, 10, 10, 3))]
    text = "ax,bx,cy,abcy->"
    expected = np.einsum(text, *operands)
    for keywords in (
        {},
        {"memory_limit": 50},
        {"optimize": ("greedy", 50)},
        {"memory_limit": 50, "optimize": "optimal"},
    ):
        assert np.isclose(polyml.einsum(text, *operands, **keywords), expected), keywords
        assert np.isclose(polyml.einsum(text, *operands, semiring="plus_times", **keywords), expected), keywords
    assert steps(text, operands, "plus_times") > 1
    assert steps(text, operands, "plus_times", ("greedy", 50)) == 1, "each pair would make a hundred or more"
    for wrong in (0, 2.5, "all", True):
        with pytest.raises(ArgumentError, match="no number of elements"):
            polyml.einsum(text, *operands, memory_limit=wrong)
    with pytest.raises(ArgumentError, match="does not go with a path"):
        polyml.einsum(text, *operands, memory_limit=9, optimize=["einsum_path", (0, 1, 2, 3)])
    with pytest.raises(ArgumentError, match="no way to choose a path"):
        polyml.einsum(text, *operands, semiring="max_plus", optimize=7)
