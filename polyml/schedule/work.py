"""How much a region computes and moves, as explain() tells it: the floor that a kernel's time is compared with."""

from __future__ import annotations

from math import prod

from polyml.expressions import Apply, walk
from polyml.schedule.tree import set_names
from polyml.scop.scop import Scop, Statement
from polyml.sets.shapes import element_count

__all__ = ["work_of", "work_text"]

FREE = frozenset({"cast", "select"})
"""Ops that are no arithmetic."""


def work_of(scop: Scop) -> tuple[int, int] | None:
    """Floating-point operations at most (as many as in the boxes around the statements' domains; each function is one), and bytes at least: every array that outlives the region read once where it is
    read, written once where it is written. None where sizes are symbolic."""
    if scop.sizes:
        return None
    operations = sum(_operations(statement) * _instances(statement) for statement in scop.statements.values())
    moved = 0
    for accesses in (scop.reads, scop.may_writes):
        for name in sorted(set_names(accesses.range())):
            if scop.arrays[name].kind != "local":
                moved += scop.arrays[name].dtype.itemsize * element_count(scop.arrays[name].shape)
    return operations, moved


def work_text(scop: Scop) -> str:
    """The same in words; empty where nobody knows."""
    found = work_of(scop)
    if found is None:
        return ""
    operations, moved = found
    each = f", {operations / moved:.1f} per byte" if operations and moved else ""
    return f"{operations:,} floating-point operations at most, {moved:,} bytes of device memory at least{each}"


def _instances(statement: Statement) -> int:
    """Of the box around the domain."""
    domain = statement.domain
    if domain.is_empty():
        return 0
    dimensions = range(len(statement.indices))
    return prod(domain.dim_max_val(k).to_python() - domain.dim_min_val(k).to_python() + 1 for k in dimensions)


def _operations(statement: Statement) -> int:
    """Of one instance."""
    own = sum(isinstance(e, Apply) and e.dtype.is_float and e.op not in FREE for e in walk(statement.value))
    return own + (statement.kind == "update" and statement.argument is None and statement.value.dtype.is_float)
