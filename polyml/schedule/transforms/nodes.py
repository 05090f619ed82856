"""Moves on the nodes of schedule trees: pure functions from a node to the node in its place. They check nothing: `legality.check` proves what comes out.

A band is replaced by single-member bands (`nest_loops`), each a function of the instances (`Loop`); tiling, interchange and strip-mining are choices of those functions.
Source: isl manual, section "Schedule Trees".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.tree import Kind, band_rows, kind_of, mark_name
from polyml.sets.callbacks import mapped_bottom_up

__all__ = [
    "Loop",
    "around",
    "distribute_band",
    "graft",
    "insert_band",
    "insert_loops",
    "insert_mark",
    "insert_sequence",
    "loops_of",
    "merge_with_child",
    "nest_loops",
    "quotient_loop",
    "remainder_loop",
    "single_members",
    "spliced",
    "split_band",
    "tile_loop",
]


@dataclass(frozen=True, slots=True)
class Loop:
    """One band member to be: `row` (instances -> its value), whether it is coincident, and the mark above it."""

    row: isl.UnionPwAff
    coincident: bool = False
    mark: str | None = None

    def marked(self, mark: str | None) -> Loop:
        """The same loop under that mark."""
        return replace(self, mark=mark)


def loops_of(band: isl.ScheduleNode) -> tuple[Loop, ...]:
    """The members of a band, unmarked."""
    return tuple(Loop(row, band.band_member_get_coincident(k)) for k, row in enumerate(band_rows(band)))


def tile_loop(loop: Loop, size: int, *, first: int = 0) -> Loop:
    """The loop over tiles: its value is the tile's first, `size * floor(row / size)`. The point loop is the loop itself.

    Args:
        size: iterations per tile, >= 1. first: where a tile begins; the loop's values are that much less then, multiples of the size all the same.
    """
    context = loop.row.get_ctx()
    factor = isl.Val.int_from_si(context, size)
    row = loop.row
    if first % size:
        row = row.sub(isl.UnionPwAff.val_on_domain(row.domain(), isl.Val.int_from_si(context, first % size)))
    return Loop(row.scale_down_val(factor).floor().scale_val(factor), loop.coincident)


def remainder_loop(loop: Loop, size: int) -> Loop:
    """The loop over positions within tiles: `row mod size`. Inside of it the loop itself goes from tile to tile, in steps of `size`.

    Args:
        size: iterations per tile, >= 1.
    """
    return Loop(loop.row.mod_val(isl.Val.int_from_si(loop.row.get_ctx(), size)), loop.coincident)


def quotient_loop(loop: Loop, size: int) -> Loop:
    """The loop over the numbers of tiles: `floor(row / size)`.

    Args:
        size: iterations per tile, >= 1.
    """
    if size == 1:
        return loop
    return Loop(loop.row.scale_down_val(isl.Val.int_from_si(loop.row.get_ctx(), size)).floor(), loop.coincident)


def insert_loops(node: isl.ScheduleNode, loops: Sequence[Loop]) -> isl.ScheduleNode:
    """The subtree under single-member bands, outermost first, with their marks. *Returns* the outermost inserted node."""
    for loop in reversed(loops):
        node = node.insert_partial_schedule(isl.MultiUnionPwAff.from_union_pw_aff(loop.row))
        node = node.band_set_permutable(1).band_member_set_coincident(0, int(loop.coincident))
        if loop.mark is not None and loop.mark.startswith(("block", "thread", "stages")):
            # One loop, not a piece per statement: what its value says (who runs an iteration) must be said wherever the statement stands.
            node = node.band_member_set_ast_loop_type(0, isl.ast_loop_type.atomic)
        if loop.mark is not None:
            node = insert_mark(node, loop.mark)
    return node


def around(
    leaf: isl.ScheduleNode, loops: Sequence[Loop], inside: Callable[[isl.ScheduleNode], isl.ScheduleNode]
) -> isl.ScheduleNode:
    """The loops around what `inside` makes of the leaf. *Returns* the node in the leaf's place."""
    if not loops:
        return inside(leaf)
    depth = len(loops) + sum(loop.mark is not None for loop in loops)
    node = insert_loops(leaf, loops)
    for _ in range(depth):
        node = node.child(0)
    return inside(node).ancestor(depth)


def nest_loops(band: isl.ScheduleNode, loops: Sequence[Loop]) -> isl.ScheduleNode:
    """The band replaced by single-member bands, outermost first.

    Rewrite: band[i, j](c) -> band[j'] (band[i'] (band[j] (c))), whatever `loops` says.
    """
    return insert_loops(band.delete(), loops)


def insert_mark(node: isl.ScheduleNode, name: str) -> isl.ScheduleNode:
    """A mark above the node. *Returns* the mark."""
    return node.insert_mark(isl.Id(name, context=node.get_ctx()))


def split_band(band: isl.ScheduleNode, position: int) -> isl.ScheduleNode:
    """The first `position` members in a band above the others. *Returns* the upper one."""
    return band.band_split(position)


def merge_with_child(band: isl.ScheduleNode) -> isl.ScheduleNode:
    """One band of the members of a band and of the band right below it."""
    upper, lower = loops_of(band), loops_of(band.child(0))
    return insert_band(band.delete().delete(), [*upper, *lower], permutable=True)


def insert_band(node: isl.ScheduleNode, loops: Sequence[Loop], *, permutable: bool) -> isl.ScheduleNode:
    """The subtree under one band of the loops, whose marks do not count. *Returns* the band."""
    rows = isl.UnionPwAffList.alloc(node.get_ctx(), len(loops))
    for loop in loops:
        rows = rows.add(loop.row)
    space = isl.Space.set_alloc(node.get_ctx(), 0, len(loops)).align_params(loops[0].row.get_space())
    node = node.insert_partial_schedule(isl.MultiUnionPwAff.from_union_pw_aff_list(space, rows))
    node = node.band_set_permutable(int(permutable))
    for k, loop in enumerate(loops):
        node = node.band_member_set_coincident(k, int(loop.coincident))
    return node


def distribute_band(band: isl.ScheduleNode, groups: Sequence[Sequence[int]]) -> isl.ScheduleNode:
    """A band over a sequence becomes a sequence of bands: loop fission.

    Rewrite: band(sequence(a, b, c)) -> sequence(band(sequence(a, b)), band(c)), for groups ((0, 1), (2,)).

    Args:
        groups: positions of the sequence's children, in order, each once.
    """
    sequence = band.child(0)
    assert kind_of(sequence) == Kind.sequence, "internal: only a band over a sequence can be distributed"
    loops, permutable = loops_of(band), band.band_get_permutable()
    filters = [sequence.child(k).filter_get_filter() for k in range(sequence.n_children())]
    node = insert_sequence(band.cut(), [_union([filters[k] for k in group]) for group in groups])
    for position, group in enumerate(groups):
        node = node.child(position).child(0)
        inside = filters[group[0]] if len(group) == 1 else None
        if inside is None:
            node = insert_sequence(node, [filters[k] for k in group])
            for inner, k in enumerate(group):
                node = graft(node.child(inner).child(0), sequence.child(k).child(0)).parent().parent()
        else:
            node = graft(node, sequence.child(group[0]).child(0))
        reach = node.get_universe_domain()
        restricted = [replace(loop, row=loop.row.intersect_domain(reach)) for loop in loops]
        node = insert_band(node, restricted, permutable=permutable).parent().parent()
    return node


def insert_sequence(node: isl.ScheduleNode, filters: Sequence[isl.UnionSet]) -> isl.ScheduleNode:
    """A sequence with a child per filter above the node's subtree (a copy under each)."""
    children = isl.UnionSetList.alloc(node.get_ctx(), len(filters))
    for part in filters:
        children = children.add(part)
    return node.insert_sequence(children)


def _union(parts: Sequence[isl.UnionSet]) -> isl.UnionSet:
    total = parts[0]
    for part in parts[1:]:
        total = total.union(part)
    return total


def graft(leaf: isl.ScheduleNode, subtree: isl.ScheduleNode) -> isl.ScheduleNode:
    """A copy of `subtree` (of any tree over the same instances) in the leaf's place."""
    match kind_of(subtree):
        case Kind.leaf:
            return leaf
        case Kind.band:
            node = leaf.insert_partial_schedule(subtree.band_get_partial_schedule())
            node = node.band_set_permutable(int(subtree.band_get_permutable()))
            for k in range(subtree.band_n_member()):
                node = node.band_member_set_coincident(k, int(subtree.band_member_get_coincident(k)))
            return graft(node.child(0), subtree.child(0)).parent()
        case Kind.mark:
            return graft(insert_mark(leaf, mark_name(subtree)).child(0), subtree.child(0)).parent()
        case Kind.sequence | Kind.set:
            # isl's `set` says any order; a sequence is one of them.
            node = insert_sequence(leaf, [subtree.child(k).filter_get_filter() for k in range(subtree.n_children())])
            for k in range(subtree.n_children()):
                node = graft(node.child(k).child(0), subtree.child(k).child(0)).parent().parent()
            return node
        case other:
            raise AssertionError(f"internal: a schedule tree has a {other} where none is made")


def single_members(tree: isl.Schedule) -> isl.Schedule:
    """The same order with one member per band, so that every loop is a node of its own."""

    def split(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if kind_of(node) != Kind.band:
            return node
        count = node.band_n_member()
        if count == 0:
            return node.delete()
        for _ in range(count - 1):
            node = node.band_split(1).child(0)
        return node.ancestor(count - 1) if count > 1 else node

    return mapped_bottom_up(tree, split)


def spliced(tree: isl.Schedule) -> isl.Schedule:
    """The same order without sequences that are children of sequences."""

    def splice(node: isl.ScheduleNode) -> isl.ScheduleNode:
        return node.sequence_splice_children() if kind_of(node) == Kind.sequence else node

    return mapped_bottom_up(tree, splice)
