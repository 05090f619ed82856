"""Sums down the columns of a block of rows while the sums along the rows of the next block are made.

In A^T (A x) a row's part of the second product needs the row's sum of the first. In blocks of rows (sweeps/row_sums.py) each block is read twice, from memory and then from L2, and memory waits meanwhile. One block later
nothing waits: memory brings the next block's rows while this one's come from L2, some of both side by side (sweeps/row_registers.py), so that x and y are loaded once for all of them.

Rewrite: for blocks b: (for i in b, j: t[i] += A[i, j] * x[j];  for j, i in b: y[j] += A[i, j] * t[i])
    ->  for i in block 0, j: t[i] += A[i, j] * x[j];
        for blocks b > 0: for i, j: (t[i in b] += A[i in b, j] * x[j];  y[j] += A[i in b - 1, j] * t[i in b - 1]);
        for j, i in the last block: y[j] += A[i, j] * t[i]

Source: shifted fusion is loop alignment, Allen, Callahan and Kennedy, "Automatic decomposition of scientific programs for parallel execution" (POPL 1987).
"""

from __future__ import annotations

from functools import reduce

import islpy as isl

from polyml.new_names import derived
from polyml.records import dataclass
from polyml.schedule.ilp.driver import Around, Outline
from polyml.schedule.pieces import Pieces
from polyml.schedule.sweeps.row_registers import Together
from polyml.schedule.sweeps.row_sums import RowSums
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.spaces import parameters_text

__all__ = ["RowsLate", "one_block_late"]


@dataclass(frozen=True, slots=True)
class RowsLate:
    """The scop in pieces, its dependences, and what runs one after the other."""

    scop: Scop
    dependences: Dependences
    outline: Outline


def one_block_late(plan: RowSums, together: Together, dependences: Dependences) -> RowsLate:
    """The plan with the sums that wait one block behind the others.

    Args:
        dependences: of the plan's scop.
    """
    scop = plan.scop
    visits = {name: _visits(plan, together, name) for name in together.rows}
    paired = reduce(isl.Set.intersect, (visit.range() for visit in visits.values()))
    made = Pieces(scop)
    rest: dict[bool, list[str]] = {False: [], True: []}
    for name, s in scop.statements.items():
        if name not in visits:
            made.add(s, s.domain)
            continue
        is_late = name in together.late
        late = plan.blocks[name] if is_late else None
        main = visits[name].intersect_range(paired).domain()
        made.add(s, main, late=late)
        rest[is_late] += made.add(s, s.domain.subtract(main), ending="rest", late=late)
    behind = tuple(name for name in plan.rows if name in together.behind)
    ahead = tuple(name for name in plan.rows if name not in together.rows and name not in behind)
    ends = [name for names in rest.values() for name in names]
    of = {derived(name, "rest"): name for name in visits}
    parts, blocks = ({**own, **{n: own[of[n]] for n in ends}} for own in (plan.parts, plan.blocks))
    inside = ((*ahead, *rest[False]), together.loops, behind, tuple(rest[True]))
    around = Around(blocks, parallel=False, inside=tuple(group for group in inside if group), carries=True)
    shared = Around(parts, parallel=True, inside=(plan.starts, around))
    outline = tuple(stage for stage in (plan.before, shared, plan.after) if stage)
    order = [*plan.before, *plan.starts, *plan.rows, *ends, *plan.after]
    return RowsLate(made.scop(order), made.dependences(dependences), outline)


def _visits(plan: RowSums, together: Together, name: str) -> isl.Map:
    """`{ S[..] -> [part, block, row] }`, when its instances run."""
    s = plan.scop.statements[name]
    block = plan.blocks[name] + (" + 1" if name in together.late else "")
    when = f"[{plan.parts[name]}, {block}, {together.rows[name]}]"
    text = f"{parameters_text(plan.scop.sizes)}{{ {name}[{', '.join(s.indices)}] -> {when} }}"
    return isl.Map(text).intersect_domain(s.domain)
