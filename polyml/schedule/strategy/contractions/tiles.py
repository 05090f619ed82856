"""What is inside a block of a contraction (blocked.py): register tiles panel by panel, the columns that no panel has, and finished rows laid out in another order."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.blocking.register_tile import rows_at_once
from polyml.schedule.blocking.rest_columns import rest_name
from polyml.schedule.strategy.contractions.parts import BlockParts, Part
from polyml.schedule.transforms import Loop, around, insert_loops

__all__ = ["BlockTiles"]


@dataclass(frozen=True, slots=True)
class BlockTiles(BlockParts):
    """Builds the loops over register tiles, down to the sum: full ones first, then the rest, so that most have numbers of iterations that are known."""

    def panels(self, leaf: isl.ScheduleNode, *, jam_inside: bool, along: bool = False) -> isl.ScheduleNode:
        """The panels of a block for a register tile's rows. jam_inside: the loop over these rows stands inside of the one over panels. along: so does the one over register tiles."""
        plan, names = self.nest.plan, self.nest.statements
        jam = [self.loop(i, names).marked(f"jam:{plan.tile.rows}") for i in self.rows_index]
        tiles = [self.loop(plan.rows, names, tile=plan.tile.rows)] if along else []
        loops = [] if jam_inside else jam[:]
        if not plan.result_order:
            loops += [self.loop(i, names) for i in plan.vector_side]

        def tile(node: isl.ScheduleNode, vectors: int = plan.tile.vectors) -> isl.ScheduleNode:
            inner = [self.loop(plan.lanes, names, tile=plan.width)] + tiles + (jam if jam_inside else [])
            inner.append(self.loop(plan.lanes, names).marked(f"vector:{vectors}"))
            return around(node, inner, self.kernel)

        def rest(node: isl.ScheduleNode) -> isl.ScheduleNode:
            # Of long rows that are read in order what is left is little, whatever it takes.
            return tile(node, self.vectors(full=False) if plan.streams else plan.tile.vectors)

        def last(node: isl.ScheduleNode, vectors: int) -> isl.ScheduleNode:
            lanes = self.loop(plan.lanes, names).marked(f"vector:{vectors}")
            return around(node, [*tiles, *(jam if jam_inside else []), lanes], self.kernel)

        def split(node: isl.ScheduleNode) -> isl.ScheduleNode:
            if not plan.last:
                return self.split(node, plan.lanes, plan.width, names, tile, rest=rest)
            columns, width = plan.extents[plan.lanes], plan.width // plan.tile.vectors
            begin = columns - width * sum(plan.last)
            end = begin + width * plan.last[0]
            pair: list[Part] = [
                (names, f"{plan.lanes} < {end}", lambda n: last(n, plan.last[0])),
                (names, f"{plan.lanes} >= {end}", lambda n: last(n, plan.last[1])),
            ]
            parts: list[Part] = [(names, f"{plan.lanes} < {begin}", tile)] if begin else []
            parts.append((names, f"{plan.lanes} >= {begin}", lambda n: self.sequence(n, pair)))
            return self.sequence(node, parts)

        return around(leaf, loops, split)

    def kernel(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """One register tile: what initializes it, the loops of the sum, and what is made of the sums element by element."""
        own = (self.nest.plan.statement,)
        reduce = [self.loop(i, own) for i in self.nest.plan.reduced]
        parts: list[Part] = []
        for name in self.nest.statements:
            parts.append(((name,), "", (lambda n: insert_loops(n, reduce)) if name == own[0] else (lambda n: n)))
        return self.sequence(leaf, parts)

    def vectors(self, full: bool) -> int:
        """How many vectors of a panel run at once: all, or one where the panel is a rest of unknown length, since each number of vectors is code of its own."""
        plan = self.nest.plan
        return plan.tile.vectors if full or plan.lanes not in plan.ends else 1

    @property
    def rows_index(self) -> tuple[str, ...]:
        """The index of the register tile's rows, where there is one."""
        return (self.nest.plan.rows,) if self.nest.plan.rows else ()

    def turn(self, leaf: isl.ScheduleNode, name: str) -> isl.ScheduleNode:
        """The loops of a statement that transposes finished rows: lanes run along the rows, and the innermost loop along what were lanes, so that blocks are transposed in registers."""
        plan = self.nest.plan
        if self.nest.laid_order:
            return insert_loops(leaf, self.laid(name))
        outer = [self.loop(i, (name,)) for i in plan.vector_side]
        inner = [self.loop(plan.rows, (name,)).marked("vector:1"), self.loop(plan.lanes, (name,))]
        if plan.lines_first:
            inner.insert(0, self.loop(plan.lanes, (name,), tile=plan.width // plan.tile.vectors))
        return insert_loops(leaf, [*outer, *inner])

    def laid(self, name: str) -> list[Loop]:
        """The loops of a copy with indices of its own, in the order of what it writes."""
        of = f"{name}[{', '.join(self.nest.domains[name])}]"
        loops = [Loop(isl.UnionPwAff(f"{{ {of} -> [({index})] }}"), coincident=True) for index in self.nest.laid_order]
        return [*loops[:-1], loops[-1].marked("vector:1")]

    def turn_across(self, leaf: isl.ScheduleNode, name: str, across: str) -> isl.ScheduleNode:
        """The same with lanes along the index `across`."""
        plan = self.nest.plan
        outer = [self.loop(i, (name,)) for i in (*plan.vector_side, *plan.row_side, plan.rows) if i != across]
        inner = [self.loop(across, (name,)).marked("vector:1"), self.loop(plan.lanes, (name,))]
        lanes = plan.width // plan.tile.vectors
        if plan.together > lanes:
            # One piece of a row of the result after the other: stores to lines side by side follow each other.
            inner.insert(0, self.loop(plan.lanes, (name,), tile=lanes))
        return insert_loops(leaf, [*outer, *inner])

    def rest_rows(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The columns that no whole vector has, for all rows."""
        if self.nest.plan.rest_lanes == self.nest.plan.rows:
            return self.rest_across(leaf)
        return around(leaf, [self.loop(i, self.nest.rest) for i in self.nest.plan.row_side], self.rest_columns)

    def rest_across(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """These columns with lanes along the rows, a few vectors of which run at once."""
        plan, names = self.nest.plan, self.nest.rest
        vectors = max(1, min(4, plan.side_by_side // plan.rest))
        width = vectors * plan.width // plan.tile.vectors
        part = BlockTiles(replace(self.nest, statements=names, plan=replace(plan, statement=rest_name(plan.statement))))

        def tile(node: isl.ScheduleNode) -> isl.ScheduleNode:
            loops = [self.loop(plan.rows, names, tile=width), self.loop(plan.lanes, names).marked(f"jam:{plan.rest}")]
            return around(node, [*loops, self.loop(plan.rows, names).marked(f"vector:{vectors}")], part.kernel)

        return self.split(leaf, plan.rows, width, names, tile)

    def rest_columns(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """These columns with lanes along the sum: results side by side share what they load."""
        plan, names = self.nest.plan, self.nest.rest
        *outer, last = plan.reduced
        sums = [*(self.loop(i, names) for i in outer), self.loop(last, names).marked("vector:1")]
        parts: list[Part] = []
        for name in names:
            own = name == rest_name(plan.statement)
            parts.append(((name,), "", (lambda n: insert_loops(n, sums)) if own else (lambda n: n)))
        jam = self.loop(plan.rows, names).marked(f"jam:{rows_at_once(plan.tile.rows, plan.rest, plan.side_by_side)}")
        columns = self.loop(plan.lanes, names).marked(f"jam:{plan.rest}")
        return around(leaf, [jam, columns], lambda n: self.sequence(n, parts))
