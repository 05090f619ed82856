"""The tree of a factorization in blocks (see pivots/plan.py and pivots/parts.py):

blocks of the pivot
  the block itself: in the order that the recipe finds without blocks
  beyond along the rows: a register tile's rows at a time (threads share them), panels of lanes from left to right: what earlier panels contribute, then the triangle
  beyond along the lanes: panels of lanes (threads share them), a register tile's rows at a time: what earlier rows contribute, then the triangle
  copy what is final into panels
  beyond in both: strips of rows, panels (threads share them), register tiles: full ones, then the rest

So nearly all of the work is in register tiles whose accumulators stay in registers over a block of the pivot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import islpy as isl

from polyml.new_names import derived
from polyml.records import dataclass
from polyml.schedule.pivots.parts import Beyond, PivotParts
from polyml.schedule.strategy.bands import along
from polyml.schedule.transforms import Loop, around, graft, insert_loops, insert_mark, insert_sequence, tile_loop
from polyml.sets.spaces import maps_of, parameters_text, sets_of

__all__ = ["build_pivoted", "build_slanted"]

_Build = Callable[[isl.ScheduleNode], isl.ScheduleNode]
"""From a leaf to the subtree in its place."""


def build_pivoted(parts: PivotParts, inside: isl.Schedule, *, parallel: bool) -> isl.Schedule:
    """The whole tree. inside: a tree over the statements that are left in the pivot's blocks, in full or not. parallel: threads share the loops beyond."""
    leaf = isl.Schedule.from_domain(parts.scop.domain).get_root().child(0)
    return _Builder(parts, inside, parallel).all(leaf).get_schedule()


def build_slanted(
    parts: PivotParts, around: isl.Schedule, before: Sequence[str], after: Sequence[str], *, parallel: bool
) -> isl.Schedule:
    """The tree of a contraction over no box: blocks of the sum, each with its copies, between what the region does before and after, in the order of `around`."""
    leaf = isl.Schedule.from_domain(parts.scop.domain).get_root().child(0)
    builder = _Builder(parts, around, parallel)
    own = [*(name for names in parts.copies.values() for name in names), parts.plan.core]

    def pieces(names: Sequence[str]) -> list[_Part]:
        """In the written order, what runs row by row apart from runs of others."""
        runs = [list(run) for _, run in groupby(names, lambda name: name if name in parts.loops else "")]
        return [_Part(run, builder.by_rows if run[0] in parts.loops else builder.as_around) for run in runs]

    return builder.sequence(leaf, [*pieces(before), _Part(own, builder.blocks), *pieces(after)]).get_schedule()


@dataclass(frozen=True, slots=True)
class _Part:
    """Statements (whole, or where the condition holds) and what is made of their leaf."""

    names: Sequence[str]
    build: _Build
    where: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class _Builder:
    parts: PivotParts
    inside: isl.Schedule
    parallel: bool

    def all(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        parts, scop = self.parts, self.parts.scop
        beyond = {name for own in parts.parts.values() for name in own.values()} | {
            name for names in parts.copies.values() for name in names
        }
        block = [name for name in scop.statements if name not in beyond]
        order: list[_Part] = [_Part(block, self.as_around)] if block else []
        steps: tuple[tuple[Beyond, _Build], ...] = (
            ("rows", self.below), ("lanes", self.beside), ("both", self.update),
        )  # fmt: skip
        for place, build in steps:
            order += [_Part((name,), self.copy) for name in parts.copies.get(place, ())]
            if parts.parts[place]:
                order.append(_Part(tuple(parts.parts[place].values()), build))
        return self.by_blocks(leaf, order)

    def as_around(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """What stands in no register tile, in the order that the recipe finds for it."""
        return graft(leaf, self.inside.get_root().child(0))

    def by_rows(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """A statement that starts the sums, or is made of them, row by row."""
        names = self.names_at(leaf)
        rows = Loop(self.loop("rows", names).row, True, "parallel" if self.parallel else None)
        return insert_loops(leaf, [rows, Loop(self.loop("lanes", names).row, True, "vector:2")])

    def blocks(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """Nothing but what is beyond in both directions."""
        copies = [_Part((name,), self.copy) for name in self.parts.copies["both"]]
        return self.by_blocks(leaf, [*copies, _Part((self.parts.plan.core,), self.update)])

    def by_blocks(self, leaf: isl.ScheduleNode, order: Sequence[_Part]) -> isl.ScheduleNode:
        """The parts in each block of the pivot; the copies' arrays exist within a block."""

        def inside(node: isl.ScheduleNode) -> isl.ScheduleNode:
            node = self.sequence(node, order)
            for array in self.parts.storage:
                node = insert_mark(node, f"allocate:{array}")
            return node

        names = [name for part in order for name in part.names]
        return around(leaf, [tile_loop(self.loop("pivot", names), self.parts.plan.block)], inside)

    # -- what is beyond in one direction -----------------------------------------------------------------------------------------------

    def below(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        tile, width = self.parts.plan.tile.rows, self.parts.plan.width
        names = tuple(self.parts.parts["rows"].values())
        return self.panels(leaf, names, outer=("rows", tile), inner=("lanes", width))

    def beside(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        tile, width = self.parts.plan.tile.rows, self.parts.plan.width
        names = tuple(self.parts.parts["lanes"].values())
        return self.panels(leaf, names, outer=("lanes", width), inner=("rows", tile))

    def panels(
        self, leaf: isl.ScheduleNode, names: tuple[str, ...], *, outer: tuple[str, int], inner: tuple[str, int]
    ) -> isl.ScheduleNode:
        """Tiles of the outer loop depend on nothing but the pivot's block; along the inner one, each needs those before it."""
        first, then = tile_loop(self.loop(outer[0], names), outer[1]), tile_loop(self.loop(inner[0], names), inner[1])
        first = Loop(first.row, True, "parallel" if self.parallel else None)
        core = tuple(name for name in names if name == derived(self.parts.plan.core, outer[0]))

        def pivot(sign: str) -> Callable[[str], str]:
            def where(name: str) -> str:
                own = self.parts.loops[name]
                return f"{own.pivot} {sign} {inner[1]}*floor({getattr(own, inner[0])}/{inner[1]})"

            return where

        def tile(node: isl.ScheduleNode) -> isl.ScheduleNode:
            inside = [_Part(core, self.register_tile, pivot("<"))] if core else []
            return self.sequence(node, [*inside, _Part(names, self.triangle, pivot(">=") if core else None)])

        return around(leaf, [first, then], tile)

    def triangle(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """A tile that its own results go into: pivot by pivot, the statements in their order at one pivot."""
        names = self.ordered(self.names_at(leaf))
        parts = [_Part((name,), self.points) for name in names]
        return around(leaf, [self.loop("pivot", names)], lambda node: self.sequence(node, parts))

    def points(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """The instances of one statement at one pivot: independent. Where the rows are beyond, a tile has all of them, and ever fewer lanes."""
        (name,) = self.names_at(leaf)
        own, tile = self.parts.loops[name], self.parts.plan.tile
        below = name in self.parts.parts["rows"].values()
        loops = []
        has_lanes = own.lanes not in (own.pivot, own.rows)
        if own.rows != own.pivot:
            loops.append(
                Loop(self.loop("rows", (name,)).row, True, f"jam:{tile.rows}" if below and has_lanes else None)
            )
        if has_lanes:
            loops.append(Loop(self.loop("lanes", (name,)).row, True, f"vector:{1 if below else tile.vectors}"))
        return insert_loops(leaf, loops) if loops else leaf

    def ordered(self, names: Sequence[str]) -> tuple[str, ...]:
        """The statements such that none needs a later one at the same pivot."""
        pivot = isl.MultiUnionPwAff.from_union_pw_aff(self.loop("pivot", names).row)
        validity = self.parts.dependences.validity.intersect_domain(pivot.domain()).intersect_range(pivot.domain())
        needs: dict[str, set[str]] = {name: set() for name in names}
        for same in maps_of(validity.eq_at_multi_union_pw_aff(pivot)):
            source, sink = (same.get_tuple_name(t) or "" for t in (isl.dim_type.in_, isl.dim_type.out))
            if source != sink:
                needs[sink].add(source)
        found: list[str] = []
        while len(found) < len(names):
            ready = [name for name in names if name not in found and needs[name] <= set(found)]
            found.append(ready[0] if ready else next(name for name in names if name not in found))
        return tuple(found)

    # -- what is beyond in both --------------------------------------------------------------------------------------------------------

    def copy(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        (name,) = self.names_at(leaf)
        plan, side = self.parts.plan, "lanes" if self.parts.loops[name].lanes else "rows"
        lanes, pivot = self.loop(side, (name,)), self.loop("pivot", (name,))
        width = plan.width if side == "lanes" else plan.tile.rows
        panel = Loop(tile_loop(lanes, width).row, True, "parallel" if self.parallel else None)
        inside = [Loop(pivot.row, True), Loop(lanes.row, True, "vector:1")]
        # What the source has side by side comes last, so that blocks are transposed in registers.
        loops = [panel, *(reversed(inside) if self.parts.walks(name) else inside)]
        pieces = self.whole_panels(name, getattr(self.parts.loops[name], side), width)
        return self.pieces(leaf, [(piece, lambda node: insert_loops(node, loops)) for piece in pieces])

    def whole_panels(self, copy: str, index: str, width: int) -> list[isl.Set]:
        """What a copy of a box makes of panels that are all there, and the rest: where panels are no whole vectors, each row would be stored under a mask that is no constant."""
        plan, domain = self.parts.plan, self.parts.scop.statements[copy].domain
        if width % (plan.width // plan.tile.vectors) == 0 or not domain.is_box():
            return [domain]
        first = f"{width}*floor({index}/{width})"
        whole = self.with_corners(copy, domain, [{index: first}, {index: f"{first} + {width - 1}"}])
        return [piece for piece in (whole, domain.subtract(whole).coalesce()) if not piece.is_empty()]

    def update(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """Register tiles that are all there, those that are so for a part of the sum, and the rest."""
        plan, scop = self.parts.plan, self.parts.scop
        (name,) = self.parts.parts["both"].values()
        strip = tile_loop(self.loop("rows", (name,)), plan.strip)
        panel = tile_loop(self.loop("lanes", (name,)), plan.width)
        rows = tile_loop(self.loop("rows", (name,)), plan.tile.rows)
        panel = Loop(panel.row, True, "parallel" if self.parallel else None)
        domain, full = scop.statements[name].domain, self.full_tiles(name)
        at = scop.statements[name].indices.index(self.parts.loops[name].pivot)
        tiles = full.project_out(isl.dim_type.set, at, 1).insert_dims(isl.dim_type.set, at, 1).set_tuple_name(name)
        near, rest = domain.intersect(tiles).coalesce(), domain.subtract(tiles).coalesce()
        teeth = near.subtract(full).coalesce()

        def tile(node: isl.ScheduleNode) -> isl.ScheduleNode:
            if teeth.is_empty():
                return self.register_tile(node)
            pieces = [(full, self.register_tile), (teeth, self.row_by_row)]
            # In the order of the sum.
            across = self.parts.dependences.reduction.intersect_domain(teeth.to_union_set())
            if not across.intersect_range(full.to_union_set()).is_empty():
                pieces.reverse()
            return self.pieces(node, pieces)

        # Side by side in a strip, since both read its panel.
        parts: list[tuple[isl.Set, _Build]] = [
            (near, lambda node: around(node, [rows], tile)),
            (rest, self.edge),
        ]
        parts = [part for part in parts if not part[0].is_empty()]
        return around(leaf, [strip, panel], lambda node: self.pieces(node, parts))

    def pieces(self, leaf: isl.ScheduleNode, parts: Sequence[tuple[isl.Set, _Build]]) -> isl.ScheduleNode:
        """Pieces of one statement in order."""
        if len(parts) == 1:
            return parts[0][1](leaf)
        node = insert_sequence(leaf, [piece.to_union_set() for piece, _ in parts])
        for position, (_, build) in enumerate(parts):
            node = build(node.child(position).child(0)).parent().parent()
        return node

    def full_tiles(self, name: str) -> isl.Set:
        """The instances whose register tile is all there: its corners are (the domain is convex)."""
        plan, own = self.parts.plan, self.parts.loops[name]
        rows, lanes = (
            f"{plan.tile.rows}*floor({own.rows}/{plan.tile.rows})",
            f"{plan.width}*floor({own.lanes}/{plan.width})",
        )
        corners = [
            {own.rows: f"{rows} + {row}", own.lanes: f"{lanes} + {lane}"}
            for row in (0, plan.tile.rows - 1)
            for lane in (0, plan.width - 1)
        ]
        return self.with_corners(name, self.parts.scop.statements[name].domain, corners)

    def with_corners(self, name: str, domain: isl.Set, corners: Sequence[Mapping[str, str]]) -> isl.Set:
        """The instances for which those with these values of some indices are there, too."""
        statement, found = self.parts.scop.statements[name], domain
        for corner in corners:
            target = ", ".join(corner.get(index, index) for index in statement.indices)
            text = f"{name}[{', '.join(statement.indices)}] -> {name}[{target}]"
            at = isl.MultiAff(f"{parameters_text(self.parts.scop.sizes)}{{ {text} }}")
            found = found.intersect(domain.preimage_multi_aff(at))
        return found

    def register_tile(self, leaf: isl.ScheduleNode, *, vectors: int = 0) -> isl.ScheduleNode:
        """vectors: 0: as many as the plan has."""
        names, tile = self.names_at(leaf), self.parts.plan.tile
        rows = Loop(self.loop("rows", names).row, True, f"jam:{tile.rows}")
        lanes = Loop(self.loop("lanes", names).row, True, f"vector:{vectors or tile.vectors}")
        return insert_loops(leaf, [rows, lanes, self.loop("pivot", names)])

    def edge(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        """Tiles that are not full: those of their rows and lanes that there are, a vector at a time, which are chains enough and little code."""
        rows = tile_loop(self.loop("rows", self.names_at(leaf)), self.parts.plan.tile.rows)
        return around(leaf, [rows], lambda node: self.register_tile(node, vectors=1))

    def row_by_row(self, leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        names = self.names_at(leaf)
        lanes = Loop(self.loop("lanes", names).row, True, f"vector:{self.parts.plan.tile.vectors}")
        return insert_loops(leaf, [Loop(self.loop("rows", names).row, True), lanes, self.loop("pivot", names)])

    # -- pieces ------------------------------------------------------------------------------------------------------------------------

    def loop(self, role: str, names: Sequence[str]) -> Loop:
        index = {name: getattr(self.parts.loops[name], role) for name in names}
        return Loop(along(self.parts.scop, names, index))

    @staticmethod
    def names_at(node: isl.ScheduleNode) -> tuple[str, ...]:
        return tuple(sorted(s.get_tuple_name() or "" for s in sets_of(node.get_domain())))

    def sequence(self, leaf: isl.ScheduleNode, parts: Sequence[_Part]) -> isl.ScheduleNode:
        if len(parts) == 1:
            return parts[0].build(leaf)
        node = insert_sequence(leaf, [self.filter(part) for part in parts])
        for position, part in enumerate(parts):
            node = part.build(node.child(position).child(0)).parent().parent()
        return node

    def filter(self, part: _Part) -> isl.UnionSet:
        pieces = []
        for name in part.names:
            condition = "" if part.where is None else f" : {part.where(name)}"
            pieces.append(f"{name}[{', '.join(self.parts.scop.statements[name].indices)}]{condition}")
        return isl.UnionSet(f"{parameters_text(self.parts.scop.sizes)}{{ {'; '.join(pieces)} }}")
