"""Fusion into regions: what belongs together is one region, what does not stays apart, and regions are well formed."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest

import polyml
from polyml.graph import fuse as fusion
from polyml.graph.fuse import fuse
from polyml.graph.ir import Graph
from polyml.graph.profiles import profiles
from polyml.graph.region import Region
from polyml.graph.rewrite import rewrite
from polyml.graph.traverse import all_ops, read_names, results_of, tensors_of
from polyml.testing.einsum_calls import RandomChooser
from polyml.testing.generate import generate
from tests.graph import programs
from tests.graph.graph_text import graph


def names(regions: tuple[Region, ...]) -> list[list[str]]:
    return [[t.name for op in region.ops for t in results_of(op)] for region in regions]


def check_well_formed(g: Graph, regions: tuple[Region, ...]) -> None:
    """Every op once, inputs and outputs exact, nothing used before it is made."""
    known = {item.tensor.name for item in g.inputs}
    for region in regions:
        assert {t.name for t in region.inputs} <= known
        local = {t.name for t in region.inputs}
        for op in region.ops:
            assert set(read_names(op)) <= local
            local |= {t.name for t in results_of(op)}
        known |= {t.name for t in region.outputs}
    assert {t.name for t in g.outputs} <= known
    assert len({region.name for region in regions}) == len(regions)


@pytest.mark.parametrize(
    "text",
    [
        programs.SOFTMAX,
        programs.LOGSUMEXP,
        programs.LAYER_NORM,
        programs.ATTENTION,
        programs.DENSE,
        programs.RESIDUAL_NORM,
        programs.DISTANCES,
    ],
)
def test_one_region(text: str) -> None:
    g = graph(text)
    regions = fuse(g)
    assert len(regions) == 1
    assert {t.name for t in regions[0].outputs} == {t.name for t in g.outputs}
    check_well_formed(g, regions)


@pytest.mark.parametrize(("rows", "regions"), [(40, 1), (400, 2)])
def test_what_repeats_a_product_many_times_stands_alone(rows: int, regions: int) -> None:
    """The elements of a large result, in rows of its own, are not stored from the lanes of the small product that they have in common."""
    g = graph(f"""
        x: f32[50, 60]
        w: f32[60, 70]
        v: f32[{rows}, 70]
        t[i, j] = sum[k](x[i, k] * w[k, j])
        y[i, r, j] = t[i, j] * v[r, j]
        return y
    """)
    assert len(fuse(g)) == regions


def made_inside(region: Region) -> set[str]:
    """The tensors that exist in the region only."""
    made = {tensor.name for op in all_ops(region.ops) for tensor in results_of(op)}
    return made - {tensor.name for tensor in region.outputs}


def test_a_large_intermediate_stays_local_and_a_returned_one_does_not() -> None:
    (region,) = fuse(graph(programs.RESIDUAL_NORM))
    assert [t.name for t in region.inputs] == ["x", "r"]
    assert [t.name for t in region.outputs] == ["t", "y"]
    assert made_inside(region) == {"s", "v"}


@pytest.mark.parametrize("keys", [2048, 4096, 16384])
def test_scores_stay_in_cache_however_many_keys_there_are(keys: int) -> None:
    text = programs.ATTENTION.replace("k: f32[8, 512", f"k: f32[8, {keys}").replace(
        "v: f32[8, 512", f"v: f32[8, {keys}"
    )
    assert len(fuse(rewrite(graph(text)))) == 1


def test_weights_beyond_the_caches_are_not_read_again_for_each_block_of_rows() -> None:
    text = """
        x: f32[512, {depth}]
        w: f32[{depth}, 32768]
        h[i, j] = sum[k](x[i, k] * w[k, j])
        m[i] = max[j](h[i, j])
        return m
    """
    assert len(fuse(graph(text.format(depth=512)))) == 2
    assert len(fuse(graph(text.format(depth=32)))) == 1


@pytest.mark.parametrize(("heads", "regions"), [(60, 2), (2000, 1)])
def test_products_out_of_the_second_cache_share_loops_for_what_only_memory_would_hold(heads: int, regions: int) -> None:
    # Each of the products reads 77 KB that no L1 holds: their sums are worth that where they would go through memory.
    text = f"""
        x: f32[{heads}, 300, 64]
        a: f32[300, 64]
        b: f32[64, 64]
        t[i, r, k] = sum[j](x[i, j, k] * a[j, r])
        y[i, r] = sum[k](t[i, r, k] * b[k, r])
        return y
    """
    assert len(fuse(graph(text))) == regions


def test_two_large_products_stay_apart() -> None:
    g = graph(programs.TWO_PRODUCTS)
    regions = fuse(g)
    assert names(regions) == [["t", "r"], ["y"]]
    check_well_formed(g, regions)


def test_siblings_on_the_same_data_share_a_region_and_strangers_do_not() -> None:
    g = graph("""
        x: f32[1000]
        y: f32[1000]
        a[i] = x[i] * 2.0
        b[i] = y[i] * 2.0
        c[i] = x[i] + 1.0
        return a, b, c
    """)
    regions = fuse(g)
    assert names(regions) == [["a", "c"], ["b"]]
    check_well_formed(g, regions)


def test_writes_between_each_other_share_a_region() -> None:
    text = """
        x: f32[4000000]
        z: f32[4000000]
        y: f32[8000000]
        y[2*i] = x[i]
        y[2*i + 1] = z[i]
        return y
    """
    assert len(fuse(graph(text))) == 1
    assert len(fuse(graph(text.replace("y[2*i + 1] = z[i]", "y[i + 4000000] = z[i]")))) == 2


def test_row_sums_and_column_sums_read_the_rows_together() -> None:
    text = """
        x: f32[N, N]
        a[i] = sum[j](x[i, j])
        b[j] = sum[i](x[i, j])
        return a, b
    """
    assert len(fuse(graph(text.replace("N", "4096")))) == 1
    assert len(fuse(graph(text.replace("N", "64")))) == 1


def test_regions_are_convex() -> None:
    # a and c share x and i, but the full sum between them can be in no region with either.
    g = graph("""
        x: f32[4000000]
        a[i] = exp(x[i])
        s = sum[i](a[i])
        c[i] = a[i] / s
        d[i] = c[i] + x[i]
        return d
    """)
    regions = fuse(g)
    assert names(regions) == [["a"], ["s"], ["c", "d"]]
    check_well_formed(g, regions)


def test_the_cap_on_equations_holds() -> None:
    lines = "\n".join(f"y{k + 1}[i] = y{k}[i] + 1.0" for k in range(20))
    g = graph(f"y0: f32[5000]\n{lines}\nreturn y20")
    regions = fuse(g, max_equations=8)
    assert max(len(region.ops) for region in regions) <= 8
    assert len(regions) <= 5
    check_well_formed(g, regions)


@pytest.mark.parametrize(
    ("step", "more", "regions"), [("{} + 1.0", "", 1), ("exp({})", "", 2), ("{} + 1.0", "z = sum[i](y3[i])", 2)]
)
def test_half_as_many_again_are_together_where_none_reads_what_others_make_and_the_way_through_is_short(
    step: str, more: str, regions: int
) -> None:
    lines = "\n".join(f"y{k + 1}[i] = {step.format(f'y{k}[i]')}" for k in range(14))
    g = graph(f"y0: f32[5000]\n{lines}\n{more}\nreturn y14{', z' if more else ''}")
    assert len(fuse(g, max_equations=10)) == regions
    assert len(fuse(g, max_equations=9)) > 1
    assert len(fuse(g, max_equations=1)) == len(g.ops)


def test_a_loop_is_a_region_of_its_own() -> None:
    g = graph("""
        h0: f32[64]
        x[i] = h0[i] + 1.0
        for t in range(0, 5):
            carry(x, h, h2, h3)
            h2[i] = h[i] * 0.5
        y[i] = h3[i] + h0[i]
        return y
    """)
    regions = fuse(g)
    assert names(regions) == [["x"], ["h3"], ["y"]]
    assert made_inside(regions[1]) == {"h2"}
    check_well_formed(g, regions)


def test_what_a_check_needs_comes_first_and_apart() -> None:
    g = graph("""
        x: f32[100]
        ids: i32[100]
        a[n] = x[n] + 1.0
        bad = any[n](ids[n] < 0)
        check(bad)
        e[n] = a[ids[n]] + x[n]
        return e
    """)
    regions = fuse(g)
    assert names(regions)[0] == ["bad"]
    check_well_formed(g, regions)


def test_a_reader_of_the_old_value_runs_before_the_update() -> None:
    g = graph("""
        x: f32[8]
        z: f32[8]
        a[i] = z[i] + 1.0
        b[i] = x[i] * a[i]
        x1(x)[i] = a[i]
        final(x, x1)
        return b
    """)
    order = [name for region in names(fuse(g)) for name in region]
    assert order.index("b") < order.index("x1")


FILTERED = """
def filtered(x: f64["N M"]):
    y: f64["N M"] = 0
    for i in range(N):
        for j in range(1, M):
            y[i, j] = x[i, j] + y[i, j - 1]
    s[i, j] = y[i, j] * 2
    return s
"""


def lowered(text: str, *shape: int) -> list[list[str]]:
    lowered = polyml.einsum(text).lower(np.zeros(shape))
    return names(tuple(region.region for region in lowered.stages.regions))


def test_a_loop_is_joined_with_what_feeds_and_uses_it_row_by_row() -> None:
    (region,) = lowered(FILTERED, 2000, 2000)
    assert region[0] == "y"
    assert region[-1] == "s"
    # Along its recurrence there are no slices.
    columns = FILTERED.replace("range(N)", "range(1, N)").replace("range(1, M)", "range(M)")
    assert len(lowered(columns.replace("y[i, j - 1]", "y[i - 1, 0]"), 2000, 2000)) > 1


def test_small_arrays_are_not_worth_it() -> None:
    assert len(lowered(FILTERED, 20, 20)) > 1


def test_what_is_only_filled_for_a_loop_is_joined_with_it() -> None:
    text = """
def carried(x: f64["N N"], T: int):
    p: f64["N N"] = 0
    for t in range(T):
        p[i, j] = x[j, i] + p[j, i]
        x[i, j] = p[i, j] + x[j, i]
    return x
"""
    regions = polyml.einsum(text).lower(np.zeros((2000, 2000)), 3).stages.regions
    assert len(regions) == 1


class EveryPair(fusion._Chooser):
    """Looks at all pairs each time."""

    def best(self) -> tuple[int, int] | None:
        pairs = [(self.gain_of(a, b), -a, -b) for a, b in combinations(self.groups, 2)]
        most, a, b = max((p for p in pairs if self.may(-p[1], -p[2])), default=(0, 0, 0))
        return (-a, -b) if most > 0 else None

    def gain_of(self, a: int, b: int) -> int:
        first, second = self.groups[a], self.groups[b]
        return self.gain(first, second) if self.bound(first, second) > 0 else 0

    def may(self, a: int, b: int) -> bool:
        """No path leaves both and comes back, looked for op by op."""
        union = self.groups[a] | self.groups[b]
        group_of = {k: g for g in self.groups.values() if not g <= union for k in g}
        before = [{p for name in read_names(op) for p, q in self.makers() if q == name} for op in self.ops]
        seen: set[int] = set()
        pending = [p for k in union for p in before[k] if p not in union]
        while pending:
            k = pending.pop()
            if k in union:
                return False
            if k not in seen:
                seen |= group_of[k]
                pending += [p for member in group_of[k] for p in before[member]]
        return True

    def makers(self) -> list[tuple[int, str]]:
        return [(k, t.name) for k, op in enumerate(self.ops) for t in results_of(op)]


BATCH_NORM = """
    x: f32[{rows}, {columns}]
    m[k] = sum[n](x[n, k])
    v[k] = sum[n]((x[n, k] - m[k]) ** 2)
    y[n, k] = (x[n, k] - m[k]) / sqrt(v[k] + 1e-5)
    return y
"""


@pytest.mark.parametrize(
    ("rows", "columns", "regions"),
    [(1000, 777, 1), (4096, 1024, 3), (512, 1024, 3), (20000, 64, 3), (20000, 65, 3), (100, 64, 1), (4000, 1001, 3)],
)
def test_columns_are_swept_together_where_the_cache_holds_their_lines(rows: int, columns: int, regions: int) -> None:
    """A column has a line of each row, and those of rows that are whole pages meet in a few places of the cache."""
    g = rewrite(graph(BATCH_NORM.format(rows=rows, columns=columns)))
    found = fuse(g, cache_bytes=1 << 19)
    check_well_formed(g, found)
    assert len(found) == regions, names(found)


LAYERS = """
    x: f32[{channels}, {rows}, {rows}]
    a: f32[{filters}, {channels}]
    e: f32[{filters}, 3, 3]
    s[o, h, w] = sum[c](x[c, h, w] * a[o, c])
    y[o, h, w] = max(s[o, h, w], 0.0)
    tensor(p, f32[{filters}, {padded}, {padded}])
    p[o, i, j] = where((i >= 1 and i <= {rows}) and (j >= 1 and j <= {rows}), y[o, i - 1, j - 1], 0.0)
    tensor(z, f32[{filters}, {rows}, {rows}])
    z[o, i, j] = sum[u, v](p[o, i + u, j + v] * e[o, u, v])
    return z
"""


@pytest.mark.parametrize(
    ("rows", "channels", "filters", "cache_bytes"),
    [
        (112, 32, 64, 1 << 19),
        (56, 64, 128, 1 << 19),
        (28, 256, 256, 1 << 19),
        (14, 512, 512, 1 << 19),
        (28, 256, 256, 1 << 21),
    ],
)
def test_a_product_is_not_cut_into_channels_for_windows_of_what_it_becomes(
    rows: int, channels: int, filters: int, cache_bytes: int
) -> None:
    """Alone it has rows and columns as one index; the copy with zeros around goes with the windows, which read more than a row of it."""
    text = LAYERS.format(rows=rows, channels=channels, filters=filters, padded=rows + 2)
    g = graph(text)
    regions = fuse(g, cache_bytes=cache_bytes)
    check_well_formed(g, regions)
    assert names(regions) == [["s", "y"], ["p", "z"]]


@pytest.mark.parametrize(("channels", "regions"), [(16, 1), (64, 2)])
def test_windows_of_what_memory_takes_longer_to_move_than_a_core_to_make_are_read_from_the_cache(
    channels: int, regions: int
) -> None:
    text = LAYERS.format(rows=112, channels=channels, filters=1000, padded=114)
    assert len(fuse(graph(text), cache_bytes=1 << 19)) == regions


def test_windows_read_all_that_lies_between_the_first_and_the_last() -> None:
    g = graph("""
        x: f32[7, 40, 50]
        f: f32[3, 5]
        tensor(y, f32[7, 18, 46])
        y[o, i, j] = sum[r, s](x[o, 2*i + r, j + s] * f[r, s])
        z[o] = x[o, 3, 4] * 2.0
        return y, z
    """)
    tensors = tensors_of(g)
    windows, one = (profiles(op, tensors, {})[0] for op in g.ops)
    assert windows.read_bytes(tensors["x"]) == 4 * 7 * 37 * 50
    assert windows.read_bytes(tensors["f"]) == 4 * 3 * 5
    assert windows.written_bytes(tensors["y"]) == 4 * 7 * 18 * 46
    assert one.read_bytes(tensors["x"]) == 4 * 7


@pytest.mark.parametrize("cache_bytes", [1 << 8, 1 << 14])
@pytest.mark.few(1)
def test_the_pair_that_gains_most_is_found_without_a_look_at_all(
    cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = 0
    for seed in range(12):
        case = generate(RandomChooser(Random(seed)), 8)
        try:
            g = polyml.einsum(case.text).trace(*case.fresh_arguments())
        except polyml.PolymlError:
            continue
        found = fuse(g, cache_bytes=cache_bytes)
        with monkeypatch.context() as patch:
            patch.setattr(fusion, "_Chooser", EveryPair)
            assert fuse(g, cache_bytes=cache_bytes) == found
        joined += len(g.ops) - len(found)
    assert joined > 10


@pytest.mark.parametrize(
    "statement",
    [
        "h{n}[i, j] = x[i, j] * {n} + sin(x[i, j])",  # all read one tensor
        "h{n}[i, j] = relu({last}[i, k] * w[{n}, k, j] + b[{n}, j])",  # a chain, each reading its part of one
    ],
)
def test_what_joining_gains_is_asked_of_few_pairs(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = 60
    lines = [statement.format(n=n, last=f"h{n - 1}" if n else "x") for n in range(layers)]
    text = "\n    ".join(
        [
            'def deep(x: f32["N N"], w: f32["L N N"], b: f32["L N"]):',
            *lines,
            f"return {', '.join(f'h{n}' for n in range(layers))}",
        ]
    )
    program = polyml.einsum(text)
    g = program.trace(np.zeros((32, 32), "f4"), np.zeros((layers, 32, 32), "f4"), np.zeros((layers, 32), "f4"))
    asked = 0
    gain = fusion._Chooser.gain

    def counted(self: fusion._Chooser, a: frozenset[int], b: frozenset[int]) -> int:
        nonlocal asked
        asked += 1
        return gain(self, a, b)

    monkeypatch.setattr(fusion._Chooser, "gain", counted)
    fuse(g)
    assert layers <= len(g.ops)
    assert asked < 4 * len(g.ops)


SUMMED_TWICE = """
    v: f32[{terms}]
    x: f32[{terms}, 5, 185, 43]
    w: f32[5, 43]
    y[d, a, c] = sum[e](v[e] * x[e, d, a, c])
    z[d, a] = sum[c](y[d, a, c] * w[d, c])
    return z
"""


@pytest.mark.parametrize(("terms", "regions"), [(99, 2), (3, 1)])
def test_a_large_matrix_is_read_in_order_whatever_is_summed_behind(terms: int, regions: int) -> None:
    """What a weighted sum over the first of its dimensions makes is small beside it: in slices of what is summed behind it, its rows would be read piece by piece."""
    found = fuse(rewrite(graph(SUMMED_TWICE.format(terms=terms))), cache_bytes=1 << 19)
    assert len(found) == regions, names(found)
