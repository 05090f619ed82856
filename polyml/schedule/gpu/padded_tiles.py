"""Contractions on a GPU that sum up whole tiles at the edges, too: elements of a tile that no operand has are whatever shared memory holds, and sums of these are never stored.

So the loops that do the work have no conditions, and one kernel does all tiles. Only copies and what is before and behind the sums stay within the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

import islpy as isl

from polyml.expressions import Apply, Read, reads_of, walk
from polyml.schedule.strategy.cuda.tile_plan import TilePlan
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.spaces import parameters_text

__all__ = ["can_pad", "padded_domain", "padding_of"]


def can_pad(scop: Scop, plan: TilePlan) -> bool:
    """Whether the update may be done for elements that are not there: all that it reads of these is in tiles, and nothing can fault."""
    value = scop.statements[plan.statement].value
    sides = {plan.rows.index, plan.columns.index}
    for read in dict.fromkeys(reads_of(value)):
        if read not in plan.operands and any(isinstance(s, Affine) and s.variables() & sides for s in read.subscripts):
            return False
    divides = any(
        isinstance(e, Apply) and e.op in ("div", "floordiv", "mod") and e.dtype.is_integer for e in walk(value)
    )
    return not divides and any(plan.count(i) * plan.size(i) != plan.extents[i] for i in sides)


def padded_domain(scop: Scop, plan: TilePlan, statement: Statement, names: Mapping[str, str]) -> isl.Set:
    """The statement's instances in whole tiles.

    Args:
        names: its own for the plan's indices.
    """
    depth, limits = statement.loop_depth, []
    plans = {own: index for index, own in names.items()}
    for own in statement.indices[depth:]:
        index = plans.get(own, own)
        side = index in (plan.rows.index, plan.columns.index)
        extent = plan.count(index) * plan.size(index) if side else plan.extents[index]
        limits.append(f"0 <= {own} < {extent.isl_text()}")
    space = f"{statement.name}[{', '.join(statement.indices)}]"
    box = isl.Set(f"{parameters_text(scop.sizes)}{{ {space} : {' and '.join(limits)} }}")
    count = len(statement.indices) - depth
    around = statement.domain.project_out(isl.dim_type.set, depth, count)
    return around.add_dims(isl.dim_type.set, count).set_tuple_name(statement.name).intersect(box)


def padding_of(plan: TilePlan, read: Read) -> tuple[Affine, ...]:
    """By how much whole tiles reach beyond what an operand's dimensions have, at most."""
    found = []
    for subscript in read.subscripts:
        assert isinstance(subscript, Affine), "internal: a staged operand has computed subscripts"
        beyond = Affine()
        for index in (plan.rows.index, plan.columns.index):
            rest = plan.count(index) * plan.size(index) - plan.extents[index]
            beyond = beyond + rest * (subscript.stride(index) or 0)
        found.append(beyond)
    return tuple(found)
