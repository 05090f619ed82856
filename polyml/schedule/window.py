"""Sliding windows: local arrays whose elements take turns in fewer places, chosen by modulo maps.

Two elements conflict when one is written while the other still waits for a read. A window of extents m is right when no two conflicting elements are equal
modulo m; the smallest extents come dimension by dimension from the largest distance of elements in conflict. What runs at once in a parallel, vector or
jammed loop may overlap in any way, and counts so.

Source: Lefebvre and Feautrier, "Automatic storage management for parallel programs" (Parallel Computing 1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.errors import IllegalScheduleError, TransformError, Violation
from polyml.records import dataclass
from polyml.schedule.legality import instance_text
from polyml.schedule.schedule import Note, Schedule, Storage
from polyml.schedule.storage import Traffic, expanded, inside_lanes, is_indirect, places_of, traffic_of
from polyml.schedule.transforms.loops import whole_number
from polyml.schedule.transforms.nodes import insert_mark
from polyml.schedule.tree import Kind, band_rows, kind_of, mark_name, node_at
from polyml.scop.scop import Array
from polyml.sets.affine import Extent, extent_of

__all__ = ["slide_rows", "slide_storage", "window_at", "window_fault"]

_RUNS_TOGETHER = ("parallel", "pipelined", "vector", "jam", "neighbours")


def slide_storage(schedule: Schedule, array: str, sizes: Sequence[int | None] | None = None) -> Schedule:
    """The local array in a window that its elements go through in turns.

    Args:
        sizes: places per dimension, None for all of one; None: as few as the lifetimes allow.

    Raises:
        TransformError: no local array, computed subscripts, or lifetimes without a constant bound.
        IllegalScheduleError: the sizes are too small; with the two instances that would share a place.
    """
    if sizes is not None:
        sizes = [None if size is None else whole_number(size, f"an extent of {array}'s window") for size in sizes]
    found = schedule.scop.arrays.get(array)
    traffic = None if found is None else traffic_of(array, schedule.scop, schedule.dependences)
    if found is None or traffic is None or found.kind != "local" or is_indirect(array, schedule.scop):
        local = [a.name for a in schedule.scop.arrays.values() if a.kind == "local"]
        raise TransformError(f"{array} is no local array with affine subscripts", hint=f"local: {', '.join(local)}")
    root = schedule.tree.get_root()
    for path in [*reversed(places_of(root, traffic)), (0,)]:
        node = node_at(root, path)
        if inside_lanes(node):
            continue
        storage = window_at(node, found, schedule, traffic, sizes)
        if storage is None:
            continue
        tree = insert_mark(node, storage.place).get_schedule()
        extents = "x".join(map(str, storage.shape))
        note = Note("storage", array, f"a sliding window of {extents}")
        return replace(schedule, tree=tree, storage={**schedule.storage, array: storage}, notes=(*schedule.notes, note))
    raise TransformError(f"the lifetimes of {array} have no constant bound")


def slide_rows(schedule: Schedule, near: int) -> Schedule:
    """The schedule with windows for local arrays that take more than `near` bytes, where their rows, or planes of them, take turns in less than half of that."""
    for array in schedule.scop.arrays.values():
        storage = schedule.storage.get(array.name)
        if array.kind != "local" or len(array.shape) < 2 or not _takes_more(array, storage, near):
            continue
        whole = expanded(schedule, (array.name,))
        try:
            fewest = slide_storage(whole, array.name).storage[array.name]
            # Elements of a row keep their places beside each other.
            rows = [extent if isinstance(extent, int) else None for extent in fewest.shape[:-1]]
            made = slide_storage(whole, array.name, [*rows, None])
        except (TransformError, IllegalScheduleError):
            continue
        if not _takes_more(array, fewest, near // 2):
            schedule = made
    return schedule


def _takes_more(array: Array, storage: Storage | None, least: int) -> bool:
    """Whether the array takes more bytes: rows of symbolic length count as one element each, and a symbolic number of rows as more."""
    if storage is not None:
        extents = [e if isinstance(e, int) else None for e in storage.shape]
    else:
        extents = [e.constant if e.is_constant else None for e in array.shape]
    if None in extents[:-1]:
        return True
    return array.dtype.itemsize * prod(e for e in extents if e is not None) > least


def window_fault(
    storage: Storage, node: isl.ScheduleNode, schedule: Schedule, traffic: Traffic, places: isl.Map | None = None
) -> Violation | None:
    """Two instances that would share a place of the window while the first one's value is still needed; None when there are none.

    Args:
        node: right below the mark where the array lives. places: `{ A[e] -> place }` where these are more than the element modulo the extents.
    """
    shared = _shared_places(storage, schedule.scop.arrays[storage.array])
    if places is not None:
        shared = places.apply_range(places.reverse())
        shared = shared.subtract(isl.Map.identity(shared.get_space()))
    clashes = _Lifetimes(node, schedule, traffic).clashes(shared)
    if clashes.is_empty():
        return None
    pair = clashes.sample()
    first, second = (instance_text(side.sample_point(), schedule.scop) for side in (pair.domain(), pair.range()))
    return Violation(
        "lifetime", first, second, f"share a place of {storage.array} while the first one's value is needed"
    )


def window_at(
    node: isl.ScheduleNode, array: Array, schedule: Schedule, traffic: Traffic, sizes: Sequence[int | None] | None
) -> Storage | None:
    """The array's window in a visit of the node, with these extents (None: the array's) or the smallest; None when lifetimes have no constant bound."""
    place = f"allocate:{array.name}:window"
    extents = [extent.constant if extent.is_constant else None for extent in array.shape]
    found = sizes if sizes is not None else _Lifetimes(node, schedule, traffic).extents(extents)
    if sizes is None and any(size is None or size < 1 for size in found):
        return None
    if len(found) != len(extents) or any(size is not None and size < 1 for size in found):
        raise TransformError(f"{array.name} needs {len(extents)} extents of 1 or more")
    shape: list[Extent] = []
    for size, extent, whole in zip(found, extents, array.shape, strict=True):
        shape.append(extent_of(whole) if size is None else size if extent is None else min(size, extent))
    wraps = tuple(
        size is not None and (extent is None or size < extent) for size, extent in zip(found, extents, strict=True)
    )
    storage = Storage(array=array.name, place=place, shape=tuple(shape), offsets={}, wraps=wraps)
    if sizes is not None and (fault := window_fault(storage, node, schedule, traffic)) is not None:
        extent_text = "x".join(map(str, shape))
        raise IllegalScheduleError(
            f"a window of {extent_text} is too small for {array.name}: {fault.source} and {fault.sink} {fault.what}",
            violation=fault,
        )
    return storage


def _shared_places(storage: Storage, array: Array) -> isl.Map:
    """`{ A[e] -> A[e'] }` of different elements with one place."""
    rank = len(storage.shape)
    e, f = [f"e{d}" for d in range(rank)], [f"f{d}" for d in range(rank)]
    same = [
        f"(e{d} - f{d}) mod {size} = 0" if wraps else f"e{d} = f{d}"
        for d, (size, wraps) in enumerate(zip(storage.shape, storage.wraps, strict=True))
    ]
    pairs = isl.Map(
        f"{{ {array.name}[{', '.join(e)}] -> {array.name}[{', '.join(f)}] : {' and '.join(same) or 'true'} }}"
    )
    return pairs.subtract(isl.Map.identity(pairs.get_space()))


@dataclass(frozen=True, slots=True, init=False)
class _Lifetimes:
    """The lifetimes of an array's elements within a visit of a node. overlaps: `{ w -> w' }`, w' may write while what w wrote is still to be read.
    writes: `{ S[i] -> A[e] }`."""

    overlaps: isl.UnionMap
    writes: isl.UnionMap

    def __init__(self, node: isl.ScheduleNode, schedule: Schedule, traffic: Traffic) -> None:
        writes = schedule.scop.may_writes.intersect_range(traffic.accesses.range())
        writers, touching = writes.domain(), traffic.accesses.domain()
        visits = node.get_prefix_schedule_union_map().intersect_domain(touching)
        together = visits.apply_range(visits.reverse())
        before = _surely_before(node, touching).coalesce()
        done = before.union(touching.identity())
        late = together.intersect_range(writers).subtract(done)  # { r -> w' }: w' may come before the read
        fresh = together.intersect_domain(writers).intersect_range(writers).subtract(before.reverse())
        # Hundreds of pieces may be a few: what is composed of them has the product of their numbers.
        overlaps = traffic.flows.apply_range(late.coalesce()).coalesce().intersect(fresh.coalesce()).coalesce()
        object.__setattr__(self, "overlaps", overlaps)
        object.__setattr__(self, "writes", writes)

    def clashes(self, shared: isl.Map) -> isl.UnionMap:
        """The overlapping pairs that write elements with one place."""
        pairs = self.writes.apply_range(shared.to_union_map()).apply_range(self.writes.reverse())
        return self.overlaps.intersect(pairs)

    def extents(self, full: Sequence[int | None]) -> list[int | None]:
        """The smallest window, dimension by dimension; None where it has no constant bound."""
        conflicts = self.writes.reverse().apply_range(self.overlaps).apply_range(self.writes)
        if conflicts.is_empty():
            return [1] * len(full)
        deltas = conflicts.as_map().deltas()
        deltas = deltas.union(deltas.neg())
        found: list[int | None] = []
        for d, extent in enumerate(full):
            if deltas.is_empty():
                found.append(1)
                continue
            largest = deltas.max_val(
                isl.Aff.var_on_domain(isl.LocalSpace.from_space(deltas.get_space()), isl.dim_type.set, d)
            )
            found.append(largest.to_python() + 1 if largest.is_int() else extent)
            deltas = deltas.fix_val(isl.dim_type.set, d, isl.Val.zero(deltas.get_ctx()))
        return found


def _surely_before(node: isl.ScheduleNode, instances: isl.UnionSet) -> isl.UnionMap:
    """`{ a -> b }`: within one visit of the node, a is done before b starts, whatever the threads and lanes do."""
    columns = _columns(node, instances, False)
    if not columns:
        return isl.UnionMap.empty(instances.get_space())
    rows = isl.UnionPwAffList.alloc(node.get_ctx(), len(columns))
    for row, _ in columns:
        rows = rows.add(row)
    space = isl.Space.set_alloc(node.get_ctx(), 0, len(columns)).align_params(columns[0][0].get_space())
    times = isl.UnionMap.from_multi_union_pw_aff(isl.MultiUnionPwAff.from_union_pw_aff_list(space, rows))
    times = times.intersect_domain(instances)
    order = isl.UnionMap.empty(instances.get_space())
    s, t = [f"s{d}" for d in range(len(columns))], [f"t{d}" for d in range(len(columns))]
    for k, (_, together) in enumerate(columns):
        if not together:
            equal = "".join(f"s{d} = t{d} and " for d in range(k))
            order = order.union(isl.UnionMap(f"{{ [{', '.join(s)}] -> [{', '.join(t)}] : {equal}s{k} < t{k} }}"))
    return times.apply_range(order).apply_range(times.reverse())


_Columns = list[tuple[isl.UnionPwAff, bool]]
"""Times, component by component: its value, and whether instances that differ in it run at once."""


def _columns(node: isl.ScheduleNode, instances: isl.UnionSet, together: bool) -> _Columns:
    match kind_of(node):
        case Kind.leaf:
            return []
        case Kind.mark:
            kind = mark_name(node).partition(":")[0]
            return _columns(node.child(0), instances, kind in _RUNS_TOGETHER)
        case Kind.band:
            own = [row.intersect_domain(instances) for row in band_rows(node)]
            return [*((row, together) for row in own), *_columns(node.child(0), instances, False)]
        case Kind.sequence | Kind.set:
            return _sequence_columns(node, instances)
        case _:
            return _columns(node.child(0), instances, False)


def _sequence_columns(node: isl.ScheduleNode, instances: isl.UnionSet) -> _Columns:
    """The position in the sequence, and then the times in it. Children share a column of time where in both of them instances run at once that differ in it, or in neither."""
    shared: list[tuple[bool, list[tuple[int, isl.UnionPwAff]]]] = []
    parts: list[isl.UnionSet] = []
    for k in range(node.n_children()):
        inside = instances.intersect(node.child(k).filter_get_filter())
        if inside.is_empty():
            continue
        place = -1
        number = _constant(inside, k)
        for row, together in [(number, False), *_columns(node.child(k).child(0), inside, False)]:
            place = next((p for p in range(place + 1, len(shared)) if shared[p][0] == together), len(shared))
            if place == len(shared):
                shared.append((together, []))
            shared[place][1].append((len(parts), row))
        parts.append(inside)
    merged: _Columns = []
    for together, rows in shared:
        own = dict(rows)
        total = isl.UnionPwAff.empty_space(instances.get_space())
        for part, inside in enumerate(parts):
            total = total.union_add(own.get(part) or _constant(inside, 0))
        merged.append((total, together))
    return merged


def _constant(domain: isl.UnionSet, value: int) -> isl.UnionPwAff:
    return isl.UnionPwAff.val_on_domain(domain, isl.Val.int_from_si(domain.get_ctx(), value))
