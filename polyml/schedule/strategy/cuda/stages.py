"""The tree of a contraction in tiles (see cuda/tiles.py):

all tiles (whole tiles, then those at the edges, where these cannot be padded)
  blocks: a tile each
    accumulators: set, by the threads that own them
    tiles of the reduction
      copy the operands' tiles, all threads together; reduce, each thread its own elements
    results: written by the threads that own them, those of whole tiles without conditions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.gpu.staged import StagedNest, Tile
from polyml.schedule.strategy.cuda.tile_plan import Side
from polyml.schedule.transforms import Loop, around, insert_loops, insert_mark, insert_sequence
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["build_staged"]

UNROLL = 4
"""Iterations of the reduction whose operands are fetched at once: a vector of 16 bytes of those that are contiguous along it."""

_Build = Callable[[isl.ScheduleNode], isl.ScheduleNode]


def build_staged(leaf: isl.ScheduleNode, nest: StagedNest, scop: Scop) -> isl.ScheduleNode:
    """The whole nest in the place of a leaf that its statements and copies reach."""
    return _Builder(nest, scop).all(leaf)


@dataclass(frozen=True, slots=True)
class _Builder:
    nest: StagedNest
    scop: Scop

    @property
    def head(self) -> str:
        return parameters_text(self.scop.sizes)

    def all(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """Tiles that are whole apart from those at the edges, where their loops would need conditions."""
        if self.nest.padded:
            return self.block(leaf)
        kept = self.parts(self.nest.statements, leaf.get_domain())
        if len(kept) == 1:
            return self.block(leaf)
        node = insert_sequence(leaf, kept)
        for position in range(len(kept)):
            node = insert_mark(self.block(node.child(position).child(0)), f"part:{position}").parent().parent()
        return node

    def parts(self, names: Sequence[str], domain: isl.UnionSet) -> list[isl.UnionSet]:
        """The statements' instances in whole tiles, and in those at the edges."""
        plan = self.nest.plan
        edges = []
        for side in (plan.rows, plan.columns):
            whole = plan.extents[side.index] // side.size * side.size
            edges.append(None if whole == plan.extents[side.index] else whole.isl_text())
        row_end, column_end = edges
        parts: list[tuple[str, ...]] = []
        inner = "" if row_end is None else f"{plan.rows.index} < {row_end}"
        if column_end is None:
            parts.append((inner,))
        else:
            parts += [(inner, f"{plan.columns.index} < {column_end}"), (inner, f"{plan.columns.index} >= {column_end}")]
        if row_end is not None:
            parts.append((f"{plan.rows.index} >= {row_end}",))
        filters = [self.filter(names, part) for part in parts]
        return [f for f in filters if not f.intersect(domain).is_empty()]

    def block(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """A block per tile of the result."""
        nest, plan, everything = self.nest, self.nest.plan, self.nest.statements
        outer = sorted(plan.outer, key=lambda index: -plan.extents[index].constant)
        loops = [self.number(index, everything).marked("block.z") for index in outer[:1]]
        loops.append(self.number(plan.rows.index, everything).marked("block.y"))
        loops.append(self.number(plan.columns.index, everything).marked("block.x"))
        loops += [self.number(index, everything) for index in outer[1:]]
        copies = tuple(tile.copy for tile in nest.tiles)

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            parts: list[tuple[tuple[str, ...], _Build]] = [
                (nest.before, lambda n: self.threads(n, nest.before)),
                ((*copies, plan.statement), self.reduction),
                (nest.after, lambda n: self.threads(n, nest.after)),
            ]
            return insert_mark(self.sequence(node, parts), f"allocate:{nest.accumulators}")

        return around(leaf, loops, inside)

    def reduction(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """Tile after tile of the reduction, where there are several the copies one tile ahead."""
        nest, plan = self.nest, self.nest.plan
        copies = tuple(tile.copy for tile in nest.tiles)
        steps = [index for index, _ in plan.visit if index in plan.reduced]
        if plan.stages == 1:
            loops = [self.number(index, (*copies, plan.statement)) for index in steps]
            return around(leaf, loops, lambda n: self.within(n, self.tile))

        def ahead(node: isl.ScheduleNode) -> isl.ScheduleNode:
            first = isl.UnionSet.empty(node.get_universe_domain().get_space())
            for tile in nest.tiles:
                indices = ", ".join(self.scop.statements[tile.copy].indices)
                first = first.union(isl.UnionSet(f"{self.head}{{ {tile.copy}[{indices}] : {tile.visit[-1]} = 0 }}"))
            rest = self.filter((*copies, plan.statement), ()).subtract(first)
            node = insert_sequence(node, [first, rest])
            node = self.copies(node.child(0).child(0)).parent().parent()
            loop = self.number(steps[-1], (*copies, plan.statement), early=True).marked(f"stages:{plan.stages}")
            return around(node.child(1).child(0), [loop], self.tile).parent().parent()

        loops = [self.number(index, (*copies, plan.statement)) for index in steps[:-1]]
        return around(leaf, loops, lambda n: self.within(n, ahead))

    def within(self, leaf: isl.ScheduleNode, inside: _Build) -> isl.ScheduleNode:
        """What is inside, where the tiles live."""
        node = inside(leaf)
        for tile in self.nest.tiles:
            node = insert_mark(node, f"allocate:{tile.array}")
        return node

    def copies(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        return self.sequence(leaf, [((tile.copy,), self.copying(tile)) for tile in self.nest.tiles])

    def tile(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The operands' elements, then the reduction."""
        parts: list[tuple[tuple[str, ...], _Build]] = [((t.copy,), self.copying(t)) for t in self.nest.tiles]
        return self.sequence(leaf, [*parts, ((self.nest.plan.statement,), self.update)])

    def update(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """A thread's own elements, the reduction inside."""
        plan, name = self.nest.plan, (self.nest.plan.statement,)
        inner = []
        for index in plan.reduced:
            if plan.depth[index] > 1:
                inner.append(self.loop({plan.statement: affine(index) % plan.size(index)}, coincident=False))
        if inner:
            inner[-1] = inner[-1].marked(f"unroll:{UNROLL}")
        return around(leaf, [*self.owned(name)], lambda n: insert_loops(n, inner) if inner else n)

    def threads(self, leaf: isl.ScheduleNode, names: Sequence[str]) -> isl.ScheduleNode:
        """Each thread its own elements, the statements in order; in whole tiles apart from those at the edges, where these are not padded."""
        parts: list[tuple[tuple[str, ...], _Build]] = [((name,), lambda n: n) for name in names]
        kept = (
            [] if self.nest.padded.issuperset(names) or not self.nest.padded else self.parts(names, leaf.get_domain())
        )
        if len(kept) < 2:
            return around(leaf, self.owned(names), lambda n: self.sequence(n, parts))
        node = insert_sequence(leaf, kept)
        for position in range(len(kept)):
            inner = node.child(position).child(0)
            node = around(inner, self.owned(names), lambda n: self.sequence(n, parts)).parent().parent()
        return node

    # -- loops --------------------------------------------------------------------------------------------------------------------

    def owned(self, names: Sequence[str]) -> list[Loop]:
        """Threads, and the elements of each."""
        plan = self.nest.plan
        loops = []
        for side, axis in ((plan.rows, "y"), (plan.columns, "x")):
            loops.append(self.digit(side, 2, names).marked(f"thread.{axis}:{side.threads}"))
        for side in (plan.rows, plan.columns):
            for position, count in ((1, side.groups), (3, side.vector)):
                if count > 1:
                    loops.append(self.digit(side, position, names).marked(f"jam:{count}:digit"))
        for index, count in plan.several:
            values = {name: affine(self.nest.indices[name][index]) % count for name in names}
            loops.append(self.loop(values).marked(f"jam:{count}:digit"))
        return loops

    def digit(self, side: Side, position: int, names: Sequence[str]) -> Loop:
        return self.loop({name: side.digits(self.nest.indices[name][side.index])[position] for name in names})

    def number(self, index: str, names: Sequence[str], *, early: bool = False) -> Loop:
        """The loop over tiles of an index, by their numbers; `early`: copies are one ahead."""
        plan = self.nest.plan
        position = [i for i, _ in plan.visit].index(index)
        copies = {tile.copy: tile for tile in self.nest.tiles}
        values = {}
        for name in names:
            if name in copies:
                values[name] = affine(copies[name].visit[position]) - int(early)
            else:
                own = index if name == plan.statement else self.nest.indices[name][index]
                values[name] = affine(own) // plan.size(index)
        return self.loop(values, coincident=index not in plan.reduced)

    def copying(self, tile: Tile) -> _Build:
        """A tile's elements over all threads: neighbouring threads move neighbouring vectors, and what a row leaves of a line of threads takes further rows."""
        plan = self.nest.plan
        across, down = plan.columns.threads, plan.rows.threads
        places = [affine(e) - first for e, first in zip(tile.elements, tile.first, strict=True)]
        vectors = places[-1] // tile.vector
        row = max(range(len(places) - 1), key=lambda d: tile.box[d], default=None)
        line = tile.box[-1] // tile.vector
        height = 1 if row is None else tile.box[row]
        rows = affine(0) if row is None else places[row]
        lines = max(1, across // line) if across % line == 0 else 1
        x = vectors % across if lines == 1 else rows % lines * line + vectors
        values: list[tuple[Affine, str | None]] = [
            (rows // lines % down, f"thread.y:{down}"),
            (x, f"thread.x:{across}"),
        ]
        values += [(place, None) for d, place in enumerate(places[:-1]) if d != row]
        if height > lines * down:
            values.append((rows // (lines * down), None))
        if line > across:
            values.append((vectors // across, None))
        if tile.vector > 1:
            values.append((places[-1] % tile.vector, f"jam:{tile.vector}"))
        loops = [self.loop({tile.copy: value}).marked(mark) for value, mark in values]
        return lambda leaf: insert_loops(leaf, loops)

    def loop(self, values: dict[str, Affine], *, coincident: bool = True) -> Loop:
        pieces = []
        for name, value in values.items():
            indices = ", ".join(self.scop.statements[name].indices)
            pieces.append(f"{name}[{indices}] -> [({value.isl_text()})]")
        return Loop(isl.UnionPwAff(f"{self.head}{{ {'; '.join(pieces)} }}"), coincident)

    # -- parts --------------------------------------------------------------------------------------------------------------------

    def sequence(self, leaf: isl.ScheduleNode, parts: Sequence[tuple[tuple[str, ...], _Build]]) -> isl.ScheduleNode:
        parts = [part for part in parts if part[0]]
        if len(parts) == 1:
            return parts[0][1](leaf)
        node = insert_sequence(leaf, [self.filter(names, ()) for names, _ in parts])
        for position, (_, build) in enumerate(parts):
            node = build(node.child(position).child(0)).parent().parent()
        return node

    def filter(self, names: Sequence[str], conditions: Sequence[str]) -> isl.UnionSet:
        """The statements' instances under conditions on the plan's indices, of a copy those of its tile."""
        plan, pieces = self.nest.plan, []
        copies = {tile.copy: tile for tile in self.nest.tiles}
        for name in names:
            texts = []
            for condition in filter(None, conditions):
                index, sign, limit = condition.split(maxsplit=2)
                own = self.nest.indices[name][index] if name not in copies else ""
                if name in copies:
                    position = [i for i, _ in plan.visit].index(index)
                    own = f"{plan.size(index)}*{copies[name].visit[position]}"
                texts.append(f"{own} {sign} {limit}")
            where = f" : {' and '.join(texts)}" if texts else ""
            pieces.append(f"{name}[{', '.join(self.scop.statements[name].indices)}]{where}")
        return isl.UnionSet(f"{self.head}{{ {'; '.join(pieces)} }}")
