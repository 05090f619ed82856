"""Sums that units for products make: where those would be idle, the same numbers to the last bit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml as pm
from polyml.target import _host_fields

APART = pm.Target("x86-64-v4", adds_apart=True)
SHARED = pm.Target("x86-64-v4")
HALVES = pm.Target("x86-64-v3", adds_apart=True), pm.Target("x86-64-v3")
"""The same with vectors half as long, which more machines have."""

PAIRS = """
def pairs(a: f64["N K"], b: f64["M K"]):
    c[i, j] = {value}
    return c
"""

PATHS = PAIRS.format(value="min[k](a[i, k] + b[j, k])")
WAYS = PAIRS.format(value="max[k](abs(a[i, k] - b[j, k]))")
BLOCKS = PAIRS.format(value="sum[k](abs(a[i, k] - b[j, k]))")
SQUARES = PAIRS.format(value="sum[k]((a[i, k] - b[j, k])**2)")
RUNNING = """
def running(a: f64["N K"], b: f64["M K"]):
    for i in range(1, N):
        a[i, k] = max(a[i - 1, k] - 0.5, a[i, k])
    return a
"""
TERMS = """
def terms(a: f64["N K"], b: f64["M K"]):
    c[i, k] = a[i, k] + b[i, k]
    return c
"""


@pytest.mark.parametrize(
    ("cpu", "apart"), [("znver3", True), ("znver5", True), ("znver4", False), ("sapphirerapids", False)]
)
def test_which_cores_have_units_for_sums(cpu: str, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: cpu)
    fields = _host_fields.__wrapped__()
    assert fields["adds_apart"] == (apart and fields["fma"])


def _instructions(text: str, target: pm.Target) -> tuple[int, int]:
    """Of the block of assembly that adds most: sums by the units for products, and by those for sums."""
    x = np.zeros((64, 64))
    asm = pm.einsum(text, target=target, threads=1).lower(x, x).text("asm")
    blocks = re.split(r"^\.L\w+:\n", asm, flags=re.M)
    counts = [(len(re.findall("vfmadd|vfmsub", b)), len(re.findall("vaddpd|vsubpd", b))) for b in blocks]
    return max(counts, key=sum)


@pytest.mark.parametrize(("text", "part"), [(PATHS, 1.0), (WAYS, 1.0), (BLOCKS, 0.5)], ids=["paths", "ways", "blocks"])
@pytest.mark.few(1)
def test_sums_move_until_both_kinds_of_units_are_as_busy(text: str, part: float) -> None:
    products, sums = _instructions(text, APART)
    assert products == part * (products + sums) > 0
    assert _instructions(text, SHARED)[0] == 0


@pytest.mark.parametrize("text", [SQUARES, RUNNING, TERMS], ids=["products", "recurrence", "loads"])
def test_sums_stay_where_that_gains_nothing(text: str) -> None:
    """Differences beside as many products; a sum that the next one waits for; two loads for each sum."""
    assert _instructions(text, APART) == _instructions(text, SHARED)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("targets", [(APART, SHARED), HALVES], ids=["AVX-512", "AVX2"])
@pytest.mark.parametrize("text", [PATHS, WAYS, BLOCKS], ids=["paths", "ways", "blocks"])
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.few(3)
def test_the_same_bits(text: str, precise: bool, targets: tuple[pm.Target, pm.Target]) -> None:
    if not targets[0].runs_here:
        pytest.skip(f"needs {targets[0].name}")
    apart, shared = (pm.einsum(text, target=t, threads=1, precise=precise) for t in targets)
    rng = np.random.default_rng(3)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1.7e308]
    for n, m, k in ((17, 23, 45), (9, 8, 1)):
        a, b = rng.standard_normal((n, k)), rng.standard_normal((m, k))
        a.flat[: len(special)] = special
        b.flat[: len(special)] = special[::-1]
        expected, found = shared(a, b), apart(a, b)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_vectors_of_part_of_a_register() -> None:
    """Two columns have two lanes, for which LLVM's constraint of a vector register has none: it would end the process."""
    paths = pm.einsum(PATHS.replace("f64", "f32"), target=APART, threads=1)
    lowered = paths.lower(np.zeros((10, 2), "f4"), np.zeros((2, 2), "f4"))
    text = lowered.text("llvm")
    assert re.search(r"@llvm\.fma\.v2f32", text), text
    assert not re.search(r"call <\d+ x float> asm", text), text
    assert "vfmadd" in lowered.text("asm")
