"""Products that are sums of their own: those that are subtracted run through the code of those that are added."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation
from polyml.target import Target

SMALL = Target("host", l1_bytes=4096, l2_bytes=16 * 1024, cores=2)
"""This machine with caches that do not hold operands of test sizes."""


def arrays(text: str, *shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    kind = "c8" if "c64" in text else "c16" if "c128" in text else "f4"
    found = []
    for shape in shapes:
        x = rng.standard_normal(shape)
        found.append((x + 1j * rng.standard_normal(shape) if kind[0] == "c" else x).astype(kind))
    return tuple(found)


def opposites(text: str, *values: np.ndarray, **options: object) -> list[Equation]:
    stages = polyml.einsum(text, threads=1, target=SMALL, **options).lower(*values).stages
    ops = [op for op in stages.graph.ops if isinstance(op, Equation)]
    return [op for op in ops if op.result.name.endswith("_opposite")]


COMPLEX = """
def f(x: T["I K"], y: T["K J"]):
    z[i, j] = x[i, k] * y[k, j]
    return z
"""


@cache
def compiled(text: str, dynamic: bool) -> polyml.Einsum:
    """Of any size as called with these sizes, which two tests ask for."""
    return polyml.einsum(text, threads=1, target=SMALL, dynamic=dynamic)


@pytest.mark.parametrize("dtype", ["c64", "c128"])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=["known", "any"])
@pytest.mark.few(1)
def test_complex_products_are_compiled_once(dtype: str, options: dict[str, bool]) -> None:
    text = COMPLEX.replace("T", dtype)
    x, y = arrays(text, (300, 190), (190, 290))
    (found,) = opposites(text, x, y, **options)
    assert found.result.name.startswith("y") or options  # the smaller one, where sizes are known
    program = compiled(text, bool(options))
    sums = [
        r
        for r in program.lower(x, y).stages.regions
        if any(op.reduce for op in r.region.ops if isinstance(op, Equation))
    ]
    assert len(sums) == 2  # one that starts, and one that goes on
    np.testing.assert_allclose(
        program(x, y), x @ y, rtol=1e-4 if dtype == "c64" else 1e-10, atol=1e-3 if dtype == "c64" else 1e-11
    )


REAL = """
def f(a: f32["I K"], b: f32["K J"], c: f32["I K"], d: f32["K J"]):
    z[i, j] = sum[k](a[i, k] * b[k, j] - c[i, k] * d[k, j])
    return z
"""


def test_what_is_subtracted_alone_stays() -> None:
    values = arrays(REAL, (300, 90), (90, 270), (300, 90), (90, 270))
    assert not opposites(REAL, *values)
    more = REAL.replace("    return z", "    w[i, j] = sum[k](a[i, k] * d[k, j] + c[i, k] * b[k, j])\n    return z, w")
    assert len(opposites(more, *values)) == 1
    other = more.replace("a[i, k] * d[k, j] + c[i, k] * b[k, j]", "a[i, k] * d[k, j] + b[k, j] * c[i, k]")
    assert not opposites(other, *values)  # its operands stand the other way round
    a, b, c, d = (x.astype("f8") for x in values)
    for text, expected in ((REAL, (a @ b - c @ d,)), (more, (a @ b - c @ d, a @ d + c @ b))):
        made = polyml.einsum(text, target=SMALL)(*values)
        for one, right in zip(made if isinstance(made, tuple) else (made,), expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(90, 900, 90), (900, 16, 900)])
def test_elements_of_few_uses_and_short_sums_stay(shape: tuple[int, int, int]) -> None:
    text, (i, k, j) = COMPLEX.replace("T", "c64"), shape
    assert not opposites(text, *arrays(text, (i, k), (k, j)))


def test_empty_and_single() -> None:
    text = COMPLEX.replace("T", "c128")
    program = compiled(text, dynamic=True)
    program(*arrays(text, (300, 190), (190, 290)))
    for i, k, j in ((0, 5, 3), (5, 0, 3), (1, 1, 1), (17, 1, 90)):
        x, y = arrays(text, (i, k), (k, j))
        np.testing.assert_allclose(program(x, y), x @ y, rtol=1e-12)
