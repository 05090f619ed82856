"""Along which index a register tile has its rows: where the sum goes along pieces shorter than a line, rows that lie beside each other share lines."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

TARGET = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
PROGRAM = """
def f(x: f32["F B E A"], y: f32["C E D F"]):
    z[d, c, b, a] = x[f, b, e, a] * y[c, e, d, f]
    return z
"""


@pytest.mark.parametrize(("f", "rows"), [(7, "d"), (16, "c")])
@pytest.mark.few(1)
def test_rows_share_lines(f: int, rows: str) -> None:
    """29 values of d lie f elements apart, 15 of c 47 * 29 times as far."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((f, 17, 47, 27), (15, 47, 29, f)))
    function = polyml.einsum(PROGRAM, target=TARGET, threads=1)
    assert f" {rows} x 2 vectors of a" in str(function.explain(x, y))
    expected = np.einsum("fbea,cedf->dcba", x.astype(float), y.astype(float), optimize=True)
    host = polyml.einsum(PROGRAM, target=Target("host", l1_bytes=32 << 10, l2_bytes=512 << 10), threads=1)
    np.testing.assert_array_equal(host(x, y), expected)
