"""Steps that read a tensor's neighbourhoods and update it take turns between two places, instead of saving the old values first.

`for t in range(T): b[i] = (b[i - 1] + b[i] + b[i + 1]) / 3` in one array copies b in every step, since each value is still read when it is overwritten. With a second tensor c,
which has the elements that no step writes from the start, steps go from b to c and from c to b: no copy is left, and each step moves half as many bytes.

Steps that end, or begin, with a copy of the whole tensor, `v[i] = ..u..; u[i] = v[i]`, take turns as well (rules/recurrences/updates.py says when v is no more than u's next value), with borders that are set beside.

The loop runs two steps at once; where their number is odd, the last of them is left out, and what the one before made in c is copied back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, substitute
from polyml.graph.builder.parts import fill
from polyml.graph.edit import map_expressions, new_tensor, protected_names, rename_uses, with_name
from polyml.graph.elements import elements_read
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.recurrences.updates import is_finished, updates_of, without_copies, written
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.traverse import all_ops, equation_reads, tensors_of, users_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, maximum

__all__ = ["LEAST_STEPS", "MOST_EQUATIONS", "alternate_places", "at_step", "number_of_steps"]

LEAST_STEPS = 8
"""Of a loop whose number of steps is known: the second place takes a copy to begin with, and time tiles take several pairs of steps."""

MOST_EQUATIONS = 4
"""Of a step: it is there twice afterwards."""

MOST_BORDERS = 8
"""Equations of fewer indices, beside them."""


def alternate_places(graph: Graph) -> Graph:
    """The graph with such loops two steps at a time."""
    if not any(isinstance(op, Loop) for op in graph.ops):
        return graph
    ahead = {op.result.name: op for op in all_ops(graph.ops) if isinstance(op, Equation)}
    seen = protected_names(graph) | set(users_of(graph.ops))
    ops = _changed(graph.ops, _Around(tensors_of(graph), ahead, seen, graph.sizes))
    return graph if ops is graph.ops else remove_dead(replace(graph, ops=ops))


@dataclass(frozen=True, slots=True)
class _Around:
    """What is around a loop. tensors: all of the graph by name, new ones included. ahead: equations by their results. seen: the tensors that somebody reads. parameters: of the sets around it."""

    tensors: dict[str, Tensor]
    ahead: Mapping[str, Equation]
    seen: set[str]
    parameters: tuple[str, ...]


def _changed(ops: tuple[Op, ...], around: _Around) -> tuple[Op, ...]:
    made: list[Op] = []
    for op in ops:
        if not isinstance(op, Loop):
            made.append(op)
            continue
        body = _changed(op.body, replace(around, parameters=(*around.parameters, op.variable)))
        loop = op if body is op.body else replace(op, body=body)
        made += _in_turns(loop, around)
    return renewed(ops, made)


def _in_turns(loop: Loop, around: _Around) -> list[Op]:
    """The loop, with pairs of steps where they pay."""
    steps = number_of_steps(loop)
    few = steps.is_constant and steps.constant < LEAST_STEPS
    if few or not all(isinstance(op, Equation) for op in loop.body):
        return [loop]
    folded, same = without_copies(loop, around.ahead)
    moved = _moved(folded)
    if not moved:
        return [loop]
    ops = _Turns(folded, moved, around.tensors, around.parameters).ops()
    for carried in loop.carried:
        if carried.result.name in same and carried.result.name in around.seen:
            ops.append(_when_any(carried, same[carried.result.name], steps, loop))
    return ops


def _when_any(carried: Carried, source: Tensor, steps: Affine, loop: Loop) -> Equation:
    """The result of a tensor that the loop does not carry any more: the other one's if there are steps."""
    indices = tuple(affine(f"i{d}") for d in range(len(source.shape)))
    whole = fill(carried.result, Read(source.name, indices, source.dtype), loop.span)
    if steps.is_constant:
        return whole
    some = isl.Set(f"[{', '.join(sorted(steps.variables()))}] -> {{ : {steps.isl_text()} >= 1 }}")
    return replace(whole, domain=whole.domain.intersect_params(some), base=carried.initial)


def _moved(loop: Loop) -> list[Carried]:
    """What the loop carries and updates from neighbouring elements; empty where two places do not pay."""
    equations = [op for op in loop.body if isinstance(op, Equation)]
    if len(equations) > MOST_EQUATIONS + MOST_BORDERS or sum(map(_is_wide, equations)) > MOST_EQUATIONS:
        return []
    return [carried for carried in loop.carried if _is_neighbourly(carried, loop, equations)]


def _is_wide(equation: Equation) -> bool:
    """Whether it goes along all dimensions of what it writes, other than a border."""
    return len(equation.indices) >= len(equation.target)


def _is_neighbourly(carried: Carried, loop: Loop, equations: Sequence[Equation]) -> bool:
    """Whether elements are read at fixed distances from those that are written, not all of them zero, when they could be overwritten; and the same elements are written in each step."""
    updates = updates_of(carried, loop)
    if not updates or not is_finished(updates, equations):
        return False
    moves = after = False
    for equation in equations:
        own = any(equation is update for update in updates)
        after = after or own
        for read in equation_reads(equation):
            if read.tensor != carried.inner.name or not after or not _is_wide(equation):
                continue
            distance = _distance(read, equation)
            if own and distance is None:
                return False
            if distance is not None and any(distance) and not moves:
                places = written([equation] if own else updates)
                moves = not elements_read(equation, read).is_disjoint(places)
    return moves


def _distance(read: Read, equation: Equation) -> tuple[int, ...] | None:
    """How far from the element that is written another one is read; None where that is not fixed."""
    if len(read.subscripts) != len(equation.target):
        return None
    pairs = zip(read.subscripts, equation.target, strict=True)
    apart = [there - here if isinstance(there, Affine) and isinstance(here, Affine) else None for there, here in pairs]
    return (
        tuple(d.constant for d in apart if d is not None)
        if all(d is not None and d.is_constant for d in apart)
        else None
    )


@dataclass(slots=True)
class _Turns:
    """A loop being rewritten. tensors: all of the graph by name, new ones included. parameters: of the sets around the loop. moved: see _moved."""

    loop: Loop
    moved: Sequence[Carried]
    tensors: dict[str, Tensor]
    parameters: tuple[str, ...]

    def ops(self) -> list[Op]:
        """Copies for the second places, the loop over pairs of steps, and what is left of an odd number of them."""
        loop = self.loop
        steps = number_of_steps(loop)
        odd = steps - steps // 2 * 2
        is_even = odd.is_constant and odd.constant == 0
        number = fresh_name(f"{loop.variable}_pair", (*self.tensors, *self.parameters))
        copies = [self.copy(carried.initial) for carried in self.moved]
        here = {c.inner.name: new_tensor(c.inner, self.tensors) for c in loop.carried}
        there = {c.inner.name: new_tensor(c.inner, self.tensors) for c in self.moved}
        at = affine(number) * (2 * loop.step) + loop.start
        body, middle = self.step(at, number, here, there)
        second, last = self.step(at + loop.step, number, middle, {name: here[name] for name in there})
        if not is_even:
            known = ", ".join(sorted({number, *steps.variables()}))
            under = isl.Set(f"[{known}] -> {{ : 2*{number} + 1 < {steps.isl_text()} }}")
            second = self.only(second, under)
            for c in loop.carried:
                name = c.inner.name
                if name not in there and not updates_of(c, loop):
                    copy = replace(self.copy(last[name]), base=middle[name])
                    second, last = [*second, *self.only([copy], under)], {**last, name: copy.result}
        moved = {c.inner.name for c in self.moved}
        results = {
            c.inner.name: new_tensor(c.result, self.tensors) if c.inner.name in moved and not is_even else c.result
            for c in loop.carried
        }
        behind = {c.inner.name: new_tensor(c.result, self.tensors) for c in self.moved}
        carried = [Carried(c.initial, here[n], last[n], results[n]) for c in loop.carried for n in [c.inner.name]]
        for c, copy in zip(self.moved, copies, strict=True):
            name = c.inner.name
            carried.append(Carried(copy.result, there[name], middle[name], behind[name]))
        twice = Loop(
            variable=number,
            start=affine(0),
            stop=(steps + 1) // 2,
            step=1,
            body=(*body, *second),
            carried=tuple(carried),
            span=loop.span,
        )
        if is_even:
            return [*copies, twice]
        back = [self.copy(behind[c.inner.name], c.result) for c in self.moved]
        if not odd.is_constant:
            under = isl.Set(f"[{', '.join(sorted(odd.variables()))}] -> {{ : {odd.isl_text()} = 1 }}")
            bases = [results[c.inner.name] for c in self.moved]
            back = self.only([replace(b, base=base) for b, base in zip(back, bases, strict=True)], under)
        return [*copies, twice, *back]

    def only(self, equations: Sequence[Equation], under: isl.Set) -> list[Equation]:
        """The equations where parameters are in this set; nothing is computed, or summed up, elsewhere."""
        made: list[Equation] = []
        for e in equations:
            instances = None if e.instances is None else e.instances.intersect_params(under)
            made.append(replace(e, domain=e.domain.intersect_params(under), instances=instances))
        return made

    def copy(self, source: Tensor, result: Tensor | None = None) -> Equation:
        result = result or new_tensor(source, self.tensors)
        indices = tuple(f"e{d}" for d in range(len(source.shape)))
        limits = [f"0 <= {e} < {extent.isl_text()}" for e, extent in zip(indices, source.shape, strict=True)]
        domain = f"[{', '.join(self.parameters)}] -> {{ {result.name}[{', '.join(indices)}] : {' and '.join(limits)} }}"
        places = tuple(map(affine, indices))
        body = Read(source.name, places, source.dtype)
        return Equation(result=result, indices=indices, domain=isl.Set(domain), target=places, body=body)

    def step(
        self, at: Affine, number: str, values: Mapping[str, Tensor], bases: Mapping[str, Tensor]
    ) -> tuple[list[Equation], dict[str, Tensor]]:
        """One step: its ops, and what the carried tensors are afterwards, by the inner tensors' names.

        Args:
            at: the loop's variable, of the pair's `number`. values: the carried tensors before it. bases: what the moved ones are updated in.
        """
        names, ops = dict(values), list[Equation]()
        for op in self.loop.body:
            assert isinstance(op, Equation), "internal: such a step is of equations"
            (renamed,) = rename_uses((op,), names)
            assert isinstance(renamed, Equation), "internal: an equation stays one"
            if op.base is not None and op.base.name in bases:
                renamed = replace(renamed, base=bases[op.base.name])
            names[op.result.name] = new_tensor(op.result, self.tensors)
            ops.append(with_name(at_step(renamed, self.loop.variable, at, number), names[op.result.name]))
        return ops, {c.inner.name: names.get(c.next.name, c.next) for c in self.loop.carried}


def number_of_steps(loop: Loop, *, least: int | None = 0) -> Affine:
    """How many iterations the loop has. least: None: less than none, where the loop is empty."""
    span, step = (loop.stop - loop.start, loop.step) if loop.step > 0 else (loop.start - loop.stop, -loop.step)
    steps = (span + (step - 1)) // step
    return steps if least is None else maximum([affine(least), steps])


def at_step(equation: Equation, variable: str, value: Affine, *others: str) -> Equation:
    """The equation where the loop's variable has this value, which may depend on others."""

    def points(points: isl.Set) -> isl.Set:
        position = points.find_dim_by_name(isl.dim_type.param, variable)
        if position < 0:
            return points
        known = ", ".join(sorted({variable, *others, *value.variables()}))
        points = points.intersect_params(isl.Set(f"[{known}] -> {{ : {variable} = {value.isl_text()} }}"))
        return points.project_out(isl.dim_type.param, points.find_dim_by_name(isl.dim_type.param, variable), 1)

    values = {variable: value}
    changed = map_expressions(equation, lambda expr: substitute(expr, values))
    target = tuple(s.substitute(values) if isinstance(s, Affine) else s for s in changed.target)
    instances = None if equation.instances is None else points(equation.instances)
    return replace(changed, domain=points(equation.domain), target=target, instances=instances)
