"""The cheapest order of sums of products of many factors, and that programs are computed in it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from polyml.graph.builder.program import build
from polyml.graph.ir import Equation
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.sum_order import MOST_FACTORS, first_sum
from polyml.graph.traverse import estimated_bytes, results_of
from polyml.graph.verify import verify
from tests.graph.built import graph, program, signature, values

TRAIN = program(
    'x: f64["N A B C"], u: f64["A R D"], v: f64["R B S E"], w: f64["S C F"]',
    "y[n, d, e, f] = x[n, a, b, c] * u[a, r, d] * v[r, b, s, e] * w[s, c, f]",
    "return y",
)
MOVED = {0: 1, 1000: 4}


def test_a_vector_goes_through_a_chain_of_matrices_from_its_end() -> None:
    uses = [{"i", "j"}, {"j", "k"}, {"k", "l"}, {"l"}]
    assert first_sum(uses, {"i"}, dict.fromkeys("ijkl", 10), MOVED) in ({2, 3}, {1, 2, 3})
    assert first_sum(uses[::-1], {"i"}, dict.fromkeys("ijkl", 10), MOVED) in ({0, 1}, {0, 1, 2})


def test_narrow_factors_are_multiplied_first() -> None:
    """A product of rank 2, applied to ten rows: never the matrix that it stands for."""
    uses = [{"n", "k"}, {"k", "r"}, {"r", "s"}, {"s", "m"}]
    extents = {"n": 10, "k": 100, "r": 2, "s": 2, "m": 100}
    found = first_sum(uses, {"n", "m"}, extents, MOVED)
    assert found in ({0, 1}, {0, 1, 2})


def test_factors_over_all_indices_are_one_nest() -> None:
    assert first_sum([{"i", "j"}] * 4, {"i"}, {"i": 10, "j": 10}, MOVED) is None


def test_what_an_index_of_one_factor_gives_is_summed_alone() -> None:
    uses = [{"i", "j"}, {"i", "k"}, {"i", "k"}, {"i"}]
    found = first_sum(uses, {"i"}, {"i": 50, "j": 50, "k": 50}, MOVED)
    assert found in ({0}, {1, 2}, {1, 2, 3}, {0, 3})


def test_of_more_factors_the_least_product_goes_first() -> None:
    chain = [{a, b} for a, b in pairwise("abcdefghijkl")]
    assert len(chain) > MOST_FACTORS
    extents = dict.fromkeys("abcdefghijkl", 10)
    assert first_sum(chain, {"a", "l"}, {**extents, "e": 2, "f": 2, "g": 2}, MOVED) == {4, 5}
    assert first_sum(chain, {"a"}, extents, MOVED) == {10}
    assert first_sum([{"a", "b"}] * 9, {"a"}, extents, MOVED) is None


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_products_of_twelve_matrices(dtype: str) -> None:
    """One sum over eleven indices would be of 3^11 products for each element; a complex product has 2^11 terms besides."""
    arguments = [values(3, 3, dtype="f8").astype(dtype) * (1 + k / 8) for k in range(12)]
    names = "abcdefghijklm"
    kind = {"f8": "f64", "c16": "c128"}[dtype]
    head = ", ".join(f'w{k}: {kind}["3 3"]' for k in range(12))
    factors = " * ".join(f"w{k}[{names[k]}, {names[k + 1]}]" for k in range(12))
    source = program(head, f"y[a, m] = {factors}", "return y")
    built = build(source, signature(source, *arguments), reorders=True)
    found = rewrite(built, RewriteOptions(l2_bytes=1 << 16))
    verify(found)
    assert max(len(op.reduced) for op in found.ops if isinstance(op, Equation)) == 1
    (product,) = execute(found, arguments)
    np.testing.assert_allclose(product, np.linalg.multi_dot(arguments), rtol=1e-10)


@pytest.mark.parametrize("batch", [1, 32])
def test_tensor_trains_are_applied_core_by_core(batch: int) -> None:
    """Of five indices that are summed over, and the weights, which are larger than anything else, are never formed."""
    shapes = ((batch, 4, 5, 4), (4, 3, 5), (3, 5, 3, 4), (3, 4, 5))
    arguments = [values(*shape, dtype="f8") for shape in shapes]
    found = rewrite(graph(TRAIN, *arguments), RewriteOptions(l2_bytes=1 << 16))
    verify(found)
    assert len(found.ops) == 3
    largest = max(estimated_bytes(tensor) for op in found.ops for tensor in results_of(op))
    assert largest < 8 * 80 * 100 or batch > 1
    assert largest <= 8 * batch * 5 * 5 * 5 * 4 * 3
    expected = np.einsum("nabc,ard,rbse,scf->ndef", *arguments, optimize=True)
    np.testing.assert_allclose(execute(found, arguments)[0], expected, rtol=1e-10, atol=1e-12)
    assert len(rewrite(graph(TRAIN, *arguments), RewriteOptions(l2_bytes=1 << 16, precise=True)).ops) == 1
