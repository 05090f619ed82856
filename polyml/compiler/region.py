"""One region through the pipeline: scop, dependences, schedule, loops; and the plainer way where a budget is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from polyml.codegen.generate import generate
from polyml.codegen.loops import Function
from polyml.codegen.passes.large import Apart, either, streaming, where_worth
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.simplify import simplify
from polyml.codegen.printer import loops_text
from polyml.debug import report, stage
from polyml.errors import CodegenError
from polyml.expressions import Apply, walk
from polyml.graph.ir import Equation, Graph
from polyml.graph.plan import Plan
from polyml.graph.region import Region
from polyml.graph.rewrite import rewrite
from polyml.options import Options
from polyml.records import dataclass
from polyml.schedule.driver import schedule, schedule_at_hand, schedule_few_rows, schedule_few_steps
from polyml.schedule.large_enough import far_arrays, near_arrays
from polyml.schedule.schedule import Note, Product, Schedule
from polyml.schedule.tree import print_tree
from polyml.scop.bounds import prove_in_bounds
from polyml.scop.build import build as build_scop
from polyml.scop.dependences import Analysis, Dependences, analyse
from polyml.scop.expansion import expanded
from polyml.scop.joined_indices import joined_indices
from polyml.scop.memory_based import memory_based
from polyml.scop.scop import Scop
from polyml.scop.values import used_values
from polyml.sets.budget import BudgetExhausted, operation_budget

__all__ = ["LoweredRegion", "lower_region", "may_arrange", "rewrite_for", "to_loops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredRegion:
    """One region at all its stops. notes: what its stages decided and refused, in order."""

    region: Region
    scop: Scop
    dependences: Dependences
    schedule: Schedule
    loops: Function
    notes: tuple[Note, ...]


def lower_region(
    region: Region,
    graph: Graph,
    memory: Plan,
    options: Options,
    strides: Mapping[str, tuple[int, ...]],
    results: Set[str],
    constants: Set[str] = frozenset(),
) -> LoweredRegion:
    """The region at every stop down to its loops.

    Args:
        memory: of the whole graph. strides: of inputs that are not contiguous, in elements. results: arrays that nothing reads after the region but the caller.
        constants: names of inputs that never change.
    """
    if any(isinstance(op, Equation) and op.only_if is not None for op in region.ops):
        options = replace(options, register_tile=(1, 1))  # it hardly ever runs: compiling it is what it costs
    with stage("scop"):
        scop = build_scop(
            region.ops,
            name=region.name,
            sizes=graph.sizes,
            context=graph.context,
            inputs=region.inputs,
            outputs=region.outputs,
            storage=memory.storage,
            strides=strides,
        )
    scop = replace(scop, examples=graph.examples)
    if constants:
        scop = _with_constants(scop, {memory.storage[name] for name in constants})
    joined: tuple[Note, ...] = ()
    if may_arrange(options):
        apart = scop
        scop = joined_indices(scop, options.machine.vector_bytes, turns=not options.machine.is_cuda)
        joined = _joined(apart, scop)
    if options.verify:
        prove_in_bounds(scop)
    with stage("dependences"):
        scop, dependences, refused = _dependences(scop, options)
    with stage("schedule"):
        scheduled = schedule(scop, dependences, options.machine, options, results=results)
    scheduled = replace(scheduled, notes=(*joined, *refused, *_products(scheduled.scop, options), *scheduled.notes))
    try:
        with operation_budget(options.budget, phase="AST generation"):
            made = to_loops(region, scheduled, options)
            if not scheduled.worth and not scheduled.apart:
                return made
            bare = schedule(scop, dependences, options.machine, options, results=results, pack=False)
            if not _for_larger(scheduled.worth):
                # For small operands: one version of it is enough.
                bare = replace(bare, streamed_when_large={})
            loops = to_loops(region, bare, options).loops
            few = schedule_few_rows(scop, dependences, options.machine, options, results=results)
            if few is not None:
                in_order = to_loops(region, replace(few, streamed_when_large={}), options)
                loops = where_worth(few.worth, in_order.loops, loops)
            in_place = schedule_few_steps(scop, dependences, options.machine, options, results=results)
            if in_place is not None and in_place.worth != scheduled.worth:
                tiled = to_loops(region, replace(in_place, streamed_when_large={}), options)
                loops = where_worth(in_place.worth, tiled.loops, loops)
            lie = Apart(scheduled.apart, options.machine.line_bytes)
            loops = where_worth(scheduled.worth, made.loops, loops, apart=lie)
            at_hand = schedule_at_hand(scop, dependences, options.machine, options, results=results)
            if at_hand is not None:
                suited = to_loops(region, replace(at_hand, streamed_when_large={}), options)
                loops = where_worth(at_hand.worth, suited.loops, loops)
                own = (replace(n, text=f"for sizes near those at hand: {n.text}") for n in at_hand.notes)
                made = replace(made, notes=(*made.notes, *(note for note in own if note.stage == "blocking")))
            return replace(made, loops=loops)
    except (BudgetExhausted, CodegenError) as reason:
        if options.scheduler == "written":
            return to_loops(region, scheduled, options)  # the last resort may take longer: after it there is nothing
        plain = schedule(scop, dependences, options.machine, replace(options, scheduler="written"), results=results)
        dropped = Note("fallback", scop.name, f"the schedule was dropped for the written order: {reason}")
        return to_loops(region, replace(plain, notes=(*scheduled.notes, dropped, *plain.notes)), options)


def _for_larger(worth: Sequence[Product]) -> bool:
    """Whether sizes for which this does not hold are larger ones."""
    return all(product.most is not None and not product.least for product in worth)


def _with_constants(scop: Scop, constants: Set[str]) -> Scop:
    arrays = {name: replace(a, constant=a.kind == "input" and name in constants) for name, a in scop.arrays.items()}
    return replace(scop, arrays=arrays)


def rewrite_for(
    graph: Graph, options: Options, strides: Mapping[str, tuple[int, ...]], *, constants: Set[str] = frozenset()
) -> Graph:
    """The graph in the form that suits the machine. strides: as of `lower_region`; constants: names of inputs that never change."""
    machine, free = options.machine, may_arrange(options)
    return rewrite(
        graph,
        precise=options.precise,
        cache=machine.l2_bytes,
        l1_bytes=machine.l1_bytes,
        dot_bf16=machine.dot_bf16 if free else 0.0,
        dot_i16=machine.dot_i16 if free else 0.0,
        dot_i8=machine.dot_i8 if free else 0.0,
        vector_bytes=machine.vector_bytes if free else 0,
        vector_registers=machine.vector_registers,
        split_vectors=machine.split_vectors,
        constants=constants,
        strided={name for name, steps in strides.items() if steps and steps[-1] != 1},
    )


def may_arrange(options: Options) -> bool:
    """Whether the loops are ours to choose, and lanes are what they are chosen for."""
    asked = options.tile_sizes is not None or options.register_tile is not None or options.costs is not None
    return options.vectorize and options.scheduler == "ilp" and not asked and not options.machine.is_cuda


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
        with operation_budget(options.budget, phase="dataflow"):
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


def to_loops(region: Region, scheduled: Schedule, options: Options) -> LoweredRegion:
    """The region with this schedule, and its loops after all passes."""
    report(f"schedule of {region.name}", lambda: print_tree(scheduled.tree, scheduled.scop), level=3)
    with stage("loops"):
        generated = generate(scheduled, name=region.name)
    report(f"loops of {region.name} as generated", lambda: loops_text(generated), level=5)
    if options.machine.is_cuda:
        return LoweredRegion(
            region=region, scop=scheduled.scop, dependences=scheduled.dependences, schedule=scheduled,
            loops=simplify(generated),
            notes=scheduled.notes,
        )  # fmt: skip
    with stage("loop passes"):
        passes = LoopOptions(
            vector_bytes=scheduled.vector_bytes or options.machine.vector_bytes,
            vector_registers=options.machine.vector_registers,
            precise=options.precise,
            l1_bytes=options.machine.l1_bytes,
            l2_bytes=options.machine.l2_bytes,
            line_bytes=options.machine.line_bytes,
            rows_ahead=options.machine.rows_ahead,
            asks_near=options.machine.asks_near,
            scans=options.vectorize,
            near=near_arrays(scheduled.scop, scheduled.worth, options.machine.l2_bytes),
            far=far_arrays(scheduled.scop, scheduled.worth, options.machine.l2_bytes),
            constants=frozenset(name for name, array in scheduled.scop.arrays.items() if array.constant),
        )
        loops, notes = lower_loops(
            generated,
            options=passes,
            on_pass=lambda name, made: report(f"{region.name} after {name}", lambda: loops_text(made), level=5),
        )
        if scheduled.streamed_when_large:
            written = {s.argument.array for s in scheduled.scop.statements.values() if s.argument is not None}
            again = streaming(generated, scheduled.streamed_when_large.keys() - written)
            large, more = lower_loops(again, options=replace(passes, large=True))
            both = either(large, loops, least=scheduled.streamed_when_large)
            if both is not loops:
                loops, notes = (
                    both,
                    (*notes, *more, Note("streaming", region.name, "past the caches where results are large")),
                )
    report(f"loops of {region.name}", lambda: loops_text(loops), level=4)
    decisions = (*scheduled.notes, *notes)
    report(
        f"choices of {region.name}", lambda: "\n".join(f"{n.stage}: {n.subject}: {n.text}" for n in decisions), level=2
    )
    return LoweredRegion(
        region=region,
        scop=scheduled.scop,
        dependences=scheduled.dependences,
        schedule=scheduled,
        loops=loops,
        notes=decisions,
    )
