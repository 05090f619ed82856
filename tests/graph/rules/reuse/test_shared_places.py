"""Places that several equations compute, in tensors of their own."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from tests.graph.built import graph, program

OPTIONS = RewriteOptions(vector_bytes=32)
PLACE = "min(i64(sqrt(x[n]) * B), B - 1)"


def text_of(*lines: str, head: str = 'x: f64["N"], v: f64["N"], B: int') -> list[str]:
    x = np.random.default_rng(0).random(40)
    made = rewrite(graph(program(head, *lines), x, x, 7), OPTIONS)
    verify(made)
    return [line.strip() for line in graph_text(made).splitlines()]


def test_a_place_is_computed_for_its_check_and_all_scatters_once() -> None:
    lines = text_of('s: f64["B"] = 0', 'c: f64["B"] = 0', f"s[{PLACE}] += v[n]", f"c[{PLACE}] += 1", "return s, c")
    assert sum("sqrt" in line for line in lines) == 1
    assert any(line.startswith("x_place[i0] = min(i64(sqrt(x[i0])") for line in lines)
    assert any(line.startswith("out_of_range = any_n (x_place[n] < 0) ") for line in lines)


def test_cheap_places_and_those_of_one_equation_stay() -> None:
    assert not any(
        "place" in line for line in text_of('s: f64["B"] = 0', "s[min(i64(x[n] * B), B - 1)] += v[n]", "return s")
    )
    once = text_of('s: f64["4"] = 0', "s[i64(sqrt(x[n]) * 3) & 3] += v[n]", "return s")
    assert sum("sqrt" in line for line in once) == 1
    assert not any("place" in line for line in once)


def test_places_of_pairs_are_not_kept() -> None:
    place = "min(i64(sqrt((x[n] - v[m]) * (x[n] - v[m])) * 3), B - 1)"
    assert not any("place" in line for line in text_of('s: f64["B"] = 0', f"s[{place}] += 1", "return s"))


def test_places_of_gathers_are_shared_across_names_of_indices() -> None:
    lines = text_of(
        "a[n] = v[min(i64(sqrt(x[n]) * 3), 2)]", "b[m] = v[min(i64(sqrt(x[m]) * 3), 2)] * 2", "return a, b",
        head='x: f64["N"], v: f64["N"], B: int',
    )  # fmt: skip
    assert sum("sqrt" in line for line in lines) == 1


@pytest.mark.parametrize(("size", "precise"), [(1, True), (1001, False)])
def test_kernels_add_as_numpy_does(size: int, precise: bool) -> None:
    f = polyml.einsum(
        f"""
def f(x: f64["N"], v: f64["N"], B: int):
    s: f64["B"] = 0
    c: i64["B"] = 0
    s[{PLACE}] += v[n]
    c[{PLACE}] += 1
    return s, c
""",
        precise=precise,
    )
    rng = np.random.default_rng(size)
    x, v = rng.random(2 * size)[::2], rng.random(size)
    place = np.minimum((np.sqrt(x) * 9).astype(np.int64), 8)
    s, c = f(x, v, 9)
    np.testing.assert_allclose(s, np.bincount(place, v, 9), rtol=1e-12)
    np.testing.assert_array_equal(c, np.bincount(place, minlength=9))
    for wrong in (np.nan, -1.0, -np.inf):
        x = x.copy()
        x[size // 2] = wrong
        with pytest.raises(IndexError, match="an index into dimension 0 of s"):
            f(x, v, 9)


def test_a_loop_shares_its_own_places() -> None:
    head = 'x: f64["T N"], v: f64["N"]'
    lines = (
        'h: f64["4"] = 0',
        "for t in range(T):",
        "    h[min(i64(sqrt(x[t, n]) * 4), 3)] += v[n]",
        "    h[min(i64(sqrt(x[t, n]) * 4), 3)] *= 0.5",
        "return h",
    )
    rng = np.random.default_rng(0)
    x, v = rng.random((3, 5)), rng.random(5)
    plain = graph(program(head, *lines), x, v)
    made = rewrite(plain, OPTIONS)
    verify(made)
    np.testing.assert_allclose(execute(made, [x, v])[0], execute(plain, [x, v])[0], rtol=1e-12)
