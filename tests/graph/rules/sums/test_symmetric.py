"""Results that are the same with two indices exchanged: which are made by half, where a chain of them is mirrored, and that values are the same."""

from __future__ import annotations

import islpy as isl
import numpy as np
import pytest

import polyml
from polyml.graph.diagonal_tiles import WholeTiles
from polyml.graph.ir import Equation
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.sums.symmetric import LEAST_ROWS, LEAST_TERMS
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from tests.graph.built import graph, program, values
from tests.pairs import pairwise

GIVEN = RewriteOptions(vector_bytes=64, l2_bytes=1 << 20)

GRAM = ("y[a, b] = x[n, a] * x[n, b]",)
OF_ROWS = ("y[a, b] = x[a, n] * x[b, n]",)
WEIGHTED = ("y[a, b] = sum[n](x[n, a] * w[n] * x[n, b])",)
DISTANCES = ("y[a, b] = sum[n]((x[n, a] - x[n, b]) ** 2)",)
MANHATTAN = ("y[a, b] = sum[n](abs(x[n, a] - x[n, b]))",)
KERNEL = ("d[a, b] = sum[n]((x[n, a] - x[n, b]) ** 2)", "y[a, b] = exp(-0.1 * d[a, b])")
SCALED = ("c[a, b] = x[n, a] * x[n, b]", "y[a, b] = c[a, b] * x[0, a] * x[0, b] + where(a == b, 1.0, 0.0)")
TURNED = ("c[a, b] = x[n, a] * x[n, b]", "y[a, b] = c[b, a] + c[a, b]")
BOTH = ("c[a, b] = x[n, a] * x[n, b]", "y[a, b] = sqrt(abs(c[a, b]))", "z[a] = sum[b](c[a, b])")

SYMMETRIC = (GRAM, WEIGHTED, DISTANCES, MANHATTAN, KERNEL, SCALED, TURNED, BOTH)


def halves(lines: tuple[str, ...], rows: int = 130, terms: int = 70, **options: bool | int) -> list[Equation]:
    """The equations over half of their results, of the rewritten graph, which is checked on the way."""
    returned = "return y, z" if any(line.startswith("z[") for line in lines) else "return y"
    shape = (rows, terms) if lines == OF_ROWS else (terms, rows)
    declared = 'x: f32["D N"]' if lines == OF_ROWS else 'x: f32["N D"]'
    arguments = [values(*shape), values(terms)]
    made = graph(program(f'{declared}, w: f32["N"]', *lines, returned), *arguments)
    found = rewrite(made, RewriteOptions(**{"vector_bytes": 64, "l2_bytes": 1 << 20, **options}))  # type: ignore[arg-type]
    verify(found)
    for result, expected in zip(execute(found, arguments), execute(made, arguments), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    return [op for op in found.ops if isinstance(op, Equation) and op.base is None and not op.domain.is_box()]


@pytest.mark.parametrize("lines", [*SYMMETRIC, OF_ROWS])
def test_symmetric_results_are_made_by_half(lines: tuple[str, ...]) -> None:
    found = halves(lines)
    assert found
    assert any(op.reduce == "sum" for op in found)


def test_a_chain_is_mirrored_at_its_end() -> None:
    made = [op.result.name for op in halves(KERNEL)]
    assert made == ["d", "y_half"]
    # What somebody else reads is mirrored at once, and what follows is made from all of it.
    assert [op.result.name for op in halves(BOTH)] == ["c_half"]


@pytest.mark.parametrize(
    "lines",
    [
        ("y[a, b] = sum[n](x[n, a] * w[n] - x[n, b])",),
        ("y[a, b] = sum[n](x[n, a] - x[n, b])",),
        ("y[a, b] = sum[n](exp(x[n, a] - x[n, b]))",),
        ("y[a, b] = sum[n](x[n, a] * x[n, a] * x[n, b])",),
        ("y[a, b] = max[n](x[n, a] * x[n, b])",),
    ],
)
def test_others_are_not(lines: tuple[str, ...]) -> None:
    assert not halves(lines)


def test_what_is_made_of_one_and_is_not_symmetric_itself_reads_all_of_it() -> None:
    lines = ("c[a, b] = x[n, a] * x[n, b]", "y[a, b] = exp(c[a, b]) * x[0, a]")
    assert [op.result.name for op in halves(lines)] == ["c_half"]


def test_small_ones_and_short_sums_stay_whole() -> None:
    assert not halves(GRAM, rows=LEAST_ROWS - 1)
    assert not halves(GRAM, terms=LEAST_TERMS - 1)
    assert halves(GRAM, rows=LEAST_ROWS, terms=LEAST_TERMS)
    assert not halves(GRAM, precise=True)


@pytest.mark.parametrize("lines", [*SYMMETRIC, OF_ROWS])
@pytest.mark.parametrize("rows", [48, 65, 130])
@pytest.mark.few(18)
def test_with_few_registers_tiles_along_the_diagonal_are_whole(lines: tuple[str, ...], rows: int) -> None:
    found = halves(lines, rows=rows, terms=100, vector_bytes=32, vector_registers=16)
    assert found
    for op in found:
        a, b = op.left
        box = isl.Set(f"{{ {op.result.name}[{a}, {b}] : 0 <= {a} < {rows} and 0 <= {b} < {rows} }}")
        result = op.domain.project_out(isl.dim_type.set, 2, len(op.reduced)).set_tuple_name(op.result.name)
        limit = f"{{ {op.result.name}[{a}, {b}] : {b} < {WholeTiles(6, 16).last_column(a)} }}"
        assert result.is_equal(box.intersect(isl.Set(limit)))


def test_few_rows_pay_where_few_tiles_of_them_are_left() -> None:
    few = {"vector_bytes": 32, "vector_registers": 16}
    assert not halves(GRAM, rows=16, terms=2000, **few)
    # Ten of twelve tiles.
    assert not halves(GRAM, rows=32, terms=2000, **few)
    assert halves(GRAM, rows=48, terms=2000, **few)
    # 17 of 24, of so short a sum that the copy takes as long as the seven.
    assert not halves(GRAM, rows=48, terms=LEAST_TERMS, **few)
    assert not halves(GRAM, rows=200, terms=LEAST_TERMS - 1, **few)
    # Panels that are as few as threads, and of different lengths.
    assert not halves(GRAM, rows=LEAST_ROWS - 1, terms=2000, shared=True, **few)
    assert halves(GRAM, rows=LEAST_ROWS, terms=2000, shared=True, **few)


def test_the_other_half_is_a_copy() -> None:
    made = graph(program('x: f32["N D"]', *GRAM, "return y"), values(70, 130))
    text = graph_text(rewrite(made, GIVEN))
    assert "y_half[a, b] = sum_n x[n, a] * x[n, b]" in text
    assert "y_half[b, a]" in text.split("\n")[2]


@pairwise(
    ("lines", SYMMETRIC),
    ("terms, rows, threads", [(64, 96, 1), (150, 131, 2), (333, 217, 7), (700, 50, 1), (129, 64, 2)]),
    ("dtype", ["f32", "f64"]),
)
@pytest.mark.few(1)
def test_compiled(lines: tuple[str, ...], terms: int, rows: int, dtype: str, threads: int) -> None:
    returned = "return y, z" if any(line.startswith("z[") for line in lines) else "return y"
    body = "\n    ".join((*lines, returned))
    text = 'def f(x: {0}["N D"], w: {0}["N"]):\n    {1}\n'
    f = polyml.einsum(text.format(dtype, body), threads=threads)
    rng = np.random.default_rng(terms)
    kind = "f4" if dtype == "f32" else "f8"
    x, w = rng.standard_normal((terms, rows)).astype(kind), rng.standard_normal(terms).astype(kind)
    kept = x.copy()
    found = f(x, w)
    exact = polyml.einsum(text.format("f64", body), precise=True)(x.astype("f8"), w.astype("f8"))
    found, exact = (r if isinstance(r, tuple) else (r,) for r in (found, exact))
    for result, expected in zip(found, exact, strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(result, expected, rtol=0, atol=scale * (2e-5 if dtype == "f32" else 1e-13))
    # Fewer rows are made as a whole by some machines, and by threads.
    assert rows < LEAST_ROWS or np.array_equal(found[0], found[0].T)
    assert np.array_equal(x, kept)


def test_infinities_and_nans_stay_where_they_are() -> None:
    x = np.random.default_rng(0).standard_normal((70, 130)).astype("f4")
    x[3, 5], x[4, 7] = np.nan, np.inf
    f = polyml.einsum('def f(x: f32["N D"]):\n    y[a, b] = x[n, a] * x[n, b]\n    return y\n')
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isnan(f(x)), np.isnan(x.T @ x))
        np.testing.assert_array_equal(np.isinf(f(x)), np.isinf(x.T @ x))
