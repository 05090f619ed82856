"""Operands that are made element by element are applied while panels are packed: results, and what stays an array of its own."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml
from polyml.schedule.pivots.parts import PivotParts
from polyml.schedule.prologues import applied_in_copies
from polyml.schedule.ways import pivots
from polyml.scop import dependences
from polyml.target import Target
from tests.codegen.test_contractions import inner_loops

SMALL = Target("host", l1_bytes=4096, l2_bytes=16 * 1024, cores=2)
"""This machine with caches that do not hold operands of test sizes."""

COVARIANCE = """
def covariance(x: f64["N M"], scale: f64):
    mean[j] = sum[i](x[i, j]) / N
    z[i, j] = scale * (x[i, j] - mean[j])
    c: f64["M M"]
    if i <= j:
        c[i, j] = sum[k](z[k, i] * z[k, j])
    if i > j:
        c[i, j] = c[j, i]
    return c
"""


def loops_of(text: str, rows: int = 70, columns: int = 90) -> str:
    return polyml.einsum(text, threads=1, target=SMALL).lower(np.ones((rows, columns)), 2.0).text("loops")


def test_copies_compute_what_they_copy() -> None:
    text = loops_of(COVARIANCE)
    assert " z[" not in text
    assert "z_panels[" in text
    assert text.count("scale * (x[") >= 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return c", "return c, z"),  # it is a result
        ("z[k, i] * z[k, j])", "z[k, i] * z[k, j]) + z[0, 0]"),  # something else reads it
        ("scale * (x[i, j] - mean[j])", "exp(scale * (x[i, j] - mean[j]))"),  # twice is too much
    ],
)
@pytest.mark.few(1)
def test_others_stay(old: str, new: str) -> None:
    assert " z[" in loops_of(COVARIANCE.replace(old, new))


PARTS = [
    ("    if i > j", "    if i == j:\n        c[i, j] = 0.0\n    if i > j"),  # its first column is not read as rows
    ("scale * (x[i, j] - mean[j])", "(1.5 * x[i, j] - 2 * mean[j]) / scale"),  # numbers
]


@pytest.mark.parametrize(("old", "new"), PARTS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_parts_and_numbers(old: str, new: str, threads: int) -> None:
    text = COVARIANCE.replace(old, new).replace("i <= j", "i < j" if "i == j" in new else "i <= j")
    assert " z[" not in loops_of(text)
    x = np.random.default_rng(0).random((70, 95))
    z = 2.0 * (x - x.mean(axis=0)) if "1.5" not in new else (1.5 * x - 2 * x.mean(axis=0)) / 2.0
    expected = z.T @ z
    if "i == j" in text:
        np.fill_diagonal(expected, 0.0)
    program = polyml.einsum(text, threads=threads, target=SMALL, verify=True)
    np.testing.assert_allclose(program(x, 2.0), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_register_tiles_do_not_spill_beside_copies_that_compute(name: str) -> None:
    """The copies are functions of their own, whose numbers and masks take no registers from the tiles."""
    text = COVARIANCE.replace(*PARTS[0]).replace(*PARTS[1]).replace("i <= j", "i < j")
    target = Target(name, l1_bytes=48 * 1024, l2_bytes=2 << 20)
    assembly = polyml.einsum(text, threads=1, target=target).lower(np.ones((700, 900)), 2.0).text("asm")
    kernels = [body for body in inner_loops(assembly) if body.count("vfmadd") >= 24]
    assert kernels
    for body in kernels:
        assert not re.findall(r"\(%rsp\S*\), %[yz]mm\d+|%[yz]mm\d+, \S*\(%rsp", body), body


def test_what_caches_hold_stays() -> None:
    assert " z[" in polyml.einsum(COVARIANCE, threads=1).lower(np.ones((70, 90)), 2.0).text("loops")


@pytest.mark.parametrize("shape", [(33, 33), (70, 95), (129, 128), (260, 41)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.few(1)
def test_results(shape: tuple[int, int], threads: int) -> None:
    x = np.random.default_rng(0).random(shape)
    program = polyml.einsum(COVARIANCE, threads=threads, target=SMALL, verify=True)
    z = 2.0 * (x - x.mean(axis=0))
    np.testing.assert_allclose(program(x, 2.0), z.T @ z, rtol=1e-11, atol=1e-12)


def test_an_operand_with_rows_along_the_sum() -> None:
    """It would be read where it lies, but is nowhere."""
    text = """
def f(a: f64["N K"], b: f64["K M"], s: f64["N"]):
    r[i, k] = a[i, k] * s[i]
    c: f64["N M"]
    if j <= i:
        c[i, j] = sum[k](r[i, k] * b[k, j])
    if j > i:
        c[i, j] = 0
    return c
"""
    rng = np.random.default_rng(0)
    a, b, s = rng.random((90, 70)), rng.random((70, 90)), rng.random(90)
    program = polyml.einsum(text, threads=1, target=SMALL)
    assert " r[" not in program.lower(a, b, s).text("loops")
    np.testing.assert_allclose(program(a, b, s), np.tril((a * s[:, None]) @ b), rtol=1e-12)


def test_copies_take_the_place_of_what_they_apply_in_the_dependences(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are put together from those that there are, and the same as dataflow finds."""
    found: list[PivotParts] = []

    def seen(parts: PivotParts) -> PivotParts:
        with monkeypatch.context() as inside:
            inside.setattr(dependences, "Analysis", lambda scop: pytest.fail("dataflow is asked once more"))
            made = applied_in_copies(parts)
        if made is not parts:
            found.append(made)
        return made

    monkeypatch.setattr(pivots, "applied_in_copies", seen)
    text = COVARIANCE.replace("scale * (x[i, j] - mean[j])", "x[i, j] - mean[j]")
    polyml.einsum(text, threads=1, target=SMALL).lower(np.ones((70, 90)), 2.0)
    (made,) = found
    again = dependences.analyse(made.scop)
    for kind in ("flow", "anti", "output", "reduction", "live_in", "live_out"):
        assert getattr(made.dependences, kind).is_equal(getattr(again, kind)), kind
