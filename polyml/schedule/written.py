"""Scops with other statements: those whose statements were written one after the other, and any with some more beside those that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import islpy as isl

from polyml.scop.relations import rebuilt
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import affine
from polyml.sets.from_isl import integer
from polyml.sets.linear_maps import map_to
from polyml.sets.spaces import maps_of, parameters_text

__all__ = ["in_order", "with_inserted", "with_statements"]


def in_order(scop: Scop) -> bool:
    """Whether each statement's instances were all written before those of the next, without loops around."""
    for position, s in enumerate(scop.statements.values()):
        times = scop.initial.intersect_domain(s.domain.to_union_set()).range()
        if s.loop_depth or times.is_empty():
            return False
        low, high = times.as_set().dim_min_val(0), times.as_set().dim_max_val(0)
        if not (low.is_int() and high.is_int()) or integer(low) != position or integer(high) != position:
            return False
    return True


def with_statements(
    scop: Scop,
    statements: Mapping[str, Statement],
    arrays: Mapping[str, Array],
    *,
    loops: tuple[str, ...] = (),
    ahead: Set[str] = frozenset(),
) -> Scop:
    """The scop (`in_order`) with these statements, in their order. loops: the sequential loops around all of them, in whose iterations that is their order; those of `ahead` are not in the loops, but right ahead of them."""
    inside = {name: s.indices if name in ahead else s.indices[len(loops) :] for name, s in statements.items()}
    depth = max(map(len, inside.values()))
    around = [affine(place) for loop in loops for place in (0, loop)]
    before = [affine(-1), *(affine(0) for _ in around[1:])]
    initial = isl.UnionMap.empty(scop.context.get_space())
    for position, (name, s) in enumerate(statements.items()):
        own = inside[name]
        places = before if name in ahead else around
        inner = (affine(position), *map(affine, own), *[affine(0)] * (depth - len(own)))
        time = map_to(s.name, s.indices, "", (*places, *inner), scop.sizes)
        initial = initial.union(time.intersect_domain(s.domain).to_union_map())
    return replace(rebuilt(scop, statements, arrays), initial=initial)


def with_inserted(
    scop: Scop,
    changed: Mapping[str, Statement],
    arrays: Mapping[str, Array],
    *,
    beside: str,
    ahead: Sequence[Statement],
    behind: Sequence[Statement],
) -> Scop | None:
    """The scop with statements replaced by those of their names, and others right ahead of and behind one, in its sequential loops; None where the written order does not tell
    where that is.

    Args:
        changed: their domains may be larger. ahead, behind: in order; their leading indices are the loops.
    """
    depth = scop.statements[beside].loop_depth
    at = 2 * depth + 1  # a position and a loop's value by turns, and the position in the innermost loop
    place = _place(scop, beside, depth, at)
    if place is None:
        return None
    steps = {s.name: step for step, s in enumerate(ahead, -len(ahead))} | {s.name: k for k, s in enumerate(behind, 1)}
    order: dict[str, Statement] = {}
    for name, s in scop.statements.items():
        around = (ahead, behind) if name == beside else ((), ())
        order |= {s.name: s for s in around[0]} | {name: changed.get(name, s)} | {s.name: s for s in around[1]}
    old = scop.initial.range().as_set().dim(isl.dim_type.set)
    rank = max(old + 1, *(at + 1 + len(order[name].indices) - depth for name in steps))
    initial = isl.UnionMap.empty(scop.context.get_space())
    for time in maps_of(scop.initial):
        name = time.get_tuple_name(isl.dim_type.in_)
        time = _padded(_with_zero(time, at), rank)
        if not order[name].domain.is_equal(scop.statements[name].domain):
            own = _place(scop, name, depth, at)
            larger = None if own is None else _time(scop, order[name], own, 0, rank)
            if larger is None or not larger.intersect_domain(scop.statements[name].domain).is_equal(time):
                return None
            time = larger
        initial = initial.union(time.to_union_map())
    for name, step in steps.items():
        initial = initial.union(_time(scop, order[name], place, step, rank).to_union_map())
    return replace(rebuilt(scop, order, arrays), initial=initial)


def _time(scop: Scop, s: Statement, place: isl.Map, step: int, rank: int) -> isl.Map:
    """`{ S[i] -> [place, step, i behind the loops] }`."""
    depth = place.dim(isl.dim_type.in_)
    space = f"{parameters_text(scop.sizes)}{{ {s.name}[{', '.join(s.indices)}] -> "
    loops = isl.Map(f"{space}[{', '.join(s.indices[:depth])}] }}").apply_range(place)
    time = loops.flat_range_product(isl.Map(f"{space}[{', '.join((str(step), *s.indices[depth:]))}] }}"))
    return _padded(time.intersect_domain(s.domain), rank)


def _place(scop: Scop, name: str, depth: int, at: int) -> isl.Map | None:
    """`{ [loops] -> [the first `at` times] }` of a statement; None where another one shares these."""
    s = scop.statements[name]
    times = scop.initial.intersect_domain(s.domain.to_union_set())
    if times.is_empty() or times.range().as_set().dim(isl.dim_type.set) < at:
        return None
    mine = times.as_map()
    mine = mine.project_out(isl.dim_type.out, at, mine.dim(isl.dim_type.out) - at)
    others = scop.initial.subtract_domain(s.domain.to_union_set()).range()
    if not others.is_empty():
        reach = others.as_set()
        if not reach.project_out(isl.dim_type.set, at, reach.dim(isl.dim_type.set) - at).is_disjoint(mine.range()):
            return None
    place = mine.project_out(isl.dim_type.in_, depth, len(s.indices) - depth).reset_tuple_id(isl.dim_type.in_)
    return place if place.is_single_valued() else None


def _with_zero(time: isl.Map, at: int) -> isl.Map:
    """The times with one more dimension, which is 0."""
    zero = isl.Val.int_from_si(time.get_ctx(), 0)
    return time.insert_dims(isl.dim_type.out, at, 1).fix_val(isl.dim_type.out, at, zero)


def _padded(time: isl.Map, rank: int) -> isl.Map:
    while time.dim(isl.dim_type.out) < rank:
        time = _with_zero(time, time.dim(isl.dim_type.out))
    return time
