"""Boxes by their corners are those that isl reads from text."""

from __future__ import annotations

import islpy as isl
import pytest

from polyml.sets.affine import affine
from polyml.sets.boxes import box


@pytest.mark.parametrize(
    ("name", "extents", "text"),
    [
        ("S", {}, "{ S[] }"),
        ("", {"e0": 3, "e1": 5}, "{ [e0, e1] : 0 <= e0 < 3 and 0 <= e1 < 5 }"),
        ("S", {"i": 1, "j": 2, "k": 1}, "{ S[i = 0, j, k = 0] : 0 <= j < 2 }"),
        ("S", {"i": 1 << 40}, "{ S[i] : 0 <= i < 1099511627776 }"),
        ("S", {"i": 0, "j": 4}, "{ S[i, j] : 0 <= i < 0 and 0 <= j < 4 }"),
        ("S", {"i": -2}, "{ S[i] : false }"),
    ],
)
def test_numbers(name: str, extents: dict[str, int], text: str) -> None:
    made = box(name, tuple(extents), extents)
    assert made.is_equal(isl.Set(text))
    assert str(made) == str(isl.Set(text))


def test_sizes() -> None:
    made = box("S", ("i", "j"), {"i": affine("N"), "j": affine("N") + 1}, ("M", "N"))
    assert made.is_equal(isl.Set("[M, N] -> { S[i, j] : 0 <= i < N and 0 <= j <= N }"))
    assert box("S", ("i",), {"i": affine(3)}, ("N",)).is_equal(isl.Set("[N] -> { S[i] : 0 <= i < 3 }"))
