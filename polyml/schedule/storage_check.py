"""The proof of storage maps on their own, apart from how they were made: decided by isl, for tests and for `verify`."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.schedule.gpu.owners import threads_of
from polyml.schedule.schedule import Schedule, Storage
from polyml.schedule.storage import Traffic, traffic_of
from polyml.schedule.tree import Kind, kind_of, mark_name, nodes
from polyml.schedule.window import window_fault
from polyml.sets.affine import affine
from polyml.sets.spaces import maps_of

__all__ = ["storage_faults"]

_In, _Out = isl.dim_type.in_, isl.dim_type.out


def storage_faults(schedule: Schedule, *, only: str | None = None) -> list[str]:
    """What is wrong with the storage maps; empty when all is well.

    An array must be accessed below its mark only, no value may go from one visit of the mark to another, every access must stay in the storage, and within
    a visit (a thread's, of private storage) different elements must have different places, the same from all statements; in a sliding window, elements that are needed at the same time.
    """
    faults: list[str] = []
    root = schedule.tree.get_root()
    places: dict[str, list[isl.ScheduleNode]] = {"": [root.child(0)]}
    for node in nodes(root):
        if kind_of(node) == Kind.mark:
            places.setdefault(mark_name(node), []).append(node)
    for storage in schedule.storage.values():
        if only not in (None, storage.array):
            continue
        traffic = traffic_of(storage.array, schedule.scop, schedule.dependences)
        found = places.get(storage.place, [])
        if traffic is None or not found:
            faults.append(f"{storage.array}: no mark {storage.place}")
            continue
        known = schedule.scop.context
        accesses, flows = (relation.intersect_params(known) for relation in (traffic.accesses, traffic.flows))
        traffic = replace(traffic, accesses=accesses, flows=flows)
        if accesses.is_empty():  # statements that no size in question lets run
            continue
        if not traffic.accesses.domain().is_subset(_reach(found)):
            faults.append(f"{storage.array}: accessed outside its place")
            continue
        # Storage of its own below each mark of that name.
        for node in found:
            own = _below(traffic, node) if len(found) > 1 else traffic
            faults += [f"{storage.array}: {fault}" for fault in _faults(storage, own, node)]
            inside = node.child(0) if storage.place else node
            if any(storage.wraps) and (clash := window_fault(storage, inside, schedule, own, _places(storage, own))):
                faults.append(f"{storage.array}: {clash.source} and {clash.sink} {clash.what}")
    return faults


def _reach(found: list[isl.ScheduleNode]) -> isl.UnionSet:
    total = found[0].get_domain()
    for node in found[1:]:
        total = total.union(node.get_domain())
    return total


def _below(traffic: Traffic, node: isl.ScheduleNode) -> Traffic:
    """What goes through the array below the node, flows in and out of there included."""
    reach = node.get_domain()
    flows = traffic.flows.intersect_domain(reach).union(traffic.flows.intersect_range(reach))
    return replace(traffic, accesses=traffic.accesses.intersect_domain(reach), flows=flows)


def _faults(storage: Storage, traffic: Traffic, node: isl.ScheduleNode) -> list[str]:
    found = []
    visits = node.get_prefix_schedule_union_map()
    if storage.private:  # each thread's visit is its own
        visits = visits.flat_range_product(threads_of(node))
    if not _stay(traffic.flows, visits):
        found.append("a value leaves its visit")
    extents = [affine(extent) for extent in storage.shape]
    spot = [f"o{d}'" for d in range(len(extents))]
    room = " and ".join(f"0 <= {o} < {n.isl_text()}" for o, n in zip(spot, extents, strict=True)) or "true"
    names = sorted(set().union(*(extent.variables() for extent in extents)))
    inside = isl.Set(f"[{', '.join(names)}] -> {{ [{', '.join(spot)}] : {room} }}")
    # { [visit, element] -> place }
    total: isl.Map | None = None
    spots = _spots(storage, traffic)
    for name, (instance, element, place) in spots.items():
        if not place.range().is_subset(inside):
            found.append(f"{name} leaves the storage")
        visit = next(m for m in maps_of(visits) if m.get_tuple_name(_In) == name)
        where = instance.apply_range(visit).range_product(element).reverse().apply_range(place)
        total = where if total is None else total.union(where)
    assert total is not None, "internal: storage of an array that nothing accesses"
    if not total.is_single_valued():
        found.append("statements disagree on the place of an element")
    if not any(storage.wraps) and not _distinct(total):
        found.append("two elements share a place")
    return found


def _stay(flows: isl.UnionMap, visits: isl.UnionMap) -> bool:
    """Whether each value is written and read in one visit. Flows are taken to visits: all pairs of instances that have a visit in common are many more."""
    ends = flows.domain().union(flows.range())
    if not ends.is_subset(visits.domain()):
        return False
    return bool(flows.apply_domain(visits).apply_range(visits).is_subset(visits.range().identity()))


def _spots(storage: Storage, traffic: Traffic) -> dict[str, tuple[isl.Map, isl.Map, isl.Map]]:
    """Per statement, of every pair [instance -> element]: the instance, the element, the place."""
    found = {}
    for accesses in maps_of(traffic.accesses):
        name = accesses.get_tuple_name(_In)
        instance, element = accesses.domain_map(), accesses.range_map().reset_tuple_id(_Out)
        place = element
        if name in storage.offsets:
            offset = storage.offsets[name].reset_tuple_id(_Out).to_pw_multi_aff().as_map()
            place = element.sum(instance.apply_range(offset).neg())
        if any(storage.wraps):
            place = place.apply_range(_wrapping(storage))
        found[name] = instance, element, place
    return found


def _places(storage: Storage, traffic: Traffic) -> isl.Map | None:
    """`{ A[e] -> place }`, where offsets move the elements of a window (None: they do not)."""
    if not storage.offsets:
        return None
    total: isl.Map | None = None
    for _, element, place in _spots(storage, traffic).values():
        own = element.set_tuple_name(_Out, storage.array).reverse().apply_range(place)
        total = own if total is None else total.union(own)
    return total


def _wrapping(storage: Storage) -> isl.Map:
    """`{ [o] -> [o mod extent] }`, in the dimensions that wrap."""
    names = [f"o{d}" for d in range(len(storage.shape))]
    places = [
        f"{o} mod {extent}" if wraps else o
        for o, extent, wraps in zip(names, storage.shape, storage.wraps, strict=True)
    ]
    return isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(places)}] }}")


def _distinct(total: isl.Map) -> bool:
    """{ [visit, element] -> place }: within a visit no place holds two elements."""
    visits = total.domain().unwrap().domain_map()  # { [visit, element] -> visit }
    return visits.range_product(total).is_injective()
