"""Parts that the tree of a blocked contraction is made of (blocked.py): loops over its indices and their blocks, sequences, full tiles and the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.blocking.copies import BlockedNest, block_index
from polyml.schedule.transforms import Loop, insert_mark, insert_sequence
from polyml.sets.affine import Affine, affine
from polyml.sets.linear_maps import function_of
from polyml.sets.spaces import parameters_text

__all__ = ["BlockParts", "Build", "Part"]

Build = Callable[[isl.ScheduleNode], isl.ScheduleNode]
"""From a leaf to the subtree in its place."""

Part = tuple[Sequence[str], str, Build]
"""Statements, a condition on them, and what is made of their leaf."""


@dataclass(frozen=True, slots=True)
class BlockParts:
    """What makes parts of the tree of one nest."""

    nest: BlockedNest

    @property
    def without_vector_copy(self) -> tuple[str, ...]:
        copies, own = self.nest.copies, (*self.statements, *self.nest.after)
        return own if copies.row_copy is None else (copies.row_copy, *own)

    @property
    def statements(self) -> tuple[str, ...]:
        """Those of all columns."""
        return (*self.nest.statements, *self.nest.rest)

    @property
    def everything(self) -> tuple[str, ...]:
        copies = (self.nest.copies.vector_copy, self.nest.copies.rest_copy)
        return (*self.made, *(copy for copy in copies if copy is not None), *self.without_vector_copy)

    @property
    def finishers(self) -> tuple[str, ...]:
        """What follows the sums inside their register tile."""
        nest = self.nest
        behind = nest.statements.index(nest.plan.statement) + 1 if nest.plan.statement in nest.statements else 0
        return (*nest.statements[behind:], *nest.rest[behind:]) if behind else ()

    @property
    def made(self) -> tuple[str, ...]:
        """What makes an operand, where that is part of the nest."""
        return () if self.nest.makers is None else self.nest.makers.statements

    def loop(self, index: str, names: Sequence[str], *, tile: int | None = None) -> Loop:
        """The loop over `index`, or over its tiles (at the first iteration of each), for the statements that run along it; those of other statements stand
        at 0: they belong to the first block; what reads finished sums, and columns that are left, to the last one."""
        plan, pieces = self.nest.plan, []
        beyond, last = (*self.nest.rest, self.nest.copies.rest_copy), self.finishers
        for name in names:
            mine, repeated = self.own(name, index), block_index(index) in self.nest.domains[name]
            each_block, left = mine is None and repeated, name in beyond and index == plan.lanes
            finishes = name in last and index in plan.reduced and not each_block
            if tile is not None and (left or finishes):
                pieces.append(self.function(name, affine((plan.extents[index] - 1) // tile * tile)))
            elif tile is not None and each_block:
                pieces.append(self.function(name, affine(block_index(index)) * tile))
            elif mine is None or mine in self.nest.domains[name]:
                pieces.append(self.function(name, affine(mine or 0) // (tile or 1) * (tile or 1)))
            else:  # an expression stands for the index
                value = mine if tile is None else f"{tile}*floor({mine}/{tile})"
                pieces.append(isl.UnionPwAff(f"{{ {name}[{', '.join(self.nest.domains[name])}] -> [({value})] }}"))
        return Loop(reduce(isl.UnionPwAff.union_add, pieces), index not in plan.reduced)

    def function(self, name: str, value: Affine) -> isl.UnionPwAff:
        return isl.UnionPwAff.from_aff(function_of(name, self.nest.domains[name], value))

    def own(self, name: str, index: str) -> str | None:
        if name in self.nest.indices:
            return self.nest.indices[name].get(index)
        return index if index in self.nest.domains[name] else None

    def allocated(self, leaf: isl.ScheduleNode, array: str, inside: Build) -> isl.ScheduleNode:
        return insert_mark(inside(leaf), f"allocate:{array}")

    def sequence(self, leaf: isl.ScheduleNode, parts: Sequence[Part]) -> isl.ScheduleNode:
        """A sequence of parts: statements, a condition on them (by the plan's index, `%` stands for it), and what is made of the part's leaf."""
        if len(parts) == 1:
            return parts[0][2](leaf)
        node = insert_sequence(leaf, [self.filter(names, condition) for names, condition, _ in parts])
        for position, (_, _, build) in enumerate(parts):
            node = build(node.child(position).child(0)).parent().parent()
        return node

    def filter(self, names: Sequence[str], condition: str) -> isl.UnionSet:
        index, _, text = condition.partition(" ")
        pieces = []
        for name in names:
            own = self.own(name, index) if condition else None
            limit = f" : {own} {text}" if own is not None else ""
            pieces.append(f"{name}[{', '.join(self.nest.domains[name])}]{limit}")
        sizes = sorted({v for end in self.nest.plan.ends.values() for v in end.variables()})
        return isl.UnionSet(f"{parameters_text(tuple(sizes))}{{ {'; '.join(pieces)} }}")

    def split(
        self,
        leaf: isl.ScheduleNode,
        index: str,
        step: int,
        names: Sequence[str],
        inside: Build,
        *,
        rest: Build | None = None,
    ) -> isl.ScheduleNode:
        """Full tiles along the index, then the rest: both have a number of iterations that is known. rest: None: like full ones."""
        plan = self.nest.plan
        if plan.one_kind and index == plan.lanes:
            return inside(leaf)
        whole = str(plan.extents[index] // step * step)
        if index in plan.ends:
            whole = f"{step}*floor({plan.end(index)}/{step})"
        elif int(whole) in (0, plan.extents[index]):
            return inside(leaf)
        return self.sequence(
            leaf, [(names, f"{index} < {whole}", inside), (names, f"{index} >= {whole}", rest or inside)]
        )
