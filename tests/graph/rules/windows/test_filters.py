"""Sums over windows with lanes along the filters: where they get them, where they stay, and that results are the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import polyml
from polyml.graph.ir import Equation, Graph
from polyml.target import Target
from tests.einsum_numpy.guard_pages import guarded

CONVOLUTION = """
def convolution(x: f32["C H W"], w: f32["O C {k} {k}"]):
    y[o, p, q] = {source}[c, {at}p + r, {at}q + s] * w[o, c, r, s]
    return y
"""


WIDE = Target("x86-64-v4", features="-prefer-256-bit")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def text(kernel: int, stride: int, padding: int) -> str:
    source = f"pad(x, ((0, 0), ({padding}, {padding}), ({padding}, {padding})))" if padding else "x"
    return CONVOLUTION.format(k=kernel, source=source, at=f"{stride}*" if stride > 1 else "")


def expected(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (1, 2))[:, ::stride, ::stride]
    return np.tensordot(w.astype(np.float64), windows, ([1, 2, 3], [0, 3, 4]))


def graph_of(program: str, *args: np.ndarray, **options: object) -> Graph:
    return polyml.einsum(program, **options).trace(*args)


def along_filters(graph: Graph) -> bool:
    return any(op.result.name.endswith("_last") for op in graph.ops if isinstance(op, Equation))


def layers() -> Iterator[object]:
    """Kernel, stride, padding, size and filters: in each run every size and every number of filters with half of the others."""
    for k, window in enumerate(((3, 1, 1), (3, 2, 1), (5, 2, 2), (3, 1, 0))):
        for size in (14, 15):
            for f, filters in enumerate((16, 47, 96)):
                marks = [] if (k + size + f) % 2 else [pytest.mark.slow]
                yield pytest.param(*window, size, filters, marks=marks)


@pytest.mark.parametrize(("kernel", "stride", "padding", "size", "filters"), list(layers()))
@pytest.mark.few(1)
def test_lanes_run_along_filters(kernel: int, stride: int, padding: int, size: int, filters: int) -> None:
    x, w = numbers(48, size, size), numbers(filters, 48, kernel, kernel, seed=1)
    program = text(kernel, stride, padding)
    function = polyml.einsum(program, verify=True)
    assert along_filters(graph_of(program, x, w))
    stages = function.lower(x, w).stages
    assert len(stages.regions) == 1 + (padding > 0), "the sum and what lays it out are one"
    assert not any(note.stage == "fallback" for region in stages.regions for note in region.notes)
    np.testing.assert_array_equal(function(x, w), expected(x, w, stride, padding))
    np.testing.assert_array_equal(function.bind(w=w)(x), expected(x, w, stride, padding))


@pytest.mark.parametrize("size", [14, 33])
@pytest.mark.few(1)
def test_single_elements_with_gaps_are_put_side_by_side(size: int) -> None:
    x, w = numbers(120, size, size), numbers(50, 120, seed=1)
    program = 'def layer(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, 2*p, 2*q] * w[o, c]\n    return y\n'
    function = polyml.einsum(program, verify=True)
    made = [op.result.name for op in function.trace(x, w).ops if isinstance(op, Equation)]
    assert made[0] == "x_sampled"
    np.testing.assert_array_equal(function(x, w), np.tensordot(w, x[:, ::2, ::2], 1))
    np.testing.assert_array_equal(function.bind(w=w)(x), np.tensordot(w, x[:, ::2, ::2], 1))


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        ("y[o, n] = pad(x, ((0, 0), (4, 4)))[c, n + k] * w[o, c, k]", ((40, 333), (50, 40, 9))),
        ("y[b, o, n] = x[b, c, 2*n + k] * w[o, c, k]", ((3, 40, 61), (50, 40, 5))),
        ("y[g, o, p] = x[g, c, 2*p + k] * w[g, o, c, k]", ((3, 40, 133), (3, 50, 40, 5))),
        ("y[o, a, p] = x[c, 3*p + k] * w[o, a, c, k]", ((40, 83), (5, 31, 40, 5))),
        ("y[p, o] = pad(x, ((2, 2), (0, 0)))[p + k, c] * w[k, c, o]", ((133, 40), (5, 40, 50))),
        ("y[o, d, p, q] = pad(x, ((0, 0), (1, 1), (1, 1), (1, 1)))[c, d + t, p + r, q + s] * w[o, c, t, r, s]", ((9, 6, 7, 18), (33, 9, 3, 3, 3))),
        ("y[f, c, r, s] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, h + r, v + s] * w[f, h, v]", ((20, 24, 25), (36, 24, 25))),
    ],
    ids=("row", "batch", "groups", "two-filters", "channels-last", "volume", "gradient"),
)  # fmt: skip
@pytest.mark.few(1)
def test_other_windows(program: str, shapes: tuple[tuple[int, ...], ...], threads: int) -> None:
    names = [" ".join(f"{n}{k}" for k in range(len(shape))) for n, shape in zip("AB", shapes, strict=True)]
    x, w = numbers(*shapes[0]), numbers(*shapes[1], seed=1)
    whole = f'def windows(x: f64["{names[0]}"], w: f64["{names[1]}"]):\n    {program}\n    return y\n'
    plain = polyml.einsum(whole, scheduler="written")(x.astype(np.float64), w.astype(np.float64))
    function = polyml.einsum(whole.replace("f64", "f32"), verify=True, threads=threads)
    made = [op.result.name for op in function.trace(x, w).ops if isinstance(op, Equation)]
    assert len(made) > 1, made
    np.testing.assert_array_equal(function(x, w), plain)
    np.testing.assert_array_equal(function.bind(w=w)(x), plain)


def test_what_follows_is_computed_row_by_row() -> None:
    """Bias, normalization, a residual and relu read rows of the result while they are near."""
    x, w, r = numbers(24, 14, 14), numbers(48, 24, 3, 3, seed=1), numbers(48, 14, 14, seed=2)
    b = numbers(48, seed=3)
    program = """
def layer(x: f32["C H W"], w: f32["O C 3 3"], b: f32["O"], r: f32["O H W"]):
    y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r0, q + s] * w[o, c, r0, s]
    z[o, p, q] = relu(y[o, p, q] * b[o] + r[o, p, q])
    return z
"""
    function = polyml.einsum(program, verify=True)
    stages = function.lower(x, w, b, r).stages
    assert len(stages.regions) == 2
    wanted = np.maximum(expected(x, w, 1, 1) * b[:, None, None] + r, 0)
    np.testing.assert_array_equal(function(x, w, b, r), wanted)
    np.testing.assert_array_equal(function.bind(w=w, b=b)(x, r), wanted)


def test_values_beside_padding_count_once() -> None:
    """Padding is zero: infinities of the input stay where their windows are."""
    x, w = numbers(24, 14, 14), np.ones((128, 24, 3, 3), np.float32)
    x[3, 0, 0] = np.inf
    y = polyml.einsum(text(3, 1, 1))(x, w)
    assert np.isinf(y[:, :2, :2]).all()
    assert np.isfinite(y[:, 2:]).all()


def test_what_stays() -> None:
    x, w = numbers(24, 14, 14), numbers(128, 24, 3, 3, seed=1)
    assert along_filters(graph_of(text(3, 1, 1), x, w))
    assert not along_filters(graph_of(text(3, 1, 1), x, w[:4], target=WIDE)), "four filters waste most of a vector"
    assert along_filters(graph_of(text(3, 2, 1), x, w[:100])), "rows with gaps cost more where they are"
    assert not along_filters(graph_of(text(3, 1, 0), numbers(24, 34, 34), w[:100], target=WIDE)), (
        "whole vectors as they are"
    )
    assert not along_filters(graph_of(text(3, 1, 1), x[:, :3, :4], w[:16])), "little work"
    for options in ({"precise": True}, {"scheduler": "written"}, {"tile_sizes": (8, 8)}, {"target": "cuda"}):
        assert not along_filters(graph_of(text(3, 1, 1), x, w, **options)), options


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "size", "along"),
    [
        (3, 3, 2, 1, 224, False),
        (3, 3, 1, 1, 112, False),
        (1, 5, 2, 2, 128, False),
        (3, 3, 2, 1, 225, True),  # rows of 113
        (3, 3, 2, 1, 60, True),  # rows of two vectors
        (3, 3, 3, 0, 225, True),
        (8, 3, 2, 1, 128, True),
    ],
)
@pytest.mark.few(2)
def test_short_sums_of_long_rows_stay(
    channels: int, kernel: int, stride: int, padding: int, size: int, along: bool
) -> None:
    """Laying out their results would take as long as the sums: images of a few channels."""
    x, w = numbers(channels, size, size), numbers(32, channels, kernel, kernel, seed=1)
    target = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20)
    assert along_filters(graph_of(text(kernel, stride, padding), x, w, target=target)) == along
    function = polyml.einsum(text(kernel, stride, padding), threads=2)
    np.testing.assert_array_equal(function(x, w), expected(x, w, stride, padding))


def test_terms_that_a_condition_leaves_out_stay_out() -> None:
    """Unlike padding: an infinite weight meets no zero there (test_guarded.py)."""
    program = """
def same_size(x: f32["C N"], w: f32["O C 3"]):
    y: f32["O N"]
    y[o, n] = sum[c, r, 0 <= n + r - 1 < N](x[c, n + r - 1] * w[o, c, r])
    return y
"""
    x, w = numbers(24, 1000), numbers(128, 24, 3, seed=1)
    w[:, :, 0] = np.inf
    assert along_filters(graph_of(program, np.ones_like(x), w))
    first = polyml.einsum(program)(np.ones_like(x), w)[:, 0]
    np.testing.assert_array_equal(first, w[:, :, 1:].sum((1, 2)))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("size", "stride"), [(7, 1), (14, 2), (15, 2), (28, 3), (70, 2)])
@pytest.mark.few(2)
def test_depthwise_reads_nothing_outside(size: int, stride: int, behind: bool) -> None:
    """Padded rows are copied with their edges, short ones some channels at a time, and those with gaps in phases; or they are read under masks."""
    program = (
        text(3, stride, 1)
        .replace("w[o, c, r, s]", "w[c, r, s]")
        .replace("y[o, p, q]", "y[c, p, q]")
        .replace("O C 3", "C 3")
    )
    x, w = numbers(160, size, size), numbers(160, 3, 3, seed=1)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    expected = np.einsum("cpqrs,crs->cpq", windows, w)
    copied = polyml.einsum(program, target=Target("x86-64-v3"))
    assert any("_padded" in op.result.name for op in copied.trace(x, w).ops if isinstance(op, Equation))
    machine = Target("host")
    for target in [machine] if machine.vector_bytes < 32 else [Target("x86-64-v3"), machine]:
        function = polyml.einsum(program, target=target, verify=True)
        notes = [note for region in function.lower(x, w).stages.regions for note in region.notes]
        assert not any(note.stage == "fallback" for note in notes)
        np.testing.assert_array_equal(function(guarded(x, behind), guarded(w, behind)), expected)


def test_constant_weights_of_few_points_get_the_lanes() -> None:
    """49 points are four vectors with lanes along them, and three and a bit broadcast one by one; the packing of constant weights costs nothing."""
    program = 'def layer(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'
    x, w = numbers(512, 7, 7), numbers(160, 512, seed=1)
    function = polyml.einsum(program, verify=True)
    frozen = function.bind(w=w)
    assert any(op.result.name.endswith("_last") for op in frozen.lower(x).stages.graph.ops if isinstance(op, Equation))
    assert not along_filters(function.trace(x, w))
    np.testing.assert_array_equal(frozen(x), np.tensordot(w, x, 1))


@pytest.mark.parametrize(("images", "size", "lanes", "turned"), [(8, 7, 8, True), (8, 7, 16, True), (8, 16, 8, False)])
@pytest.mark.few(2)
def test_rows_of_several_images_are_no_longer_than_one(images: int, size: int, lanes: int, turned: bool) -> None:
    """The channels lie between images: 8 x 49 points are 8 rows of 49, not 49 vectors of 8."""
    program = (
        'def layer(x: f32["N C H W"], w: f32["O C"]):\n    y[n, o, p, q] = x[n, c, p, q] * w[o, c]\n    return y\n'
    )
    x, w = numbers(images, 96, size, size), numbers(160, 96, seed=1)
    target = Target("x86-64-v3" if lanes == 8 else "x86-64-v4", features="" if lanes == 8 else "-prefer-256-bit")
    graph = polyml.einsum(program, target=target).bind(w=w).lower(x).stages.graph
    assert along_filters(graph) == turned
    if lanes == 8:  # with others this machine's code is the same
        found = polyml.einsum(program, verify=True).bind(w=w)(x)
        np.testing.assert_array_equal(found, np.einsum("nchw,oc->nohw", x, w, optimize=True))


@pytest.mark.parametrize(
    ("name", "size", "stride", "copied"),
    [("x86-64-v3", 32, 1, True), ("x86-64-v3", 45, 1, True), ("x86-64-v4", 96, 1, False)],
)
@pytest.mark.few(1)
def test_edges_that_need_masks_are_copied(name: str, size: int, stride: int, copied: bool) -> None:
    """Where masks are vectors, sums at both ends of a row cost more than an image with zeros around it, which many filters read."""
    x, w = numbers(3, size, size), numbers(24, 3, 3, 3, seed=1)
    target = Target(name, features="-prefer-256-bit" if name == "x86-64-v4" else "")
    graph = graph_of(text(3, stride, 1), x, w, target=target)
    assert any(op.result.name.endswith("_padded") for op in graph.ops if isinstance(op, Equation)) == copied
    function = polyml.einsum(text(3, stride, 1), verify=True)
    np.testing.assert_array_equal(function(x, w), expected(x, w, stride, 1))
    x[:, 0, 0] = np.nan
    assert np.isnan(function.bind(w=w)(x)).sum() == 24 * (2 // stride) ** 2


@pytest.mark.parametrize(
    ("name", "size", "padding", "phases"),
    [("x86-64-v3", 64, 1, True), ("x86-64-v3", 81, 0, True), ("x86-64-v3", 24, 1, False), ("x86-64-v4", 64, 1, False)],
)
@pytest.mark.few(3)
def test_short_sums_of_rows_with_gaps_read_phases(name: str, size: int, padding: int, phases: bool) -> None:
    """27 terms of an image's three channels: neighbours of a result lie side by side in the copy, and its two phases are written out."""
    x, w = numbers(3, size, size), numbers(24, 3, 3, 3, seed=1)
    target = Target(name, features="-prefer-256-bit" if name == "x86-64-v4" else "")
    lowered = polyml.einsum(text(3, 2, padding), target=target).lower(x, w)
    assert any("s_phase" in op.indices for op in lowered.stages.graph.ops if isinstance(op, Equation)) == phases
    assert "for (s_phase" not in lowered.text("loops")
    if name != "x86-64-v3":
        return  # this machine's code is what it was for the first case
    function = polyml.einsum(text(3, 2, padding), verify=True)
    np.testing.assert_array_equal(function(x, w), expected(x, w, 2, padding))
    x[:, 0, 0] = np.nan
    assert np.isnan(function.bind(w=w)(x)).sum() == 24


@pytest.mark.parametrize(
    ("channels", "size", "padding", "rows"),
    [(1, 160, 1, 5), (3, 160, 1, 5), (1, 99, 0, 7), (1, 98, 1, 7), (1, 94, 1, 0), (1, 40, 1, 0)],
)
@pytest.mark.few(1)
def test_phases_that_leave_l2_are_copied_block_by_block(channels: int, size: int, padding: int, rows: int) -> None:
    """Some rows at a time with all channels, in the loop of what reads them. 47 rows are no whole blocks, and L2 holds the copy of a small image."""
    x, w = numbers(channels, size, size), numbers(24, channels, 3, 3, seed=1)
    l1, l2 = 8 << 10, channels << 16
    program = polyml.einsum(text(3, 2, padding), target=Target("x86-64-v3", l1_bytes=l1, l2_bytes=l2), threads=3)
    lowered = program.lower(x, w)
    assert len(lowered.stages.regions) == (1 if rows else 2)
    assert (f"x_padded[1, {channels}, {2 * rows + 1}, 2, " in lowered.text("loops")) == bool(rows), "one block"
    assert ("tile o by" in lowered.explain()) == (size > 40), "results are written row by row"
    for threads in (1, 3):
        target = Target("host", l1_bytes=l1, l2_bytes=l2)
        function = polyml.einsum(text(3, 2, padding), target=target, threads=threads, verify=True)
        np.testing.assert_array_equal(function(x, w), expected(x, w, 2, padding))
    odd = x.copy()
    odd[:, 0, 0] = np.nan
    assert np.isnan(function.bind(w=w)(odd)).sum() == 24


def test_blocks_that_are_too_few_for_the_threads_stay_apart() -> None:
    """Sixteen blocks, of which nine threads would wait for the last seven."""
    x, w = numbers(1, 160, 160), numbers(24, 1, 3, 3, seed=1)
    target = Target("x86-64-v3", l1_bytes=8 << 10, l2_bytes=1 << 16)
    texts = [polyml.einsum(text(3, 2, 1), target=target, threads=n).lower(x, w).text("loops") for n in (8, 9)]
    assert [loops.count("parallel for") for loops in texts] == [1, 2]


def test_the_next_block_of_weights_is_fetched() -> None:
    x, w = numbers(64, 9, 9), numbers(200, 64, 3, 3, seed=1)
    frozen, wide = (
        polyml.einsum(text(3, 1, 1), target=Target(name, l1_bytes=8 << 10, l2_bytes=128 << 10)).bind(w=w)
        for name in ("host", "x86-64-v4")
    )
    loops = wide.lower(x).text("loops")
    assert "prefetch L2 convolution_1_w_panels[(o_tile)//16 + 1, 0, 0, 0, 0, " in loops
    np.testing.assert_array_equal(frozen(x), expected(x, w, 1, 1))
    often = numbers(64, 40, 40)
    assert "prefetch L2 convolution_1_w_panels" not in wide.lower(often).text("loops"), "used 200 times"
    np.testing.assert_array_equal(frozen(often), expected(often, w, 1, 1))


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_register_tiles_stay_in_registers(name: str) -> None:
    x, w = numbers(32, 28, 28), numbers(64, 32, 3, 3, seed=1)
    target = Target(name)
    lowered = polyml.einsum(text(3, 1, 1), target=target, threads=1).lower(x, w)
    (note,) = [n for region in lowered.stages.regions for n in region.notes if n.stage == "blocking"]
    assert "register tile" in note.text
    blocks = re.split(r"^\.?L\S*:", lowered.text("asm"), flags=re.MULTILINE)
    sums = next(block for block in blocks if len(re.findall(r"vfmadd|fmla", block)) >= 8)
    assert not re.search(r"\(%rsp\)|\[sp", sums[sums.index("fm") : sums.rindex("fm")])


@pytest.mark.parametrize("size", [7, 13, 29])
@pytest.mark.parametrize(("channels", "filters", "kernel", "stride"), [(33, 50, 1, 1), (17, 50, 1, 3), (1, 41, 5, 1)])
@pytest.mark.few(1)
def test_indices_of_a_single_value_cost_nothing(
    size: int, channels: int, filters: int, kernel: int, stride: int
) -> None:
    """A 1x1 layer written with windows is a product with blocks, and so is a single channel's."""
    x, w = numbers(channels, size, size), numbers(filters, channels, kernel, kernel, seed=1)
    program = text(kernel, stride, 0)
    made = graph_of(program, x, w).ops
    assert all(len(op.reduced) == (1 if kernel == 1 else 2) for op in made if isinstance(op, Equation) and op.reduced)
    function = polyml.einsum(program, verify=True)
    if size == 29 and (kernel, stride) == (1, 1):
        notes = [note for region in function.bind(w=w).lower(x).stages.regions for note in region.notes]
        assert any(note.stage == "blocking" for note in notes)
    np.testing.assert_array_equal(function(x, w), expected(x, w, stride, 0))
    np.testing.assert_array_equal(function.bind(w=w)(x), expected(x, w, stride, 0))


@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "stride", "copied"),
    [(9, 3, 5, 1, True), (9, 3, 5, 2, True), (9, 3, 3, 1, False), (9, 1, 3, 1, True), (9, 1, 3, 2, False)],
)
@pytest.mark.few(1)
def test_ragged_windows_of_few_filters_get_padding(
    channels: int, filters: int, kernel: int, stride: int, copied: bool
) -> None:
    """Lanes stay along the points, and rows share register tiles, since none of them has edges."""
    x, w = numbers(channels, 45, 83), numbers(filters, channels, kernel, kernel, seed=1)
    program = text(kernel, stride, kernel // 2)
    made = [op for op in graph_of(program, x, w, target=WIDE).ops if isinstance(op, Equation)]
    assert [op.result.name.endswith("_padded") for op in made] == [True, False][-1 - copied :]
    function = polyml.einsum(program, verify=True)
    np.testing.assert_array_equal(function(x, w), expected(x, w, stride, kernel // 2))
    x[:, 0, 0] = np.nan
    assert np.isnan(function.bind(w=w)(x)).sum() == filters * (-(-(kernel // 2 + 1) // stride)) ** 2


@pytest.mark.parametrize(("size", "channels", "regions"), [(7, 40, 3), (14, 33, 3), (40, 24, 2)])
@pytest.mark.few(1)
def test_filters_gradients_are_moved_as_a_whole(size: int, channels: int, regions: int) -> None:
    """Rows of three places of a filter are no blocks; where sums are long, whoever moves them costs nothing beside them."""
    program = """
def gradient(x: f32["C H W"], d: f32["F H W"]):
    g: f32["F C 3 3"]
    g[f, c, r, s] = sum[h, v](pad(x, ((0, 0), (1, 1), (1, 1)))[c, h + r, v + s] * d[f, h, v])
    return g
"""
    x, d = numbers(channels, size, size), numbers(50, size, size, seed=1)
    function = polyml.einsum(program, verify=True, target=Target("x86-64-v4"))
    lowered = function.lower(x, d)
    assert len(lowered.stages.regions) == regions
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))
    found = polyml.einsum(program)(x, d)
    np.testing.assert_array_equal(found, np.einsum("crshv,fhv->fcrs", windows, d))


@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (7, 1), (5, 2)])
@pytest.mark.few(1)
def test_lanes_stay_away_from_taps(kernel: int, stride: int) -> None:
    """Adding up a vector's lanes takes longer than the few vectors of a window's rows."""
    program = (
        text(kernel, stride, kernel // 2)
        .replace("w[o, c, r, s]", "w[c, r, s]")
        .replace("y[o, p, q]", "y[c, p, q]")
        .replace("O C ", "C ")
    )
    x, w = numbers(32, 63, 63), numbers(32, kernel, kernel, seed=1)
    function = polyml.einsum(program, verify=True)
    for target in (Target("x86-64-v4"), Target("x86-64-v3")):
        stages = polyml.einsum(program, target=target).lower(x, w).stages
        assert not any("reduces" in note.text for region in stages.regions for note in region.notes)
    edge = kernel // 2
    padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2))[:, ::stride, ::stride]
    np.testing.assert_array_equal(function(x, w), np.einsum("cpqrs,crs->cpq", windows, w))


def test_single_vectors_of_filters_have_tall_tiles() -> None:
    """Rows are points, whose addresses are constants: as many as there are registers."""
    x, w = numbers(32, 17, 19), numbers(16, 32, 5, 5, seed=1)
    function = polyml.einsum(text(5, 1, 2), target=Target("x86-64-v4"))
    notes = [note.text for region in function.lower(x, w).stages.regions for note in region.notes]
    assert any("register tile 19 q x 1 vector of o" in note for note in notes), notes
    np.testing.assert_array_equal(polyml.einsum(text(5, 1, 2), verify=True)(x, w), expected(x, w, 1, 2))


def test_what_no_cache_holds_is_not_turned_for_lanes() -> None:
    """Four filters in each of sixteen groups: lanes along the groups would need a copy of all of the input."""
    program = """
def groups(x: f32["G C H W"], w: f32["G O C R S"]):
    y[g, o, p, q] = x[g, c, 2*p + r, 2*q + s] * w[g, o, c, r, s]
    return y
"""
    x, w = numbers(16, 32, 66, 66), numbers(16, 4, 32, 5, 5, seed=1)
    function = polyml.einsum(program, target=Target("x86-64-v4"))
    notes = [note.text for region in function.lower(x, w).stages.regions for note in region.notes]
    assert any("jam o by 4; lanes along q" in note for note in notes), notes
    windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5), (2, 3))[:, :, ::2, ::2]
    exact = [np.tensordot(w[g], windows[g], ([1, 2, 3], [0, 3, 4])) for g in range(16)]
    np.testing.assert_array_equal(polyml.einsum(program)(x, w), exact)


@pytest.mark.parametrize(
    "place",
    ["i//2, j + r, c", "i, j//2 + r, c", "(i + 5) % 8, j + r, c", "i - i % 4, j + r, c"],
)
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.few(2)
def test_quotients_are_no_windows(place: str, padded: bool) -> None:
    """What they reach does not follow from how far the indices run: repeated pixels read nothing beside a copy."""
    source = "pad(x, ((0, 0), (1, 1), (0, 0)))" if padded else "x"
    program = f"""
def f(x: f32["A B C"], w: f32["R C F"]):
    y: f32["A 30 F"]
    y[i, j, f] = sum[r < 3, c]({source}[{place}] * w[r, c, f])
    return y
"""
    x, w = numbers(24, 40, 12).round(), numbers(3, 12, 64, seed=1).round()
    plain = polyml.einsum(program, precise=True, scheduler="written", vectorize=False)(x, w)
    found = polyml.einsum(program, verify=True)
    for behind in (False, True):
        assert np.array_equal(found(guarded(x, behind), w), plain)


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_beside_the_tensor_have_no_terms(dynamic: bool) -> None:
    """A window of one row, and more rows of the result: elements without terms are zeros, whatever lies behind the tensor."""
    program = """
def f(x: f32["C 30 29"], w: f32["K C 1 3"]):
    y: f32["K 33 29"]
    y[k, h, v] = sum[c, r, s, 0 <= h - 2*r < 30, 0 <= v + 2*s - 3 < 29](x[c, h - 2*r, v + 2*s - 3] * w[k, c, r, s])
    return y
"""
    x, w = numbers(33, 30, 29), numbers(40, 33, 1, 3, seed=1)
    padded = np.pad(x, ((0, 0), (0, 3), (3, 3)))
    taps = sum(np.einsum("chv,kc->khv", padded[:, :, 2 * s : 2 * s + 29], w[:, :, 0, s]) for s in range(3))
    np.testing.assert_array_equal(polyml.einsum(program, dynamic=dynamic)(x, w), taps)


GRADIENT = """
def gradient(x: f32["C H W"], d: f32["F P Q"]):
    g: f32["F C H-P+1 W-Q+1"]
    g[f, c, r, s] = x[c, h + r, v + s] * d[f, h, v]
    return g
"""


@pytest.mark.parametrize(
    "sizes", [pytest.param((8, 12, 12, 24, 10, 10), marks=pytest.mark.slow), (20, 9, 30, 4, 9, 29)]
)
def test_a_filters_gradient_of_any_size_has_lanes_along_filters(sizes: tuple[int, ...]) -> None:
    """Its few places in a row are told by the first call: rows of a register tile are channels then."""
    c, h, w, f, p, q = sizes
    given = numbers(c, h, w), numbers(f, p, q)
    explained = str(polyml.einsum(GRADIENT, dynamic=tuple("CFHPQW"), target=WIDE).lower(*given).explain())
    assert re.search(r"register tile \d+ c x \d vectors of f", explained)


@pytest.mark.slow
def test_filters_gradients_of_any_size() -> None:
    """Those that have no place at all among them."""
    program = polyml.einsum(GRADIENT, dynamic=("C", "F", "H", "P", "Q", "W"), threads=1)
    for c, h, w, f, p, q in ((8, 12, 12, 24, 10, 10), (33, 6, 6, 5, 6, 6), (2, 9, 9, 40, 3, 2), (2, 9, 9, 5, 10, 8)):
        x, d = numbers(c, h, w), numbers(f, p, q, seed=1)
        found = program(x, d)
        assert found.shape == (f, c, h - p + 1, w - q + 1)
        if found.size:
            windows = np.lib.stride_tricks.sliding_window_view(x, (p, q), (1, 2))
            np.testing.assert_array_equal(found, np.einsum("crshv,fhv->fcrs", windows, d))
    assert len(program.kernels) == 1
