"""Contractions in sequential loops: one iteration is scheduled like a program of its own, in blocks and panels, and the loops go around it.

In `X[i, j] = A[i, k] * X[k, j]`, again and again, columns of X are independent of each other, so that each could go through all steps by itself: a product of matrices would become one of a matrix and a vector. With the
loops outside it stays what it is. Copies of operands, which run ahead of a program of its own, run right ahead of the sums that read them, or, where they are alike in all iterations, ahead of the loops (sweeps/copies_ahead.py); dependences are computed anew, from step to step, and the proof is of the whole.

When: all statements are in the same loops, one after the other, and one is a contraction of known extents, worth blocks or with each element taken several times.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial
from math import prod

import islpy as isl

from polyml.expressions import plain_indices, reads_of
from polyml.schedule.cost import StatementModel
from polyml.schedule.schedule import Schedule
from polyml.schedule.strategy.cpu import apply_strategy
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.sweeps.copies_ahead import copies_alike, split_ahead, whole_copies
from polyml.schedule.sweeps.loop_bodies import Body, body_of
from polyml.schedule.ways.orders import ilp_tree
from polyml.schedule.ways.strategic import arranged, contracted, planned
from polyml.schedule.ways.task import Task
from polyml.scop.dependences import analyse
from polyml.scop.scop import Scop
from polyml.sets.shapes import is_known

__all__ = ["by_steps", "in_loops", "is_contraction", "scheduled_body"]

_REUSED = 4
"""Times that a contraction takes each element, on the average, from which on it is worth loops of its own in each iteration."""


def by_steps(task: Task) -> Schedule | None:
    """The contractions of each iteration in blocks; None where there are none, or nothing is known of how large they are."""
    asked = task.may_block(sized=True) and not task.options.precise and (task.pack or not task.scop.sizes)
    if not asked or not all(s.loop_depth for s in task.scop.statements.values()):
        return None
    if not all(is_known(array.shape) for array in task.scop.arrays.values()):
        return None
    body = body_of(task.scop)
    return None if body is None else scheduled_body(task, body)


def scheduled_body(task: Task, body: Body, *, apart: bool = False) -> Schedule | None:
    """One iteration with its contractions in blocks, and the loops around it; None where it has none. apart: iterations are independent of each other, and threads share them, unless each packs operands."""
    options = replace(task.options, parallel=False) if apart else task.options
    inner = replace(task, scop=_as_inputs(body.scop), dependences=analyse(body.scop), options=options)
    models = inner.known()[1]
    plans = planned(inner, models)
    contractions = {plan.statement for plan in plans} or {n for n, m in models.items() if is_contraction(m)}
    outline = _one_by_one(body.scop, contractions)
    found = arranged(inner, partial(ilp_tree, inner, outline=outline), plans) if contractions else None
    if found is None:
        return None
    own = found[1].packed.scop
    if apart and task.has_threads and not _shares_panels(copies_alike(body, own), body, own):
        return None
    return in_loops(task, body, *found, apart=apart)


def in_loops(task: Task, body: Body, tree: isl.Schedule, facts: Facts, *, apart: bool = False) -> Schedule | None:
    """The strategy on an ordered tree of one iteration, with the loops around; None where it pays for some sizes only. apart: as in `scheduled_body`."""
    tree, notes, worth = apply_strategy(tree, facts)
    packed = facts.packed
    if worth or packed.worth:
        return None
    once = whole_copies(copies_alike(body, packed.scop), tree, packed.scop, packed.storage)
    if apart and task.has_threads and not _shares_panels(once, body, packed.scop):
        return None
    ahead = None
    if once:
        ahead, tree = split_ahead(once, tree, packed.scop, packed.storage)
    scop = body.scop_in_loops(_in_time(packed.scop), once)
    made = Schedule(
        scop=scop,
        dependences=analyse(scop),
        tree=body.tree_in_loops(
            tree, scop, apart=apart, mark="parallel" if apart and task.has_threads else None, ahead=ahead
        ),
        storage={name: body.storage_in_loops(storage, once) for name, storage in packed.storage.items()},
        notes=(*packed.notes, *notes),
    )
    return contracted(task, made)


def _shares_panels(once: Set[str], body: Body, scop: Scop) -> bool:
    """Whether these copies, which run ahead of the loops, fill all panels of the iteration: threads would pack others into the same memory."""
    filled = {scop.statements[name].target.array for name in once}
    return scop.arrays.keys() <= body.scop.arrays.keys() | filled


def is_contraction(model: StatementModel) -> bool:
    """Whether the statement reads its operands several times each."""
    touched = sum(prod(n for i, n in model.extents.items() if a.stride(i) != 0) for a in model.accesses)
    return model.is_update and len(model.accesses) > 2 and prod(model.extents.values()) >= _REUSED * touched


def _as_inputs(scop: Scop) -> Scop:
    """The scop with what sums read as inputs, which may be packed: copies go right ahead of the sums here."""
    read = {
        r.tensor
        for s in scop.statements.values()
        if s.kind == "update" and len(s.indices) > 2
        for r in reads_of(s.value)
    }
    arrays = {name: replace(a, kind="input") if name in read else a for name, a in scop.arrays.items()}
    return replace(scop, arrays=arrays)


def _one_by_one(scop: Scop, contractions: set[str]) -> tuple[tuple[str, ...], ...]:
    """The statements in their order: each contraction with what starts its sums and what is made of them element by element, and what is between."""
    groups: list[list[str]] = []
    made, taken = set[str](), set[str]()
    for name, s in scop.statements.items():
        begins = s.kind == "init" and any(
            other.target.array == s.target.array for n, other in scop.statements.items() if n in contractions
        )
        reads = {read.tensor for read in reads_of(s.value)}
        sums = [set(plain_indices(read.subscripts)) for read in reads_of(s.value) if read.tensor in made]
        element_wise = s.kind == "assign" and bool(sums) and all(own == set(s.indices) for own in sums)
        follows = name in contractions or (element_wise and s.target.array not in taken)
        if begins or not groups or (not follows and made):
            groups.append([])
            made, taken = set[str](), set[str]()
        if begins or (made and follows):
            made = made | {s.target.array}
        taken |= reads if name in contractions else set()
        groups[-1].append(name)
    return tuple(map(tuple, groups))


def _in_time(scop: Scop) -> Scop:
    """The scop with its statements in the order in which they were written, each copy right ahead of the first one that reads it."""
    places: dict[str, float] = {}
    for name, s in scop.statements.items():
        low = scop.initial.intersect_domain(s.domain.to_union_set()).range().as_set().dim_min_val(0)
        places[name] = low.to_python()
    for name, s in scop.statements.items():
        if places[name] < 0:
            readers = [
                n
                for n, other in scop.statements.items()
                if any(r.tensor == s.target.array for r in reads_of(other.value))
            ]
            places[name] = min(places[n] for n in readers) - 0.5
    order = sorted(scop.statements, key=lambda name: places[name])
    return replace(scop, statements={name: scop.statements[name] for name in order})
