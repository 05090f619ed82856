"""Blocks of steps of a sequential loop that sweeps over columns: the block's own columns first, then all others in tiles that threads share.

Where blocks of columns may go above the loop over steps (column_tiles.py), so may blocks of steps: what a block of steps does to its own columns needs nothing of the columns
behind, and what it does to those needs nothing but that. So tiles of them are independent, and each goes through all of the block's steps in cache.

Rewrite: band[k] (c) -> band[k_tile] (own columns: band[k] (c); others: band[j_tile] (band[k] (c)))

A step that sums over a column and then takes something off it goes down the column twice. Taking off the step before in the sweep that sums for the next makes it one: with the first
statement S one step ahead of the second T,

    S[first]; band[k] (band[j] (band[i] (T[k - 1]; S[k]))); T[last]

which is right when no element that T changes is read by S further up the column.

A tile has its lanes from column to column where those lie side by side. Where each column is a row of memory (layouts/turned_columns.py), lanes run down the columns: a tile is as few columns as stay in L1
beside those of two steps, jammed, with a vector of partial sums each.

Source: the right-looking order of Dongarra, Duff, Sorensen and van der Vorst, "Numerical Linear Algebra for High-Performance Computers" (1998), section 5.4; shifted fusion is
loop alignment, Allen, Callahan and Kennedy, "Automatic decomposition of scientific programs for parallel execution" (POPL 1987).
"""

from __future__ import annotations

from collections.abc import Mapping

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.strategy.bands import Band, along, descend
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.sequential.column_tiles import ColumnPlan, column_order
from polyml.schedule.transforms import Loop, insert_loops, insert_sequence, tile_loop
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.sets.spaces import maps_of

__all__ = ["STEPS", "StepPlan", "build_step_blocks", "plan_step_blocks"]

STEPS = "steps"
"""The stage of notes about blocks of steps."""

VECTORS = 4
"""Of a tile of columns: as many as hide the latency of sums, in one line of registers. With lanes down the columns: columns times vectors."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """columns: the blocks and who stands where. sums, takes: the statements that go down a column, the first one step ahead of the other. down: their indices along it.
    vectors: side by side in a tile of the other columns. rows: columns in a tile whose lanes run down them; 0 where they run from column to column."""

    columns: ColumnPlan
    steps: Mapping[str, str]
    sums: str
    takes: str
    down: Mapping[str, str]
    vectors: int
    rows: int = 0

    def __str__(self) -> str:
        tiles = f", in tiles of {self.rows} columns" if self.rows else ""
        return f"blocks of {self.columns.size} steps, {self.sums} one ahead of {self.takes} on all columns but their own{tiles}"

    def width(self, lanes: int) -> int:
        """Columns of a tile."""
        return self.rows or self.vectors * lanes


def plan_step_blocks(band: Band, columns: ColumnPlan, facts: Facts) -> StepPlan | None:
    """The blocks for a loop that has blocks of columns; None where its step is another one than a sum and what depends on it."""
    (steps,) = band.indices
    statements = facts.scop.statements
    others = [name for name in band.statements if columns.columns[name] != steps[name]]
    others.sort(key=lambda name: statements[name].kind, reverse=True)
    if [statements[name].kind for name in others] != ["update", "assign"] or not facts.options.relax_reductions:
        return None
    sums, takes = others
    down: dict[str, str] = {}
    for name in others:
        rest = [i for i in statements[name].indices if i not in (steps[name], columns.columns[name])]
        if len(rest) != 1:
            return None
        down[name] = rest[0]
    written = (s for s in statements[sums].target.subscripts if isinstance(s, Affine))
    if any(down[sums] in s.variables() for s in written) or not facts.matcher.related(sums, takes):
        return None
    order = column_order(band, facts)
    beside = {name: columns.columns[name] for name in others}
    if not (order.forwards(beside, sums) and order.forwards(beside, takes) and order.stays(beside)):
        return None
    if not _may_follow(facts, takes, sums, steps, down):
        return None
    if all(_runs_down(facts.models[name], down[name]) for name in others):
        rows = _rows(facts.models[takes], down[takes], facts)
        return StepPlan(columns, dict(steps), sums, takes, down, VECTORS // rows, rows)
    lanes = max(facts.lanes(name) for name in others)
    vectors = min(VECTORS, columns.size // lanes)
    return StepPlan(columns, dict(steps), sums, takes, down, vectors) if vectors else None


def _runs_down(model: StatementModel, down: str) -> bool:
    """Whether the statement finds everything side by side down a column, and not from column to column."""
    strides = [access.stride(down) for access in model.accesses]
    return 1 in strides and all(stride in (0, 1) for stride in strides)


def _rows(takes: StatementModel, down: str, facts: Facts) -> int:
    """Columns of a tile: as many as stay in L1 beside what two steps take; where none does, the most, which share what comes from L2."""
    column = takes.itemsize * takes.extents[down]
    return next((rows for rows in (4, 2, 1) if (rows + 2) * column <= facts.target.l1_bytes), VECTORS)


def build_step_blocks(band: Band, plan: StepPlan, facts: Facts, *, parallel: bool) -> isl.ScheduleNode:
    """The loop over blocks in the band's place. *Returns* it; the band itself stands below the first child of the sequence in it."""
    scop, size = facts.scop, plan.columns.size
    near, rest = isl.UnionSet("{ }"), isl.UnionSet("{ }")
    for name in band.statements:
        own = plan.columns.columns[name]
        inside = _where(scop, name, f"floor({own}/{size}) = floor({plan.steps[name]}/{size})")
        near = near.union(inside.to_union_set())
        rest = rest.union(scop.statements[name].domain.subtract(inside).to_union_set())
    node = insert_loops(band.node, [tile_loop(band.loops[0], size)])
    far = insert_sequence(node.child(0), [near, rest]).child(1).child(0).cut()
    pair = (plan.sums, plan.takes)
    step = {name: plan.steps[name] for name in pair}
    first = {name: _where(scop, name, f"{k} mod {size} = 0") for name, k in step.items()}
    last = {name: _where(scop, name, f"{k} mod {size} = {size - 1}") for name, k in step.items()}
    lanes = max(facts.lanes(name) for name in pair)
    tiles = tile_loop(Loop(along(scop, pair, plan.columns.columns), True), plan.width(lanes))
    far = insert_loops(far, [tiles.marked("parallel" if parallel else None)])
    depth = 2 if parallel else 1
    for _ in range(depth):
        far = far.child(0)
    domains = {name: scop.statements[name].domain for name in pair}
    middle = domains[plan.sums].subtract(first[plan.sums]).to_union_set()
    middle = middle.union(domains[plan.takes].subtract(last[plan.takes]).to_union_set())
    far = insert_sequence(far, [first[plan.sums].to_union_set(), middle, last[plan.takes].to_union_set()])
    for position, names in enumerate(((plan.sums,), pair, (plan.takes,))):
        shifted = {plan.sums: step[plan.sums], plan.takes: f"{step[plan.takes]} + 1"}
        across = Loop(along(scop, names, plan.columns.columns), True)
        downwards = Loop(along(scop, names, plan.down), names == (plan.takes,))
        if plan.rows:
            across = across.marked(f"jam:{plan.rows}" if plan.rows > 1 else None)
            downwards = downwards.marked(f"vector:{plan.vectors}")
        else:
            across = across.marked(f"vector:{plan.vectors}")
        loops = [Loop(along(scop, names, shifted)), across, downwards]
        below = insert_loops(far.child(position).child(0), loops)
        if len(names) > 1:
            depth_of_leaf = len(loops) + sum(loop.mark is not None for loop in loops)
            leaf = descend(below, depth_of_leaf)
            leaf = insert_sequence(leaf, [domains[name].to_union_set() for name in reversed(pair)])
            below = leaf.ancestor(depth_of_leaf)
        far = below.parent().parent()
    return far.ancestor(depth + 3)


def _may_follow(facts: Facts, source: str, sink: str, steps: Mapping[str, str], down: Mapping[str, str]) -> bool:
    """Whether the source may run beside the sink's next step: nothing of it is needed in its own step, or further up."""
    indices = [facts.scop.statements[name].indices for name in (source, sink)]
    step, along = ([own.index(at[n]) for own, n in zip(indices, (source, sink), strict=True)] for at in (steps, down))
    into, out = isl.dim_type.in_, isl.dim_type.out
    for m in maps_of(facts.packed.dependences.validity):
        if (m.get_tuple_name(into), m.get_tuple_name(out)) == (source, sink) and not (
            m.order_ge(into, step[0], out, step[1]).is_empty() and m.order_gt(into, along[0], out, along[1]).is_empty()
        ):
            return False
    return True


def _where(scop: Scop, name: str, condition: str) -> isl.Set:
    statement = scop.statements[name]
    return statement.domain.intersect(isl.Set(f"{{ {name}[{', '.join(statement.indices)}] : {condition} }}"))
