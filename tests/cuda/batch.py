"""Many programs in one translation unit: compiled for CUDA, built once, and run on the emulator."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import polyml
from polyml.codegen.cuda.text.emit import emit_cuda
from polyml.compiler.driver import Stages, lower_program
from polyml.compiler.gpu import cuda_kernel, cuda_regions
from polyml.gpu_core import Limits
from polyml.runtime.cuda.program import CudaKernel
from tests.cuda.emulator.device import EmulatedDevice, EmulatedModule
from tests.cuda.emulator.device import build as build_library

__all__ = ["Batch", "compile_batch", "needs_gxx", "results_of"]

needs_gxx = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the CUDA emulator is compiled with g++, which is not installed"
)


@dataclass(frozen=True, slots=True)
class Batch:
    """The kernels and the stages in the order of the programs, the text of all of them, and the device that they are loaded on."""

    kernels: tuple[CudaKernel, ...]
    stages: tuple[Stages, ...]
    text: str
    device: EmulatedDevice


def compile_batch(
    programs: Sequence[tuple[str, Sequence[object]]],
    *,
    build: bool = True,
    target: object = "cuda",
    limits: Limits | None = None,
    **options: object,
) -> Batch:
    """Kernels for pairs of a program's text and its arguments; without `build` only their text. limits: of the device, None: the usual ones."""
    lowered = []
    for number, (text, arguments) in enumerate(programs):
        program = polyml.einsum(text, target=target, **options)
        key = program.key_of(*arguments)
        stages = lower_program(program.program, key, program.options)
        lowered.append((program.program, stages, cuda_regions(stages, prefix=f"p{number}_")))
    text = emit_cuda([region for *_, regions in lowered for region in regions])
    device = EmulatedDevice(limits=limits or Limits())
    made: list[CudaKernel] = []
    if build:
        device.modules[text] = EmulatedModule(build_library(text))
        made = [cuda_kernel(p, stages, device, regions=regions, text=text) for p, stages, regions in lowered]
    return Batch(tuple(made), tuple(stages for _, stages, _ in lowered), text, device)


def results_of(found: object) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, found if isinstance(found, tuple) else () if found is None else (found,)))
