"""Rows that the lanes of a vector loop walk along: instead of one element per lane at a time, blocks of rows and columns go through registers, transposed,
into scratch memory that has the lanes side by side, and back.

Lanes along independent rows are what a recurrence along them leaves. Nothing is reassociated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from polyml.codegen.element_accesses import ElementAccess, Lanes, accesses_of, always_apart
from polyml.codegen.loops import Allocate, Assign, For, Function, Lead, Node, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.transposes.transposed_strips import Rows, Strips
from polyml.codegen.passes.transposes.transposed_values import values_of_rows
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import variables_by_name, walk_nodes
from polyml.expressions import Subscript
from polyml.new_names import fresh
from polyml.schedule.cost import LEAST_COLUMNS
from polyml.sets.affine import Affine, affine

__all__ = ["transpose_rows"]

_LONGEST = 64
"""Columns of a strip, at most: more gains nothing, and what is in flight should stay in L1."""

_L1 = 32 * 1024
"""What L1 is taken for where it is not known."""


def transpose_rows(function: Function, *, l1_bytes: int = 0) -> Function:
    """The function with the rows that innermost loops inside vector loops walk along in scratch memory, strip by strip.

    A read of the strip's elements ahead of the loop is one that the loop would do itself: only what every iteration accesses is treated, where nothing
    else in the loop may write it.

    Rewrite:
        vector(8) for (i ..) for (j = 1; j < n; j++) y[i, j] = a * y[i, j - 1] + x[i, j];
        -> vector(8) for (i ..) {
             transpose for (c = 0; c < 1; c++) y_rows[c] = y[i, c];
             for (s = 1; s < n; s += 64) {
               (in blocks) transpose for (c = s; c < s + 64; c++) x_rows[c - s] = x[i, c];
               for (j = s; j < s + 64; j++) y_rows[j - s + 1] = a * y_rows[j - s] + x_rows[j - s];
               (in blocks) transpose for (c = s; c < s + 64; c++) y[i, c] = y_rows[c - s + 1];
               y_rows[0] = y_rows[64];
             } }

    Args:
        l1_bytes: of one core's L1; 0: not known.
    """
    variables = variables_by_name(function)
    taken = names_in(function)
    pass_ = _Transposes(variables, taken, (l1_bytes or _L1) // 2, {v.name for v in function.arguments})
    made = map_loops(function, pass_.innermost)
    return function if made is function else replace(made, leads=(*function.leads, *pass_.leads.values()))


class _Transposes:
    def __init__(self, variables: Mapping[str, Variable], taken: set[str], budget: int, arguments: Set[str]) -> None:
        self.variables, self.taken, self.budget, self.arguments = variables, taken, budget, arguments
        self.leads: dict[str, Lead] = {}

    def innermost(self, loop: For, ranges: Ranges, lanes: For | None) -> Node | None:
        if lanes is None or any(isinstance(inner, For) for inner in walk_nodes(loop.body)):
            return None
        trips = ranges.constant(loop.upper - loop.lower)
        ragged = lanes.variable in loop.lower.variables() | loop.upper.variables()
        most = ranges.highest(loop.upper - loop.lower)
        if (
            loop.kind != "sequential"
            or loop.step != 1
            or ragged
            or (most is not None and most < min(LEAST_COLUMNS, lanes.width))
        ):
            return loop
        given = loop
        loop, values = values_of_rows(
            loop, lambda read: self.line(read.tensor, read.subscripts, given, lanes), self.arguments, self.taken
        )
        rows = (*self.rows(loop, ranges, lanes), *values)
        if not rows:
            return given
        per_column = sum(lanes.width * r.variable.dtype.itemsize for r in rows)
        widest = max(r.span for r in rows)
        length = min(_LONGEST, max(self.budget // per_column - widest, 1)) // lanes.width * lanes.width
        if length < max(lanes.width, widest):
            return given
        if trips is not None:  # strips of about one length
            each = -(-trips // -(-trips // length))
            length = -(-max(each, widest) // lanes.width) * lanes.width
        named = tuple(replace(r, buffer=fresh(f"{r.variable.name}_rows", self.taken)) for r in rows)
        runs = ranges.is_positive(loop.upper - loop.lower)
        strips = Strips(loop, named, length, lanes.width, runs, self.taken, partial(self.lead, lanes.width))
        body = strips.nodes(trips)
        for r in reversed(named):
            # A block that ends early touches all its columns in scratch memory.
            extent = (affine(length + r.span + (lanes.width if trips is None else 0)),)
            room = Variable(
                name=r.buffer, dtype=r.variable.dtype, shape=extent, scope="local", lanes=lanes.width, alignment=64
            )
            body = (Allocate(variable=room, body=body),)
        return body[0]

    def lead(self, width: int, variable: Variable) -> str:
        if variable.name not in self.leads:
            name = fresh(f"{variable.name}_lead", self.taken)
            self.leads[variable.name] = Lead(name, variable.name, width * variable.dtype.itemsize)
        return self.leads[variable.name].name

    # -- which rows -------------------------------------------------------------------------------------------------------------

    def rows(self, loop: For, ranges: Ranges, lanes: For) -> tuple[Rows, ...]:
        """The rows to be copied, in order of their first access."""
        arrays = {n: v for n, v in self.variables.items() if v.scope != "register" and v.lanes == 1}
        accesses = accesses_of(loop, ranges, of=arrays.keys())
        groups: dict[object, list[tuple[ElementAccess, int]]] = {}
        found: dict[object, Rows] = {}
        written = {a.variable for a in accesses if a.write}
        streamed = {n.target.variable for n in walk_nodes(loop.body) if isinstance(n, Assign) and n.streaming}
        for access in accesses:
            rows = self.line_of(access, loop, lanes)
            key: object = id(access) if rows is None else (access.variable, rows.line, rows.dimension, rows.sign)
            if rows is not None:
                found.setdefault(key, rows)
            groups.setdefault(key, []).append((access, 0 if rows is None else rows.first))
        chosen: list[Rows] = []
        for key, members in groups.items():
            name = members[0][0].variable
            if key not in found or any(a.conditional for a, _ in members):
                continue
            others = [a for k, group in groups.items() if k != key for a, _ in group if a.variable == name]
            if name in written and not all(
                always_apart(members[0][0], a, Lanes(lanes.variable, lanes.width)) for a in others
            ):
                continue
            writes = {offset for a, offset in members if a.write}
            if len(writes) > 1:
                continue
            reads = frozenset(offset for a, offset in members if a.read)
            offsets = frozenset(offset for _, offset in members)
            write, past = next(iter(writes), None), name in streamed & self.arguments
            chosen.append(replace(found[key], offsets=offsets, reads=reads, write=write, streaming=past))
        return tuple(chosen)

    def line_of(self, access: ElementAccess, loop: For, lanes: For) -> Rows | None:
        """The access as one that walks along a row of each lane; None when it does not."""
        return self.line(access.variable, access.subscripts, loop, lanes)

    def line(self, name: str, given: Sequence[Subscript], loop: For, lanes: For) -> Rows | None:
        variable = self.variables.get(name)
        subscripts = tuple(s for s in given if isinstance(s, Affine))
        if variable is None or variable.scope == "register" or variable.lanes > 1 or len(subscripts) < len(given):
            return None
        along = [d for d, s in enumerate(subscripts) if loop.variable in s.variables()]
        across = [d for d, s in enumerate(subscripts) if lanes.variable in s.variables()]
        if len(along) != 1 or not across or along[0] in across:
            return None
        (dimension,) = along
        sign = subscripts[dimension].stride(loop.variable)
        steps = variable.memory_strides
        if sign not in (1, -1) or steps[dimension] != 1:
            return None
        if any(subscripts[d].stride(lanes.variable) is None for d in across):
            return None
        known = [steps[d] for d in across]
        total = sum((subscripts[d].stride(lanes.variable) or 0) * s for d, s in zip(across, known, strict=True) if s)
        if None not in known and total in (-1, 0, 1):
            return None
        rest = subscripts[dimension] - affine(loop.variable) * sign
        start = rest - rest.constant
        line = (*subscripts[:dimension], start, *subscripts[dimension + 1 :])
        offset = rest.constant * sign
        return Rows(variable, line, dimension, sign, frozenset({offset}), frozenset(), None)
