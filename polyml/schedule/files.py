"""Schedules as text: isl's own YAML, to save, to share, and to write by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from dataclasses import replace

import islpy as isl

from polyml.errors import IllegalScheduleError
from polyml.schedule.restore import contracted_at_marks
from polyml.schedule.schedule import Schedule
from polyml.schedule.storage import expanded
from polyml.schedule.transforms.nodes import single_members
from polyml.schedule.tree import Kind, kind_of, mark_name, nodes, set_names
from polyml.sets.spaces import maps_of

__all__ = ["read_schedule", "schedule_yaml"]

_LINE = re.compile(
    r' *(- )?((?P<key>domain|schedule|filter|mark|options): "(?P<value>[^"]*)"|(child|sequence|set):|(permutable: [01]|coincident: \[ [01](, [01])* \])) *'
)
_HINT = "lines are those that text() writes: domain, schedule, filter, mark, sequence, child and so on, a set or functions in quotes"
_MARKS = ("jam", "parallel", "pipelined", "sequential", "stage", "unroll", "vector")
"""What a hand may ask of a loop: the proof and the loop passes hold for any. Others are right where the compiler puts them."""
_READERS: dict[str, Callable[[str], object]] = {
    "domain": isl.UnionSet, "filter": isl.UnionSet, "schedule": isl.MultiUnionPwAff, "options": isl.UnionSet,
}  # fmt: skip


def schedule_yaml(schedule: Schedule) -> str:
    """The tree, one node a line. Storage is in it as the marks `allocate:A` (contracted to what one visit touches)."""
    printer = isl.Printer.to_str(isl.DEFAULT_CONTEXT).set_yaml_style(isl.yaml_style.BLOCK)
    text = printer.print_schedule(schedule.tree).get_str()
    assert text is not None, "internal: isl prints nothing"
    return text


def read_schedule(text: str, schedule: Schedule) -> Schedule:
    """The schedule's region under the tree in `text`; not proved, except that it is a tree over the region's statements with a loop for every dimension.

    Raises:
        IllegalScheduleError: the text is no schedule, of other statements, or leaves instances unordered.
    """
    _require_lines(text)
    try:
        tree = isl.Schedule.read_from_str(isl.DEFAULT_CONTEXT, text)
    except isl.Error as fault:
        raise IllegalScheduleError(f"isl does not read this schedule: {_first_line(fault)}") from fault
    strange = set(set_names(tree.get_domain())) ^ set(schedule.scop.statements)
    if strange:
        raise IllegalScheduleError(
            f"the schedule is not one of {schedule.scop.name}: statements {', '.join(sorted(strange))}",
            hint=f"its statements: {', '.join(schedule.scop.statements)}",
        )
    tree = single_members(tree)
    others = {mark_name(node) for node in nodes(schedule.tree.get_root()) if kind_of(node) == Kind.mark}
    for node in nodes(tree.get_root()):
        if kind_of(node) == Kind.leaf:
            _require_times(node)
        elif kind_of(node) == Kind.mark:
            _require_known(mark_name(node), others)
        elif kind_of(node) == Kind.band and not node.get_domain().is_subset(node.band_get_partial_schedule().domain()):
            raise IllegalScheduleError("a loop of the schedule has no value for some of its instances")
    return contracted_at_marks(replace(expanded(schedule), tree=tree, notes=()), schedule.storage)


def _require_times(leaf: isl.ScheduleNode) -> None:
    """Instances of a statement have different times."""
    for m in maps_of(leaf.get_prefix_schedule_union_map().intersect_domain(leaf.get_domain())):
        if not m.is_injective():
            name = m.get_tuple_name(isl.dim_type.in_)
            raise IllegalScheduleError(
                f"the schedule gives instances of {name} the same time", hint="a loop is missing"
            )


def _require_known(mark: str, others: Set[str]) -> None:
    """The mark is one for everybody's hand, or one of the others."""
    word, _, factor = mark.partition(":")
    if word == "allocate" or mark in others:
        return
    if word not in _MARKS:
        raise IllegalScheduleError(
            f'there is no mark "{mark}"', hint=f"marks: allocate, {', '.join(_MARKS)}, and those of the schedule itself"
        )
    if not re.fullmatch("([1-9][0-9]{0,17})?", factor):
        raise IllegalScheduleError(
            f'the factor of the mark "{mark}" is no number of 1 or more', hint='such as "unroll:4"'
        )


def _require_lines(text: str) -> None:
    """Each line is one that isl writes, with a set or functions where they belong: on others its reader may end the process."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise IllegalScheduleError(
                f"polyml does not read line {number} of this schedule: {line.strip()}", hint=_HINT
            )
        key, value = found["key"], found["value"]
        if key in _READERS:
            try:
                _READERS[key](value)
            except isl.Error as fault:
                raise IllegalScheduleError(f"isl does not read line {number}, {key}: {_first_line(fault)}") from fault


def _first_line(fault: isl.Error) -> str:
    return str(fault).splitlines()[0]
