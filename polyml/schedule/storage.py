"""Contraction of local arrays: each lives under the deepest node of the tree that no value of it crosses, with just the room that one visit needs.

Proof by lifetimes: below the node all accesses of the array happen, and every flow of a value through it starts and ends in the same visit of the node (its
prefix schedule has zero distance). A visit has its own storage, and within it different elements have different places, so nothing live is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import islpy as isl

from polyml.errors import TransformError
from polyml.expressions import reads_of
from polyml.records import dataclass
from polyml.schedule.schedule import Note, Product, Schedule, Storage
from polyml.schedule.transforms import insert_mark
from polyml.schedule.tree import Kind, kind_of, mark_name, node_at, set_names
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Array, Scop
from polyml.sets.affine import Affine
from polyml.sets.callbacks import mapped_bottom_up
from polyml.sets.from_isl import integer
from polyml.sets.shapes import element_count, is_known
from polyml.sets.spaces import maps_of

__all__ = [
    "Room",
    "Traffic",
    "box_at",
    "contract_storage",
    "expanded",
    "inside_lanes",
    "interval",
    "is_indirect",
    "places_of",
    "storage_text",
    "traffic_of",
]

LARGE_ELEMENTS = 1 << 13
"""Elements above which an allocation costs more than where it lies matters."""

LINE, PAGE = 64, 4096
"""Bytes of a line; and of rows whose elements of a column are all in the same places of a cache."""

MAX_ELEMENTS = 1 << 26
"""Elements of one contracted array; more than this stays in the region's scope."""


def is_indirect(array: str, scop: Scop) -> bool:
    """Whether an access of the array has a subscript that is computed."""
    for statement in scop.statements.values():
        own = (access for access in statement.accesses if access.array == array)
        if not all(isinstance(s, Affine) for access in own for s in access.subscripts):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses and flows of one array: `accesses` { S[i] -> A[e] }, `flows` { source -> sink } with the updates of its reductions."""

    accesses: isl.UnionMap
    flows: isl.UnionMap
    statements: frozenset[str]


ANY = 1 << 62
"""The bytes of what has a symbolic size: more than there are in a thread or a block of a GPU."""

Room = Callable[[isl.ScheduleNode, int], bool]
"""Whether an array of so many bytes may live at the node."""


InLanes = Callable[[int, Array, Storage], tuple[Product, ...] | None]
"""What must hold at a call for this room to exist once per lane of so many vectors; None where it may not."""


def contract_storage(
    schedule: Schedule,
    arrays: Collection[str] | None = None,
    *,
    room: Room = lambda node, size: True,
    in_lanes: InLanes = lambda vectors, array, storage: None,
    at_lines: bool = True,
) -> Schedule:
    """The same schedule with a `Storage` and an `allocate:` mark for every local array that need not exist in full.

    Args:
        arrays: names of those to look at; None: all. room: says no where an array may not live. in_lanes: whether one may exist once per lane. at_lines: whether rows that windows
            go through begin at a line of a cache each, and rows of whole pages are a line longer.

    Raises:
        TransformError: one of them is no local array of the region.
    """
    local = [a.name for a in schedule.scop.arrays.values() if a.kind == "local"]
    if strange := sorted(set(arrays or ()) - set(local)):
        raise TransformError(
            f"{strange[0]} is no local array of {schedule.scop.name}",
            hint=f"local arrays: {', '.join(local) or 'none'}",
        )
    for array in schedule.scop.arrays.values():
        if array.name not in (local if arrays is None else arrays) or array.name in schedule.storage:
            continue
        if not is_indirect(array.name, schedule.scop):
            schedule = _contract(schedule, array, room, in_lanes, at_lines=at_lines)
    return schedule


def expanded(schedule: Schedule, arrays: Collection[str] | None = None) -> Schedule:
    """The schedule with its contracted arrays (None: all of them) in full and without their marks. Layouts of packed operands stay."""
    contracted = tuple(
        name for name, storage in schedule.storage.items() if storage.place and (arrays is None or name in arrays)
    )
    places = {schedule.storage[name].place for name in contracted}

    def unmarked(node: isl.ScheduleNode) -> isl.ScheduleNode:
        return node.delete() if kind_of(node) == Kind.mark and mark_name(node) in places else node

    if not contracted:
        return schedule
    kept = {name: storage for name, storage in schedule.storage.items() if name not in contracted}
    return replace(schedule, tree=mapped_bottom_up(schedule.tree, unmarked), storage=kept)


def storage_text(schedule: Schedule) -> list[str]:
    """A line per array whose storage is not the array in full, in the scop's order."""
    kept = (schedule.storage[name] for name in schedule.scop.arrays if name in schedule.storage)
    return [f"{s.array}: {_extents(s)} at {s.place or 'the region'}" for s in kept]


def _extents(storage: Storage) -> str:
    return (
        "x".join(map(str, storage.shape)) + (" window" if any(storage.wraps) else "") if storage.shape else "a scalar"
    )


def _contract(schedule: Schedule, array: Array, room: Room, in_lanes: InLanes, *, at_lines: bool) -> Schedule:
    traffic = traffic_of(array.name, schedule.scop, schedule.dependences)
    if traffic is None:
        return schedule
    for path in reversed(places_of(schedule.tree.get_root(), traffic)):
        worth = schedule.worth
        node = node_at(schedule.tree.get_root(), path)
        found = box_at(node, array, traffic)
        if found is not None and _gains_little(found, array) and not inside_lanes(node):
            return schedule.noted("storage", array.name, "kept in full: a visit needs nearly all of it")
        if found is None:
            continue
        if inside_lanes(node) and any(extent != 1 for extent in found.shape):
            vectors = _vectors_around(node)
            limits = None if vectors is None else in_lanes(vectors, array, found)
            if limits is None:
                continue
            worth = tuple(dict.fromkeys((*worth, *limits)))
        if not room(node, ANY if found.elements is None else array.dtype.itemsize * found.elements):
            continue
        found = _rows_apart(_rows_at_lines(found, array, schedule.scop), array) if at_lines else found
        tree = insert_mark(node, found.place).get_schedule()
        extents = "x".join(map(str, found.shape)) or "a scalar"
        note = Note("storage", array.name, f"contracted to {extents}")
        storage = {**schedule.storage, array.name: found}
        return replace(schedule, tree=tree, storage=storage, notes=(*schedule.notes, note), worth=worth)
    return schedule.noted("storage", array.name, "kept in full: its values cross every loop")


def traffic_of(array: str, scop: Scop, dependences: Dependences) -> Traffic | None:
    """What goes through the array; None when nothing does."""
    elements = isl.Set.universe(_array_space(array, scop)).to_union_set()
    reads, writes = scop.reads.intersect_range(elements), scop.may_writes.intersect_range(elements)
    accesses = reads.union(writes)
    if accesses.is_empty():
        return None
    writers = set_names(writes.domain())
    flow, reduction = (_from(writers, relation) for relation in (dependences.flow, dependences.reduction))
    if any(scop.statements[name].argument is not None for name in writers):  # which write another array as well
        flow = flow.intersect(writes.apply_range(reads.reverse()))
    return Traffic(accesses, flow.union(reduction), frozenset(set_names(accesses.domain())))


def _from(statements: Collection[str], relation: isl.UnionMap) -> isl.UnionMap:
    """What begins at one of the statements."""
    found = isl.UnionMap.empty(relation.get_space())
    for m in maps_of(relation):
        if m.get_tuple_name(isl.dim_type.in_) in statements:
            found = found.add_map(m)
    return found


def _array_space(array: str, scop: Scop) -> isl.Space:
    rank = len(scop.arrays[array].shape)
    return scop.context.get_space().set_from_params().add_dims(isl.dim_type.set, rank).set_tuple_name(
        isl.dim_type.set, array
    )  # fmt: skip


Path = tuple[int, ...]
"""Child positions from the root to a node."""


def places_of(root: isl.ScheduleNode, traffic: Traffic) -> list[Path]:
    """Child positions from the root to each node right below a band under which the array may live, outermost first."""
    found: list[Path] = []
    path: Path = (0,)
    node, flows = root.child(0), traffic.flows
    while True:
        match kind_of(node):
            case Kind.leaf:
                return found
            case Kind.band:
                partial = node.band_get_partial_schedule()
                moved = (flows.lex_lt_at_multi_union_pw_aff, flows.lex_gt_at_multi_union_pw_aff)
                if any(not of(partial).is_empty() for of in moved):
                    return found
                node, path = node.child(0), (*path, 0)
                found.append(path)
            case Kind.sequence | Kind.set:
                holding = [
                    k
                    for k in range(node.n_children())
                    if not traffic.statements.isdisjoint(set_names(node.child(k).filter_get_filter()))
                ]
                if len(holding) != 1:
                    return found
                node, path = node.child(holding[0]).child(0), (*path, holding[0], 0)
            case _:
                node, path = node.child(0), (*path, 0)


def box_at(node: isl.ScheduleNode, array: Array, traffic: Traffic) -> Storage | None:
    """The box of elements that one visit of the node touches, as a function of the visit; None when it has no constant size. A symbolic extent of the array may
    stay whole when others get smaller."""
    prefix = node.get_prefix_schedule_union_map().intersect_domain(traffic.accesses.domain())
    touched = prefix.reverse().apply_range(traffic.accesses)
    if not touched.isa_map():
        return None
    place = f"allocate:{array.name}"
    if not array.shape:
        return Storage(array=array.name, place=place, shape=(), offsets={})
    box = [interval(touched.as_map(), d) for d in range(len(array.shape))]
    bounded = next((interval for interval in box if interval is not None), None)
    if bounded is None or any(i is None and e.is_constant for i, e in zip(box, array.shape, strict=True)):
        return None
    nothing = bounded[0].sub(bounded[0])
    whole = [interval or (nothing, extent) for interval, extent in zip(box, array.shape, strict=True)]
    offsets = _offsets([first for first, _ in whole], prefix)
    if offsets is None:
        return None
    found = Storage(array=array.name, place=place, shape=tuple(size for _, size in whole), offsets=offsets)
    return None if (found.elements or 0) > MAX_ELEMENTS else found


def interval(touched: isl.Map, d: int) -> tuple[isl.Aff, int] | None:
    """`(f, size)` with f(visit) <= e[d] < f(visit) + size for every touched element e and the smallest such size; None when there is none.

    Source: isl manual, isl_map_get_range_simple_fixed_box_hull (which islpy has no results for): f is a lower bound of the simple hull.
    """
    rank, visits = touched.dim(isl.dim_type.out), touched.dim(isl.dim_type.in_)
    only = touched.project_out(isl.dim_type.out, d + 1, rank - d - 1).project_out(isl.dim_type.out, 0, d)
    pairs = only.reset_tuple_id(isl.dim_type.out).wrap().flatten()
    space = isl.LocalSpace.from_space(pairs.get_space())
    element = isl.Aff.var_on_domain(space, isl.dim_type.set, visits)
    best: tuple[isl.Aff, int] | None = None
    for constraint in pairs.simple_hull().remove_unknown_divs().get_constraints():
        factor = constraint.get_coefficient_val(isl.dim_type.set, visits)
        if not (factor.is_one() or (constraint.is_equality() and factor.is_negone())):
            continue
        bound = constraint.get_bound(isl.dim_type.set, visits)
        if bound.involves_dims(isl.dim_type.in_, visits, 1):  # in a division
            continue
        size = pairs.max_val(element.sub(bound))
        if size.is_int() and (best is None or integer(size) + 1 < best[1]):
            best = bound.drop_dims(isl.dim_type.in_, visits, 1), integer(size) + 1
    return best


def _offsets(firsts: list[isl.Aff], prefix: isl.UnionMap) -> dict[str, isl.MultiAff] | None:
    """The box's first element as a function of each statement's instances."""
    found: dict[str, isl.MultiAff] = {}
    for m in maps_of(prefix):
        visit, instances = m.as_pw_multi_aff(), m.domain()
        pieces: dict[isl.Set, isl.MultiAff] = {}
        (visit if visit.n_piece() == 1 else visit.gist(instances)).foreach_piece(pieces.__setitem__)
        if len(pieces) != 1:
            return None
        (function,) = pieces.values()
        offset = isl.AffList.alloc(m.get_ctx(), len(firsts))
        for first in firsts:
            offset = offset.add(first.pullback_multi_aff(function).gist(instances))
        space = instances.get_space().add_unnamed_tuple_ui(len(firsts))
        found[m.get_tuple_name(isl.dim_type.in_)] = isl.MultiAff.from_aff_list(space, offset)
    return dict(sorted(found.items()))


def _rows_at_lines(found: Storage, array: Array, scop: Scop) -> Storage:
    """The room with rows that begin at a line each, where windows go through them: their first taps are whole lines then, which others cross at the price of two loads."""
    *_, row = (1, *found.shape)
    line = LINE // array.dtype.itemsize
    whole = -(-row // line) * line if isinstance(row, int) else row
    padded = isinstance(row, int) and row > line and whole * array.dtype.itemsize % PAGE
    if not padded or all(extent == 1 for extent in found.shape[:-1]) or not _has_windows(array.name, scop):
        return found
    return replace(found, shape=(*found.shape[:-1], whole))


def _rows_apart(found: Storage, array: Array) -> Storage:
    """The room with rows a line longer where they would be whole pages: a register tile reads an element of each, all in one set of the cache, which has 8 to 12 lines."""
    *rows, row = (1, *found.shape)
    paged = isinstance(row, int) and row * array.dtype.itemsize % PAGE == 0
    if not paged or all(extent == 1 for extent in rows):
        return found
    return replace(found, shape=(*found.shape[:-1], row + LINE // array.dtype.itemsize))


def _has_windows(array: str, scop: Scop) -> bool:
    """Whether sums read it at places that several indices make up."""
    updates = (s for s in scop.statements.values() if s.kind == "update")
    reads = (read.subscripts[-1] for s in updates for read in reads_of(s.value) if read.tensor == array)
    return any(isinstance(last, Affine) and len(last.variables()) > 1 for last in reads)


def _gains_little(found: Storage, array: Array) -> bool:
    """Whether most of a large array would be allocated anew in every visit."""
    full = element_count(array.shape) if is_known(array.shape) else None
    return (
        full is not None
        and found.elements is not None
        and found.elements > LARGE_ELEMENTS
        and 2 * found.elements > full
    )


def inside_lanes(node: isl.ScheduleNode) -> bool:
    """Whether the node stands inside a vector or jammed loop, where each lane or copy would need storage of its own."""
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.mark and mark_name(node).partition(":")[0] in ("vector", "jam", "neighbours"):
            return True
    return False


def _vectors_around(node: isl.ScheduleNode) -> int | None:
    """How many vectors the loops around run at once; None when they are jammed as well."""
    vectors = 1
    while node.has_parent():
        node = node.parent()
        word, _, factor = mark_name(node).partition(":") if kind_of(node) == Kind.mark else ("", "", "")
        if word in ("jam", "neighbours"):
            return None
        vectors *= int(factor or 1) if word == "vector" else 1
    return vectors
