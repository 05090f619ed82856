"""Arrays laid out anew for as long as a region's loops run: local ones stand in for them, filled ahead of the loops and written back behind.

A transformation of the Scop, before scheduling. What a layout is good for is the business of who asks for it (layouts/turned_columns.py, layouts/padded_rows.py, layouts/row_pieces.py); here are the parts that they have in common.
Only what is read from before the region is copied ahead, and only what the region writes is copied back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, map_reads
from polyml.new_names import derived
from polyml.records import dataclass
from polyml.schedule.copies import universe
from polyml.scop.dependences import Dependences, values_of
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of
from polyml.sets.shapes import is_known
from polyml.sets.spaces import parameters_text

__all__ = [
    "Layout",
    "Relaid",
    "affected_elements",
    "extents_of",
    "line_rows",
    "redirected",
    "relaid",
    "trips_of",
]

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Relaid:
    """scop: with the local arrays. ahead, behind: the copies before the loops and after them. arrays: that these copy, by both names."""

    scop: Scop
    ahead: tuple[str, ...]
    behind: tuple[str, ...]
    arrays: tuple[str, ...]

    def dependences(self, before: Dependences, scop: Scop) -> Dependences:
        """Its dependences from those of `scop`, the loops alone, on the arrays as they were or on local ones that come from outside: between the loops' statements nothing changes.
        (What an element is copied to, and what is written there first, does without dataflow.)"""
        moved = isl.UnionSet("{ }")
        for name in self.arrays:
            moved = moved.union(universe(scop, name)) if name in scop.arrays else moved
        live_in, live_out = before.live_in.intersect_range(moved), before.live_out.intersect_range(moved)
        live_in = live_in.union(scop.reads.intersect_range(moved.subtract(_written(scop))))
        reads, writes = self.scop.reads, self.scop.must_writes
        into, out = ((r.intersect_domain(self._instances(self.ahead))) for r in (reads, writes))
        back, home = ((r.intersect_domain(self._instances(self.behind))) for r in (reads, writes))
        first = into.union(out).intersect_range(moved)
        last = back.union(home).intersect_range(moved)
        flow = first.apply_range(live_in.reverse()).union(live_out.apply_range(last.reverse()))
        return replace(
            before,
            flow=before.flow.union(flow).union(out.apply_range(back.reverse())),
            output=before.output.union(first.apply_range(scop.may_writes.intersect_range(moved).reverse())),
            anti=before.anti.union(into.apply_range(home.reverse())),
            live_in=before.live_in.subtract(live_in).union(into),
            live_out=before.live_out.subtract(live_out).union(home),
        )

    def _instances(self, names: Sequence[str]) -> isl.UnionSet:
        found = isl.UnionSet("{ }")
        for name in names:
            found = found.union(self.scop.statements[name].domain.to_union_set())
        return found


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of `array` are in `local`, as copies go through them.

    indices, limits: of a copy, in its order, and constraints on them beyond those of the elements. element, place: its subscripts in the array and in the local one.
    back_indices, back_limits, back_place: the same of the copy back, where it differs.
    """

    array: Array
    local: Array
    indices: tuple[str, ...]
    element: tuple[Affine, ...]
    place: tuple[Affine, ...]
    limits: str = ""
    back_indices: tuple[str, ...] = ()
    back_limits: str = ""
    back_place: tuple[Affine, ...] = ()


def relaid(scop: Scop, inside: Scop, layouts: Sequence[Layout]) -> Relaid:
    """The scop `inside`, whose statements use the local arrays, between the copies that `layouts` ask for. Arrays that are local themselves need no copies.

    Args:
        scop: as it was, to tell what is to be copied.
    """
    ahead: dict[str, Statement] = {}
    behind: dict[str, Statement] = {}
    for layout in layouts:
        if layout.array.kind == "local":
            continue
        read, written = affected_elements(scop, layout.array)
        for back, elements, made in ((False, read, ahead), (True, written, behind)):
            if not elements.is_empty():
                copy = _copy(scop, layout, elements, back=back)
                made[copy.name] = copy
    everything = {**ahead, **inside.statements, **behind}
    ordered = replace(inside, initial=_initial(inside, list(ahead.values()), list(behind.values())))
    made_scop = rebuilt(ordered, everything, {**scop.arrays, **{one.local.name: one.local for one in layouts}})
    copied = [one for one in layouts if one.array.kind != "local"]
    names = tuple(array.name for one in copied for array in (one.array, one.local))
    return Relaid(made_scop, tuple(ahead), tuple(behind), names)


def affected_elements(scop: Scop, array: Array) -> tuple[isl.Set, isl.Set]:
    """The elements of the array that are read from before the region, and those that are written; all of it where these are no convex set."""
    names = [f"e{d}'" for d in range(len(array.shape))]
    box = " and ".join(f"0 <= {name} < {extent.isl_text()}" for name, extent in zip(names, array.shape, strict=True))
    everything = isl.Set(f"{parameters_text(scop.sizes)}{{ {array.name}[{', '.join(names)}] : {box} }}")
    own = everything.to_union_set()
    _, from_before = values_of(scop, array.name)
    from_before = from_before.union(scop.reads.intersect_range(own.subtract(_written(scop))))
    sets = []
    for relation in (from_before, scop.may_writes):
        one = relation.range().intersect(own)
        sets.append(isl.Set.empty(everything.get_space()) if one.is_empty() else isl.Set.from_union_set(one).coalesce())
    read, written = sets
    sure = written.to_union_set().is_subset(scop.must_writes.range())
    if written.n_basic_set() > 1 or not sure:
        return everything, everything
    return (read if read.is_box() else _box(read, everything)), written


def _written(scop: Scop) -> isl.UnionSet:
    """All elements of the arrays that anything writes: dataflow says nothing of others."""
    found = isl.UnionSet("{ }")
    for name in dict.fromkeys(a.array for s in scop.statements.values() for a in s.written):
        found = found.union(universe(scop, name))
    return found


def _box(elements: isl.Set, everything: isl.Set) -> isl.Set:
    """All elements of `everything` between the smallest and the largest in each dimension, where these are numbers."""
    found = everything.intersect_params(elements.params())
    for d in range(elements.dim(isl.dim_type.set)):
        low, high = elements.dim_min_val(d), elements.dim_max_val(d)
        found = found.lower_bound_val(isl.dim_type.set, d, low) if low.is_int() else found
        found = found.upper_bound_val(isl.dim_type.set, d, high) if high.is_int() else found
    return found


def redirected(statement: Statement, moved: Mapping[Access, Access]) -> Statement:
    """The statement with other accesses instead of its own."""

    def other(access: Access) -> Access:
        return moved.get(access, access)

    def read(r: Read) -> Read:
        instead = other(Access(r.tensor, r.subscripts))
        return Read(instead.array, instead.subscripts, r.dtype)

    argument = None if statement.argument is None else other(statement.argument)
    return replace(statement, target=other(statement.target), argument=argument, value=map_reads(statement.value, read))


def extents_of(array: Array) -> tuple[int, ...] | None:
    """The array's shape in numbers; None where one depends on sizes."""
    return tuple(e.constant for e in array.shape) if is_known(array.shape) else None


def line_rows(length: Affine, itemsize: int, line_bytes: int) -> Affine:
    """A row's length rounded up to whole lines, but not to whole pages: rows at multiples of these fall into the same few sets of a cache."""
    line = max(1, line_bytes // itemsize)
    page = max(1, PAGE // (line * itemsize))
    lines = (length + line - 1) // line
    return (lines + lines // page - (lines - 1) // page) * line  # one more for every multiple of a page


def trips_of(statement: Statement) -> Affine | None:
    """How often the outermost loop around the statement runs, in terms of the sizes, where it runs at all; None where that is no affine function."""
    low, high = (pieces_of(end(0)) for end in (statement.domain.dim_min, statement.domain.dim_max))
    if len(low) != 1 or len(high) != 1:
        return None
    return affine_of(high[0][1], ()) - affine_of(low[0][1], ()) + 1


def _copy(scop: Scop, layout: Layout, elements: isl.Set, *, back: bool) -> Statement:
    """The statement that copies elements of an array to the local one, or back."""
    array, local = layout.array, layout.local
    indices = layout.back_indices or layout.indices if back else layout.indices
    limits = layout.back_limits if back else layout.limits
    name = derived(f"S_{array.name}", "back") if back else f"S_{local.name}"
    element = ", ".join(s.isl_text() for s in layout.element)
    head = f"{parameters_text(scop.sizes)}{{ {name}[{', '.join(indices)}] -> {array.name}[{element}]"
    domain = isl.Map(f"{head}{f' : {limits}' if limits else ''} }}").intersect_range(elements).domain()
    place = layout.back_place or layout.place if back else layout.place
    there, here = Access(local.name, place), Access(array.name, layout.element)
    target, source = (here, there) if back else (there, here)
    value = Read(source.array, source.subscripts, array.dtype)
    return Statement(name=name, indices=indices, domain=domain, kind="copy", target=target, value=value)


def _initial(scop: Scop, ahead: list[Statement], behind: list[Statement]) -> isl.UnionMap:
    """The written order between the copies."""
    maps = scop.initial.get_map_list()
    depth = maps.get_at(0).dim(isl.dim_type.out)
    wide = max(depth, 2)
    times = ", ".join(f"t{d}" for d in range(depth))
    zeros = "".join(", 0" for _ in range(wide - depth))
    total = scop.initial.apply_range(isl.UnionMap(f"{{ [{times}] -> [0, {times}{zeros}] }}"))
    for place, copies in ((-1, ahead), (1, behind)):
        for position, copy in enumerate(copies):
            time = ", ".join(
                [str(place), str(position), *copy.indices[: wide - 1]] + ["0"] * (wide - 1 - len(copy.indices))
            )
            text = f"{{ {copy.name}[{', '.join(copy.indices)}] -> [{time}] }}"
            total = total.union(isl.Map(text).intersect_domain(copy.domain).to_union_map())
    return total
