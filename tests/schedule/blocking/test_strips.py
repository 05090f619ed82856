"""Contractions that take the vector operand a strip at a time: where it lies or packed, around the tiles' sizes, and what their tiles fetch."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.codegen.llvm.support import guarded
from tests.pairs import pairwise
from tests.schedule.seen import notes_of

TARGET = Target("host", l1_bytes=48 << 10, l2_bytes=2 << 20, cores=2)
V4 = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20)
NEAR, FAR = (
    Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=1280 << 10, asks_sources=False, near_l3=near)
    for near in (True, False)
)
TEXT = 'def f(x: {0}["N K"], y: {0}["K M"]):\n    z[n, m] = x[n, k] * y[k, m]\n    return z\n'


def integers(*shape: int, dtype: str = "f4", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("n", "k", "m", "how"),
    [
        (64, 32, 1000, "where it lies"),
        (61, 33, 1009, "where it lies"),
        (129, 300, 601, "packed in panels"),
        (41, 300, 601, "where it lies"),
        (17, 300, 600, "where it lies"),
        (16, 96, 48 * 5 + 1, "where it lies"),
        (64, 256, 48 * 13, "packed in panels"),
    ],
)
@pytest.mark.few(2)
def test_strips_around_the_tiles(n: int, k: int, m: int, how: str, threads: int) -> None:
    x, y = integers(n, k), integers(k, m, seed=1)
    function = polyml.einsum(TEXT.format("f32"), target=TARGET, threads=threads, verify=True)
    wide = polyml.einsum(TEXT.format("f32"), target=V4, threads=threads)
    assert how in str(wide.explain(x, y))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y)


@pairwise(("k", [2304, 1300, 2049]), ("n", [16, 23, 35]), ("dtype", ["f4", "f8"]), ("threads", [1, 2]))
@pytest.mark.few(2)
def test_strips_of_a_part_of_the_sum_at_a_time(n: int, k: int, dtype: str, threads: int) -> None:
    """More terms than TLBs reach rows: each part is added to the result."""
    x, y = integers(n, k, dtype=dtype), integers(k, 301, dtype=dtype, seed=1)
    text = TEXT.format({"f4": "f32", "f8": "f64"}[dtype])
    function = polyml.einsum(text, target=TARGET, threads=threads, verify=True)
    wide = polyml.einsum(text, target=V4, threads=threads)
    described = str(wide.explain(x, y))
    assert "where it lies, in strips" in described
    assert "blocks of k by" in described
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y)


@pytest.mark.parametrize("n", [16, 41])
@pytest.mark.parametrize("k", [300, 2049])
@pytest.mark.few(1)
def test_rows_that_are_neighbours(n: int, k: int) -> None:
    """The first operand transposed: a tile's elements are side by side in each row."""
    x, y = integers(k, n), integers(k, 301, seed=1)
    text = 'def f(x: f32["K N"], y: f32["K M"]):\n    z[n, m] = x[k, n] * y[k, m]\n    return z\n'
    function = polyml.einsum(text, target=TARGET, threads=1, verify=True)
    wide = polyml.einsum(text, target=V4, threads=1)
    assert "y read where it lies, in strips" in str(wide.explain(x, y))
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x.T @ y)


@pytest.mark.parametrize(
    ("n", "k", "m", "near", "far"),
    [
        (32, 768, 2304, "where it lies", "where it lies"),
        (32, 1024, 1024, "where it lies", "packed in panels of 48; blocks of m by 48"),
        (24, 200, 4096, "where it lies", "where it lies"),
        (16, 1024, 1024, "where it lies", "where it lies"),
        (32, 2048, 2048, "where it lies", "packed in panels of 48; blocks of k by 1024, m by 48"),
        (128, 768, 3072, "where it lies", "packed in panels of 48; blocks of k by 384, m by 48"),
        (200, 768, 3072, "where it lies", "packed in panels of 48; blocks of m by 96"),
    ],
)
def test_strips_behind_a_far_cache(n: int, k: int, m: int, near: str, far: str) -> None:
    """What L2 has no room for is packed, where a sum is long enough for that: its lines are read once."""
    x, y = integers(n, k), integers(k, m)
    for how, target in ((near, NEAR), (far, FAR)):
        assert how in str(polyml.einsum(TEXT.format("f32"), target=target, threads=1).explain(x, y))


@pytest.mark.parametrize(
    ("n", "k", "m", "dtype", "asked"),
    [
        (64, 1000, 1100, "f4", True),
        (64, 1700, 1100, "f4", False),
        (64, 1024, 4096, "f4", False),
        (64, 200, 4096, "f8", True),
        (24, 768, 2304, "f4", True),
    ],
)
def test_what_is_asked_for_behind_a_far_cache(n: int, k: int, m: int, dtype: str, asked: bool) -> None:
    """The next strip, where L2 has room for it beside the panel and the rows, or the strip is read where it lies. An epilogue has the sum made as a whole."""
    x, y = integers(n, k, dtype=dtype), integers(k, m, dtype=dtype)
    text = TEXT.format({"f4": "f32", "f8": "f64"}[dtype]).replace(
        "    return", "    z[n, m] = max(z[n, m], 0)\n    return"
    )
    for target, expected in ((NEAR, True), (FAR, asked)):
        notes = str(polyml.einsum(text, target=target, threads=1).explain(x, y))
        assert ("the next strip of y" in notes) == expected


def test_narrow_strips_are_asked_for_behind_a_far_cache() -> None:
    """Tiles of 16 registers take a line of each row."""
    x, y = integers(64, 1024), integers(1024, 4096)
    target = Target("x86-64-v3", l1_bytes=48 << 10, l2_bytes=1280 << 10, near_l3=False)
    assert "the next strip of y" in str(polyml.einsum(TEXT.format("f32"), target=target, threads=1).explain(x, y))


@pairwise(
    ("n", [24, 35, 129]), ("k", [511, 768, 1024]), ("m", [512, 1009]), ("dtype", ["f4", "f8"]), ("threads", [1, 2])
)
@pytest.mark.few(2)
def test_results_behind_a_far_cache(n: int, k: int, m: int, dtype: str, threads: int) -> None:
    x, y = integers(n, k, dtype=dtype), integers(k, m, dtype=dtype, seed=1)
    target = Target("host", l1_bytes=48 << 10, l2_bytes=256 << 10, near_l3=False, cores=2)
    text = TEXT.format({"f4": "f32", "f8": "f64"}[dtype])
    function = polyml.einsum(text, target=target, threads=threads, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y)


def test_a_part_of_two_sums_and_an_epilogue() -> None:
    """A sum that something follows is made as a whole."""
    x, y, b = integers(24, 9, 200), integers(9, 200, 300, seed=1), integers(24, seed=2)
    text = 'def f(x: f32["N J K"], y: f32["J K M"]):\n    z[n, m] = x[n, j, k] * y[j, k, m]\n'
    plain = polyml.einsum(text + "    return z\n", target=TARGET, threads=1, verify=True)
    exact = np.einsum("njk,jkm->nm", x, y)
    np.testing.assert_array_equal(plain(guarded(x), guarded(y)), exact)
    after = (
        text.replace("z[n", "s[n").replace("):", ', b: f32["N"]):')
        + "    z[n, m] = max(s[n, m] + b[n], 0)\n    return z\n"
    )
    function = polyml.einsum(after, target=TARGET, threads=1, verify=True)
    np.testing.assert_array_equal(function(x, y, b), np.maximum(exact + b[:, None], 0))


def test_strips_of_several_indices_with_what_follows() -> None:
    x, y, b = integers(5, 40, 6, 200), integers(40, 8, 6, seed=1), integers(40, seed=2)
    text = (
        'def f(x: f32["A N K M"], y: f32["N O K"], b: f32["N"]):\n'
        "    s[a, o, n, m] = x[a, n, k, m] * y[n, o, k]\n    z[a, o, n, m] = max(s[a, o, n, m] + b[n], 0)\n    return z\n"
    )
    function = polyml.einsum(text, target=TARGET, threads=2, verify=True)
    exact = np.maximum(np.einsum("ankm,nok->aonm", x, y) + b[:, None], 0)
    np.testing.assert_array_equal(function(x, y, b), exact)


def test_rows_a_page_apart_are_packed() -> None:
    lies, apart = (
        notes_of(polyml.einsum(TEXT.format("f32"), target=V4, threads=1), integers(64, 64), integers(64, m))
        for m in (1024 + 16, 1024)
    )
    assert "where it lies" in lies
    assert "where it lies" not in apart


@pytest.mark.parametrize(
    ("name", "n", "k", "m", "packed"),
    [
        ("x86-64-v3", 66, 64, 3136, True),
        ("x86-64-v3", 66, 56, 3136, False),
        ("x86-64-v3", 66, 64, 784, False),
        ("x86-64-v3", 66, 96, 784, True),
        ("x86-64-v3", 96, 300, 601, True),
        ("x86-64-v3", 18, 200, 601, False),
        ("x86-64-v4", 64, 64, 3136, False),
    ],
)
@pytest.mark.few(2)
def test_rows_in_more_pages_than_a_tlb_reaches_are_packed(name: str, n: int, k: int, m: int, packed: bool) -> None:
    """For tiles of few cycles a step; three tiles are too few to pack a strip for."""
    x, y = integers(n, k), integers(k, m, seed=1)
    features = "-prefer-256-bit" if name == "x86-64-v4" else ""
    target = Target(name, l1_bytes=32 << 10, l2_bytes=1 << 20, features=features)
    described = str(polyml.einsum(TEXT.format("f32"), target=target, threads=1).explain(x, y))
    assert ("packed in panels" in described) == packed
    assert ("where it lies" in described) != packed
    function = polyml.einsum(TEXT.format("f32"), target=TARGET, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("n", "k", "m"), [(128, 512, 784), (100, 528, 787)])
@pytest.mark.few(1)
def test_packed_strips_of_a_part_of_the_sum_at_a_time(n: int, k: int, m: int, threads: int) -> None:
    """All strips of one part before the next: while its tiles are computed each asks for the strip beside it, and the first tile packs what has come."""
    x, y = integers(n, k), integers(k, m, seed=1)
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    loops = polyml.einsum(TEXT.format("f32"), target=target, threads=1).lower(x, y).text("loops")
    part, strip, packed, asked = (
        loops.index(t) for t in ("for (k_tile", "for (m_tile", "y_panels[0, k ", "prefetch L2 y")
    )
    assert part < strip < packed < asked
    near = Target("host", l1_bytes=32 << 10, l2_bytes=512 << 10, cores=2)
    function = polyml.einsum(TEXT.format("f32"), target=near, threads=threads, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y)


@pytest.mark.parametrize(("k", "parts"), [(512, True), (1024, False)])
def test_parts_of_rows_that_fill_their_sets_of_l2_are_read_less_often(k: int, parts: bool) -> None:
    """128 rows 4 KB apart are as many lines as a set has: blocks of columns, each of which all rows are read for once."""
    x, y = integers(128, k), integers(k, 784, seed=1)
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    loops = polyml.einsum(TEXT.format("f32"), target=target, threads=1).lower(x, y).text("loops")
    assert ("y_panels[1, 256, 16]" in loops) == parts


def test_tiles_fetch_the_next_strip() -> None:
    # Six of eight tiles ask for every line: three lines of two rows each.
    for k in (64, 256):
        x, y = integers(64, k), integers(k, 48 * 65)
        text = polyml.einsum(TEXT.format("f32"), target=V4, threads=1).lower(x, y).text("loops")
        # The first tile, which may pack, stands before the loop.
        place = re.findall(r"prefetch L2 y\[(.*), (.*)\];", text)[-1]
        rows = {(n, eval(place[0], {"n": n, "k": 0})) for n in range(0, 48, 8)}
        columns = {eval(place[1], {"n": n, "m": 0}) for n in range(0, 48, 8)}
        assert {row for _, row in rows} == {0, 1}
        assert columns == {63, 79, 95}, "the last elements of the next strip's vectors"


def test_tiles_fetch_the_next_strip_of_few_terms_that_are_no_multiple_of_their_steps() -> None:
    """28 of 31 terms are a loop: as many as rows that would be read from end to end, in blocks, and not be asked for where requests fill L1, but these are all."""
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10, fills_l2=False)
    text = 'def f(x: f64["A D B"], y: f64["C D"]):\n    z[c, b, a] = x[a, d, b] * y[c, d]\n    return z\n'
    lowered = polyml.einsum(text, target=target, threads=1).lower(np.ones((20, 31, 127)), np.ones((23, 31)))
    assert "x read where it lies, in strips" in lowered.explain()
    assert "prefetch L2 x" in lowered.text(
        "loops"
    )  # where such requests fill L1, rows that are read from end to end are not asked for


@pytest.mark.parametrize(("n", "lies"), [(24, True), (200, False)])
def test_rows_of_strips_that_lie_anywhere_come_to_l1_ahead(n: int, lies: bool) -> None:
    """All lines that the vectors of a step lie in, four steps before; panels are aligned, and need none."""
    x, y = integers(n, 384), integers(384, 48 * 65)
    lowered = polyml.einsum(TEXT.format("f32"), target=V4, threads=1).lower(x, y)
    assert ("where it lies" in lowered.explain()) == lies
    asked = re.findall(r"prefetch L1 y\[(.*), (.*)\];", lowered.text("loops"))
    columns = ["m", "m + 15", "m + 31", "m + 47"]
    assert asked == ([(f"k + {k}", m) for k in (4, 5) for m in columns] if lies else [])


def test_a_core_that_hides_such_loads_is_not_asked() -> None:
    x, y = integers(24, 384), integers(384, 48 * 65)
    deep = Target("x86-64-v4", l1_bytes=V4.l1_bytes, l2_bytes=V4.l2_bytes, asks_near=False)
    text = polyml.einsum(TEXT.format("f32"), target=deep, threads=1).lower(x, y).text("loops")
    assert "prefetch L2 y" in text
    assert "prefetch L1 y" not in text


def test_the_strip_after_a_rows_last_one_is_the_next_rows_first() -> None:
    """Three tiles ask for two lines each in every second step: all three lines of the next strip's rows, wherever it is."""
    text = 'def f(x: f32["N K"], y: f32["B K M"]):\n    z[b, n, m] = x[n, k] * y[b, k, m]\n    return z\n'
    x, y = integers(24, 96), integers(20, 96, 48 * 6, seed=1)
    function = polyml.einsum(text, target=V4, threads=1)
    asked = re.findall(r"prefetch L2 y\[(.*?), (.*), (.*)\];", function.lower(x, y).text("loops"))
    assert len(asked) == 2
    for b, tile in ((0, 0), (3, 48), (7, 240)):
        names = {"b": b, "m_tile": tile, "m": tile, "k": 4}
        lines = {tuple(eval(s, {**names, "n": n}) for s in place) for place in asked for n in (0, 8, 16)}
        after, first = (b, tile + 48) if tile < 240 else (b + 1, 0)
        assert lines == {(after, k, first + j) for k in (4, 5) for j in (15, 31, 47)}
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("nk,bkm->bnm", x, y))


def test_strips_of_several_widths() -> None:
    """Rows of 112 are strips of 64 and 48, each with a kind of tile of its own."""
    text = 'def f(x: f32["N K"], y: f32["K B M"]):\n    z[n, b, m] = x[n, k] * y[k, b, m]\n    return z\n'
    x, y = integers(64, 32), integers(32, 112, 112, seed=1)
    target = Target("x86-64-v4", l1_bytes=32 << 10, l2_bytes=1 << 20)
    function = polyml.einsum(text, target=target, threads=1)
    lowered = function.lower(x, y)
    assert "the next strip of y" in str(lowered.explain())
    loops = lowered.text("loops")
    (strip,) = set(re.findall(r"for \((\w+) = 0; \w+ < 128; \w+ \+= 64\)", loops))
    asked = [place for place in re.findall(r"prefetch L2 y\[(.*), (.*), (.*)\];", loops) if "n" in place[0]]
    assert len(asked) == 2, "in tiles of either width"
    for place in asked:
        for start, after, first in ((0, 5, 64), (64, 6, 0)):
            names = {"b": 5, strip: start, "m": start, "k": 4}
            lines = {tuple(eval(s, {**names, "n": n}) for s in place) for n in range(0, 60, 6)}
            assert lines == {(k, after, first + j) for k in (4, 5) for j in (15, 31, 47, 63)}
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("nk,kbm->nbm", x, y))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("n", "k", "m"), [(24, 48, 2000), (25, 96, 611), (65, 33, 400), (64, 200, 48 * 7), (17, 97, 999)]
)
@pytest.mark.few(1)
def test_strips_across_rows(n: int, k: int, m: int, threads: int) -> None:
    """Contiguous along the sum."""
    text = 'def f(x: f32["N K"], y: f32["M K"]):\n    z[n, m] = x[n, k] * y[m, k]\n    return z\n'
    x, y = integers(n, k), integers(m, k, seed=1)
    function = polyml.einsum(text, target=TARGET, threads=threads, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y.T)


def test_tiles_fetch_the_next_strip_across_rows() -> None:
    """Three tiles ask for all lines of 48 rows, wherever these begin."""
    text = 'def f(x: f32["D A B E"], y: f32["E C"]):\n    z[d, c, b, a] = x[d, a, b, e] * y[e, c]\n    return z\n'
    x, y = integers(4, 96, 42, 96), integers(96, 24, seed=1)
    function = polyml.einsum(text, target=V4, threads=1)
    asked = re.findall(r"prefetch L2 x\[d, (.*?), (.*?), (.*)\];", function.lower(x, y).text("loops"))
    for b, tile, first, after in ((3, 0, 48, 3), (3, 48, 0, 4)):
        names = {"b": b, "a_tile": tile, "a": tile, "min": min}
        lines = {
            tuple(eval(s, {**names, "c": c, "e": e}) for s in place)
            for place in asked for c in (0, 8, 16) for e in range(0, 96, 2)
        }  # fmt: skip
        assert {row for row, _, _ in lines} == set(range(first, first + 48))
        assert {place for _, place, _ in lines} == {after}
        assert {column for _, _, column in lines} == {0, 16, 32, 48, 64, 80, 95}
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("dabe,ec->dcba", x, y))


def test_strips_that_are_as_wide_as_rows() -> None:
    text = 'def f(x: f32["N K"], y: f32["B K C M"]):\n    z[b, c, n, m] = x[n, k] * y[b, k, c, m]\n    return z\n'
    x, y = integers(24, 48), integers(12, 48, 36, 48, seed=1)
    function = polyml.einsum(text, target=V4, threads=1)
    loops = function.lower(x, y).text("loops")
    assert "prefetch L2 y[" in loops
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("nk,bkcm->bcnm", x, y))


def test_packed_constants_are_not_fetched_where_they_come_from() -> None:
    x, y = integers(64, 300), integers(300, 2000, seed=1)
    frozen = polyml.einsum(TEXT.format("f32"), target=V4, threads=1).bind(y=y)
    text = frozen.lower(x).text("loops")
    assert " y[" not in text
    np.testing.assert_array_equal(frozen(x), x @ y)


def test_tiles_write_row_by_row() -> None:
    text = (
        polyml.einsum(TEXT.format("f32"), target=V4, threads=1).lower(integers(64, 64), integers(64, 960)).text("loops")
    )
    written = re.findall(r"z\[(n[^,]*), (m[^\]]*)\] = z_value", text)
    assert written[:4] == [("n", "m"), ("n", "m + 16"), ("n", "m + 32"), ("n + 1", "m")]


@pytest.mark.parametrize(
    ("name", "shape", "strips"),
    [
        ("x86-64-v3", (16, 2048, 2048), False),
        ("x86-64-v3", (16, 2048, 2000), True),
        ("x86-64-v3", (64, 300, 2048), True),
        ("x86-64-v3", (64, 2304, 768), False),
        ("x86-64-v3", (64, 64, 16384), False),
        ("x86-64-v3", (64, 64, 16000), True),
        ("x86-64-v3", (48, 384, 20480), True),
        ("x86-64-v3", (48, 384, 24576), False),
        ("x86-64-v3", (30, 16, 16384), False),
        ("x86-64-v3", (30, 16, 16000), True),
        ("x86-64-v4", (64, 2304, 768), True),
        ("x86-64-v4", (64, 64, 16384), True),
        ("x86-64-v4", (16, 2048, 2048), True),
    ],
)
@pytest.mark.few(4)
def test_narrow_strips_whose_rows_meet_are_blocks(name: str, shape: tuple[int, int, int], strips: bool) -> None:
    """A tile of 16 registers takes a line from each page, and L2 has no room for them, nor for those of the result, or many tiles take a part of the sum's from L2 one after the other: not of rows that lie elsewhere in their pages, of many tiles over the whole sum, whose strips are packed, or of three lines."""
    n, k, m = shape
    target = Target(name, l1_bytes=32 << 10, l2_bytes=512 << 10)
    f = polyml.einsum(TEXT.format("f32"), target=target)
    lines = f.explain(np.zeros((n, k), np.float32), np.zeros((k, m), np.float32)).splitlines()
    (plan,) = (line for line in lines if "blocking" in line)
    one_panel = re.search(r"panels of (\d+); blocks of m by \1$", plan)
    assert ("in strips of" in plan or one_panel is not None) == strips, plan


@pytest.mark.parametrize(
    ("name", "shape", "packed"),
    [
        ("x86-64-v3", (24, 384, 4000), True),
        ("x86-64-v3", (18, 240, 4032), False),
        ("x86-64-v3", (12, 384, 4000), False),
        ("x86-64-v4", (24, 384, 4000), False),
    ],
)
def test_long_narrow_strips_are_packed_by_the_first_of_few_tiles(
    name: str, shape: tuple[int, int, int], packed: bool
) -> None:
    """L1 has no room for two strips: not short ones, of two tiles, or of three lines."""
    n, k, m = shape
    f = polyml.einsum(TEXT.format("f32"), target=Target(name, l1_bytes=32 << 10, l2_bytes=512 << 10), threads=1)
    x, y = integers(n, k), integers(k, m, seed=1)
    text = f.lower(x, y).text("loops")
    assert ("y_panels" in text) == packed
    if packed:
        tile = text[text.index("z_value = 0") :]
        assert "y_panels[0, k, m - m_tile] = y[k, m]" in tile[: tile.index("z[n")], text
    if name == "x86-64-v3":
        np.testing.assert_array_equal(f(x, y), x @ y)


@pytest.mark.parametrize(("dtype", "n", "lies"), [("f32", 176, False), ("f64", 120, False), ("f64", 88, True)])
def test_narrow_strips_leave_room_for_rows_that_are_neighbours(dtype: str, n: int, lies: bool) -> None:
    """A term has two lines of y where its rows begin behind the beginning of a line, and two of x: 8 of 120 terms for some sets of L1."""
    text = 'def f(x: {0}["K N"], y: {0}["K M"]):\n    z[n, m] = x[k, n] * y[k, m]\n    return z\n'
    f = polyml.einsum(text.format(dtype), target=Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10), threads=1)
    x, y = (integers(n, n, dtype=dtype.replace("f32", "f4").replace("f64", "f8"), seed=seed) for seed in (0, 1))
    assert ("read where it lies, in strips" in str(f.explain(x, y))) == lies
    np.testing.assert_array_equal(f(x, y), x.T @ y)


@pytest.mark.parametrize(
    ("k", "n", "how"),
    [
        (120, 120, "y packed in panels of 24"),  # 300 lines of 512, in strips of a line and a half
        (100, 120, "y read where it lies, in strips of 24"),
        (300, 150, "y packed in panels of 16"),
        (120, 112, "y read where it lies, in strips of 16"),
    ],
)
def test_narrow_strips_that_take_half_of_l1_wherever_they_begin_are_packed(k: int, n: int, how: str) -> None:
    x, y = integers(100, k), integers(k, n, seed=1)
    narrow = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    assert how in notes_of(polyml.einsum(TEXT.format("f32"), target=narrow, threads=1), x, y)
    function = polyml.einsum(TEXT.format("f32"), target=narrow, threads=1, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), x @ y)


@pytest.mark.parametrize(
    ("name", "n", "k", "how"),
    [
        ("nn", 112, 100, "in strips"),
        ("tn", 120, 120, "y packed in panels"),
        ("tn", 64, 300, "y read where it lies; "),
        ("wide", 128, 100, "y read where it lies"),
    ],
)
def test_short_rows_are_taken_in_narrow_strips_that_stay_in_l1(name: str, n: int, k: int, how: str) -> None:
    """All of the operand comes from L2 for each tile otherwise, which AVX-512's tiles have the time for."""
    x, y = integers(*(k, 100) if name == "tn" else (100, k)), integers(k, n, seed=1)
    text = TEXT.format("f32").replace("N K", "K N").replace("n, k]", "k, n]") if name == "tn" else TEXT.format("f32")
    sizes = {"l1_bytes": 32 << 10, "l2_bytes": 512 << 10}
    target = Target("x86-64-v4" if name == "wide" else "x86-64-v3", **sizes)
    function = polyml.einsum(text, target=target, threads=1)
    (plan,) = (line for line in str(function.explain(x, y)).splitlines() if "blocking" in line)
    assert how in plan + "; "
    assert ("strips" in plan) == (how == "in strips")
    if name != "wide":
        np.testing.assert_array_equal(function(guarded(x), guarded(y)), (x.T if name == "tn" else x) @ y)


@pytest.mark.parametrize(("columns", "left"), [(43, 3), (32, 0)])
def test_vectors_of_a_whole_row_ask_for_its_next_strip(columns: int, left: int) -> None:
    """One tile makes a row: its first vectors ask for all lines of the next one's, those of the columns that no whole vector has among them."""
    text = 'def f(x: f64["K G M"], y: f64["K N"]):\n    z[g, n, m] = x[k, g, m] * y[k, n]\n    return z\n'
    x, y = integers(31, 37, columns, dtype="f8"), integers(31, 13, dtype="f8", seed=1)
    target = Target("x86-64-v3", l1_bytes=32 << 10, l2_bytes=512 << 10)
    loops = polyml.einsum(text, target=target, threads=1).lower(x, y).text("loops")
    asked = re.findall(r"prefetch L2 x\[(.*?), (.*?), (.*)\];", loops)
    assert len(asked) == 2
    lines = {
        tuple(eval(s, {"min": min, "k": 5, "g": 7, "m": m}) for s in place)
        for place in asked
        for m in range(0, columns - left, 4)[: columns // 8 + 1]
    }
    whole = {(5, 8, at) for at in range(7, columns, 8)}
    assert whole <= lines, lines
    function = polyml.einsum(text, target=TARGET, threads=1, verify=True)
    np.testing.assert_array_equal(function(guarded(x), guarded(y)), np.einsum("kgm,kn->gnm", x, y))
