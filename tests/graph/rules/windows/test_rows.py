"""Sums over windows without filters: copies with padding, in phases and in blocks of rows, and that results are the same, with nothing read outside and nothing let in by padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation
from polyml.target import Target
from tests.einsum_numpy.guard_pages import guarded

TEXT = 'def layer(x: f32["C H W"], w: f32["C R S"]):\n    y[c, p, q] = {x}[c, {a}*p + r, {b}*q + s] * w[c, r, s]\n    return y\n'


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def program(padding: int, steps: tuple[int, int]) -> str:
    source = f"pad(x, ((0, 0), ({padding}, {padding}), ({padding}, {padding})))" if padding else "x"
    return TEXT.format(x=source, a=steps[0], b=steps[1])


def expected(x: np.ndarray, w: np.ndarray, padding: int, steps: tuple[int, int]) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[1:], (1, 2))[:, :: steps[0], :: steps[1]]
    return np.einsum("cpqrs,crs->cpq", windows, w.astype(np.float64))


def copies(text: str, *args: np.ndarray, **options: object) -> dict[str, tuple[int, ...]]:
    """The shapes of the copies that windows are read from."""
    graph = polyml.einsum(text, **options).trace(*args)
    made = (op.result for op in graph.ops if isinstance(op, Equation) and "_padded" in op.result.name)
    return {tensor.name: tuple(extent.constant for extent in tensor.shape) for tensor in made}


SIZES = ((7, 9), (15, 16), (17, 33), (31, 31), (33, 40), (64, 57), (61, 113))


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("kernel", "padding"), [((3, 3), 1), ((3, 3), 0), ((5, 2), 2), ((2, 4), 1), ((7, 7), 3)])
@pytest.mark.parametrize("steps", [(1, 1), (2, 2), (1, 3), (2, 1), (3, 4), (1, 5)])
@pytest.mark.few(4)
def test_values(name: str, kernel: tuple[int, int], padding: int, steps: tuple[int, int]) -> None:
    """Rows around the lengths of vectors and tiles; blocks of rows, since L1 is small. Each size with a sixth of the others."""
    target = Target(name, l1_bytes=8 * 1024, l2_bytes=256 * 1024)
    if Target("host").vector_bytes < target.vector_bytes:
        pytest.skip("this machine has no such vectors")
    for k, (high, wide) in enumerate(SIZES):
        if (k + len(name) + padding + steps[1]) % 6:
            continue
        channels = -(-40_000 // (high * wide))
        x, w = numbers(channels, high, wide, seed=k), numbers(channels, *kernel, seed=k + 1)
        layer = polyml.einsum(program(padding, steps), target=target, verify=k % 2 == 0)
        lowered = layer.lower(x, w)
        assert not any(note.stage == "fallback" for region in lowered.stages.regions for note in region.notes)
        behind = bool(k % 2)
        found = layer(guarded(x, behind), guarded(w, behind))
        np.testing.assert_array_equal(found, expected(x, w, padding, steps))
        np.testing.assert_array_equal(layer.bind(w=w)(x), expected(x, w, padding, steps))


def test_rows_with_gaps_are_copied_in_phases() -> None:
    target = Target("x86-64-v3")
    x, w = numbers(32, 40, 40), numbers(32, 3, 3, seed=1)
    assert copies(program(1, (2, 2)), x, w, target=target) == {"x_padded": (32, 41, 2, 24)}
    assert copies(program(0, (2, 2)), x, w, target=target) == {"x_padded": (32, 39, 2, 24)}
    assert copies(program(0, (2, 1)), x, w) == {}, "neighbours are read where they lie"
    assert copies(program(0, (1, 5)), x, w) == {}, "so large a gap is single elements"
    assert copies(program(1, (2, 2)), x, w, precise=True) == {}


def test_large_planes_are_copied_in_blocks_of_rows() -> None:
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=1 << 20)
    x, w = numbers(16, 112, 112), numbers(16, 3, 3, seed=1)
    assert copies(program(1, (1, 1)), x, w, target=target) == {"x_padded": (16, 4, 30, 120)}
    assert copies(program(1, (2, 2)), x, w, target=target) == {"x_padded": (16, 4, 29, 2, 64)}
    prime = numbers(16, 113, 112)
    assert copies(program(1, (1, 1)), prime, w, target=target) == {"x_padded": (16, 115, 120)}
    read = program(1, (1, 1)).replace("    return y", "    z[c, p, q] = relu(y[c, p, q])\n    return z")
    assert copies(read, x, w, target=target) == {"x_padded": (16, 114, 120)}, "what reads it stays beside it"
    text = polyml.einsum(program(1, (1, 1)), target=target, threads=1).lower(x, w).text("loops")
    assert "local f32 x_padded[1, 1, 30, 128]" in text, "rows of a block begin at lines"


def test_small_windows_stay_in_place_under_masks() -> None:
    """Where lanes have masks of their own, rows are whole register tiles, and rows with gaps are one vector."""
    target = Target("x86-64-v4", l1_bytes=32 * 1024, l2_bytes=1 << 20)
    x, w = numbers(16, 112, 112), numbers(16, 3, 3, seed=1)
    assert copies(program(1, (1, 1)), x, w, target=target) == {}
    assert copies(program(1, (2, 2)), x, w, target=target) == {"x_padded": (16, 4, 29, 2, 57)}
    assert copies(program(1, (2, 2)), numbers(64, 28, 28), numbers(64, 3, 3), target=target) == {}
    assert copies(program(1, (1, 1)), numbers(16, 113, 112), w, target=target) == {"x_padded": (16, 115, 114)}
    assert copies(program(2, (1, 1)), x, numbers(16, 5, 5), target=target).keys() == {"x_padded"}
    far = polyml.einsum(program(1, (1, 1)), target=replace(target, l2_bytes=64 * 1024), threads=1).lower(x, w)
    assert "jam p by 14" in far.explain(), "planes that no cache holds have register tiles, too"
    kernel = polyml.einsum(program(1, (1, 1)), target=target, threads=1).bind(w=w).lower(x)
    assert "for (r" not in kernel.text("loops"), "taps are written out"
    assert "for (s" not in kernel.text("loops")


@pytest.mark.parametrize("high", [41, 42])
@pytest.mark.parametrize("steps", [(1, 1), (2, 2)])
@pytest.mark.few(2)
def test_what_is_no_number_stays_in_its_windows(steps: tuple[int, int], high: int) -> None:
    x, w = np.ones((24, high, 43), np.float32), np.ones((24, 3, 3), np.float32)
    x[::2, 0, 0], x[1::2, high - 1, 42], x[5, 20, 20] = np.nan, np.inf, np.nan
    w[3] = np.inf
    with np.errstate(invalid="ignore"):
        wanted = expected(x, w, 1, steps)
    inside = np.pad(np.ones_like(x), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(inside, (3, 3), (1, 2))[:, :: steps[0], :: steps[1]]
    found = polyml.einsum(program(1, steps)).bind(w=w)(x)
    # Terms of padding may be left out: those of infinite weights are no numbers where they are not.
    whole = (windows.sum((3, 4)) == 9) | (np.arange(24) != 3)[:, None, None]
    np.testing.assert_array_equal(found[whole], wanted[whole])


def test_weights_of_each_place_and_one_filter() -> None:
    """Factors that know the place, and sums over channels, whose copies have all of them in a block."""
    x, w = numbers(12, 30, 45), numbers(12, 3, 3, 28, seed=1)
    text = 'def f(x: f32["C H W"], w: f32["C R S P"]):\n    y[c, p, q] = x[c, p + r, 2*q + s] * w[c, r, s, p]\n    return y\n'
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, :, ::2]
    small = Target("host", l1_bytes=4 * 1024, l2_bytes=256 * 1024)
    np.testing.assert_array_equal(
        polyml.einsum(text, target=small, verify=True)(x, w), np.einsum("cpqrs,crsp->cpq", windows, w)
    )
    text = 'def f(x: f32["C H W"], w: f32["C R S"]):\n    y[p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[c, r, s]\n    return y\n'
    one = numbers(12, 3, 3, seed=2)
    np.testing.assert_array_equal(
        polyml.einsum(text, target=small, verify=True)(x, one), expected(x, one, 1, (1, 1)).sum(0)
    )


CHANNELS_LAST = """
def last(x: f32["H W C"], w: f32["R S C"]):
    y: f32["H W C"]
    y[p, q, c] = sum[r, s, 0 <= p + r - {e} < H, 0 <= q + s - {e} < W](x[p + r - {e}, q + s - {e}, c] * w[r, s, c])
    return y
"""


def test_channels_last_are_read_where_they_lie_unless_edges_cut_many_windows() -> None:
    text = CHANNELS_LAST.format(e=1)
    assert copies(text, numbers(56, 56, 128), numbers(3, 3, 128), target=Target("x86-64-v4")) == {}
    assert copies(text, numbers(14, 14, 2048), numbers(3, 3, 2048), target=Target("x86-64-v4")) != {}
    causal = 'def f(x: f32["T C"], w: f32["4 C"]):\n    y[t, c] = pad(x, ((3, 0), (0, 0)))[t + k, c] * w[k, c]\n    return y\n'
    assert copies(causal, numbers(500, 320), numbers(4, 320), target=Target("x86-64-v4")) == {}


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [(30, 40, 33), (64, 21, 16), (2, 300, 40)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(1)
def test_channels_last(kernel: int, size: tuple[int, int, int], dynamic: bool) -> None:
    e = kernel // 2
    x, w = numbers(*size), numbers(kernel, kernel, size[-1], seed=1)
    found = polyml.einsum(CHANNELS_LAST.format(e=e), verify=True, dynamic=dynamic)(x, w)
    wanted = expected(x.transpose(2, 0, 1), w.transpose(2, 0, 1), e, (1, 1)).transpose(1, 2, 0)
    np.testing.assert_array_equal(found, wanted)


def test_copies_are_whole_vectors_where_masks_are_vectors() -> None:
    """Phases of 15 elements would be stored in pieces at their ends."""
    text = 'def f(x: f32["C H W"], w: f32["C 3 3"]):\n    y[c, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, 2*p + r, 2*q + s] * w[c, r, s]\n    return y\n'
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((64, 28, 28), (64, 3, 3)))
    loops = polyml.einsum(text, target=polyml.Target("x86-64-v3"), threads=1).lower(x, w).text("loops")
    assert "29, 2, 16]" in loops
    assert "masked" not in loops
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))[:, ::2, ::2]
    expected = np.einsum("cpqrs,crs->cpq", windows, w)
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x, w), expected)
