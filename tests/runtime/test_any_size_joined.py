"""Kernels for any sizes whose indices are joined: what is one index, right results around the tiles, for few elements and for none, and what does not join."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

import polyml
from polyml.codegen.interpret import interpret
from polyml.target import Target

SMALL_CACHES = Target("host", l1_bytes=2 << 10, l2_bytes=8 << 10)
"""This machine, with caches that small tests outgrow."""


KINDS: dict[str, type[np.generic]] = {"f32": np.float32, "f64": np.float64, "i32": np.int32}


def product(notation: str, kind: str = "f32") -> str:
    """An einsum of any number of operands as a program."""
    operands, out = notation.split("->")
    parts = operands.split(",")
    declared = ", ".join(f'{n}: {kind}["{" ".join(part.upper())}"]' for n, part in zip("uvw", parts, strict=False))
    terms = " * ".join(f"{n}[{', '.join(part)}]" for n, part in zip("uvw", parts, strict=False))
    left = f"y[{', '.join(out)}]" if out else "y"
    return f"def product({declared}):\n    {left} = {terms}\n    return y\n"


def numbers(*shape: int, seed: int = 0, kind: type[np.generic] = np.float32) -> np.ndarray:
    """Small integers: every sum is exact, in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(kind)


def operands(notation: str, extents: Sequence[int]) -> list[np.ndarray]:
    parts = notation.split("->")[0].split(",")
    names = sorted(set("".join(parts)))
    sizes = dict(zip(names, extents, strict=True))
    return [numbers(*(sizes[i] for i in part), seed=k) for k, part in enumerate(parts)]


@cache
def any_size(notation: str, kind: str = "f32") -> polyml.Einsum:
    """For all tests that call it: none hangs on what comes first."""
    return polyml.einsum(product(notation, kind), dynamic=True, target=SMALL_CACHES, verify=True)


def update_of(f: polyml.Einsum, *args: np.ndarray) -> tuple[str, ...]:
    """The indices of the one update."""
    lowered = f.lower(*args)
    (found,) = (s for region in lowered.stages.regions for s in region.scop.statements.values() if s.kind == "update")
    return found.indices


JOINED = {
    "efab,cdef->abcd": ("a_b", "c_d", "e_f"),
    "ea,ebcd->abcd": ("a", "b_c_d", "e"),
    "ijkl,kl->ij": ("i_j", "k_l"),
    "bhik,bhkj->bhij": ("b_h", "i", "j", "k"),
    "abc,dc->abd": ("a_b", "d", "c"),
    "abcd,bc->ad": ("a", "d", "b_c"),
    "abc,abc->": ("a_b_c",),
}
"""Contractions, and the indices that are left."""


@pytest.mark.parametrize(
    "notation",
    [pytest.param(n, marks=[pytest.mark.slow] if n in ("ea,ebcd->abcd", "abc,dc->abd") else []) for n in JOINED],
)
@pytest.mark.few(1)
def test_joined_at_any_size(notation: str) -> None:
    f = any_size(notation)
    names = sorted(set(notation) - set(",->"))
    rng = np.random.default_rng(len(notation))
    cases = [[3] * len(names), [1] * len(names), [7, 5, 9, 4, 6, 3][: len(names)], [17, 1, 16, 2, 8, 5][: len(names)]]
    cases += [list(map(int, rng.integers(1, 14, len(names)))) for _ in range(6)]
    empty = [[0 if k == position else 4 for k in range(len(names))] for position in range(len(names))]
    assert update_of(f, *operands(notation, [3] * len(names))) == JOINED[notation]
    for extents in (*cases, *empty):
        args = operands(notation, extents)
        np.testing.assert_array_equal(f(*args), np.einsum(notation, *args, optimize=True), err_msg=str(extents))
    assert len(f.kernels) <= 1 + len(empty)  # those without elements are specialized


def test_long_joined_indices() -> None:
    """Sizes beyond the tiles and blocks, through the version with panels."""
    f = any_size("efab,cdef->abcd")
    for extents in ((40, 3, 11, 7, 5, 9), (3, 40, 7, 11, 9, 5), (13, 13, 1, 130, 33, 2)):
        args = operands("efab,cdef->abcd", extents)
        np.testing.assert_array_equal(f(*args), np.einsum("efab,cdef->abcd", *args, optimize=True))


def test_what_follows_and_what_one_number_does() -> None:
    text = """
def layer(x: f32["N H W C"], w: f32["C D"], r: f32["N H W D"]):
    y[n, h, v, d] = relu(x[n, h, v, c] * w[c, d] + r[n, h, v, d])
    return y
"""
    f = polyml.einsum(text, dynamic=("N", "H"), target=SMALL_CACHES, verify=True)
    for n, h, v in ((2, 3, 5), (1, 1, 5), (7, 9, 5)):
        x, w, r = numbers(n, h, v, 20), numbers(20, 24, seed=1), numbers(n, h, v, 24, seed=2)
        np.testing.assert_array_equal(f(x, w, r), np.maximum(x @ w + r, 0))
    assert update_of(f, x, w, r) == ("n_h_v", "d", "c")
    assert len(f.kernels) == 1


def test_orders_of_sums_stay() -> None:
    """With `precise=True`, too: instances keep their order."""
    f = polyml.einsum(product("abc,bc->a", "f64"), dynamic=True, precise=True)
    x, w = np.random.default_rng(0).standard_normal((5, 6, 7)), np.random.default_rng(1).standard_normal((6, 7))
    assert update_of(f, x, w) == ("a", "b_c")
    expected = np.zeros(5)
    for b, c in np.ndindex(6, 7):
        expected += x[:, b, c] * w[b, c]
    np.testing.assert_array_equal(f(x, w), expected)


STAYS = {
    "another order": "u[a, c, b] * v[b, c]",
    "a window": "u[a, b, c] * v[b, c + 1]",
    "a number": "max(u[a, b, c], c) * v[b, c]",
    "one of both": "u[a, b, c] * v[b, 3]",
    "alone": "u[a, b, c] * v[b, c] * v[c, b]",
}


@pytest.mark.parametrize("why", STAYS)
def test_what_stays(why: str) -> None:
    shapes = {"another order": ("A C B", "B C"), "a window": ("A, B, C", "B, C + 1"), "alone": ("A B B", "B B")}
    u, v = shapes.get(why, ("A B C", "B D" if why == "one of both" else "B C"))
    text = f'def f(u: f32["{u}"], v: f32["{v}"]):\n    y[a] = sum[b, c]({STAYS[why]})\n    return y\n'
    f = polyml.einsum(text, dynamic=True, verify=True)
    x = numbers(4, 5, 5)
    w = numbers(5, 6, seed=1) if why in ("a window", "one of both") else numbers(5, 5, seed=1)
    assert not any("_" in index for index in update_of(f, x, w))
    special = polyml.einsum(text, dynamic=False)
    np.testing.assert_array_equal(f(x, w), special(x, w))


def test_strided_arguments_get_kernels_of_their_own() -> None:
    f = polyml.einsum(product("abc,dc->abd"), dynamic=True)
    x, w = numbers(6, 10, 8)[:, ::2], numbers(9, 8, seed=1)
    np.testing.assert_array_equal(f(x, w), np.einsum("abc,dc->abd", x, w))
    np.testing.assert_array_equal(f(x.copy(), w), np.einsum("abc,dc->abd", x, w))


def test_loops_and_pictures_know_the_products() -> None:
    notation = "abc,dc->abd"
    f = polyml.einsum(product(notation), dynamic=True, verify=True)
    args = operands(notation, (3, 4, 5, 6))
    (region,) = f.lower(*args).stages.regions
    assert region.scop.with_products({"A": 3, "B": 4, "C": 5, "D": 6})["A_B"] == 12
    assert "A_B" in str(region.loops)
    arrays = {"u": args[0].reshape(12, 5), "v": args[1], region.loops.arguments[-1].name: np.zeros((12, 6), np.float32)}
    interpret(region.loops, arrays, {"A": 3, "B": 4, "C": 5, "D": 6})
    result = arrays[region.loops.arguments[-1].name]
    np.testing.assert_array_equal(result.reshape(3, 4, 6), np.einsum(notation, *args))


@pytest.mark.parametrize(
    "kind", ["f32", pytest.param("f64", marks=pytest.mark.slow), pytest.param("i32", marks=pytest.mark.slow)]
)
def test_columns_around_the_vectors(kind: str) -> None:
    """Panels, what is left of them and no panels at all, in one block of the sum and in several."""
    f = any_size("ik,kj->ij", kind)
    for i, k in ((1, 7), (16, 16), (19, 16), (21, 131), (29, 300)):
        for j in (1, 3, 8, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 64, 65, 79, 96, 115):
            x, w = numbers(i, k, kind=KINDS[kind]), numbers(k, j, seed=1, kind=KINDS[kind])
            np.testing.assert_array_equal(f(x, w), x @ w, err_msg=str((i, k, j)))
    assert len(f.kernels) == 1


def test_what_is_beyond_the_columns_does_not_matter() -> None:
    """Lanes that do not act add up as well: neither their values nor infinite ones of the rows get anywhere."""
    f = any_size("ik,kj->ij", "f32")
    x, w = numbers(24, 40), numbers(40, 37, seed=1)
    x[3, 5], x[4, 6], w[7, 36] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(f(x, w), x @ w)


@cache
def blocks(notation: str, extents: tuple[int, ...]) -> str:
    """What explain() says of the blocks, of a kernel whose first call has these extents."""
    f = polyml.einsum(product(notation), dynamic=True, target=Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20))
    shapes = operands(notation, extents)
    return next(line for line in str(f.explain(*shapes)).splitlines() if "blocking" in line)


def test_the_first_call_shares_blocks_among_indices() -> None:
    """Blocks of the sum (a, c) and of columns are as deep as caches ask for, whichever of their indices is long."""
    depths = {}
    for extents in (
        (300, 60, 40, 90),
        (30, 60, 90, 300),
        (3, 6, 1, 8),
    ):  # a small call is a large one of its proportions
        found = re.search(r"a by (\d+), c by (\d+)", blocks("abc,dca->bd", extents))
        assert found is not None
        depths[extents] = (int(found[1]), int(found[2]))
        assert 256 <= depths[extents][0] * depths[extents][1] <= 768
    (wide, _), (narrow, deep), (small, _) = depths.values()
    assert narrow < wide, "a is ten times as long in the first call"
    assert deep > 90 > depths[300, 60, 40, 90][1]
    assert small > narrow
    assert "2 vectors of d" in blocks("abc,dca->bd", (30, 60, 90, 300))
    assert "3 vectors of d" in blocks("abc,dca->bd", (300, 60, 90, 40)), "40 columns are 48, not 32 and 16"


@pytest.mark.parametrize(
    "first",
    [*(pytest.param(f, marks=pytest.mark.slow) for f in ((3, 40, 50, 33), (60, 20, 2, 40))), (1, 1, 1, 1)],
)
@pytest.mark.slow
def test_blocks_are_right_for_other_calls(first: tuple[int, ...]) -> None:
    f = polyml.einsum(product("abc,dca->bd"), dynamic=("A", "B", "C", "D"), target=SMALL_CACHES, verify=True)
    for extents in (first, (50, 17, 3, 49), (2, 33, 70, 20), (9, 8, 41, 64), (40, 30, 16, 17)):
        args = operands("abc,dca->bd", extents)
        np.testing.assert_array_equal(f(*args), np.einsum("abc,dca->bd", *args), err_msg=str(extents))
    assert len(f.kernels) == 1


def test_a_small_operand_is_packed_unless_rows_come_from_memory() -> None:
    """Panels are read faster than rows of it where they lie, which does not count while the other operand's rows come from memory."""
    target = Target("x86-64-v4", l1_bytes=48 << 10, l2_bytes=2 << 20)

    def loops(rows: int) -> str:
        f = polyml.einsum(product("ik,kj->ij"), dynamic=True, target=target)
        return f.lower(np.zeros((rows, 180), np.float32), np.zeros((180, 32), np.float32)).text("loops")

    assert re.search(r"if \(+K \* J\) >= 6145\) and \(I >= 16", loops(60_000))
    text = loops(100)
    assert re.search(r"if \(+K \* J\) >= 256\) and \(I >= 16", text), "rows stay in cache"
