"""`map_to`, `function_of` and `integer`, against isl's reading of the same text."""

from __future__ import annotations

import islpy as isl
import pytest

from polyml.sets.affine import Affine, affine
from polyml.sets.from_isl import integer
from polyml.sets.linear_maps import function_of, map_to

i, j, n = map(affine, "ijN")


@pytest.mark.parametrize(
    ("target", "values", "text"),
    [
        ("A", (j, i * 2 - j + 3, affine(-1)), "A[j, 2i - j + 3, -1]"),
        ("A", (n - 1 - i, i // 4), "A[N - 1 - i, floor(i/4)]"),
        ("A", (), "A[]"),
        ("", (affine(0), i + n * 3), "[0, i + 3N]"),
    ],
)
def test_equals_the_text(target: str, values: tuple[Affine, ...], text: str) -> None:
    made = map_to("S", ("i", "j"), target, values, ("N", "M"))
    assert made.plain_is_equal(isl.Map(f"[N, M] -> {{ S[i, j] -> {text} }}"))
    assert made.get_dim_name(isl.dim_type.in_, 1) == "j"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (affine(5), "5"),
        (j // 8 * 8, "8*floor(j/8)"),
        (n - i * 2 + (i + j // 3 * 2 - n) // 5 - 4, "N - 2i - 4 + floor((i + 2*floor(j/3) - N)/5)"),
    ],
)
def test_functions_equal_their_text(value: Affine, text: str) -> None:
    made = function_of("S", ("i", "j"), value, ("N",))
    assert made.plain_is_equal(isl.Aff(f"[N] -> {{ S[i, j] -> [({text})] }}"))


@pytest.mark.parametrize("value", [0, -7, 2**62, -(2**63), 10**30])
def test_numbers_of_any_length(value: int) -> None:
    assert integer(isl.Val(str(value))) == value


def test_a_fraction_is_refused() -> None:
    with pytest.raises(ValueError, match="3/2"):
        integer(isl.Val("3/2"))
