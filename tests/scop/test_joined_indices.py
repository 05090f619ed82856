"""Indices that every array has side by side become one: where that is so, where it is not, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

TARGET = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)
POINTWISE = """
def layer(x: f32["C H W"], w: f32["O C"], b: f32["O"], r: f32["O H W"]):
    y[o, p, q] = relu(x[c, p, q] * w[o, c] + b[o] + r[o, p, q])
    return y
"""


def indices_of(text: str, *args: np.ndarray, **options: object) -> tuple[str, ...]:
    """Of the one update."""
    lowered = polyml.einsum(text, **{"target": TARGET, **options}).lower(*args)
    (found,) = (s for region in lowered.stages.regions for s in region.scop.statements.values() if s.kind == "update")
    return found.indices


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize(("height", "width"), [(7, 7), (14, 14), (5, 13), (9, 31)])
@pytest.mark.few(1)
def test_rows_with_what_follows_them(height: int, width: int) -> None:
    x, w, b = numbers(20, height, width), numbers(48, 20, seed=1), numbers(48, seed=2)
    r = numbers(48, height, width, seed=3)
    assert "p_q" in indices_of(POINTWISE, x, w, b, r)
    function = polyml.einsum(POINTWISE, verify=True)
    expected = np.maximum(np.einsum("chw,oc->ohw", x, w) + b[:, None, None] + r, 0)
    np.testing.assert_array_equal(function(x, w, b, r), expected)


@pytest.mark.parametrize(
    ("size", "joined"),
    [(8, True), (16, False), (24, True), (32, False), (40, True), (56, True), (64, False), (72, False)],
)
@pytest.mark.few(2)
def test_rows_of_a_single_vector_or_half_a_line_more(size: int, joined: bool) -> None:
    """A register tile of a single vector loads once for each sum, and behind half a line the next row's tiles lie across lines."""
    text = 'def f(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'
    x, w = numbers(24, size, size), numbers(40, 24, seed=1)
    assert indices_of(text, x, w, target=Target("x86-64-v3")) == (("o", "p_q", "c") if joined else ("o", "p", "q", "c"))
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x, w), np.einsum("chw,oc->ohw", x, w))


@pytest.mark.parametrize(
    ("name", "high", "wide", "joined"),
    [
        ("x86-64-v3", 13, 13, True),
        ("x86-64-v3", 9, 7, True),
        ("x86-64-v3", 9, 6, False),
        ("x86-64-v4", 13, 13, False),
        ("x86-64-v4", 19, 19, True),
    ],
)
@pytest.mark.few(2)
def test_rows_of_register_tiles(name: str, high: int, wide: int, joined: bool) -> None:
    """Lanes run along the filters; rows of points that are no register tile by themselves are one."""
    text = 'def f(x: f32["C H W"], w: f32["C O"]):\n    y[p, q, o] = x[c, p, q] * w[c, o]\n    return y\n'
    x, w = numbers(40, high, wide), numbers(40, 48, seed=1)
    target = Target(name, features="-prefer-256-bit" if name == "x86-64-v4" else "")
    assert indices_of(text, x, w, target=target) == (("p_q", "o", "c") if joined else ("p", "q", "o", "c"))
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x, w), np.einsum("chw,co->hwo", x, w))


def test_three_dimensions_become_one() -> None:
    text = 'def f(x: f32["C D H W"], w: f32["O C"]):\n    y[o, d, p, q] = x[c, d, p, q] * w[o, c]\n    return y\n'
    x, w = numbers(24, 3, 5, 7), numbers(40, 24, seed=1)
    assert indices_of(text, x, w) == ("o", "d_p_q", "c")
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x, w), np.einsum("cdhw,oc->odhw", x, w))


@pytest.mark.parametrize(
    ("w", "y", "joined"),
    [
        ("F C R S", "c r s h", "c_r_s"),
        ("F C R S", "h c r s", "c_r_s"),
        ("F C R S", "r c s h", None),
        ("F R S C", "r s c h", "s_c"),
    ],
)
@pytest.mark.few(3)
def test_short_rows_of_an_operand(w: str, y: str, joined: str | None) -> None:
    """What a register tile's rows are lies side by side then; a long last index stays, as it has pieces of whole vectors."""
    sizes = {"f": 40, "c": 30, "r": 3, "s": 3, "h": 48}
    read = ", ".join(w.lower().split())
    text = f'def f(x: f32["F H"], w: f32["{w}"]):\n    y[{", ".join(y.split())}] = x[f, h] * w[{read}]\n    return y\n'
    x, filters = numbers(40, 48), numbers(*(sizes[i] for i in w.lower().split()), seed=1)
    found = indices_of(text, x, filters)
    assert joined in found if joined else not any("_" in index for index in found)
    pattern = f"fh,{w.lower().replace(' ', '')}->{y.replace(' ', '')}"
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x, filters), np.einsum(pattern, x, filters))


STAYS = {
    "a stride": ("x[c, 2*p, 2*q]", (24, 28, 28)),
    "a window": ("x[c, p + 1, q + 1]", (24, 15, 15)),
    "another order": ("x[c, q, p]", (24, 14, 14)),
    "a number": ("(x[c, p, q] + q)", (24, 14, 14)),
    "one of both": ("x[c, p, 3]", (24, 14, 14)),
}


@pytest.mark.parametrize("why", STAYS)
def test_what_stays(why: str) -> None:
    read, shape = STAYS[why]
    text = f'def f(x: f32["C H W"], w: f32["O C"], z: f32["O 14 14"]):\n    z[o, p, q] = sum[c]({read} * w[o, c])\n'
    x, w, z = numbers(*shape), numbers(32, 24, seed=1), np.zeros((32, 14, 14), np.float32)
    # precise=True: otherwise an operand with gaps is copied into one without, whose indices are side by side
    assert not any("_" in index for index in indices_of(text, x, w, z, precise=True))
    assert "p_q" in indices_of(text.replace(read, "x[c, p, q]"), numbers(24, 14, 14), w, z, precise=True)


def test_rows_with_gaps_stay() -> None:
    text = 'def f(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'
    w = numbers(32, 24, seed=1)
    for x in (numbers(24, 14, 16)[:, :, :14], numbers(24, 14, 30)[:, :, :28:2], numbers(24, 28, 14)[:, ::2]):
        assert indices_of(text, x, w) == ("o", "p", "q", "c")
        np.testing.assert_array_equal(polyml.einsum(text)(x, w), np.einsum("chw,oc->ohw", x, w))
    apart = numbers(30, 14, 14)[::-1][:24]  # only whole planes lie apart
    assert indices_of(text, apart, w) == ("o", "p_q", "c")
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(apart, w), np.einsum("chw,oc->ohw", apart, w))


def test_whoever_chooses_the_loops_sees_the_written_ones() -> None:
    text = 'def f(x: f32["C H W"], w: f32["O C"]):\n    y[o, p, q] = x[c, p, q] * w[o, c]\n    return y\n'
    x, w = numbers(24, 14, 14), numbers(32, 24, seed=1)
    assert indices_of(text, x, w) == ("o", "p_q", "c")
    for options in ({"scheduler": "written"}, {"tile_sizes": (8, 8)}, {"register_tile": (4, 16)}, {"vectorize": False}):
        assert indices_of(text, x, w, **options) == ("o", "p", "q", "c"), options
    long = numbers(24, 14, 64)
    assert indices_of(text, long, w) == ("o", "p", "q", "c"), "rows of whole vectors"


def test_where_nothing_is_contracted_all_neighbours_are_one() -> None:
    text = 'def f(x: f32["A B C D"]):\n    y[k, l, i, j] = x[i, j, k, l]\n    return y\n'
    x = numbers(19, 12, 20, 11)
    (statement,) = polyml.einsum(text, target=TARGET).lower(x).stages.regions[0].scop.statements.values()
    assert statement.indices == ("k_l", "i_j")
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x), x.transpose(2, 3, 0, 1))
    text = 'def f(x: f32["A B C"]):\n    y = sum[i, j, k](x[i, j, k])\n    return y\n'
    x = numbers(30, 41, 35)
    assert indices_of(text, x) == ("i_j_k",)
    assert polyml.einsum(text, verify=True)(x) == x.sum()
    few = numbers(3, 4, 5)
    assert indices_of(text, few) == ("i", "j", "k"), "nothing to gain"


def test_elements_of_any_size_are_one_row() -> None:
    """As far as each array has them side by side."""
    text = 'def f(x: f32["A B C"], b: f32["B C"]):\n    y[i, j, k] = x[i, j, k] + b[j, k]\n    return y\n'
    f = polyml.einsum(text, target=Target("host", l1_bytes=2048, l2_bytes=8192, l3_bytes=8192), threads=1, dynamic=True)
    (statement,) = f.lower(numbers(7, 9, 5), numbers(9, 5)).stages.regions[0].scop.statements.values()
    assert statement.indices == ("i", "j_k")
    for shape in ((7, 9, 5), (4, 31, 17), (1, 1, 1), (2, 9, 301)):
        x, b = numbers(*shape), numbers(*shape[1:], seed=1)
        np.testing.assert_array_equal(f(x, b), x + b)
    assert len(f.kernels) == 1


def test_a_norm_over_batch_and_image() -> None:
    text = """
def norm(x: f32["N C H W"], g: f32["C"]):
    m[c] = sum[n, h, w](x[n, c, h, w]) / (N * H * W)
    v[c] = sum[n, h, w]((x[n, c, h, w] - m[c])**2) / (N * H * W)
    y[n, c, h, w] = (x[n, c, h, w] - m[c]) * rsqrt(v[c] + 1) * g[c]
    return y
"""
    x, g = np.random.default_rng(0).standard_normal((4, 5, 39, 47)).astype(np.float32), numbers(5)
    found = {
        s.indices for s in polyml.einsum(text, target=TARGET).lower(x, g).stages.regions[0].scop.statements.values()
    }
    assert ("n", "c", "h_w") in found
    wide = x.astype(np.float64)
    mean, var = wide.mean((0, 2, 3), keepdims=True), wide.var((0, 2, 3), keepdims=True)
    expected = (wide - mean) / np.sqrt(var + 1) * g[:, None, None]
    np.testing.assert_allclose(polyml.einsum(text, verify=True)(x, g), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "z", "joined"),
    [
        # A vector times a matrix; dot products of rows of which there are two indices; what is met in a row in the rows alone, or in the result only if these are; few columns; as many uses as a product of matrices has.
        ("c d", "c d a b", "a b", ("a_b", "c_d")),
        ("c d", "a b c d", "a b", ("a_b", "c_d")),
        ("c d", "a b c e d", "a b e", ("a_b", "e", "c", "d")),
        ("c d", "a b c e d", "a e b", ("a_b", "e", "c", "d")),  # made in the order of the large operand
        ("d c", "a b c", "a b d", ("a_b", "d", "c")),
        ("c d f", "c d a b", "f a b", ("f", "a", "b", "c", "d")),
    ],
)
@pytest.mark.few(3)
def test_what_is_met_in_a_row_in_an_operand_that_is_read_once(x: str, y: str, z: str, joined: tuple[str, ...]) -> None:
    sizes = {"a": 70, "b": 80, "c": 9, "d": 11, "e": 4, "f": 40}
    arrays = [numbers(*(sizes[i] for i in dims.split()), seed=k) for k, dims in enumerate((x, y))]
    types = [" ".join(i.upper() for i in dims.split()) for dims in (x, y)]
    left, right, out = (", ".join(dims.split()) for dims in (x, y, z))
    text = f'def f(x: f32["{types[0]}"], y: f32["{types[1]}"]):\n    z[{out}] = x[{left}] * y[{right}]\n    return z\n'
    assert indices_of(text, *arrays) == joined
    expected = np.einsum(f"{x},{y}->{z}".replace(" ", ""), *arrays)
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(*arrays), expected)


ENDS = {
    "source": ("i8", (15, 79, 5, 3), (3, 1, 2, 0), ("b_c_d", "a")),
    "source, with what is beside it": ("f16", (46, 7, 63, 2), (3, 2, 0, 1), ("c_d", "a_b")),
    "target": ("f32", (2, 30, 50, 4), (3, 2, 1, 0), ("d", "c", "b_a")),
    "long": ("f32", (70, 30, 4), (2, 1, 0), ("c", "b", "a")),
    "both end in it": ("f32", (70, 30, 3), (1, 0, 2), ("b", "a", "c")),
    "one is the other's": ("f32", (70, 30, 3), (0, 2, 1), ("a", "c", "b")),
}


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("why", ENDS)
@pytest.mark.few(4)
def test_short_ends_of_copies(why: str, vector_bytes: int) -> None:
    dtype, shape, order, joined = ENDS[why]
    names, kinds = "abcd"[: len(shape)], {"i8": np.int8, "f16": np.float16, "f32": np.float32}
    text = f"""
def f(x: {dtype}["{" ".join(names.upper())}"]):
    y[{", ".join(names[k] for k in order)}] = x[{", ".join(names)}]
    return y
"""
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(kinds[dtype])
    (region,) = polyml.einsum(text, target=TARGET).lower(x).stages.regions
    (copy,) = region.scop.statements.values()
    assert copy.indices == joined
    found = polyml.einsum(text, target=Target("host", vector_bytes=vector_bytes), verify=True)(x)
    np.testing.assert_array_equal(found, x.transpose(order))  # type: ignore[arg-type]


def test_short_ends_that_others_use_or_that_have_gaps_stay() -> None:
    text = (
        'def f(x: f32["A B 2"]):\n    y[c, b, a] = x[a, b, c]\n    z[a, b] = x[a, b, 0] + x[a, b, 1]\n    return y, z\n'
    )
    x = numbers(60, 50, 2)
    y, z = polyml.einsum(text, verify=True)(x)
    np.testing.assert_array_equal(y, x.T)
    np.testing.assert_array_equal(z, x.sum(2))
    gaps = numbers(60, 50, 4)[:, :, ::2]
    copy = 'def f(x: f32["A B C"]):\n    y[c, b, a] = x[a, b, c]\n    return y\n'
    np.testing.assert_array_equal(polyml.einsum(copy, verify=True)(gaps), gaps.T)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("body", ["sum[r < 3, s < 5](k[r, s] * {})", "max[r < 3, s < 5]({})", "sum[r < 3, s < 5]({})"])
@pytest.mark.few(1)
def test_windows_of_pixels(channels: int, body: str) -> None:
    """Few channels that come last: the windows of all of them are a row's."""
    read = "x[p + r, q + s, c]"
    text = f'def f(x: f32["H W C"], k: f32["3 5"]):\n    y[p, q, c] = {body.format(read)}\n    return y\n'
    if "k[" not in body:
        text = text.replace(', k: f32["3 5"]', "")
    x, k = numbers(43, 38, channels), numbers(3, 5, seed=1)
    given = (x, k) if "k[" in body else (x,)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 5), axis=(0, 1))
    expected = windows.max((3, 4)) if "max" in body else (windows * (k if "k[" in body else 1)).sum((3, 4))
    if channels > 1:
        assert ("q_c" in indices_of(text, *given)) == (channels < 5)
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(*given), expected)
    wide = np.zeros((43, 50, channels + 1), np.float32)
    for view in (wide[:, 3:41, :channels], np.zeros((43, 50, channels), np.float32)[:, ::-1][:, 6:44]):
        view[...] = x
        np.testing.assert_array_equal(polyml.einsum(text)(view, *given[1:]), expected)


def test_pixels_of_several_images() -> None:
    """Each moved by a number of its own; the sizes of what they are read from differ."""
    text = """
    def f(x: f32["H W 3"], z: f32["H W+2 3"]):
        y: f32["H-2 W-1 3"]
        y[p, q, c] = x[p + 1, q + 1, c] - 2 * z[p + 2, q + 0, c] + z[p + 0, q + 3, c]
        return y
    """
    x, z = numbers(240, 50, 3), numbers(240, 52, 3, seed=1)
    expected = x[1:-1, 1:] - 2 * z[2:, :49] + z[:-2, 3:]
    function = polyml.einsum(text, verify=True)
    assert "q_c" in str(function.explain(x, z))
    np.testing.assert_array_equal(function(x, z), expected)


def test_a_diagonal_keeps_its_index() -> None:
    x = numbers(3, 50, 100, 3)
    text = 'def f(x: f32["J K A J"]):\n    y[a, j, k] = x[j, k, a, j]\n    return y\n'
    np.testing.assert_array_equal(polyml.einsum(text, verify=True)(x), np.einsum("jkaj->ajk", x))


@pytest.mark.parametrize("place", ["ids[n] + K", "ids[n + K]"])
def test_sizes_in_places_that_are_computed_beside_joined_indices(place: str) -> None:
    text = f'def f(x: f32["N M L"], ids: i64["Q"], K: int, y: f32["P"]):\n    z[n] = x[n, m, l]\n    y[{place}] += z[n]\n    return z\n'
    added = place.endswith("+ K")
    x, ids, y = numbers(9, 5, 7), np.arange(9 if added else 12) % 4, np.zeros(12, np.float32)
    z = polyml.einsum(text, dynamic=True)(x, ids, 3, y)
    np.testing.assert_array_equal(y, np.bincount(ids + 3 if added else ids[3:], z, 12))
