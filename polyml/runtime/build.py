"""From a planned program and the code of its regions to a Compiled kernel: its signature, host function and entry point, as object files."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from polyml.codegen.llvm.machine import compile_object, machine_of
from polyml.codegen.loops import Function
from polyml.debug import stage
from polyml.einsum_frontend.signature import result_names
from polyml.einsum_frontend.syntax import Program
from polyml.graph.builder.state import identifier
from polyml.graph.ir import Graph
from polyml.graph.plan import CheckFlag, Plan
from polyml.runtime.compiled import Compiled
from polyml.runtime.entry.function import emit_entry
from polyml.runtime.entry.layout import array_header
from polyml.runtime.host import emit_host
from polyml.runtime.load import compile_plainly
from polyml.runtime.signature import (
    ArrayParameter,
    KernelSignature,
    Parameter,
    Result,
    ScalarParameter,
    SizeParameter,
)
from polyml.target import Target

__all__ = ["build_kernel", "signature_of"]


def build_kernel(
    signature: KernelSignature,
    plan: Plan,
    functions: Sequence[Function],
    regions: str,
    *,
    target: Target | None = None,
    seen: KernelSignature | None = None,
) -> Compiled:
    """Compiles the code of a program.

    Args:
        seen: what callers pass and get, where that is the same memory as in `signature` in other shapes and strides.
        functions: of region 0, 1, ... regions: the LLVM module text that defines them.
        target: a machine whose code runs here; None: this one.

    Raises:
        DeviceUnavailableError: it does not run here.
    """
    chosen = target or Target.host()
    chosen.must_run_here()
    machine = machine_of(chosen)
    with stage("llvm"):
        objects = [compile_object(regions, machine)]
    with stage("entry"):
        name = identifier(signature.name, ())
        run, entry, header = f"{name}_run", "", array_header()
        program = emit_host(signature, plan, functions, name=run)
        if header is not None:
            entry = f"{name}_entry"
            program = f"{program}\n{emit_entry(seen or signature, host=run, header=header, name=entry)}"
        objects.append(compile_plainly(program))  # one module: LLVM sets itself up for each
    texts = (str(plan), regions, program)
    return Compiled(
        signature=seen or signature,
        machine=machine,
        objects=tuple(objects),
        host=run,
        entry=entry,
        texts=tuple(zlib.compress(text.encode(), 1) for text in texts),
    )


def signature_of(
    program: Program, graph: Graph, plan: Plan, strides: Sequence[tuple[int, ...] | None], ints: Sequence[int | None]
) -> KernelSignature:
    """The signature of a planned program.

    Args:
        strides: per parameter of the program, in elements; None: contiguous, or not an array. ints: per parameter the value of a specialized `int`.
    """
    parameters: list[Parameter] = []
    inputs = iter(graph.inputs)
    for parameter, layout, value in zip(program.parameters, strides, ints, strict=True):
        if parameter.is_size:
            parameters.append(SizeParameter(name=parameter.name, value=value))
            continue
        item = next(inputs)
        name, dtype, shape = item.tensor.name, item.tensor.dtype, item.tensor.shape
        if parameter.shape is None:
            assert not item.written, "internal: a scalar parameter is not updated in place"
            parameters.append(ScalarParameter(name=name, dtype=dtype))
        else:
            parameters.append(ArrayParameter(name=name, dtype=dtype, shape=shape, strides=layout, written=item.written))
    buffers = [plan.buffers[name] for name in dict.fromkeys(plan.outputs)]
    called = dict(
        zip(reversed(plan.outputs), reversed(result_names(program)), strict=False)
    )  # the first name of what several have
    checks = [step for step in plan.steps if isinstance(step, CheckFlag)]
    return KernelSignature(
        name=graph.name,
        parameters=tuple(parameters),
        results=tuple(
            Result(name=b.name, dtype=b.dtype, shape=b.shape, called=called.get(b.name, ""))
            for b in buffers
            if b.kind == "output"
        ),
        returned=plan.outputs,
        sizes=graph.sizes,
        requires=graph.requires,
        suits=graph.suits,
        checks=tuple(step.message for step in checks),
        indices=tuple(
            None if step.indices is None or step.extent is None else (step.indices, step.extent) for step in checks
        ),
    )
