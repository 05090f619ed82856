"""The driver's part for GPUs, from loops on: kernels and host programs, CUDA C, a callable. Nothing else imports it before it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyml.codegen.cuda.limits import require_fits
from polyml.codegen.cuda.program import CudaRegion
from polyml.codegen.cuda.proofs.barriers import barrier_faults
from polyml.codegen.cuda.proofs.blocks import block_faults
from polyml.codegen.cuda.split import split_kernels
from polyml.codegen.cuda.text.emit import emit_cuda
from polyml.codegen.generate import generate
from polyml.compiler.driver import Stages, locked
from polyml.compiler.loops import LoweredRegion
from polyml.debug import report, stage
from polyml.einsum_frontend.syntax import Program
from polyml.errors import CodegenError
from polyml.gpu_core import Limits, core_of
from polyml.options import Options
from polyml.runtime.build import signature_of
from polyml.runtime.cuda.cached import CompiledCuda
from polyml.runtime.cuda.device import CudaCode, Device
from polyml.runtime.cuda.program import CudaKernel
from polyml.runtime.cuda.report import usage_lines
from polyml.schedule.driver import schedule
from polyml.schedule.strategy.cuda.room import shared_room
from polyml.schedule.work import work_text

__all__ = ["compiled_cuda", "cuda_kernel", "cuda_regions", "cuda_text", "kernel_lines"]


def cuda_regions(stages: Stages, *, prefix: str = "") -> tuple[CudaRegion, ...]:
    """The regions as kernels, whose names begin with `prefix`, and the host programs that launch them."""
    with stage("kernels"):
        made = tuple(_kernels(region, stages.options, prefix) for region in stages.regions)
    if stages.options.verify:
        kernels = [kernel for region in made for kernel in region.kernels]
        faults = [fault for kernel in kernels for fault in (*barrier_faults(kernel), *block_faults(kernel))]
        assert not faults, f"internal: threads meet without a proof of their order: {'; '.join(faults)}"
    return made


def _kernels(region: LoweredRegion, options: Options, prefix: str) -> CudaRegion:
    """The region's kernels; a single thread's where isl has taken the loops apart so that nobody knows who runs what, or blocks would be larger than the target's."""
    machine = options.machine
    name, core, room = f"{prefix}{region.region.name}", core_of(machine.cpu), shared_room(machine)
    limits = Limits(threads=machine.block_threads, shared=machine.block_bytes)
    try:
        made = split_kernels(region.loops, prefix=name, core=core, room=room)
        require_fits(made.kernels, limits, where=f"the target {machine.name}")
        return made
    except CodegenError as reason:
        report(f"{name} runs in one thread", str(reason), level=2)
        found = region.schedule
        plain = schedule(found.scop, found.dependences, options.machine, replace(options, parallel=False))
        made = split_kernels(generate(plain, name=region.region.name), prefix=name, core=core, room=room)
        require_fits(made.kernels, limits, where=f"the target {machine.name}")
        return made


def cuda_text(regions: Sequence[CudaRegion]) -> str:
    """The kernels as CUDA C."""
    with stage("emit"):
        text = emit_cuda(regions)
    report("cuda", text, level=4, suffix="cu")
    return text


def kernel_lines(stages: Stages) -> list[str]:
    """What explain() tells: of regions how much they compute and move at least, and of kernels threads, blocks and shared memory, and where a compiler is installed what they use of a core."""
    regions = cuda_regions(stages)
    code = _code(stages, regions, cuda_text(regions))
    work = [f"work of {r.region.name}: {text}" for r in stages.regions if (text := work_text(r.scop))]
    return [*work, *(f"kernel {k.name}: {k}" for k in code.kernels), *usage_lines(code, code.kernels)]


def _code(stages: Stages, regions: Sequence[CudaRegion], text: str) -> CudaCode:
    return CudaCode(
        text=text,
        kernels=tuple(kernel for region in regions for kernel in region.kernels),
        architecture=stages.options.machine.cpu,
        precise=stages.options.precise,
    )


@locked
def cuda_kernel(
    program: Program, stages: Stages, device: Device, *, regions: tuple[CudaRegion, ...] = (), text: str = ""
) -> CudaKernel:
    """The callable kernel of a program that is lowered for a GPU, on that device.

    Args:
        regions, text: the kernels and their CUDA C, where they are made already (several programs may share one text).

    Raises:
        DeviceUnavailableError: something that it needs is missing.
    """
    return compiled_cuda(program, stages, regions=regions, text=text).on(device)


@locked
def compiled_cuda(
    program: Program, stages: Stages, *, regions: tuple[CudaRegion, ...] = (), text: str = ""
) -> CompiledCuda:
    """A program that is lowered for a GPU, with its text, before it is loaded. Arguments as of `cuda_kernel`."""
    regions = regions or cuda_regions(stages)
    code = _code(stages, regions, text or cuda_text(regions))
    ints = [value if isinstance(value, int) else None for value in stages.key]
    call = signature_of(program, stages.graph, stages.plan, [None] * len(stages.key), ints)
    return CompiledCuda(signature=call, plan=stages.plan, regions=regions, code=code)
