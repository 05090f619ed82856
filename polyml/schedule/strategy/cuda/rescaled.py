"""The tree of sums weighted by exponentials in tiles (schedule/gpu/rescaled_tiles.py):

blocks: rows
  rows to shared memory; sums, maxima: set by the threads that own them; the first tile of keys
  tiles of keys
    copy what is weighted; scores, each thread its own; the largest ones to the other threads of a row; maxima, exponentials, to shared memory
    copy the next keys; sums of what is weighted
  sums to the other threads; results
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.gpu.rescaled_tiles import RescaledNest
from polyml.schedule.strategy.cuda.rescaled_tiles import Operand
from polyml.schedule.transforms import Loop, around, insert_loops, insert_mark, insert_sequence
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["rescaled_tree"]

UNROLL = 4
"""Iterations of a sum whose operands are fetched at once: a vector of 16 bytes."""

_Build = Callable[[isl.ScheduleNode], isl.ScheduleNode]


def rescaled_tree(scop: Scop, nest: RescaledNest) -> isl.Schedule:
    """The mapped tree of the whole region."""
    root = isl.Schedule.from_domain(scop.domain).get_root()
    return _Builder(scop, nest).all(root.child(0)).get_schedule()


@dataclass(frozen=True, slots=True)
class _Builder:
    scop: Scop
    nest: RescaledNest

    def all(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        plan, names = self.nest.plan, self.nest.names
        everything = tuple(self.scop.statements)
        outer = sorted(
            plan.outer,
            key=lambda i: -(plan.found.extents[i].constant if plan.found.extents[i].is_constant else 1 << 30),
        )
        loops = [
            self.loop({name: affine(i) for name in everything}).marked("block." + axis)
            for i, axis in reversed(list(zip(outer, "yz", strict=False)))
        ]
        numbers = {}
        for name in everything:
            own = names.block in self.scop.statements[name].indices
            numbers[name] = affine(names.block) if own else affine(plan.rows.index) // plan.rows.size
        loops.append(self.loop(numbers).marked("block.x"))
        loops += [self.loop({name: affine(i) for name in everything}) for i in outer[2:]]
        return around(leaf, loops, self.block)

    def block(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        nest, plan = self.nest, self.nest.plan
        copied = {operand.read: name for name, operand in nest.copies.items()}
        queries = copied.get(plan.queries.read) if plan.queries is not None else None
        keyed = copied.get(plan.keyed.read) if plan.keyed is not None else None
        values = copied[plan.values.read]
        ahead = isl.UnionSet.empty(leaf.get_universe_domain().get_space())
        if keyed is not None:
            ahead = self.set((keyed,), f"0 <= {plan.keys.index} < {plan.keys.size}")
        inside = (
            *(name for name in (keyed, values, nest.product, nest.rescale, nest.result) if name is not None),
            *nest.start, *nest.scores, *nest.parts, *nest.maxima, *nest.weights, *nest.kept, nest.kept_wide,
        )  # fmt: skip
        parts: list[tuple[isl.UnionSet, _Build]] = []
        if queries is not None:
            parts.append((self.set((queries,)), self.copying(queries, nest.copies[queries])))
        if keyed is not None:
            parts.append((ahead, self.copying(keyed, nest.copies[keyed])))
        *statistics, sums = nest.first
        parts.append((self.set(statistics), lambda n: self.threads(n, statistics)))
        parts.append((self.set((sums,)), lambda n: self.threads(n, (sums,))))
        parts.append((self.set(inside).subtract(ahead), lambda n: self.tiles(n, inside, keyed)))
        parts.append((self.set((*nest.ending, *nest.combine, *nest.after)), self.behind))
        node = self.sequence(leaf, parts)
        for array in nest.throughout:
            node = insert_mark(node, f"allocate:{array}")
        return node

    def tiles(self, leaf: isl.ScheduleNode, names: Sequence[str], keyed: str | None) -> isl.ScheduleNode:
        """Tile after tile of keys, their copies one ahead."""
        plan, values = self.nest.plan, dict[str, Affine]()
        for name in names:
            own = self.nest.names.tile in self.scop.statements[name].indices
            number = affine(self.nest.names.tile) if own else affine(plan.keys.index) // plan.keys.size
            values[name] = number - 1 if name == keyed else number
        loop = self.loop(values, coincident=False).marked("stages:1")
        return around(leaf, [loop], lambda n: self.tile(n, keyed))

    def tile(self, leaf: isl.ScheduleNode, keyed: str | None) -> isl.ScheduleNode:
        nest = self.nest
        copied = {operand.read: name for name, operand in nest.copies.items()}
        values = copied[nest.plan.values.read]
        parts: list[tuple[isl.UnionSet, _Build]] = [(self.set((values,)), self.copying(values, nest.copies[values]))]
        for name in nest.start:
            parts.append((self.set((name,)), partial(self.threads, names=(name,))))
        if nest.product is not None:
            product, depth = nest.product, nest.plan.found.depth
            assert depth is not None, "internal: a product without a depth"
            parts.append((self.set((product,)), lambda n: self.summing(n, product, affine(depth))))
        for names in (nest.scores, nest.parts, nest.maxima):
            parts.append((self.set(names), partial(self.threads, names=names)))
        if keyed is not None:  # behind the barrier at which everybody has read the last ones, under way until the next
            parts.append((self.set((keyed,)), self.copying(keyed, nest.copies[keyed])))
        for names in (nest.weights, (nest.rescale,)):
            parts.append((self.set(names), partial(self.threads, names=names)))
        keys = nest.plan.keys
        parts.append((self.set((nest.result,)), lambda n: self.summing(n, nest.result, affine(keys.index) % keys.size)))
        for names in ((nest.kept_wide,), nest.kept):
            if names:
                parts.append((self.set(names), partial(self.threads, names=names)))
        node = self.sequence(leaf, parts)
        for array in nest.passing:
            node = insert_mark(node, f"allocate:{array}")
        return node

    def behind(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """Sums of rows, and results."""
        nest = self.nest
        wide = [name for name in nest.after if nest.plan.columns.index in self.scop.statements[name].indices]
        groups: list[Sequence[str]] = [nest.ending, nest.combine]
        for name in nest.after:
            if groups[-1] and len(groups) > 2 and (groups[-1][-1] in wide) == (name in wide):
                groups[-1] = (*groups[-1], name)
            else:
                groups.append((name,))
        parts: list[tuple[isl.UnionSet, _Build]] = []
        for names in filter(None, groups):
            parts.append((self.set(names), partial(self.threads, names=names)))
        node = self.sequence(leaf, parts)
        for array in nest.behind:
            node = insert_mark(node, f"allocate:{array}")
        return node

    # -- threads ------------------------------------------------------------------------------------------------------------------

    def owned(self, names: Sequence[str]) -> list[Loop]:
        """Threads, and the elements of each: of a row, or of rows and keys or columns."""
        plan = self.nest.plan
        first = self.scop.statements[names[0]]
        sides = [side for side in (plan.columns, plan.keys) if side.index in first.indices]
        loops = [self.digit(plan.rows.digits(plan.rows.index)[2], names).marked(f"thread.y:{plan.rows.threads}")]
        across = sides[0].digits(sides[0].index)[2] if sides else affine(self.nest.names.thread)
        loops.append(self.digit(across, names).marked(f"thread.x:{plan.keys.threads}"))
        for side, kind in ((plan.rows, "jam"), *((side, "neighbours") for side in sides[:1])):
            for position, count in ((1, side.groups), (3, side.vector)):
                if count > 1:
                    loops.append(self.digit(side.digits(side.index)[position], names).marked(f"{kind}:{count}:digit"))
        return loops

    def digit(self, value: Affine, names: Sequence[str]) -> Loop:
        return self.loop(dict.fromkeys(names, value))

    def threads(self, leaf: isl.ScheduleNode, names: Sequence[str]) -> isl.ScheduleNode:
        """Each thread its own elements, the statements in order, what they sum up inside."""

        def one(name: str) -> _Build:
            other = self.nest.names.other
            if other not in self.scop.statements[name].indices:
                return lambda n: n
            return lambda n: insert_loops(
                n, [self.loop({name: affine(other)}, coincident=False).marked(f"unroll:{UNROLL}")]
            )

        parts = [(self.set((name,)), one(name)) for name in names]
        return around(leaf, self.owned(names), lambda n: self.sequence(n, parts))

    def summing(self, leaf: isl.ScheduleNode, name: str, inner: Affine) -> isl.ScheduleNode:
        loop = self.loop({name: inner}, coincident=False).marked(f"unroll:{UNROLL}")
        return around(leaf, self.owned((name,)), lambda n: insert_loops(n, [loop]))

    def copying(self, name: str, operand: Operand) -> _Build:
        """A tile's elements over all threads: neighbouring threads move neighbouring vectors, and what a row leaves of a line of threads takes further rows."""
        plan = self.nest.plan
        across, down = plan.keys.threads, plan.rows.threads
        sizes = {side.index: side.size for side in (plan.rows, plan.keys)}
        places = [affine(i) % sizes[i] if i in sizes else affine(i) for i in operand.indices]
        rows, last = places
        height, width = plan.box(operand)
        found = plan.found.extents.get(operand.indices[-1])
        width = min(width, found.constant) if found is not None and found.is_constant else width
        vectors, line = last // operand.vector, -(-width // operand.vector)
        lines = max(1, across // line) if across % line == 0 else 1
        x = vectors % across if lines == 1 else rows % lines * line + vectors
        values: list[tuple[Affine, str | None]] = [
            (rows // lines % down, f"thread.y:{down}"),
            (x, f"thread.x:{across}"),
        ]
        if height > lines * down:
            values.append((rows // (lines * down), None))
        if line > across:
            values.append((vectors // across, None))
        if operand.vector > 1:
            values.append((last % operand.vector, f"jam:{operand.vector}"))
        loops = [self.loop({name: value}).marked(mark) for value, mark in values]
        return lambda leaf: insert_loops(leaf, loops)

    # -- parts --------------------------------------------------------------------------------------------------------------------

    def loop(self, values: dict[str, Affine], *, coincident: bool = True) -> Loop:
        pieces = []
        for name, value in values.items():
            pieces.append(f"{name}[{', '.join(self.scop.statements[name].indices)}] -> [({value.isl_text()})]")
        return Loop(isl.UnionPwAff(f"{parameters_text(self.scop.sizes)}{{ {'; '.join(pieces)} }}"), coincident)

    def sequence(self, leaf: isl.ScheduleNode, parts: Sequence[tuple[isl.UnionSet, _Build]]) -> isl.ScheduleNode:
        if len(parts) == 1:
            return parts[0][1](leaf)
        node = insert_sequence(leaf, [part for part, _ in parts])
        for position, (_, build) in enumerate(parts):
            node = build(node.child(position).child(0)).parent().parent()
        return node

    def set(self, names: Sequence[str], condition: str = "") -> isl.UnionSet:
        where = f" : {condition}" if condition else ""
        pieces = (f"{name}[{', '.join(self.scop.statements[name].indices)}]{where}" for name in names)
        return isl.UnionSet(f"{parameters_text(self.scop.sizes)}{{ {'; '.join(pieces)} }}")
