"""AVX-512's instructions as Bochs runs them, against NumPy: `.ci/avx512 tests/avx512` (skipped where the host is not emulated)."""
# ruff: noqa: F722, F821 - decorated functions are programs of the language, not Python

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

import polyml as pm
from polyml.codegen.llvm.machine import Machine, compile_object, machine_of
from polyml.runtime import native
from polyml.target import Target
from polyml.testing import assert_close
from tests.avx512.emulated import count, text_of


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


def test_cold_functions_lie_in_a_section_of_their_own() -> None:
    text = "define i32 @one() {\n  ret i32 1\n}\ndefine internal i32 @two(i32 %x) cold noinline {\n  ret i32 %x\n}\n"
    text += "define i32 @three(i32 %x) {\n  %y = call i32 @two(i32 %x)\n  ret i32 %y\n}\n"
    machine = Machine("", "x86_64-unknown-linux-gnu", "x86-64")
    alone = text_of(compile_object(text.replace("cold noinline", "noinline"), machine))
    assert text_of(compile_object(text, machine))[:2] == alone[:2] == ("one", 0)
    assert b".text.unlikely" in compile_object(text, machine)
    assert text_of(compile_object(text, machine))[2] >= alone[2] - 16  # gaps that the functions' alignment leaves


SHIFTED = r"""
define i32 @run(i32 %x, ptr %at) {{
  %y = call i32 asm "kmovd $1, %k1\0A{name} $$15, %k1, %k2\0Akmovd %k2, $0", "=r,r,~{{k1}},~{{k2}}"(i32 %x)
  ret i32 %y
}}
"""
FETCHED = r"""
define i32 @run(i32 %x, ptr %at) {{
  %y = call i32 asm "kxnorw %k2, %k2, %k2\0Avpbroadcastd $1, %zmm19\0Avpmovsxdq %ymm19, %zmm20\0A{name} 24($2,%{index},8), %{into}{{%k2}}\0Avmovd %xmm18, $0", "=r,r,r,~{{xmm18}},~{{xmm19}},~{{xmm20}},~{{k2}},~{{memory}}"(i32 %x, ptr %at)
  ret i32 %y
}}
"""
STORED = r"""
define i32 @run(i32 %x, ptr %at) {{
  call void asm sideeffect "movl $$1, %eax\0Akmovd %eax, %k2\0Avpbroadcastd $0, %zmm19\0Avpmovsxdq %ymm19, %zmm20\0Avpbroadcastd $0, %zmm18\0A{name} %{into}, 24($1,%{index},8) {{%k2}}", "r,r,~{{eax}},~{{xmm18}},~{{xmm19}},~{{xmm20}},~{{k2}},~{{memory}}"(i32 %x, ptr %at)
  ret i32 0
}}
"""


def run(text: str, x: int, at: np.ndarray) -> int:
    loaded = native.load_object(compile_object(text, machine_of(Target.host())), ("run",))
    found: int = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(loaded.addresses["run"])(
        x, at.ctypes.data
    )
    return found


@pytest.mark.usefixtures("assembly")
@pytest.mark.parametrize(("name", "shifted"), [("kshiftlw", 0x8000), ("kshiftrw", 1)])
def test_masks_are_shifted_by_all_bits_but_one(name: str, shifted: int) -> None:
    assert run(SHIFTED.format(name=name), 0x8001, np.zeros(1)) == shifted


INDEXED = {
    "vgatherdps": ("zmm19", "zmm18"),
    "vgatherdpd": ("ymm19", "zmm18"),
    "vgatherqps": ("zmm20", "ymm18"),
    "vgatherqpd": ("zmm20", "zmm18"),
    "vpgatherdd": ("zmm19", "zmm18"),
    "vpgatherqq": ("zmm20", "zmm18"),
}


@pytest.mark.usefixtures("assembly")
@pytest.mark.parametrize("name", INDEXED)
def test_indices_are_in_any_register(name: str) -> None:
    index, into = INDEXED[name]
    numbers = np.arange(10, dtype=np.int64) * 1001
    assert run(FETCHED.format(name=name, index=index, into=into), 5, numbers) == 8008
    name = name.replace("gather", "scatter")
    assert run(STORED.format(name=name, index=index, into=into), 5, numbers) == 0
    assert numbers[8] & 0xFFFFFFFF == 5
    assert np.array_equal(np.delete(numbers, 8), np.delete(np.arange(10) * 1001, 8))


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


def test_what_is_executed_is_counted(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.pluginmanager.has_plugin("tests.avx512.emulated"):
        with pytest.raises(RuntimeError, match="not emulated"):
            count(lambda: None)
        return

    doubled = pm.einsum('def doubled(x: f32["N"]):\n    y[n] = 2 * x[n]\n    return y\n', threads=1)
    memory = np.zeros(2 * 16384 + 32, np.float32)
    at = -memory.ctypes.data % 64 // 4
    x, y = memory[at : at + 16000], memory[at + 16384 : at + 16384 + 16000]  # 62.5 KB each: more than L1, less than L2
    doubled(x, out=y)
    first, second = (count(lambda: doubled(x, out=y)) for _ in range(2))
    assert min(first.reads, first.writes) >= 1000
    assert first.straddling < 10
    assert 2000 < first.instructions < 20000
    brought = [
        [missed + requested for missed, requested in zip(c.missed, c.requested, strict=True)] for c in (first, second)
    ]
    assert 2000 <= brought[0][2] <= brought[0][0] < 2100
    assert brought[1][1] < 10 < 1000 < brought[1][0]
    assert count(lambda: doubled(x[1:], out=y[1:])).straddling >= 900
