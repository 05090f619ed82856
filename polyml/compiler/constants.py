"""The driver for programs with constant operands: code that runs once for what only they decide, and code for the calls.

program --split--> Graph (once) and Graph (calls) --lower--> Stages --hoist panels--> fillings and kernels --compile--> two Compiled
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from polyml.codegen.loops import Function
from polyml.codegen.passes.panels.hoist_panels import Filling, hoist_panels
from polyml.codegen.passes.share_together import share_together
from polyml.codegen.passes.sums.skip_edges import skip_edges
from polyml.codegen.prefetch.panels import prefetch_panels
from polyml.compiler.driver import Stages, llvm_text, locked, lower, signature_for, strides_of
from polyml.compiler.loops import LoweredRegion
from polyml.compiler.rewriting import rewrite_for
from polyml.debug import compilation, stage
from polyml.einsum_frontend.syntax import Program
from polyml.errors import ArgumentError
from polyml.graph.builder.program import build as build_graph
from polyml.graph.frozen import split_constants
from polyml.graph.ir import Graph
from polyml.graph.plan import Argument, Buffer, CheckFlag, Launch, Plan, Step
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.options import Options
from polyml.records import dataclass
from polyml.runtime.arguments import Layout
from polyml.runtime.build import build_kernel, signature_of
from polyml.runtime.compiled import Compiled
from polyml.runtime.keys import Key
from polyml.runtime.signature import ArrayParameter, KernelSignature, Result, SizeParameter
from polyml.schedule.schedule import Note
from polyml.target import Target

__all__ = ["BoundCode", "lower_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCode:
    """Code for one key of a program with constants: plans, functions and signatures of what runs once (None: nothing does) and of the calls. stages: the calls' way to their functions.

    The signature of the calls has the constants first; those that the results of `once` do not name are bound arguments themselves.
    """

    options: Options
    once: tuple[KernelSignature, Plan, tuple[Function, ...]] | None
    calls: tuple[KernelSignature, Plan, tuple[Function, ...]]
    stages: Stages

    def compile_once(self) -> Compiled:
        assert self.once is not None, "internal: nothing runs once"
        return self._compile(*self.once)

    def compile_calls(self) -> Compiled:
        return self._compile(*self.calls)

    def _compile(self, signature: KernelSignature, plan: Plan, functions: Sequence[Function]) -> Compiled:
        text = llvm_text(functions, self.options)
        return build_kernel(signature, plan, functions, text, target=self.options.target)


@locked
def lower_bound(program: Program, key: Key, options: Options, bound: Set[str]) -> BoundCode:
    """The program for one key, whose parameters in `bound` are constants.

    Raises:
        PolymlError: what is wrong at these shapes.
    """
    with compilation(program.name):
        with stage("build graph"):
            graph = build_graph(program, signature_for(program, key), reorders=not options.precise)
        parameters = [p for p in program.parameters if not p.is_size]
        names = {p.name: item.tensor.name for p, item in zip(parameters, graph.inputs, strict=True)}
        constants = {names[name] for name in bound if name in names}
        for parameter, item in zip(parameters, graph.inputs, strict=True):
            if item.written and parameter.name in bound:
                raise ArgumentError(
                    f"{program.name} updates {parameter.name} in place, and it is bound as a constant",
                    span=parameter.span,
                    hint=f"leave {parameter.name} out of bind, and pass it with each call",
                )
        strides = strides_of(program, key, graph)
        once, rest = _split(graph, constants, options, strides)
        made = {t.name for t in once.outputs} if once is not None else set()
        stages = lower(rest, options, strides, constants | made)
        before = None if once is None else lower(once, options, {n: s for n, s in strides.items() if n in constants})
    regions, filled, plan = _without_fillings(stages, constants | made)
    whole = signature_of(
        program,
        replace(stages.graph, inputs=stages.graph.inputs[: len(graph.inputs)]),
        stages.plan,
        [layout.strides if isinstance(layout, Layout) else None for layout in key],
        [value if isinstance(value, int) else None for value in key],
    )
    calls = replace(stages, plan=plan, regions=regions)
    return BoundCode(
        options=options,
        once=_once(graph, before, filled, whole, constants),
        calls=(_signature_of_calls(whole, bound, names, plan), *calls.launched),
        stages=calls,
    )


def _split(
    graph: Graph, constants: Set[str], options: Options, strides: Mapping[str, tuple[int, ...]]
) -> tuple[Graph | None, Graph]:
    """Both graphs, rewritten. What rewriting makes of constants alone (a conversion, say) moves too."""
    once, rest = split_constants(graph, constants)
    known = constants | ({t.name for t in once.outputs} if once is not None else set())
    rest = rewrite_for(rest, options, strides, constants=known)
    made, rest = split_constants(rest, known)
    if once is None:
        return made, rest
    if made is not None:
        once = replace(once, ops=(*once.ops, *made.ops), outputs=(*once.outputs, *made.outputs))
    return rewrite(once, RewriteOptions(precise=options.precise, l2_bytes=options.machine.l2_bytes)), rest


@dataclass(frozen=True, slots=True)
class _Filled:
    """A buffer that is filled once. place: where the filling's arguments are, this one included."""

    filling: Filling
    buffer: str
    place: Mapping[str, Argument]


def _without_fillings(
    stages: Stages, constants: Set[str]
) -> tuple[tuple[LoweredRegion, ...], tuple[_Filled, ...], Plan]:
    """The regions with the functions of the calls, what is filled once, and the plan with that as inputs: each launch of a region has packed arrays of its own."""
    plan = stages.plan
    hoisted: dict[int, tuple[LoweredRegion, tuple[Filling, ...]]] = {}
    filled: list[_Filled] = []
    steps: list[Step] = []
    buffers = dict(plan.buffers)
    for step in plan.steps:
        if not isinstance(step, Launch):
            steps.append(step)
            continue
        place = {a.array: a for a in step.arguments}
        if step.region not in hoisted:
            known = {a.array for a in step.arguments if a.buffer in constants}
            hoisted[step.region] = _hoisted(stages.regions[step.region], known, stages.options.machine)
        region, fillings = hoisted[step.region]
        for packed in (filling.packed for filling in fillings):
            name = fresh_name(packed.name, buffers)
            place[packed.name] = Argument(packed.name, name)
            buffers[name] = Buffer(name=name, kind="input", dtype=packed.dtype, shape=packed.shape)
        filled += [_Filled(filling, place[filling.packed.name].buffer, place) for filling in fillings]
        arguments = tuple(place[v.name] for v in region.loops.arguments)
        steps.append(replace(step, arguments=arguments))
    used = {a.buffer for step in steps if isinstance(step, Launch) for a in step.arguments} | set(plan.outputs)
    used |= {step.only_if for step in steps if isinstance(step, Launch) and step.only_if is not None}
    used |= {
        step.buffer for step in steps if isinstance(step, CheckFlag)
    }  # subscripts that are constant are looked at once
    kept = tuple(name for name in plan.inputs if name in used or name not in constants)
    inputs = (*(one.buffer for one in filled), *kept)
    regions = tuple(hoisted[number][0] for number in range(len(stages.regions)))
    return regions, tuple(filled), replace(plan, buffers=buffers, steps=tuple(steps), inputs=inputs)


def _hoisted(region: LoweredRegion, known: Set[str], machine: Target) -> tuple[LoweredRegion, tuple[Filling, ...]]:
    """The region with the function of the calls, and a note for each array that is filled once, from arrays that are known."""
    function, fillings = hoist_panels(region.loops, known)
    panels = {filling.packed.name: filling.blocks for filling in fillings}
    function = prefetch_panels(function, panels, l2_bytes=machine.l2_bytes, line_bytes=machine.line_bytes)
    function = share_together(function)
    arrays = region.scop.arrays.values()
    if any(array.constant for array in arrays):
        function = skip_edges(function, {array.name: array.values for array in arrays if array.values})
    notes = tuple(
        Note(
            "constants",
            filling.packed.name,
            f"filled once, from {', '.join(v.name for v in filling.function.arguments[:-1])}",
        )
        for filling in fillings
    )
    return replace(region, loops=function, notes=(*region.notes, *notes)), fillings


def _signature_of_calls(whole: KernelSignature, bound: Set[str], names: dict[str, str], plan: Plan) -> KernelSignature:
    """Constants first: packed arrays, tensors made once, bound arguments; then the arguments of a call."""
    free = [p for p in whole.parameters if p.name not in {names.get(name, name) for name in bound}]
    own = {p.name: p for p in whole.parameters}
    constants = []
    for name in plan.inputs:
        if name in own and own[name] not in free:
            constants.append(own[name])
        elif name not in own:
            buffer = plan.buffers[name]
            constants.append(ArrayParameter(name=name, dtype=buffer.dtype, shape=buffer.shape))
    return replace(whole, parameters=(*constants, *free))


def _once(
    graph: Graph,
    before: Stages | None,
    filled: Sequence[_Filled],
    whole: KernelSignature,
    constants: Set[str],
) -> tuple[KernelSignature, Plan, tuple[Function, ...]] | None:
    """What runs once: the equations of constants, then the fillings."""
    if before is None and not filled:
        return None
    tensors = tensors_of(graph)
    functions = list(before.functions) if before is not None else []
    steps = list(before.plan.steps) if before is not None else []
    buffers = dict(before.plan.buffers) if before is not None else {}
    storage = before.plan.storage if before is not None else {}
    outputs = list(before.plan.outputs) if before is not None else []
    inputs = tuple(p for p in whole.parameters if p.name in constants and not isinstance(p, SizeParameter))
    for parameter in inputs:
        tensor = tensors[parameter.name]
        buffers[tensor.name] = Buffer(name=tensor.name, kind="input", dtype=tensor.dtype, shape=tensor.shape)
    numbers: dict[int, int] = {}
    for one in filled:
        function, packed = one.filling.function, one.filling.packed
        buffers[one.buffer] = Buffer(name=one.buffer, kind="output", dtype=packed.dtype, shape=packed.shape)
        outputs.append(one.buffer)
        if id(function) not in numbers:  # of the region's first launch
            numbers[id(function)] = len(functions)
            functions.append(function)
        arguments = tuple(one.place[v.name] for v in function.arguments)
        steps.append(Launch(numbers[id(function)], arguments))
    plan = Plan(
        buffers=buffers,
        steps=tuple(steps),
        inputs=tuple(p.name for p in inputs),
        outputs=tuple(outputs),
        storage=storage,
    )
    results = tuple(Result(name=b.name, dtype=b.dtype, shape=b.shape) for b in (buffers[name] for name in outputs))
    signature = KernelSignature(name=f"{whole.name}_once", parameters=inputs, results=results, returned=tuple(outputs))
    return signature, plan, tuple(functions)
