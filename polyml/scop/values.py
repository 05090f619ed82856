"""What the values in a scop's memory are good for: statements whose values nobody uses go, local arrays whose memory several unrelated values take
turns in become several arrays, a statement of which a rim is used only makes that (a copy whose inner elements are all overwritten before they are read), and a reduction starts where there are terms, or where somebody reads that there are none, if that is a box: so its start has the loops of its terms.

All follow from exact dataflow. The second is renaming by webs, as register allocators do it (Muchnick, "Advanced compiler design and implementation", 1997,
section 16.3.3), for arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.disjoint_sets import DisjointSets
from polyml.expressions import Read, map_reads, reads_of
from polyml.new_names import derived, underscored
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.spaces import maps_of

__all__ = ["used_values"]

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out

RIM = 4
"""Pieces of a rim at most, each a statement of its own, and how many times as many instances the whole has at least."""

Role = tuple[str, bool]
"""A statement's use of an array: its name, and whether it writes."""

Link = tuple[str, str]
"""Two statements of which the second reads what the first writes."""


def used_values(scop: Scop, values: isl.UnionMap) -> Scop:
    """The scop without statements that make no value which is used, with an array for each web of a local array's values, and with rims for whole statements; the same object when
    there is nothing to change. `values`: where they go (Dependences.values). Its dependences are to be computed anew: anti and output dependences may have gone through what is not there any more."""
    links = frozenset((s, t) for s, t in _pairs(values) if s != t)
    return _with_needed_inits(_with_rims(_with_webs(_without_dead(scop, links), values, links), values), values)


# -- dead statements --------------------------------------------------------------------------------------------------------------


def _without_dead(scop: Scop, links: Set[Link]) -> Scop:
    sources: dict[str, set[str]] = {}
    for source, sink in links:
        sources.setdefault(sink, set()).add(source)
    feeding = {source for source, _ in links}
    pending = [
        n for n in scop.statements if _is_seen_outside(n, scop) and (n in feeding or not _is_overwritten(n, scop))
    ]
    live: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in live:
            live.add(name)
            pending += sources.get(name, ())
    if not live or len(live) == len(scop.statements):
        return scop
    return rebuilt(scop, {name: statement for name, statement in scop.statements.items() if name in live}, scop.arrays)


def _is_seen_outside(name: str, scop: Scop) -> bool:
    return any(scop.arrays[access.array].kind != "local" for access in scop.statements[name].written)


def _is_overwritten(name: str, scop: Scop) -> bool:
    """Whether all that the statement writes is certainly written again later."""
    when = _first_time(name, scop)
    later = {n for n in scop.statements if when is not None and (_first_time(n, scop) or 0) > when}
    if not later:
        return False
    written = scop.may_writes.intersect_domain(scop.statements[name].domain.to_union_set()).range()
    again = isl.UnionSet.empty(scop.context.get_space())
    for other in later:
        again = again.union(scop.must_writes.intersect_domain(scop.statements[other].domain.to_union_set()).range())
    return written.is_subset(again)


def _first_time(name: str, scop: Scop) -> int | None:
    """The statement's place among the region's ops; None for one without instances."""
    for piece in maps_of(scop.initial.intersect_domain(scop.statements[name].domain.to_union_set())):
        value = piece.plain_get_val_if_fixed(_OUT, 0)
        return value.to_python() if value.is_int() else None
    return None


# -- webs -------------------------------------------------------------------------------------------------------------------------


def _with_webs(scop: Scop, values: isl.UnionMap, links: Set[Link]) -> Scop:
    names: dict[tuple[str, Role], str] = {}
    arrays = dict(scop.arrays)
    for array in scop.arrays.values():
        if array.kind != "local":
            continue
        for number, web in enumerate(list(_webs(array, scop, values, links))[1:], start=1):
            name = underscored(f"{array.name}_web{number}", arrays)
            arrays[name] = replace(array, name=name)
            names |= {(array.name, role): name for role in web}
    if not names:
        return scop
    return rebuilt(scop, {name: _with_names(s, names) for name, s in scop.statements.items()}, arrays)


def _webs(array: Array, scop: Scop, values: isl.UnionMap, links: Set[Link]) -> Iterator[frozenset[Role]]:
    """The uses of the array in groups that no value goes between, in written order."""
    writers = [n for n, s in scop.statements.items() if array.name in _written(s)]
    readers = [n for n, s in scop.statements.items() if array.name in _read(s)]
    webs = DisjointSets[Role]([*((n, True) for n in writers), *((n, False) for n in readers)])
    for name in writers:
        if scop.statements[name].kind == "update":
            webs.join((name, False), (name, True))
    for source in writers:
        for sink in readers:
            joined = webs.root((source, True)) == webs.root((sink, False))
            linked = source == sink or (source, sink) in links
            if not joined and linked and _passes(array.name, source, sink, scop, values):
                webs.join((sink, False), (source, True))
    # What is read but never written here is no value of its own.
    yield from (frozenset(group) for group in webs.groups() if any(writes for _, writes in group))


def _passes(array: str, source: str, sink: str, scop: Scop, values: isl.UnionMap) -> bool:
    """Whether a value of the array goes from one statement to the other."""
    written = _of(array, scop.may_writes.intersect_domain(scop.statements[source].domain.to_union_set()))
    read = _of(array, scop.reads.intersect_domain(scop.statements[sink].domain.to_union_set()))
    return not values.intersect(written.apply_range(read.reverse())).is_empty()


# -- rims -------------------------------------------------------------------------------------------------------------------------


def _with_rims(scop: Scop, values: isl.UnionMap) -> Scop:
    if scop.sizes:
        return scop
    statements: dict[str, Statement] = {}
    initial = scop.initial
    for name, statement in scop.statements.items():
        pieces = _rim(statement, scop, values)
        if pieces is None:
            statements[name] = statement
            continue
        for number, piece in enumerate(pieces, start=1):
            fresh = derived(name, f"rim{number}")
            statements[fresh] = replace(statement, name=fresh, domain=piece.set_tuple_name(fresh))
            same = isl.Map.identity(isl.Space.map_from_set(piece.get_space())).set_tuple_name(_IN, fresh)
            initial = initial.union(scop.initial.apply_domain(same.reverse().to_union_map()))
    if statements.keys() == scop.statements.keys():
        return scop
    return rebuilt(replace(scop, initial=initial), statements, scop.arrays)


def _rim(statement: Statement, scop: Scop, values: isl.UnionMap) -> list[isl.Set] | None:
    """The few boxes of instances whose values are used, where these are a small part; None where it is to stay."""
    array = statement.target.array
    overwritten = any(s is not statement and s.target.array == array for s in scop.statements.values())
    if scop.arrays[array].kind != "local" or statement.kind != "assign" or statement.loop_depth or not overwritten:
        return None
    used = values.domain().intersect(statement.domain.to_union_set())
    if used.is_empty() or not statement.domain.is_box():
        return None
    pieces = [piece.to_set() for piece in isl.Set.from_union_set(used).coalesce().make_disjoint().get_basic_sets()]
    if len(pieces) > RIM or not all(piece.is_box() for piece in pieces):
        return None
    small = RIM * sum(map(_instances, pieces)) <= _instances(statement.domain)
    return pieces if small else None


# -- starts of reductions -----------------------------------------------------------------------------------------------------------


def _with_needed_inits(scop: Scop, values: isl.UnionMap) -> Scop:
    statements = dict(scop.statements)
    for name, statement in scop.statements.items():
        if statement.kind != "init" or scop.arrays[statement.target.array].kind != "local":
            continue
        used = values.domain().intersect(statement.domain.to_union_set())
        if used.is_empty():
            continue
        needed = isl.Set.from_union_set(used).coalesce()
        if needed.is_box() and not statement.domain.is_subset(needed):
            statements[name] = replace(statement, domain=needed)
    changed = any(statements[name] is not s for name, s in scop.statements.items())
    return rebuilt(scop, statements, scop.arrays) if changed else scop


def _instances(box: isl.Set) -> int:
    dimensions = range(box.dim(isl.dim_type.set))
    return prod(box.dim_max_val(d).to_python() - box.dim_min_val(d).to_python() + 1 for d in dimensions)


def _of(array: str, accesses: isl.UnionMap) -> isl.UnionMap:
    found = isl.UnionMap.empty(accesses.get_space())
    for piece in maps_of(accesses):
        if piece.get_tuple_name(_OUT) == array:
            found = found.union(piece.to_union_map())
    return found


def _written(statement: Statement) -> set[str]:
    return {access.array for access in statement.written}


def _read(statement: Statement) -> set[str]:
    found = {read.tensor for read in reads_of(statement.value)}
    for access in statement.written:
        found |= {r.tensor for s in access.subscripts if not isinstance(s, Affine) for r in reads_of(s)}
    return found | (_written(statement) if statement.kind == "update" else set())


def _with_names(statement: Statement, names: Mapping[tuple[str, Role], str]) -> Statement:
    def read(old: Read) -> Read:
        name = names.get((old.tensor, (statement.name, False)), old.tensor)
        return old if name == old.tensor else Read(name, old.subscripts, old.dtype)

    def written(old: Access | None) -> Access | None:
        if old is None:
            return None
        subscripts = tuple(s if isinstance(s, Affine) else map_reads(s, read) for s in old.subscripts)
        return Access(names.get((old.array, (statement.name, True)), old.array), subscripts)

    target = written(statement.target)
    assert target is not None, "internal: a statement that writes nothing"
    return replace(
        statement, target=target, argument=written(statement.argument), value=map_reads(statement.value, read)
    )


def _pairs(relation: isl.UnionMap) -> Iterable[tuple[str, str]]:
    return [(str(m.get_tuple_name(_IN)), str(m.get_tuple_name(_OUT))) for m in maps_of(relation)]
