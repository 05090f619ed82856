"""Levels of time that move on by copies take turns instead, in as many places as steps need.

A wave takes two levels to make the next one, which two copies move on to:

    for t in range(T):
        c = 0;  c[i] = 2 * b[i] - a[i] + ..b[i - 1]..b[i + 1]..     (0 < i < N - 1)
        a = b
        b = c

What a step reads of a it reads where it writes c, and nobody reads a afterwards: so c is made in a's place, and the next step's in b's. Two steps run at a time, without copies and without a third array; elements that no step computes
are in both places from the start. Where each step fills them anew, the first step runs as it was, since b has others before. Where one level makes the next, the second place is a copy to begin with, as in rules/recurrences/two_places.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Const, Read
from polyml.graph.builder.parts import fill
from polyml.graph.edit import new_tensor, protected_names, rename_uses, with_name
from polyml.graph.elements import all_elements, elements_at
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.recurrences.histories import history_of
from polyml.graph.rules.recurrences.two_places import LEAST_STEPS, MOST_EQUATIONS, at_step, number_of_steps
from polyml.graph.rules.recurrences.updates import is_copy, moves_on
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.traverse import equation_reads, tensors_of, users_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, maximum

__all__ = ["turn_levels"]


def turn_levels(graph: Graph) -> Graph:
    """The graph with such loops two steps at a time."""
    tensors = tensors_of(graph)
    for position in reversed(range(len(graph.ops))):
        history = history_of(graph, position, tensors)
        if history is not None and _levels(history.loop, {history.last.name}) is not None:
            before, behind = graph.ops[:position], history.seen(graph.ops[position + 1 :])
            graph = remove_dead(replace(graph, ops=(*before, *history.ahead, history.loop, *behind)))
    seen = protected_names(graph) | set(users_of(graph.ops))
    ops = _changed(graph.ops, tensors, graph.sizes, seen)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _changed(
    ops: tuple[Op, ...], tensors: dict[str, Tensor], parameters: tuple[str, ...], seen: set[str]
) -> tuple[Op, ...]:
    made: list[Op] = []
    for op in ops:
        if not isinstance(op, Loop):
            made.append(op)
            continue
        body = _changed(op.body, tensors, (*parameters, op.variable), seen)
        loop = op if body is op.body else replace(op, body=body)
        levels = _levels(loop, seen)
        made += [loop] if levels is None else _Turning(loop, levels, tensors, parameters).ops()
    return renewed(ops, made)


@dataclass(frozen=True, slots=True)
class _Level:
    """What a loop carries as the newest level, and as the one before, if there is one. updates: what makes the next one, in order. filled: what the elements beside have in each step; None: they stay."""

    newest: Carried
    before: Carried | None
    updates: tuple[Equation, ...]
    filled: Const | None


def _levels(loop: Loop, seen: set[str]) -> list[_Level] | None:
    """All that the loop carries as levels; None where something else is carried, or nothing moves on by a copy."""
    equations = [op for op in loop.body if isinstance(op, Equation)]
    steps = number_of_steps(loop)
    few = steps.is_constant and steps.constant < LEAST_STEPS
    if few or len(equations) < len(loop.body) or len(loop.carried) > 2 * MOST_EQUATIONS:
        return None
    step = _Step(loop, {equation.result.name: equation for equation in equations})
    before = {b.inner.name: a for a in loop.carried for b in loop.carried if step.source(a.next.name) == b.inner.name}
    levels: list[_Level] = []
    for carried in loop.carried:
        if any(carried is old for old in before.values()):
            if carried.result.name in seen:
                return None
            continue
        level = step.level(carried, before.get(carried.inner.name))
        if level is None:
            return None
        levels.append(level)
    if len(levels) + len(before) != len(loop.carried) or not any(x.before or x.filled for x in levels):
        return None
    # What each element makes of itself alone stays in registers.
    newest = {level.newest.inner.name for level in levels}
    reads = ((step.source(read.tensor), read, e) for e in equations for read in equation_reads(e))
    if not any(name in newest and read.subscripts != equation.target for name, read, equation in reads):
        return None
    return levels if step.is_plain(levels) else None


@dataclass(frozen=True, slots=True)
class _Step:
    """The body of a loop, all of it equations, by what they make."""

    loop: Loop
    equations: Mapping[str, Equation]

    def source(self, name: str) -> str:
        """What a tensor is a whole copy of, or itself."""
        while (equation := self.equations.get(name)) is not None and is_copy(equation):
            assert isinstance(equation.body, Read), "internal: a copy that computes"
            name = equation.body.tensor
        return name

    def level(self, newest: Carried, before: Carried | None) -> _Level | None:
        """How the newest level is made; None where that is not in updates of one that is filled, or of what there was."""
        updates: list[Equation] = []
        name = self.source(newest.next.name)
        while (equation := self.equations.get(name)) is not None:
            if equation.base is None and isinstance(equation.body, Const) and _is_whole(equation):
                return _Level(newest, before, tuple(reversed(updates)), equation.body) if updates else None
            affine_target = all(isinstance(place, Affine) for place in equation.target)
            if (
                equation.reduce is not None
                or equation.only_if is not None
                or not affine_target
                or equation.base is None
            ):
                return None
            if moves_on(equation, self.loop.variable):
                return None
            updates.append(equation)
            name = self.source(equation.base.name)
        return _Level(newest, before, tuple(reversed(updates)), None) if updates and name == newest.inner.name else None

    def is_plain(self, levels: Sequence[_Level]) -> bool:
        """Whether a level before is read only where the next one is written, and nothing is read of one that is not finished."""
        updates = {update.result.name for level in levels for update in level.updates}
        finished = {level.updates[-1].result.name for level in levels}
        others = [e for e in self.equations.values() if e.result.name not in updates and not is_copy(e)]
        others = [e for e in others if not (isinstance(e.body, Const) and _is_whole(e))]
        if len(others) + len(updates) > MOST_EQUATIONS:
            return False
        owners = {level.before.inner.name: level for level in levels if level.before is not None}
        for equation in self.equations.values():
            for read in equation_reads(equation):
                name = self.source(read.tensor)
                if name in updates - finished or isinstance(getattr(self.equations.get(name), "body", None), Const):
                    return False
                owner = owners.get(name)
                if owner is None or is_copy(equation):
                    continue
                if len(owner.updates) > 1 or equation is not owner.updates[0] or read.subscripts != equation.target:
                    return False
        bases = [self.source(e.base.name) for e in others if e.base is not None]
        carried = {c.inner.name for c in self.loop.carried}
        return not any(name in carried or name in updates for name in bases)


def _is_whole(equation: Equation) -> bool:
    """Whether it makes every element."""
    if equation.base is not None or equation.reduce is not None:
        return False
    made = elements_at(equation.domain, equation.left, equation.target)
    return bool(all_elements(equation.result).is_subset(made))


@dataclass(slots=True)
class _Turning:
    """A loop being rewritten. tensors: all of the graph by name, new ones included. parameters: of the sets around the loop."""

    loop: Loop
    levels: Sequence[_Level]
    tensors: dict[str, Tensor]
    parameters: tuple[str, ...]

    def ops(self) -> list[Op]:
        """The second places, the first step where it must be as it was, the loop over pairs of steps, and what is left of an odd number of them."""
        loop, ops = self.loop, list[Op]()
        count = number_of_steps(loop, least=None)
        steps, first = count, loop.start
        newest = {level.newest.inner.name: level.newest.initial for level in self.levels}
        places = {level.newest.inner.name: self.place(level, newest, ops) for level in self.levels}
        once = any(level.filled is not None for level in self.levels)
        if once:
            # Elements beside those that are made are others before the first step.
            made, after = self.step(first, newest, places)
            ops += self.only(made, count, "{0} >= 1")
            places = {level.newest.inner.name: self.rim(level, newest, count, ops) for level in self.levels}
            newest, first, steps = after, first + loop.step, count - 1
        number = fresh_name(f"{loop.variable}_pair", (*self.tensors, *self.parameters))
        here = {name: new_tensor(tensor, self.tensors) for name, tensor in newest.items()}
        there = {name: new_tensor(tensor, self.tensors) for name, tensor in places.items()}
        at = affine(number) * (2 * loop.step) + first
        one, middle = self.step(at, here, there)
        two, last = self.step(at + loop.step, middle, here)
        named = {level.newest.inner.name: level.newest.result for level in self.levels}
        is_even = steps.is_constant and steps.constant % 2 == 0
        left = named if is_even else {n: new_tensor(t, self.tensors) for n, t in here.items()}
        behind = {n: new_tensor(t, self.tensors) for n, t in there.items()}
        carried = [Carried(newest[n], here[n], last[n], left[n]) for n in here]
        carried += [Carried(places[n], there[n], middle[n], behind[n]) for n in there]
        twice = Loop(
            variable=number,
            start=affine(0),
            stop=maximum([affine(0), steps // 2]),
            step=1,
            body=(*one, *two),
            carried=tuple(carried),
            span=loop.span,
        )
        ops.append(twice)
        if is_even:
            return ops
        at = first + (steps - 1) * loop.step
        if steps.is_constant:
            made, _ = self.step(at, left, behind, named)
            return [*ops, *made]
        made, results = self.step(at, left, behind)
        ops += self.only(made, steps, "{0} >= 1 and ({0}) mod 2 = 1")
        # The result is where the newest level was before the loop, or without any step.
        for level in self.levels:
            name = level.newest.inner.name
            source, base, when = (left[name], results[name], "{0} >= 0 and ({0}) mod 2 = 0")
            if not once:
                source, base, when = base, source, "{0} >= 1 and ({0}) mod 2 = 1"
            indices = tuple(affine(f"i{d}") for d in range(len(source.shape)))
            whole = fill(named[name], Read(source.name, indices, source.dtype), loop.span)
            ops += self.only([replace(whole, base=base)], steps, when)
        return ops

    def place(self, level: _Level, newest: Mapping[str, Tensor], ops: list[Op]) -> Tensor:
        """Where the first step makes the next level: there is what it reads of the level before, and beside that what no step computes."""
        source = newest[level.newest.inner.name]
        if level.before is None:
            place = new_tensor(source, self.tensors)
            indices = tuple(affine(f"i{d}") for d in range(len(source.shape)))
            ops.append(fill(place, level.filled or Read(source.name, indices, source.dtype), self.loop.span))
            return place
        return self.beside(level, level.before.initial, level.filled or source, None, ops)

    def rim(self, level: _Level, newest: Mapping[str, Tensor], count: Affine, ops: list[Op]) -> Tensor:
        """Where the second step makes the next level: in what was the newest one ahead of the first."""
        place = newest[level.newest.inner.name]
        return place if level.filled is None else self.beside(level, place, level.filled, count, ops)

    def beside(self, level: _Level, base: Tensor, value: Const | Tensor, count: Affine | None, ops: list[Op]) -> Tensor:
        """The base with another value, or a tensor's, in the elements that no step makes. count: if there are so many steps at all (None: in any case)."""
        elements = all_elements(base)
        for update in level.updates:
            elements = elements.subtract(elements_at(self.outside(update.domain), update.left, update.target))
        elements = elements.coalesce()
        if elements.is_empty():
            return base
        result = new_tensor(base, self.tensors)
        names = tuple(f"i{d}" for d in range(len(base.shape)))
        places = tuple(map(affine, names))
        for position, name in enumerate(names):
            elements = elements.set_dim_name(isl.dim_type.set, position, name)
        made = Equation(
            result=result,
            indices=names,
            domain=elements.set_tuple_name(result.name),
            target=places,
            body=value if isinstance(value, Const) else Read(value.name, places, value.dtype),
            base=base,
            span=self.loop.span,
        )
        ops += [made] if count is None else self.only([made], count, "{0} >= 1")
        return result

    def outside(self, points: isl.Set) -> isl.Set:
        """The points, which are the same in each step, without the step's number."""
        position = points.find_dim_by_name(isl.dim_type.param, self.loop.variable)
        return points if position < 0 else points.project_out(isl.dim_type.param, position, 1)

    def only(self, equations: Sequence[Op], of: Affine, condition: str) -> list[Op]:
        """The equations under a condition in the number of steps."""
        if of.is_constant:
            return list(equations)
        text = condition.format(of.isl_text())
        under = isl.Set(f"[{', '.join(sorted(of.variables()))}] -> {{ : {text} }}")
        return [replace(e, domain=e.domain.intersect_params(under)) for e in equations if isinstance(e, Equation)]

    def step(
        self,
        at: Affine,
        newest: Mapping[str, Tensor],
        places: Mapping[str, Tensor],
        results: Mapping[str, Tensor] | None = None,
    ) -> tuple[list[Op], dict[str, Tensor]]:
        """One step: its ops, and the newest levels afterwards, by the inner tensors' names.

        Args:
            at: the loop's variable. newest: the levels before it. places: the levels before those, which it overwrites. results: what the newest levels are called then.
        """
        names = dict(newest)
        firsts: dict[str, Tensor] = {}
        called: dict[str, Tensor] = {}
        for level in self.levels:
            name = level.newest.inner.name
            firsts[level.updates[0].result.name] = places[name]
            if results is not None:
                called[level.updates[-1].result.name] = results[name]
            if level.before is not None:
                names[level.before.inner.name] = places[name]
        step = _Step(self.loop, {op.result.name: op for op in self.loop.body if isinstance(op, Equation)})
        ops: list[Op] = []
        for op in self.loop.body:
            assert isinstance(op, Equation), "internal: such a step is of equations"
            if is_copy(op):
                source = step.source(op.result.name)
                names[op.result.name] = names.get(source, self.tensors[source])
                continue
            if isinstance(op.body, Const) and _is_whole(op):
                continue
            named = replace(op, base=None) if op.result.name in firsts else op
            (renamed,) = rename_uses((named,), names)
            assert isinstance(renamed, Equation), "internal: an equation stays one"
            if op.result.name in firsts:
                renamed = replace(renamed, base=firsts[op.result.name])
            names[op.result.name] = called.get(op.result.name) or new_tensor(op.result, self.tensors)
            ops.append(with_name(at_step(renamed, self.loop.variable, at), names[op.result.name]))
        return ops, {level.newest.inner.name: names[level.updates[-1].result.name] for level in self.levels}
