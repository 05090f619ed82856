"""Kernels for any sizes: compiled once, right for every size from 0 up, refused with the size that must be a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.errors import ArgumentError, PolymlError, ShapeError, SubscriptError
from polyml.runtime.dispatch import SPECIAL
from polyml.runtime.signature import ArrayParameter, KernelSignature

Arrays = tuple[np.ndarray[Any, Any], ...]
RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def _softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _floyd(p: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    p = p.copy()
    for k in range(len(p)):
        p = np.minimum(p, p[:, k, None] + p[k])
    return p


Case = tuple[str, Callable[[int, int, int], Arrays], Callable[..., Any]]
CASES: dict[str, Case] = {
    "scale": (
        'def scale(x: f32["N K"], b: f32["K"]):\n    y[n, k] = x[n, k] * 2 + b[k]\n    return y\n',
        lambda n, k, m: (normal(n, k), normal(k)),
        lambda x, b: x * 2 + b,
    ),
    "dense": (
        'def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):\n    y[n, m] = relu(x[n, k] * w[k, m] + b[m])\n    return y\n',
        lambda n, k, m: (normal(n, k), normal(k, m), normal(m)),
        lambda x, w, b: np.maximum(x @ w + b, 0),
    ),
    "softmax": (
        'def softmax(x: f32["N K"]):\n    m[n] = max[k](x[n, k])\n    e[n, k] = exp(x[n, k] - m[n])\n    s[n] = e[n, k]\n'
        "    y[n, k] = e[n, k] / s[n]\n    return y\n",
        lambda n, k, m: (normal(n, k + 1),),
        _softmax,
    ),
    "correlate": (
        'def correlate(x: f32["N"], f: f32["R"]):\n    y[h] = x[h + r] * f[r]\n    return y\n',
        lambda n, k, m: (normal(n + m + 1), normal(m + 1)),
        np.correlate,
    ),
    "embed": (
        'def embed(table: f32["V D"], ids: i64["N"]):\n    y[n, d] = table[ids[n], d]\n    return y\n',
        lambda n, k, m: (normal(k + 1, m), RNG.integers(0, k + 1, n)),
        lambda table, ids: table[ids],
    ),
    "shortest": (
        'def shortest(p: f32["N N"]):\n    for k in range(N):\n        p[i, j] = min(p[i, j], p[i, k] + p[k, j])\n    return p\n',
        lambda n, k, m: (np.abs(normal(n, n)),),
        _floyd,
    ),
    "padded": (
        'def padded(x: f32["N"], f: f32["3"]):\n    y: f32["N"]\n    y[h] = sum[r, 0 <= h + r - 1 < N](x[h + r - 1] * f[r])\n    return y\n',
        lambda n, k, m: (normal(n), normal(3)),
        lambda x, f: np.correlate(np.pad(x, 1), f) if len(x) else x,
    ),
    "total": (
        'def total(x: f32["N K"]):\n    s = sum[n, k](f64(x[n, k]))\n    return s\n',
        lambda n, k, m: (normal(n, k),),
        lambda x: x.astype(np.float64).sum(),
    ),
    "running": (
        'def running(x: f32["N"]):\n    y: f32["N"] = 0\n    y[i] = x[i]\n    for t in range(1, N):\n        y[t] += y[t - 1]\n    return y\n',
        lambda n, k, m: (normal(n),),
        np.cumsum,
    ),
    "shifted": (
        'def shifted(x: f32["N+1 K"]):\n    y: f32["N K"]\n    y[n, k] = 2 * x[n + 1, k]\n    return y\n',
        lambda n, k, m: (normal(n + 1, k),),
        lambda x: 2 * x[1:],
    ),
}
BINDS_NOTHING = {"shifted": "N: int, "}


def sizes() -> Sequence[tuple[int, int, int]]:
    every = [(n, 3 * n % 40 + 1, 7 * n % 40 + 1) for n in range(41)]
    odd = [
        (0, 0, 0),
        (0, 5, 3),
        (5, 0, 3),
        (5, 3, 0),
        (1, 1, 1),
        (127, 1, 65),
        (1, 130, 7),
        (67, 129, 33),
        (64, 64, 64),
    ]
    return [*every, *odd]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(2)
def test_right_for_every_size(name: str) -> None:
    text, make, expected = CASES[name]
    extra = BINDS_NOTHING.get(name, "")
    f = polyml.einsum(text.replace("(", f"({extra}", 1), dynamic=True)
    for n, k, m in sizes():
        arguments = make(n, k, m)
        wanted = expected(*arguments)
        got = f(*([n] if extra else []), *arguments)
        assert got.shape == wanted.shape, (n, k, m)
        assert np.allclose(got, wanted, atol=1e-4), (n, k, m)
    empty = [kernel for kernel in f.kernels if 0 in _numbers(kernel.signature)]
    assert len(f.kernels) == len(empty) + 1, "only empty dimensions need kernels of their own"


def _numbers(signature: KernelSignature) -> list[int]:
    arrays = [*(p for p in signature.parameters if isinstance(p, ArrayParameter)), *signature.results]
    return [extent.constant for array in arrays for extent in array.shape if extent.is_constant]


def test_some_sizes() -> None:
    f = polyml.einsum(CASES["dense"][0], dynamic=("N",))
    for n, k in ((3, 4), (9, 4), (1, 4), (3, 5)):
        x, w, b = normal(n, k), normal(k, 6), normal(6)
        assert np.allclose(f(x, w, b), np.maximum(x @ w + b, 0), atol=1e-5)
    assert [str(kernel.signature) for kernel in f.kernels] == [
        "dense(x: f32[N, 4], w: f32[4, 6], b: f32[6]) -> f32[N, 6]",
        "dense(x: f32[N, 5], w: f32[5, 6], b: f32[6]) -> f32[N, 6]",
    ]


def test_other_layouts_are_copied_and_updates_written_back() -> None:
    text = 'def update(p: f32["N K"], g: f32["N K"]):\n    p[n, k] -= 0.5 * g[n, k]\n    return p\n'
    f = polyml.einsum(text, dynamic=True)
    memory, g = normal(12, 10), normal(5, 6)
    view = memory[::2, 1:6].T
    wanted = view - 0.5 * np.asfortranarray(g)[:, :6]
    assert f(view, np.asfortranarray(g)) is view
    assert np.allclose(view, wanted)
    frozen = normal(5, 6)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        f(frozen, g)
    assert len(f.kernels) == 1


def test_out_and_calls_without_python() -> None:
    f = polyml.einsum(CASES["scale"][0], dynamic=True)
    for n in (3, 4, 50):
        x, b = normal(n, 2 * n), normal(2 * n)
        out = np.empty((n, 2 * n), np.float32)
        assert f(x, b, out=out) is out
        assert np.allclose(out, 2 * x + b)
    with pytest.raises(ArgumentError, match="must be an array of f32"):
        f(x, b, out=np.empty((3, 3), np.float32))
    assert len(f.kernels) == 1


def test_what_does_not_fit_together_is_refused_as_ever() -> None:
    f = polyml.einsum(CASES["dense"][0], dynamic=True)
    f(normal(2, 3), normal(3, 4), normal(4))
    with pytest.raises(ShapeError, match="dimension 0 of argument w is 5, and its entry says 3"):
        f(normal(2, 3), normal(5, 4), normal(4))
    g = polyml.einsum(CASES["correlate"][0], dynamic=True)
    g(normal(5), normal(3))
    with pytest.raises(ShapeError, match="no value of h keeps every subscript in bounds"):
        g(normal(2), normal(3))
    h = polyml.einsum(CASES["embed"][0], dynamic=True)
    for n in (3, 9):
        with pytest.raises(SubscriptError, match="out of range"):
            h(normal(n, 2), np.array([0, n]))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
@pytest.mark.few(1)
def test_an_empty_dimension_comes_first(shape: tuple[int, int]) -> None:
    """It is an example of nothing, and gets a kernel of its own; others share the one for any sizes."""
    for line in ("y[n, k] = x[N - 1 - n, K - 1 - k]", "y[n, k] = x[n, 2*k] + x[n, 2*k + 1]", "y[n] = x[n, k]"):
        f = polyml.einsum(f'def f(x: f32["N K"]):\n    {line}\n    return y\n', dynamic=True)
        assert (
            f(normal(*shape)).shape
            == ((shape[0], shape[1] // 2) if "2*k" in line else shape)[: 1 if "y[n]" in line else 2]
        )
        for n in (3, 5, 7):
            x = normal(n, 2 * n)
            f(x)
        assert len(f.kernels) <= 2


def test_symbols_that_must_be_numbers() -> None:
    strided = 'def strided(x: f32["N M"], K: int):\n    y: f32["3 M"]\n    y[i, m] = x[K * i, m]\n    return y\n'
    given = polyml.einsum(strided, dynamic=("M",))(normal(9, 2), 2)
    assert given.shape == (3, 2), "K is no size of a shape, and stays a number"
    shifted = 'def shifted(x: f32["N"]):\n    y[i] = x[i + 1] - x[i]\n    return y\n'
    with pytest.raises(PolymlError, match=r"^subscript 0 of x leaves its dimension of 9: it is 9 for i = 8"):
        polyml.einsum(shifted, dynamic=True)(normal(9))  # as for numbers: no size that is left out mends it
    divided = 'def divided(x: f32["N K"]):\n    y: f32["N"] = 0\n    y[i // K] += x[i // K, i % K]\n    return y\n'
    with pytest.raises(PolymlError, match=r"divided cannot be compiled for any K\b"):
        polyml.einsum(divided, dynamic=True)(normal(3, 4))
    with pytest.raises(PolymlError, match="has no size Q"):
        polyml.einsum(divided, dynamic=("Q",))
    mixed = 'def mixed(x: f32["N+K"], N: int, K: int):\n    y[i] = x[i]\n    return y\n'
    with pytest.raises(ShapeError, match="K, which is fixed, and one that is dynamic"):
        polyml.einsum(mixed, dynamic=("N",))


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ('def f(x: f32["N"]):\n    y: f32["3"]\n    y[i] = x[2 * i]\n    return y\n', 5),
        ('def f(x: f32["N"]):\n    y[i] = x[2 * i + 1]\n    return y\n', 2),
        ('def f(x: f32["N"]):\n    y[i] = sum[s < 3](x[2 * i + 2 - s])\n    return y\n', 3),
        ('def f(x: f32["N"]):\n    y[i] = x[7 - i]\n    return y\n', 8),
    ],
)
def test_sizes_from_a_least_one_on(text: str, least: int) -> None:
    """One kernel for all sizes at which the program means something; the others are refused as ever."""
    f, special = polyml.einsum(text, dynamic=True, verify=True), polyml.einsum(text)
    for n in (least + 3, least, least + 8, least + 1):
        assert np.allclose(f(x := normal(n)), special(x), atol=1e-5)
    assert len(f.kernels) == 1
    for n in range(1, least):
        with pytest.raises(PolymlError) as expected:
            special(normal(n))
        with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
            f(normal(n))


def test_many_shapes_of_one_program_end_in_one_kernel() -> None:
    f = polyml.einsum(CASES["scale"][0])
    never = polyml.einsum(CASES["scale"][0], dynamic=False)
    for n in range(1, 2 * SPECIAL + 1):
        x, b = normal(n, 3), normal(3)
        for g in (f, never):
            assert np.allclose(g(x, b), 2 * x + b)
    assert len(f.kernels) == SPECIAL + 1
    assert [bool(kernel.signature.sizes) for kernel in f.kernels] == [False] * SPECIAL + [True]
    assert len(never.kernels) == 2 * SPECIAL
    x, b = normal(40, 3)[::2], normal(3)
    assert np.allclose(f(x, b), 2 * x + b)
    assert len(f.kernels) == SPECIAL + 2, "nothing is copied for a kernel that nobody has asked for"


def test_sizes_that_have_few_values_stay_numbers() -> None:
    """A kernel for each of three numbers of channels, for images of any size; with the fourth one kernel for all."""
    f = polyml.einsum('def planes(x: f32["H W C"]):\n    y[c, h, w] = x[h, w, c]\n    return y\n')

    def free(n: int, channels: int) -> list[str]:
        x = normal(n, n + 3, channels)
        assert np.array_equal(f(x), x.transpose(2, 0, 1))
        return sorted(f.kernel_for(x).signature.sizes)

    for n in range(2, 2 + SPECIAL):
        assert free(n, 3) == []
    assert [free(30, 3), free(31, 3)] == [["H", "W"]] * 2
    assert [free(30, 4), free(31, 1), free(40, 4), free(9, 1)] == [["H", "W"]] * 4
    assert len(f.kernels) == SPECIAL + 3
    assert [free(30, 2), free(31, 7), free(30, 3)] == [["C", "H", "W"], ["C", "H", "W"], ["H", "W"]]
    assert len(f.kernels) == SPECIAL + 4


def test_where_all_sizes_have_few_values_those_with_most_are_free() -> None:
    f = polyml.einsum('def total(x: f32["A B C"], w: f32["C"]):\n    y[a, b] = x[a, b, c] * w[c]\n    return y\n')
    for a in (1, 2, 3):
        for b in (4, 5, 6):
            for c in (2, 3):
                x, w = normal(a, b, c), normal(c)
                assert np.allclose(f(x, w), x @ w, atol=1e-5)
    sizes = [tuple(kernel.signature.sizes) for kernel in f.kernels]
    assert sizes[:SPECIAL] == [()] * SPECIAL
    assert {tuple(sorted(free)) for free in sizes[SPECIAL:]} == {("B",), ("A", "B")}
    assert len(sizes) < 3 * 3 * 2


def test_a_size_that_shares_a_dimension_with_a_free_one_is_free() -> None:
    f = polyml.einsum(
        'def tails(x: f32["N+M"], w: f32["M"], z: f32["N"]):\n    y[m] = x[N + m] * w[m] + z[0]\n    return y\n'
    )
    for n in range(1, SPECIAL + 3):
        x, w, z = normal(n + 2), normal(2), normal(n)
        assert np.allclose(f(x, w, z), x[n:] * w + z[0])
    assert sorted(f.kernels[-1].signature.sizes) == ["M", "N"]


def test_a_program_that_needs_numbers_is_specialized_for_ever() -> None:
    f = polyml.einsum(
        'def halves(x: f32["N K"]):\n    y: f32["N"] = 0\n    y[i // K] += x[i // K, i % K]\n    return y\n'
    )
    for n in range(1, SPECIAL + 4):
        x = normal(n, n + 1)
        assert f(x).shape == (n,)
    assert len(f.kernels) == SPECIAL + 3


def test_pad_widths_in_sizes() -> None:
    f = polyml.einsum('def f(x: f32["N"]):\n    y[i] = pad(x, ((N, N - 2),))[i]\n    return y\n', dynamic=True)
    for n in (5, 2, 17):
        x = normal(n)
        assert np.array_equal(f(x), np.pad(x, ((n, n - 2),)))
    assert len(f.kernels) == 1
    with pytest.raises(ShapeError, match="pad widths must be numbers >= 0"):
        f(normal(1))


def test_an_empty_inner_range_counts_as_one_of_size_1() -> None:
    text = 'def f(x: f32["N"], t: int):\n    y[i] = sum[k, k < t](x[i + k])\n    return y\n'
    for dynamic in (True, False):
        assert polyml.einsum(text, dynamic=dynamic)(normal(5), -3).tolist() == [0] * 5


@pytest.mark.parametrize("table", [True, False], ids=["beside a bare entry", "by itself"])
def test_a_size_that_an_entry_of_it_alone_gives(table: bool) -> None:
    given, factor = (', c: f32["P"]', "c[i]") if table else ("", "2")
    lines = f"""def halves(x: f32["N 2*P"]{given}):
    y: f32["N 2*P"]
    if i < P:
        y[n, i] = x[n, i] * {factor} - x[n, i + P]
        y[n, i + P] = x[n, i + P] * {factor} + x[n, i]
    return y
"""
    program = polyml.einsum(lines, dynamic=True)
    for n, p in ((3, 2), (1, 1), (5, 17), (4, 9), (2, 0), (0, 3)):
        x = normal(n, 2 * p)
        c = normal(p) if table else np.full(p, 2, np.float32)
        a, b = x[:, :p], x[:, p:]
        expected = np.concatenate((a * c - b, b * c + a), axis=1)
        np.testing.assert_allclose(program(x, c) if table else program(x), expected, atol=1e-5)
    assert len(program.kernels) == 3  # one for any sizes, and two for those with nothing in them
    with pytest.raises(ShapeError, match=r"is 5, (which is|and its entry says)"):
        program(normal(3, 5), normal(2)) if table else program(normal(3, 5))
