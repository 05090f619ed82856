"""The few steps of a register tile's inner loop, such as the taps of a filter's row, are written out, and its sums stay in registers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target

LAYER = 'def layer(x: f32["C H W"], w: f32["O C R S"]):\n    y[o, p, q] = {x}[c, p + r, {q} + s] * w[o, c, r, s]\n    return y\n'


def operands(channels: int, width: int, filters: int, taps: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(channels + width)
    x = rng.integers(-3, 4, (channels, 7, width)).astype(np.float32)
    return x, rng.integers(-3, 4, (filters, channels, 3, taps)).astype(np.float32)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("padded", ["x", "pad(x, ((0, 0), (1, 1), (1, 1)))"])
@pytest.mark.parametrize(("taps", "width"), [(3, 30), (4, 25), (2, 23)])
@pytest.mark.few(3)
def test_taps_of_a_row_are_written_out_without_spills(name: str, padded: str, taps: int, width: int) -> None:
    """An even number of them, too, of which two steps in one would share elements, and keep them in registers."""
    x, w = operands(64, width, 64, taps)
    target = Target(name, l1_bytes=48 * 1024, l2_bytes=2 << 20)
    assembly = polyml.einsum(LAYER.format(x=padded, q="q"), target=target, threads=1).bind(w=w).lower(x).text("asm")
    blocks = re.split(r"^\.L\w+:\n|^\tj\w+\t.*\n", assembly, flags=re.M)
    copies = [block for block in blocks if block.count("vfmadd") >= 9]
    assert copies
    # At the ends of padded rows some taps have fewer sums, in blocks of their own (codegen/passes/sums/skip_edges.py).
    assert len(copies) % taps == 0 if padded == "x" else len(copies) >= taps
    assert not any("rsp" in block for block in copies)


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.few(3)
def test_values(taps: int, stride: int) -> None:
    x, w = operands(24, 33, 40, taps)
    found = polyml.einsum(LAYER.format(x="x", q=f"{stride}*q"), threads=1).bind(w=w)(x)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, taps), (1, 2))[:, :, ::stride]
    np.testing.assert_array_equal(found, np.einsum("cpqrs,ocrs->opq", windows, w))


COLUMN = 'def layer(x: f32["C H W"], w: f32["O C R"]):\n    y[o, p, q] = pad(x, ((0, 0), ({n}, {n}), (0, 0)))[c, p + r, q] * w[o, c, r]\n    return y\n'


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_steps_that_end_with_the_values_are_written_out(name: str) -> None:
    """Rows of windows, of which points at the edges have fewer."""
    x, w = np.zeros((64, 14, 14), np.float32), np.zeros((64, 64, 3), np.float32)
    target = Target(name, l1_bytes=32 * 1024, l2_bytes=512 * 1024)
    layer = polyml.einsum(COLUMN.format(n=1), target=target, threads=1).bind(w=w).lower(x)
    assert "max(-p + 1, 0)" in layer.text("loops")
    blocks = re.split(r"^\.L\w+:\n|^\tj\w+\t.*\n", layer.text("asm"), flags=re.M)
    copies = [block for block in blocks if block.count("vfmadd") >= 9]
    assert copies
    assert len(copies) % 3 == 0
    assert not any("rsp" in block for block in copies)


@pytest.mark.parametrize(("rows", "taps", "padding"), [(14, 3, 1), (1, 3, 1), (9, 7, 3), (4, 3, 5), (5, 2, 1)])
def test_values_where_steps_end_with_the_values(rows: int, taps: int, padding: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = (
        rng.integers(-3, 4, (24, rows, 13)).astype(np.float32),
        rng.integers(-3, 4, (40, 24, taps)).astype(np.float32),
    )
    found = polyml.einsum(COLUMN.format(n=padding), threads=1).bind(w=w)(x)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (padding, padding), (0, 0))), taps, 1)
    np.testing.assert_array_equal(found, np.einsum("cpqr,ocr->opq", windows, w))
