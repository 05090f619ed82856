"""Short sums into a large result with short rows have panels for the order in which it is written: that of its memory. Results are compared with NumPy's in float64 (small integers, so that they are exact)."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

TARGET = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
HOST = Target("host", l1_bytes=32 << 10, l2_bytes=512 << 10)
SIZES = {"a": 7, "b": 15, "c": 13, "d": 17, "e": 29, "f": 5, "g": 7}


def product(spec: str, dtype: str, sizes: dict[str, int]) -> tuple[str, np.ndarray, np.ndarray]:
    operands, out = spec.split("->")
    left, right = operands.split(",")
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, [sizes[i] for i in part]).astype(dtype.replace("f", "float")) for part in (left, right))
    shapes = [" ".join(i.upper() for i in part) for part in (left, right)]
    z, p, q = (", ".join(part) for part in (out, left, right))
    text = f'def f(x: {dtype}["{shapes[0]}"], y: {dtype}["{shapes[1]}"]):\n    z[{z}] = x[{p}] * y[{q}]\n    return z\n'
    return text, x, y


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("cadg,bgfe->fedcba", {}),
        ("cadg,bgfe->fedcba", {"g": 4, "b": 16}),
        ("cadg,bgfe->fedcba", {"a": 1, "b": 64, "c": 31}),
        ("cafg,bged->fedcba", {"a": 27, "g": 15}),
        ("afbce,df->edcba", {"f": 6, "d": 31}),
        ("agfe,cbdg->fedcba", {"a": 5, "c": 39, "d": 11, "e": 3, "g": 25}),
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
    ("spec", "other", "in_order"),
    [
        ("cadg,bgfe->fedcba", {}, True),
        ("cadg,bgfe->fedcba", {"g": 3}, False),
        # L2 holds the result; rows of a few kilobytes; an operand with lanes that lie side by side.
        ("cadg,bgfe->fedcba", {"c": 3, "d": 5}, False),
        ("cadg,bgfe->fedcba", {"a": 300, "c": 2, "d": 3}, False),
        ("gcda,bgfe->fedcba", {}, False),
    ],
)
def test_order_of_the_result(spec: str, other: dict[str, int], in_order: bool) -> None:
    text, x, y = product(spec, "f32", SIZES | other)
    explained = str(polyml.einsum(text, target=TARGET, threads=1).explain(x, y))
    assert ("tiles in the order of the result" in explained) == in_order


@pytest.mark.parametrize(("d", "order"), [(3, ["f", "e", "d", "c"]), (11, ["f", "d", "e", "c"])])
def test_rows_that_l2_does_not_hold(d: int, order: list[str]) -> None:
    """Rows of 640 KB would come from the last cache for each e; L2 keeps those of one d for all of them. Of 175 KB it keeps all."""
    text, x, y = product("agfe,cbdg->fedcba", "f32", {**SIZES, "a": 5, "c": 39, "d": d, "e": 9, "g": 25})
    target = Target(
        "x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, vector_registers=17
    )  # for fewer its blocks are laid out (laid_blocks.py)
    loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
    outer = re.findall(r"for \((\w) = 0", loops[: loops.index("register")])
    assert outer[-5:] == [*order, "a"]


def test_rows_are_packed_for_many_columns() -> None:
    """Blocks of columns whose panels L1 holds, one value of c each here, would pack all rows again, each for a few columns."""
    sizes = {"a": 11, "b": 27, "c": 43, "d": 29, "e": 7, "f": 17}
    text, x, y = product("cfea,debf->dcba", "f64", sizes)
    explained = str(polyml.einsum(text, target=TARGET, threads=1).explain(x, y))
    assert "y in panels" in explained
    columns = re.search(r"blocks of c by (\d+)", explained)
    assert columns is None or int(columns[1]) > 8
