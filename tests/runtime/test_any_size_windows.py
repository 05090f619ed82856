"""Sums over windows in kernels for any sizes: lanes along the filters without numbers, right at every size around tiles, panels, and the conditions of the version that has them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.codegen.loops import Allocate, Function, If
from polyml.codegen.rewrite import walk_nodes
from polyml.einsum_frontend.any_size import sizes_of_shapes
from polyml.einsum_frontend.windows import window_sizes
from polyml.graph.ir import Equation
from polyml.target import Target

Array = np.ndarray[Any, Any]

CONVOLUTION = """
def convolution(x: f32["C H W"], w: f32["O C R S"]):
    y[o, p, q] = {source}[c, {at}p + r, {at}q + s] * w[o, c, r, s]
    return y
"""
ROWS = """
def rows(x: f32["C W"], w: f32["O C S"]):
    y[o, q] = {source}[c, {at}q + s] * w[o, c, s]
    return y
"""

SIZES = [
    (c, h, w, o, r, s)
    for c, h, w in ((1, 1, 1), (2, 9, 13), (9, 8, 14), (3, 7, 29), (33, 12, 15), (5, 3, 67))
    for o in (1, 15, 16, 33)
    for r, s in ((1, 1), (3, 3), (2, 5))
] + [(0, 9, 9, 16, 3, 3), (3, 9, 9, 0, 3, 3), (40, 18, 18, 50, 3, 3), (4, 20, 20, 40, 1, 17), (4, 20, 20, 40, 3, 20)]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def expected(x: Array, w: Array, stride: int, padding: int) -> Array:
    axes = tuple(range(1, x.ndim))
    padded = np.pad(x.astype(np.float64), [(0, 0)] + [(padding, padding)] * len(axes))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axes)
    windows = windows[(slice(None), *(slice(None, None, stride) for _ in axes))]
    return np.tensordot(w.astype(np.float64), windows, ([1, *range(2, w.ndim)], [0, *range(w.ndim - 1, windows.ndim)]))


def text(program: str, stride: int, padding: int) -> str:
    edges = "(0, 0)" + f", ({padding}, {padding})" * (2 if program is CONVOLUTION else 1)
    source = f"pad(x, ({edges}))" if padding else "x"
    return program.format(source=source, at=f"{stride}*" if stride > 1 else "")


def for_every_size(program: str, **options: object) -> polyml.Einsum:
    """Its windows are symbolic, too, since they are named."""
    made: polyml.Einsum = polyml.einsum(program, dynamic=sizes_of_shapes(polyml.einsum(program).program), **options)
    return made


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("program", [CONVOLUTION, ROWS])
@pytest.mark.few(1)
def test_right_for_every_size(program: str, stride: int, padding: int) -> None:
    f = for_every_size(text(program, stride, padding), verify=True)
    assert any(op.result.name.endswith("_last") for op in f.trace(*_arguments(program, 4, 9, 9, 20, 3, 3)).ops if isinstance(op, Equation))  # fmt: skip
    for empty in (False, True):
        for c, h, w, o, r, s in SIZES:
            x, filters = _arguments(program, c, h, w, o, r, s)
            fits = all(n + 2 * padding >= k for n, k in zip(x.shape[1:], filters.shape[2:], strict=True))
            if fits and empty == (0 in (*x.shape, *filters.shape)):
                wanted = expected(x, filters, stride, padding)
                np.testing.assert_array_equal(f(x, filters), wanted, str((x.shape, filters.shape)))
        assert empty or len(f.kernels) == 1


def _arguments(program: str, c: int, h: int, w: int, o: int, r: int, s: int) -> tuple[Array, Array]:
    if program is ROWS:
        return numbers(c, w), numbers(o, c, s)
    return numbers(c, h, w), numbers(o, c, r, s)


@cache
def as_written(program: str) -> polyml.Einsum:
    """One for all numbers of threads."""
    return polyml.einsum(program, dynamic=False, threads=1, precise=True)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("declared", "term", "shapes"),
    [
        (("B C W", "O C S"), "y[b, o, n] = x[b, c, 2*n + s] * w[o, c, s]", ((3, 40, 61), (50, 40, 5))),
        (("G C W", "G O C S"), "y[g, o, p] = x[g, c, 2*p + s] * w[g, o, c, s]", ((3, 40, 133), (3, 50, 40, 5))),
        (("C W", "O A C S"), "y[o, a, p] = x[c, 3*p + s] * w[o, a, c, s]", ((40, 83), (5, 31, 40, 5))),
        (("W C", "S C O"), "y[p, o] = pad(x, ((2, 2), (0, 0)))[p + s, c] * w[s, c, o]", ((133, 40), (5, 40, 50))),
        (("C H W", "C 3 3"), "y[c, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[c, r, s]", ((30, 19, 45), (30, 3, 3))),
        (("C H W", "O C 3 3"), "y[o, p, q] = pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + r, q + s] * w[o, c, r, s]", ((30, 19, 45), (40, 30, 3, 3))),
        (("C H W", "O C R 3"), "y[o, p, q] = relu(pad(x, ((0, 0), (1, 1), (1, 1)))[c, p + 2*r, q + 2*s] * w[o, c, r, s])", ((30, 19, 45), (40, 30, 3, 3))),
        (("C 45", "O C 7"), "y[o, p] = x[c, p - s + 6] * w[o, c, s]", ((30, 45), (40, 30, 7))),
    ],
)  # fmt: skip
@pytest.mark.few(1)
def test_other_forms(
    declared: tuple[str, str], term: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], threads: int
) -> None:
    program = f'def f(x: f32["{declared[0]}"], w: f32["{declared[1]}"]):\n    {term}\n    return y\n'
    x, w = (numbers(*shape) for shape in shapes)
    f = for_every_size(program, threads=threads, verify=True)
    np.testing.assert_array_equal(f(x, w), as_written(program)(x, w))
    assert len(f.kernels) == 1


@pytest.mark.parametrize("target", [pytest.param("x86-64-v3", marks=pytest.mark.slow), "x86-64-v2"])
def test_other_machines(target: str) -> None:
    f = for_every_size(text(CONVOLUTION, 2, 1), target=Target(target))
    for c, h, w, o, r, s in SIZES[::7]:
        x, filters = numbers(c, h, w), numbers(o, c, r, s)
        if h + 2 >= r and w + 2 >= s:
            np.testing.assert_array_equal(f(x, filters), expected(x, filters, 2, 1))


def lowered(stride: int, padding: int) -> Function:
    f = polyml.einsum(
        text(CONVOLUTION, stride, padding), dynamic=("C", "H", "W", "O", "R", "S"), target=Target("x86-64-v4")
    )
    return f.lower(numbers(4, 9, 9), numbers(20, 4, 3, 3)).stages.functions[-1]


@pytest.mark.parametrize(("stride", "padding"), [(2, 1), (1, 1), (1, 0)])
@pytest.mark.few(1)
def test_panels_and_rows_are_as_large_as_a_call_needs(stride: int, padding: int) -> None:
    (choice,) = lowered(stride, padding).body
    assert isinstance(choice, If)
    made = {n.variable.name: n.variable.shape for n in walk_nodes(choice.then) if isinstance(n, Allocate)}
    (panels,) = (shape for name, shape in made.items() if name.startswith("w_panels"))
    assert [str(extent) for extent in panels] == ["1", "C", "R", "S", "32"]
    assert any(name.startswith("y_last") and str(shape[-1]) == "32" and str(shape[0]) == "1" for name, shape in made.items() if len(shape) == 3)  # fmt: skip
    assert not any(
        n.variable.name.startswith("w_panels") for n in walk_nodes(choice.otherwise) if isinstance(n, Allocate)
    )


def test_windows_that_run_backwards() -> None:
    """The range of p follows from both ends of a padded row."""
    f = polyml.einsum(
        'def f(x: f32["C P"]):\n    y[c, p] = sum[s < 7](pad(x, ((0, 0), (3, 3)))[c, p - s + 6] * (s + 1))\n    return y\n',
        dynamic=True,
    )
    for c, p in ((3, 4), (1, 1), (5, 100)):
        x = numbers(c, p)
        padded = np.pad(x, ((0, 0), (3, 3)))
        np.testing.assert_array_equal(f(x), sum(padded[:, 6 - s : 6 - s + p] * (s + 1) for s in range(7)))
    assert len(f.kernels) == 1


def test_short_windows_are_numbers_for_the_first_few_kinds() -> None:
    """Any image, any channels; then the kernel for all is the last one."""
    f = polyml.einsum(text(CONVOLUTION, 1, 0), dynamic=True)
    for c, h, w, o, r, s in (
        (4, 9, 12, 20, 1, 1),
        (17, 1, 1, 1, 1, 1),
        (3, 20, 9, 5, 3, 2),
        (1, 3, 2, 1, 3, 2),
        (2, 30, 9, 5, 17, 2),
        (2, 9, 9, 5, 17, 3),
    ):
        if h >= r:
            x, filters = numbers(c, h, w), numbers(o, c, r, s)
            np.testing.assert_array_equal(f(x, filters), expected(x, filters, 1, 0))
    for r in (1, 2, 5):
        x, filters = numbers(2, 9, 9), numbers(3, 2, r, 6)
        np.testing.assert_array_equal(f(x, filters), expected(x, filters, 1, 0))
    kinds = [str(kernel.signature).split("w: f32")[1].split(")")[0] for kernel in f.kernels]
    assert kinds == ["[O, C, 1, 1]", "[O, C, 3, 2]", "[O, C, R, 2]", "[O, C, R, S]"]


@pytest.mark.parametrize(
    ("declared", "body", "windows"),
    [
        ('x: f32["H W"], w: f32["R S"]', "y[p, q] = max[r, s](pad(x, ((1, 1), (0, 0)))[p + r, 2*q + s] - w[r, s])", "RS"),
        ('x: f32["N"], w: f32["K"]', "if N > 9:\n        y[i] = x[i + K - 1 - k] * w[k]", "K"),
        ('x: f32["N K"], w: f32["K M"]', "y[n, m] = x[n, k] * w[k, m]", ""),
        ('x: f32["N"], w: f32["K"]', "y[i, k] = x[i + k] * w[k]", ""),
        ('x: f32["P N"], w: f32["N K"]', "b[n] = x[0, n]\n    y = inner(b, w)", "K"),
    ],
)  # fmt: skip
def test_which_sizes_are_windows(declared: str, body: str, windows: str) -> None:
    """A result's index is where the window lies, and another one goes through it; in programs that are called, too."""
    inner = polyml.einsum('def inner(x: f32["N"], w: f32["C K"]):\n    y[i, c] = x[i + k] * w[c, k]\n    return y\n')
    assert inner.program.name == "inner"
    f = polyml.einsum(f"def f({declared}):\n    {body}\n    return y\n")
    assert window_sizes(f.program) == frozenset(windows)


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.slow
def test_windows_of_one_element_are_products_with_panels(stride: int) -> None:
    """A subscript that is a number is no slice where there is one element."""
    f = polyml.einsum(text(CONVOLUTION, stride, 0), dynamic=True, target=Target("x86-64-v3"))
    explained = str(f.lower(numbers(40, 20, 30), numbers(50, 40, 1, 1)).explain())
    assert "register tile" in explained
    assert "blocks of" in explained
    for c, h, w, o in ((40, 20, 30, 50), (1, 1, 1, 1), (33, 7, 13, 17), (70, 41, 40, 100)):
        x, filters = numbers(c, h, w), numbers(o, c, 1, 1)
        np.testing.assert_array_equal(f(x, filters), expected(x, filters, stride, 0))
    assert len(f.kernels) == 1
