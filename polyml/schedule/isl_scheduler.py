"""isl's own scheduler under polyml's constraints, and the written order as a tree.

Source: isl manual, section "Scheduling" (schedule constraints, options). The dependences are never coalesced: a merged polyhedron can
make the scheduler a thousand times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

import islpy as isl

from polyml.errors import SchedulerFailed
from polyml.schedule.transforms import graft, insert_band, insert_sequence, loops_of
from polyml.schedule.tree import Kind, kind_of
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.spaces import maps_of

__all__ = ["schedule_by_isl", "tree_by_isl", "tree_from_written_order"]

PHASE = "isl's scheduler"

FIRST = 2000
"""Operations that isl's scheduler may take at first; half as many again each time that they did not suffice, at most three times what one run takes."""

SLOW = 2e-5
"""Seconds for each of the operations that were added last from which on more of them are hopeless. A pivot takes 0.3 to 2 us, but the numbers in a tableau may grow without bound: 22,000 took 7 ms,
25,000 1.6 s and 50,000 three minutes in a product over windows, where isl cannot be interrupted."""

NOISE = 0.02
"""Seconds that the operations added last must have taken, too, to be hopeless: what a try takes differs by some milliseconds, and few operations are added where numbers seem to grow."""

GROWING = 3e-6
"""Seconds for each of them from which on the numbers are growing: then few are added at a time (a chain of twelve products: 115,000 took 0.09 s, 173,000 0.5 s and 200,000 40 s)."""

PATIENCE = 5.0
"""Seconds after which all tries together are given up once the numbers grow."""


def schedule_by_isl(
    domain: isl.UnionSet, validity: isl.UnionMap, dependences: Dependences, *, context: isl.Set, budget: int
) -> isl.Schedule:
    """isl's schedule of the instances `domain` respecting `validity`.

    Proximity: flow and reductions. Coincidence: validity and reductions, so that a reduction loop is never called parallel. A band whose outermost
    member is parallel is preferred to a longer one; statements are fused only where no parallel loop is lost.

    Raises:
        BudgetExhausted: after `budget` isl operations, or fewer that take too long. SchedulerFailed: isl has found no schedule ("unable to carry dependences").
    """
    reduction = dependences.reduction.intersect_domain(domain).intersect_range(domain)
    flow = dependences.flow.intersect_domain(domain).intersect_range(domain)
    constraints = (
        isl.ScheduleConstraints.on_domain(domain)
        .set_context(context)
        .set_validity(validity)
        .set_proximity(flow.union(reduction))
        .set_coincidence(validity.union(reduction))
    )
    with _scheduler_options():
        return _compute(constraints, budget)


def _compute(constraints: isl.ScheduleConstraints, budget: int) -> isl.Schedule:
    """The schedule, tried again and again with more operations while these stay cheap."""
    operations = min(FIRST, budget)
    before, time_before, spent = 0, 0.0, 0.0
    while True:
        tried = _attempt(constraints, operations)
        if not isinstance(tried, float):
            return tried
        spent += tried
        each = (tried - time_before) / (operations - before)
        if (
            each > SLOW and tried < PATIENCE
        ):  # the machine may have been away meanwhile (another process, a collection of garbage): growing numbers take their time again
            again = _attempt(constraints, operations)
            assert isinstance(again, float), "as many operations did not suffice before"
            tried = min(tried, again)
            each = (tried - time_before) / (operations - before)
        hopeless = each > SLOW and tried - time_before > NOISE
        if operations == budget or hopeless or (each > GROWING and spent > PATIENCE):
            raise BudgetExhausted(PHASE, operations)
        before, time_before = operations, tried
        operations = min(budget, operations + operations // (2 if each < GROWING else 40))


def _attempt(constraints: isl.ScheduleConstraints, operations: int) -> isl.Schedule | float:
    """The schedule, or the seconds of this thread after which the operations were used up."""
    start = thread_time()
    try:
        with operation_budget(operations, phase=PHASE):
            return constraints.compute_schedule()
    except BudgetExhausted:
        return thread_time() - start
    except isl.Error as fault:
        raise SchedulerFailed(f"isl's scheduler gives up: {fault}") from None


@contextmanager
def _scheduler_options() -> Iterator[None]:
    """outer_coincidence: parallel outermost where there is one. maximize_coincidence: no fusion that serializes a loop.
    treat_coalescing, and bounded coefficients: no rows such as 1023*i + j, which fixed sizes invite."""
    context = isl.DEFAULT_CONTEXT
    wanted = {
        "outer_coincidence": 1,
        "maximize_coincidence": 1,
        "maximize_band_depth": 0,
        "whole_component": 0,
        "treat_coalescing": 1,
        "max_coefficient": 8,
    }
    saved = {name: getattr(context, f"get_schedule_{name}")() for name in wanted}
    try:
        for name, value in wanted.items():
            getattr(context, f"set_schedule_{name}")(value)
        yield
    finally:
        for name, value in saved.items():
            getattr(context, f"set_schedule_{name}")(value)


def tree_by_isl(
    scop: Scop, dependences: Dependences, *, relax_reductions: bool, budget: int, ahead: tuple[str, ...] = ()
) -> isl.Schedule:
    """isl's schedule of the whole scop, in the form that strategies take: coincident members in a band of their own, outside of the others.

    Args:
        ahead: statements that run before all others (copies of inputs).

    Raises:
        BudgetExhausted: after `budget` isl operations. SchedulerFailed: isl finds no schedule.
    """
    validity = dependences.validity if relax_reductions else dependences.validity.union(dependences.reduction)
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    groups = [(name,) for name in ahead] + [tuple(name for name in scop.statements if name not in ahead)]
    filters = []
    for names in groups:
        domain = isl.UnionSet.empty(scop.context.get_space())
        for name in names:
            domain = domain.union(scop.statements[name].domain.to_union_set())
        filters.append(domain)
    if len(filters) > 1:
        node = insert_sequence(node, filters)
    for position, domain in enumerate(filters):
        inside = validity.intersect_domain(domain).intersect_range(domain)
        found = schedule_by_isl(domain, inside, dependences, context=scop.context, budget=budget)
        leaf = node.child(position).child(0) if len(filters) > 1 else node
        leaf = _parallel_first(graft(leaf, found.get_root().child(0)))
        node = leaf.parent().parent() if len(filters) > 1 else leaf
    return node.get_schedule()


def _parallel_first(node: isl.ScheduleNode) -> isl.ScheduleNode:
    """The subtree with every permutable band of mixed members split: coincident ones outside."""
    if kind_of(node) == Kind.leaf:
        return node
    if kind_of(node) == Kind.band:
        loops = loops_of(node)
        parallel = [loop for loop in loops if loop.coincident]
        if parallel and len(parallel) < len(loops) and node.band_get_permutable():
            node = insert_band(node.delete(), [loop for loop in loops if not loop.coincident], permutable=True)
            node = insert_band(node, parallel, permutable=True)
            return _parallel_first(node.child(0).child(0)).parent().parent()
    for position in range(node.n_children()):
        node = _parallel_first(node.child(position)).parent()
    return node


def tree_from_written_order(scop: Scop) -> isl.Schedule:
    """The order as written, as a tree: a sequence where the 2d+1 form has a number per statement, a single-member band where it has a loop."""
    tree = isl.Schedule.from_domain(scop.domain)
    maps = _initial_maps(scop)
    depth = max((m.dim(isl.dim_type.out) for m in maps.values()), default=0)
    return _place(tree.get_root().child(0), maps, 0, depth).get_schedule()


def _initial_maps(scop: Scop) -> dict[str, isl.Map]:
    found = maps_of(scop.initial)
    by_name = {m.get_tuple_name(isl.dim_type.in_): m for m in found}
    return {name: by_name[name] for name in scop.statements if name in by_name}


def _place(leaf: isl.ScheduleNode, maps: dict[str, isl.Map], dim: int, depth: int) -> isl.ScheduleNode:
    """The node in the leaf's place, ordering `maps`' statements by time dimensions dim.. ."""
    if dim == depth or not maps:
        return leaf
    constants = {name: _constant(m, dim) for name, m in maps.items()}
    if all(value is not None for value in constants.values()):
        values = sorted({value for value in constants.values() if value is not None})
        if len(values) == 1:
            return _place(leaf, maps, dim + 1, depth)
        groups = [{n: m for n, m in maps.items() if constants[n] == value} for value in values]
        filters = isl.UnionSetList.alloc(leaf.get_ctx(), len(groups))
        for group in groups:
            filters = filters.add(_domain(group))
        node = leaf.insert_sequence(filters)
        for position, group in enumerate(groups):
            node = _place(node.child(position).child(0), group, dim + 1, depth).parent().parent()
        return node
    total: isl.UnionPwAff | None = None
    for m in maps.values():
        row = isl.UnionPwAff.from_pw_aff(m.as_pw_multi_aff().get_at(dim))
        total = row if total is None else total.union_add(row)
    assert total is not None, "internal: a time dimension of no statement"
    band = leaf.insert_partial_schedule(isl.MultiUnionPwAff.from_union_pw_aff(total))
    return _place(band.child(0), maps, dim + 1, depth).parent()


def _constant(m: isl.Map, dim: int) -> int | None:
    value = m.plain_get_val_if_fixed(isl.dim_type.out, dim)
    return value.to_python() if value.is_int() else None


def _domain(maps: dict[str, isl.Map]) -> isl.UnionSet:
    total: isl.UnionSet | None = None
    for m in maps.values():
        part = m.domain().to_union_set()
        total = part if total is None else total.union(part)
    assert total is not None, "internal: an empty group of statements"
    return total
