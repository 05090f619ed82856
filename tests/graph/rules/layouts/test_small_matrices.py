"""Results whose rows are small matrices get a statement for each element, where lanes along the batch cost less."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.reference import execute
from polyml.graph.rules.layouts.small_matrices import part_small_matrices
from polyml.graph.verify import verify
from tests.graph.built import Argument, graph, program


def normal(*shape: int) -> Argument:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(
    ("line", "shapes", "count"),
    [
        ("y[n, i, j] = A[n, i, k] * B[n, k, j]", ((203, 3, 3), (203, 3, 3)), 9),
        ("y[n, i, j] = 2 * sum[k](A[n, k, i] * B[n, k, j]) - i", ((203, 3, 3), (203, 3, 3)), 9),
        ("y[n, i] = A[n, i, j] * B[n, j]", ((203, 4, 4), (203, 4)), 4),
        ("y[n, i, j] = A[n, i] * B[n, j]", ((203, 3), (203, 3)), 9),
        ("y[n, i, j] = A[n, i, k] * B[n, k, j]", ((203, 4, 4), (203, 4, 4)), 1),  # many elements
        ("y[n, i, j] = A[n, i, k] * B[n, k, j]", ((63, 3, 3), (63, 3, 3)), 1),  # few rows
        ("y[n, i, j] = A[n, i, j] * B[n, i, j]", ((203, 3, 3), (203, 3, 3)), 1),  # one row
        ("y[m, i] = sum[n](A[n, m, i] * B[n, m, i])", ((5, 203, 3), (5, 203, 3)), 1),  # a sum of such rows
        ("y[m, i] = sum[n](A[n, m, i] * B[n])", ((5, 203, 3), (5,)), 1),
        ("y[m, i] = sum[n](A[m, n, i] * B[m, n, i])", ((203, 3, 3), (203, 3, 3)), 3),
    ],
)
def test_parts(line: str, shapes: tuple[tuple[int, ...], ...], count: int) -> None:
    given = [normal(*shape) for shape in shapes]
    dims = [" ".join("N" if k == 0 else str(e) for k, e in enumerate(shape)) for shape in shapes]
    plain = graph(program(f'A: f32["{dims[0]}"], B: f32["{dims[1]}"]', line, "return y"), *given)
    made = part_small_matrices(plain, vector_bytes=64)
    verify(made)
    np.testing.assert_allclose(execute(made, given)[0], execute(plain, given)[0], rtol=1e-5, atol=1e-5)
    assert len(made.ops) == max(count, len(plain.ops) if count == 1 else 1)


@pytest.mark.parametrize(("size", "far", "count"), [(4, False, 4), (4, True, 1), (3, True, 3)])
def test_long_rows_beyond_caches_stay(size: int, far: bool, count: int) -> None:
    """Rows of sixteen elements touch several lines for each vector; of nine they do not."""
    given = normal(203, size, size), normal(203, size)
    text = program(f'A: f32["N {size} {size}"], B: f32["N {size}"]', "y[n, i] = A[n, i, j] * B[n, j]", "return y")
    made = part_small_matrices(graph(text, *given), vector_bytes=64, l2_bytes=1 << (10 if far else 20))
    assert len(made.ops) == count


@pytest.mark.parametrize(
    ("arguments", "right", "shapes", "subscripts"),
    [
        ('x: f32["N C 3 3"], b: f32["C"]', "x[n, c, i, j] * b[c]", ((2, 67, 3, 3), (67,)), "ncij,c->ncij"),
        ('x: f32["N C 3 3"], b: f32["C 3 3"]', "x[n, c, i, k] * b[c, k, j]", ((2, 67, 3, 3), (67, 3, 3)), "ncik,ckj->ncij"),
        ('x: f32["3 C 3"], b: f32["C 3"]', "x[i, c, k] * b[c, k] * x[j, c, k]", ((3, 67, 3), (67, 3)), "ick,ck,jck->cij"),
    ],
)  # fmt: skip
def test_batches_of_batches_of_any_size(
    arguments: str, right: str, shapes: tuple[tuple[int, ...], ...], subscripts: str
) -> None:
    """How far apart the matrices of two rows of the outer batch are is no number; b has one row."""
    target = subscripts.partition("->")[2]
    program = polyml.einsum(f"def f({arguments}):\n    y[{', '.join(target)}] = {right}\n    return y\n", dynamic=True)
    given = [np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    operands = [*given, given[0]][: subscripts.count(",") + 1]
    np.testing.assert_array_equal(program(*given), np.einsum(subscripts, *operands))
