"""A scheduled region down to its loops: generated, then through all loop passes."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.generate import generate
from polyml.codegen.loops import Function
from polyml.codegen.passes.large import either, streaming, where_worth
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.codegen.passes.simplify import simplify
from polyml.codegen.passes.vectors.short_indices import for_short_sizes, without_lanes
from polyml.codegen.printer import loops_text
from polyml.debug import report, stage
from polyml.graph.region import Region
from polyml.options import Options
from polyml.records import dataclass
from polyml.schedule.large_enough import far_arrays, near_arrays
from polyml.schedule.schedule import Note, Product, Schedule
from polyml.schedule.tree import print_tree
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.affine import affine

__all__ = ["LoweredRegion", "to_loops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredRegion:
    """One region at all its stops. notes: what its stages decided and refused, in order."""

    region: Region
    scop: Scop
    dependences: Dependences
    schedule: Schedule
    loops: Function
    notes: tuple[Note, ...]


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
        loops, notes = _lowered(region, scheduled, generated, _loop_options(scheduled, options))
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


def _loop_options(scheduled: Schedule, options: Options) -> LoopOptions:
    machine = options.machine
    return LoopOptions(
        vector_bytes=scheduled.vector_bytes or machine.vector_bytes,
        vector_registers=machine.vector_registers,
        precise=options.precise,
        l1_bytes=machine.l1_bytes,
        l2_bytes=machine.l2_bytes,
        line_bytes=machine.line_bytes,
        rows_ahead=machine.rows_ahead,
        asks_near=machine.asks_near,
        asks_along=machine.asks_along,
        asks_sources=machine.asks_sources,
        near_l3=machine.near_l3,
        fills_l2=machine.fills_l2,
        streams_apart=machine.streams_apart,
        window=machine.window,
        scans=options.vectorize,
        near=near_arrays(scheduled.scop, (*scheduled.worth, *scheduled.small), machine.l2_bytes),
        held=near_arrays(scheduled.scop, (*scheduled.worth, *scheduled.small), machine.l2_bytes, large=True),
        far=far_arrays(scheduled.scop, scheduled.worth, machine.l2_bytes),
        constants=frozenset(name for name, array in scheduled.scop.arrays.items() if array.constant),
        values={name: array.values for name, array in scheduled.scop.arrays.items() if array.values},
    )


def _lowered(
    region: Region, scheduled: Schedule, generated: Function, passes: LoopOptions
) -> tuple[Function, tuple[Note, ...]]:
    """The loops after all passes; twice, where results may be large, with stores past the caches for these, or where indices are of 32 bits unless a size is longer."""
    short = for_short_sizes(generated)
    if short is not None:
        loops, notes = _lowered(region, scheduled, short, passes)
        plain, _ = lower_loops(without_lanes(generated), options=replace(passes, scans=False))
        limits = [
            Product((affine(size),), 0, most)
            for (size, _, most), bound in zip(short.bounds, generated.bounds, strict=True)
            if most != bound[2]
        ]
        return where_worth(limits, loops, plain), notes
    loops, notes = lower_loops(
        generated,
        options=passes,
        on_pass=lambda name, made: report(f"{region.name} after {name}", lambda: loops_text(made), level=5),
    )
    if not scheduled.streamed_when_large:
        return loops, notes
    written = {s.argument.array for s in scheduled.scop.statements.values() if s.argument is not None}
    again = streaming(generated, scheduled.streamed_when_large.keys() - written)
    near = near_arrays(scheduled.scop, scheduled.worth, passes.l2_bytes, large=True)
    large, more = lower_loops(again, options=replace(passes, large=True, near=near))
    both = either(large, loops, least=scheduled.streamed_when_large)
    if both is loops:
        return loops, notes
    return both, (*notes, *more, Note("streaming", region.name, "past the caches where results are large"))
