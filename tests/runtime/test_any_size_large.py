"""Kernels for any sizes have a version for large results: chosen where that holds, right at every size and alignment around its conditions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Assign, Function, If, Prefetch
from polyml.codegen.rewrite import walk_nodes
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=2 << 10, l2_bytes=8 << 10)
"""This machine, with caches that small tests outgrow."""

PROGRAMS: dict[str, tuple[str, int, Any]] = {
    "vector": ('def f(x: f32["N"]):\n    y[i] = 2 * x[i]\n    return y\n', 1, lambda x: 2 * x),
    "matrix": ('def f(x: f32["N M"]):\n    y[i, j] = 2 * x[i, j]\n    return y\n', 2, lambda x: 2 * x),
    "doubles": ('def f(x: f64["N M"]):\n    y[i, j] = x[i, j] - 1\n    return y\n', 2, lambda x: x - 1),
    "sizes of three": ('def f(x: f32["B N M"]):\n    y[b, i, j] = x[b, i, j] + 1\n    return y\n', 3, lambda x: x + 1),
    "fixed rows": ('def f(x: f32["N 24"]):\n    y[i, j] = 2 * x[i, j]\n    return y\n', 2, lambda x: 2 * x),
    "mirrored": (
        'def f(x: f32["N M"]):\n    y[i, j] = x[i, j] + x[i, M - 1 - j]\n    return y\n', 2, lambda x: x + x[:, ::-1],
    ),
    "softmax": (
        'def f(x: f32["N M"]):\n    e[n, m] = exp(x[n, m] - max[k](x[n, k]))\n    y[n, m] = e[n, m] / sum[k](e[n, k])\n    return y\n', 2,
        lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True),
    ),
}  # fmt: skip


def shapes(name: str, rank: int) -> Iterator[tuple[int, ...]]:
    if name == "fixed rows":
        yield from ((n, 24) for n in (1, 90, 300))
    elif rank == 1:
        yield from ((n,) for n in (1, 15, 255, 256, 2048, 2049, 2063, 3001))
    else:
        for m in (1, 128, 255, 256, 257, 271, 272, 512, 1000):
            for n in (1, 3, 33):
                yield (n, m) if rank == 2 else (2, n, m)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_and_alignments_around_the_conditions(name: str) -> None:
    text, rank, meaning = PROGRAMS[name]
    f = polyml.einsum(text, dynamic=True, target=SMALL_CACHES)
    rng = np.random.default_rng(0)
    for shape in shapes(name, rank):
        for offset in (0, 1, 7, 15):
            dtype = np.dtype("f8" if "f64" in text else "f4")
            x = rng.standard_normal(shape).astype(dtype)
            size = int(np.prod(shape))
            room = np.full(size + 64, 77, dtype)
            out = room[offset : offset + size].reshape(shape)
            assert f(x, out=out) is out
            assert np.allclose(out, meaning(x), atol=1e-6), (shape, offset)
            assert (room[:offset] == 77).all(), (shape, offset)
            assert (room[offset + size :] == 77).all(), (shape, offset)
    assert len(f.kernels) == 1


def lowered(name: str, *shape: int, target: Target = SMALL_CACHES) -> Function:
    program = polyml.einsum(PROGRAMS[name][0], dynamic=True, target=target)
    (function,) = program.lower(np.ones(shape, "f8" if name == "doubles" else "f4")).stages.functions
    return function


@pytest.mark.parametrize("name", ["vector", "matrix", "doubles", "sizes of three", "softmax"])
def test_large_results_go_past_the_caches_in_a_version_of_their_own(name: str) -> None:
    function = lowered(name, *(4, 5, 6)[: PROGRAMS[name][1]])
    (choice,) = function.body
    assert isinstance(choice, If)
    large, plain = (
        [node for node in walk_nodes(body) if isinstance(node, Assign) and node.streaming]
        for body in (choice.then, choice.otherwise)
    )
    assert large
    assert all(node.aligned for node in large)
    assert not plain


def test_there_is_one_version_where_nothing_is_gained() -> None:
    total = polyml.einsum('def f(x: f32["N M"]):\n    s[i] = sum[j](x[i, j])\n    return s\n', dynamic=True)
    (function,) = total.lower(np.ones((3, 4), "f4")).stages.functions
    assert not any(isinstance(node, If) for node in function.body)


def test_rows_of_any_length_are_fetched_ahead_and_locals_are_as_long_as_a_row() -> None:
    function = lowered("softmax", 4, 5, target=Target("x86-64-v4"))
    assert any(isinstance(node, Prefetch) for node in walk_nodes(function.body))
    found = [node.variable.shape for node in walk_nodes(function.body) if isinstance(node, Allocate)]
    assert {str(shape[1]) for shape in found if len(shape) == 2} == {"M"}
    assert {str(shape[0]) for shape in found if len(shape) == 2} == {"1"}


def test_the_storage_is_proved() -> None:
    x = np.random.default_rng(1).standard_normal((7, 300)).astype("f4")
    f = polyml.einsum(PROGRAMS["softmax"][0], dynamic=True, verify=True, threads=2)
    assert np.allclose(f(x), PROGRAMS["softmax"][2](x), atol=1e-6)


def test_operands_are_packed_where_they_are_large_and_read_often() -> None:
    text = 'def f(x: f32["N K"], w: f32["K M"], b: f32["M"]):\n    y[n, m] = relu(x[n, k] * w[k, m] + b[m])\n    return y\n'
    f = polyml.einsum(text, dynamic=True, target=SMALL_CACHES, verify=True)
    rng = np.random.default_rng(0)
    for n, k, m in (
        (16, 600, 1),
        (1, 1, 1),
        (15, 40, 70),
        (16, 40, 70),
        (17, 9, 48),
        (33, 64, 33),
        (64, 65, 66),
        (40, 100, 131),
    ):
        x, w, b = (rng.standard_normal(shape, np.float32) for shape in ((n, k), (k, m), (m,)))
        if k == 600:
            (function,) = f.lower(x, w, b).stages.functions  # which the first call compiles
        assert np.allclose(f(x, w, b), np.maximum(x @ w + b, 0), atol=1e-4), (n, k, m)
    assert len(f.kernels) == 1
    choices = [node for node in function.body if isinstance(node, If)]
    packed = [
        n for n in walk_nodes(choices[0].then) if isinstance(n, Assign) and n.target.variable.startswith("w_panels")
    ]
    bare = [
        n
        for n in walk_nodes(choices[0].otherwise)
        if isinstance(n, Assign) and n.target.variable.startswith("w_panels")
    ]
    assert (len(choices), bool(packed), bool(bare)) == (1, True, False)
    text = str(choices[0].condition)
    assert "N" in text
    assert "K" in text


@pytest.mark.parametrize(("left", "right"), [("n, k", "m, k"), pytest.param("k, n", "k, m", marks=pytest.mark.slow)])
def test_contractions_go_in_blocks(left: str, right: str) -> None:
    shapes = {index: index.upper() for index in "nkm"}
    declared = [" ".join(shapes[i] for i in part.split(", ")) for part in (left, right)]
    text = f'def f(x: f32["{declared[0]}"], w: f32["{declared[1]}"]):\n    y[n, m] = x[{left}] * w[{right}]\n    return y\n'
    f = polyml.einsum(text, dynamic=True, target=SMALL_CACHES, verify=True)
    rng = np.random.default_rng(0)
    for n, k, m in ((16, 600, 1), (1, 1, 1), (17, 9, 48), (64, 65, 66), (40, 130, 131)):
        sizes = {"n": n, "k": k, "m": m}
        x, w = (rng.standard_normal([sizes[i] for i in part.split(", ")], np.float32) for part in (left, right))
        if n == 16:
            (function,) = f.lower(x, w).stages.functions  # which the first call compiles
        expected = np.einsum(f"{left.replace(', ', '')},{right.replace(', ', '')}->nm", x, w)
        assert np.allclose(f(x, w), expected, atol=1e-4), (n, k, m)
    assert len(f.kernels) == 1
    local = [node.variable for node in walk_nodes(function.body) if isinstance(node, Allocate)]
    panels = [v for v in local if v.name.startswith("w_panels")]
    assert panels
    assert all(extent.is_constant for v in panels for extent in v.shape)


def test_operands_that_lanes_would_read_with_a_stride_are_copied() -> None:
    text = 'def f(q: f32["N 8"], k: f32["M 8"]):\n    s[n, m] = q[n, d] * k[m, d]\n    y[n] = max[j](s[n, j])\n    return y\n'
    f = polyml.einsum(text, dynamic=True, verify=True)
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (16, 5), (40, 33), (17, 100)):
        q, k = (rng.standard_normal((size, 8), np.float32) for size in (n, m))
        assert np.allclose(f(q, k), (q @ k.T).max(axis=1), atol=1e-4), (n, m)
    assert len(f.kernels) == 1
    (function,) = f.lower(q, k).stages.functions
    assert any(n.variable.name.startswith("k_by_0") for n in walk_nodes(function.body) if isinstance(n, Allocate))


def test_an_operand_that_lanes_sweep_whole_rows_of_is_copied_however_small_it_is() -> None:
    text = 'def f(u: f32["A B C D"], v: f32["D C"]):\n    y[a, b] = u[a, b, c, d] * v[d, c]\n    return y\n'
    f = polyml.einsum(text, dynamic=True, verify=True)
    rng = np.random.default_rng(0)
    for a, b, c, d in ((1, 1, 1, 1), (3, 5, 2, 17), (4, 4, 3, 70), (5, 7, 6, 16)):
        u, v = rng.standard_normal((a, b, c, d), np.float32), rng.standard_normal((d, c), np.float32)
        assert np.allclose(f(u, v), np.einsum("abcd,dc->ab", u, v), atol=1e-4), (a, b, c, d)
    assert len(f.kernels) == 1
    (function,) = f.lower(u, v).stages.functions
    (choice,) = (node for node in function.body if isinstance(node, If))
    copies = [
        n.variable for n in walk_nodes(choice.then) if isinstance(n, Allocate) and n.variable.name.startswith("v_by_0")
    ]
    assert [len(copy.shape) for copy in copies] == [2]
    assert not {"C", "D"} & set(str(choice.condition).replace("*", " ").replace("(", " ").replace(")", " ").split())


def test_a_mean_over_a_symbolic_extent_is_divided_once() -> None:
    program = polyml.einsum('def f(x: f32["N K"]):\n    y[n] = x[n, k] / K\n    return y\n', dynamic=True)
    (function,) = program.lower(np.ones((3, 40), "f4")).stages.functions
    sums = [n for n in walk_nodes(function.body) if isinstance(n, Assign) and n.reduction == "sum"]
    assert sums
    assert not any("/" in str(node.value) for node in sums)


def test_a_result_without_elements() -> None:
    f = polyml.einsum('def f(x: f32["N 0"]):\n    y[n, m] = x[n, m]\n    return y\n', dynamic=True)
    assert f(np.zeros((3, 0), "f4")).shape == (3, 0)


def test_versions_have_local_arrays_of_their_own() -> None:
    text = 'def f(x: f32["3"], M: int):\n    old[i] = x[i]\n    x[i] = x[2 - i]\n    y: f32["M"]\n    y[i] = old[0]\n    return y\n'
    x = np.array([1, 2, 3], "f4")
    f = polyml.einsum(text)
    for m in (1, 3, 40):
        given = x.copy()
        assert (f(given, m) == 1).all()
        assert (given == x[::-1]).all()


def test_storage_that_no_size_fills_is_proved_like_any_other() -> None:
    """With one row no statement under the condition runs."""
    text = """
def f(x: f64["N M"], z: f64["3"]):
    o: f64["N M"] = 0
    if i >= 1:
        o[i, j] += max[k, 0 <= k < N, j <= 2*k + 1, k <= j](x[i, j] * z[0])
    return o
"""
    f = polyml.einsum(text, dynamic=("N",), verify=True)
    assert not f(np.ones((1, 6)), np.ones(3)).any()
