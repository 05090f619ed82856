"""Products whose results have short rows are made in long ones, and laid out block by block while a cache has them. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.schedule.blocking.test_results_in_pieces import HOST, TARGET, product

SIZES = {"a": 9, "b": 25, "c": 7, "d": 5, "e": 5, "f": 15, "g": 37}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("bgfd,caeg->fedcba", {}),
        ("bgfd,caeg->fedcba", {"b": 1, "c": 31}),
        ("agfe,cbdg->fedcba", {"a": 5, "c": 11}),
        ("cadg,bgfe->fedcba", {"a": 19, "c": 21, "d": 19, "f": 2}),
        ("cfea,debf->dcba", {"a": 11, "b": 27, "c": 43, "d": 29, "e": 7, "f": 17}),
        ("cfae,edfb->dcba", {"a": 13, "b": 47, "c": 19, "d": 9, "e": 25, "f": 5}),
    ],
)
@pytest.mark.few(1)
def test_results(spec: str, other: dict[str, int], dtype: str, threads: int) -> None:
    text, x, y = product(spec, dtype, SIZES | other)
    expected = np.einsum(spec, x.astype(float), y.astype(float), optimize=True)
    np.testing.assert_array_equal(polyml.einsum(text, target=HOST, threads=threads, verify=True)(x, y), expected)
    strided = np.repeat(x, 2, -1)[..., ::2]
    np.testing.assert_array_equal(polyml.einsum(text, target=HOST, threads=threads)(strided, y), expected)


@pytest.mark.parametrize(
    ("spec", "other", "block"),
    [
        ("bgfd,caeg->fedcba", {}, "z_laid: contracted to 1x1x25x5x63"),
        # Rows of whole vectors; 32 registers, on which nothing was measured, are in the test below.
        ("bgfd,caeg->fedcba", {"a": 8}, None),
        # The sum is long: panels of all of it leave no room in L1.
        ("bgfd,caeg->fedcba", {"g": 300}, None),
        # What lies side by side in the operand does so in the result, too.
        ("baeg,cgfd->fedcba", {"f": 2}, None),
    ],
)
@pytest.mark.few(3)
def test_what_is_laid_out(spec: str, other: dict[str, int], block: str | None) -> None:
    text, x, y = product(spec, "f32", SIZES | other)
    explained = str(polyml.einsum(text, target=TARGET, threads=1).explain(x, y))
    assert block in explained if block else "z_laid: contracted" not in explained


def test_many_registers() -> None:
    text, x, y = product("bgfd,caeg->fedcba", "f32", SIZES)
    target = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=512 << 10)
    assert "z_laid: contracted" not in str(polyml.einsum(text, target=target, threads=1).explain(x, y))


def test_pieces_are_written_in_the_order_of_the_result() -> None:
    text, x, y = product("bgfd,caeg->fedcba", "f32", SIZES)
    loops = polyml.einsum(text, target=TARGET, threads=1).lower(x, y).text("loops")
    stores = [line.strip() for line in loops.splitlines() if line.strip().startswith("z[")]
    assert len(stores) == 2
    assert all("z_laid[0, 0, i4, i1, 9*i3 + i5]" in line for line in stores)
