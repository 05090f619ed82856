"""Which updates of a tree gain by atomic operations (option `atomics`): those that would leave most of the device idle, because what they update is computed (a histogram, a
scattered sum), or because they reduce long rows into few results.
"""

from __future__ import annotations

from math import prod

import islpy as isl

from polyml.schedule.gpu.any_parts import in_columns
from polyml.schedule.gpu.partial_sums import cut_of
from polyml.schedule.strategy.cuda.model import CudaModel
from polyml.schedule.transforms import distribute_band, merge_with_child
from polyml.schedule.tree import Kind, is_coincident, kind_of, members, statements_below
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["REDUCTIONS", "THREADS", "merged", "parted", "row_cuts", "update_of"]

REDUCTIONS = ("sum", "prod", "max", "min")
"""That there are atomic operations for, on elements of 4 or 8 bytes."""

THREADS = 1024
"""Per core: fewer leave it idle."""


def update_of(node: isl.ScheduleNode, model: CudaModel) -> str | None:
    """The update below a band that gains, where that is all that is below, and nothing but itself orders its instances."""
    if kind_of(node) != Kind.band or len(statements_below(node)) != 1:
        return None
    (name,) = statements_below(node)
    statement, free, below = model.scop.statements[name], 1, node
    if not _may_be_atomic(model.scop, statement):
        return None
    while kind_of(below) == Kind.band:
        for member in members(below, model.scop):
            index = member.index(name)
            if index is None or not model.matcher.carries_nothing({name: statement.indices.index(index)}):
                return None
        free *= prod(model.extents(below)) if is_coincident(below) else 1
        below = below.child(0)
    if kind_of(below) != Kind.leaf:
        return None
    if _is_computed(statement):
        return name if free < THREADS * model.target.cores else None
    return name if row_cuts(model).get(name) is not None else None


def row_cuts(model: CudaModel) -> dict[str, tuple[str, int, int]]:
    """Reductions of long rows into few results: which loop is cut, into pieces of which size, and how many there are."""
    found = {}
    for name, its in model.models.items():
        if not _may_be_atomic(model.scop, model.scop.statements[name]):
            continue
        cut = cut_of(model.scop, its, model.target)
        if cut is not None and not in_columns(its):
            found[name] = cut
    return found


def parted(node: isl.ScheduleNode, model: CudaModel) -> isl.ScheduleNode | None:
    """A band over several statements, one of which gains, as a sequence with a band for each; None where none does, or where the band carries more than updates that commute."""
    inside = node.child(0)
    if kind_of(inside) != Kind.sequence or not (is_coincident(node) or _carries_only_updates(node, model)):
        return None
    made = distribute_band(node, [[k] for k in range(inside.n_children())])
    gains = any(update_of(made.child(k).child(0), model) is not None for k in range(made.n_children()))
    return made if gains else None


def _carries_only_updates(node: isl.ScheduleNode, model: CudaModel) -> bool:
    """Whether all that may cross iterations of a band from one statement to another goes between updates that commute."""
    statements = model.scop.statements
    for member in members(node, model.scop):
        own = {name: member.index(name) for name in member.rows}
        positions = {name: statements[name].indices.index(index) for name, index in own.items() if index is not None}
        if len(positions) < len(own) or not all(map(model.matcher.commutes, model.matcher.moving(positions))):
            return False
    return True


def merged(node: isl.ScheduleNode) -> isl.ScheduleNode:
    """The band with all bands right below it, one by one, in one."""
    while kind_of(node.child(0)) == Kind.band:
        node = merge_with_child(node)
    return node


def _may_be_atomic(scop: Scop, statement: Statement) -> bool:
    dtype = scop.arrays[statement.target.array].dtype
    plain = statement.kind == "update" and statement.argument is None and statement.reduction in REDUCTIONS
    return plain and dtype.bits in (32, 64) and dtype.kind in "fiu"


def _is_computed(statement: Statement) -> bool:
    return not all(isinstance(subscript, Affine) for subscript in statement.target.subscripts)
