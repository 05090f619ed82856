"""Indices whose quotients move an operand are two indices, whose results are put together in the places where they belong: the same numbers, as fast schedules as where the program has both indices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyml
from tests.einsum_numpy.guard_pages import guarded

GROUPS = """
def f(x: {t}["N C H W"], w: {t}["K D R S"]):
    y[n, k, p, q] = x[n, {d}*(k // {e}) + c, p + r, q + s] * w[k, c, r, s]
    return y
"""
PLACED = """
def f(x: {t}["N G D H W"], w: {t}["G E D R S"]):
    y: {t}["N {k} H-R+1 W-S+1"]
    y[n, {e}*g + k, p, q] = x[n, g, c, p + r, q + s] * w[g, k, c, r, s]
    return y
"""
SHARED_KEYS = """
def f(q: f32["H S D"], k: f32["G T D"], v: f32["G T D"]):
    s[h, i, j] = q[h, i, d] * k[h // {m}, j, d]
    t[h, i] = max[j](s[h, i, j])
    e[h, i, j] = exp(s[h, i, j] - t[h, i])
    z[h, i] = e[h, i, j]
    o[h, i, d] = e[h, i, j] * v[h // {m}, j, d] / z[h, i]
    return o
"""
LAYERS = """
def f(x: f32["C H W"], w: f32["K D 3 3"], b: f32["K"], u: f32["M K"]):
    a[k, p, q] = max(pad(x, ((0, 0), (1, 1), (1, 1)))[{d}*(k // {e}) + c, p + r, q + s] * w[k, c, r, s] + b[k], 0)
    y[m, p, q] = u[m, k] * a[k, p, q]
    return y{also}
"""


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(polyml.dtypes.DTYPES[dtype].numpy)


def grouped(x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    (n, c, h, v), (k, d, r, s) = x.shape, w.shape
    y = np.zeros((n, k, h - r + 1, v - s + 1), x.dtype)
    for f in range(k):
        first = f // (k // groups) * (c // groups)
        for i in range(d):
            for a in range(r):
                for b in range(s):
                    y[:, f] += x[:, first + i, a : a + h - r + 1, b : b + v - s + 1] * w[f, i, a, b]
    return y


@pytest.mark.parametrize(
    ("t", "groups", "d", "e", "size"),
    [("f32", 2, 3, 5, 9), ("f32", 4, 8, 16, 20), ("f32", 1, 2, 3, 6), ("f32", 3, 1, 17, 18), ("f64", 4, 8, 16, 20), ("i32", 3, 1, 17, 18), ("c64", 2, 3, 5, 9)],
)  # fmt: skip
@pytest.mark.few(1)
def test_groups(t: str, groups: int, d: int, e: int, size: int) -> None:
    x, w = numbers(t, 2, groups * d, size, size + 1), numbers(t, groups * e, d, 3, 3)
    expected = grouped(x, w, groups)
    by_quotient = polyml.einsum(GROUPS.format(t=t, d=d, e=e), verify=True)
    np.testing.assert_array_equal(by_quotient(x, w), expected)
    np.testing.assert_array_equal(by_quotient.bind(w=w)(x), expected)
    placed = polyml.einsum(PLACED.format(t=t, e=e, k=groups * e), verify=True)
    parts = x.reshape(2, groups, d, size, size + 1), w.reshape(groups, e, d, 3, 3)
    np.testing.assert_array_equal(placed(*parts), expected)


def test_no_quotient_is_left_and_results_go_to_their_places() -> None:
    x, w = numbers("f32", 1, 16, 20, 20), numbers("f32", 64, 4, 3, 3)
    text = str(polyml.einsum(GROUPS.format(t="f32", d=4, e=16)).trace(x, w))
    assert "//" not in text
    assert "y[i0, 16*i1 + i2, i3, i4] = " in text
    assert "w_in_order" in text  # lanes along filters, as where groups are an index


def test_what_follows_element_by_element_goes_along() -> None:
    x, w = numbers("f32", 8, 12, 12), numbers("f32", 12, 4, 3, 3)
    b, u = numbers("f32", 12), numbers("f32", 5, 12)
    a = np.maximum(grouped(np.pad(x, ((0, 0), (1, 1), (1, 1)))[None], w, 2)[0] + b[:, None, None], 0)
    expected = np.einsum("mk,kpq->mpq", u, a)
    f = polyml.einsum(LAYERS.format(d=4, e=6, also=""), verify=True)
    assert "//" not in f.lower(x, w, b, u).text("graph")
    np.testing.assert_array_equal(f(x, w, b, u), expected)
    found = polyml.einsum(LAYERS.format(d=4, e=6, also=", a"), verify=True)(x, w, b, u)
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], a)


@pytest.mark.parametrize(("k", "e"), [(10, 4), (4, 4), (6, 7)])
def test_blocks_that_are_not_whole_stay(k: int, e: int) -> None:
    x, w = numbers("f32", 2, 3 * -(-k // e), 8, 8), numbers("f32", k, 3, 2, 2)
    f = polyml.einsum(GROUPS.format(t="f32", d=3, e=e), verify=True)
    expected = np.stack([grouped(x[:, 3 * (i // e) : 3 * (i // e) + 3], w[i : i + 1], 1)[:, 0] for i in range(k)], 1)
    np.testing.assert_array_equal(f(x, w), expected)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.few(2)
def test_what_follows_has_blocks_of_its_own(size: int, both: bool) -> None:
    """A number for other blocks than those of the sum, or for two kinds of blocks."""
    x, w, u = numbers("f32", 4, 9, 9), numbers("f32", 16, 2, 3, 3), numbers("f32", 16)
    source = f"""
def f(x: f32["C H W"], w: f32["K D 3 3"], u: f32["G"]):
    y[k, p, q] = x[2*(k // 8) + c, p + r, q + s] * w[k, c, r, s]
    z[k, p, q] = y[k, p, q] * u[k // {size}]{" + u[k // 3]" if both else ""}
    return z
"""
    expected = grouped(x[None], w, 2)[0] * u[np.arange(16) // size, None, None]
    expected += u[np.arange(16) // 3, None, None] if both else 0
    np.testing.assert_array_equal(polyml.einsum(source, verify=True)(x, w, u), expected)


@pytest.mark.parametrize(("heads", "shared", "rows", "keys"), [(6, 3, 5, 19), (8, 2, 1, 40), (4, 4, 17, 16)])
@pytest.mark.few(1)
def test_heads_that_share_keys(heads: int, shared: int, rows: int, keys: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((heads, rows, 8), (heads // shared, keys, 8), (heads // shared, keys, 8))
    )
    scores = np.einsum("hid,hjd->hij", q.astype(float), np.repeat(k, shared, 0))
    e = np.exp(scores - scores.max(2, keepdims=True))
    expected = np.einsum("hij,hjd->hid", e / e.sum(2, keepdims=True), np.repeat(v, shared, 0))
    f = polyml.einsum(SHARED_KEYS.format(m=shared), verify=True)
    np.testing.assert_allclose(f(q, k, v), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_any_mixture_of_quotients(data: st.DataObject) -> None:
    """y[i, j] = sum[k](x[..] * w[..]) where places are indices, their quotients or their remainders."""
    sizes = {index: data.draw(st.sampled_from([1, 2, 4, 6, 12, 32]), index) for index in "ijk"}
    block = {index: data.draw(st.sampled_from([2, 3, 4, 16]), f"block of {index}") for index in "ijk"}
    grids = dict(zip("ijk", np.meshgrid(*(np.arange(sizes[i]) for i in "ijk"), indexing="ij"), strict=True))

    def place(index: str) -> tuple[str, np.ndarray, int]:
        n, b = sizes[index], block[index]
        forms = [
            (index, grids[index], n),
            (f"{index} // {b}", grids[index] // b, (n - 1) // b + 1),
            (f"{index} % {b}", grids[index] % b, min(n, b)),
        ]
        return data.draw(st.sampled_from(forms), f"place of {index}")

    first, second = [place(i) for i in "ik"], [place(i) for i in "kji"]
    x, w = numbers("f32", *(n for *_, n in first)), numbers("f32", *(n for *_, n in second))
    texts = [", ".join(text for text, *_ in places) for places in (first, second)]
    source = f"""
def f(x: f32["A B"], w: f32["D E F"], z: f32["{sizes["i"]} {sizes["j"]}"]):
    y: f32["{sizes["i"]} {sizes["j"]}"]
    y[i, j] = sum[k < {sizes["k"]}](x[{texts[0]}] * w[{texts[1]}])
    v[i, j] = 2 * y[i, j] + z[i, j]
    return v
"""
    z = numbers("f32", sizes["i"], sizes["j"])
    products = x[tuple(at for _, at, _ in first)] * w[tuple(at for _, at, _ in second)]
    np.testing.assert_array_equal(polyml.einsum(source, verify=True)(x, w, z), 2 * products.sum(2) + z)


@pytest.mark.parametrize("behind", [True, False])
def test_nothing_beside_the_operands_is_read(behind: bool) -> None:
    x, w = numbers("f32", 1, 6, 9, 9), numbers("f32", 32, 3, 3, 3)
    found = polyml.einsum(GROUPS.format(t="f32", d=3, e=16))(guarded(x, behind), guarded(w, behind))
    np.testing.assert_array_equal(found, grouped(x, w, 2))


def test_parts_that_are_put_together_twice() -> None:
    """The rows of one sum go into blocks of the next one, whose rows are joined twice: both copies are left out."""
    program = polyml.einsum(
        """
def f(x: f32["12 7"], v: f32["5 2 3"], w: f32["2 1 3"]):
    s[k, i, j] = sum[q, r](x[i + q, j + r] * v[k, q, r])
    a: f32["55 5"]
    a[i, j] = s[i//11, i % 11, j]
    t[k, i, j] = sum[q, r](a[i + q, j + r] * w[k, q, r])
    y: f32["110 3"]
    y[i, j] = t[i//55, i % 55, j]
    return y
""",
        precise=True,
    )
    rng = np.random.default_rng(0)
    x, v, w = (rng.integers(-3, 4, shape).astype("f4") for shape in ((12, 7), (5, 2, 3), (2, 1, 3)))
    rows = np.lib.stride_tricks.sliding_window_view(x, (2, 3))
    rows = np.lib.stride_tricks.sliding_window_view(np.einsum("ijqr,kqr->kij", rows, v).reshape(55, 5), (1, 3))
    assert np.array_equal(program(x, v, w), np.einsum("ijqr,kqr->kij", rows, w).reshape(110, 3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_without_terms_in_blocks(dynamic: bool) -> None:
    """Elements that no term hits are zeros, though the result's rows are in parts."""
    program = polyml.einsum(
        'def f(x: f64["3 N"]):\n    y: f64["6 N+1"]\n    y[i, j] = sum[r < 2, j + r < N](x[i//2, j + r])\n    return y\n',
        dynamic=dynamic,
    )
    x = np.arange(24.0).reshape(3, 8)
    padded = np.pad(x, ((0, 0), (0, 2)))
    assert np.array_equal(program(x, out=np.full((6, 9), np.nan)), np.repeat(padded[:, :-1] + padded[:, 1:], 2, axis=0))


PLACES = {
    "turned": ("5 12", "i % 5, i // 5", "x[i, 0]"),
    "with more": ("5 3 12", "i % 5, j, i // 5", "x[i, j] * w[i % 5] + i // 5"),
    "two indices": ("3 5 1 12", "j % 3, i % 5, j // 3, i // 5", "x[i, j]"),
    "by another number": ("5 12", "i % 5, i // 5", "x[i // 3, 0]"),
    "as it was": ("12 5", "i // 5, i % 5", "x[i, 1]"),
    "no whole blocks": ("7 9", "i % 7, i // 7", "x[i, 0]"),
    "backwards": ("5 12", "4 - i % 5, i // 5", "x[i, 0]"),
    "the last one counts": ("12", "i // 5", "x[i, 2]"),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_goes_to_quotients_and_remainders(name: str) -> None:
    shape, places, value = PLACES[name]
    x, w = numbers("f32", 60, 3), numbers("f32", 5)
    source = f'def f(x: f32["N M"], w: f32["K"]):\n    y: f32["{shape}"] = 7\n    for i in range(60):\n        for j in range({3 if "j" in places else 1}):\n            y[{places}] = {value}\n    return y\n'
    expected = np.full([int(n) for n in shape.split()], 7, np.float32)
    for i in range(60):
        for j in range(3 if "j" in places else 1):
            expected[eval(places, {"i": i, "j": j})] = eval(value, {"i": i, "j": j, "x": x, "w": w})
    np.testing.assert_array_equal(polyml.einsum(source)(x, w), expected)
    if name != "the last one counts":
        plain = (
            source.replace("    for i in range(60):\n", "")
            .replace("        for j in range(1):\n", "")
            .replace("        for j in range(3):\n", "")
            .replace("            y[", "    y[")
        )
        plain = plain.replace(" = 7", "") if name != "no whole blocks" else plain
        np.testing.assert_array_equal(polyml.einsum(plain)(x, w), expected)


def test_lanes_run_along_the_places() -> None:
    text = (
        polyml.einsum('def f(x: f32["N"]):\n    y: f32["5 120"]\n    y[i % 5, i // 5] = x[i]\n    return y\n')
        .lower(numbers("f32", 600))
        .text("loops")
    )
    assert "//5" not in text, text
    assert "vector" in text, text
