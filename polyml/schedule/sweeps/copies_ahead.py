"""Copies of operands that every iteration would make alike run once, ahead of the loops around.

An iteration that is scheduled like a program of its own (loop_bodies.py) packs what its sums read. Where that is the same in each, the panels stay: threads that share the iterations then share them, too.

Rewrite: for (i ..) { p = panels of w; y[i] = .. p ..; } -> p = panels of w; for (i ..) { y[i] = .. p ..; }
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import islpy as isl

from polyml.expressions import reads_of
from polyml.schedule.schedule import Storage
from polyml.schedule.sweeps.loop_bodies import Body
from polyml.schedule.tree import Kind, kind_of, mark_name, statements_below
from polyml.scop.scop import Scop
from polyml.sets.callbacks import mapped_bottom_up

__all__ = ["copies_alike", "split_ahead", "whole_copies"]


def copies_alike(body: Body, scop: Scop) -> frozenset[str]:
    """The statements of one iteration (`scop`: with its copies) that copy what no iteration writes, in each of them alike."""
    if not body.loops:
        return frozenset()
    written = {s.target.array for s in body.scop.statements.values()}
    return frozenset(
        name
        for name, s in scop.statements.items()
        if s.kind == "copy"
        and name not in body.scop.statements
        and written.isdisjoint(read.tensor for read in reads_of(s.value))
        and not body.asks_for_loops(s)
    )


def whole_copies(names: Set[str], tree: isl.Schedule, scop: Scop, storage: Mapping[str, Storage]) -> frozenset[str]:
    """Those that fill all of their panels before anything reads them: no loop is around both. Of panels that hold one block of a sum each block takes the place of the one before."""
    arrays = {scop.statements[name].target.array: name for name in names}
    places = {storage[array].place: array for array in arrays if array in storage and storage[array].place}
    found = {arrays[array] for array in arrays if array not in storage or not storage[array].place}

    def look(node: isl.ScheduleNode) -> None:
        match kind_of(node):
            case Kind.mark if mark_name(node) in places:
                child = node.child(0)
                name = arrays[places[mark_name(node)]]
                if kind_of(child) == Kind.sequence and statements_below(child.child(0).child(0)) == (name,):
                    found.add(name)
                look(child)
            case Kind.domain | Kind.filter | Kind.mark | Kind.sequence | Kind.set:
                for k in range(node.n_children()):
                    look(node.child(k))
            case _:
                pass

    look(tree.get_root())
    return frozenset(found)


def split_ahead(
    names: Set[str], tree: isl.Schedule, scop: Scop, storage: Mapping[str, Storage]
) -> tuple[isl.Schedule, isl.Schedule]:
    """The trees of these copies and of all else, without the marks of the copies' panels."""
    first = isl.UnionSet.empty(tree.get_domain().get_space())
    for name in names:
        first = first.union(scop.statements[name].domain.to_union_set())
    filled = {scop.statements[name].target.array for name in names}
    places = {storage[array].place for array in filled if array in storage} - {""}

    def unmarked(node: isl.ScheduleNode) -> isl.ScheduleNode:
        return node.delete() if kind_of(node) == Kind.mark and mark_name(node) in places else node

    ahead, behind = tree.intersect_domain(first), tree.intersect_domain(tree.get_domain().subtract(first))
    return mapped_bottom_up(ahead, unmarked), mapped_bottom_up(behind, unmarked)
