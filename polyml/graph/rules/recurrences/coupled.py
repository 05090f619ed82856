"""Recurrences that wait for each other along a row, of which one alone is left.

Alignments whose gaps have a price to open and one to extend carry two numbers along a row:

    for j in range(1, M):
        E[j] = max(E[j - 1] - extend, H[j - 1] - open)
        H[j] = max(D[j], E[j])

Neither is a step of first order by itself, so neither gets lanes (polyml/linear.py). With what H[j - 1] was made of, E[j] = max(E[j - 1] - extend, max(D[j - 1], E[j - 1]) - open) is one, and H, which nothing along the row waits for any more, is
elementwise. The first iteration, whose H[0] the loop has not made, stays as it is, ahead of the loop. Which iteration made what is read is exact (graph/flow.py), before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Expr, Read, map_reads, reads_of, substitute
from polyml.graph.edit import map_expressions, rename_uses, with_name
from polyml.graph.flow import Access, Place, flow_within, iterations_of, places_of, points_of
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import equation_reads, tensors_of
from polyml.linear import recurrence_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget

__all__ = ["decouple"]

LEAST_STEPS = 32
"""Of a loop whose number of steps is known: shorter rows are a few vectors."""

MOST_EQUATIONS = 6
"""Of a step; what one of them is made of is computed twice afterwards."""

_OPERATIONS = 200_000
"""isl's operations for the questions about one loop."""


def decouple(graph: Graph) -> Graph:
    """The graph whose rows of coupled recurrences have one that waits for itself alone, where that is a step of first order."""
    tensors = tensors_of(graph)
    ops = _changed(graph.ops, (), tensors)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _changed(ops: tuple[Op, ...], around: tuple[Loop, ...], tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    made: list[Op] = []
    for op in ops:
        if not isinstance(op, Loop):
            made.append(op)
            continue
        body = _changed(op.body, (*around, op), tensors)
        loop = op if body is op.body else replace(op, body=body)
        made += _decoupled(loop, around, tensors) or [loop]
    return renewed(ops, made)


def _decoupled(loop: Loop, around: tuple[Loop, ...], tensors: dict[str, Tensor]) -> list[Op] | None:
    """The loop with one of its equations in a form of its own, and what goes ahead of it; None where none has one, or is none the better for it."""
    steps = (loop.stop - loop.start) * loop.step
    if abs(loop.step) != 1 or (steps.is_constant and steps.constant < LEAST_STEPS):
        return None
    equations = [op for op in loop.body if isinstance(op, Equation) and _is_step(op)]
    if len(equations) < len(loop.body) or not 2 <= len(equations) <= MOST_EQUATIONS:
        return None
    row = _Row(loop, around, tuple(equations))
    if not any(row.waits(a, b) and row.waits(b, a) for a in equations for b in equations if a is not b):
        return None
    try:
        with operation_budget(_OPERATIONS, phase="coupled recurrences"):
            for equation in equations:
                alone = row.alone(equation)
                if alone is not None:
                    return _replaced(loop, equation, alone, tensors)
    except BudgetExhausted:
        pass
    return None


def _is_step(equation: Equation) -> bool:
    """Whether it writes one element, by affine subscripts, in each iteration."""
    places = [*equation.target, *(s for read in equation_reads(equation) for s in read.subscripts)]
    plain = equation.reduce is None and not equation.indices and equation.base is not None
    return plain and equation.only_if is None and all(isinstance(place, Affine) for place in places)


@dataclass(frozen=True, slots=True)
class _Alone:
    """A step's expression in terms of its own last value, and so many iterations ahead of those that it is right for."""

    body: Expr
    ahead: int


@dataclass(frozen=True, slots=True)
class _Row:
    """An innermost loop whose equations write one element each."""

    loop: Loop
    around: tuple[Loop, ...]
    equations: tuple[Equation, ...]

    def versions(self, name: str) -> set[str]:
        """The names of what is one tensor with this one, within an iteration."""
        for carried in self.loop.carried:
            names = {carried.inner.name}
            for equation in self.equations:
                if equation.base is not None and equation.base.name in names:
                    names.add(equation.result.name)
            if name in names:
                return names
        return {name}

    def current(self, name: str, equation: Equation) -> str:
        """The version that is there when the equation's turn comes."""
        found = next((c.inner.name for c in self.loop.carried if name in self.versions(c.inner.name)), name)
        for earlier in self.equations:
            if earlier is equation:
                break
            if earlier.base is not None and earlier.base.name == found:
                found = earlier.result.name
        return found

    def waits(self, equation: Equation, other: Equation) -> bool:
        """Whether the equation reads the tensor that the other one writes."""
        names = self.versions(other.result.name)
        return any(read.tensor in names for read in equation_reads(equation))

    def alone(self, equation: Equation) -> _Alone | None:
        """The equation with what the others that wait for it have made put in their places; None where something else is left, or it is no recurrence of first order."""
        known = self.sources(self.loop)
        if known is None:
            return None
        waiting = self.in_turn(equation, known)
        if len(waiting) < 2:
            return None
        own: set[Read] = set()
        ahead = 0
        # One read may stand for several, of this iteration and of the one before, which need not see the same.
        expected: dict[Read, list[dict[str, isl.Map]]] = {}

        def put(reader: Equation, back: int, depth: int) -> Expr | None:
            """The reader's value of so many iterations before, as the equation can read it."""
            nonlocal ahead
            ahead = max(ahead, back)
            failed = False
            # Of indices that are values, too.
            before = {self.loop.variable: affine(self.loop.variable) - back * self.loop.step}
            moved_from = {substitute(read, before): read for read in reads_of(reader.body)}

            def change(moved: Read) -> Expr:
                nonlocal failed
                read = moved_from[moved]
                access = known[reader.result.name, read]
                there = Read(self.current(read.tensor, equation), moved.subscripts, read.dtype)
                writer = next((w for w in waiting if w.result.name in access), None)
                if writer is not None:
                    distance = self.distance(reader, writer, access)
                    if distance is None or depth == 0:
                        failed = True
                        return read
                    if writer is not equation:
                        value = put(writer, back + distance, depth - 1)
                        failed |= value is None
                        return read if value is None else value
                    failed |= back + distance != 1
                    own.add(there)
                seen = {name: self.later(equation, reader, back, found) for name, found in access.items()}
                expected.setdefault(there, []).append(seen)
                return there

            value = map_reads(substitute(reader.body, before), change)
            return None if failed else value

        body = put(equation, 0, len(waiting))
        if body is None or len(own) != 1 or ahead > 1:
            return None
        (before,) = own
        found = recurrence_of(body, before)
        if found is None:
            return None
        return _Alone(body, ahead) if self.is_right(equation, body, ahead, expected) else None

    def is_right(
        self, equation: Equation, body: Expr, ahead: int, expected: Mapping[Read, Sequence[Mapping[str, isl.Map]]]
    ) -> bool:
        """Whether each read of the new body sees what it is meant to."""
        changed = replace(equation, body=body)
        loop = replace(self.loop, body=tuple(changed if op is equation else op for op in self.loop.body))
        known = self.sources(loop)
        if known is None:
            return False
        points = self.from_then(points_of(next(p for p in places_of(loop) if p.equation is changed)), ahead)
        return all(
            _are_equal(known[equation.result.name, read], seen, points)
            for read in dict.fromkeys(reads_of(body))
            for seen in expected.get(read, [{}])
        )

    def sources(self, loop: Loop) -> dict[tuple[str, Read], dict[str, isl.Map]] | None:
        """By reader and read, the relations to the instances of the loop that made what is read."""
        places = [self.within(place) for place in places_of(loop)]
        found: dict[tuple[str, Read], dict[str, isl.Map]] = {}
        groups: list[set[str]] = []
        for place in places:
            group = self.versions(place.equation.result.name)
            if group not in groups:
                groups.append(group)
        for place in places:
            for read in equation_reads(place.equation):
                found[place.equation.result.name, read] = {}
        for group in groups:
            access: Access
            for access in flow_within(places, group):
                reader = access.place.equation.result.name
                found[reader, access.read] = {
                    name: source.set_tuple_name(isl.dim_type.in_, reader).coalesce()
                    for name, source in access.sources.items()
                    if not source.is_empty()
                }
        return found

    def within(self, place: Place) -> Place:
        """The place, of whose instances are left those of iterations that the loops around have."""
        if not self.around:
            return place
        domain = place.equation.domain.intersect_params(iterations_of(self.around))
        return replace(place, equation=replace(place.equation, domain=domain))

    def in_turn(self, equation: Equation, known: Mapping[tuple[str, Read], Mapping[str, isl.Map]]) -> list[Equation]:
        """The equations that wait for this one along the row, and that it waits for, itself among them."""
        edges: dict[str, set[str]] = {e.result.name: set() for e in self.equations}
        for (reader, _), sources in known.items():
            edges[reader].update(sources)

        def reached(start: str) -> set[str]:
            seen: set[str] = set()
            stack = [start]
            while stack:
                for name in edges[stack.pop()] - seen:
                    seen.add(name)
                    stack.append(name)
            return seen

        name = equation.result.name
        return [e for e in self.equations if e.result.name in reached(name) and name in reached(e.result.name)]

    def distance(self, reader: Equation, writer: Equation, access: Mapping[str, isl.Map]) -> int | None:
        """How many iterations ago the writer made what the reader reads, in each iteration that is not one of the first so many; None where that is not one number, or others made it, too."""
        if set(access) != {writer.result.name}:
            return None
        source = access[writer.result.name]
        for back in (0, 1):
            points = self.from_then(self.points(reader), back)
            if source.intersect_domain(points).is_equal(self.step(reader, writer, back).intersect_domain(points)):
                return back
        return None

    def later(self, equation: Equation, reader: Equation, back: int, source: isl.Map) -> isl.Map:
        """What the reader read so many iterations ago, by the equation's instances."""
        return self.step(equation, reader, back).apply_range(source)

    def step(self, one: Equation, other: Equation, back: int) -> isl.Map:
        """From the instances of one equation to those of another so many iterations before."""
        variable = self.loop.variable
        before = affine(variable) - back * self.loop.step
        text = f"{{ {one.result.name}[{variable}] -> {other.result.name}[{before.isl_text()}] }}"
        return isl.Map(text).intersect_domain(self.points(one)).intersect_range(self.points(other))

    def points(self, equation: Equation) -> isl.Set:
        return points_of(self.within(Place(equation, (self.loop,), (0,))))

    def from_then(self, points: isl.Set, ahead: int) -> isl.Set:
        """Without those of the first so many iterations."""
        loop = replace(self.loop, start=self.loop.start + ahead * self.loop.step)
        later = iterations_of([loop])
        at = later.find_dim_by_name(isl.dim_type.param, loop.variable)
        later = later.move_dims(isl.dim_type.set, 0, isl.dim_type.param, at, 1)
        return points.intersect(later.set_tuple_name(points.get_tuple_name()))


def _are_equal(one: Mapping[str, isl.Map], other: Mapping[str, isl.Map], points: isl.Set) -> bool:
    """Whether two reads see the same at these points: by names of writers, the instances that wrote it."""
    found, wanted = ({n: m.intersect_domain(points) for n, m in seen.items()} for seen in (one, other))
    for name in found.keys() | wanted.keys():
        if name in found and name in wanted:
            if not found[name].is_equal(wanted[name]):
                return False
        elif not (found if name in found else wanted)[name].is_empty():
            return False
    return True


def _replaced(loop: Loop, equation: Equation, alone: _Alone, tensors: dict[str, Tensor]) -> list[Op] | None:
    """The first iterations as they were, and the loop over the others with the new expression."""
    body = tuple(replace(op, body=alone.body) if op is equation else op for op in loop.body)
    if not alone.ahead:
        return [replace(loop, body=body)]
    names = {c.inner.name: c.initial for c in loop.carried}
    ops: list[Op] = []
    for op in loop.body:
        assert isinstance(op, Equation), "internal: such a row is of equations"
        (renamed,) = rename_uses((op,), names)
        assert isinstance(renamed, Equation), "internal: an equation stays one"
        names[op.result.name] = replace(op.result, name=fresh_name(op.result.label, tensors))
        tensors[names[op.result.name].name] = names[op.result.name]
        ops.append(with_name(_first(renamed, loop), names[op.result.name]))
    carried = tuple(Carried(names[c.next.name], c.inner, c.next, c.result) for c in loop.carried)
    return [*ops, replace(loop, start=loop.start + loop.step, body=body, carried=carried)]


def _first(equation: Equation, loop: Loop) -> Equation:
    """The equation in the first iteration, if there is one."""
    variable, values = loop.variable, {loop.variable: loop.start}
    changed = map_expressions(equation, lambda expr: substitute(expr, values))
    target = tuple(s.substitute(values) if isinstance(s, Affine) else s for s in changed.target)
    domain = equation.domain.intersect_params(iterations_of([loop]))
    known = ", ".join(sorted({variable, *loop.start.variables()}))
    domain = domain.intersect_params(isl.Set(f"[{known}] -> {{ : {variable} = {loop.start.isl_text()} }}"))
    at = domain.find_dim_by_name(isl.dim_type.param, variable)
    return replace(changed, target=target, domain=domain.project_out(isl.dim_type.param, at, 1).coalesce())
