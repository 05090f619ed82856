"""Minima and maxima in the hope that no NaN comes along: NaN wins wherever it is, as in NumPy, and infinities and what was there before count."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import polyml as pm
from tests.pairs import pairwise

AVX512 = pm.Target("x86-64-v4", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)
AVX2 = pm.Target("x86-64-v3", l1_bytes=48 * 1024, l2_bytes=2048 * 1024)

BEST_PATHS = """
def best_paths(a: {dtype}["N K"], b: {dtype}["K M"]):
    c[i, j] = {op}[k](a[i, k] + b[k, j])
    return c
"""

FROM_THERE_ON = """
def from_there_on(a: {dtype}["N K"], b: {dtype}["K M"], c: {dtype}["N M"]):
    for k in range(K):
        c[i, j] = {op}(c[i, j], a[i, k] + b[k, j])
    return c
"""

ROWS = """
def rows(a: {dtype}["N K"]):
    r[i] = {op}[k](a[i, k])
    return r
"""

SPOILERS: dict[str, Callable[[np.ndarray, np.random.Generator], None]] = {
    "nothing": lambda x, rng: None,
    "one NaN": lambda x, rng: x.flat.__setitem__(rng.integers(x.size), np.nan),
    "some NaN": lambda x, rng: x.flat.__setitem__(rng.integers(x.size, size=5), np.nan),
    "first and last": lambda x, rng: x.flat.__setitem__([0, -1], np.nan),
    "infinities": lambda x, rng: x.flat.__setitem__(rng.integers(x.size, size=6), [np.inf, -np.inf] * 3),
    "all NaN": lambda x, rng: x.fill(np.nan),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.few(1)
def test_nan_wins_as_in_numpy(op: str, dtype: str) -> None:
    best = {"max": np.maximum, "min": np.minimum}[op]
    products, loops, rows = (
        pm.einsum(text.format(op=op, dtype=dtype), threads=1) for text in (BEST_PATHS, FROM_THERE_ON, ROWS)
    )
    rng = np.random.default_rng(5)
    for n, k, m in ((17, 23, 45), (9, 1, 7), (3, 40, 130)):
        for name, spoil in SPOILERS.items():
            a, b, c = (rng.standard_normal(s).astype(f"f{int(dtype[1:]) // 8}") for s in ((n, k), (k, m), (n, m)))
            for x in (a, b, c) if name != "all NaN" else (b,):
                spoil(x, rng)
            sums = a[:, :, None] + b
            expected = best.reduce(sums, axis=1)
            case = f"{name}: {n} {k} {m}"
            np.testing.assert_array_equal(products(a, b), expected, err_msg=case)
            np.testing.assert_array_equal(loops(a, b, c.copy()), best(c, expected), err_msg=case)
            np.testing.assert_array_equal(rows(a), best.reduce(a, axis=1), err_msg=case)


def test_one_instruction_for_each_and_a_mask_for_two() -> None:
    x = np.zeros((64, 64))
    lowered = pm.einsum(BEST_PATHS.format(op="max", dtype="f64"), target=AVX512, threads=1).lower(x, x)
    assert "vcmpordpd" in lowered.text("asm")
    neon = pm.einsum(BEST_PATHS.format(op="max", dtype="f64"), target=pm.Target("aarch64"), threads=1).lower(x, x)
    assert "fcmp ord" not in neon.text("llvm")


@pytest.mark.parametrize(("op", "instruction"), [("max", "vmaxps"), ("argmin", "vminps")])
def test_masks_are_vectors_where_no_registers_are_for_them(op: str, instruction: str) -> None:
    """One whose lanes are as wide as the numbers': narrower ones would be packed and unpacked in each step."""
    x = np.zeros((64, 1024), "f")
    text = pm.einsum(ROWS.format(op=op, dtype="f32"), target=AVX2, threads=1).lower(x).text("asm")
    loops = [block for block in re.split(r"^\.L\w+:\n", text, flags=re.M) if "vcmpordps" in block and "(%r" in block]
    body = re.split(r"^\tj\w+\t", loops[0], flags=re.M)[0]
    steps = body.count(instruction)
    assert steps >= 4
    assert body.count("vcmpordps") == steps // 2
    assert "vcmpunordps" not in body
    assert "vpackss" not in body


def test_short_rows_of_floats_are_searched_as_written_where_masks_are_vectors() -> None:
    short, long = (np.zeros((64, columns), "f") for columns in (64, 1024))
    program = pm.einsum(ROWS.format(op="argmin", dtype="f32"), target=AVX2, threads=1)
    assert "again." not in program.lower(short).text("llvm")
    assert "again." in program.lower(long).text("llvm")


def test_masks_take_turns() -> None:
    """A comparison under a mask waits six cycles for the one before: twelve in a step of one tile are four chains."""
    x = np.zeros((64, 64))
    program = pm.einsum(BEST_PATHS.format(op="max", dtype="f64").replace(" + ", " - "), target=AVX512, threads=1)
    (tile,) = (b for b in re.split(r"^\.L\w+:\n", program.lower(x, x).text("asm"), flags=re.M) if "vcmpordpd" in b)
    compared = re.findall(r"vcmpordpd.*%(k\d) \{%(k\d)\}", tile)
    waits = dict.fromkeys((k for pair in compared for k in pair), 0)
    for made, before in compared:
        waits[made] = waits[before] + 1
    assert len(compared) == 12
    assert max(waits.values()) == 3


def test_a_loop_that_reads_what_it_writes_runs_as_written() -> None:
    """Run again, it would start from other numbers."""
    text = """
def steps(x: f64["N"]):
    top: f64 = 0
    for i in range(N):
        top = max(top, x[i] - 0.5 * top)
    return top
"""
    x = np.random.default_rng(1).standard_normal(50)
    x[[3, 30]] = [np.nan, 2]
    x[3] = 1
    expected = 0.0
    for value in x:
        expected = max(expected, value - 0.5 * expected)
    assert pm.einsum(text, threads=1)(x) == pytest.approx(expected)
    x[7] = np.nan
    assert np.isnan(pm.einsum(text, threads=1)(x))


BESIDE = """
def beside(x: {dtype}["N K"], z: {dtype}["N K"]):
    h[n, k] = x[n, k] + z[n, k]
    m[n] = {op}[k](h[n, k])
    s[n] = sum[k](h[n, k] * z[n, k])
    return h, m, s
"""


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("op", "dtype"), [("max", "f32"), ("min", "f64")])
def test_what_the_loop_does_besides_it_does_once(op: str, dtype: str) -> None:
    program = pm.einsum(BESIDE.format(op=op, dtype=dtype), threads=1)
    rng = np.random.default_rng(8)
    for n, k in ((7, 70), (3, 1000)):
        for name, spoil in SPOILERS.items():
            x, z = (rng.standard_normal((n, k)).astype(f"f{int(dtype[1:]) // 8}") for _ in range(2))
            spoil(x, rng)
            h, m, s = program(x, z)
            np.testing.assert_array_equal(h, x + z, err_msg=name)
            np.testing.assert_array_equal(m, {"max": np.max, "min": np.min}[op](x + z, axis=1), err_msg=name)
            np.testing.assert_allclose(s, ((x + z) * z).sum(axis=1), rtol=1e-3, err_msg=name)


def _blocks(text: str, target: pm.Target, *arguments: np.ndarray) -> list[str]:
    """The basic blocks of its assembly."""
    return re.split(r"^\.L\w+:\n", pm.einsum(text, target=target, threads=1).lower(*arguments).text("asm"), flags=re.M)


def test_a_loop_that_does_more_has_one_instruction_for_each_too() -> None:
    x = np.zeros((64, 1024), "f")
    blocks = _blocks(BESIDE.format(op="max", dtype="f32"), AVX512, x, x)
    (loop,) = (b for b in blocks if "vcmpordps" in b and "vfmadd" in b)
    assert loop.count("vmaxps") == 2 * loop.count("vcmpordps")
    assert "vcmpunordps" not in loop


def test_lanes_without_nan_are_put_together_by_one_instruction_a_step() -> None:
    x = np.zeros((64, 1024), "f")
    blocks = _blocks(ROWS.format(op="max", dtype="f32"), AVX512, x)
    steps = [b for b in blocks if "vextractf128" in b and "vmaxps" in b]
    assert any("{%k" not in b for b in steps)
    assert any("{%k" in b for b in steps)
    assert all("vcmpunordps" in b for b in _blocks(ROWS.format(op="max", dtype="f32"), AVX2, x) if "vextractf128" in b)


CHOICES = """
def choices(x: {dtype}["N K"]):
    r[n] = {op}[k](x[n, k])
    c[k] = {op}[n](x[n, k])
    return r, c
"""


@pairwise(
    ("dtype", ["f64", "f32", "i32", "i64", "u32", "i16"]), ("op", ["argmax", "argmin"]), ("target", [AVX512, AVX2])
)
@pytest.mark.few(4)
def test_the_first_of_equals_as_in_numpy(op: str, dtype: str, target: pm.Target) -> None:
    """NaN comes before all numbers; a row of nothing but infinities has a first element, too. Rows of less than a vector, of several, side by side and alone."""
    if not target.runs_here:
        pytest.skip("another machine's instructions")
    program = pm.einsum(CHOICES.format(op=op, dtype=dtype), target=target, threads=1)
    best = {"argmax": np.argmax, "argmin": np.argmin}[op]
    rng = np.random.default_rng(7)
    kind = np.dtype(f"{dtype[0]}{int(dtype[1:]) // 8}")
    for shape in ((9, 5), (17, 16), (13, 67), (8, 640), (3, 1500), (1, 300), (70, 33)):
        spoilers = SPOILERS.items() if dtype[0] == "f" else {"nothing": lambda x, rng: None}.items()
        for name, spoil in spoilers:
            x = (rng.integers(0, 4, shape) if shape[1] % 2 else rng.integers(0, 10_000, shape)).astype(kind)
            spoil(x, rng)
            rows, columns = program(x)
            np.testing.assert_array_equal(rows, best(x, axis=1), err_msg=f"{name}: rows of {shape}")
            np.testing.assert_array_equal(columns, best(x, axis=0), err_msg=f"{name}: columns of {shape}")


@pytest.mark.parametrize("value", [np.inf, -np.inf, 0.0])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.few(3)
def test_rows_of_one_value_have_a_first_element(op: str, value: float) -> None:
    """What the registers begin with is as good as an infinity, and no element."""
    rows, columns = pm.einsum(CHOICES.format(op=op, dtype="f32"), threads=1)(np.full((20, 100), value, "f"))
    assert not rows.any()
    assert not columns.any()


def test_a_step_of_argmin_is_a_comparison_a_minimum_and_a_choice() -> None:
    x = np.zeros((64, 256), "f")
    text = pm.einsum(ROWS.format(op="argmin", dtype="f32"), target=AVX512, threads=1).lower(x).text("asm")
    loops = [
        block for block in re.split(r"^\.L\w+:\n", text, flags=re.M) if "vcmpltps" in block and "vcmpordps" in block
    ]
    body = re.split(r"^\tj\w+\t", loops[0], flags=re.M)[0]
    rows = body.count("vcmpltps")
    assert rows >= 4
    assert body.count("vminps") == rows
    assert body.count("vcmpordps") == rows // 2
    assert "vpcmpeq" not in body


def test_lanes_of_several_rows_are_combined_together() -> None:
    """A minimum of halves for two registers at a time, where each would take two more for itself; what is done where there was a NaN stands apart."""
    x = np.zeros((64, 256), "f")
    text = pm.einsum(ROWS.format(op="argmin", dtype="f32"), target=AVX512, threads=1).lower(x).text("llvm")
    (together,) = re.findall(r"^together[.\d]*:\n(.*?)^single", text, flags=re.M | re.S)
    assert "fcmp uno <" not in together
    assert len(re.findall(r"fcmp olt <4 x float>", together)) == len(re.findall(r"icmp ult <4 x i32>", together)) > 0


@pytest.mark.parametrize("columns", [17, 300, 1000])
def test_whole_numbers_beside_floats(columns: int) -> None:
    """Which have no NaN, and comparisons of their own."""
    program = """
    def f(x: f32["N M"], k: i32["N M"]):
        a[n] = max[m](x[n, m])
        b[n] = max[m](k[n, m])
        c[n] = min[m](k[n, m])
        d[n] = min[m](x[n, m])
        return a, b, c, d
    """
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((5, columns)).astype(np.float32)
    k = rng.integers(-9, 9, (5, columns)).astype(np.int32)
    function = pm.einsum(program)
    for _ in range(2):
        for found, expected in zip(function(x, k), (x.max(1), k.max(1), k.min(1), x.min(1)), strict=True):
            np.testing.assert_array_equal(found, expected)
        x[2, columns // 2] = np.nan


def test_places_that_each_iteration_makes_for_itself() -> None:
    """Rows of one element: an iteration of the loop along them has several places of its own, and hands none on."""
    program = pm.einsum(
        'def first(x: f64["N K"]):\n    m[i] = argmax[k](x[i, k])\n    y[i, k] = x[i, m[i]] - 2 * x[i, k]\n    return y\n',
        target=AVX512,
        threads=1,
    )
    x = np.arange(128.0)[:, None]
    assert program.lower(x).text("asm")
    if AVX512.runs_here:
        assert np.array_equal(program(x), -x)


LOOP = re.compile(r"^(\.LBB\w+):\n((?:(?!\.LBB).*\n)*?)\tj\w+\t\1$", re.MULTILINE)


def innermost(dtype: str, target: pm.Target) -> str:
    """The loop over whole vectors of a search along rows of 1000, as assembly."""
    x = np.zeros((64, 1000), f"f{int(dtype[1:]) // 8}")
    search = pm.einsum(ROWS.format(op="argmax", dtype=dtype), target=target, threads=1)
    code = search.lower(x).text("asm")
    return max((body for _, body in LOOP.findall(code)), key=lambda body: body.count("vmax"))


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda target: target.name)
def test_vectors_side_by_side_share_the_place_of_the_first(target: pm.Target) -> None:
    body = innermost("f32", target)
    assert body.count("vmaxps") in (4, 8)
    assert body.count("vpbroadcastd") == 1


def test_indices_beside_numbers_of_64_bits_have_as_many_where_masks_are_vectors() -> None:
    narrow, wide = innermost("f64", AVX2), innermost("f64", AVX512)
    assert narrow.count("vblendvpd") == narrow.count("vmaxpd") == 4
    assert "vpack" not in narrow
    assert "vpbroadcastd" in wide
    assert "vpbroadcastq" not in wide


@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema_in_place_are_stored_without_a_mask(op: str) -> None:
    """Whichever operand is the place itself, NaN in either wins, and with AVX2 no store is masked, whose mask would be a vector."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(1003) for _ in range(2))
    a[5], b[[3, 77]] = np.nan, np.nan
    expected = {"min": np.minimum, "max": np.maximum}[op](a, b)
    for value in (f"{op}(a[i], b[i])", f"{op}(b[i], a[i])"):
        text = f'def f(a: f64["N"], b: f64["N"]):\n    a[i] = {value}\n    return a\n'
        program = pm.einsum(text, target=AVX2)
        np.testing.assert_array_equal(program(a.copy(), b), expected)
        assert "vmaskmov" not in program.lower(np.zeros(1000), np.zeros(1000)).text("asm")
