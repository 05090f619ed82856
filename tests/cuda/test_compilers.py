"""nvcc and NVRTC: which is used, and that both take every kind of generated kernel's text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import polyml.runtime.cuda.compile as compiling
from polyml.demo.showcase import SHOWCASES
from polyml.errors import CodegenError, DeviceUnavailableError, PolymlError
from polyml.runtime.cuda.compile import Compiler, compile_cubin, compiler_report, find_compiler, find_nvcc
from polyml.runtime.cuda.device import CudaCode
from polyml.runtime.cuda.nvrtc import Nvrtc, find_nvrtc
from polyml.runtime.cuda.report import parse_report, usage_lines
from tests.cuda.batch import compile_batch
from tests.cuda.every_kind import every_kind
from tests.cuda.test_programs import SHAPES
from tests.cuda.test_tiles import LARGE, MATMUL

CODE = CudaCode(text='extern "C" __global__ void f(float* x) { x[0] = 1; }\n', kernels=(), architecture="sm_80")
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="NVRTC is not installed")


def made_up(name: str, calls: list[list[str]]) -> Compiler:
    def run(text: str, options: object) -> tuple[bytes, str]:
        calls.append(list(options))  # type: ignore[call-overload]
        return text.encode(), f"compiled by {name}"

    return Compiler(name, "1.0", run)


def test_what_is_kept_belongs_to_a_compiler_and_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_CACHE", str(tmp_path / "cache"))
    calls: list[list[str]] = []
    for name in ("nvrtc", "nvcc", "nvrtc"):
        monkeypatch.setattr(compiling, "find_compiler", lambda _, name=name: made_up(name, calls))
        assert compile_cubin(CODE, "sm_80") == CODE.text.encode()
        assert compiler_report(CODE, "sm_80") == f"compiled by {name}"
    assert [len(c) for c in calls] == [2, 3], "the third is known"
    precise = CudaCode(text=CODE.text, kernels=(), architecture="sm_80", precise=True)
    compile_cubin(precise, "sm_80")
    compile_cubin(precise, "sm_90")
    assert calls[2:] == [
        [f"--gpu-architecture={name}", "--ptxas-options=-v", "--fmad=false"] for name in ("sm_80", "sm_90")
    ]


def test_which_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_nvrtc", lambda _: None)
    monkeypatch.setattr(compiling, "find_nvcc", lambda: None)
    assert find_compiler() is None
    with pytest.raises(DeviceUnavailableError, match="no CUDA compiler"):
        compile_cubin(CODE, "sm_80")
    monkeypatch.setattr(compiling, "find_nvcc", lambda: "/bin/true")
    monkeypatch.setattr(compiling, "_version", lambda path: "1.0")
    found = find_compiler()
    assert found is not None
    assert found.name == "nvcc"
    monkeypatch.setenv("POLYML_CUDA_COMPILER", "nvrtc")
    assert find_compiler() is None
    monkeypatch.setenv("POLYML_CUDA_COMPILER", "gcc")
    with pytest.raises(PolymlError, match='POLYML_CUDA_COMPILER is "gcc"'):
        find_compiler()


@needs_nvrtc
def test_nvrtc_compiles_what_nvcc_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asynchronous copies too, whose header it gets from here."""
    monkeypatch.setenv("POLYML_CACHE", "0")
    monkeypatch.setenv("POLYML_CUDA_COMPILER", "nvrtc")
    rng = np.random.default_rng(0)
    programs = [(c.text, [rng.standard_normal(s, dtype=np.float32) for s in SHAPES[c.name]]) for c in SHOWCASES]
    text = compile_batch([*programs, (MATMUL, LARGE)], build=False).text
    assert "__pipeline_memcpy_async" in text
    names = set(re.findall(r"__launch_bounds__\([\d, ]+\) (\w+)\(", text))
    for architecture in ("sm_80", "sm_90"):
        code = CudaCode(text=text, kernels=(), architecture=architecture)
        assert compile_cubin(code, architecture)[:4] == b"\x7fELF"
        report = parse_report(compiler_report(code, architecture))
        assert set(report) == names
        # Of a padded convolution for sm_80, whose loops have other bounds in every thread, NVRTC 12.8 spills 12 bytes; 13 nothing.
        assert sum(usage.spilled for usage in report.values()) <= 12


@pytest.mark.skipif(find_nvrtc("sm_70") is None, reason="no NVRTC that compiles for sm_70 (nvidia-cuda-nvrtc-cu12)")
def test_everything_compiles_for_sm_70(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs that CUDA 13 left: another NVRTC than the first one serves them, wherever both are installed."""
    monkeypatch.setenv("POLYML_CACHE", "0")
    monkeypatch.setenv("POLYML_CUDA_COMPILER", "nvrtc")
    text, _, known = every_kind()
    code = CudaCode(text=text, kernels=(), architecture="sm_70")
    report = parse_report(compiler_report(code, "sm_70"))
    assert {int(re.findall(r"p(\d+)_", name)[0]) for name in report} >= set(range(known))  # a random one may be empty
    spilling = [name for name, usage in report.items() if usage.spilled]
    assert all(int(re.findall(r"p(\d+)_", name)[0]) >= known for name in spilling), spilling


def test_a_gpu_that_no_compiler_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the program, and says what to install; explain() goes without registers."""
    monkeypatch.setenv("POLYML_CACHE", "0")
    old = Nvrtc(library=None, version="13.0", architectures=frozenset(("sm_75", "sm_90")))  # type: ignore[arg-type]
    assert old.compiles_for("sm_90a")
    monkeypatch.setattr(compiling, "find_nvrtc", lambda name: old if name is None or old.compiles_for(name) else None)
    monkeypatch.setattr(compiling, "find_nvcc", lambda: None)
    for name, remedy in (("sm_70", "nvidia-cuda-nvrtc-cu12"), ("sm_130", "install -U nvidia-cuda-nvrtc")):
        with pytest.raises(DeviceUnavailableError, match=f"no CUDA compiler here compiles for {name}") as told:
            compile_cubin(CODE, name)
        assert told.value.hint is not None
        assert remedy in told.value.hint
    code = CudaCode(text=CODE.text, kernels=(), architecture="sm_70")
    assert usage_lines(code, [object()]) == []  # type: ignore[list-item]


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
def test_a_gpu_that_nvcc_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_CACHE", "0")
    monkeypatch.setenv("POLYML_CUDA_COMPILER", "nvcc")
    with pytest.raises(DeviceUnavailableError, match="no CUDA compiler here compiles for sm_20"):
        compile_cubin(CODE, "sm_20")


@needs_nvrtc
def test_nvrtc_says_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_CACHE", "0")
    monkeypatch.setenv("POLYML_CUDA_COMPILER", "nvrtc")
    with pytest.raises(
        CodegenError, match=r"NVRTC refuses the generated code:\n.*identifier \"nonsense\" is undefined"
    ):
        compile_cubin(CudaCode(text="__global__ void f() { nonsense; }", kernels=(), architecture="sm_80"), "sm_80")
