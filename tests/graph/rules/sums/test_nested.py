"""Sums of products over several indices as sums within sums: which become so, with what shapes, and that the values are the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import polyml
from polyml.graph.printer import graph_text
from polyml.graph.reference import execute
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.verify import verify
from polyml.sets.affine import affine
from polyml.sets.weighed import Weighed, term
from polyml.target import Target
from tests.graph.built import graph, program, values

MTTKRP = program(
    'x: f64["I J K"], b: f64["J R"], c: f64["K R"]', "y[i, r] = x[i, j, k] * b[j, r] * c[k, r]", "return y"
)
CHAIN = program(
    'a: f64["I J"], b: f64["J K"], c: f64["K L"], d: f64["L M"]', "y[i, m] = a[i, j] * b[j, k] * c[k, l] * d[l, m]", "return y"
)  # fmt: skip
MANY = program(
    'x: f64["C A"], y: f64["E D A F"], z: f64["B E F D"]', "r[c] = x[c, a] * y[e, d, a, f] * z[b, e, f, d]", "return r"
)  # fmt: skip
TWICE = program(
    'x: f64["A F"], y: f64["E C"], z: f64["B E"], w: f64["D C A"]', "r[f, d, c, b] = x[a, f] * y[e, c] * z[b, e] * w[d, c, a]", "return r"
)  # fmt: skip
PAIR = program('x: f64["C A B D E F"], y: f64["A B D G"]', "r[c, g] = x[c, a, b, d, e, f] * y[a, b, d, g]", "return r")
FORM = program('a: i64["J"], b: i64["J K"], c: i64["K"]', "y = sum[j, k](a[j] * b[j, k] * c[k])", "return y")


@pytest.mark.parametrize(
    ("source", "shapes", "einsum", "inner"),
    [
        (MTTKRP, ((9, 40, 60), (40, 7), (60, 7)), "ijk,jr,kr->ir", 1),
        (CHAIN, ((9, 11), (11, 13), (13, 8), (8, 17)), "ij,jk,kl,lm->im", 2),
        (FORM, ((31,), (31, 37), (37,)), "j,jk,k->", 1),
        (MANY, ((7, 13), (5, 6, 13, 3), (17, 5, 3, 6)), "ca,edaf,befd->c", 2),
        (PAIR, ((3, 4, 5, 2, 6, 7), (4, 5, 2, 19)), "cabdef,abdg->cg", 1),
    ],
)
def test_factors_that_an_index_does_not_reach_wait_for_its_sum(source, shapes, einsum, inner) -> None:  # type: ignore[no-untyped-def]
    kind = "f8" if source is not FORM else "i8"
    arguments = [values(*shape, dtype=kind) for shape in shapes]
    made = graph(source, *arguments)
    found = rewrite(made, RewriteOptions(l2_bytes=1 << 16))
    verify(found)
    assert graph_text(found).count("_inner") >= 2 * inner
    assert len(found.ops) == 1 + inner
    np.testing.assert_allclose(execute(found, arguments)[0], np.einsum(einsum, *arguments), rtol=1e-12)
    assert len(rewrite(made, RewriteOptions(l2_bytes=1 << 16, precise=True)).ops) == 1
    assert len(rewrite(made).ops) == 1


def test_what_is_left_of_a_product_waits_for_its_sum_too() -> None:
    """Of three factors of the outer sum, one is the inner one, and knows nothing of its index."""
    arguments = [values(*shape, dtype="f8") for shape in ((8, 15), (37, 13), (5, 37), (3, 13, 8))]
    found = rewrite(graph(TWICE, *arguments), RewriteOptions(l2_bytes=1 << 16))
    verify(found)
    assert "r_sum[c, b] = sum_e y[e, c] * z[b, e]" in graph_text(found)
    np.testing.assert_allclose(execute(found, arguments)[0], np.einsum("af,ec,be,dca->fdcb", *arguments), rtol=1e-12)


def test_inner_sums_lie_in_the_order_of_the_results_lanes() -> None:
    arguments = [values(*shape, dtype="f8") for shape in ((9, 40, 60), (40, 7), (60, 7))]
    text = graph_text(rewrite(graph(MTTKRP, *arguments), RewriteOptions(l2_bytes=1 << 16)))
    assert "y_inner[i, j, r]" in text


@pytest.mark.parametrize(
    ("line", "factors", "inner", "uneven"),
    [
        # Summed over along the largest factor's rows, but for where half of the registers' lanes would be idle; where those are not summed over, lanes run along them.
        ("y[i, r] = x[i, j, k] * b[j, r] * c[k, r]", ("J", "K"), "[i, j, r] = sum_k", "[r, i, k] = sum_j"),
        ("y[j, r] = x[i, j, k] * b[i, r] * c[k, r]", ("I", "K"), "[i, j, r] = sum_k", "[r, j, k] = sum_i"),
        ("y[j, r] = x[i, j, k] * b[i, r] * c[r, k]", ("I", "K"), "[i, j, r] = sum_k", "[r, j, k] = sum_i"),
        ("y[k, r] = x[i, j, k] * b[i, r] * c[j, r]", ("I", "J"), "[r, j, k] = sum_i", "[r, j, k] = sum_i"),
    ],
)
def test_largest_factors_are_read_along_their_rows(
    line: str, factors: tuple[str, str], inner: str, uneven: str
) -> None:
    for ranks, expected in ((32, inner), (17, uneven)):
        sizes = {"I": 70, "J": 60, "K": 64, "R": ranks}
        declared = [f"{n} R" if f"{n.lower()}, r]" in line.split("=")[1] else f"R {n}" for n in factors]
        parameters = f'x: f32["I J K"], b: f32["{declared[0]}"], c: f32["{declared[1]}"]'
        arguments = [values(*(sizes[n] for n in names.split()), dtype="f4") for names in ("I J K", *declared)]
        made = graph(program(parameters, line, "return y"), *arguments)
        assert f"y_inner{expected}" in graph_text(rewrite(made, RewriteOptions(l2_bytes=1 << 20, vector_bytes=64)))


@pytest.mark.parametrize(
    ("parameters", "line", "shapes"),
    [
        # Two factors that all indices reach; few terms, for which an array of inner sums costs more; half of the points.
        ('x: f64["N J K"], w: f64["J K"]', "y[n] = x[n, j, k] * w[j, k]", ((9, 40, 60), (40, 60))),
        ('x: f64["I J K"], b: f64["J R"], c: f64["K R"]', "y[i, r] = x[i, j, k] * b[j, r] * c[k, r]", ((9, 4, 3), (4, 7), (3, 7))),
        ('x: f64["N J K"], b: f64["J"], c: f64["K"]', "y[n] = sum[j, k, k <= j](x[n, j, k] * b[j] * c[k])", ((9, 40, 40), (40,), (40,))),
    ],
)  # fmt: skip
def test_other_sums_stay(parameters: str, line: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    arguments = [values(*shape, dtype="f8") for shape in shapes]
    made = graph(program(parameters, line, "return y"), *arguments)
    assert len(rewrite(made, RewriteOptions(l2_bytes=1 << 10)).ops) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_compiled(threads: int) -> None:
    rng = np.random.default_rng(0)
    x, b, c = (rng.standard_normal(shape, np.float32) for shape in ((33, 47, 130), (47, 19), (130, 19)))
    mttkrp = polyml.einsum(
        'def f(x: f32["I J K"], b: f32["J R"], c: f32["K R"]):\n    y[i, r] = x[i, j, k] * b[j, r] * c[k, r]\n    return y\n',
        threads=threads,
    )
    exact = np.einsum("ijk,jr,kr->ir", *(v.astype(np.float64) for v in (x, b, c)), optimize=True)
    assert np.abs(mttkrp(x, b, c) - exact).max() < 1e-5 * np.abs(exact).max()


def text_of(source: str, *shapes: tuple[int, ...]) -> str:
    """The graph of a kernel for any sizes, asked for by a call with these shapes."""
    arguments = [values(*shape, dtype="f8") for shape in shapes]
    return graph_text(polyml.einsum(source, dynamic=True).trace(*arguments))


THREE = 'def f(a: f64["I J"], b: f64["J K"], c: f64["K L"]):\n    y[i, l] = a[i, j] * b[j, k] * c[k, l]\n    return y\n'


def test_symbolic_extents_count_as_in_the_call_that_asks() -> None:
    assert "y_inner[i, k] = sum_j a[i, j] * b[j, k]" in text_of(THREE, (5, 300), (300, 200), (200, 400))
    assert "y_inner[j, l] = sum_k b[j, k] * c[k, l]" in text_of(THREE, (400, 300), (300, 200), (200, 5))
    assert "y_inner" in text_of(THREE, (2, 2), (2, 2), (2, 2)), "they are to be good at large sizes"


def test_what_may_be_empty_or_is_no_box_stays() -> None:
    source = (
        'def f(n: int, a: f64["I J"], b: f64["J K"]):\n    y[i] = sum[j, k, k < n](a[i, j] * b[j, k])\n    return y\n'
    )
    program = polyml.einsum(source, dynamic=True)
    assert "y_inner" not in graph_text(
        program.lower(30, values(40, 50, dtype="f8"), values(50, 60, dtype="f8")).stages.graph
    )


@pytest.mark.parametrize(
    ("einsum", "parameters", "line"),
    [
        pytest.param("ij,jk,kl->il", 'a: f32["I J"], b: f32["J K"], c: f32["K L"]', "y[i, l] = a[i, j] * b[j, k] * c[k, l]", marks=pytest.mark.slow),
        pytest.param("ijk,jr,kr->ir", 'a: f32["I J K"], b: f32["J R"], c: f32["K R"]', "y[i, r] = a[i, j, k] * b[j, r] * c[k, r]", marks=pytest.mark.slow),
        ("abc,ad,be->dec", 'a: f32["A B C"], b: f32["A D"], c: f32["B E"]', "y[d, e, r] = a[p, q, r] * b[p, d] * c[q, e]"),
    ],
)  # fmt: skip
def test_one_kernel_for_all_sizes(einsum: str, parameters: str, line: str) -> None:
    chain = polyml.einsum(f"def f({parameters}):\n    {line}\n    return y\n", dynamic=True)
    names = sorted(set(einsum) - set(",->"))
    rng = np.random.default_rng(0)
    first = dict(zip(names, (20, 30, 40, 25, 35), strict=False))
    rounds = [
        first,
        *(
            {name: int(n) for name, n in zip(names, rng.choice([1, 2, 15, 16, 17, 33, 49], len(names)), strict=True)}
            for _ in range(12)
        ),
    ]
    for sizes in rounds:
        operands = [
            rng.standard_normal([sizes[i] for i in part]).astype("f4") for part in einsum.split("->")[0].split(",")
        ]
        exact = np.einsum(einsum, *(v.astype("f8") for v in operands), optimize=True)
        assert np.allclose(chain(*operands), exact, rtol=1e-4, atol=1e-3), sizes
    assert len(chain.kernels) == 1
    empty = [np.ones([0 if i == names[1] else 3 for i in part], "f4") for part in einsum.split("->")[0].split(",")]
    assert np.array_equal(chain(*empty), np.einsum(einsum, *empty))


def test_where_another_order_is_much_better_a_call_gets_its_own_kernel() -> None:
    chain = polyml.einsum(THREE.replace("f64", "f32"), dynamic=True)
    rng = np.random.default_rng(1)

    def check(*sizes: int) -> int:
        operands = [rng.standard_normal(shape).astype("f4") for shape in pairwise(sizes)]
        exact = np.linalg.multi_dot([v.astype("f8") for v in operands])
        for _ in range(2):  # by the dispatcher, and by the entry point in front
            assert np.allclose(chain(*operands), exact, rtol=1e-4, atol=1e-2)
        return len(chain.kernels)

    assert check(300, 400, 500, 4) == 1
    assert check(900, 800, 300, 2) == 1
    assert check(4, 300, 400, 500) == 2
    assert check(9, 8, 3, 200) == 2, "where there is little to do, any order does"
    assert check(1, 1, 1, 1) == 2


def test_inner_sums_that_take_much_memory_are_left_to_other_kernels() -> None:
    chain = polyml.einsum(THREE.replace("f64", "f32"), dynamic=True, target=Target("host", l2_bytes=1 << 12))
    operands = [np.ones(shape, "f4") for shape in ((40, 50), (50, 60), (60, 5))]
    chain(*operands)
    (kernel,) = chain.kernels
    room, *_ = kernel.signature.suits
    assert room.holds({"I": 100, "J": 200, "K": 300, "L": 50})
    assert not room.holds({"I": 2, "J": 2000, "K": 2, "L": 2000})


def test_comparisons_of_products() -> None:
    n, m = affine("n"), affine("m")
    weighed = Weighed((term(2, (n, affine(3), m)),), (term(5, (n, n)), term(7, ())))
    assert weighed.less == ((6, (n, m)),)
    for values_of in ({"n": a, "m": b} for a in range(5) for b in range(5)):
        assert weighed.holds(values_of) == (6 * values_of["n"] * values_of["m"] <= 5 * values_of["n"] ** 2 + 7)
    assert weighed.holds({"n": 1 << 39, "m": 1})


ATTENTION = 'q: f64["T D"], k: f64["U D"], v: f64["U E"]'


@pytest.mark.parametrize(
    ("line", "inner"),
    [
        ("y[t, e] = sum[u, d, u <= t](q[t, d] * k[u, d] * v[u, e])", 1),  # scores, then their product with v
        ("y[t, e] = sum[u, d, u <= t, d <= t](q[t, d] * k[u, d] * v[u, e])", 0),  # both sums know the row
        ("y[t, e] = sum[u, d, d <= u](q[t, d] * k[u, d] * v[u, e])", 0),
    ],
)
def test_sums_within_sums_are_over_indices_that_no_condition_names(line: str, inner: int) -> None:
    arguments = [values(*shape, dtype="f8") for shape in ((40, 30), (45, 30), (45, 31))]
    made = graph(program(ATTENTION, 'y: f64["T E"]', line, "return y"), *arguments)
    found = rewrite(made, RewriteOptions(l2_bytes=1 << 16))
    verify(found)
    assert graph_text(found).count("_inner[") == 2 * inner
    t, u, d = np.ogrid[:40, :45, :30]
    q, k, v = arguments
    mask = (
        (("u <= t" not in line) | (u <= t)) & (("d <= t" not in line) | (d <= t)) & (("d <= u" not in line) | (d <= u))
    )
    np.testing.assert_allclose(execute(found, arguments)[0], np.einsum("tud,td,ud,ue->te", mask, q, k, v), atol=1e-10)
    compiled = polyml.einsum(f'def f({ATTENTION}):\n    y: f64["T E"]\n    {line}\n    return y\n')
    np.testing.assert_allclose(compiled(*arguments), execute(made, arguments)[0], atol=1e-10)
