"""Loops along short rows that lanes go across: written out where the lanes touch the rows whole, so that vectors are shuffled."""

from __future__ import annotations

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.loops import Assign
from polyml.codegen.passes.unrolling.unroll_rows import unroll_rows
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.printer import loops_text
from polyml.codegen.ranges import Ranges
from polyml.testing.verify import verify
from tests.codegen.programs import array, at, function, loop, put
from tests.pairs import pairwise

WIDE = pm.Target("x86-64-v4")

PLANES = "def planes(x: {t}['N C']):\n    y[c, n] = x[n, c]\n    return y\n"
PIXELS = "def pixels(x: {t}['C N']):\n    y[n, c] = x[c, n]\n    return y\n"
SCALED = "def scaled(x: {t}['N C'], m: f32['C']):\n    y[c, n] = (f32(x[n, c]) - m[c]) / 255\n    return y\n"
TYPES = {"u8": np.uint8, "i16": np.int16, "f16": np.float16, "f32": np.float32, "f64": np.float64, "c64": np.complex64}


@pairwise(("text", [PLANES, PIXELS]), ("name", TYPES), ("target", ["", "x86-64-v3"]))
@pytest.mark.few(1)
def test_pixels(text: str, name: str, target: str) -> None:
    target_ = pm.Target(target) if target else None
    if target_ is not None and not target_.runs_here:
        pytest.skip("needs AVX2")
    f = pm.einsum(text.format(t=name), target=target_, threads=1)
    rng = np.random.default_rng(0)
    for channels in (1, 2, 3, 4, 5, 6, 8, 9) if name in ("u8", "f32") else (2, 3, 4):
        for n in ((1, 16, 130), (15, 33))[channels % 2]:
            x = rng.integers(0, 200, (n, channels)).astype(TYPES[name])
            x = x if text is PLANES else np.ascontiguousarray(x.T)
            np.testing.assert_array_equal(f(x), x.T, err_msg=f"{channels} channels, {n}")
            np.testing.assert_array_equal(f(np.repeat(x, 2, axis=1)[:, ::2]), x.T)


@pytest.mark.parametrize("channels", [2, 3, 4, 8])
def test_what_is_computed_of_pixels(channels: int) -> None:
    rng = np.random.default_rng(1)
    x, m = rng.integers(0, 256, (37, channels), np.uint8), rng.random(channels, np.float32)
    assert verify(pm.einsum(SCALED.format(t="u8"), threads=1), x, m)


@pytest.mark.parametrize("text", [PLANES, PIXELS], ids=["planes", "pixels"])
@pytest.mark.parametrize("channels", [2, 3, 4, 5])
def test_vectors_are_whole(text: str, channels: int) -> None:
    """As many loads and stores as there are vectors of the array."""
    x = np.zeros((64, channels) if text is PLANES else (channels, 64), np.float32)
    lowered = pm.einsum(text.format(t="f32"), target=WIDE, threads=1).lower(x)
    llvm = lowered.text("llvm")
    assert "masked" not in llvm
    assert llvm.count("load <16 x float>") == channels
    assert llvm.count("store <16 x float>") == channels
    # By halves; of three and five vectors two and three selections each, and one within each vector.
    assert llvm.count("shufflevector") == channels * {2: 1, 3: 3, 4: 2, 5: 4}[channels]


@pytest.mark.parametrize(
    ("width", "places", "written_out"),
    [
        (4, (0, 4), True),
        (4, (0, 3), False),
        (4, (1, 4), False),
        (5, (0, 5), True),
        (7, (0, 7), True),
        (9, (0, 9), False),
    ],
)
def test_which_rows(width: int, places: tuple[int, int], written_out: bool) -> None:
    """Those of up to eight elements that are touched whole."""
    x, y = array("x", 64, width), array("y", width, 64)
    copy = loop("j", *places, Assign(target=put("y", "j", "i"), value=at("x", "i", "j")))
    given = function(loop("i", 0, 64, copy, kind="vector"), arguments=[x, y], written="y")
    lanes = vectorize(given, vector_bytes=64)[0]
    made = unroll_rows(lanes)
    assert (made is not lanes) == written_out
    if written_out:
        assert loops_text(made).count("unroll") == 1


@pytest.mark.parametrize("text", [PLANES, PIXELS], ids=["planes", "pixels"])
def test_complex_pixels_are_whole_vectors(text: str) -> None:
    x = np.zeros((64, 2) if text is PLANES else (2, 64), np.complex64)
    llvm = pm.einsum(text.format(t="c64"), target=WIDE, threads=1).lower(x).text("llvm")
    assert "scatter" not in llvm
    assert "gather" not in llvm
    assert llvm.count("store <32 x float>") == 2


SUMS = """
def sums(x: {t}["N C"], w: f32["C"]):
    a[n] = f32(x[n, c]) * w[c]
    b[n] = max[c](x[n, c])
    d[n] = sqrt(sum[c](f32(x[n, c])**2))
    return a, b, d
"""


@pytest.mark.parametrize("name", ["u8", "f32", "f64"])
@pytest.mark.few(2)
def test_sums_of_short_rows(name: str) -> None:
    rng = np.random.default_rng(2)
    for channels in (2, 5, 6, 7, 8, 9) if name == "u8" else (2, 7, 8):
        x, w = rng.integers(0, 200, (37, channels)).astype(TYPES[name]), rng.random(channels, np.float32)
        assert verify(pm.einsum(SUMS.format(t=name), threads=1), x, w)


def test_terms_of_short_rows_are_shuffled() -> None:
    """Six vectors and their shuffles for each vector of sums, though lanes along the rows would be nearly all in use."""
    text = "def sums(x: f64['N C']):\n    y[n] = x[n, c]\n    return y\n"
    for channels in (6, 7):
        lowered = pm.einsum(text, target=WIDE, threads=1).lower(np.zeros((640, channels)))
        assert "vector(8) for (n" in lowered.text("loops")
    llvm = pm.einsum(text, target=WIDE, threads=1).lower(np.zeros((640, 6))).text("llvm")
    assert "gather" not in llvm
    assert "masked" not in llvm


def test_iterations_are_asked_of_loops_that_lanes_go_across(monkeypatch: pytest.MonkeyPatch) -> None:
    body = loop("n", 0, 16, loop("c", 0, 4, Assign(target=put("y", "n", "c"), value=at("x", "c", "n"))))
    rows = function(body, arguments=(array("x", 4, 16), array("y", 16, 4)), written="y")
    asked: list[Ranges] = []
    monkeypatch.setattr(Ranges, "constant", lambda ranges, value: asked.append(ranges))
    assert unroll_rows(rows) is rows
    assert not asked
