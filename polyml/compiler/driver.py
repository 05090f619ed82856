"""The driver: the pipeline of docs/architecture.md, one function per stretch of it (that of one region: compiler/region.py).

    program --trace--> Graph --lower--> Lowered (regions, plan, scops, dependences, schedules, loops) --compile--> Kernel

isl's context is shared by the process, so each function runs under one lock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from polyml.codegen.generate import generate
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Instructions
from polyml.codegen.loops import Function
from polyml.collection import collector_rests
from polyml.compiler.loops import LoweredRegion, to_loops
from polyml.compiler.region import lower_region, makes_operand
from polyml.compiler.rewriting import may_arrange, rewrite_for
from polyml.compiler.unpadded import without_padded_copies
from polyml.debug import compilation, debug_level, report, stage
from polyml.einsum_frontend.arguments import ArgumentType, Signature
from polyml.einsum_frontend.syntax import Program
from polyml.errors import EinsumSyntaxError, PolymlError
from polyml.graph.builder.program import build as build_graph
from polyml.graph.equal_regions import Shared, share_equal_regions
from polyml.graph.fuse import fuse
from polyml.graph.ir import Graph
from polyml.graph.plan import Plan, plan
from polyml.graph.printer import graph_text
from polyml.graph.region import Region
from polyml.graph.verify import verify
from polyml.graph.zeros import places_of_values
from polyml.nesting import deeply_nested
from polyml.options import Options
from polyml.records import dataclass
from polyml.runtime.arguments import AnyInt, AnySize, Layout
from polyml.runtime.build import build_kernel, signature_of
from polyml.runtime.compiled import Compiled
from polyml.runtime.dispatch import COMPILE_LOCK
from polyml.runtime.keys import Key, with_numbers
from polyml.runtime.signature import KernelSignature
from polyml.schedule.schedule import Schedule
from polyml.schedule.sweeps.row_cuts import BEYOND
from polyml.sets.affine import Affine

__all__ = [
    "Stages",
    "c_text",
    "compile_stages",
    "llvm_text",
    "locked",
    "lower",
    "lower_program",
    "signature_for",
    "strides_of",
    "trace",
    "trace_program",
    "with_schedules",
]


P = ParamSpec("P")
R = TypeVar("R")


def locked(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with COMPILE_LOCK, collector_rests(), deeply_nested():
                return function(*args, **kwargs)
        except RecursionError:
            hint = "give parts of its long expressions (1000 terms and more) names of their own"
            raise EinsumSyntaxError("an expression of the program is nested too deeply", hint=hint) from None

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A program for one signature, lowered to loops. key: the dispatcher's key that it is for (see `lower_program`)."""

    graph: Graph
    plan: Plan
    regions: tuple[LoweredRegion, ...]
    options: Options
    key: Key = ()

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(region.loops for region in self.regions)

    @property
    def launched(self) -> tuple[Plan, tuple[Function, ...]]:
        """The plan and the functions of what runs: on a CPU without copies that only put zeros where nothing reads them (unpadded.py)."""
        if self.options.machine.is_cuda:
            return self.plan, self.functions
        return without_padded_copies(self.plan, self.functions, [region.region for region in self.regions])


@locked
def trace(program: Program, signature: Signature, options: Options, key: Key = ()) -> Graph:
    """The graph of the program for these argument types, rewritten; with a key, for its layouts.

    Raises:
        PolymlError: what index ranges, types and proofs refuse.
    """
    with stage("build graph"):
        graph = build_graph(program, signature, reorders=not options.precise)
    _verify(graph, options)
    report("graph as built", lambda: graph_text(graph), level=5)
    with stage("rewrite"):
        graph = rewrite_for(graph, options, strides_of(program, key, graph))
    _verify(graph, options)
    report("graph", lambda: graph_text(graph), level=2)
    return graph


@locked
def lower(
    graph: Graph,
    options: Options,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    constants: Set[str] = frozenset(),
) -> Stages:
    """Regions, their schedules and their loops.

    Args:
        strides: of input tensors that are not contiguous, in elements, by the tensor's name. constants: names of inputs that never change.
    """
    with stage("fuse"):
        machine, size = options.machine, options.machine.l2_bytes
        rows = BEYOND * (size if machine.is_cuda else machine.l1_bytes)
        arranges, most = may_arrange(options), 12 if options.fusion else 1
        makes = partial(makes_operand, graph=graph, options=options, strides=strides or {}, constants=constants)
        regions = fuse(
            graph,
            cache_bytes=size,
            rows_bytes=rows,
            max_equations=most,
            prologues=arranges,
            makes=makes if arranges else None,
        )
        memory = plan(graph, regions)
        results = _only_results(regions, memory.storage)
        shared = Shared(tuple(regions), memory, tuple(results), strides or {}, constants)
        # With `precise`, zero times infinity is NaN.
        values = {} if options.machine.is_cuda or options.precise else places_of_values(graph)
        if not options.machine.is_cuda:
            shared = share_equal_regions(regions, memory, strides or {}, results, constants, values)
    report("plan", lambda: str(shared.plan), level=2)
    lowered = tuple(
        lower_region(region, graph, shared.plan, options, shared.strides, ended, shared.constants, values)
        for region, ended in zip(shared.regions, shared.results, strict=True)
    )
    return Stages(graph=graph, plan=shared.plan, regions=lowered, options=options)


def _only_results(regions: Sequence[Region], storage: Mapping[str, str]) -> list[set[str]]:
    """Per region the arrays that nothing reads after it but the caller."""
    later: set[str] = set()
    found: list[set[str]] = []
    for region in reversed(regions):
        found.append({storage[t.name] for t in region.outputs} - later)
        later |= {storage[t.name] for t in region.inputs}
    return found[::-1]


@locked
def with_schedules(stages: Stages, schedules: Mapping[str, Schedule]) -> Stages:
    """The same program with other schedules for some regions, by the region's name. They are taken as proved."""
    options = stages.options
    regions = tuple(
        to_loops(lowered.region, schedules[lowered.region.name], options)
        if lowered.region.name in schedules
        else lowered
        for lowered in stages.regions
    )
    return replace(stages, regions=regions)


@locked
def llvm_text(functions: Sequence[Function], options: Options) -> str:
    """The regions as one LLVM module, not yet optimized."""
    with stage("emit"):
        instructions = Instructions.of(options.machine)
        text = emit_module(functions, instructions, precise=options.precise, parallel=options.parallel)
    report("llvm", text, level=4, suffix="ll")
    return text


@locked
def c_text(stages: Stages) -> str:
    """The program as C99: its regions, and a function of the program's name that takes the symbolic sizes, the inputs and the results."""
    # A first call must not wait for an emitter that only readers want.
    from polyml.codegen.c.host import program_text
    from polyml.codegen.c.plain import plain_loops

    functions = [plain_loops(generate(region.schedule, name=region.region.name)) for region in stages.regions]
    return program_text(stages.graph.name, stages.plan, functions, stages.graph.sizes)


def _verify(graph: Graph, options: Options) -> None:
    if options.verify or debug_level() >= 5:
        with stage("verify"):
            verify(graph)


@locked
def lower_program(program: Program, key: Key, options: Options) -> Stages:
    """From a resolved program to loops, for one key of the dispatcher; for the numbers of its call, where symbolic ints do not do (`Stages.key`).

    Raises:
        PolymlError: what is wrong at these numbers.
    """
    with compilation(program.name):
        graph, found = trace_program(program, key, options)
        try:
            return _lower_for(program, found, graph, options)
        except PolymlError:
            exact = with_numbers(found)
            if exact == found:
                raise
            return _lower_for(program, exact, trace(program, signature_for(program, exact), options, exact), options)


def _lower_for(program: Program, key: Key, graph: Graph, options: Options) -> Stages:
    # A device gets contiguous copies, whatever the layout was.
    strides = {} if options.machine.is_cuda else strides_of(program, key, graph)
    return replace(lower(graph, options, strides), key=key)


def strides_of(program: Program, key: Key, graph: Graph) -> dict[str, tuple[int, ...]]:
    """The strides of inputs that are not contiguous, by the tensor's name; none for an empty key."""
    names = iter(item.tensor.name for item in graph.inputs)
    strides: dict[str, tuple[int, ...]] = {}
    for parameter, layout in zip(program.parameters, key, strict=False):
        name = None if parameter.is_size else next(names)
        if name is not None and isinstance(layout, Layout) and layout.strides is not None:
            strides[name] = layout.strides
    return strides


@locked
def trace_program(program: Program, key: Key, options: Options) -> tuple[Graph, Key]:
    """The graph for one key of the dispatcher, and the key that it is for: that one, or with numbers in place of the symbolic ints that must be numbers: one of them,
    if that is enough, else all.

    Raises:
        PolymlError: what is wrong at the numbers of the key's call.
    """
    free = [position for position, layout in enumerate(key) if isinstance(layout, AnyInt)]
    attempts = [key, *(with_numbers(key, (k,)) for k in free if len(free) > 1)] if free else []
    for attempt in attempts:
        try:
            return trace(program, signature_for(program, attempt), options, attempt), attempt
        except PolymlError:  # at numbers it may be right, or else it is told what is wrong with them
            continue
    exact = with_numbers(key)
    return trace(program, signature_for(program, exact), options, exact), exact


@locked
def compile_stages(
    program: Program,
    stages: Stages,
    seen: Callable[[KernelSignature], KernelSignature] | None = None,
) -> Compiled:
    """The code of a lowered program.

    Args:
        seen: makes the signature that callers see, where that is the same memory in other shapes and strides.

    Raises:
        PolymlError: its target is not this machine.
    """
    options = stages.options
    strides = [layout.strides if isinstance(layout, Layout) else None for layout in stages.key]
    ints = [value if isinstance(value, int) else None for value in stages.key]
    plan, functions = stages.launched
    call = signature_of(program, stages.graph, plan, strides, ints)
    return build_kernel(
        call,
        plan,
        functions,
        llvm_text(functions, options),
        target=options.target,
        seen=None if seen is None else seen(call),
    )


def signature_for(program: Program, key: Key) -> Signature:
    """The argument types that a key of the dispatcher stands for."""
    arguments: list[ArgumentType | int | None] = []
    examples: dict[str, int] = {}
    for parameter, layout in zip(program.parameters, key, strict=True):
        match layout:
            case Layout() | AnySize():
                arguments.append(ArgumentType(layout.dtype, layout.shape))
                known = layout.example if isinstance(layout, AnySize) else None
                for extent, number in zip(layout.shape, known or (), strict=False):
                    if isinstance(extent, Affine) and extent.name is not None:
                        examples.setdefault(extent.name, number)
            case int():
                arguments.append(layout)
            case AnyInt():
                arguments.append(None)
                if layout.example is not None:
                    examples[parameter.name] = layout.example
            case None if parameter.dtype is not None:
                arguments.append(ArgumentType(parameter.dtype))
            case None:
                arguments.append(None)
    return Signature(tuple(arguments), examples)
