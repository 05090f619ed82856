"""Schedules as text: isl's own YAML, to save, to share, and to write by hand."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.errors import IllegalScheduleError
from polyml.schedule.restore import contracted_at_marks
from polyml.schedule.schedule import Schedule
from polyml.schedule.storage import expanded
from polyml.schedule.transforms.nodes import single_members
from polyml.schedule.tree import Kind, kind_of, nodes, set_names
from polyml.sets.spaces import maps_of

__all__ = ["read_schedule", "schedule_yaml"]


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
    for node in nodes(tree.get_root()):
        if kind_of(node) == Kind.leaf:
            _require_times(node)
    return contracted_at_marks(replace(expanded(schedule), tree=tree, notes=()), schedule.storage)


def _require_times(leaf: isl.ScheduleNode) -> None:
    """Instances of a statement have different times."""
    for m in maps_of(leaf.get_prefix_schedule_union_map().intersect_domain(leaf.get_domain())):
        if not m.is_injective():
            name = m.get_tuple_name(isl.dim_type.in_)
            raise IllegalScheduleError(
                f"the schedule gives instances of {name} the same time", hint="a loop is missing"
            )


def _first_line(fault: isl.Error) -> str:
    return str(fault).splitlines()[0]
