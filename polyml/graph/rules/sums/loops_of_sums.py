"""Loops that do nothing but add a sum to one tensor are sums over their variable, too: `for r in range(3): y[h] += sum[c](x[c, h + r] * w[c, r])` is `y[h] += sum[c, r](x[c, h + r] * w[c, r])`; and so are those that keep the
largest or the smallest, `y[h] = max(y[h], x[h + r])`.

A sequential loop goes through the tensor once for each iteration; as a sum it is a contraction or a convolution, with register tiles, and windows share what they have in common. Loops whose number of iterations is known, from the innermost on.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Read, substitute
from polyml.graph.edit import with_name
from polyml.graph.flow import Place, points_of
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import equation_reads
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.independence import is_independent
from polyml.sets.spaces import parameters_of, parameters_text

__all__ = ["sum_loops"]

LEAST_READS = 2
"""Operands of a sum, at least: one alone is read once, row by row, as quickly in a loop, where it is no window."""

REDUCING = {"add": "sum", "max": "max", "min": "min"}
"""What combines a number with what was there, and the reduction that this makes."""


def sum_loops(graph: Graph) -> Graph:
    """The graph without such loops."""
    ops = _changed(graph.ops)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _changed(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    made: list[Op] = []
    for op in ops:
        if not isinstance(op, Loop):
            made.append(op)
            continue
        body = _changed(op.body)
        loop = op if body is op.body else replace(op, body=body)
        made.append(_sum(loop) or loop)
    return renewed(ops, made)


def _sum(loop: Loop) -> Equation | None:
    """The loop as an equation; None where it is anything else."""
    match loop.body, loop.carried:
        case (Equation() as equation,), (carried,):
            pass
        case _:
            return None
    equation = _added(equation, carried.inner)
    if equation.reduce not in REDUCING.values() or not equation.accumulate or equation.base != carried.inner:
        return None
    if equation.instances is not None or equation.only_if is not None or equation.result != carried.next:
        return None
    if not all(isinstance(place, Affine) for place in equation.target):
        return None
    if any(read.tensor == carried.inner.name for read in equation_reads(equation)):
        return None
    reads = {read for read in equation_reads(equation) if read.subscripts}
    if loop.step != 1 or not loop.start.is_constant or not loop.stop.is_constant or loop.variable in equation.indices:
        return None
    if loop.stop.constant <= loop.start.constant:
        return None
    points = points_of(Place(equation, (loop,), (0,)))
    if len(reads) < LEAST_READS:
        # Edges in several dimensions are masks around tiles, which take as long as what windows share saves.
        ragged = len(equation.left) > 1 and not is_independent(points, 0)
        if ragged or not any(_is_window(read, loop.variable, equation.left) for read in reads):
            return None
    moves = any(isinstance(place, Affine) and loop.variable in place.variables() for place in equation.target)
    at, first = len(equation.left), loop.start.constant
    old = [loop.variable, *equation.indices]
    new = [*equation.indices[:at], loop.variable, *equation.indices[at:]]
    places = ", ".join(f"{name} + {first}" if name == loop.variable else name for name in old)
    head = parameters_text(parameters_of(points))
    name = equation.result.name
    domain = points.preimage_multi_aff(isl.MultiAff(f"{head}{{ {name}[{', '.join(new)}] -> {name}[{places}] }}"))
    values = {loop.variable: affine(loop.variable) + first}
    made = replace(
        equation,
        indices=tuple(new),
        domain=domain,
        target=tuple(place.substitute(values) for place in equation.target if isinstance(place, Affine)),
        body=substitute(equation.body, values),
        reduced=equation.reduced if moves else (loop.variable, *equation.reduced),
        base=carried.initial,
    )
    return with_name(made, carried.result)


def _is_window(read: Read, variable: str, left: tuple[str, ...]) -> bool:
    """Whether iterations meet the same elements, for neighbours of the result: `x[i + r]`. Windows that are further apart than their places share little."""
    for place in read.subscripts:
        strides = dict(place.terms) if isinstance(place, Affine) else {}
        if variable in strides and any(abs(strides.get(index, 0)) == abs(strides[variable]) for index in left):
            return True
    return False


def _added(equation: Equation, before: Tensor) -> Equation:
    """The equation as a reduction that goes on with what was there, where it combines with that: `y[i] = y[i] + x[i]`, `y[i] = max(y[i], x[i])`."""
    own = Read(before.name, equation.target, before.dtype)
    match equation.body:
        case Apply(op=op, args=(first, second)) if op in REDUCING and own in (first, second):
            reduce = REDUCING[op]
        case _:
            return equation
    if equation.reduce is not None or equation.accumulate or equation.base not in (None, before):
        return equation
    term = second if first == own else first
    return replace(equation, body=term, reduce=reduce, accumulate=True, base=before)
