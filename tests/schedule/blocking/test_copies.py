"""Packed blocks: panels that are written side by side do not meet in one set of L1."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

TEXT = 'def f(x: {0}["{1}"], y: {0}["K M"]):\n    z[n, m] = {2} * y[k, m]\n    return z\n'
NN, TN = ("N K", "x[n, k]"), ("K N", "x[k, n]")
V3, V4 = (
    Target("x86-64-v3", l1_bytes=48 * 1024, l2_bytes=1 << 20),
    Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1 << 20),
)


def panels(target: Target, dtype: str, form: tuple[str, str], size: int) -> dict[str, list[int]]:
    """Shapes of the packed arrays."""
    x = np.zeros((size, size), dtype.replace("f", "float"))
    text = polyml.einsum(TEXT.format(dtype, *form), target=target, threads=1).lower(x, x).text("loops")
    found = re.findall(r"local f\d+ (\w)_panels\[(.*)\];", text)
    return {name: [int(extent) for extent in shape.split(", ")] for name, shape in found}


@pytest.mark.parametrize("form", [NN, TN])
def test_many_panels_lie_a_line_apart(form: tuple[str, str]) -> None:
    """Sixteen panels of 256 rows of a line each are 16 KiB apart: one set for sixteen lines."""
    for count, rows, width in panels(V3, "f64", form, 512).values():
        assert count > 12
        assert rows * width * 8 % 4096
        assert rows * width * 8 % 64 == 0


def test_few_panels_lie_side_by_side() -> None:
    assert panels(V4, "f64", NN, 512) == {"y": [4, 512, 24]}


def test_an_index_may_be_called_like_the_number_of_a_block() -> None:
    """`k_block` counts no blocks of k: rows of that name are blocked like any others."""
    target = Target("x86-64-v3", l1_bytes=8 * 1024, l2_bytes=64 * 1024)
    x, y = np.zeros((300, 200), np.float32), np.zeros((300, 600), np.float32)
    text = TEXT.format("f32", *TN).replace("n,", "k_block,").replace("n]", "k_block]")
    assert "blocks of k by 80" in polyml.einsum(text, target=target, threads=1).lower(x, y).explain()


@pytest.mark.parametrize("form", [NN, TN])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(160, 512, 512), (131, 1027, 301), (65, 300, 520)])
@pytest.mark.few(2)
def test_values(form: tuple[str, str], rows: int, depth: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    x, y = (rng.integers(-3, 4, shape).astype(float) for shape in ((rows, depth), (depth, columns)))
    given = x if form is NN else np.ascontiguousarray(x.T)
    target = Target("x86-64-v3")
    found = polyml.einsum(
        TEXT.format("f64", *form), target=target if rows == 131 and target.runs_here else Target("host"), threads=1
    )(given, y)
    np.testing.assert_array_equal(found, x @ y)


@pytest.mark.parametrize("count", [1, 5])
def test_operands_that_do_not_move_along_an_index(count: int) -> None:
    """A dimension of one element in a strided view, which the panels do not have, or one that is broadcast, whose rows are in no blocks."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(-3, 4, (66, 31, 3)).astype(float), rng.integers(-3, 4, (66, 33, 2)).astype(float)
    text = 'def f(x: f64["K M J"], y: f64["K N I"]):\n    z[i, j, n, m] = x[k, m, j] * y[k, n, i]\n    return z\n'
    function = polyml.einsum(text, target=Target("host", l1_bytes=2048, l2_bytes=8192), threads=1)
    given = x[:, :, 1::2] if count == 1 else np.broadcast_to(x[:, :, :1], (66, 31, count))
    assert ("y_panels" in function.lower(given, y).text("domains")) == (count == 1)
    np.testing.assert_array_equal(function(given, y), np.einsum("kmj,kni->ijnm", given, y))
