"""Long sums in parts: exact around the lengths of parts (small integers), accurate where all terms have one sign, in order where that is asked for."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.target import Target
from tests.pairs import pairwise

SMALL = Target("host", l1_bytes=8 * 1024, l2_bytes=64 * 1024, cores=2)
WIDE = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=1 << 20)
"""A machine of full vectors, for what is said of its loops."""
PRODUCT = 'def f(a: f32["K N"], b: f32["K M"]):\n    y[n, m] = a[k, n] * b[k, m]\n    return y\n'
NESTED = 'def f(a: f32["N J K"], b: f32["J K M"]):\n    y[n, m] = a[n, j, k] * b[j, k, m]\n    return y\n'
COLUMNS = 'def f(a: f32["K N"], b: f32["K M"]):\n    y[n] = sum[k](a[k, n])\n    return y\n'


def operands(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


@pairwise(
    ("depth", [63, 64, 513, 2047, 2048, 2049, 5003]), ("n, m", [(8, 8), (13, 48), (40, 64)]), ("target", [None, SMALL])
)
@pytest.mark.few(4)
def test_products(depth: int, n: int, m: int, target: Target | None) -> None:
    a, b = operands((depth, n), (depth, m))
    function = polyml.einsum(PRODUCT, threads=1) if target is None else polyml.einsum(PRODUCT, threads=1, target=target)
    np.testing.assert_array_equal(function(a, b), a.T @ b)


@pytest.mark.parametrize(("j", "k"), [(5, 700), (700, 5), (41, 97), (3, 3001)])
def test_nests(j: int, k: int) -> None:
    a, b = operands((8, j, k), (j, k, 32))
    np.testing.assert_array_equal(polyml.einsum(NESTED, threads=1)(a, b), np.einsum("njk,jkm->nm", a, b))


@pytest.mark.parametrize("text", [PRODUCT, NESTED, COLUMNS])
def test_terms_of_one_sign(text: str) -> None:
    """One chain of 60,000 additions loses some 200 units of the sum: where a long result waits in L1 for a few terms at a time, it is one."""
    rng = np.random.default_rng(0)
    shapes = ((8, 300, 200), (300, 200, 32)) if text is NESTED else ((60_000, 16), (60_000, 32))
    a, b = (rng.random(shape, np.float32) for shape in shapes)
    exact = {PRODUCT: "kn,km->nm", NESTED: "njk,jkm->nm", COLUMNS: "kn,km->n"}[text]
    true = (
        a.sum(axis=0, dtype="f8")
        if text is COLUMNS
        else np.einsum(exact, a.astype("f8"), b.astype("f8"), optimize=True)
    )
    function = polyml.einsum(text, threads=1)
    chain = "read once, in order" in function.explain(a, b)
    assert np.abs(function(a, b) / true - 1).max() < (400 if chain else 40) * 2**-24
    assert "_part" in polyml.einsum(text, threads=1, target=WIDE).lower(a, b).text("loops")


def test_the_written_order() -> None:
    a, b = operands((5000, 13), (5000, 48))
    assert "_part" in polyml.einsum(PRODUCT, threads=1, target=WIDE).lower(a, b).text("loops")
    assert "_part" not in polyml.einsum(PRODUCT, threads=1, target=WIDE, precise=True).lower(a, b).text("loops")


def test_a_block_is_added_to_the_result_when_it_is_done() -> None:
    """Sums of a block start from zero, in registers; the result is loaded behind them."""
    a, b = operands((5000, 40), (5000, 64))
    text = polyml.einsum(PRODUCT, threads=1, target=SMALL).lower(a, b).text("loops")
    assert "blocks of k" in str(polyml.einsum(PRODUCT, threads=1, target=SMALL).explain(a, b))
    lines = [line.strip() for line in text.splitlines()]
    start = next(n for n, line in enumerate(lines) if line.startswith("y_value_part = 0"))
    loaded = next(n for n, line in enumerate(lines) if line.startswith("y_value = y["))
    assert start < loaded < next(n for n, line in enumerate(lines) if line == "y_value += y_value_part;")


@pytest.mark.parametrize(("dynamic", "part"), [(False, 170), (True, 128)])
def test_parts_of_a_nest_are_several_iterations_of_its_outer_loop(dynamic: bool, part: int) -> None:
    """A part for each few terms would cost a tenth of the time. An inner loop of unknown length is taken for a short one."""
    a, b = operands((8, 900, 9), (9, 900, 32))
    # In another order than in `a`, so that they are not one index.
    text = NESTED.replace("J K M", "K J M").replace("b[j, k, m]", "b[k, j, m]")
    function = polyml.einsum(text, threads=1, dynamic=dynamic)
    np.testing.assert_array_equal(function(a, b), np.einsum("njk,kjm->nm", a, b))
    wide = polyml.einsum(text, threads=1, dynamic=dynamic, target=WIDE)
    assert f"j_part += {part}" in wide.lower(a, b).text("loops")


def test_the_first_block_reads_no_result() -> None:
    """And the others add to what they read element by element: all of them in registers at once would be twice as many as there are."""
    a, b = operands((600, 4000), (4000, 480))
    text = 'def f(a: f32["N K"], b: f32["K M"]):\n    y[n, m] = a[n, k] * b[k, m]\n    return y\n'
    target = Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2 << 20)
    function = polyml.einsum(text, threads=1, target=target)
    loops = [line.strip() for line in function.lower(a, b).text("loops").splitlines()]
    first = next(n for n, line in enumerate(loops) if re.fullmatch(r"if \(\w+_tile == 0\) {", line))
    assert loops[first + 1] == "y_value = y_value_part;"
    other = loops.index("} else {", first)
    assert [line.partition(" ")[2] for line in loops[other + 1 : other + 3]] == ["= y[n, m];", "+= y_value_part;"]
    if target.runs_here:
        np.testing.assert_array_equal(function(a, b), a @ b)
