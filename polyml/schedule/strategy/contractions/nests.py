"""Nests of an ordered tree that are to be blocked contractions: where they are, and the tree with marks in their place and copies in its domain."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import islpy as isl

from polyml.expressions import plain_indices
from polyml.records import dataclass
from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.copies import BlockedNest, copy_blocks
from polyml.schedule.blocking.laid_blocks import LaidBlocks
from polyml.schedule.blocking.makers import Makers, in_copies
from polyml.schedule.blocking.rest_columns import rest_name
from polyml.schedule.pack import Packed
from polyml.schedule.prologues import applied_in_copy
from polyml.schedule.strategy.bands import Place, take_band
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms import graft, insert_mark, insert_sequence, merge_with_child
from polyml.schedule.tree import Kind, is_coincident, kind_of, set_names, statements_below

__all__ = ["MARK", "block_contractions", "block_with_copy", "block_with_makers"]

MARK = "blocked:"
"""The mark `blocked:<statement>` above a leaf stands for the whole nest of that contraction."""


@dataclass(frozen=True, slots=True)
class _Found:
    plan: Blocking
    statements: tuple[str, ...]
    after: tuple[str, ...]
    indices: Mapping[str, Mapping[str, str]]
    makers: Makers | None = None


def block_contractions(
    tree: isl.Schedule, facts: Facts, plans: Collection[Blocking]
) -> tuple[isl.Schedule, Facts] | None:
    """The tree and facts with all of the plans in place; None when one of them has no nest of its own at the top of the tree."""
    node = tree.get_root().child(0)
    children = [node.child(k).child(0) for k in range(node.n_children())] if kind_of(node) == Kind.sequence else [node]
    found: dict[int, _Found] = {}
    for plan in plans:
        position = next((k for k, child in enumerate(children) if plan.statement in statements_below(child)), None)
        nest = None if position is None or position in found else _nest(children[position], plan, facts)
        if position is None or nest is None:
            return None
        found[position] = nest
    packed: Packed = facts.packed
    nests: dict[str, BlockedNest] = {}
    for nest in found.values():
        packed, nests[nest.plan.statement] = _with_copies(packed, nest)
    leaf = isl.Schedule.from_domain(packed.scop.domain).get_root().child(0)
    if kind_of(node) != Kind.sequence:
        made = insert_mark(leaf, MARK + found[0].plan.statement)
    else:
        filters = [
            _filter(node.child(k).filter_get_filter(), found.get(k), nests, packed) for k in range(len(children))
        ]
        made = insert_sequence(leaf, filters)
        for k, child in enumerate(children):
            inner = made.child(k).child(0)
            inner = insert_mark(inner, MARK + found[k].plan.statement) if k in found else graft(inner, child)
            made = inner.parent().parent()
    return made.get_schedule(), replace(facts, packed=packed, blocked=nests)


def block_with_makers(facts: Facts, plan: Blocking, makers: Makers) -> tuple[isl.Schedule, Facts]:
    """The tree and facts of a contraction with what makes its operand, all in one nest."""
    statements = tuple(name for name in facts.scop.statements if name not in makers.statements)
    packed, nest = _with_copies(facts.packed, _Found(plan, statements, (), makers.indices, makers))
    copy = nest.copies.vector_copy
    if copy is not None and in_copies(plan, makers.operand, len(makers.begins)):
        packed, nest = applied_in_copy(packed, copy, makers.steps[0]), replace(nest, makers=None)
    leaf = isl.Schedule.from_domain(packed.scop.domain).get_root().child(0)
    tree = insert_mark(leaf, MARK + plan.statement).get_schedule()
    return tree, replace(facts, packed=packed, blocked={plan.statement: nest})


def block_with_copy(facts: Facts, found: LaidBlocks) -> tuple[isl.Schedule, Facts]:
    """The tree and facts of a contraction with the copy that lays its result out, block by block."""
    plan = found.plan
    begin = facts.scop.statements[found.begin].target.subscripts
    own = plain_indices(facts.scop.statements[plan.statement].target.subscripts)
    indices: dict[str, dict[str, str]] = {
        found.begin: {str(i): str(j) for i, j in zip(own, plain_indices(begin), strict=True)},
        plan.statement: {i: i for i in facts.scop.statements[plan.statement].indices},
        found.copy: dict(found.places),
    }
    packed, nest = _with_copies(facts.packed, _Found(plan, (found.begin, plan.statement), (found.copy,), indices))
    nest = replace(nest, laid_order=found.order)
    leaf = isl.Schedule.from_domain(packed.scop.domain).get_root().child(0)
    tree = insert_mark(leaf, MARK + plan.statement).get_schedule()
    return tree, replace(facts, packed=packed, blocked={plan.statement: nest})


def _with_copies(packed: Packed, found: _Found) -> tuple[Packed, BlockedNest]:
    """The scop with the copies of a nest, and the nest."""
    lanes = {name: found.indices[name][found.plan.lanes] for name in found.statements}
    packed, copies = copy_blocks(packed, found.plan, lanes)
    rest = tuple(map(rest_name, found.statements)) if found.plan.rest else ()
    indices = {**found.indices} | {rest_name(name): found.indices[name] for name in found.statements if rest}
    made = () if found.makers is None else found.makers.statements
    names = [*made, *found.statements, *rest, *found.after, *copies.statements]
    domains = {name: packed.scop.statements[name].indices for name in names}
    nest = BlockedNest(found.plan, copies, found.statements, found.after, rest, indices, domains, found.makers)
    return packed, nest


def _filter(own: isl.UnionSet, found: _Found | None, nests: dict[str, BlockedNest], packed: Packed) -> isl.UnionSet:
    if found is None:
        return own
    nest = nests[found.plan.statement]
    for name in (*nest.copies.statements, *nest.rest):
        own = own.union(packed.scop.statements[name].domain.to_union_set())
    return own


def _nest(node: isl.ScheduleNode, plan: Blocking, facts: Facts) -> _Found | None:
    """The nest, when it is one band of C's indices with single statements inside."""
    if kind_of(node) != Kind.band or not is_coincident(node):
        return None
    while kind_of(node.child(0)) == Kind.band and is_coincident(node.child(0)):
        node = merge_with_child(node)
    band = take_band(node, facts, Place(parallel=False, extents={}))
    if band is None:
        return None
    rows = (plan.rows,) if plan.rows else ()
    free = {plan.lanes, *rows, *plan.batch, *plan.vector_side, *plan.row_side}
    if set(band.own(plan.statement)) != free or len(band.loops) != len(free):
        return None
    inside = node.child(0)
    order = [plan.statement]
    if kind_of(inside) == Kind.sequence:
        parts = [set_names(inside.child(k).filter_get_filter()) for k in range(inside.n_children())]
        if any(len(part) != 1 for part in parts):
            return None
        order = [part[0] for part in parts]
    elif set(band.statements) != {plan.statement}:
        return None
    indices: dict[str, dict[str, str]] = {}
    for name in band.statements:
        indices[name] = {member[plan.statement]: member[name] for member in band.indices}
        if name != plan.statement and len(facts.models[name].extents) != len(band.loops):
            return None
    indices[plan.statement] |= {index: index for index in plan.reduced}
    inner = order.index(plan.statement) + 1 if plan.turned or plan.streams else len(order)
    return _Found(plan, tuple(order[:inner]), tuple(order[inner:]), indices)
