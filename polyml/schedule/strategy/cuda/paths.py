"""Where in an ordered tree the nest of a contraction is: at the top or in sequential loops that are launches, and apart from others; and the tree with new statements and a mark in
its place.

Where parallel loops stand around sequential ones (rows that are independent of each other through all steps), each block would do all steps of its rows. They go inside then, when
a step has enough work for a launch: tiles read operands many times less.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.strategy.cuda.tile_plan import TilePlan
from polyml.schedule.transforms import (
    Loop,
    graft,
    insert_band,
    insert_loops,
    insert_mark,
    insert_sequence,
    loops_of,
    merge_with_child,
)
from polyml.schedule.tree import Kind, Member, is_coincident, kind_of, members, set_names, statements_below
from polyml.scop.scop import Scop
from polyml.sets.spaces import parameters_text

__all__ = ["Insertion", "Path", "apart", "path_to", "rebuilt", "steps_outside"]

Path = tuple[int, ...]
"""Child positions from a node to one below."""


def path_to(node: isl.ScheduleNode, plan: TilePlan, scop: Scop) -> Path | None:
    """The way to the plan's nest, through sequences and a band for each of its steps; None where something else is around it."""
    path: Path = ()
    steps = 0
    while True:
        if kind_of(node) == Kind.sequence:
            having = [k for k in range(node.n_children()) if plan.statement in statements_below(node.child(k).child(0))]
            if len(having) != 1:
                return None
            path, node = (*path, having[0], 0), node.child(having[0]).child(0)
        elif steps < len(plan.steps):
            if not _is_step(node, steps, scop):
                return None
            path, node, steps = (*path, 0), node.child(0), steps + 1
        else:
            return path


def _is_step(node: isl.ScheduleNode, depth: int, scop: Scop) -> bool:
    """Whether the node is the sequential loop of that depth, of all statements below."""
    if kind_of(node) != Kind.band or node.band_n_member() != 1:
        return False
    (member,) = members(node, scop)
    return all(_runs_along(member, name, depth, scop) for name in statements_below(node))


def _runs_along(member: Member, name: str, depth: int, scop: Scop) -> bool:
    statement = scop.statements[name]
    return statement.loop_depth > depth and member.index(name) == statement.indices[depth]


def steps_outside(root: isl.ScheduleNode, plan: TilePlan, scop: Scop) -> isl.Schedule:
    """The tree with parallel loops around the plan's sequential one put into the parts inside of it; unchanged where there are none.

    Rewrite: band[n](band[t](sequence(a, b))) -> band[t](sequence(band[n](a), band[n](b))). No dependence crosses n, so that each part is free to run all of it.
    """
    path: Path = ()
    node = root
    while kind_of(node) == Kind.sequence:
        having = [k for k in range(node.n_children()) if plan.statement in statements_below(node.child(k).child(0))]
        path, node = (*path, having[0], 0), node.child(having[0]).child(0)
    inside = node
    while kind_of(inside) == Kind.band and is_coincident(inside):
        inside = inside.child(0)
    if len(plan.steps) != 1 or inside.is_equal(node) or not _is_step(inside, 0, scop):
        return root.get_schedule()
    while kind_of(node.child(0)) == Kind.band and is_coincident(node.child(0)):
        node = merge_with_child(node)
    rows, step = loops_of(node), loops_of(node.child(0))
    node = insert_band(node.delete().delete(), step, permutable=False)
    parts = node.child(0)
    if kind_of(parts) != Kind.sequence:
        return insert_band(parts, rows, permutable=True).get_schedule()
    for k in range(parts.n_children()):
        part = parts.child(k).child(0)
        reach = part.get_universe_domain()
        own = [replace(loop, row=loop.row.intersect_domain(reach)) for loop in rows]
        parts = insert_band(part, own, permutable=True).parent().parent()
    return parts.get_schedule()


def apart(nest: isl.ScheduleNode, updates: Collection[str], scop: Scop) -> isl.ScheduleNode:
    """The nest as a sequence of nests with one of the updates each, where a band of parallel loops is around several: each begins with what sets its sums, and others stay behind the
    update that they follow.

    Rewrite: band[n](sequence(a, b)) -> sequence(band[n](a), band[n](b)). No dependence crosses n.
    """
    while kind_of(nest.child(0)) == Kind.band and is_coincident(nest.child(0)):
        nest = merge_with_child(nest)
    inside, rows = nest.child(0), loops_of(nest)
    if kind_of(inside) != Kind.sequence:
        return nest
    groups: dict[str, list[str]] = {name: [] for name in scop.statements if name in updates}
    sums = {scop.statements[name].target.array: name for name in groups}
    latest = next(iter(groups))
    for k in range(inside.n_children()):
        names = set_names(inside.child(k).filter_get_filter())
        for name in (name for name in scop.statements if name in names):
            latest = name if name in groups else latest
            s = scop.statements[name]
            groups[sums.get(s.target.array, latest) if s.kind == "init" else latest].append(name)
    node = insert_sequence(nest.cut(), [_instances(scop, group) for group in groups.values()])
    fixed = members(nest, scop)
    for k, group in enumerate(groups.values()):
        part = node.child(k).child(0)
        own = [replace(loop, row=loop.row.intersect_domain(part.get_universe_domain())) for loop in rows]
        part = insert_band(part, own, permutable=True).child(0)
        part = insert_sequence(part, [_instances(scop, [name]) for name in group]) if len(group) > 1 else part
        for position, name in enumerate(group):
            s = scop.statements[name]
            outside = {*s.indices[: s.loop_depth], *(member.index(name) for member in fixed)}
            loops = [Loop(_index(scop, [name], i)) for i, index in enumerate(s.indices) if index not in outside]
            if not loops:
                continue
            leaf = part.child(position).child(0) if len(group) > 1 else part
            part = insert_loops(leaf, loops)
            part = part.parent().parent() if len(group) > 1 else part
        node = part.parent().parent().parent()
    return node


def _instances(scop: Scop, names: Collection[str]) -> isl.UnionSet:
    total = isl.UnionSet.empty(scop.context.get_space())
    for name in names:
        total = total.union(scop.statements[name].domain.to_union_set())
    return total


def _universe(scop: Scop, names: Collection[str]) -> isl.UnionSet:
    pieces = (f"{name}[{', '.join(scop.statements[name].indices)}]" for name in names)
    return isl.UnionSet(f"{{ {'; '.join(pieces)} }}")


def _index(scop: Scop, names: Collection[str], position: int) -> isl.UnionPwAff:
    """The value of an index of each of the statements."""
    pieces = []
    for name in names:
        indices = scop.statements[name].indices
        pieces.append(f"{name}[{', '.join(indices)}] -> [({indices[position]})]")
    return isl.UnionPwAff(f"{parameters_text(scop.sizes)}{{ {'; '.join(pieces)} }}")


# -- the tree with a mark in its place ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Insertion:
    """The scop with new statements, or more of old ones, their names, and the mark that stands for the nest that they belong to."""

    scop: Scop
    new: tuple[str, ...]
    mark: str


def rebuilt(
    leaf: isl.ScheduleNode, old: isl.ScheduleNode, path: Path, inserted: Insertion, depth: int = 0
) -> isl.ScheduleNode:
    """A copy of the old subtree in the leaf's place, with the new statements on the path and the mark at its end."""
    if not path:
        return insert_mark(leaf, inserted.mark)
    if kind_of(old) == Kind.sequence:
        position, filters = path[0], [old.child(k).filter_get_filter() for k in range(old.n_children())]
        filters[position] = filters[position].union(
            _instances(inserted.scop, inserted.new)
        )  # or more of those that were there
        node = insert_sequence(leaf, filters)
        for k in range(len(filters)):
            inner, before = node.child(k).child(0), old.child(k).child(0)
            made = rebuilt(inner, before, path[2:], inserted, depth) if k == position else graft(inner, before)
            node = made.parent().parent()
        return node
    (loop,) = loops_of(old)
    node = insert_band(
        leaf,
        [
            replace(
                loop,
                row=loop.row.subtract_domain(_universe(inserted.scop, inserted.new)).union_add(
                    _index(inserted.scop, inserted.new, depth)
                ),
            )
        ],
        permutable=False,
    )
    return rebuilt(node.child(0), old.child(0), path[1:], inserted, depth + 1).parent()
