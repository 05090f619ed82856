"""Nests of an ordered tree that are to be contractions in tiles (cuda_tiles.py): where they are, and the tree with marks in their place and copies in its domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.schedule import Note, Storage
from polyml.schedule.staged import StagedNest, stage_operands
from polyml.schedule.strategy.cuda_model import is_coincident
from polyml.schedule.strategy.cuda_tiles import TilePlan, plan_tiles
from polyml.schedule.transforms import (
    graft,
    insert_mark,
    insert_sequence,
    merge_with_child,
)
from polyml.schedule.tree import Kind, kind_of, members, set_names, statements_below
from polyml.schedule.written import in_order
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["MARK", "Staged", "stage_contractions"]

MARK = "staged:"
"""The mark `staged:<statement>` above a leaf stands for the whole nest of that contraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A scop, its dependences and ordered tree, where nests have become marks. storage: of their tiles and accumulators."""

    scop: Scop
    dependences: Dependences
    tree: isl.Schedule
    nests: tuple[StagedNest, ...] = ()
    storage: tuple[tuple[str, Storage], ...] = ()
    notes: tuple[Note, ...] = ()


def stage_contractions(found: Staged, models: Mapping[str, StatementModel], target: Target) -> Staged:
    """The same with every contraction at the top of the tree that is worth it in tiles."""
    if found.scop.sizes:
        return found
    updates = [model for model in models.values() if model.is_update]
    plans = [plan for model in updates if (plan := plan_tiles(found.scop, model, target)) is not None]
    if plans and in_order(found.scop):
        for plan in plans:
            found = _staged(found, plan)
    return found


def _staged(found: Staged, plan: TilePlan) -> Staged:
    """With the nest of one plan in tiles; unchanged where it has no nest of its own at the top."""
    root = found.tree.get_root().child(0)
    several = kind_of(root) == Kind.sequence
    children = [root.child(k).child(0) for k in range(root.n_children())] if several else [root]
    position = next((k for k, child in enumerate(children) if plan.statement in statements_below(child)), None)
    nest = None if position is None else _nest(children[position], plan, found.scop)
    if position is None or nest is None:
        return found
    scop, dependences, made, storage = stage_operands(found.scop, plan, *nest)
    leaf = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    if several:
        filters = [root.child(k).filter_get_filter() for k in range(len(children))]
        filters[position] = _domains(scop, made.statements)
        node = insert_sequence(leaf, filters)
        for k, child in enumerate(children):
            inner = node.child(k).child(0)
            inner = insert_mark(inner, MARK + plan.statement) if k == position else graft(inner, child)
            node = inner.parent().parent()
    else:
        node = insert_mark(leaf, MARK + plan.statement)
    return Staged(
        scop=scop,
        dependences=dependences,
        tree=node.get_schedule(),
        nests=(*found.nests, made),
        storage=(*found.storage, *storage.items()),
        notes=(*found.notes, Note("tiles", plan.statement, str(plan))),
    )


def _domains(scop: Scop, names: Sequence[str]) -> isl.UnionSet:
    total = isl.UnionSet.empty(scop.context.get_space())
    for name in names:
        total = total.union(scop.statements[name].domain.to_union_set())
    return total


def _nest(
    node: isl.ScheduleNode, plan: TilePlan, scop: Scop
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, dict[str, str]]] | None:
    """The statements before and after the contraction and their names for the result's indices, where the nest is one band of these with single statements inside.
    One of them may set the sums; else these go on from what is there."""
    if kind_of(node) != Kind.band or not is_coincident(node):
        return None
    while kind_of(node.child(0)) == Kind.band and is_coincident(node.child(0)):
        node = merge_with_child(node)
    inside, found = node.child(0), members(node, scop)
    if kind_of(inside) == Kind.sequence:
        parts = [set_names(inside.child(k).filter_get_filter()) for k in range(inside.n_children())]
    else:
        parts = [statements_below(node)]
    order = [part[0] for part in parts]
    along = [member.index(plan.statement) for member in found]
    if any(len(part) != 1 for part in parts) or len(set(order)) != len(order) or set(along) != set(plan.free):
        return None
    indices: dict[str, dict[str, str]] = {}
    for name in order:
        own = [member.index(name) for member in found]
        names = {a: b for a, b in zip(along, own, strict=True) if a is not None and b is not None}
        whole = name == plan.statement or len(scop.statements[name].indices) == len(names)
        if len(names) != len(along) or not whole:
            return None
        indices[name] = names
    at = order.index(plan.statement)
    update = scop.statements[plan.statement]
    sets = [n for n in order[:at] if scop.statements[n].target.array == update.target.array]
    if len(sets) > 1 or any(scop.statements[name].kind != "init" for name in sets):
        return None
    return tuple(order[:at]), tuple(order[at + 1 :]), indices
