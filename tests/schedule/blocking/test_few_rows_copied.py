"""Eight to fifteen rows times a matrix that lanes do not run along: it is copied for them, or the result is laid out, but for long sums that it is contiguous along. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.schedule.blocking.test_results_in_pieces import HOST, TARGET, product
from tests.schedule.seen import notes_of

SIZES = {"a": 31, "b": 41, "c": 11, "d": 37, "e": 39}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("dabe,ec->dcba", {}),
        ("dabe,ec->dcba", {"c": 8, "e": 16}),
        ("aebd,ce->dcba", {"c": 9, "a": 77}),
        ("adb,cd->cba", {"a": 173, "b": 83, "d": 67}),
    ],
)
@pytest.mark.few(1)
def test_results(spec: str, other: dict[str, int], dtype: str) -> None:
    text, x, y = product(spec, dtype, SIZES | other)
    expected = np.einsum(spec, x.astype(float), y.astype(float), optimize=True)
    np.testing.assert_array_equal(polyml.einsum(text, target=HOST, threads=1, verify=True)(x, y), expected)


@pytest.mark.parametrize(
    ("spec", "other", "packed"),
    [
        ("dabe,ec->dcba", {}, True),
        ("dabe,ec->dcba", {"c": 7}, False),
        # Each element of the result would be stored alone, from lanes of which some are idle, or few, or none, or after long sums.
        ("dabe,ec->dcba", {"e": 64, "b": 21}, True),
        ("dabe,ec->dcba", {"c": 15, "e": 64, "b": 21}, False),
        ("dabe,ec->dcba", {"c": 8, "e": 48}, False),
        ("dabe,ec->dcba", {"e": 130, "b": 9}, False),
        # Lanes along the sum, as both operands lie; along the operand's memory.
        ("dabe,ce->dcba", {"e": 64, "b": 21}, False),
        ("deba,ec->dcba", {}, False),
    ],
)
def test_who_is_copied(spec: str, other: dict[str, int], packed: bool) -> None:
    text, x, y = product(spec, "f32", SIZES | other)
    explained = notes_of(polyml.einsum(text, target=TARGET, threads=1), x, y)
    assert ("x packed in panels" in explained) == packed


@pytest.mark.parametrize(("rows", "l2", "laid_out"), [(8, 4 << 20, True), (7, 512 << 10, True), (7, 4 << 20, False)])
def test_the_result_is_laid_out(rows: int, l2: int, laid_out: bool) -> None:
    """The operand, of more than L2 holds, is read as it lies; where a few rows meet it, of more than four times as much."""
    text, x, y = product("aebd,ce->dcba", "f32", SIZES | {"c": rows})
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=l2)
    explained = notes_of(polyml.einsum(text, target=target, threads=1), x, y)
    assert ("z_turned" in explained) == laid_out
