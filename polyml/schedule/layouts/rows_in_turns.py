"""Vectors that a sequential loop makes anew from themselves, in two rows that take turns: each step reads one and writes the other.

An update such as `y[i] += a * y[k - 1 - i]` reads elements that it overwrites, so the old ones are saved in a copy first (scop/copies.py), a sweep of loads and stores in each step. With a row for every step there
is nothing to save. Of those rows only two are ever alive, and storage in turns keeps two (window.py). They are local, so that vectors start at lines wherever the caller's array lies.

Rewrite, for steps k from f to l:
    for k: for i: old[i] = y[i];  for i: y[i] = g(old[i], old[k - 1 - i])
    ->  y_turns[0, i] = y[i]; for k: for i: y_turns[k - f + 1, i] = g(y_turns[k - f, i], y_turns[k - f, k - 1 - i]); y[i] = y_turns[l - f + 1, i]

When: everything that a step reads of the vector was written by the step before it, or by itself (before the first step: in the caller's array), and the last step writes all elements that any step does.

Source: a dimension for time is array expansion, Feautrier, "Dataflow analysis of array and scalar references" (IJPP 1991).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.errors import IllegalScheduleError, TransformError
from polyml.expressions import Read, map_reads
from polyml.records import dataclass
from polyml.schedule.copies import universe
from polyml.schedule.layouts.relaid import Layout, Relaid, line_rows, relaid
from polyml.schedule.schedule import Schedule
from polyml.schedule.window import slide_storage
from polyml.scop.dependences import values_of
from polyml.scop.expansion import common_loops
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import maps_of, parameters_text
from polyml.target import Target

__all__ = ["Steps", "Turns", "distances", "in_few_rows", "take_turns"]

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class Steps:
    """A sequential loop around all statements: its variable, and the variable's first and last value."""

    index: str
    first: Affine
    last: Affine


@dataclass(frozen=True, slots=True)
class Turns:
    """relaid: the scop with such rows, whose dependences are to be computed anew. rows: the local arrays, a row for each step."""

    relaid: Relaid
    steps: Steps
    rows: tuple[str, ...]


def take_turns(scop: Scop, target: Target) -> Turns | None:
    """The scop with rows for those vectors; None where there are none."""
    if not any(s.kind == "copy" for s in scop.statements.values()):
        return None
    steps = _steps(scop)
    if steps is None:
        return None
    layouts: list[Layout] = []
    made = scop
    for array in scop.arrays.values():
        if len(array.shape) != 1 or array.memory_strides != (1,):
            continue
        saved = list(_saved(scop, array))
        ages = _ages(scop, array, steps) if saved else None
        if ages is None:
            continue
        # What a step has written itself is overwritten where it lies, so that it stays saved.
        saved = [copy for copy in saved if ages[copy.name]]
        if not saved:
            continue
        layouts.append(_layout(scop, array, steps, target))
        made = _in_rows(made, layouts[-1], steps, ages, saved)
    if not layouts:
        return None
    return Turns(relaid(scop, made, layouts), steps, tuple(layout.local.name for layout in layouts))


def _steps(scop: Scop) -> Steps | None:
    """The one sequential loop around all statements; None where there is none."""
    statements = list(scop.statements.values())
    loop = next(common_loops(statements), None) if all(s.loop_depth for s in statements) else None
    if loop is None:
        return None
    maps = maps_of(scop.initial)
    for d in range(maps[0].dim(_OUT)):
        values = [m.plain_get_val_if_fixed(_OUT, d) for m in maps]
        if not all(value.is_int() and value.eq(values[0]) for value in values):
            # What tells instances apart first is the step: there are no two loops of one name.
            return Steps(*loop) if all(m.is_subset(m.equate(_IN, 0, _OUT, d)) for m in maps) else None
    return None


def _saved(scop: Scop, array: Array) -> Iterator[Statement]:
    """The statements that save elements of the array in an array of their own, which is read in the same step."""
    for s in scop.statements.values():
        if s.kind != "copy" or not isinstance(s.value, Read) or s.value.tensor != array.name:
            continue
        local = scop.arrays[s.target.array]
        writers = [other for other in scop.statements.values() if other.target.array == local.name]
        plain = s.target.subscripts == s.value.subscripts == (affine(s.indices[-1]),)
        if local.kind != "local" or len(writers) > 1 or not plain or len(s.indices) != 2:
            continue
        flow, before = values_of(scop, local.name)
        if before.is_empty() and _steps_between(flow) == {0}:
            yield s


def _ages(scop: Scop, array: Array, steps: Steps) -> Mapping[str, int] | None:
    """Per statement that reads the array how many steps ago that was written, 0 or 1; None where it is longer ago, or not always as long, or the last step does not write what others do."""
    users = [(s, a) for s in scop.statements.values() for a in s.accesses if a.array == array.name]
    if any(not isinstance(e, Affine) for _, a in users for e in a.subscripts) or any(s.argument for s, _ in users):
        return None
    own = universe(scop, array.name)
    final = _at(scop, steps.last)
    written = scop.must_writes.intersect_domain(final).intersect_range(own).range()
    if not scop.may_writes.intersect_range(own).range().is_subset(written):
        return None
    flow, before = values_of(scop, array.name)
    if not before.domain().is_subset(_at(scop, steps.first)):
        return None
    ages: dict[str, int] = {}
    for s in dict.fromkeys(s for s, _ in users):
        instances = s.domain.to_union_set()
        found = _steps_between(flow.intersect_range(instances))
        # Before the first step was the step before it.
        found |= set() if before.intersect_domain(instances).is_empty() else {1}
        if len(found) > 1 or not found <= {0, 1}:
            return None
        age = found.pop() if found else 0
        if age and s.kind == "update" and s.target.array == array.name:
            return None  # it adds to what the step before left where it is
        ages[s.name] = age
    return ages


def _at(scop: Scop, step: Affine) -> isl.UnionSet:
    """All instances of a step."""
    found = isl.UnionSet.empty(scop.context.get_space())
    for s in scop.statements.values():
        head = f"{parameters_text(scop.sizes)}{{ {s.name}[{', '.join(s.indices)}]"
        found = found.union(isl.UnionSet(f"{head} : {s.indices[0]} = {step.isl_text()} }}"))
    return found.intersect(scop.domain)


def _steps_between(flow: isl.UnionMap) -> set[int]:
    """The least and the greatest number of steps from the source to the sink of each pair of statements."""
    return {steps for m in maps_of(flow) for steps in distances(m, 0)}


def distances(m: isl.Map, d: int) -> set[int]:
    """The least and the greatest distance in a dimension that both sides have; -1 where there is none."""
    for side in (_IN, _OUT):
        m = m.project_out(side, d + 1, m.dim(side) - d - 1).project_out(side, 0, d).reset_tuple_id(side)
    moved = m.deltas()
    return {end.to_python() if end.is_int() else -1 for end in (moved.dim_min_val(0), moved.dim_max_val(0))}


def _layout(scop: Scop, array: Array, steps: Steps, target: Target) -> Layout:
    length = line_rows(array.shape[0], array.dtype.itemsize, target.line_bytes)
    count = steps.last - steps.first + 2
    local = Array(name=scop.new_array(f"{array.name}_turns"), dtype=array.dtype, shape=(count, length), kind="local")
    element = affine("e0")
    return Layout(array, local, ("e0",), (element,), (affine(0), element), back_place=(count - 1, element))


def _in_rows(scop: Scop, layout: Layout, steps: Steps, ages: Mapping[str, int], saved: Sequence[Statement]) -> Scop:
    """The scop on rows, without the statements that save elements, whose readers find them in the row of the step before."""
    array, rows = layout.array.name, layout.local
    row = affine(steps.index) - steps.first + 1
    copies = {copy.target.array: copy.name for copy in saved}
    changed: dict[str, Statement] = {}
    for name, s in scop.statements.items():
        if name in copies.values():
            continue

        def read(r: Read, own: str = name) -> Read:
            writer = copies.get(r.tensor, own if r.tensor == array else None)
            return r if writer is None else Read(rows.name, (row - ages[writer], *r.subscripts), r.dtype)

        target = Access(rows.name, (row, *s.target.subscripts)) if s.target.array == array else s.target
        changed[name] = replace(s, target=target, value=map_reads(s.value, read))
    return rebuilt(scop, changed, {**scop.arrays, rows.name: rows})


def in_few_rows(schedule: Schedule, rows: Mapping[str, int]) -> Schedule | None:
    """The schedule with so many places for each array's rows; None where its order keeps more of them alive."""
    for name, places in rows.items():
        try:
            schedule = slide_storage(schedule, name, (places, *(None for _ in schedule.scop.arrays[name].shape[1:])))
        except (IllegalScheduleError, TransformError):
            return None
    return schedule
