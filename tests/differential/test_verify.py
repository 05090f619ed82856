"""verify: right programs pass with rounding that is explained, planted faults are found where they are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import polyml
from polyml.errors import ArgumentError, PolymlError, ShapeError
from polyml.testing import verify
from polyml.testing.cases import Case
from polyml.testing.strategies import programs

SOFTMAX = """def softmax(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = x[n, k] * w[k, m] + b[m]
    p[n, m] = exp(y[n, m] - max[j](y[n, j])) / sum[j](exp(y[n, j] - max[i](y[n, i])))
    t: f32["N"] = 0
    for s in range(0, 3):
        t[n] += p[n, m]
    return p, t
"""


def test_it_is_there_after_import_polyml() -> None:
    code = """
import sys, polyml
assert "polyml.testing" not in sys.modules and not hasattr(polyml, "nothing") and not hasattr(polyml.testing, "nothing")
assert polyml.testing.verify and polyml.testing.strategies.programs
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def arguments(seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype("f4") for shape in ((5, 37), (37, 12), (12,)))


def test_a_right_program() -> None:
    report = verify(SOFTMAX, *arguments())
    assert report
    assert (report.elements, report.wrong, report.open) == (65, 0, 0)
    assert report.worst is not None
    assert 0 < report.worst.error <= report.worst.allowed < 1e-4


def test_a_planted_fault_is_found_in_its_place() -> None:
    f = polyml.einsum(SOFTMAX)

    def wrong(*args: Any) -> Any:
        p, t = f(*args)
        p[3, 7] += np.float32(1e-3)
        return p, t

    report = verify(f, *arguments(), computed_by=wrong)
    assert not report
    assert (report.wrong, report.worst and (report.worst.name, report.worst.position)) == (1, ("p", (3, 7)))
    text = str(report)
    assert "1 of 65 elements are wrong" in text
    assert "m = 7, n = 3" in text
    assert "\n    p[n, m] = exp(" in text.replace("        p", "    p")
    assert "^^^^" in text
    assert report.worst is not None
    assert report.worst.ulps > 100


def test_a_fault_of_a_few_units_is_found() -> None:
    x = np.linspace(0.5, 2, 40)

    def off(by: int) -> Any:
        return lambda a: np.sqrt(a) * (1 + by * np.finfo("f8").eps)

    text = 'def f(x: f64["N"]):\n    y[n] = sqrt(x[n])\n    return y\n'
    assert verify(text, x, computed_by=off(0))
    assert not verify(text, x, computed_by=off(20))


def test_updates_and_loops_name_the_instances() -> None:
    text = 'def f(x: f64["N"], h: f64["M"], b: i64["N"]):\n    h[b[n]] += x[n]\n'
    x, h, b = np.ones(6), np.zeros(2), np.array([0, 1, 1, 1, 1, 0])

    def wrong(x: Any, h: Any, b: Any) -> None:
        np.add.at(h, b, x)
        h[1] += 1

    report = verify(text, x, h, b, computed_by=wrong)
    assert report.worst is not None
    assert (report.worst.name, report.worst.position, report.worst.count) == ("h", (1,), 4)
    assert [i.indices["n"] for i in report.worst.instances] == [1, 3, 4]
    assert "computed by 4 instances" in str(report)
    assert (h == 0).all()
    assert verify(text, x, h, b)


def test_cancellation_is_no_fault() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(400).astype("f4") * 1e6
    text = 'def f(x: f32["N"]):\n    s = sum[n](x[n]) + sum[n](-x[399 - n])\n    return s\n'
    report = verify(text, x, precise=False)
    assert report
    assert report.worst is not None
    assert report.worst.allowed > 1


def test_what_hangs_on_a_rounding_is_not_judged() -> None:
    text = 'def f(x: f32["N"]):\n    s[n] = where(x[n] * 3 > 0.3, 1, 0) + x[n]\n    return s\n'
    x = np.array([0.1, 0.2], "f4")
    report = verify(text, x, computed_by=lambda x: np.array([x[0], 1 + x[1]], "f4"))
    assert report
    assert report.open == 1
    assert "not judged" in str(report)


def test_other_dtypes_shapes_and_errors_are_faults() -> None:
    text = 'def f(x: f32["N"], b: i64["M"]):\n    s[m] = x[b[m]]\n    return s\n'
    x, b = np.ones(3, "f4"), np.array([0, 2])
    assert "float64 (2,)" in str(verify(text, x, b, computed_by=lambda x, b: x[b].astype("f8")))
    assert "float32 (1,)" in str(verify(text, x, b, computed_by=lambda x, b: x[b][:1]))
    assert "2 results" in str(verify(text, x, b, computed_by=lambda x, b: (x, b)))
    assert "the interpreter computes it" in str(verify(text, x, b, computed_by=lambda x, b: x[5]))
    assert "the interpreter raises" in str(verify(text, x, b + 2, computed_by=lambda x, b: x))
    assert verify(text, x, b + 2), "both refuse"
    with pytest.raises(PolymlError, match="takes 2 arguments"):
        verify(text, x)


def test_subscripts_and_semirings() -> None:
    x, w, _ = arguments()
    for keywords in ({}, {"semiring": "max_plus"}, {"semiring": ("sum", "abs(a - b)")}):
        assert verify("ij,jk->ik", x, w, **keywords), keywords
    assert not verify("ij,jk->ik", x, w, computed_by=lambda a, b: 1.001 * (a @ b))
    images = np.ones((1, 2, 5, 5), "f4")
    assert verify("n c h+r w+s, k c r s -> n k h w", images, np.ones((3, 2, 2, 2), "f4"))
    with pytest.raises(ArgumentError, match="order="):
        verify("ij,jk->ik", x, w, order="C")


def test_functions_with_surroundings() -> None:
    scale = 3
    inner = polyml.einsum('def inner(a: f32["N"]):\n    y[n] = a[n] * scale\n    return y\n')
    outer = polyml.einsum('def outer(a: f32["N"]):\n    z = inner(a)\n    y[n] = z[n] + scale\n    return y\n')
    assert (scale, inner.__name__) == (3, "inner")
    report = verify(outer, np.arange(1, 5, dtype="f4"), computed_by=lambda a: a)
    assert report.wrong == 4
    assert report.worst is not None
    assert "y[n] = z[n] + scale" in str(report)
    assert verify(outer, np.arange(4, dtype="f4"))


def test_too_many_instances() -> None:
    with pytest.raises(ShapeError, match="too many"):
        verify(SOFTMAX, *arguments(), most=1000)


def test_too_many_instances_are_counted_before_the_first() -> None:
    x = np.ones((2000, 2000), np.float32)
    with pytest.raises(ShapeError, match="too many"):  # a day's work
        verify("ij,jk->ik", x, x, most=8 * 10**9)


@settings(max_examples=6, deadline=None)
@given(programs())
def test_random_programs(case: Case) -> None:
    report = verify(case.text, *case.fresh_arguments())
    assert report, f"{case!r}\n{report}"


def test_products_are_judged_by_the_roundings_of_their_factors() -> None:
    text = 'def f(x: f64["N 3"]):\n    y[i] = prod[r](x[i, r])\n    return y\n'
    x = np.random.default_rng(0).standard_normal((300, 3))
    assert verify(text, x)
    assert verify(text, x, computed_by=lambda x: np.prod(x[:, ::-1], axis=1))
    assert not verify(text, x, computed_by=lambda x: np.prod(x, axis=1) * (1 + 1e-14))


def test_numbers_below_the_normal_ones() -> None:
    """They are rounded by as much as the smallest number is."""
    text = 'def f(x: f16["N"]):\n    y[n] = x[n] * 1e-5\n    z[n] = sin(x[n] * 1e30) + y[n]\n    return y, z\n'
    assert verify(text, np.linspace(-1, 1, 40).astype(np.float16))


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 1e30, 1.5, -2.5, 1e-310, 1e300, -7.0, -12.0, 5e-324])


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_what_the_language_leaves_to_the_machine_is_no_fault(dtype: str) -> None:
    """gelu where its sum cancels, and floats that are none of an integer type's (docs/numerics.md)."""
    x = SPECIAL.astype(polyml.dtypes.DTYPES[dtype].numpy)
    assert verify(f'def f(x: {dtype}["N"]):\n    y[n] = gelu(x[n])\n    return y\n', x)
    for kind in ("i8", "u16", "u32", "i64", "u64"):
        report = verify(f'def f(x: {dtype}["N"]):\n    y[n] = {kind}(x[n])\n    return y\n', x)
        assert report
        assert report.open >= 3  # the infinities and NaN; all others that fit are judged


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["c64", "c128"])
@pytest.mark.parametrize("op", ["x[n] * z[n]", "x[n] / z[n]", "x[n] ** z[n]", "log(x[n])", "sqrt(x[n])"])
@pytest.mark.few(1)
def test_complex_infinities(dtype: str, op: str) -> None:
    """A finite part beside an infinite one is judged by itself."""
    kind = polyml.dtypes.DTYPES[dtype].numpy
    values = np.array([complex(a, b) for a in SPECIAL for b in SPECIAL]).astype(kind)
    x, z = np.repeat(values, 9), np.tile(values[::3], 27)
    assert verify(
        f'def f(x: {dtype}["N"], z: {dtype}["N"]):\n    y[n] = {op}\n    return y\n', x[: len(z)], z[: len(x)]
    )


@pytest.mark.parametrize("dtype", ["c64", "c128"])
def test_real_factors_and_divisors_leave_the_parts_apart(dtype: str) -> None:
    """A part that is no number, or infinite, says nothing about the other one."""
    text = (
        f'def f(z: {dtype}["N"], r: f32["M"], w: {dtype}["N M"]):\n    a[n, m] = z[n] * r[m]\n    b[n] = 2.3 * z[n] + z[n] * 3\n'
        "    c[n, m] = z[n] / r[m]\n    d[n] = sum[m](r[m] * z[n])\n    w[n, m] *= r[m]\n    return a, b, c, d, w\n"
    )
    parts = [0.0, np.inf, -np.inf, np.nan, 1.7]
    z = np.array([complex(a, b) for a in parts for b in parts]).astype("complex64" if dtype == "c64" else "complex128")
    r = np.array([0, 1.1, -np.inf, np.nan], np.float32)
    report = verify(text, z, r, np.stack([z] * 4, axis=1), precise=True)
    assert report, report
    text = f'def f(z: {dtype}["N"]):\n    y[n] = z[n] * 2.5\n    return y\n'
    z = np.array([complex(np.nan, 1.5)]).astype(z.dtype)
    for imag in (3.75, 3.8):
        wrong = np.array([complex(np.nan, imag)]).astype(z.dtype)
        assert bool(verify(text, z, computed_by=lambda _, wrong=wrong: wrong)) == (imag == 3.75)


def test_a_wrong_part_beside_an_infinite_one_is_found() -> None:
    x = np.array([complex(-np.inf, 1)])
    report = verify(
        'def f(x: c128["N"]):\n    y[n] = log(x[n])\n    return y\n', x, computed_by=lambda x: np.log(x) + 1e-9j
    )
    assert report.wrong == 1
