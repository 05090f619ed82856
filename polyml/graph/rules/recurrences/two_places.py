"""Steps that read a tensor's neighbourhoods and update it take turns between two places, instead of saving the old values first.

`for t in range(T): b[i] = (b[i - 1] + b[i] + b[i + 1]) / 3` in one array copies b in every step, since each value is still read when it is overwritten. With a second tensor c,
which has the elements that no step writes from the start, steps go from b to c and from c to b: no copy is left, and each step moves half as many bytes.

The loop runs two steps at once; where their number is odd, one more follows in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, substitute
from polyml.graph.edit import map_expressions, new_tensor, rename_uses, with_name
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import equation_reads, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, maximum

__all__ = ["LEAST_STEPS", "MOST_EQUATIONS", "alternate_places", "at_step", "moves_on", "number_of_steps"]

LEAST_STEPS = 8
"""Of a loop whose number of steps is known: the second place takes a copy to begin with, and time tiles take several pairs of steps."""

MOST_EQUATIONS = 4
"""Of a step: it is there twice afterwards."""


def alternate_places(graph: Graph) -> Graph:
    """The graph with such loops two steps at a time."""
    tensors = tensors_of(graph)
    ops = _changed(graph.ops, tensors, graph.sizes)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _changed(ops: tuple[Op, ...], tensors: dict[str, Tensor], parameters: tuple[str, ...]) -> tuple[Op, ...]:
    made: list[Op] = []
    for op in ops:
        if not isinstance(op, Loop):
            made.append(op)
            continue
        body = _changed(op.body, tensors, (*parameters, op.variable))
        loop = op if body is op.body else replace(op, body=body)
        moved = _moved(loop)
        made += _Turns(loop, moved, tensors, parameters).ops() if moved else [loop]
    return renewed(ops, made)


def _moved(loop: Loop) -> list[Carried]:
    """What the loop carries and updates from neighbouring elements; empty where two places do not pay."""
    equations = [op for op in loop.body if isinstance(op, Equation)]
    steps = loop.stop - loop.start
    few = steps.is_constant and len(range(0, steps.constant, loop.step)) < LEAST_STEPS
    if few or len(equations) < len(loop.body) or len(equations) > MOST_EQUATIONS:
        return []
    by_result = {equation.result.name: equation for equation in equations}
    found = [(carried, by_result.get(carried.next.name)) for carried in loop.carried]
    return [carried for carried, e in found if e is not None and _is_neighbourly(carried, e, loop, equations)]


def _is_neighbourly(carried: Carried, update: Equation, loop: Loop, equations: Sequence[Equation]) -> bool:
    """Whether the update reads the tensor at fixed distances from the element that it writes, not all of them zero, and writes the same elements in each step."""
    if update.reduce is not None or update.base is None or update.base.name != carried.inner.name:
        return False
    if any(e is not update and e.base is not None and e.base.name == carried.inner.name for e in equations):
        return False
    distances = [
        tuple(there - here if isinstance(there, Affine) and isinstance(here, Affine) else None for there, here in pairs)
        for read in equation_reads(update)
        if read.tensor == carried.inner.name
        for pairs in [list(zip(read.subscripts, update.target, strict=True))]
    ]
    if any(d is None or not d.is_constant for distance in distances for d in distance):
        return False
    moves = any(d is not None and d.constant for distance in distances for d in distance)
    return moves and not moves_on(update, loop.variable)


def moves_on(update: Equation, variable: str) -> bool:
    """Whether the elements that are written depend on the loop's variable (other than that there are iterations)."""
    if any(not isinstance(place, Affine) or variable in place.variables() for place in update.target):
        return True
    position = update.domain.find_dim_by_name(isl.dim_type.param, variable)
    return position >= 0 and bool(update.domain.involves_dims(isl.dim_type.param, position, 1))


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
        pairs = steps // 2
        odd = steps - pairs * 2
        is_even = odd.is_constant and odd.constant == 0
        number = fresh_name(f"{loop.variable}_pair", (*self.tensors, *self.parameters))
        copies = [self.copy(carried.initial) for carried in self.moved]
        here = {c.inner.name: new_tensor(c.inner, self.tensors) for c in loop.carried}
        there = {c.inner.name: new_tensor(c.inner, self.tensors) for c in self.moved}
        first, middle = self.step(affine(number) * (2 * loop.step) + loop.start, number, here, there)
        bases = {c.inner.name: here[c.inner.name] for c in self.moved}
        second, last = self.step(affine(number) * (2 * loop.step) + loop.start + loop.step, number, middle, bases)
        results = {c.inner.name: c.result if is_even else new_tensor(c.result, self.tensors) for c in loop.carried}
        twice = Loop(
            variable=number,
            start=affine(0),
            stop=pairs,
            step=1,
            body=(*first, *second),
            carried=(
                *(
                    Carried(c.initial, here[c.inner.name], last[c.inner.name], results[c.inner.name])
                    for c in loop.carried
                ),
                *(
                    Carried(copy.result, there[c.inner.name], middle[c.inner.name], new_tensor(c.result, self.tensors))
                    for c, copy in zip(self.moved, copies, strict=True)
                ),
            ),
            span=loop.span,
        )
        if is_even:
            return [*copies, twice]
        start = loop.start + pairs * (2 * loop.step)
        rest = replace(
            loop,
            start=start,
            stop=start + odd,
            step=1,
            carried=tuple(replace(c, initial=results[c.inner.name]) for c in loop.carried),
        )
        return [*copies, twice, rest]

    def copy(self, source: Tensor) -> Equation:
        result = new_tensor(source, self.tensors)
        indices = tuple(f"e{d}" for d in range(len(source.shape)))
        limits = [f"0 <= {e} < {extent.isl_text()}" for e, extent in zip(indices, source.shape, strict=True)]
        domain = f"[{', '.join(self.parameters)}] -> {{ {result.name}[{', '.join(indices)}] : {' and '.join(limits)} }}"
        places = tuple(map(affine, indices))
        body = Read(source.name, places, source.dtype)
        return Equation(result=result, indices=indices, domain=isl.Set(domain), target=places, body=body)

    def step(
        self, at: Affine, number: str, values: Mapping[str, Tensor], bases: Mapping[str, Tensor]
    ) -> tuple[list[Op], dict[str, Tensor]]:
        """One step: its ops, and what the carried tensors are afterwards, by the inner tensors' names.

        Args:
            at: the loop's variable, of the pair's `number`. values: the carried tensors before it. bases: what the moved ones are updated in.
        """
        names, ops = dict(values), list[Op]()
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
