"""Register tiles at a slanted edge: rows that are jammed and run over different lanes run over all that any of them needs, and keep what is theirs.

Above or below a diagonal each row of a tile begins or ends elsewhere. One row after the other has too few sums in flight to hide the latency of an addition, and
loads each operand for itself. With the whole tile computed and its stores masked, the lanes beyond the edge are all that is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.codegen.element_accesses import Lanes, accesses_of, may_overlap
from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.boundaries import extreme, within
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import variables_by_name
from polyml.expressions import Const, Read, reads_of, variables_in
from polyml.new_names import fresh
from polyml.sets.affine import Affine, Extremum, affine

__all__ = ["widen_tiles"]


def widen_tiles(function: Function) -> Function:
    """The function with jammed rows of sums over ragged lanes as whole tiles: each sum starts from its element where the lane is its row's, and is stored there only.

    What the other lanes add up is dropped; rows are left as they are unless all of them can read what one with lanes reads.

    Rewrite:
        jam(8) for (i = t; i < t + 8; i++) vector for (j = s; j <= i; j++) for (k ..) c[i, j] += f
        -> jam(8) for (i = t; i < t + 8; i++) vector for (j = s; j < t + 8; j++) { x = 0; if (j <= i) x = c[i, j]; for (k ..) x += f; if (j <= i) c[i, j] = x; }
    """
    variables = variables_by_name(function)
    taken = names_in(function)

    def widened(loop: For, ranges: Ranges, lanes: For | None) -> For | None:
        if loop.kind != "jam" or loop.factor < 2:
            return None
        return _widened(loop, ranges, variables, taken) or loop

    return map_loops(function, widened)


def _widened(rows: For, ranges: Ranges, variables: Mapping[str, Variable], taken: set[str]) -> For | None:
    lanes = rows.body[0] if len(rows.body) == 1 else None
    if not isinstance(lanes, For) or lanes.kind != "vector" or lanes.step != 1:
        return None
    rows = _with_empty_rows(rows, lanes, ranges)
    hull = _hull(lanes, rows)
    if hull is None:
        return None
    loops, step = _nest(lanes)
    if step is None or step.reduction is None or step.scan is not None:
        return None
    moving = {rows.variable, lanes.variable}
    if not loops or any(moving & (loop.lower.variables() | loop.upper.variables()) for loop in loops):
        return None
    element = variables[step.target.variable]
    if not _stays_in_register(step, loops, ranges.enter(rows).enter(lanes), lanes):
        return None
    inside = ranges.enter(rows).enter(hull)
    for loop in loops:
        inside = inside.enter(loop)
    if not all(_in_bounds(read, variables[read.tensor], rows, inside) for read in reads_of(step.value)):
        return None
    register = Variable(name=fresh(f"{element.name}_tile", taken), dtype=element.dtype, shape=(), scope="register")
    held, mine = Place(register.name, ()), within(lanes, rows.variable)
    known = tuple(s for s in step.target.subscripts if isinstance(s, Affine))
    load = Assign(target=held, value=Read(element.name, known, element.dtype))
    store = Assign(target=step.target, value=Read(register.name, (), element.dtype))
    total: Node = replace(step, target=held)
    for loop in reversed(loops):
        total = replace(loop, body=(total,))
    clear = Assign(target=held, value=Const(0, element.dtype))
    body = (clear, If(condition=mine, then=(load,)), total, If(condition=mine, then=(store,)))
    return replace(rows, body=(replace(hull, body=(Allocate(variable=register, body=body),)),))


def _nest(lanes: For) -> tuple[list[For], Assign | None]:
    """The sequential loops in the loop over lanes and the one assignment in them; None where there is anything else."""
    loops: list[For] = []
    body = lanes.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "sequential":
        loops.append(body[0])
        body = body[0].body
    step = body[0] if len(body) == 1 else None
    return loops, step if isinstance(step, Assign) else None


def _stays_in_register(step: Assign, loops: list[For], ranges: Ranges, lanes: For) -> bool:
    """Whether the sum's element is the same in all iterations of the loops, each lane has its own, and nothing that they read is one of them."""
    subscripts = [s for s in step.target.subscripts if isinstance(s, Affine)]
    used = variables_in(subscripts)
    if len(subscripts) < len(step.target.subscripts) or used & {loop.variable for loop in loops}:
        return False
    if lanes.variable not in used:
        return False
    name = step.target.variable
    own, *others = sorted(accesses_of(loops[0], ranges, of={name}), key=lambda access: not access.write)
    return not any(may_overlap(own, other, ranges, Lanes(lanes.variable, 1)) for other in others)


def _with_empty_rows(rows: For, lanes: For, ranges: Ranges) -> For:
    """The rows with those of the tile that have no lanes, before the first or behind the last one: a whole tile needs no loops for fewer rows."""
    first, last = _limits(rows.lower, "max"), _limits(rows.upper, "min")
    if len(first) == 1 and len(last) == 2:
        for beyond, end in (last, last[::-1]):
            row = ranges.lowest(lanes.lower.substitute({rows.variable: beyond}) - lanes.upper)
            steady = rows.variable not in lanes.upper.variables() and lanes.lower.stride(rows.variable) == 1
            if steady and row is not None and row >= 0 and end - rows.lower == affine(rows.factor):
                return replace(rows, upper=end)
    if len(first) == 2 and len(last) == 1:
        for beyond, start in (first, first[::-1]):
            row = ranges.lowest(lanes.lower - lanes.upper.substitute({rows.variable: beyond - 1}))
            steady = rows.variable not in lanes.lower.variables() and lanes.upper.stride(rows.variable) == 1
            if steady and row is not None and row >= 0 and rows.upper - start == affine(rows.factor):
                return replace(rows, lower=start)
    return rows


def _limits(bound: Affine, kind: str) -> tuple[Affine, ...]:
    """The operands of an extremum that the bound is, or the bound alone."""
    atom = bound.terms[0][0] if len(bound.terms) == 1 and bound.constant == 0 and bound.terms[0][1] == 1 else None
    return atom.operands if isinstance(atom, Extremum) and atom.kind == kind else (bound,)


def _hull(lanes: For, rows: For) -> For | None:
    """The lanes that some row has, where those are the lanes of one of the rows, the first or the last: what does not move from row to row is then read in one that exists."""
    moving = [bound for bound in (lanes.lower, lanes.upper) if rows.variable in bound.variables()]
    if len(moving) != 1:
        return None
    sense = -1 if moving[0] is lanes.lower else 1
    widest = extreme(moving[0], rows.variable, (rows.lower, rows.upper - 1), sense)
    if widest not in [moving[0].substitute({rows.variable: row}) for row in (rows.lower, rows.upper - 1)]:
        return None
    return replace(lanes, lower=widest) if sense < 0 else replace(lanes, upper=widest)


def _in_bounds(read: Read, variable: Variable, rows: For, ranges: Ranges) -> bool:
    """Whether each row reads inside the array, one without lanes of its own as well."""
    for subscript, extent in zip(read.subscripts, variable.shape, strict=True):
        if not isinstance(subscript, Affine):
            return False
        if rows.variable in subscript.variables():
            low, past = ranges.lowest(subscript), ranges.lowest(extent - subscript - 1)
            if low is None or low < 0 or past is None or past < 0:
                return False
    return True
