"""Subscripts that are computed from elements of tensors: by functions, products and quotients, on both sides."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.errors import DTypeError, NotAffineError, ShapeError, SubscriptError
from polyml.testing import verify
from tests.sampled import in_turn

TABLE = np.random.default_rng(0).standard_normal(60)
PARAMETERS = 'r: f64["R"], x: f64["T N"], o: i8["T N"], k: i64["T N"]'
ARGUMENTS = (
    TABLE,
    np.random.default_rng(1).random((3, 5)),
    np.random.default_rng(2).integers(0, 14, (3, 5), dtype=np.int8),
    np.random.default_rng(3).integers(-3, 4, (3, 5)),
)
READS = {
    "r[4*i32(o[t, n]) + 1]": lambda r, x, o, k: r[4 * o.astype(int) + 1],
    "r[i64(floor(x[t, n] * R))]": lambda r, x, o, k: r[(x * len(r)).astype(int)],
    "r[min(i64(x[t, n] * 99) + n, R - 1)]": lambda r, x, o, k: r[np.minimum((x * 99).astype(int) + np.arange(5), 59)],
    "r[where(x[t, n] > 0.5, t, n)]": lambda r, x, o, k: r[np.where(x > 0.5, np.arange(3)[:, None], np.arange(5))],
    "r[abs(k[t, n])]": lambda r, x, o, k: r[abs(k)],
    "r[k[t, n] * k[t, n] + t]": lambda r, x, o, k: r[k * k + np.arange(3)[:, None]],
    "r[n * o[t, n]]": lambda r, x, o, k: r[np.arange(5) * o],
    "r[k[t, n] ** 2]": lambda r, x, o, k: r[k**2],
    "r[50 // (k[t, n] ** 2 + 1)]": lambda r, x, o, k: r[50 // (k**2 + 1)],
    "where(k[t, n] < 0, 0, r[k[t, n]])": lambda r, x, o, k: np.where(k < 0, 0, r[k]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("read", READS)
@pytest.mark.few(9)
def test_reads(read: str, dynamic: bool) -> None:
    text = f"def f({PARAMETERS}):\n    y: f64['T N']\n    y[t, n] = {read}\n    return y\n"
    f = polyml.einsum(text, dynamic=dynamic)
    np.testing.assert_array_equal(f(*ARGUMENTS), READS[read](*ARGUMENTS))
    assert verify(f, *ARGUMENTS)


@pytest.mark.parametrize("place", ["i64(floor(x[t, n] * 10))", "min(i64(x[t, n] * 20), 9)", "k[t, n] * k[t, n]"])
def test_additions(place: str) -> None:
    f = polyml.einsum(f"def f({PARAMETERS}):\n    h: i64['10'] = 0\n    h[{place}] += 1\n    return h\n")
    assert verify(f, *ARGUMENTS)
    assert f(*ARGUMENTS).sum() == 15


PIVOTS = """
def f(a: f64["N N"], w: i64["N"]):
    for k in range(N):
        p = argmax[i, i >= k](abs(a[i, k]))
        t[j] = a[p, j]
        a[p, j] = a[k, j]
        a[k, j] = t[j]
        if i > k:
            a[i, k] = a[i, k] / a[k, k]
        if i > k and j > k:
            a[i, j] -= a[i, k] * a[k, j]
    return a
"""
PATHS = """
def f(a: f64["N N"], w: i64["E"]):
    y: f64["N"] = inf
    y[0] = 0
    for e in range(E):
        if e > 1:
            y[w[e]] = min(y[w[e]], y[w[e - 1]] + a[w[e - 1], w[e]])
    return y
"""


@pytest.mark.parametrize("text", [PIVOTS, PATHS])
def test_one_instance_assigns_at_a_computed_place(text: str) -> None:
    a, w = np.random.default_rng(0).standard_normal((6, 6)), np.array([99, 0, 3, 1, 3, 5, 0])
    f = polyml.einsum(text)
    assert verify(f, a, w)
    with pytest.raises(SubscriptError):
        polyml.einsum(PATHS)(a, w - (w == 5) * 6)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["y: f64['N'] = 0", "y[w[n]] = x[n]"], "hit each element once"),
        (["y: f64['N']", "for n in range(N):", "    y[w[n]] = x[n]"], "no value yet"),
    ],
)
def test_refused_assignments_at_computed_places(lines: list[str], message: str) -> None:
    text = "\n    ".join(["def f(x: f64['N'], w: i64['N']):", *lines, "return y"]) + "\n"
    with pytest.raises(ShapeError, match=message):
        polyml.einsum(text)(np.ones(3), np.arange(3))


def test_the_index_is_summed_as_in_any_access() -> None:
    f = polyml.einsum(f"def f({PARAMETERS}):\n    y[n] = r[i64(x[t, n] * 9) + t]\n    return y\n")
    x = ARGUMENTS[1]
    np.testing.assert_allclose(f(*ARGUMENTS), TABLE[(x * 9).astype(int) + np.arange(3)[:, None]].sum(axis=0))


@pytest.mark.parametrize("value", [1.0, -0.2, np.nan, np.inf, -1e300])
def test_out_of_range(value: float) -> None:
    """What is computed with roundings is held inside, whatever its check says: they need not round alike."""
    text = 'def f(r: f64["R"], x: f64["N"], b: f64["N"]):\n    y[n] = r[i64(floor(x[n] * R + b[n]))]\n    return y\n'
    f, x = polyml.einsum(text), np.linspace(0, 0.99, 9)
    b = np.zeros(9)
    np.testing.assert_array_equal(f(TABLE, x, b), TABLE[(x * 60).astype(int)])
    assert "min(u32(" in f.lower(TABLE, x, b).text("graph")
    x[4] = value
    with pytest.raises(SubscriptError, match=r"an index into dimension 0 of r \(extent 60\) is out of range"):
        f(TABLE, x, b)


@pytest.mark.parametrize(
    ("place", "sides"),
    [
        ("i[n] + 1", ""),
        ("2 * i[n] - i[n] + 1", "<>="),  # of both terms as if they were two numbers
        ("58 - i[n]", ""),
        ("i[n] + 3", ">="),
        ("i[n] - 2", "<"),
        ("i[n] * i[n] - 2", "<>="),
    ],
)
def test_places_that_clamped_numbers_lead_to_are_checked_where_they_may_be_outside(place: str, sides: str) -> None:
    """Within what sums, differences and products can be, and on the side that they can be beyond."""
    text = f'def f(r: f64["R"], x: f64["N"]):\n    i[n] = min(max(i64(x[n]), 1), 57)\n    y[n] = r[{place}]\n    return y\n'
    f, x = polyml.einsum(text), np.array([-3.0, 2, 7, 1, 3.5])
    i = np.clip(x.astype(int), 1, 57)
    lowered = f.lower(TABLE, x).text("graph")
    assert ("out_of_range" in lowered) == (sides != "")
    checks = [line.partition("   for ")[0] for line in lowered.splitlines() if "any" in line]
    assert all(
        (" < " in line) == ("<" in sides.replace(">=", "")) and (">=" in line) == (">=" in sides) for line in checks
    )
    places = eval(place.replace("[n]", ""), {"i": i})  # a text of this file's
    if places.min() < 0:
        with pytest.raises(SubscriptError):
            f(TABLE, x)
    else:
        np.testing.assert_array_equal(f(TABLE, x), TABLE[places])


def test_arithmetic_that_wraps_has_no_range() -> None:
    """100 + 100 is -56 in eight bits."""
    text = (
        'def f(r: f64["R"], o: i8["N"]):\n    i[n] = min(max(o[n], 0), 100) + 100\n    y[n] = r[i[n]]\n    return y\n'
    )
    f, r = polyml.einsum(text), np.arange(300.0)
    np.testing.assert_array_equal(f(r, np.array([-5, 3, 27], np.int8)), [100, 103, 127])
    with pytest.raises(SubscriptError):
        f(r, np.array([-5, 3, 28], np.int8))


NARROW = {
    "t + d[c]": lambda d, t: t + d,
    "2 * d[c] + e[c]": lambda d, t: 2 * d + d[::-1],
    "d[c] * d[c] % 999": lambda d, t: d * d % 999,
    "max(d[c], 5 * t)": lambda d, t: np.maximum(d, 5 * t),
    "where(t > 50, d[c], 600 - d[c])": lambda d, t: np.where(t > 50, d, 600 - d),
    "abs(e[C - 1 - c] - 900) - t": lambda d, t: abs(d - 900) - t,
    "i64(d[c]) + 4 * t": lambda d, t: d + 4 * t,
}


@pytest.mark.parametrize(("place", "dtype"), in_turn(NARROW, ("u1", "i1", "i2")))
@pytest.mark.few(3)
def test_small_numbers_do_not_wrap_in_subscripts(place: str, dtype: str) -> None:
    """They are promoted, as in C; elsewhere they wrap."""
    largest = {"u1": 255, "i1": 127, "i2": 300}[dtype]
    r, o = np.arange(1000.0), np.zeros(70)
    d = np.random.default_rng(0).integers(0, largest, 5, endpoint=True).astype(dtype)
    d[1] = largest
    name = f"{d.dtype.kind}{8 * d.itemsize}"
    f = polyml.einsum(
        f'def f(r: f64["R"], d: {name}["C"], e: {name}["C"], o: f64["T"]):\n    y[c, t] = r[{place}] + o[t]\n    return y\n'
    )
    expected = NARROW[place](d.astype(int)[:, None], np.arange(70)[None])
    np.testing.assert_array_equal(f(r, d, d[::-1], o), expected + o)
    assert verify(f, r, d, d[::-1], o)


def test_each_shift_of_eight_bits_is_looked_at_once() -> None:
    f = polyml.einsum('def f(r: f64["R"], d: u8["C"], o: f64["T"]):\n    y[c, t] = r[t + d[c]] * o[t]\n    return y\n')
    d, o = np.array([0, 255, 30], np.uint8), np.ones(50)
    assert "any_c" in f.lower(TABLE, d, o).text("graph")
    with pytest.raises(SubscriptError):
        f(TABLE, d, o)
    assert "any" not in f.lower(np.zeros(305), d, o).text("graph")
    np.testing.assert_array_equal(f(np.arange(305.0), d, o), d[:, None] + np.arange(50.0))


@pytest.mark.parametrize(
    ("subscript", "error", "message"),
    [
        ("floor(x[t, n] * R)", DTypeError, r"only integers can be subscripts(.|\n)*convert it: i64"),
        ("o[t, n] / 2", NotAffineError, r"not an integer(.|\n)*`//`"),
        ("2 * (o[t, n] > 3)", NotAffineError, r"not affine(.|\n)*mask"),
        ("k[t, n] * argmax[i](r[i])", NotAffineError, "not affine|multiplies"),
        ("o[t, n] // 0", NotAffineError, r"divides by 0(.|\n)*1 or more"),
    ],
)
def test_refused(subscript: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        polyml.einsum(f"def f({PARAMETERS}):\n    y[t, n] = r[{subscript}]\n    return y\n")(*ARGUMENTS)


@pytest.mark.parametrize("dtype", ["i64", "i32", "u8"])
@pytest.mark.few(2)
def test_shifts_that_a_tensor_tells(dtype: str) -> None:
    """Whole vectors from there on, and one look at each shift."""
    text = f'def f(x: f32["C T"], d: {dtype}["C"], m: f32["M"]):\n    y: f32["M"]\n    y[t] = sum[c](x[c, t + d[c]] - x[c, T - 1 - t - d[c]])\n    return y\n'
    rng = np.random.default_rng(0)
    x, d = (
        rng.integers(0, 9, (5, 90)).astype(np.float32),
        rng.integers(0, 30, 5).astype(polyml.dtypes.DTYPES[dtype].numpy),
    )
    all_of = np.zeros(61, np.float32)
    for target in ("x86-64-v3", "host"):
        f = polyml.einsum(text, target=target)
        for m in (1, 7, 61):
            expected = sum(x[c, k : k + m] - x[c, ::-1][k : k + m] for c, k in enumerate(d.tolist()))
            np.testing.assert_array_equal(f(x, d, all_of[:m]), expected)
            assert verify(f, x, d, all_of[:m])
        d[3] = 29
        f(x, d, all_of)
        d[3] = 30
        with pytest.raises(SubscriptError):
            f(x, d, all_of)
        d[3] = 7
    if dtype == "i64":
        lowered = polyml.einsum(text, target="x86-64-v3").lower(x, d, all_of)
        assert "vinsertps" not in lowered.text("asm")
        assert "any_c" in lowered.text("graph")


@pytest.mark.parametrize("shift", [-3, -1, 2**63 - 1, -(2**63), 2**63 - 5])
def test_shifts_out_of_range(shift: int) -> None:
    """Sums with the last place that wrap are out of range as well."""
    f = polyml.einsum('def f(x: f32["T"], d: i64["C"]):\n    y: f32["C 20"]\n    y[c, t] = x[t + d[c]]\n    return y\n')
    x, d = np.arange(40, dtype=np.float32), np.arange(21)
    np.testing.assert_array_equal(f(x, d), x[np.arange(20) + d[:, None]])
    d[4] = shift
    with pytest.raises(SubscriptError):
        f(x, d)


def test_shifts_under_conditions_and_of_loops() -> None:
    """Not all places are reached for each shift."""
    sources = (
        'def f(x: f32["T"], d: i64["C"]):\n    y: f32["C 20"] = 0\n    if t < 20 - c:\n        y[c, t] = x[t + d[c]]\n    return y\n',
        'def f(x: f32["T"], d: i64["C"]):\n    y: f32["C 20"] = 0\n    for c in range(C):\n        for t in range(20 - c):\n            y[c, t] = x[t + d[c]]\n    return y\n',
    )
    x, d = np.arange(40, dtype=np.float32), 20 + np.arange(20)
    expected = np.zeros((20, 20), np.float32)
    for c in range(20):
        expected[c, : 20 - c] = x[d[c] : d[c] + 20 - c]
    for source in sources:
        np.testing.assert_array_equal(polyml.einsum(source)(x, d), expected)


@pytest.mark.parametrize(
    ("place", "checked"),
    [
        ("max(0, min(i64(x[n] * B), B - 1))", False),
        ("max(0, min(i64(x[n] * B), B))", True),
        ("min(i64(x[n] * B), B - 1)", True),
        ("max(0, i64(x[n] * B))", True),
        ("i64(x[n] * 9) % B", False),
        ("i64(x[n] * 9) % (B + 1)", True),
    ],
)
@pytest.mark.few(4)
def test_places_within_an_extent_that_is_no_number(place: str, checked: bool) -> None:
    program = polyml.einsum(
        f'def f(x: f64["N"], B: int):\n    h: i64["B"] = 0\n    h[{place}] += 1\n    return h\n', dynamic=True
    )
    x = np.random.default_rng(0).random(100)
    assert ("out_of_range" in program.lower(x, 7).text("graph")) == checked
    for bins in (1, 7):
        places = (x * 9).astype(int) % bins if "%" in place else (x * bins).astype(int)
        if "(B + 1)" not in place:
            np.testing.assert_array_equal(program(x, bins), np.bincount(places, minlength=bins))
    if "%" not in place and checked:
        with pytest.raises(SubscriptError):
            program(x - 1 if "max" not in place else x + 1, 7)


@pytest.mark.parametrize("place", ["p % N", "q[p % N]"])
def test_places_that_a_register_tells_change_with_it(place: str) -> None:
    """What was read there is read anew, though no array was written in between."""
    program = polyml.einsum(
        f'def f(x: f64["N"], q: i64["N"], d: i64["T 1"]):\n    p: i64\n    s: f64\n    p = 0\n    s = 0\n    for t in range(T):\n'
        f"        s += x[{place}]\n        p += d[t, k]\n        s += 2 * x[{place}]\n        p += d[t, k]\n    return s, p\n"
    )
    x, q, d = np.arange(1.0, 8.0), np.array([3, 0, 6, 1, 5, 2, 4]), np.array([[1], [0], [2], [5]])
    total, at = 0.0, 0
    for step in d[:, 0]:
        for weight in (1, 2):
            total += weight * x[q[at % 7] if "q" in place else at % 7]
            at += step
    assert program(x, q, d) == (total, at)
