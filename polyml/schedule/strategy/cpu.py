"""The recipe for CPUs: marks, tiles and register tiles on an ordered tree.

1. Fused loops and bands come from `order`: zero-distance loops outermost, reductions inside.
2. A band that carries a dependence stays a sequential loop; its inside is treated on its own. The outermost one gets tiles when what it
   sweeps over does not stay in cache (time_tiles.py); the threads then take rows of them in turns.
3. Parallel loops: per band, does running the lanes along one of them cost less than going to a loop further inside? (lanes.py; strides decide, see cost.py)
   a. Yes: this is a nest (nest.py). Its lanes run along that loop; a second loop is unrolled and jammed when that saves loads; both are tiled so that what a
      tile reads stays in cache; the reduction loops inside run over a register tile. Several recurrences inside walk through the same rows side by side (walks.py).
   b. No: the loops stay outside, and each nest inside is treated on its own. When a nest inside wants to jam one of the outer loops, that loop is tiled
      and its points are distributed over the nests (blocks.py; attention: blocks of queries). Where the lanes that were hoped for inside did not come about,
      they run along one of these loops after all (a scan whose state is a reduction's operand).
   c. Around one cheap reduction with lanes, several elements of the result run side by side (side_by_side.py).
   d. Copies whose rows are short on both sides go in blocks that are put together by shuffles (shuffled.py).
   e. Loops around a masked update of a computed element have those outside that choose the mask's element (masked.py).
4. A band of reductions: lanes along the best of them, with private accumulators.
5. The outermost parallel loop with enough iterations is given to the threads, when there is enough work (threads.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import ceil

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.schedule import Note, Product
from polyml.schedule.strategy.bands import Band, Place, descend, has_band_below, has_lanes_above, take_band
from polyml.schedule.strategy.blocks import BlockPlan, groups_of, lanes_in_blocks, plan_block
from polyml.schedule.strategy.choices import NestChoice
from polyml.schedule.strategy.contractions.blocked import build_blocked
from polyml.schedule.strategy.contractions.nests import MARK
from polyml.schedule.strategy.contractions.side_by_side import SideBySide, plan_side_by_side
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import (
    carries_only_reductions,
    lane_cost,
    lanes_after_all,
    lanes_here,
    reduction_vectors,
    scalar_cost,
)
from polyml.schedule.strategy.masked import masked_loops
from polyml.schedule.strategy.nest import build_copy, build_nest, plan_nest
from polyml.schedule.strategy.recurrences.followers import join_followers
from polyml.schedule.strategy.recurrences.row_order import ROW_ORDER, RowOrder, build_row_order, plan_row_order
from polyml.schedule.strategy.recurrences.walks import walk_side_by_side
from polyml.schedule.strategy.sequential.column_tiles import build_column_tiles, plan_column_tiles, row_columns
from polyml.schedule.strategy.sequential.row_blocks import build_row_blocks
from polyml.schedule.strategy.sequential.step_blocks import STEPS, StepPlan, build_step_blocks, plan_step_blocks
from polyml.schedule.strategy.sequential.sweep_blocks import build_sweep_blocks, plan_sweep_blocks
from polyml.schedule.strategy.sequential.time_tiles import build_time_tiles, plan_time_tiles
from polyml.schedule.strategy.short_rows import plan_short_rows
from polyml.schedule.strategy.shuffled import build_shuffled, plan_shuffled
from polyml.schedule.strategy.sums_in_order import build_sums_in_order, plan_sums_in_order, rows_in_order
from polyml.schedule.strategy.threads import even_tile, is_heavy, most_even
from polyml.schedule.sweeps.row_blocks import RowBlocks
from polyml.schedule.transforms import Loop, distribute_band, merge_with_child, nest_loops, tile_loop
from polyml.schedule.tree import Kind, is_coincident, kind_of, mark_name, statements_below

__all__ = ["apply_strategy"]


def apply_strategy(
    tree: isl.Schedule, facts: Facts, *, in_cache: bool = False
) -> tuple[isl.Schedule, tuple[Note, ...], tuple[Product, ...]]:
    """The ordered tree with its loops tiled, marked and in their final order, what was decided, and what must hold at a call for that to pay. in_cache: all that it touches is in L1."""
    recipe = _Recipe(facts)
    threads = facts.options.parallel and facts.options.threads > 1
    node = recipe.visit(tree.get_root().child(0), Place(parallel=threads, extents={}, in_cache=in_cache))
    return node.get_schedule(), tuple(recipe.notes), tuple(dict.fromkeys(recipe.worth))


@dataclass(slots=True)
class _Recipe:
    """One run over one tree: each method takes a node and returns the node in its place."""

    facts: Facts
    notes: list[Note] = field(default_factory=list)
    worth: list[Product] = field(default_factory=list)

    def visit(self, node: isl.ScheduleNode, place: Place) -> isl.ScheduleNode:
        """The node with everything below it decided."""
        match kind_of(node):
            case Kind.leaf:
                return node
            case Kind.sequence:
                for k in range(node.n_children()):
                    node = self.visit(node.child(k).child(0), place).parent().parent()
                return node
            case Kind.band:
                return self.band(node, place)
            case Kind.mark if mark_name(node).startswith(MARK):
                return self.contraction(node, place)
            case _:
                return self.visit(node.child(0), place).parent()

    def contraction(self, mark: isl.ScheduleNode, place: Place) -> isl.ScheduleNode:
        """A nest that is planned already."""
        nest = self.facts.blocked[mark_name(mark).removeprefix(MARK)]
        return build_blocked(mark.delete(), nest, threads=self.facts.options.threads if place.parallel else 1)

    def band(self, node: isl.ScheduleNode, place: Place) -> isl.ScheduleNode:
        masked = masked_loops(node, self.facts, place)
        if masked is not None:
            self.notes.append(Note("tiling", " ".join(statements_below(node)), masked.text))
            return masked.build()
        while is_coincident(node) and kind_of(node.child(0)) == Kind.band and is_coincident(node.child(0)):
            node = merge_with_child(node)
        band = take_band(node, self.facts, place)
        if band is None:
            return self.visit(node.child(0), place).parent()
        if not is_coincident(node):
            return self.sequential(band, place)
        if not self.facts.options.vectorize:
            return self.outer(band, place)
        shuffled = plan_shuffled(band, self.facts, parallel=place.parallel)
        if shuffled is not None:
            self.notes.append(Note("tiling", band.title, shuffled.text(band)))
            return build_shuffled(band, shuffled)
        lanes = lanes_here(band, self.facts)
        if lanes is not None and lanes_in_blocks(band, lanes, self.facts, place):
            return self.outer(band, place)
        if lanes is None:
            notes, worth = len(self.notes), len(self.worth)
            decided = self.outer(band, place)
            lanes = lanes_after_all(band, decided, self.facts)
            if lanes is None:
                return decided
            del self.notes[notes:], self.worth[worth:]
        return self.nest(band, lanes, place)

    def nest(self, band: Band, lanes: int, place: Place) -> isl.ScheduleNode:
        """3a. Below the band only loops that follow a recurrence change."""
        if band.core in self.facts.packed.copies:
            return build_copy(band, lanes, self.facts, parallel=place.parallel)
        parallel = place.parallel and is_heavy(band, self.facts)
        order = None if place.in_cache else plan_row_order(band, lanes, self.facts, parallel=parallel)
        if order is not None:
            return self.row_order(band, order, place)
        sums = None if place.in_cache else plan_sums_in_order(band, lanes, self.facts, parallel=parallel)
        if sums is not None:
            node, choice = build_sums_in_order(band, sums, self.facts)
            self.note(choice)
            return node
        plan = plan_nest(band, lanes, self.facts, parallel=place.parallel, in_cache=place.in_cache)
        node, choice = build_nest(band, plan)
        self.note(choice)
        node, joined = join_followers(node, self.facts)
        node, together = walk_side_by_side(node, self.facts, dict(band.indices[lanes]), plan.tile.vectors)
        self.notes += joined + together
        return node

    def row_order(self, band: Band, plan: RowOrder, place: Place) -> isl.ScheduleNode:
        """3a, where the loops below are one recurrence that walks through memory."""
        self.notes.append(Note(ROW_ORDER, band.title, str(plan)))
        extents = dict.fromkeys(band.indices[plan.lanes].items(), plan.width)
        joined, notes = join_followers(band.node, self.facts)
        self.notes += notes
        node, depth = build_row_order(replace(band, node=joined), plan, self.facts)
        inside = Place(False, {**place.extents, **extents}, in_cache=True)
        node = descend(node, depth)
        if kind_of(node) != Kind.sequence:
            return self.visit(node.child(0), inside).ancestor(depth + 1)
        for position in range(node.n_children()):
            part = node.child(position).child(0)
            below = 1 if kind_of(part.child(0)) == Kind.band else 0
            node = self.visit(descend(part, below), inside).ancestor(2 + below)
        return node.ancestor(depth)

    def outer(self, band: Band, place: Place) -> isl.ScheduleNode:
        """3b."""
        plan = plan_block(band, self.facts, place) if self.facts.options.vectorize else None
        if plan is not None:
            return self.block(band, plan, place)
        tile = None
        if self.facts.options.vectorize:
            tile = plan_side_by_side(band, self.facts, place) or plan_short_rows(band, self.facts, place)
        if tile is not None:
            return self.side_by_side(band, tile, place)
        shared = self.shared(band, dict(enumerate(band.extents)), place)
        order = rows_in_order(band, self.facts)
        node, depth = self.outermost(band, [(k, band.loops[k]) for k in order], shared, [])
        inside = self.visit(descend(node, depth), replace(place, parallel=place.parallel and shared is None))
        return inside.ancestor(depth)

    def side_by_side(self, band: Band, tile: SideBySide, place: Place) -> isl.ScheduleNode:
        """3b with several elements of each member at once."""
        names = {k: member[band.core] for k, member in enumerate(band.indices)}
        text = " x ".join(f"{count} {names[k]}" for k, count in tile.factors.items())
        self.notes.append(Note("tiling", band.title, f"{text} side by side"))
        shared = self.shared(band, {k: ceil(band.extents[k] / tile.factors.get(k, 1)) for k in tile.order}, place)
        loops: list[Loop] = []
        if shared is not None and shared in tile.factors:
            size = even_tile(band.extents[shared], tile.factors[shared], self.facts.options.threads)
            loops.append(tile_loop(band.loops[shared], size).marked("parallel"))
        elif shared is not None:
            loops.append(band.loops[shared].marked("parallel"))
        loops += [band.loops[k] for k in tile.order if k not in tile.factors and k != shared]
        if tile.rows:  # what a row keeps between its sweeps is kept once per tile
            loops += [tile_loop(band.loops[k], factor) for k, factor in tile.factors.items()]
        loops += [band.loops[k].marked(f"jam:{tile.factors[k]}") for k in tile.order if k in tile.factors]
        depth = len(loops) + sum(loop.mark is not None for loop in loops)
        inside = replace(place, parallel=place.parallel and shared is None)
        return self.visit(descend(nest_loops(band.node, loops), depth), inside).ancestor(depth)

    def block(self, band: Band, plan: BlockPlan, place: Place) -> isl.ScheduleNode:
        """3b with the points of one member distributed over the sequence below."""
        member, extent = plan.member, band.extents[plan.member]
        outer = [(k, loop) for k, loop in enumerate(band.loops) if k != member]
        counts = {k: band.extents[k] for k, _ in outer}
        extents = dict(place.extents)
        if plan.size < extent:
            outer.append((member, tile_loop(band.loops[member], plan.size)))
            counts[member] = ceil(extent / plan.size)
            extents |= dict.fromkeys(band.indices[member].items(), plan.size)
        text = f"blocks of {plan.size} {band.indices[member][band.core]}, distributed over {len(plan.alone)} register-tiled nests"
        self.notes.append(Note("tiling", band.title, text))
        shared = self.shared(band, counts, place)
        node, depth = self.outermost(band, outer, shared, [band.loops[member]])
        points = descend(node, depth)
        points = distribute_band(points, groups_of(points.child(0).n_children(), plan.alone))
        return self.visit(points, Place(place.parallel and shared is None, extents)).ancestor(depth)

    def shared(self, band: Band, counts: dict[int, int], place: Place) -> int | None:
        """5, for outer loops."""
        if not place.parallel or not is_heavy(band, self.facts):
            return None
        shared = most_even(counts, self.facts)
        if shared is not None:
            text = f"{band.indices[shared][band.core]} ({counts[shared]} iterations)"
            self.notes.append(Note("parallel", band.title, text))
        return shared

    def outermost(
        self, band: Band, outer: Sequence[tuple[int, Loop]], shared: int | None, inner: Sequence[Loop]
    ) -> tuple[isl.ScheduleNode, int]:
        """The band replaced by the loops `outer`, the shared one first, and `inner`; and the depth of what follows `outer`."""
        ordered = sorted(outer, key=lambda item: item[0] != shared)
        loops = [loop.marked("parallel") if k == shared else loop for k, loop in ordered]
        node = nest_loops(band.node, [*loops, *inner])
        return node, len(loops) + sum(loop.mark is not None for loop in loops)

    def sequential(self, band: Band, place: Place) -> isl.ScheduleNode:
        """2, with time tiles around it where they pay."""
        if self.facts.rows is not None and set(band.statements) == set(self.facts.scop.statements):
            return self.row_blocks(band, self.facts.rows, place)
        plan = plan_time_tiles(band.node, self.facts)
        if plan is None:
            return self.columns(band, place)
        self.notes.append(Note("tiling", band.title, str(plan)))
        self.worth += plan.worth
        node, depth = build_time_tiles(band.node, plan, threads=place.parallel)
        inside = replace(band, node=descend(node, depth))
        return self.reductions(inside, Place(parallel=False, extents=plan.extents, in_cache=True)).ancestor(depth)

    def row_blocks(self, band: Band, plan: RowBlocks, place: Place) -> isl.ScheduleNode:
        """2, several steps in a sweep."""
        self.notes.append(Note("tiling", band.title, str(plan)))
        extents = {(name, row): plan.size for name, row in plan.rows.items() if row != plan.steps[name]}
        node, depth = build_row_blocks(band, plan, parallel=place.parallel)
        near = node.child(0).child(0).child(0)
        own = take_band(near, self.facts, Place(place.parallel, extents, in_cache=True))
        assert own is not None, "internal: a loop over steps that was one is none"
        node = self.reductions(own, Place(place.parallel, extents, in_cache=True)).ancestor(3)
        inside = Place(False, dict.fromkeys(extents, plan.height), in_cache=True)
        below = descend(node.child(0).child(1).child(0), depth)
        if plan.columns is not None:
            below, depth = below.child(0).child(0), depth + 2
        far = take_band(below, self.facts, inside)
        assert far is not None, "internal: a loop over steps that was one is none"
        return self.reductions(far, inside).ancestor(3 + depth)

    def columns(self, band: Band, place: Place) -> isl.ScheduleNode:
        """2, with blocks of columns around it where they pay."""
        plan = plan_column_tiles(band, self.facts)
        blocks = None if plan is None else plan_step_blocks(band, plan, self.facts)
        if blocks is None:
            others = (plan_step_blocks(band, other, self.facts) for other in row_columns(band, self.facts))
            blocks = next((found for found in others if found is not None and found.rows), None)
        if blocks is not None:
            return self.step_blocks(band, blocks, place)
        if plan is None:
            sweep = plan_sweep_blocks(band, self.facts)
            if sweep is None:
                return self.reductions(band, place)
            self.notes.append(Note("tiling", band.title, str(sweep)))
            self.worth += sweep.worth
            return build_sweep_blocks(band, sweep, self.facts, parallel=place.parallel)
        self.notes.append(Note("tiling", band.title, str(plan)))
        inside = replace(band, node=build_column_tiles(band, plan, self.facts).child(0))
        return self.reductions(inside, Place(place.parallel, {**place.extents, **plan.extents})).parent()

    def step_blocks(self, band: Band, plan: StepPlan, place: Place) -> isl.ScheduleNode:
        """2, blocks of steps on their own columns and on tiles of the others."""
        self.notes.append(Note(STEPS, band.title, str(plan)))
        shared = place.parallel and is_heavy(band, self.facts)
        node = build_step_blocks(band, plan, self.facts, parallel=shared)
        inside = replace(band, node=node.child(0).child(0).child(0))
        return self.reductions(inside, Place(False, {**place.extents, **plan.columns.extents})).ancestor(3)

    def reductions(self, band: Band, place: Place) -> isl.ScheduleNode:
        """4. Other bands that are not parallel stay as they are."""
        facts = self.facts
        usable = [
            k for k in range(len(band.loops)) if facts.options.vectorize and carries_only_reductions(band, k, facts)
        ]
        if not usable or has_band_below(band.node.child(0)):
            return self.visit(band.node.child(0), place).parent()
        lanes = min(usable, key=lambda k: (lane_cost(band, k, facts), -k))
        if has_lanes_above(band.node) or lane_cost(band, lanes, facts) >= scalar_cost(band, facts):
            return band.node
        vectors = reduction_vectors(band, lanes, facts)
        self.note(NestChoice(statements=band.statements, vector=(band.indices[lanes][band.core], vectors)))
        rest = [loop for k, loop in enumerate(band.loops) if k != lanes]
        return nest_loops(band.node, [*rest, band.loops[lanes].marked(f"vector:{vectors}")])

    def note(self, choice: NestChoice) -> None:
        stage = "vector" if choice.jam is None and not choice.tiles else "tiling"
        self.notes.append(Note(stage, " ".join(choice.statements), str(choice)))
