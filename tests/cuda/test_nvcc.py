"""Every kind of generated kernel, compiled by the real compiler."""

from __future__ import annotations

import re
import subprocess
from math import prod
from pathlib import Path

import numpy as np
import pytest

import polyml
from benchmarks.cuda_cases import CASES as BENCHMARK
from benchmarks.cuda_cases import contractions
from polyml.codegen.cuda.text.emit import emit_cuda
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_regions
from polyml.errors import CodegenError
from polyml.runtime.cuda.compile import compile_cubin, find_nvcc
from polyml.runtime.cuda.device import CudaCode
from polyml.runtime.cuda.report import occupancy, parse_report
from polyml.target import Target
from tests.cuda.batch import compile_batch
from tests.cuda.every_kind import every_kind
from tests.cuda.test_atomics import CASES as ATOMIC
from tests.cuda.test_tiles import BATCH, CASES, LARGE, MATMUL
from tests.cuda.test_tiles_anywhere import POWER

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")


def architectures() -> list[int]:
    """Compute capabilities 7.0 (7.5 from CUDA 13 on), which copies synchronously, 8.0 and 9.0."""
    done = subprocess.run([find_nvcc(), "--list-gpu-arch"], capture_output=True, text=True, check=True)
    known = {int(text) for text in re.findall(r"compute_(\d+)", done.stdout)}
    return [70 if 70 in known else 75, 80, 90]


@pytest.mark.parametrize("chosen", [slice(1, 2), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_everything_compiles(tmp_path: Path, chosen: slice) -> None:
    """For 9.0 nvcc gets the text that it gets for 8.0, and as many registers; what is other text before 8.0, copies, is in the next test."""
    text, count, known = every_kind()
    source = tmp_path / "kernels.cu"
    source.write_text(text)
    code = [f"-gencode=arch=compute_{version},code=sm_{version}" for version in architectures()[chosen]]
    command = [find_nvcc(), "--fatbin", *code, "-Xptxas", "-v", "-o", tmp_path / "kernels.fatbin", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    assert done.stderr.count("Compiling entry function") >= count
    spilling = re.findall(r"properties for p(\d+)_.*\n.* [1-9]\d* bytes spill stores", done.stderr)
    assert all(int(number) >= known for number in spilling)  # of a random program anything may be asked


@pytest.mark.parametrize("chosen", [slice(2), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_tiles_of_any_size_and_in_loops_compile(tmp_path: Path, chosen: slice) -> None:
    """Without spills: the sums of a thread stay in its registers, at edges, too. Machine code takes longest: of the two oldest architectures the newer one has it in every run."""
    source = tmp_path / "kernels.cu"
    dynamic = compile_batch([(MATMUL, LARGE), (BATCH, CASES[4][1])], build=False, dynamic=True, target="cuda").text
    source.write_text(
        dynamic + compile_batch([(POWER, [3, LARGE[0]])], build=False, target="cuda").text.replace("p0_", "q0_")
    )
    code = [
        f"-gencode=arch=compute_{version},code={'compute' if chosen.stop == 2 and version < 80 else 'sm'}_{version}"
        for version in architectures()[chosen]
    ]
    command = [find_nvcc(), "--fatbin", *code, "-Xptxas", "-v", "-o", tmp_path / "kernels.fatbin", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    assert set(re.findall(r"(\d+) bytes spill stores", done.stderr)) == {"0"}
    assert set(re.findall(r"(\d+) bytes stack frame", done.stderr)) == {"0"}


@pytest.mark.parametrize(
    "names", [("attention", "tccg_15"), pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_the_benchmarks_kernels_spill_nothing(tmp_path: Path, names: tuple[str, ...]) -> None:
    """At their sizes; and of tiles a core holds 16 warps, as the model of registers has it (strategy/cuda/tiles.py)."""
    for case in [*BENCHMARK, *contractions()]:
        if not case.name.startswith(names or ""):
            continue
        for version in architectures()[2:] if names else architectures():
            program = polyml.einsum(
                case.text,
                target=Target("cuda-sm_90" if version >= 90 else "cuda-sm_80"),
                dynamic=case.dynamic or "auto",
            )
            key = program.key_of(*(np.empty(shape, np.float32) for shape in case.shapes))
            regions = cuda_regions(lower_program(program.program, key, program.options))
            source = tmp_path / "kernels.cu"
            source.write_text(emit_cuda(regions))
            command = [find_nvcc(), "--cubin", f"-arch=sm_{version}", "-Xptxas", "-v", "-o", tmp_path / "kernels.cubin"]
            done = subprocess.run([*command, source], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:3000]
            used = parse_report(done.stderr)
            for kernel in (kernel for region in regions for kernel in region.kernels):
                usage = used[kernel.name]
                assert usage.spilled == 0, f"{case.name}: {kernel.name} on sm_{version}: {usage}"
                if usage.shared > 4096 and version >= 80:
                    warps = 8 if case.name == "attention" else 16  # its threads have 96 sums
                    assert occupancy(usage, prod(kernel.threads), version)[1] >= warps, f"{case.name}: {usage}"


def test_atomic_updates_compile(tmp_path: Path) -> None:
    source = tmp_path / "kernels.cu"
    source.write_text(compile_batch([(text, given) for text, given, _ in ATOMIC], build=False, atomics=True).text)
    for version in architectures()[::2]:
        command = [find_nvcc(), "--cubin", f"-arch=sm_{version}", "-o", tmp_path / "kernels.cubin", source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]


def test_cubins_are_kept_and_bad_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POLYML_CUDA_COMPILER", "nvcc")
    text = 'extern "C" __global__ void f(float* x) { x[0] = 1; }\n'
    code = CudaCode(text=text, kernels=(), architecture="sm_80")
    first = compile_cubin(code, "sm_80")
    assert first[:4] == b"\x7fELF"
    calls: list[object] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (calls.append(a), run(*a, **k))[1])
    assert compile_cubin(code, "sm_80") == first
    assert calls == [], "the second time it comes from the cache"
    assert compile_cubin(code, "sm_90") != first
    with pytest.raises(CodegenError, match="nvcc refuses"):
        compile_cubin(CudaCode(text="nonsense", kernels=(), architecture="sm_80"), "sm_80")
