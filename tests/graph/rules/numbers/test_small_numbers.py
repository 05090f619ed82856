"""Sums of products of numbers of 8 and 16 bits, several products at once: which become that, and that they are exact modulo 2**32."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.target import Target

MATRICES = "z[i, j] = sum[k](i32(x[i, k]) * i32(y[k, j]))"
PRODUCTS = {
    "matrices": ('"A K"', '"K B"', MATRICES),
    "second transposed": ('"A K"', '"B K"', MATRICES.replace("y[k, j]", "y[j, k]")),
    "first transposed": ('"K A"', '"K B"', MATRICES.replace("x[i, k]", "x[k, i]")),
    "batches": ('"C A K"', '"C K B"', "z[c, i, j] = sum[k](i32(x[c, i, k]) * i32(y[c, k, j]))"),
    "two sums": ('"A K L"', '"K L B"', "z[i, j] = sum[k, l](i32(x[i, k, l]) * i32(y[k, l, j]))"),
    "windows": ('"K A"', '"B K 3"', "z[j, i] = sum[k, r](i32(x[k, i + r]) * i32(y[j, k, r]))"),
    "what follows": ('"A K"', '"K B"', "z[i, j] = max(sum[k](i32(x[i, k]) * i32(y[k, j])) + i32(i), 0)"),
}
TYPES = [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8"), ("i16", "i16"), ("i8", "i16"), ("i16", "u8")]
FOUR = Target("x86-64-v4", features="-prefer-256-bit,+avx512vnni,+avx512vl")
TWO = Target("x86-64-v3")


def program(name: str, types: tuple[str, str], **options: object) -> polyml.Einsum:
    left, right, line = PRODUCTS[name]
    return polyml.einsum(
        f"def f(x: {types[0]}[{left}], y: {types[1]}[{right}]):\n    {line}\n    return z\n", **options
    )


def arguments(name: str, types: tuple[str, str], sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """All values that there are, the largest ones often."""
    rng = np.random.default_rng(seed)
    found = []
    for dtype, shape in zip(types, PRODUCTS[name][:2], strict=True):
        kind = np.dtype({"i": "i", "u": "u"}[dtype[0]] + str(int(dtype[1:]) // 8))
        info = np.iinfo(kind)
        extents = [sizes[letter] if letter in sizes else int(letter) for letter in shape.strip('"').split()]
        values = rng.integers(info.min, info.max, extents, endpoint=True)
        values[rng.random(extents) < 0.2] = info.min
        found.append(values.astype(kind))
    return found


def wide(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The sum in 64 bits, cut to 32."""
    x, y = x.astype(np.int64), y.astype(np.int64)
    if name == "windows":
        windows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)
        z = np.einsum("kir,jkr->ji", windows, y)
    else:
        subscripts = {
            "second transposed": "ik,jk->ij", "first transposed": "ki,kj->ij", "batches": "cik,ckj->cij", "two sums": "ikl,klj->ij",
        }  # fmt: skip
        z = np.einsum(subscripts.get(name, "ik,kj->ij"), x, y)
    z = z.astype(np.uint64).astype(np.uint32).view(np.int32)
    return np.maximum(z + np.arange(len(z), dtype=np.int32)[:, None], 0) if name == "what follows" else z


SIZES = {"A": 35, "B": 49, "C": 2, "K": 77, "L": 3}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.few(1)
def test_sums(name: str, types: tuple[str, str]) -> None:
    given = arguments(name, types, SIZES)
    np.testing.assert_array_equal(program(name, types, verify=name == "matrices")(*given), wide(name, *given))


@pytest.mark.parametrize("depth", [15, 16, 17, 18, 19, 64, 130])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "host"])
@pytest.mark.few(1)
def test_depths_and_machines(depth: int, target: str) -> None:
    if not Target(target).runs_here:
        pytest.skip("another machine")
    for types in (("i8", "i8"), ("i16", "i16")):
        given = arguments("matrices", types, {"A": 33, "B": 34, "K": depth})
        found = program("matrices", types, target=Target(target))(*given)
        np.testing.assert_array_equal(found, wide("matrices", *given))


@pytest.mark.parametrize(
    ("types", "target", "op"),
    [
        (("i8", "i8"), FOUR, "dot_i8"),
        (("u8", "u8"), FOUR, "dot_i8"),
        (("i8", "i16"), FOUR, "dot_i16"),
        (("i8", "i8"), TWO, "dot_i16"),
        (("i8", "i8"), Target("aarch64"), ""),
        (("i32", "i32"), FOUR, ""),
    ],
)
def test_which_products_are_taken_together(types: tuple[str, str], target: Target, op: str) -> None:
    text = str(program("matrices", types, target=target).trace(*arguments("matrices", types, SIZES)))
    assert [name for name in ("dot_i8", "dot_i16") if name in text] == ([op] if op else [])


def test_an_update_of_numbers_of_8_bits_takes_two_at_once() -> None:
    source = (
        'def f(x: i8["A K"], y: i8["K B"], z: i32["A B"]):\n    z[i, j] += i32(x[i, k]) * i32(y[k, j])\n    return z\n'
    )
    x, y = arguments("matrices", ("i8", "i8"), SIZES)
    z = np.arange(35 * 49, dtype=np.int32).reshape(35, 49)
    made = polyml.einsum(source, target=FOUR if FOUR.runs_here else Target("host"))
    assert "dot_i8" not in made.lower(x, y, z.copy()).text("graph")
    np.testing.assert_array_equal(made(x, y, z.copy()), wide("matrices", x, y) + z)


@pytest.mark.parametrize("name", ["matrices", "second transposed", "first transposed", "batches"])
@pytest.mark.parametrize("types", [("i8", "i8"), ("u8", "u8"), ("u8", "i8")])
@pytest.mark.few(2)
def test_products_pack_their_operands(name: str, types: tuple[str, str]) -> None:
    """What is packed is made ahead of the product, and so is what a shift by 128 adds, of four numbers at once; it is taken off a tile in registers."""
    given = arguments(name, types, {"A": 96, "B": 200, "C": 2, "K": 300})
    lowered = program(name, types, target=FOUR).lower(*given)
    explained = str(lowered.explain())
    assert "blocking: S_z" in explained
    assert lowered.text("graph").count("dot_i8(") == (1 if types == ("u8", "i8") else 2)


def test_short_sums_and_few_uses_stay() -> None:
    for sizes in ({"A": 35, "B": 49, "K": 8}, {"A": 3, "B": 49, "K": 77}):
        given = arguments("matrices", ("i8", "i8"), sizes)
        made = program("matrices", ("i8", "i8"), target=FOUR)
        assert "dot_i" not in made.lower(*given).text("graph")


def test_bound_weights() -> None:
    x, y = arguments("matrices", ("i8", "i8"), SIZES)
    np.testing.assert_array_equal(program("matrices", ("i8", "i8")).bind(y=y)(x), wide("matrices", x, y))


def test_the_instructions() -> None:
    given = arguments("matrices", ("i8", "i8"), SIZES)
    assert program("matrices", ("i8", "i8"), target=FOUR).lower(*given).text("asm").count("vpdpbusd") > 8
    assert program("matrices", ("i8", "i8"), target=TWO).lower(*given).text("asm").count("vpmaddwd") > 8
    explained = str(program("matrices", ("i8", "i8"), target=FOUR).lower(*given).explain())
    assert "four products at once" in explained


PADDED = """
def layer(x: {left}["K A B"], y: {right}["C K 3 3"]):
    z[c, i, j] = sum[k, r, s](i32(pad(x, ((0, 0), (1, 1), ({first}, 1)))[k, {step}i + r, {step}j + s]) * i32(y[c, k, r, s]))
    return z
"""


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("step", "first"), [(1, 1), (2, 0), (3, 2)])
@pytest.mark.few(1)
def test_windows_with_padding(types: tuple[str, str], step: int, first: int) -> None:
    x = arguments("matrices", types, {"A": 18, "B": 1, "K": 11 * 13})[0].reshape(18, 11, 13)
    y = arguments("matrices", types, {"A": 1, "B": 20, "K": 18 * 9})[1].T.reshape(20, 18, 3, 3)
    source = PADDED.format(left=types[0], right=types[1], first=first, step="" if step == 1 else f"{step}*")
    padded = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (first, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::step, ::step]
    want = np.einsum("kijrs,ckrs->cij", windows, y.astype(np.int64)).astype(np.uint64).astype(np.uint32).view(np.int32)
    layer = polyml.einsum(source, verify=step == 2)
    np.testing.assert_array_equal(layer(x, y), want)
    np.testing.assert_array_equal(layer.bind(y=y)(x), want)
    text = str(polyml.einsum(source, target=FOUR).trace(x, y))
    assert "dot_i" in text
    assert "_padded[" in text


def test_a_condition_that_is_no_end_of_an_operand_stays() -> None:
    source = """
def f(x: i8["A K"], y: i8["K B"]):
    z[i, j] = sum[k, k <= i + 40](i32(x[i, k]) * i32(y[k, j]))
    return z
"""
    x, y = arguments("matrices", ("i8", "i8"), SIZES)
    assert "dot_i" not in str(polyml.einsum(source, target=FOUR).trace(x, y))
    kept = np.arange(77) <= np.arange(35)[:, None] + 40
    want = (x.astype(np.int64) * kept) @ y.astype(np.int64)
    np.testing.assert_array_equal(polyml.einsum(source)(x, y), want)


def test_windows_at_quotients_stay() -> None:
    source = """
def f(x: i8["K N"], y: i8["K C"]):
    z: i32["C 40"]
    z[c, i] = sum[k, 0 <= i // 2 - 3 < N](i32(x[k, i // 2 - 3]) * i32(y[k, c]))
    return z
"""
    x, y = (a.reshape(77, -1) for a in arguments("matrices", ("i8", "i8"), {"A": 12, "B": 20, "K": 77}))
    at = np.arange(40) // 2 - 3
    inside = (at >= 0) & (at < x.shape[1])
    want = y.astype(np.int64).T @ np.where(inside, x.astype(np.int64)[:, np.clip(at, 0, x.shape[1] - 1)], 0)
    np.testing.assert_array_equal(polyml.einsum(source)(x, y), want)
