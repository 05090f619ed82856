"""CudaRegions -> CUDA C: one `extern "C" __global__` function per kernel, readable, compiled as it stands by nvcc and NVRTC.

What all threads of a block reach is written once for all: a thread loop becomes a phase, in which each thread runs the iterations that it owns; an assignment
to a register is done by every thread, one to memory by the first. A barrier stands where one of these must see, or may not overtake, what came before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from polyml.codegen.cuda.blocks.uniform import BlockCode
from polyml.codegen.cuda.program import CudaRegion, Kernel
from polyml.codegen.cuda.proofs.width import needs_wide_indices
from polyml.codegen.cuda.text.expression import Writer
from polyml.codegen.cuda.text.helpers import helpers_text
from polyml.codegen.cuda.text.names import c_names
from polyml.codegen.cuda.text.types import COMPLEX_TYPES, c_type
from polyml.codegen.loops import Allocate, Variable
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import DType

__all__ = ["emit_cuda"]


def emit_cuda(regions: Sequence[CudaRegion]) -> str:
    """The text of all kernels, with the device functions that they call ahead of them."""
    helpers: set[tuple[str, DType | None]] = set()
    kernels = [_kernel(kernel, helpers) for region in regions for kernel in region.kernels]
    body = "\n".join(kernels)
    includes = ["#include <cuda_pipeline_primitives.h>"] if "__pipeline_" in body else []
    types = [text for name, text in COMPLEX_TYPES.items() if re.search(rf"\b{name}\b", body)]
    head = "\n".join([*includes, *types, *([helpers_text(helpers)] if helpers else [])])
    return "\n\n".join([*([head] if head else []), *kernels]) + "\n"


def _kernel(kernel: Kernel, helpers: set[tuple[str, DType | None]]) -> str:
    function = kernel.function
    wide = needs_wide_indices(kernel)
    writer = Writer({v.name: v for v in function.arguments}, c_names(function), wide, helpers)
    code = BlockCode(writer, kernel)
    body = code.lines(function.body)
    parameters = [_parameter(v, writer.names[v.name], v.name in function.written) for v in function.arguments]
    parameters += [f"long long {writer.names[size]}" for size in function.sizes]
    shape = " x ".join(str(extent) for extent in kernel.threads)
    blocks = ", ".join(f"{loop.variable} on {loop.axis}" for loop in kernel.blocks) or "one"
    head = f"// threads: {shape}; blocks: {blocks}"
    opening = f'extern "C" __global__ void __launch_bounds__({_bounds(kernel)}) {kernel.name}('
    text = ",\n    ".join(parameters)
    return "\n".join([head, f"{opening}\n    {text}) {{", *code.shared, *body, "}"])


SMALLEST, LARGEST, TOGETHER = 24, 48, 512
"""Registers of a thread for sums, from which on and up to which the compiler is told how many threads a core should hold at a time, and how many these are."""


def _bounds(kernel: Kernel) -> str:
    """Threads of a block, and for kernels with register tiles of middle size how many blocks a core should hold: without a number ptxas aims at more than the tiles leave room for, and spills. Of the
    largest, with 64 sums, it keeps all in registers when it is told nothing, and spills when it is held to what it would have used."""
    count = prod(kernel.threads)
    own = [n.variable for n in walk_nodes(kernel.function.body) if isinstance(n, Allocate)]
    held = sum(max(1, v.dtype.itemsize // 4) for v in own if v.scope in ("register", "private") and not v.shape)
    return f"{count}, {TOGETHER // count}" if SMALLEST <= held <= LARGEST and count <= TOGETHER // 2 else str(count)


def _parameter(variable: Variable, name: str, written: bool) -> str:
    return f"{'' if written else 'const '}{c_type(variable.dtype)}* __restrict__ {name}"
