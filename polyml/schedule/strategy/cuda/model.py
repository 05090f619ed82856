"""What the recipe for CUDA knows of a band: how long its loops are, what threads along each of them cost, and whether all it carries is reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import islpy as isl

from polyml.expressions import Subscript, reads_of
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.matching import Matcher
from polyml.schedule.tree import Kind, is_coincident, kind_of, members, nodes, statements_below
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = [
    "CudaModel",
]

COMBINE_COST, BARRIER_COST = 100.0, 10.0
"""Of a reduction across a block, and of a phase of its own, in the units of cost.py."""


@dataclass(frozen=True, slots=True)
class CudaModel:
    """Answers questions on the bands of one tree."""

    scop: Scop
    matcher: Matcher
    models: Mapping[str, StatementModel]
    target: Target

    def is_reduction(self, node: isl.ScheduleNode) -> bool:
        """Whether all that the band carries are reductions, each into elements that no loop of it moves, and no band is below."""
        if any(kind_of(below) == Kind.band for below in nodes(node.child(0))):
            return False
        for member in members(node, self.scop):
            positions: dict[str, int] = {}
            for name in statements_below(node):
                statement, index = self.scop.statements[name], member.index(name)
                if index is None:
                    return False
                moves = any(a.stride(index) != 0 for a in self.models[name].accesses if a.write)
                indirect = not all(isinstance(s, Affine) for s in statement.target.subscripts)
                if statement.kind == "update" and (moves or indirect):
                    return False
                positions[name] = statement.indices.index(index)
            if not self.matcher.carries_nothing(positions):
                return False
        return True

    def vector(self, node: isl.ScheduleNode, k: int) -> int:
        """Neighbours along a loop that one thread should take, so that it moves 16 bytes at a time; 1: none. Everything that moves along the loop must do so by
        single elements, from multiples of 16 bytes on (what is reduced along it does not move); nothing may be a loop below, and enough threads must be left."""
        member, extents = members(node, self.scop)[k], self.extents(node)
        names = statements_below(node)
        if any(kind_of(below) == Kind.band for below in nodes(node.child(0))):
            return 1
        count = 16 // max(self.models[name].itemsize for name in names)
        if count < 2 or extents[k] % count:
            return 1
        for name in names:
            statement, index = self.scop.statements[name], member.index(name)
            if index is None or statement.argument is not None:
                return 1
            if statement.kind == "update" and not _stands_still(statement, index):
                return 1
            if not _is_whole(statement, index, count):
                return 1
            accesses = [(statement.target.array, statement.target.subscripts)] * (statement.kind != "update")
            accesses += [(read.tensor, read.subscripts) for read in reads_of(statement.value)]
            if not all(self._is_vector(array, subscripts, index, count) for array, subscripts in accesses):
                return 1
        return count

    def _is_vector(self, name: str, subscripts: Sequence[Subscript], index: str, count: int) -> bool:
        """Whether an access stands still along the index, or moves by single elements from multiples of `count` on."""
        total = affine(0)
        for subscript, step in zip(subscripts, self.scop.arrays[name].memory_strides, strict=True):
            if not isinstance(subscript, Affine) or not step:
                return False
            total = total + subscript * step
        if index not in total.variables():
            return True
        rest = total - affine(index)
        return index not in rest.variables() and all(
            c % count == 0 for c in (rest.constant, *(c for _, c in rest.terms))
        )

    def costs(self, node: isl.ScheduleNode) -> tuple[float, float]:
        """Of all instances when threads run along the band's best loop, and when they run along the best one inside."""
        found = members(node, self.scop)
        here = self._cost(node, self.best(node))
        inside = 0.0
        for name in statements_below(node):
            model = self.models[name]
            mine = {member.index(name) for member in found}
            outer = mine | _indices_above(node, name, self.scop)
            inner = [
                self._cost_inside(model, index)
                for position, index in enumerate(self.scop.statements[name].indices)
                if index not in outer and self.matcher.carries_nothing({name: position})
            ]
            own = [model.lane_cost(index, self.target) for index in model.extents if index in mine]
            inside += model.instances * min(inner, default=min(own, default=model.scalar_cost()))
        return here, inside

    def _cost_inside(self, model: StatementModel, index: str) -> float:
        """Per instance, when the threads of a block share that loop; a reduction has to be combined in the end."""
        extent = model.extents[index]
        reduces = model.is_update and all(a.stride(index) == 0 for a in model.accesses if a.write)
        return model.lane_cost(index, self.target) + (COMBINE_COST if reduces else BARRIER_COST) / extent

    def best(self, node: isl.ScheduleNode) -> int:
        """The loop along which neighbouring threads read and write neighbouring elements; the last of equals."""
        count = node.band_n_member()
        return min(range(count), key=lambda k: (self._cost(node, k), -k))

    def _cost(self, node: isl.ScheduleNode, k: int) -> float:
        member, total = members(node, self.scop)[k], 0.0
        for name in statements_below(node):
            model, index = self.models[name], member.index(name)
            total += model.instances * (model.scalar_cost() if index is None else model.lane_cost(index, self.target))
        return total

    def extents(self, node: isl.ScheduleNode) -> list[int]:
        """Iterations per loop; of a skewed one, those of its statements."""
        found = []
        for member in members(node, self.scop):
            sizes = []
            for name in statements_below(node):
                index = member.index(name)
                sizes.append(self.models[name].instances if index is None else self.models[name].extents[index])
            found.append(max(sizes, default=1))
        return found

    def parallel_work(self, node: isl.ScheduleNode) -> int:
        """Iterations of the largest coincident band below; 0 when there is none."""
        bands = [below for below in nodes(node.child(0)) if kind_of(below) == Kind.band and is_coincident(below)]
        return max((prod(self.extents(band)) for band in bands), default=0)

    def name(self, node: isl.ScheduleNode, k: int) -> str:
        indices = (members(node, self.scop)[k].index(name) for name in statements_below(node))
        return next((index for index in indices if index is not None), "?")


def _is_whole(statement: Statement, index: str, count: int) -> bool:
    """Whether the index ends, and begins, with a whole group of `count` in any row of the domain: also where a row's length follows from another index."""
    names = ", ".join(statement.indices)
    for digit in (0, count - 1):
        ends = ", ".join(f"{count}*floor({i}/{count}) + {digit}" if i == index else i for i in statement.indices)
        moved = isl.Map(f"{{ {statement.name}[{names}] -> {statement.name}[{ends}] }}")
        if not statement.domain.apply(moved).is_subset(statement.domain):
            return False
    return True


def _stands_still(statement: Statement, index: str) -> bool:
    """Whether it updates one element, whatever the index."""
    subscripts = statement.target.subscripts
    return all(isinstance(s, Affine) and index not in s.variables() for s in subscripts)


def _indices_above(node: isl.ScheduleNode, name: str, scop: Scop) -> set[str | None]:
    """The statement's indices that are loops above the node."""
    found: set[str | None] = set()
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.band:
            found |= {member.index(name) for member in members(node, scop)}
    return found
