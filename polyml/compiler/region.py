"""One region through the pipeline: scop, dependences, schedule, loops in their versions; and the plainer way where a budget is spent."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from polyml.compiler.loops import LoweredRegion, to_loops
from polyml.compiler.rewriting import may_arrange
from polyml.compiler.versions import in_versions
from polyml.debug import stage
from polyml.errors import CodegenError
from polyml.expressions import Apply, walk
from polyml.graph.ir import Equation, Graph
from polyml.graph.plan import Plan
from polyml.graph.region import Region
from polyml.graph.traverse import tensors_of
from polyml.graph.zeros import Places
from polyml.options import Options
from polyml.schedule.driver import makes_operands, schedule
from polyml.schedule.schedule import Note
from polyml.scop.bounds import prove_in_bounds
from polyml.scop.build import build as build_scop
from polyml.scop.dependences import Analysis, Dependences, analyse
from polyml.scop.expansion import expanded
from polyml.scop.joined_indices import joined_indices
from polyml.scop.memory_based import memory_based
from polyml.scop.scop import Scop
from polyml.scop.values import used_values
from polyml.sets.budget import BudgetExhausted, operation_budget

__all__ = ["lower_region", "makes_operand"]

_DATAFLOW = 20
"""Exact dependences get so much less than the budget, a million operations or 0.8 s by default: what takes longer has hundreds of pieces, at which all stages behind it would go on to look. Ten
coupled updates of a Trotter circuit take 400 000, PolyBench's kernels 130 000 at most."""

_STATEMENTS = 20
"""Statements that so much is for; more of them get more in proportion. Dependences between all pairs, which stand in for exact ones, would take the stages behind far longer: 56 statements in a
loop over time, 0.9 s of dataflow and 3 s of all else, not minutes."""


def lower_region(
    region: Region,
    graph: Graph,
    memory: Plan,
    options: Options,
    strides: Mapping[str, tuple[int, ...]],
    results: Set[str],
    constants: Set[str] = frozenset(),
    values: Mapping[str, Places] | None = None,
) -> LoweredRegion:
    """The region at every stop down to its loops.

    Args:
        memory: of the whole graph. strides: of inputs that are not contiguous, in elements. results: arrays that nothing reads after the region but the caller.
        constants: names of inputs that never change. values: of tensors with zeros around their values, by name, where these are.
    """
    if any(isinstance(op, Equation) and op.only_if is not None and not op.likely for op in region.ops):
        options = replace(options, register_tile=(1, 1))  # it hardly ever runs: compiling it is what it costs
    scop, joined = _scop(region, graph, memory.storage, options, strides, constants)
    scop = _with_values(scop, region, values, memory.storage) if values else scop
    with stage("dependences"):
        scop, dependences, refused = _dependences(scop, options)
    with stage("schedule"):
        scheduled = schedule(scop, dependences, options.machine, options, results=results)
    scheduled = replace(scheduled, notes=(*joined, *refused, *_products(scheduled.scop, options), *scheduled.notes))
    try:
        with operation_budget(options.budget, phase="AST generation"):
            return in_versions(region, scop, dependences, scheduled, options, results)
    except (BudgetExhausted, CodegenError) as reason:
        if options.scheduler == "written":
            return to_loops(region, scheduled, options)  # the last resort may take longer: after it there is nothing
        plain = schedule(scop, dependences, options.machine, replace(options, scheduler="written"), results=results)
        dropped = Note("fallback", scop.name, f"the schedule was dropped for the written order: {reason}")
        return to_loops(region, replace(plain, notes=(*scheduled.notes, dropped, *plain.notes)), options)


def makes_operand(
    region: Region,
    graph: Graph,
    options: Options,
    strides: Mapping[str, tuple[int, ...]],
    constants: Set[str],
) -> bool:
    """Whether the region is a contraction whose operand can be made a block at a time: what fusion asks before it puts the two together."""
    storage = {tensor.name: tensor.name for tensor in tensors_of(graph).values()}
    scop, _ = _scop(region, graph, storage, replace(options, verify=False), strides, constants)
    scop, dependences, _ = _dependences(scop, options)
    return makes_operands(scop, dependences, options.machine, options)


def _scop(
    region: Region,
    graph: Graph,
    storage: Mapping[str, str],
    options: Options,
    strides: Mapping[str, tuple[int, ...]],
    constants: Set[str],
) -> tuple[Scop, tuple[Note, ...]]:
    """The region's scop, indices that lie side by side joined."""
    with stage("scop"):
        scop = build_scop(
            region.ops,
            name=region.name,
            sizes=graph.sizes,
            context=graph.context,
            inputs=region.inputs,
            outputs=region.outputs,
            storage=storage,
            strides=strides,
        )
    scop = replace(scop, examples=graph.examples)
    if constants:
        scop = _with_constants(scop, {storage[name] for name in constants})
    notes: tuple[Note, ...] = ()
    if may_arrange(options):
        apart = scop
        machine = options.machine
        scop = joined_indices(
            scop,
            machine.vector_bytes,
            line_bytes=machine.line_bytes,
            registers=machine.vector_registers,
            turns=not machine.is_cuda,
        )
        notes = _joined(apart, scop)
    if options.verify:
        prove_in_bounds(scop)
    return scop, notes


def _with_constants(scop: Scop, constants: Set[str]) -> Scop:
    arrays = {name: replace(a, constant=a.kind == "input" and name in constants) for name, a in scop.arrays.items()}
    return replace(scop, arrays=arrays)


def _with_values(scop: Scop, region: Region, values: Mapping[str, Places], storage: Mapping[str, str]) -> Scop:
    """The scop with what is known of zeros around its inputs' values, where their dimensions are not joined."""
    arrays = dict(scop.arrays)
    for tensor in region.inputs:
        places, array = values.get(tensor.name), arrays.get(storage[tensor.name])
        if places and array is not None and array.kind == "input" and array.shape == tensor.shape:
            arrays[array.name] = replace(array, values=places)
    return replace(scop, arrays=arrays)


def _joined(before: Scop, after: Scop) -> tuple[Note, ...]:
    """The indices that are left to reductions that had more."""
    return tuple(
        Note("joined", s.name, f"indices that lie side by side are one: {', '.join(s.indices)}")
        for s in after.statements.values()
        if s.kind == "update" and s.indices != before.statements[s.name].indices
    )


def _products(scop: Scop, options: Options) -> tuple[Note, ...]:
    """What is computed by an instruction that differs from others in its results."""
    how = "vdpbf16ps, subnormal numbers count as zero" if options.machine.multiplies_bf16 else "in f32"
    texts = {
        "dot_bf16": f"pairs of bf16, two products at once ({how})",
        "dot_i8": "four numbers of 8 bits, four products at once (vpdpbusd)",
        "dot_i16": f"pairs of i16, two products at once ({options.machine.multiplies_i16})",
    }
    return tuple(
        Note("products", name, texts[op])
        for name, statement in scop.statements.items()
        for op in sorted({node.op for node in walk(statement.value) if isinstance(node, Apply)} & texts.keys())
    )


def _dependences(scop: Scop, options: Options) -> tuple[Scop, Dependences, tuple[Note, ...]]:
    """The scop with what its values need only, and exact dependences; or memory-based ones, and a note, when the budget does not suffice."""
    try:
        shares = max(1, len(scop.statements) // _STATEMENTS)
        with operation_budget(max(options.budget // _DATAFLOW, 1) * shares, phase="dataflow"):
            analysis = Analysis(scop)
            if options.scheduler == "written":
                return scop, analysis.dependences(), ()
            needed = used_values(scop, analysis.values)
            # isl's scheduler finds no schedule within its budget once nussinov's scalar is expanded, and a good one before.
            if options.scheduler == "ilp":
                needed = expanded(needed)
            return needed, analysis.dependences() if needed is scop else analyse(needed), ()
    except BudgetExhausted as reason:
        return scop, memory_based(scop), (Note("fallback", scop.name, f"memory-based dependences: {reason}"),)
