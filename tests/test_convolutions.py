"""The layers of benchmarks.convolutions at small sizes: programs with bound weights against float64, and the table of cases."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from benchmarks.convolutions import CASES, Convolution, exact, read_cases


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "groups"),
    [(3, 1, 1, 1), (7, 2, 3, 1), (1, 1, 0, 1), (1, 2, 0, 1), (3, 1, 1, 18), (3, 2, 1, 18)],
)
@pytest.mark.few(3)
def test_layers_are_right(kernel: int, stride: int, padding: int, groups: int) -> None:
    case = Convolution("small", 18, 14, 14, 18 if groups > 1 else 24, kernel, stride, padding, groups)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in case.shapes()[:2])
    layer = polyml.einsum(case.program()).bind(w=w[..., 0, 0] if kernel == 1 else w)
    y = layer(x)
    assert y.shape == case.shapes()[2]
    np.testing.assert_array_equal(y, exact(case, x, w))


def test_the_table_has_each_layer_once() -> None:
    cases = list(read_cases(CASES, "float32"))
    assert len({(c.channels, c.height, c.filters, c.kernel, c.stride, c.groups) for c in cases}) == len(cases) == 42
    for case in cases:
        *_, (filters, high, wide) = case.shapes()
        assert (high, wide) == (case.height // case.stride, case.width // case.stride)
        assert case.groups in (1, filters)
