"""Sums over windows whose sizes are not known: lanes along the result's rows, register tiles over several of them; right at every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.target import Target

Array = np.ndarray[Any, Any]

ONE = """
def window(x: f32["N M"], w: f32["R S"]):
    y[i, j] = sum[r, s](w[r, s] * x[{step}*i + {gap}*r, {step}*j + {gap}*s])
    return y
"""
EACH = """
def depthwise(x: f32["B C N M"], w: f32["C R S"]):
    y[b, c, i, j] = sum[r, s](w[c, r, s] * x[b, c, {step}*i + {gap}*r, {step}*j + {gap}*s])
    return y
"""
SIZES = {ONE: ("N", "M", "R", "S"), EACH: ("B", "C", "N", "M", "R", "S")}


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def expected(x: Array, w: Array, step: int, gap: int) -> Array:
    """One sum over windows per leading index; w: [.., R, S]."""
    high, wide = ((n - gap * (k - 1) - 1) // step + 1 for n, k in zip(x.shape[-2:], w.shape[-2:], strict=True))
    y = np.zeros((*x.shape[:-2], high, wide), np.float32)
    for r in range(w.shape[-2]):
        for s in range(w.shape[-1]):
            part = x[..., gap * r :, gap * s :][..., : step * high : step, : step * wide : step]
            y += w[..., r, s, None, None] * part
    return y


@pytest.mark.parametrize(("step", "gap"), [(1, 1), (2, 1), (1, 2), (3, 1)])
@pytest.mark.few(2)
def test_lanes_and_tiles_go_along_the_result(step: int, gap: int) -> None:
    """Sums over windows are short: no lanes along them, whatever the stride; and of rows that could share a tile the neighbours do, which read the same."""
    for program, arguments in (
        (ONE, (numbers(9, 9), numbers(3, 3))),
        (EACH, (numbers(2, 3, 9, 9), numbers(3, 3, 3))),
    ):
        f = polyml.einsum(program.format(step=step, gap=gap), dynamic=SIZES[program], target=Target("x86-64-v4"))
        notes = [note.text for region in f.lower(*arguments).stages.regions for note in region.notes]
        assert any("jam i by" in text and "lanes along j" in text for text in notes), notes


@pytest.mark.parametrize(("step", "gap"), [(1, 1), (2, 1), (1, 2), (3, 2)])
@pytest.mark.few(1)
def test_right_for_every_size(step: int, gap: int) -> None:
    one, each = (polyml.einsum(p.format(step=step, gap=gap), dynamic=SIZES[p], verify=True) for p in (ONE, EACH))
    for r, s in ((1, 1), (3, 3), (5, 2), (1, 17)):
        for n, m in ((1, 1), (13, 40), (25, 131), (40, 70)):
            if gap * (r - 1) < n and gap * (s - 1) < m:
                x, w = numbers(3, 2, n, m), numbers(2, r, s)
                np.testing.assert_array_equal(each(x, w), expected(x, w, step, gap))
                np.testing.assert_array_equal(one(x[0, 0], w[0]), expected(x[0, 0], w[0], step, gap))
    assert len(one.kernels) == len(each.kernels) == 1


@pytest.mark.parametrize("first", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_few_filters(first: int) -> None:
    """Where panels do not pay, tiles of 4 filters, of 2 and of 1; whichever number asks for the kernel."""
    f = polyml.einsum(
        'def f(x: f32["C H W"], w: f32["O C R S"]):\n    y[o, p, q] = x[c, p + r, q + s] * w[o, c, r, s]\n    return y\n',
        dynamic=("C", "H", "W", "O", "R", "S"),
    )
    for filters in (first, 1, 2, 3, 5, 7, 12):
        x, w = numbers(3, 20, 90), numbers(filters, 3, 3, 3)
        total = np.zeros((filters, 18, 88), np.float32)
        for c in range(3):
            total += expected(np.broadcast_to(x[c], (filters, 20, 90)), w[:, c], 1, 1)
        np.testing.assert_array_equal(f(x, w), total)
    assert len(f.kernels) == 1


@pytest.mark.parametrize(("step", "dtype", "size"), [(2, "f64", 7), (3, "f64", 5)])
def test_short_rows_of_a_window_have_no_lanes(step: int, dtype: str, size: int) -> None:
    """Each of its rows is one vector with idle lanes, that is added up by itself."""
    line = f"y[i, j] = sum[r < {size}, s < {size}](x[{step}*i + r, {step}*j + s])"
    kind = np.float32 if dtype == "f32" else np.float64
    x = np.random.default_rng(1).integers(-3, 4, (70, 170)).astype(kind)
    target = Target("x86-64-v4")
    f = polyml.einsum(f'def f(x: {dtype}["N M"]):\n    y: {dtype}["20 50"]\n    {line}\n    return y\n', target=target)
    assert "lanes along j" in str(f.explain(x))
    if target.runs_here:
        wanted = sum(x[r : r + 20 * step : step, s : s + 50 * step : step] for r in range(size) for s in range(size))
        np.testing.assert_array_equal(f(x), wanted)


@pytest.mark.parametrize("after", ["z[t, c]", "z[t, c] / (1 + exp(-z[t, c]))", "tanh(exp(z[t, c]))"])
@pytest.mark.few(2)
def test_functions_of_sums_keep_the_tiles_of_the_sums(after: str) -> None:
    """A window of four terms shares rows with the next ones, however much is computed with its sum."""
    source = f"""
def f(x: f32["T C"], w: f32["C 4"]):
    z[t, c] = x[t + r, c] * w[c, r]
    y[t, c] = {after}
    return y
"""
    x, w = numbers(40, 70) / 8, numbers(70, 4) / 8
    lowered = polyml.einsum(source, target=Target("x86-64-v4")).lower(x, w)
    assert any("jam t by" in note.text for region in lowered.stages.regions for note in region.notes)
    z = sum(x[r : 37 + r].astype(np.float64) * w[:, r] for r in range(4))
    wanted = {"z[t, c]": z, "tanh(exp(z[t, c]))": np.tanh(np.exp(z))}.get(after, z / (1 + np.exp(-z)))
    np.testing.assert_allclose(polyml.einsum(source, verify=True)(x, w), wanted, rtol=1e-5, atol=1e-6)


WINDOW = """
def window(x: f32["N M"]):
    y[i, j] = sum[r < 3, s < 3](x[i + r, j + s])
    return y
"""


def test_rows_of_known_windows_share_what_they_read() -> None:
    """In images of any size, as where the size is a number; those of windows whose size is none are not written out."""
    v4 = Target("x86-64-v4")
    for dynamic in (False, ("N", "M")):
        schedule = polyml.einsum(WINDOW, dynamic=dynamic, target=v4).lower(numbers(70, 90)).text("schedule")
        assert "mark: jam:" in schedule, dynamic


def test_rows_that_share_at_any_size() -> None:
    f = polyml.einsum(WINDOW, dynamic=("N", "M"), verify=True)
    for n, m in ((70, 90), (3, 3), (4, 40), (10, 18), (11, 19), (12, 66), (17, 35), (33, 131)):
        x = numbers(n, m)
        np.testing.assert_array_equal(f(x), expected(x, np.ones((3, 3), np.float32), 1, 1), err_msg=f"{n} x {m}")
    assert len(f.kernels) == 1
    np.testing.assert_array_equal(
        f(numbers(40, 60)[::2]), expected(numbers(40, 60)[::2], np.ones((3, 3), np.float32), 1, 1)
    )


MEANS = """
def means(x: f32["H W 3"]):
    y[h, w, c] = sum[r < 2, s < 2](x[2*h + r, 2*w + s, c])
    return y
"""


def test_rows_of_a_tile_are_not_lines_of_an_image() -> None:
    """Pixels of one line are nearer than those of several, however long lines are."""
    for dynamic in (False, ("H", "W")):
        lowered = polyml.einsum(MEANS, dynamic=dynamic, target=Target("x86-64-v4")).lower(numbers(90, 100, 3))
        assert any("jam w by" in note.text for region in lowered.stages.regions for note in region.notes), dynamic
    f = polyml.einsum(MEANS, dynamic=("H", "W"))
    for h, w in ((90, 100), (2, 2), (5, 37), (3, 9), (16, 34)):
        x = numbers(h, w, 3)
        even = x[: h // 2 * 2, : w // 2 * 2].reshape(h // 2, 2, w // 2, 2, 3)
        np.testing.assert_array_equal(f(x), even.sum(axis=(1, 3)), err_msg=f"{h} x {w}")
