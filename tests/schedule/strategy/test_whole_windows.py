"""Windows that an edge cuts are a loop of their own, so that all others are a register tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.target import Target

Array = np.ndarray[Any, Any]

HIGHEST = """
def highest(x: f32["T C"]):
    y: f32["T C"]
    y[t, c] = max[k < {taps}, 0 <= t + k - {before} < T](x[t + k - {before}, c])
    return y
"""
IMAGE = """
def image(x: f32["H W C"]):
    y: f32["H W C"]
    y[p, q, c] = sum[r < 3, s < 3, 0 <= p + r - 1 < H, 0 <= q + s - 1 < W](x[p + r - 1, q + s - 1, c])
    return y
"""
MEAN = """
def mean(x: f64["T C"]):
    y: f64["T C"]
    y[t, c] = sum[k < 5, 0 <= t + k - 2 < T](x[t + k - 2, c]) / sum[k < 5, 0 <= t + k - 2 < T](1.0)
    return y
"""
WHOLE = "where windows are whole"


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def notes(program: str, *arguments: Array, dynamic: bool = False, threads: int = 1) -> list[str]:
    f = polyml.einsum(program, target=Target("x86-64-v4"), dynamic=dynamic, threads=threads)
    return [note.text for region in f.lower(*arguments).stages.regions for note in region.notes]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("program", "arguments", "index"),
    [
        (HIGHEST.format(taps=5, before=2), [numbers(100, 64)], "t"),
        (HIGHEST.format(taps=4, before=3), [numbers(100, 64)], "t"),
        (IMAGE, [numbers(20, 30, 64)], "q"),
        (MEAN, [numbers(200, 64).astype(np.float64)], "t"),
    ],
)
@pytest.mark.few(4)
def test_rows_with_whole_windows_are_a_tile(program: str, arguments: list[Array], index: str, dynamic: bool) -> None:
    found = notes(program, *arguments, dynamic=dynamic)
    assert any(f"jam {index} by" in text and WHOLE in text for text in found), found
    assert not any("is not jammed" in text for text in found), found


def test_tiles_begin_where_windows_are_whole() -> None:
    """Of 26 rows 24 have whole windows: two tiles of 12, without a rest."""
    f = polyml.einsum(HIGHEST.format(taps=3, before=1), target=Target("x86-64-v4"), threads=1)
    lowered = f.lower(numbers(26, 64))
    found = [note.text for region in lowered.stages.regions for note in region.notes]
    assert any("jam t by 12" in text or "jam t by 8" in text for text in found), found
    loops = lowered.text("loops")
    assert "t_tile < 24" in loops, loops
    assert "min(" not in loops, loops


def test_threads_share_the_tiles() -> None:
    found = notes(HIGHEST.format(taps=3, before=1), numbers(4000, 512), threads=2)
    assert any("parallel t" in text and WHOLE in text for text in found), found


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        # Most windows are cut.
        (HIGHEST.format(taps=9, before=4), [numbers(12, 64)]),
        # No window has all places: there is no loop that all rows could share.
        (
            """
def band(a: f32["N N"], x: f32["N C"]):
    y: f32["N C"]
    y[i, c] = max[j, i - 3 <= j, j <= i + 3](a[i, j] * x[j, c])
    return y
""",
            [numbers(100, 100), numbers(100, 64)],
        ),
    ],
)
def test_others_stay_as_they_are(program: str, arguments: list[Array]) -> None:
    assert not any(WHOLE in text for text in notes(program, *arguments))


def highest(x: Array, taps: int, before: int) -> Array:
    x = np.pad(x, ((before, taps), (0, 0)), constant_values=-np.inf)
    return np.stack([x[t : t + taps].max(axis=0) for t in range(len(x) - before - taps)])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("taps", "before"), [(4, 3), (5, 2), (3, 0)])
@pytest.mark.few(2)
def test_right_for_long_and_short_rows(taps: int, before: int, dynamic: bool) -> None:
    f = polyml.einsum(HIGHEST.format(taps=taps, before=before), verify=True, dynamic=dynamic)
    for length, channels in ((1, 40), (taps - 1, 16), (taps, 3), (29, 40), (64, 17)):
        x = numbers(length, channels)
        np.testing.assert_array_equal(f(x), highest(x, taps, before))
        wide = numbers(length, 2 * channels)[:, ::2]
        np.testing.assert_array_equal(f(wide), highest(wide, taps, before))


@pytest.mark.parametrize("dynamic", [False, True])
def test_right_in_two_dimensions(dynamic: bool) -> None:
    f = polyml.einsum(IMAGE, verify=True, dynamic=dynamic)
    for high, wide, channels in ((1, 1, 16), (2, 20, 33), (13, 3, 16), (7, 28, 48)):
        x = numbers(high, wide, channels)
        around = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        wanted = sum(around[r : r + high, s : s + wide] for r in range(3) for s in range(3))
        np.testing.assert_array_equal(f(x), wanted)


def test_what_a_row_keeps_for_itself_stays_small() -> None:
    """Scores of a window are a row for each step; in two parts of the loop they would have to exist for all steps."""
    program = """
def spread(x: f32["T C"], w: f32["8 5"]):
    s: f32["T C 8"]
    y: f32["T C"]
    s[t, c, j] = sum[k, 0 <= t + k - 2 < T](x[t + k - 2, c] * w[j, k])
    m[t, c] = max[j](s[t, c, j])
    y[t, c] = sum[j](abs(s[t, c, j] - m[t, c]))
    return y
"""
    f = polyml.einsum(program, threads=1, target=Target("x86-64-v4"))
    assert "s: contracted to" in str(f.explain(numbers(200, 64), numbers(8, 5)))
