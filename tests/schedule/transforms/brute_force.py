"""Legality by enumeration: every instance, every element that it touches, every pair, at sizes where that is possible. Nothing here is shared with the proof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

import islpy as isl

from polyml.expressions import reads_of
from polyml.schedule.schedule import Schedule
from polyml.schedule.tree import Kind, kind_of, mark_name, members
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.from_isl import affine_of

Instance = tuple[str, tuple[int, ...]]
Step = tuple[str, int, Set[str]]
"""How a node of the tree orders an instance: what it is run as ("" in order), its value, and the indices that the value depends on."""


def is_legal(schedule: Schedule, sizes: dict[str, int], *, relax: bool = True) -> bool:
    """Whether the tree orders every pair of instances that touch one element, one of them writing, as the written order does."""
    scop = schedule.scop
    paths = _paths(schedule, sizes)
    return all(
        _kept(scop, first, second, paths[first], paths[second], relax) for first, second in _conflicts(scop, sizes)
    )


def _points(statement_set: isl.Set, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    for k in range(statement_set.dim(isl.dim_type.param)):
        name = statement_set.get_dim_name(isl.dim_type.param, k)
        statement_set = statement_set.fix_val(
            isl.dim_type.param, k, isl.Val.int_from_si(isl.DEFAULT_CONTEXT, sizes[str(name)])
        )
    found: list[tuple[int, ...]] = []
    rank = statement_set.dim(isl.dim_type.set)
    statement_set.foreach_point(
        lambda p: found.append(tuple(p.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(rank)))
    )
    return found


def _conflicts(scop: Scop, sizes: dict[str, int]) -> Iterator[tuple[Instance, Instance]]:
    times = _times(scop, sizes)
    touched: dict[tuple[str, tuple[int, ...]], list[tuple[tuple[int, ...], bool, Instance]]] = defaultdict(list)
    for instance, time in times.items():
        statement = scop.statements[instance[0]]
        values = {**sizes, **dict(zip(statement.indices, instance[1], strict=True))}
        accesses = [(statement.target.array, statement.target.subscripts, True)]
        accesses += [(r.tensor, r.subscripts, False) for r in reads_of(statement.value)]
        for array, subscripts, writes in accesses:
            assert all(isinstance(s, Affine) for s in subscripts)
            element = tuple(s.evaluate(values) for s in subscripts if isinstance(s, Affine))
            touched[array, element].append((time, writes, instance))
    for users in touched.values():
        users.sort()
        for k, (time, writes, first) in enumerate(users):
            for later, also, second in users[k + 1 :]:
                if (writes or also) and time < later:
                    yield first, second


def _times(scop: Scop, sizes: dict[str, int]) -> dict[Instance, tuple[int, ...]]:
    found = {}
    maps = scop.initial.get_map_list()
    for m in (maps.get_at(k) for k in range(maps.n_map())):
        name = str(m.get_tuple_name(isl.dim_type.in_))
        statement = scop.statements[name]
        function = m.as_pw_multi_aff()
        rows = [
            affine_of(function.get_at(d).get_pieces()[0][1], statement.indices) for d in range(m.dim(isl.dim_type.out))
        ]
        for point in _points(statement.domain, sizes):
            values = {**sizes, **dict(zip(statement.indices, point, strict=True))}
            found[name, point] = tuple(row.evaluate(values) for row in rows)
    return found


def _paths(schedule: Schedule, sizes: dict[str, int]) -> dict[Instance, tuple[Step, ...]]:
    every = {(s.name, p) for s in schedule.scop.statements.values() for p in _points(s.domain, sizes)}
    found: dict[Instance, tuple[Step, ...]] = {}

    def visit(node: isl.ScheduleNode, here: dict[Instance, tuple[Step, ...]], mark: str) -> None:
        match kind_of(node):
            case Kind.leaf:
                for instance, path in here.items():
                    assert instance not in found, "an instance is run twice"
                    found[instance] = path
            case Kind.mark:
                visit(node.child(0), here, mark_name(node).partition(":")[0])
            case Kind.band:
                (member,) = members(node, schedule.scop)
                by_cases = _functions(node)
                kind = mark if mark in ("parallel", "vector", "jam") else ""
                below = {}
                for (name, point), path in here.items():
                    row, indices = member.rows[name], schedule.scop.statements[name].indices
                    along = set(indices) if row is None else row.variables()
                    if row is None:
                        value = _value(by_cases[name], point, sizes)
                    else:
                        value = row.evaluate({**sizes, **dict(zip(indices, point, strict=True))})
                    below[name, point] = (*path, (kind, value, along))
                visit(node.child(0), below, "")
            case Kind.sequence:
                for k in range(node.n_children()):
                    inside = _inside(node.child(k).filter_get_filter(), sizes, here)
                    visit(node.child(k).child(0), {i: (*p, ("", k, set())) for i, p in here.items() if i in inside}, "")
            case other:
                raise AssertionError(other)

    visit(schedule.tree.get_root().child(0), dict.fromkeys(every, ()), "")
    assert set(found) == every, "an instance is left out"
    return found


def _functions(band: isl.ScheduleNode) -> dict[str, isl.PwAff]:
    parts = band.band_get_partial_schedule().get_at(0).get_pw_aff_list()
    found = (parts.get_at(k) for k in range(parts.n_pw_aff()))
    return {str(f.get_space().get_tuple_name(isl.dim_type.in_)): f for f in found}


def _value(function: isl.PwAff, point: tuple[int, ...], sizes: dict[str, int]) -> int:
    """A function by cases at a point."""
    space = function.domain().get_space()
    where = isl.Point.zero(space)
    for d in range(space.dim(isl.dim_type.param)):
        size = isl.Val.int_from_si(isl.DEFAULT_CONTEXT, sizes[str(space.get_dim_name(isl.dim_type.param, d))])
        where = where.set_coordinate_val(isl.dim_type.param, d, size)
    for d, value in enumerate(point):
        where = where.set_coordinate_val(isl.dim_type.set, d, isl.Val.int_from_si(isl.DEFAULT_CONTEXT, value))
    return function.eval(where).to_python()


def _inside(part: isl.UnionSet, sizes: dict[str, int], here: dict[Instance, tuple[Step, ...]]) -> set[Instance]:
    sets = part.get_set_list()
    found: set[Instance] = set()
    for s in (sets.get_at(k) for k in range(sets.n_set())):
        name = str(s.get_tuple_name())
        mine = [i for i in here if i[0] == name]
        if s.plain_is_universe():
            found.update(mine)
        elif mine:
            box = isl.Set(f"{{ {name}[{', '.join(f'i{d}' for d in range(len(mine[0][1])))}] : " + " and ".join(
                [f"{min(i[1][d] for i in mine)} <= i{d} <= {max(i[1][d] for i in mine)}" for d in range(len(mine[0][1]))] or ["true"]
            ) + " }")  # fmt: skip
            points = set(_points(s.intersect(box), sizes))
            found.update(i for i in mine if i[1] in points)
    return found


def _kept(
    scop: Scop, first: Instance, second: Instance, one: tuple[Step, ...], other: tuple[Step, ...], relax: bool
) -> bool:
    statement = scop.statements[first[0]]
    depth = statement.loop_depth
    relaxed = (
        relax and statement.kind == "update" and first[0] == second[0] and first[1][:depth] == second[1][:depth]
        and _own_element(statement, first, second)
    )  # fmt: skip
    for (kind, a, along), (_, b, _) in zip(one, other, strict=False):
        if a != b:
            if relaxed:
                return kind == "" or (kind == "vector" and not any(_moves(statement, index) for index in along))
            return kind == "" and a < b
    return relaxed


def _own_element(statement: Statement, first: Instance, second: Instance) -> bool:
    elements = [
        [s.evaluate(dict(zip(statement.indices, point, strict=True))) for s in statement.target.subscripts if isinstance(s, Affine)]
        for _, point in (first, second)
    ]  # fmt: skip
    return elements[0] == elements[1]


def _moves(statement: Statement, index: str) -> bool:
    return any(isinstance(s, Affine) and index in s.variables() for s in statement.target.subscripts)
