"""The ways to schedule one scop, each a method: blocks where the region has the shape for them, the strategy on an ordered tree, a plain tree; none of them proves anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import field, replace
from functools import partial
from math import prod
from types import MappingProxyType

import islpy as isl

from polyml.debug import report
from polyml.errors import SchedulerFailed
from polyml.options import Options
from polyml.records import dataclass
from polyml.schedule.batch_last import lay_batches_last
from polyml.schedule.blocking import plan_blocking
from polyml.schedule.blocking_at_hand import plan_at_hand
from polyml.schedule.columns_aside import with_columns_aside
from polyml.schedule.contraction_blocks import Blocking
from polyml.schedule.cost import StatementModel
from polyml.schedule.ilp.costs import DEFAULT_COSTS
from polyml.schedule.ilp.driver import NODES, Outline, schedule_by_ilp
from polyml.schedule.isl_scheduler import tree_by_isl, tree_from_written_order
from polyml.schedule.joined import join_updates
from polyml.schedule.large_enough import far_arrays, within
from polyml.schedule.last_sweep import one_row_late
from polyml.schedule.matching import Matcher
from polyml.schedule.pack import Packed, pack_operands
from polyml.schedule.padded_rows import few_steps, pad_rows
from polyml.schedule.pivot_parts import PivotParts, split_at_pivots
from polyml.schedule.pivots import plan_pivots, updates_in_place, within_block
from polyml.schedule.prologues import applied_in_copies
from polyml.schedule.relaid import Relaid
from polyml.schedule.row_blocks import plan_row_blocks
from polyml.schedule.row_pieces import cut_rows
from polyml.schedule.row_registers import rows_side_by_side
from polyml.schedule.row_sums import large_matrices, plan_row_sums
from polyml.schedule.rows_aside import with_rows_aside
from polyml.schedule.rows_at_hand import plan_rows_at_hand
from polyml.schedule.rows_in_turns import in_two_rows, take_turns
from polyml.schedule.rows_late import one_block_late
from polyml.schedule.schedule import Note, Product, Schedule, Storage
from polyml.schedule.slanted import plan_slanted, slanted_parts, split_around
from polyml.schedule.storage import contract_storage
from polyml.schedule.strategy.contractions import block_contractions
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.strategy.facts import Facts, StrategyOptions, model_statements
from polyml.schedule.strategy.pivoted import build_pivoted, build_slanted
from polyml.schedule.strategy.row_order import ROW_ORDER
from polyml.schedule.strategy.step_blocks import STEPS
from polyml.schedule.strategy.time_tiles import TIME_TILES
from polyml.schedule.streams import streamed_arrays, streamed_sums
from polyml.schedule.sums_ahead import sum_ahead
from polyml.schedule.turned import turn_columns
from polyml.schedule.vector_length import suited_length
from polyml.schedule.window import slide_rows
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.scop import Array, Scop
from polyml.sets.affine import affine
from polyml.sets.budget import BudgetExhausted
from polyml.target import Target

__all__ = ["Ways"]

Order = Callable[[Scop, Dependences, Matcher, tuple[str, ...]], isl.Schedule]
"""Makes the ordered tree; the last argument: copies that come ahead."""


Planner = Callable[[Scop, StatementModel, Target], Blocking | None]
"""Decides the blocks of a contraction."""


ISL_SHARE = 100
"""Of the budget's operations isl's scheduler gets one in so many, pivots of large tableaus: PolyBench needs less than 200,000 per kernel (at most 0.4 s at SMALL)."""


ISL_SHARE_INSTEAD = 1000
"""The same where it stands in for the integer programs, which found nothing: the time is spent, and pivots can grow without bound (nussinov with its scalar
expanded: 0.4 s for 20,000, 25 s for 30,000)."""


def _with_panels(
    parts: PivotParts,
    tree: isl.Schedule,
    notes: tuple[Note, ...],
    worth: tuple[Product, ...],
    others: Mapping[str, Storage] | None = None,
) -> Schedule:
    """The schedule with the panels' storage, that of `others`, and all other local arrays contracted."""
    made = Schedule(
        scop=parts.scop, dependences=parts.dependences, tree=tree, storage={**(others or {}), **parts.storage},
        notes=(Note("blocking", parts.plan.core, str(parts.plan)), *notes),
        worth=tuple(dict.fromkeys((*parts.plan.worth, *worth))),
    )  # fmt: skip
    return contract_storage(made)


@dataclass(frozen=True, slots=True)
class Ways:
    """One scop to schedule, and the ways to do it, best first."""

    scop: Scop
    dependences: Dependences
    target: Target
    options: Options
    results: Set[str]
    pack: bool
    planner: Planner = plan_blocking
    _known: list[tuple[Matcher, dict[str, StatementModel]]] = field(default_factory=list, init=False, repr=False)
    _refused: list[BudgetExhausted] = field(default_factory=list, init=False, repr=False)
    """Why isl's scheduler found no order of the scop as it is."""

    def of_suited_length(self) -> Ways:
        """The same with vectors that suit the region, where the caller leaves it to us."""
        if not self.target.split_vectors or not self._may_block():
            return self
        known = self._asked()
        made = replace(self, target=suited_length(known[1], self.target, precise=self.options.precise))
        made._known.append(known)
        return made

    def by_pivots(self) -> Schedule | None:
        """Blocks of a factorization around the strategy on polyml's own tree; None where the region is none, or the caller asks for something else."""
        if not self._may_block():
            return None
        if not updates_in_place(self.scop):
            return None
        scop, dependences = join_updates(self.scop, self.dependences)
        matcher = Matcher(scop, dependences, relax_reductions=not self.options.precise)
        models = model_statements(scop, matcher)
        plan = plan_pivots(scop, dependences, models, self.target)
        parts = None if plan is None else split_at_pivots(scop, dependences, plan)
        if plan is None or parts is None:
            return None
        facts = Facts(
            packed=Packed(scop=scop, dependences=dependences),
            matcher=matcher,
            models=within_block(models, plan),
            target=self.target,
            options=replace(self._strategy_options(), parallel=False),
        )
        inside, notes, worth = apply_strategy(self._ilp_tree(scop, dependences, matcher, ()), facts)
        tree = build_pivoted(parts, inside, parallel=self._shares())
        return _with_panels(parts, tree, notes, worth)

    def by_slants(self) -> Schedule | None:
        """A contraction over a domain that is no box in blocks, the rest of the region around it; None where there is none."""
        if not self._may_block() or all(s.domain.is_box() for s in self.scop.statements.values() if s.kind == "update"):
            return None
        matcher, models = self._asked()
        plan = plan_slanted(self.scop, models, self.target)
        arranged = None if plan is None else self._arranged(self._ilp_tree, matcher, models, (), {plan.core})
        if plan is None or arranged is None:
            return None
        tree, facts = arranged
        around, notes, worth = apply_strategy(tree, facts)
        before, after = split_around(facts.packed.scop, facts.packed.dependences, plan.core)
        parts = applied_in_copies(slanted_parts(facts.packed.scop, facts.packed.dependences, plan))
        before = tuple(name for name in before if name in parts.scop.statements)
        tree = build_slanted(parts, around, before, after, parallel=self._shares())
        return _with_panels(parts, tree, notes, (*facts.packed.worth, *worth), facts.packed.storage)

    def by_row_blocks(self) -> Schedule | None:
        """Several steps of a loop over all rows in one sweep; None where there is none."""
        if not self._may_block() or not any(s.loop_depth for s in self.scop.statements.values()):
            return None
        models = self._asked()[1]
        plan = plan_row_blocks(self.scop, models, self.target)
        if plan is None:
            return None
        dependences = analyse(plan.scop)
        matcher = Matcher(plan.scop, dependences, relax_reductions=not self.options.precise)
        facts = Facts(
            packed=Packed(scop=plan.scop, dependences=dependences), matcher=matcher, models=model_statements(plan.scop, matcher),
            target=self.target, options=self._strategy_options(), rows=plan,
        )  # fmt: skip
        tree, notes, worth = apply_strategy(self._ilp_tree(plan.scop, dependences, matcher, ()), facts)
        worth = tuple(dict.fromkeys((*plan.worth, *worth)))
        made = Schedule(scop=plan.scop, dependences=dependences, tree=tree, storage={}, notes=notes, worth=worth)
        made = contract_storage(made)
        return made if set(plan.kept) <= made.storage.keys() else None

    def by_rescaled(self) -> Schedule | None:
        """Sums weighted by exponentials in tiles of a GPU, which are rescaled where the maximum grows; None where there are none."""
        if not self.target.is_cuda or self.options.precise or not self.options.parallel:
            return None
        from polyml.schedule.mapped import rescaled_on_gpu  # what only a GPU needs

        return rescaled_on_gpu(self.scop, self.target)

    def by_columns(self) -> Schedule | None:
        """The strategy with columns that are walked down again and again as rows; None where there are none."""
        scop = with_columns_aside(self.scop, self.target) if self._may_block() else None
        return None if scop is None else replace(self, scop=scop, dependences=analyse(scop)).by_ilp()

    def by_rows_aside(self) -> Schedule | None:
        """A recurrence from row to row of a large result in rows of its own, so that the result's stores bypass the caches; None where there is none, or it does not go row by row."""
        # Threads take pieces of rows, too short for stores that bypass the caches, and with ends of their own: two of them would take up to 1.4 times as long.
        alone = self._may_block() and not self._shares()
        aside = with_rows_aside(self.scop, self.target, self.results) if alone else None
        if aside is None:
            return None
        made = replace(self, scop=aside.scop, dependences=analyse(aside.scop)).by_ilp()
        turns = all(name in made.storage and made.storage[name].wraps for name in aside.rows)
        if not turns or not any(note.stage == ROW_ORDER for note in made.notes):
            return None
        streamed, notes = streamed_arrays(aside.scop, self.target, self.results, precise=self.options.precise)
        return replace(made, streamed=streamed, notes=(*made.notes, *notes))

    def by_turned(self) -> Schedule | None:
        """Columns that are contiguous for as long as the loop runs, in blocks of steps where they are many; None where there are none."""
        relaxed = self._may_block() and not self.options.precise
        turned = turn_columns(self.scop, self.target) if relaxed else None
        if turned is None:
            return None
        wanted = STEPS if turned.far else None
        return self._relaid(turned.relaid, self._moved(turned.relaid), turned.worth, wanted, sizes=turned.sizes)

    def by_batch(self) -> Schedule | None:
        """A lane for each of the small matrices of a batch; None where there are none."""
        relaid = lay_batches_last(self.scop, self.target) if self._may_block() else None
        if relaid is None:
            return None
        return replace(self, scop=relaid.scop, dependences=self._moved(relaid)).by_ilp()

    def by_padded_rows(self) -> Schedule | None:
        """Time tiles on arrays whose rows are whole lines; None where nothing asks for it."""
        padded = pad_rows(self.scop, self.target) if self._may_sweep() else None
        if padded is None or (padded.apart and not self.pack):
            return None
        made = self._relaid(padded.relaid, self._moved(padded.relaid), padded.worth, TIME_TILES)
        return None if made is None else replace(made, apart=padded.apart)

    def as_they_lie(self) -> Schedule | None:
        """Time tiles on the arrays themselves, for fewer steps than copies of them take; None where the call at hand has enough, or nothing asks for copies."""
        if not self._may_sweep() or not few_steps(self.scop) or pad_rows(self.scop, self.target) is None:
            return None
        made = self.by_ilp()
        return made if made.worth and any(note.text.startswith(TIME_TILES) for note in made.notes) else None

    def by_row_pieces(self) -> Schedule | None:
        """Rows that stay in L1 in a piece for each lane; None where nothing asks for it."""
        pieces = cut_rows(self.scop, self.dependences, self.target) if self._may_sweep() else None
        return None if pieces is None else self._relaid(pieces.relaid, pieces.dependences, pieces.worth, "")

    def by_turns(self) -> Schedule | None:
        """Vectors that a loop makes anew in each step in two rows that take turns; None where there are none."""
        turns = take_turns(self.scop, self.target) if self._may_sweep() else None
        if turns is None:
            return None
        scop, dependences = turns.relaid.scop, analyse(turns.relaid.scop)
        ahead = None if self.options.precise else sum_ahead(scop, dependences, turns.steps)
        if ahead is not None:
            relaid = replace(turns.relaid, scop=ahead.scop)
            made = self._relaid(relaid, ahead.dependences, (), None, ahead.outline, turns.rows)
            if made is not None:
                return made
        return self._relaid(turns.relaid, dependences, (), None, None, turns.rows)

    def _may_sweep(self) -> bool:
        """Whether arrays may be copied around loops that sweep over them: the other version, of calls that ask for few steps, is without copies."""
        return self._may_block(sized=True) and (self.pack or not self.scop.sizes)

    def _moved(self, relaid: Relaid) -> Dependences:
        return relaid.dependences(self.dependences, self.scop)

    def _relaid(
        self,
        relaid: Relaid,
        dependences: Dependences,
        worth: tuple[Product, ...],
        wanted: str | None,
        outline: Outline | None = None,
        rows: tuple[str, ...] = (),
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> Schedule | None:
        """The strategy on arrays that are laid out anew; None where it does not decide what that is `wanted` for, a note's beginning; nothing is where they stay in L1; None: whatever it decides.

        Args:
            outline: what runs one after the other, where that is decided. rows: of the arrays those whose rows are to take turns; None comes back where more than two are alive. sizes: numbers that symbolic ones are taken for.
        """
        matcher = Matcher(relaid.scop, dependences, relax_reductions=not self.options.precise)
        copies = dict.fromkeys((*relaid.ahead, *relaid.behind))
        facts = Facts(
            packed=Packed(scop=relaid.scop, dependences=dependences, copies=copies), matcher=matcher,
            models=model_statements(relaid.scop, matcher, sizes), target=self.target, options=self._strategy_options(),
        )  # fmt: skip
        ordered = self._ilp_tree(relaid.scop, dependences, matcher, () if outline else relaid.ahead, outline)
        tree, notes, more = apply_strategy(ordered, facts, in_cache=wanted == "")
        if wanted is not None and not any(wanted in (note.stage, note.text.partition(":")[0], "") for note in notes):
            return None
        worth = tuple(dict.fromkeys((*worth, *more)))
        made = Schedule(scop=relaid.scop, dependences=dependences, tree=tree, storage={}, notes=notes, worth=worth)
        in_turns = in_two_rows(made, rows)
        if in_turns is None:
            return None
        # What copies fill ahead of all loops, and write back behind them, is there in full.
        perhaps = [a.name for a in relaid.scop.arrays.values() if a.kind == "local" and a.name not in relaid.arrays]
        return contract_storage(in_turns, perhaps) if perhaps else in_turns

    def by_row_sums(self) -> Schedule | None:
        """All that reads the rows of a large matrix in one sweep over blocks of them; None where there is none."""
        # Without packing is the version for whatever is small.
        asked = self._may_block(sized=True) and not self.options.precise and (self.pack or not self.scop.sizes)
        if not asked or not large_matrices(self.scop, self.target):
            return None
        matcher, models = self._asked()
        plan = plan_row_sums(self.scop, matcher, models, self.target)
        if plan is None or (plan.worth and any(not contraction.streams for contraction in self._plans(models))):
            return None
        scop, dependences, outline = plan.scop, analyse(plan.scop), plan.outline
        if plan.together is not None and plan.together.late:
            late = one_block_late(plan, plan.together, dependences)
            scop, dependences, outline = late.scop, late.dependences, late.outline
        work = replace(self, scop=scop, dependences=dependences, pack=False)
        made = work._strategic(partial(work._ilp_tree, outline=outline))
        if plan.together is not None:
            made = rows_side_by_side(made, plan.together, self.target)
        notes = (Note("blocking", " ".join(plan.rows), str(plan)), *made.notes)
        return replace(made, notes=notes, worth=(*made.worth, *plan.worth))

    def by_last_sweep(self) -> Schedule | None:
        """Rows whose last sweep runs beside the next row's; None where there are none."""
        if not self._may_block():
            return None
        streamed, _ = streamed_arrays(self.scop, self.target, self.results, precise=self.options.precise)
        plan = one_row_late(self.scop, self._asked()[0], streamed, self.target) if streamed else None
        if plan is None:
            return None
        work = replace(self, scop=plan.scop, dependences=plan.dependences, pack=False)
        made = work._strategic(partial(work._ilp_tree, outline=plan.outline), rows=plan.kept)
        return made.noted("rows", " ".join(plan.late), f"one row behind the others, in blocks of {plan.size} rows")

    def _asked(self) -> tuple[Matcher, dict[str, StatementModel]]:
        """What the scop's indices are to each other, and the cost models of its statements; the same to every attempt."""
        if not self._known:
            matcher = Matcher(self.scop, self.dependences, relax_reductions=not self.options.precise)
            self._known.append((matcher, model_statements(self.scop, matcher)))
        return self._known[0]

    def _may_block(self, *, sized: bool = False) -> bool:
        """Whether the caller leaves it to us, and all extents are numbers, unless `sized`."""
        asked = (self.options.costs, self.options.tile_sizes, self.options.register_tile)
        plain = not self.target.is_cuda and (sized or self.pack or not self.scop.sizes) and self.options.vectorize
        return plain and all(option is None for option in asked)

    def _shares(self) -> bool:
        return self.options.parallel and self._strategy_options().threads > 1

    def by_ilp(self) -> Schedule:
        """The strategy on the tree of polyml's own scheduler."""
        return self._strategic(self._ilp_tree)

    def by_few_rows(self) -> Schedule | None:
        """The strategy around contractions that read an operand in order, since few rows use it; None where there are none."""
        return self._with_plans(partial(plan_blocking, few_rows=True))

    def at_hand(self) -> Schedule | None:
        """The strategy around contractions in blocks that suit the sizes of the call at hand; None where these are no others than for sizes at large."""
        return self._with_plans(lambda *asked: plan_rows_at_hand(*asked) or plan_at_hand(*asked))

    def _with_plans(self, planner: Planner) -> Schedule | None:
        """The strategy around contractions of symbolic sizes in blocks that another planner than usual decides; None where it decides none."""
        others = replace(self, pack=False, planner=planner)
        return others.by_ilp() if self.scop.sizes and others._plans(self._asked()[1]) else None

    def _ilp_tree(
        self,
        scop: Scop,
        dependences: Dependences,
        matcher: Matcher,
        ahead: tuple[str, ...],
        outline: Outline | None = None,
    ) -> isl.Schedule:
        tree, made = schedule_by_ilp(
            scop,
            matcher,
            costs=self.options.costs or DEFAULT_COSTS,
            fusion=self.options.fusion_policy,
            ahead=ahead,
            outline=outline,
            nodes=min(NODES, max(1, self.options.budget // 1000)),
        )
        report(f"integer programs of {scop.name}", str(made), level=6)
        return tree

    def by_isl(self) -> Schedule:
        """The strategy on the tree of isl's scheduler."""
        return self._strategic(lambda scop, dependences, _, ahead: self._isl_tree(scop, dependences, ahead))

    def plain(self) -> Schedule:
        """isl's tree and contracted storage, no marks."""
        tree = self._isl_tree(self.scop, self.dependences, ())
        return contract_storage(Schedule(scop=self.scop, dependences=self.dependences, tree=tree, storage={}))

    def _isl_tree(self, scop: Scop, dependences: Dependences, ahead: tuple[str, ...]) -> isl.Schedule:
        if self._refused and not ahead:
            raise self._refused[0]  # it was asked for the same, and would take as long again
        share = ISL_SHARE if self.options.scheduler == "isl" else ISL_SHARE_INSTEAD
        budget = max(1, self.options.budget // share)
        try:
            return tree_by_isl(scop, dependences, relax_reductions=not self.options.precise, budget=budget, ahead=ahead)
        except BudgetExhausted as reason:
            if scop is self.scop:
                self._refused.append(reason)
            raise

    def _strategic(self, order: Order, rows: tuple[str, ...] = ()) -> Schedule:
        """The order of the statements, the target's strategy, contracted storage; for a CPU packed operands as well. rows: of arrays of which two are alive at a time."""
        if self.target.is_cuda:
            from polyml.schedule.mapped import map_to_gpu  # what only a GPU needs

            return map_to_gpu(self.scop, self.dependences, self.target, self.options, order, sized=self.pack)
        matcher, models = self._asked()
        plans = self._plans(models)
        # A contraction that shares loops with others is packed like any other statement.
        for blocked in (plans, ()) if plans else ((),):
            found = self._arranged(order, matcher, models, blocked)
            if found is not None:
                break
        assert found is not None, "internal: no tree without blocked contractions"
        tree, facts = found
        packed = facts.packed
        tree, notes, worth = apply_strategy(tree, facts)
        notes = (*packed.notes, *notes)
        sums = [nest.plan.statement for nest in facts.blocked.values() if nest.plan.writes_once]
        worth = tuple(dict.fromkeys((*packed.worth, *worth)))
        far = far_arrays(self.scop, worth, self.target.l2_bytes)
        made = Schedule(
            scop=packed.scop,
            dependences=packed.dependences,
            tree=tree,
            storage=dict(packed.storage),
            notes=notes,
            worth=worth,
            streamed=streamed_sums(self.scop, self.target, self.results, sums, far=far),
        )
        in_turns = in_two_rows(made, rows)
        if in_turns is None:
            raise SchedulerFailed(f"more than two rows of {', '.join(rows)} are alive")
        made = contract_storage(in_turns, in_lanes=self._in_lanes)
        return slide_rows(made, self.target.l2_bytes) if any(note.stage == ROW_ORDER for note in notes) else made

    def _in_lanes(self, vectors: int, array: Array, storage: Storage) -> tuple[Product, ...] | None:
        """A few such arrays should stay in L2. Of rows whose length is not known a version with several vectors at once asks for that; the one for longer rows has one vector, since an array in memory is no smaller."""
        lanes = self.target.vector_bytes // array.dtype.itemsize
        most = self.target.l2_bytes // 4 // (array.dtype.itemsize * lanes * vectors)
        if storage.elements is not None:
            return () if storage.elements <= most else None
        if not self.pack:
            return () if vectors == 1 else None
        numbers = prod(extent for extent in storage.shape if isinstance(extent, int))
        return within([affine(extent) for extent in storage.shape], most=most) if numbers <= most else None

    def _plans(self, models: dict[str, StatementModel]) -> tuple[Blocking, ...]:
        """The contractions that are worth blocks."""
        if not self.options.vectorize or self.options.precise or self.options.tile_sizes is not None:
            return ()
        if self.scop.sizes and not self.pack and self.planner is plan_blocking:
            return ()
        planned = (self.planner(self.scop, model, self.target) for model in models.values())
        return tuple(plan for plan in planned if plan is not None)

    def _arranged(
        self,
        order: Order,
        matcher: Matcher,
        models: dict[str, StatementModel],
        plans: tuple[Blocking, ...],
        skip: Set[str] = frozenset(),
    ) -> tuple[isl.Schedule, Facts] | None:
        """The ordered tree and what the strategy needs to know; None when the plans do not fit the order."""
        packed = Packed(scop=self.scop, dependences=self.dependences)
        if self.options.vectorize and self.pack:
            skip = skip | {plan.statement for plan in plans}
            packed = pack_operands(self.scop, self.dependences, models, self.target, skip=skip)
        if packed.copies:
            matcher = Matcher(packed.scop, packed.dependences, relax_reductions=not self.options.precise)
            models = model_statements(packed.scop, matcher)
        tree = order(packed.scop, packed.dependences, matcher, tuple(packed.copies))
        facts = Facts(
            packed=packed, matcher=matcher, models=models, target=self.target, options=self._strategy_options()
        )
        return block_contractions(tree, facts, plans) if plans else (tree, facts)

    def written(self) -> Schedule:
        """The order as written."""
        tree = tree_from_written_order(self.scop)
        return Schedule(scop=self.scop, dependences=self.dependences, tree=tree, storage={})

    def _strategy_options(self) -> StrategyOptions:
        options = self.options
        return StrategyOptions(
            threads=options.threads or self.target.cores,
            vectorize=options.vectorize,
            parallel=options.parallel,
            relax_reductions=not options.precise,
            tile_sizes=options.tile_sizes,
            register_tile=options.register_tile,
            large=self.pack,
        )
