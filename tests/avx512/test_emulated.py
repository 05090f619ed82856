"""AVX-512's instructions as Bochs runs them, against NumPy: `.ci/avx512 tests/avx512` (skipped where the host is not emulated)."""
# ruff: noqa: F722, F821 - decorated functions are programs of the language, not Python

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.llvm.machine import Machine, compile_object
from polyml.target import Target
from polyml.testing import assert_close
from tests.avx512.emulated import text_of


@pytest.fixture
def assembly(pytestconfig: pytest.Config) -> Callable[..., str]:
    """Of the program for this host: what has to be in it shows that Bochs ran it."""
    if not pytestconfig.pluginmanager.has_plugin("tests.avx512.emulated"):
        pytest.skip("the host is not emulated")
    return lambda program, *args: program.lower(*args).text("asm")


def test_the_code_of_an_object_is_found() -> None:
    text = "define i32 @one() {\n  ret i32 1\n}\ndefine i32 @two() {\n  ret i32 2\n}\n"
    name, offset, size = text_of(compile_object(text, Machine("", "x86_64-unknown-linux-gnu", "x86-64")))
    assert (name, offset) == ("one", 0)
    assert size >= 12


def test_whole_vectors_and_masks(assembly: Callable[..., str]) -> None:
    @pm.einsum
    def f(x: pm.f32["N K"], w: pm.f32["K M"]):
        y[n, m] = x[n, k] * w[k, m]
        return y

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((37, 53), np.float32), rng.standard_normal((53, 71), np.float32)
    text = assembly(f, x, w)
    assert "zmm" in text
    assert "%k1" in text
    assert_close(f(x, w), x.astype(float) @ w, 53, pm.f32)


def test_products_of_bytes(assembly: Callable[..., str]) -> None:
    @pm.einsum
    def f(x: pm.u8["N K"], w: pm.i8["K M"]):
        y[n, m] = i32(x[n, k]) * i32(w[k, m])
        return y

    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (37, 64)).astype(np.uint8), rng.integers(-128, 128, (64, 71)).astype(np.int8)
    assert "vpdpbusd" in assembly(f, x, w)
    assert np.array_equal(f(x, w), x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.usefixtures("assembly")
def test_the_host_has_512_bits() -> None:
    assert Target.host().vector_bytes == 64
