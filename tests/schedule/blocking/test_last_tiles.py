"""The last register tiles along the lanes share what a whole one and a narrow one would have. Results are compared with NumPy's (small integers, so that they are exact)."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

V4 = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1 << 20)
HOST = Target("host", l1_bytes=48 << 10, l2_bytes=1 << 20)
TEXT = 'def f(x: {0}["N K"], y: {0}["K M"]):\n{1}    return z\n'
SUM = "    z[n, m] = x[n, k] * y[k, m]\n"


def integers(*shape: int, dtype: str = "f64") -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 10, shape).astype("f" if dtype == "f32" else "d")


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        (512, "2 and 2"),
        (488, "2 and 2"),  # with blocks of two tiles the narrow one would be a block of its own
        (504, ""),  # whole tiles of three
        (520, ""),  # two vectors are left, which are busy enough
        (509, ""),  # a part of a vector, which has a mask
    ],
)
@pytest.mark.few(3)
def test_four_vectors_are_two_tiles_of_two(columns: int, last: str) -> None:
    x, y = integers(256, 512), integers(512, columns)
    explained = str(polyml.einsum(TEXT.format("f64", SUM), target=V4, threads=1).explain(x, y))
    found = re.findall(r"register tile 8 n x 3 vectors.*the last ones of (.*) vectors", explained)
    assert "register tile 8 n x 3 vectors" in explained
    assert found == ([last] if last else [])


def test_their_sums_have_no_rest() -> None:
    """Sixteen sums, two steps at a time: three would leave one of 512, another copy of the tile."""
    x, y = integers(256, 512), integers(512, 512)
    text = polyml.einsum(TEXT.format("f64", SUM), target=V4, threads=1).lower(x, y).text("loops")
    assert set(re.findall(r"for \(k = 0; k < (\d+); k \+= 2\)", text)) == {"512"}
    assert len(re.findall(r"for \(k = ", text)) == 5  # two copies, three kinds of tiles


@pairwise(
    ("tiles", [1, 2, 5, 8]),
    ("rows, depth", [(64, 512), (83, 300), (161, 1027)]),
    ("dtype", ["f32", "f64"]),
    ("threads", [1, 2]),
)
@pytest.mark.few(3)
def test_values(dtype: str, tiles: int, rows: int, depth: int, threads: int) -> None:
    columns = (3 * tiles + 1) * HOST.lanes(4 if dtype == "f32" else 8)
    x, y = integers(rows, depth, dtype=dtype), integers(depth, columns, dtype=dtype)
    function = polyml.einsum(TEXT.format(dtype, SUM), target=HOST, threads=threads, verify=True)
    np.testing.assert_array_equal(function(x, y), x @ y)


@pytest.mark.parametrize("form", ["kn,km->nm", "kn,mk->nm", "nk,mk->nm", "bnk,bkm->bnm", "nakb,kmb->nma"])
@pytest.mark.few(3)
def test_other_orders(form: str) -> None:
    sizes = {"n": 83, "m": 10 * HOST.lanes(8), "k": 260, "a": 3, "b": 2}
    left, right = form.partition("->")[0].split(",")
    x, y = (integers(*(sizes[i] for i in part)) for part in (left, right))
    expected = np.einsum(form, x, y, optimize=True)
    np.testing.assert_array_equal(_product(form)(x, y), expected)


def _product(form: str) -> Callable[..., np.ndarray]:
    operands, out = form.split("->")
    left, right = operands.split(",")
    shapes = (" ".join(part.upper()) for part in (left, right))
    names = [f"{t}[{', '.join(part)}]" for t, part in zip("zxy", (out, left, right), strict=True)]
    types = ", ".join(f'{t}: f64["{shape}"]' for t, shape in zip("xy", shapes, strict=True))
    return polyml.einsum(
        f"def f({types}):\n    {names[0]} = {names[1]} * {names[2]}\n    return z\n",
        target=HOST,
        threads=1,
        verify=True,
    )


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("    z[n, m] = max[k](x[n, k] + y[k, m])\n", lambda x, y: (x[:, :, None] + y).max(1)),
        ("    t[n, m] = x[n, k] * y[k, m]\n    z[n, m] = max(t[n, m], 0)\n", lambda x, y: np.maximum(x @ y, 0)),
        ("    z[n, m] = 3 * x[n, k] * y[k, m]\n    z[n, m] += 1\n", lambda x, y: 3 * (x @ y) + 1),
    ],
)
def test_other_sums_and_what_follows(form: str, expected: Callable[..., np.ndarray]) -> None:
    x, y = integers(70, 270), integers(270, 10 * HOST.lanes(8))
    function = polyml.einsum(TEXT.format("f64", form), target=HOST, threads=1, verify=True)
    np.testing.assert_array_equal(function(x, y), expected(x, y))
