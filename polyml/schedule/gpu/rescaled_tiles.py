"""Sums weighted by exponentials of scores (gpu/rescaled.py), tile by tile of the key: a transformation of the Scop, before its loops are mapped.

Per tile t of the key, for rows that a block has (`x` is the thread among those that share a row; each keeps what belongs to a row for itself):

    a_own = q_tile * k_tile;  score = g(a_own)                                  in registers
    part[i, x] = max of the thread's scores;  parts[i, x] = part[i, x]          to the others
    new[i, x] = max(m[i, x], parts[i, z] of all z);  factor[i, x] = exp(c * (m - new));  m = new
    e_own = exp(f(score, new));  e_tile[i, j] = e_own                           to the others
    s_own = s_own * factor + sum of the thread's e_own;  y_own = y_own * factor + e_tile * v_tile

and behind the last tile the threads of a row add their s_own. A row of which all scores are -inf so far has 0 in place of its maximum (its exponentials are 0, not NaN); behind the last tile everything is
multiplied by exp(c * (m - m)), which is 1, or NaN where the maximum is infinite, as it is without tiles.

What a tile has beyond the last key is -inf to the maximum and 0 to the sums; rows beyond the last one are whatever shared memory holds, and not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read
from polyml.records import dataclass
from polyml.schedule.gpu.rescaled_parts import Names
from polyml.schedule.gpu.rescaled_values import TiledValues, scaled
from polyml.schedule.schedule import Storage
from polyml.schedule.strategy.cuda.rescaled_tiles import Operand, RescaledPlan, split_weight
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Scop, Statement
from polyml.sets.affine import Affine, affine

__all__ = ["RescaledNest", "rescaled_scop"]

NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaledNest:
    """Statements by when they run: `first` before the tiles, `copies` by their operands, from `start` to `kept_wide` those of a tile, from `ending` on those behind the tiles. throughout, passing,
    behind: arrays that live around everything, in a tile, and behind the tiles."""

    plan: RescaledPlan
    names: Names
    first: tuple[str, ...]
    copies: Mapping[str, Operand]
    start: tuple[str, ...]
    product: str | None
    scores: tuple[str, ...]
    parts: tuple[str, ...]
    maxima: tuple[str, ...]
    weights: tuple[str, ...]
    rescale: str
    result: str
    kept: tuple[str, ...]
    kept_wide: str
    ending: tuple[str, ...]
    combine: tuple[str, ...]
    after: tuple[str, ...]
    throughout: tuple[str, ...]
    passing: tuple[str, ...]
    behind: tuple[str, ...]


def rescaled_scop(scop: Scop, plan: RescaledPlan) -> tuple[Scop, RescaledNest, dict[str, Storage]]:
    """The scop in tiles, its statements by when they run, and the storage of its arrays."""
    work = _Nest(scop, plan)
    nest = work.run()
    made = replace(rebuilt(scop, work.statements, work.arrays), initial=work.initial())
    return made, nest, work.storage()


class _Nest(TiledValues):
    """All of it."""

    def run(self) -> RescaledNest:
        plan, found = self.plan, self.found
        self.arrays.update(self.scop.arrays)
        first = self.before()
        self.phase = 1
        for operand in (plan.keyed, plan.values):
            if operand is not None:
                self.copied(operand, self.turn.isl_text())
        part = self.own("part", self.kind, (plan.rows,), thread=True, tiles=True)
        start = [
            self.row("part_first", "init", self.to(part, self.x, self.now), Const(NEVER, self.kind), reduction="max")
        ]
        product = None if found.product is None else self.product(found.product, start)
        score, scores = self.scores(part)
        parts = self.exchange("parts", self.kind, self.whole)
        sent = self.row(
            "parts", "copy", Access(parts, self.shared_at(self.x, self.now)), self.mine(part, self.x, self.now)
        )
        new, safe, factor, maxima = self.maxima(parts)
        shared, weighted, weights = self.weights(score, safe)
        sums, rescale, result, kept_wide = self.result(weighted, factor)
        kept = [
            self.row(self.totals[a], "copy", self.to(self.totals[a]), self.mine(self.growing[a], self.x, self.now))
            for a in self.totals
        ]
        self.phase = 2
        ending, combine, behind = self.behind()
        around = [self.tiles[o.read][0] for o in (plan.queries, plan.keyed) if o is not None]
        own = (part, sums, *self.growing.values(), *self.own_of.values(), score)
        passing = (*own, parts, new, safe, factor, shared, self.tiles[plan.values.read][0])
        return RescaledNest(
            plan=plan, names=self.names, first=tuple(first), copies=self.copies, start=tuple(start), product=product, scores=scores, parts=(sent,),
            maxima=tuple(maxima), weights=weights, rescale=rescale, result=result, kept=tuple(kept), kept_wide=kept_wide, ending=tuple(ending),
            combine=tuple(combine), after=self.after(), throughout=(self.maximum, *self.totals.values(), self.sums, *around), passing=passing, behind=tuple(behind),
        )  # fmt: skip

    def before(self) -> list[str]:
        """Rows to shared memory; no maximum, and sums of nothing."""
        plan, found = self.plan, self.found
        if plan.queries is not None:
            self.copied(plan.queries, None)
        self.maximum = self.own("m", self.kind, (plan.rows,), thread=True)
        first = [self.row("m_first", "assign", self.to(self.maximum), Const(NEVER, self.kind))]
        for array in (s.target.array for s in found.sums):
            dtype = self.scop.arrays[array].dtype
            self.totals[array] = self.own(f"{array}_own", dtype, (plan.rows,), thread=True)
            first.append(self.row(f"{array}_first", "assign", self.to(self.totals[array]), Const(0, dtype)))
        array = found.result.target.array
        dtype = self.scop.arrays[array].dtype
        self.sums = self.own(f"{array}_own", dtype, (plan.rows, plan.columns))
        target = Access(self.sums, self.at((plan.rows, plan.columns)))
        first.append(
            self.add(f"{array}_first", "assign", (*found.rows, plan.columns.index), self.whole, target, Const(0, dtype))
        )
        return first

    def copied(self, operand: Operand, number: str | None) -> None:
        self.tiles[operand.read] = self.tile_array(operand, self.whole, window=operand is self.plan.keyed)
        self.copies[self.copy(operand, self.tiles[operand.read], self.extents, number)] = operand

    def product(self, s: Statement, start: list[str]) -> str:
        """The scores' contraction, from 0 on."""
        plan, array = self.plan, s.target.array
        assert self.found.depth is not None, "internal: a product without a depth"
        own = self.own_of[array] = self.own(f"{array}_own", self.scop.arrays[array].dtype, (plan.rows, plan.keys))
        target = Access(own, self.at((plan.rows, plan.keys)))
        start.append(self.cell(f"{own}_first", "init", target, Const(0, self.arrays[own].dtype), "sum"))
        indices = (*self.found.rows, plan.keys.index, self.found.depth)
        return self.add(
            array,
            "update",
            indices,
            self.whole,
            target,
            self.tiled(s.value),
            tile=self.turn.isl_text(),
            reduction="sum",
        )

    def scores(self, part: str) -> tuple[str, tuple[str, ...]]:
        """What the maximum is taken of, -inf beyond the last key, and a thread's largest one of a row (in `part`): the array, and the statements."""
        plan, found = self.plan, self.found
        score = self.own("score", self.kind, (plan.rows, plan.keys))
        made = [self.scores_of(s, self.inside(self.rewritten(s.value), 0)) for s in found.scores]
        value = self.inside(self.rewritten(found.maximum.value), NEVER)
        made.append(self.cell(score, "assign", Access(score, self.at((plan.rows, plan.keys))), value))
        largest = self.to(part, self.by_key, self.turn)
        made.append(self.cell(part, "update", largest, self.scored(score), reduction="max"))
        return score, tuple(made)

    def weights(self, score: str, safe: str) -> tuple[str, Expr, tuple[str, ...]]:
        """Exponentials, their sums, and what the result is weighted by, in shared memory: that array, an element's part of the result, and the statements."""
        plan, found = self.plan, self.found
        made = [self.scores_of(s, self.weighing(s.value, score, safe)) for s in found.weights]
        for s in found.sums:
            array, value = s.target.array, self.weighing(s.value, score, safe)
            growing = self.to(self.growing[array], self.by_key, self.turn)
            made.append(self.cell(array, "update", growing, value, reduction="sum"))
        split = split_weight(found.result.value, plan.values.read)
        assert split is not None, "internal: a weighted sum that is none"
        beside, weight = split
        shared = self.cells("weight_tile", weight.dtype, self.whole)
        at = (*map(affine, plan.outer), affine(plan.rows.index), affine(plan.keys.index))
        made.append(self.cell(shared, "assign", Access(shared, at), self.weighing(weight, score, safe)))
        return shared, beside(Read(shared, at, weight.dtype)), tuple(made)

    def maxima(self, parts: str) -> tuple[str, str, str, list[str]]:
        """The new maximum, it or 0, and what it makes of the sums so far."""
        plan, kind, x, now = self.plan, self.kind, self.x, self.now
        new, safe, factor = (
            self.own(name, kind, (plan.rows,), thread=True, tiles=True) for name in ("new", "safe", "factor")
        )
        theirs = Read(parts, self.shared_at(affine(self.names.other), now), kind)
        empty = Apply("eq", (self.mine(new, x, now), Const(NEVER, kind)), boolean)
        or_zero = Apply("select", (empty, Const(0, kind), self.mine(new, x, now)), kind)
        grown = self.exponential(self.mine(self.maximum, x), self.mine(safe, x, now))
        made = [
            self.row(f"{new}_first", "assign", self.to(new, x, now), self.mine(self.maximum, x)),
            self.row(new, "update", self.to(new, x, now), theirs, each=True, reduction="max"),
            self.row(safe, "assign", self.to(safe, x, now), or_zero),
            self.row(factor, "assign", self.to(factor, x, now), grown),
            self.row("m", "assign", self.to(self.maximum), self.mine(new, x, now)),
        ]
        for array, total in self.totals.items():
            growing = self.growing[array] = self.own(
                f"{total}_now", self.arrays[total].dtype, (plan.rows,), thread=True, tiles=True
            )
            rescaled = scaled(self.mine(total, x), self.mine(factor, x, now))
            made.append(self.row(f"{total}_scaled", "assign", self.to(growing, x, now), rescaled))
        return new, safe, factor, made

    def result(self, value: Expr, factor: str) -> tuple[str, str, str, str]:
        """The weighted sums of a tile: an array, and what rescales, adds, and keeps them."""
        plan, found, sides = self.plan, self.found, (self.plan.rows, self.plan.columns)
        dtype, tile, array = self.arrays[self.sums].dtype, self.names.tile, found.result.target.array
        element = (*found.rows, plan.columns.index)
        old, now = Access(self.sums, self.at(sides)), self.own(f"{array}_now", dtype, sides, tiles=True)
        here = Access(now, self.at(sides, self.now))
        smaller = scaled(Read(old.array, old.subscripts, dtype), self.mine(factor, self.by_column, self.now))
        rescale = self.add(f"{array}_scaled", "assign", (*element, tile), self.whole, here, smaller, tile=tile)
        # Beyond the last key there is nothing to weigh: no tile is whole there.
        limits = {**self.whole, plan.keys.index: found.extents[plan.keys.index]}
        target = Access(now, self.at(sides, self.turn))
        summed = self.add(
            array, "update", (*element, plan.keys.index), limits, target, self.tiled(value), tile=self.turn.isl_text(), reduction="sum"
        )  # fmt: skip
        kept = self.add(
            f"{array}_kept", "copy", (*element, tile), self.whole, old, Read(now, here.subscripts, dtype), tile=tile
        )
        return now, rescale, summed, kept

    def behind(self) -> tuple[list[str], list[str], list[str]]:
        """The sums of a row from those of its threads, which exchange these: statements before and after that, and arrays."""
        plan, found, x = self.plan, self.found, self.x
        self.valid = self.own("valid", self.kind, (plan.rows,), thread=True)
        same: Expr = self.exponential(self.mine(self.maximum, x), self.mine(self.maximum, x))
        extent = found.extents[plan.keys.index]
        if not extent.is_constant:
            some = Apply("lt", (IndexValue(affine(0), i64), IndexValue(extent, i64)), boolean)
            same = Apply("select", (some, same, Const(1, self.kind)), self.kind)
        ending, combine, arrays = [self.row(self.valid, "assign", self.to(self.valid), same)], list[str](), [self.valid]
        for array, total in self.totals.items():
            dtype = self.arrays[total].dtype
            sent = self.exchange(f"{array}_parts", dtype, self.whole, tiles=False)
            ending.append(self.row(sent, "copy", Access(sent, self.shared_at(x)), self.mine(total, x)))
            final = self.finals[array] = self.own(f"{array}_all", dtype, (plan.rows,), thread=True)
            theirs = Read(sent, self.shared_at(affine(self.names.other)), dtype)
            combine.append(self.row(f"{final}_first", "init", self.to(final), Const(0, dtype), reduction="sum"))
            combine.append(self.row(final, "update", self.to(final), theirs, each=True, reduction="sum"))
            combine.append(
                self.row(
                    f"{final}_valid", "assign", self.to(final), scaled(self.mine(final, x), self.mine(self.valid, x))
                )
            )
            arrays += [sent, final]
        return ending, combine, arrays

    def after(self) -> tuple[str, ...]:
        """What follows from a row's maximum and sums, stored by the thread that has the element, or the first of the row."""
        found, column, arrays = self.found, self.plan.columns.index, self.scop.arrays
        made = []
        given = [s for s in (found.maximum, *found.sums, found.result) if arrays[s.target.array].kind != "local"]
        stores = [
            replace(s, value=Read(s.target.array, s.target.subscripts, arrays[s.target.array].dtype)) for s in given
        ]
        for s in (*stores, *found.after):
            wide = any(isinstance(x, Affine) and column in x.variables() for x in s.target.subscripts)
            indices = (*found.rows, column if wide else self.names.thread)
            limits = {**self.extents, self.names.thread: affine(1)}
            value = self.known(s.value, self.by_column if wide else affine(0))
            made.append(self.add(s.target.array, "assign", indices, limits, s.target, value))
        return tuple(made)
