"""The loop passes in their order: a Function with marks becomes one with "sequential", "parallel" and "vector" loops only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Prefetch, UpdateArgument
from polyml.codegen.passes.panels.pack_in_tiles import pack_in_tiles
from polyml.codegen.passes.panels.strips_in_panels import strips_in_panels
from polyml.codegen.passes.panels.tile_stage import stage_tiles
from polyml.codegen.passes.panels.tile_streams import stream_tiles
from polyml.codegen.passes.registers.carried import carry_values
from polyml.codegen.passes.registers.read_ahead import read_ahead
from polyml.codegen.passes.registers.scalar_replacement import scalar_replacement
from polyml.codegen.passes.simplify import simplify
from polyml.codegen.passes.sums.chained_sums import chain_sums
from polyml.codegen.passes.sums.common_sums import share_sums
from polyml.codegen.passes.sums.partial_sums import sum_in_parts
from polyml.codegen.passes.sums.parts_outside import add_up_outside
from polyml.codegen.passes.sums.quotients_ahead import quotients_ahead
from polyml.codegen.passes.sums.recurrences import order_sums
from polyml.codegen.passes.sums.scans import find_scans
from polyml.codegen.passes.sums.skip_edges import skip_edges
from polyml.codegen.passes.sums.skip_masked import skip_masked
from polyml.codegen.passes.sums.skip_zeros import Values, skip_zeros
from polyml.codegen.passes.sums.split_scans import split_scans
from polyml.codegen.passes.sums.sums_by_place import order_by_place
from polyml.codegen.passes.sums.window_taps import write_taps
from polyml.codegen.passes.transposes.collapse_copies import collapse_copies
from polyml.codegen.passes.transposes.lanes_last import lanes_last
from polyml.codegen.passes.transposes.shuffle_copies import shuffle_copies
from polyml.codegen.passes.transposes.transpose_copies import transpose_copies
from polyml.codegen.passes.transposes.transposes import transpose_rows
from polyml.codegen.passes.unrolling.triangles import cut_triangles
from polyml.codegen.passes.unrolling.unroll import unroll
from polyml.codegen.passes.unrolling.unroll_and_jam import unroll_and_jam
from polyml.codegen.passes.unrolling.unroll_matrices import unroll_matrices
from polyml.codegen.passes.unrolling.unroll_rows import unroll_rows
from polyml.codegen.passes.unrolling.unroll_scatters import unroll_scatters
from polyml.codegen.passes.unrolling.unroll_sums import unroll_sums
from polyml.codegen.passes.vectors.ahead_of_scatters import compute_ahead_of_scatters
from polyml.codegen.passes.vectors.cut_conditions import cut_conditions
from polyml.codegen.passes.vectors.cut_edges import cut_edges, cut_vectors
from polyml.codegen.passes.vectors.long_lags import find_long_lags
from polyml.codegen.passes.vectors.parts_apart import store_parts_apart
from polyml.codegen.passes.vectors.ragged_tiles import widen_tiles
from polyml.codegen.passes.vectors.short_indices import shorten_indices
from polyml.codegen.passes.vectors.vectorize import vectorize
from polyml.codegen.prefetch.along import prefetch_along
from polyml.codegen.prefetch.blocks import prefetch_blocks
from polyml.codegen.prefetch.caches import AHEAD, Caches
from polyml.codegen.prefetch.columns import prefetch_columns
from polyml.codegen.prefetch.copies import prefetch_copies
from polyml.codegen.prefetch.near import prefetch_near
from polyml.codegen.prefetch.once import ask_once
from polyml.codegen.prefetch.points import prefetch_points
from polyml.codegen.prefetch.sources import prefetch_sources
from polyml.codegen.prefetch.strips import prefetch_strips
from polyml.codegen.prefetch.swept_rows import prefetch
from polyml.codegen.prefetch.tiles import prefetch_tiles
from polyml.codegen.prefetch.tiles_along_rows import prefetch_rows
from polyml.codegen.prefetch.turned import prefetch_turned
from polyml.codegen.ranges import remembered
from polyml.codegen.rewrite import nodes_of
from polyml.records import dataclass
from polyml.schedule.schedule import Note

__all__ = ["PASSES", "LoopOptions", "Pass", "lower_loops"]

OnPass = Callable[[str, Function], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """vector_bytes: of one vector register, of which there are so many. precise: floating-point sums and products keep their order.
    l1_bytes, l2_bytes, line_bytes: of one core's caches and their lines; 0: not known, and nothing is prefetched. rows_ahead, asks_near, asks_along, asks_sources, near_l3, fills_l2, streams_apart, window: Target's.
    large: what codegen/passes/large.py asks for holds. scans: recurrences may get lanes. near, far: arguments of symbolic size that are known to be no larger than L2 (or are no larger in the call at hand), or larger. held: those of `near` in every call.
    constants: arguments that are the same in every call: what is packed of them stays a copy of its own, which codegen/passes/panels/hoist_panels.py moves out.
    values: where arrays with zeros around have their values (codegen/passes/sums/skip_zeros.py)."""

    vector_bytes: int
    vector_registers: int = 32
    precise: bool = False
    l1_bytes: int = 0
    l2_bytes: int = 0
    line_bytes: int = 64
    rows_ahead: int = AHEAD
    asks_near: bool = True
    asks_along: bool = True
    asks_sources: bool = True
    near_l3: bool = True
    fills_l2: bool = True
    streams_apart: bool = False
    window: int = 512
    large: bool = False
    scans: bool = True
    near: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    far: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    values: Values = field(default_factory=dict)

    @property
    def caches(self) -> Caches:
        return Caches(
            self.l1_bytes,
            self.l2_bytes,
            self.line_bytes,
            beside=self.fills_l2,
            near_l3=self.near_l3,
            streams_apart=self.streams_apart,
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """A named step, Function -> Function (the same object when it did nothing), with notes for explain()."""

    name: str
    run: Callable[[Function, LoopOptions], tuple[Function, tuple[Note, ...]]]


PASSES: tuple[Pass, ...] = (
    Pass("simplify", lambda f, _: (simplify(f), ())),
    # Ordering: first, so that parts are what the others know.
    Pass("store_parts_apart", lambda f, _: (store_parts_apart(f), ())),
    # Ordering: before vectors and copies, which then are inside of the condition.
    Pass("skip_masked", lambda f, o: (skip_masked(f, precise=o.precise), ())),
    # Ordering: first, when a copy is a loop and what reads it is another one.
    Pass("read_ahead", lambda f, _: (read_ahead(f), ())),
    # Ordering: before "cut_triangles", which takes the ragged rows that are left.
    Pass("widen_tiles", lambda f, _: (widen_tiles(f), ())),
    # Ordering: before vectors, which then have whole rows.
    Pass("cut_triangles", lambda f, _: (cut_triangles(f), ())),
    # Ordering: before vectors, which it asks for.
    Pass(
        "compute_ahead_of_scatters",
        lambda f, o: (
            f if o.precise else compute_ahead_of_scatters(f, vector_bytes=o.vector_bytes, l1_bytes=o.l1_bytes),
            (),
        ),
    ),
    # Ordering: before vectors, which it asks for.
    Pass(
        "find_scans", lambda f, o: find_scans(f, vector_bytes=o.vector_bytes, precise=o.precise) if o.scans else (f, ())
    ),
    # Ordering: of the loops that are no scans.
    Pass("find_long_lags", lambda f, o: find_long_lags(f, vector_bytes=o.vector_bytes, window=o.window)),
    # Ordering: before vectors, whose masks are constants then.
    Pass("cut_edges", lambda f, _: (cut_edges(f), ())),
    # Ordering: before vectors, so that each part has whole ones.
    Pass("cut_conditions", lambda f, o: (cut_conditions(f) if o.vector_bytes < o.line_bytes else f, ())),
    # Ordering: when loops have been chosen for vectors, and before they are cut, since such a loop takes one vector after another.
    Pass("order_by_place", lambda f, o: (f if o.precise else order_by_place(f, vector_bytes=o.vector_bytes), ())),
    # Ordering: when loops have been chosen for vectors, and before these have as many lanes as the widest numbers leave.
    Pass("shorten_indices", lambda f, _: (shorten_indices(f), ())),
    # Ordering: vectors before copies, so that jammed rows share the parts of the vector loops inside them.
    Pass(
        "vectorize",
        lambda f, o: vectorize(
            f,
            vector_bytes=o.vector_bytes,
            registers=o.vector_registers,
            window=o.window,
            precise=o.precise,
            large=o.large,
        ),
    ),
    # Ordering: when sums along lanes have parts, and before rows are jammed, which then have parts of their own around the loop.
    Pass("add_up_outside", lambda f, _: (add_up_outside(f), ())),
    # Ordering: when loops are loops of vectors.
    Pass("cut_vectors", lambda f, _: (cut_vectors(f), ())),
    Pass("unroll_and_jam", lambda f, _: unroll_and_jam(f)),
    # Ordering: when register tiles have their copies, and nothing but these is in their loops yet.
    Pass(
        "strips_in_panels",
        lambda f, o: (strips_in_panels(f, l1_bytes=o.l1_bytes) if o.vector_bytes < o.line_bytes else f, ()),
    ),
    # Ordering: when whole vectors have a loop of their own, and rows stand side by side that are to.
    Pass("split_scans", lambda f, o: (split_scans(f, short=o.vector_bytes < o.line_bytes), ())),
    # Ordering: when register tiles have their copies; before loops over taps are unrolled in another way.
    Pass("write_taps", lambda f, o: (write_taps(f, vector_registers=o.vector_registers, precise=o.precise), ())),
    # Ordering: when register tiles have their copies; before "unroll", which carries it out.
    Pass(
        "unroll_sums",
        lambda f, o: (unroll_sums(f, chains=not o.precise, vector_registers=o.vector_registers), ()),
    ),
    # Ordering: when loops have been chosen for vectors, and before "unroll"; what is left is transposed.
    Pass("unroll_rows", lambda f, _: (unroll_rows(f), ())),
    # Ordering: when rows of one loop are asked for, and before "unroll"; elements that are written out become registers.
    Pass("unroll_matrices", lambda f, _: (unroll_matrices(f), ())),
    # Ordering: when loops have been chosen for vectors, and before "unroll".
    Pass("unroll_scatters", lambda f, _: (unroll_scatters(f), ())),
    Pass("unroll", lambda f, _: (unroll(f), ())),
    # Ordering: conditions that copies made certain go before elements are looked at; a certain access can be promoted.
    Pass("simplify_copies", lambda f, _: (simplify(f), ())),
    # Ordering: when copies stand side by side, and before elements become registers.
    Pass("share_sums", lambda f, o: (f if o.precise else share_sums(f), ())),
    # Ordering: when all lanes are known; before copies and rows are transposed, which need not be then.
    Pass("lanes_last", lambda f, _: (lanes_last(f), ())),
    # Ordering: before "transpose_rows", which would go through scratch memory.
    Pass("collapse_copies", lambda f, _: (collapse_copies(f), ())),
    Pass("shuffle_copies", lambda f, o: (shuffle_copies(f, vector_bytes=o.vector_bytes), ())),
    Pass("transpose_copies", lambda f, _: (transpose_copies(f), ())),
    # Ordering: before elements become registers; only loops without lanes are left to look at.
    Pass("order_sums", lambda f, o: (f if o.precise else order_sums(f), ())),
    # Ordering: when divisions do not wait any more, and before loops along rows become strips.
    Pass("quotients_ahead", lambda f, o: (quotients_ahead(f, l2_bytes=o.l2_bytes), ())),
    # Ordering: before loops become strips, whose ends the registers live across.
    Pass("carry_values", lambda f, _: (carry_values(f), ())),
    # Ordering: when each vector has its copy of the body, and before elements become registers.
    Pass("transpose_rows", lambda f, o: (transpose_rows(f, l1_bytes=o.l1_bytes), ())),
    # Ordering: after everything that copies bodies; each copy has elements of its own.
    Pass("scalar_replacement", lambda f, _: (scalar_replacement(f), ())),
    # Ordering: when results are in registers until they are stored; before "stream_tiles", which takes the rest.
    Pass("stage_tiles", lambda f, o: (stage_tiles(f, vector_bytes=o.vector_bytes, l1_bytes=o.l1_bytes), ())),
    Pass("stream_tiles", lambda f, o: (stream_tiles(f, vector_bytes=o.vector_bytes, line_bytes=o.line_bytes), ())),
    # Ordering: before "prefetch_tiles", which takes the tiles that have no rows of their own.
    Pass("prefetch_rows", lambda f, o: prefetch_rows(f, o.caches, o.vector_registers, o.held)),
    # Ordering: before "prefetch_columns", which takes the columns that are walked down once.
    Pass("prefetch_strips", lambda f, o: prefetch_strips(f, o.caches, o.far)),
    Pass(
        "prefetch_sources",
        lambda f, o: prefetch_sources(f, o.caches, o.vector_registers) if o.asks_sources else (f, ()),
    ),
    # Ordering: when all other prefetches in tiles would be ones of strips.
    Pass("prefetch_near", lambda f, o: (prefetch_near(f) if o.asks_near else f, ())),
    Pass("prefetch_blocks", lambda f, o: prefetch_blocks(f, o.caches)),
    Pass("prefetch_along", lambda f, o: prefetch_along(f, o.caches, always=o.asks_along)),
    # Ordering: after the passes that fetch what tiles read next.
    Pass("prefetch_copies", lambda f, o: prefetch_copies(f, o.caches, o.held)),
    # Ordering: last, when the loops read what they will read.
    Pass(
        "prefetch",
        lambda f, o: prefetch(f, replace(o.caches, ahead=o.rows_ahead, near=o.asks_near), o.near),
    ),
    Pass("prefetch_columns", lambda f, o: prefetch_columns(f, o.caches, o.near)),
    Pass("prefetch_tiles", lambda f, o: (prefetch_tiles(f, o.caches), ())),
    # Ordering: when prefetches of what sums read are where they will be.
    Pass("prefetch_turned", lambda f, o: (prefetch_turned(f, o.caches), ())),
    # Ordering: after the passes that ask for the same with more knowledge of what loops do.
    Pass("prefetch_points", lambda f, o: (prefetch_points(f, o.caches), ())),
    # Ordering: last, since passes above know tiles by the loads ahead of their sums.
    Pass("sum_in_parts", lambda f, o: (f if o.precise else sum_in_parts(f), ())),
    # Ordering: a part is a sum like any other.
    Pass("chain_sums", lambda f, o: (f if o.precise else chain_sums(f, vector_registers=o.vector_registers), ())),
    # Ordering: last, since passes above know copies and tiles by their loops.
    Pass("pack_in_tiles", lambda f, o: (pack_in_tiles(f, o.constants), ())),
    # Ordering: last, since passes above know sums by how many terms they have.
    Pass("skip_zeros", lambda f, o: (skip_zeros(f, o.values), ())),
    # Ordering: after "skip_zeros", which knows loops over rows by all of their terms. What has constants gets requests for panels first (polyml/compiler/constants.py).
    Pass("skip_edges", lambda f, o: (f if o.constants else skip_edges(f, o.values), ())),
    # Ordering: last, since passes above know tiles by their sums.
    Pass("ask_once", lambda f, o: (ask_once(f, o.line_bytes, o.vector_registers), ())),
)


def lower_loops(
    function: Function, *, options: LoopOptions, on_pass: OnPass | None = None
) -> tuple[Function, tuple[Note, ...]]:
    """The function ready for an emitter, and what the passes chose or refused.

    Args:
        on_pass: called with the pass's name and its result after each pass that changed something.
    """
    notes: tuple[Note, ...] = ()
    with remembered():
        for step in PASSES:
            made, found = step.run(function, options)
            notes += found
            if made is not function and on_pass is not None:
                on_pass(step.name, made)
            function = made
    _verify(function)
    return function, notes


def _verify(function: Function) -> None:
    """Only what emitters know is left."""
    for node in nodes_of(function):
        match node:
            case For():
                assert node.kind in (
                    "sequential",
                    "parallel",
                    "pipelined",
                    "stage",
                    "vector",
                    "transpose",
                    "shuffle",
                ), f"internal: loop {node.variable} is {node.kind}"
                assert node.kind != "transpose" or len(node.body) == 1, (
                    f"internal: loop {node.variable} is not one copy"
                )
                assert node.kind != "vector" or node.width > 1, f"internal: vector loop {node.variable} has no width"
            case Assign() | UpdateArgument() | Prefetch() | If() | Allocate() | Block():
                pass
