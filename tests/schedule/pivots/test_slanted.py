"""Triangular products in blocks: results around the sizes of the tiles, what is planned and what is not, proofs, and the tree."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

import polyml
from benchmarks.polybench import KERNELS
from benchmarks.polybench.kernel import worst_error
from polyml.codegen.loops import Assign, For
from polyml.codegen.rewrite import walk_nodes
from polyml.options import Options
from polyml.schedule.driver import schedule
from polyml.schedule.pivots.slanted import split_around
from polyml.schedule.storage_check import storage_faults
from polyml.schedule.tree import print_tree
from polyml.target import Target

WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20, cores=2)
SMALL = Target("host", l1_bytes=2048, l2_bytes=16 * 1024, cores=2)
"""This machine with caches so small that there are several blocks of the sum at test sizes."""


def blocks_of(function: polyml.Einsum, *arguments: object) -> list[str]:
    notes = [note for region in function.lower(*arguments).stages.regions for note in region.notes]
    assert not [note for note in notes if note.stage == "fallback"]
    return [note.text for note in notes if note.stage == "blocking"]


@pytest.mark.parametrize(("name", "shape"), [
    ("syrk", (50, 97)), ("trmm", (97, 50)), ("trmm", (64, 72)), ("symm", (71, 49)), ("syr2k", (40, 73)), ("covariance", (73, 50)),
    ("correlation", (49, 64)),
])  # fmt: skip
@pytest.mark.few(1)
def test_around_the_tiles(name: str, shape: tuple[int, int]) -> None:
    kernel = KERNELS[name]
    sizes = dict(zip(kernel.sizes("MINI"), shape, strict=True))
    arguments = kernel.data(sizes, np.random.default_rng(shape))
    expected = kernel.reference(*copy.deepcopy(arguments))
    function = kernel.program(target=SMALL, threads=1, verify=True)
    assert any("packed in panels" in text for text in blocks_of(function, *copy.deepcopy(arguments)))
    assert worst_error(function(*copy.deepcopy(arguments)), expected) < 1e-12


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"threads": 1, "precise": True}, {"threads": 1, "target": "x86-64-v3"}]
)
@pytest.mark.few(2)
def test_under_options(options: dict[str, object]) -> None:
    if isinstance(options.get("target"), str) and not Target(str(options["target"])).runs_here:
        pytest.skip("not on this machine")
    kernel = KERNELS["trmm"]
    arguments = kernel.data({"M": 130, "N": 131}, np.random.default_rng(0))
    expected = kernel.reference(*copy.deepcopy(arguments))
    function = kernel.program(**options)
    assert blocks_of(function, *copy.deepcopy(arguments))
    assert worst_error(function(*copy.deepcopy(arguments)), expected) < 1e-12


SLANTS: dict[str, Callable[..., np.ndarray]] = {
    "j <= i": lambda i, j, k: j <= i,
    "j >= i": lambda i, j, k: j >= i,
    "k <= i": lambda i, j, k: k <= i,
    "k > j": lambda i, j, k: k > j,
    "j + k < N": lambda i, j, k: j + k < 75,
    "j <= i and k <= i + j": lambda i, j, k: (j <= i) & (k <= i + j),
}


@pytest.mark.parametrize("condition", SLANTS)
@pytest.mark.few(1)
def test_integers_are_exact(condition: str) -> None:
    """Any slant, upwards or downwards, of any of the three loops: a term too many or too few would show."""
    outside = "k" not in condition
    value = "sum[k](x[i, k] * y[k, j])" if outside else f"sum[k, {condition}](x[i, k] * y[k, j])"
    text = f"""
def product(x: i64["N N"], y: i64["N N"]):
    z: i64["N N"] = 0
    {f"if {condition}:" if outside else "if True:"}
        z[i, j] = {value}
    return z
"""
    n = 75
    x, y = np.random.default_rng(len(condition)).integers(-99, 100, (2, n, n))
    function = polyml.einsum(text, target=SMALL, threads=1, verify=True)
    assert blocks_of(function, x, y)
    holds = np.broadcast_to(SLANTS[condition](*np.ogrid[:n, :n, :n]), (n, n, n))
    np.testing.assert_array_equal(function(x, y), np.einsum("ijk,ik,kj->ij", holds.astype(np.int64), x, y))


def test_nan_outside_of_the_triangle_stays_there() -> None:
    """Panels are read a whole vector at a time: what lies beyond the edge never reaches a result."""
    n = 90
    rng = np.random.default_rng(0)
    a, b = rng.random((2, n, n))
    masked = np.where(np.tri(n, dtype=bool), a, np.nan)
    text = 'def f(A: f64["N N"], B: f64["N N"]):\n    C[i, j] = sum[k, k <= i](A[i, k] * B[k, j])\n    return C\n'
    function = polyml.einsum(text, target=SMALL, threads=1)
    assert blocks_of(function, masked, b)
    np.testing.assert_allclose(function(masked, b), np.tril(a) @ b, rtol=1e-12)


def test_boxes_small_ones_and_explicit_choices_stay_as_they_were() -> None:
    kernel = KERNELS["trmm"]
    arguments = kernel.data({"M": 20, "N": 30}, np.random.default_rng(0))
    assert not blocks_of(kernel.program(target=WIDE), *copy.deepcopy(arguments))
    arguments = kernel.data({"M": 200, "N": 240}, np.random.default_rng(0))
    assert "A in panels of 8" in blocks_of(kernel.program(target=WIDE), *copy.deepcopy(arguments))[0]
    for options in ({"vectorize": False}, {"tile_sizes": (8, 8)}, {"scheduler": "isl"}):
        texts = blocks_of(kernel.program(target=WIDE, **options), *copy.deepcopy(arguments))
        assert not any("beyond" in text for text in texts)


def test_what_runs_before_and_after() -> None:
    arguments = KERNELS["symm"].data({"M": 60, "N": 70}, np.random.default_rng(0))
    regions = KERNELS["symm"].program(scheduler="written").lower(*arguments).stages.regions
    last = regions[-1]
    (core,) = (s.name for s in last.scop.statements.values() if s.kind == "update")
    before, after = split_around(last.scop, last.dependences, core)
    assert [last.scop.statements[name].kind for name in before] == ["init"]
    assert [last.scop.statements[name].kind for name in after] == ["assign"]


def test_panels_are_transposed_in_registers_and_results_finished_in_lanes() -> None:
    """Of `A[j, k]` with lanes along j; and what is made of the sums is no loop over single elements because the sums' own loops were others."""
    arguments = KERNELS["syr2k"].data({"M": 100, "N": 120}, np.random.default_rng(0))
    lowered = KERNELS["syr2k"].program(target=WIDE, threads=1).lower(*arguments)
    loops = [node for region in lowered.stages.regions for node in walk_nodes(region.loops.body)]
    moves = [n for loop in loops if isinstance(loop, For) and loop.kind == "transpose" for n in loop.body]
    assert {n.target.variable for n in moves if isinstance(n, Assign)} == {"A_panels", "B_panels"}
    lanes = [n for loop in loops if isinstance(loop, For) and loop.kind == "vector" for n in walk_nodes(loop.body)]
    finished = [n for n in loops if isinstance(n, Assign) and n.target.variable == "C"]
    assert finished
    assert all(any(n is other for other in lanes) for n in finished)


@pytest.mark.parametrize("name", ["syrk", "trmm"])
def test_tree_at_real_size(name: str, golden: Callable[[str, str], None]) -> None:
    region = KERNELS[name].program(scheduler="written").lower(*KERNELS[name].arguments("LARGE")).stages.regions[0]
    found = schedule(region.scop, region.dependences, WIDE, Options(target=WIDE, threads=2))
    assert storage_faults(found) == []
    storage = [f"{s.array}: {'x'.join(map(str, s.shape)) or 'scalar'}" for s in found.storage.values()]
    notes = [f"{n.stage} {n.subject}: {n.text}" for n in found.notes]
    golden(f"schedule/{name}", "\n".join([print_tree(found.tree, found.scop), *storage, *notes]))


def gram(rows: int, terms: int, **options: object) -> tuple[polyml.Einsum, np.ndarray]:
    """Products of columns with each other, for a machine without AVX-512."""
    text = 'def f(x: f32["N D"]):\n    c[i, j] = x[n, i] * x[n, j]\n    return c\n'
    target = Target("x86-64-v3", l1_bytes=32 * 1024, l2_bytes=512 * 1024, cores=2)
    x = np.random.default_rng(0).standard_normal((terms, rows), dtype=np.float32)
    return polyml.einsum(text, target=target, **options), x


def test_copies_of_whole_panels_have_no_mask_that_is_no_constant() -> None:
    """A panel of six rows is stored under a mask, which is two plain stores where it is a number, and some 12 cycles where it is a value."""
    f, x = gram(250, 600)
    lowered = f.lower(x)
    assert "in panels of 6" in blocks_of(f, x)[0]
    loops = [node for region in lowered.stages.regions for node in walk_nodes(region.loops.body)]
    copies = [
        node
        for node in loops
        if isinstance(node, For)
        and node.kind == "vector"
        and any(isinstance(n, Assign) and n.target.variable == "x_rows" for n in node.body)
    ]
    assert len(copies) == 2
    assert all((node.upper - node.lower).is_constant for node in copies)


@pytest.mark.parametrize(("rows", "place"), [(64, True), (250, False)])
def test_rows_that_l1_holds_are_read_where_they_lie(rows: int, place: bool) -> None:
    f, x = gram(rows, 600)
    (text,) = blocks_of(f, x)
    assert ("x in panels of 6" not in text) == place


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "terms"), [(48, 200), (64, 600), (71, 333), (100, 130), (250, 600)])
@pytest.mark.few(1)
def test_products_of_columns_with_each_other(rows: int, terms: int, threads: int) -> None:
    f, x = gram(rows, terms, threads=threads, verify=True)
    if not f.options.target.runs_here:
        pytest.skip("not on this machine")
    exact = x.T.astype("f8") @ x.astype("f8")
    np.testing.assert_allclose(f(x), exact, rtol=0, atol=1e-6 * terms)


@pytest.mark.parametrize("options", [{}, {"scheduler": "isl"}, {"fusion": False}])
def test_conditions_that_leave_no_term(options: dict[str, object]) -> None:
    """Sums of which nothing is left have no blocks, nor loops."""
    a, b = np.ones((40, 4), np.float32), np.ones((4, 50), np.float32)
    sums = polyml.einsum(
        """
def sums(a: f32["N K"], b: f32["K M"]):
    y[i, j] = 1 + sum[k, k > i + 3](a[i, k] * b[k, j])
    z[i, j] = sum[k](where(i > j + 50, a[i, k] * b[k, j], 0))
    return y, z
""",
        **options,
    )
    y, z = sums(a, b)
    assert (y == 1).all()
    assert (z == 0).all()
    updated = polyml.einsum(
        """
def updated(a: f32["N K"], b: f32["K M"], y: f32["N M"]):
    if j > i + 60:
        y[i, j] += a[i, k] * b[k, j]
    return y
""",
        **options,
    )
    assert (updated(a, b, y.copy()) == y).all()
