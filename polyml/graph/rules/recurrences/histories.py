"""Histories of which the end alone is seen: a loop that writes v[t, i] from v[t - 1, ..] and v[t - 2, ..] and is followed by reads of its last v[T, i] carries two levels instead of all of them.

    v[t, i] = 2 * v[t - 1, i] - v[t - 2, i] + ..        becomes        c[i] = 2 * b[i] - a[i] + ..;  a = b;  b = c

What the history has from the start is written before the loop, level by level, or is one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Const, Read, map_reads
from polyml.graph.builder.parts import fill
from polyml.graph.edit import map_equations, map_expressions, new_tensor
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import all_ops, equation_reads
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["History", "history_of"]

MOST_LEVELS = 2
"""That a step goes back."""


@dataclass(frozen=True, slots=True)
class History:
    """A loop in terms of levels. ahead: what makes the first ones. loop: over levels. last: the newest one behind the loop. result: the history, time: its dimension of levels, end: the newest level's number."""

    ahead: tuple[Op, ...]
    loop: Loop
    last: Tensor
    result: Tensor
    time: int
    end: Affine

    def seen(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """The ops behind the loop, which read the last level."""

        def change(read: Read) -> Read:
            if read.tensor != self.result.name:
                return read
            return Read(self.last.name, _without(read.subscripts, self.time), read.dtype)

        return map_equations(tuple(ops), lambda e: map_expressions(e, lambda expr: map_reads(expr, change)))


def history_of(graph: Graph, position: int, tensors: dict[str, Tensor]) -> History | None:
    """The loop at that place in terms of levels; None where it has no history, or more of it is seen than the end."""
    loop = graph.ops[position]
    if not isinstance(loop, Loop) or loop.step != 1 or len(loop.carried) != 1:
        return None
    (carried,) = loop.carried
    updates = [op for op in loop.body if isinstance(op, Equation) and op.base is not None]
    if len(updates) < len(loop.body) or not _follow(updates, carried):
        return None
    time = _time_of(updates, loop)
    if time is None:
        return None
    written = updates[0].target[time]
    assert isinstance(written, Affine), "internal: a level with an expression for its number"
    end = written.substitute({loop.variable: loop.stop - 1})
    start = written.substitute({loop.variable: loop.start})
    if not _ends_there(graph, position, carried, time, end) or not _is_entered(loop, graph):
        return None
    made = {update.result.name for update in updates}
    if any(read.tensor in made for update in updates for read in equation_reads(update)):
        return None
    depths = [_depth(read, carried, written, time) for update in updates for read in equation_reads(update)]
    if any(depth is None for depth in depths):
        return None
    levels = max((depth for depth in depths if depth is not None), default=0)
    first = _first_levels(
        graph.ops[:position], carried.initial, time, [start - 1 - k for k in range(levels)], start, tensors
    )
    if not levels or first is None:
        return None
    ahead, values, filled = first
    return _with_levels(loop, updates, time, ahead, values, filled, end, tensors)


def _without(subscripts: Sequence[object], time: int) -> tuple[Affine, ...]:
    return tuple(s for d, s in enumerate(subscripts) if d != time and isinstance(s, Affine))


def _follow(updates: Sequence[Equation], carried: Carried) -> bool:
    """Whether these are updates of the carried tensor, one after the other, and of nothing else."""
    name = carried.inner.name
    for update in updates:
        places = [*update.target, *(s for read in equation_reads(update) for s in read.subscripts)]
        plain = update.reduce is None and update.only_if is None and all(isinstance(p, Affine) for p in places)
        if not plain or update.base is None or update.base.name != name:
            return False
        name = update.result.name
    return name == carried.next.name


def _time_of(updates: Sequence[Equation], loop: Loop) -> int | None:
    """The dimension in which the loop goes on, one level an iteration."""
    found: set[int] = set()
    for update in updates:
        for d, place in enumerate(update.target):
            if isinstance(place, Affine) and loop.variable in place.variables():
                if place.variables() & set(update.indices) or place.stride(loop.variable) != 1:
                    return None
                found.add(d)
    if len(found) != 1:
        return None
    (time,) = found
    return time if len({update.target[time] for update in updates}) == 1 else None


def _depth(read: Read, carried: Carried, written: Affine, time: int) -> int | None:
    """How many levels before the one that is written the read is of; 0 for other tensors, None where that is not known, or too far."""
    if read.tensor != carried.inner.name:
        return 0
    place = read.subscripts[time]
    back = written - place if isinstance(place, Affine) else None
    known = back is not None and back.is_constant and 1 <= back.constant <= MOST_LEVELS
    return back.constant if back is not None and known else None


def _ends_there(graph: Graph, position: int, carried: Carried, time: int, end: Affine) -> bool:
    """Whether nothing but the last level is seen behind the loop."""
    name = carried.result.name
    if any(tensor.name == name for tensor in graph.outputs) or any(
        item.final is not None and item.final.name == name for item in graph.inputs
    ):
        return False
    for op in all_ops(graph.ops[position + 1 :]):
        if isinstance(op, Equation):
            bases = [tensor.name for tensor in (op.base, op.only_if) if tensor is not None]
            reads = [read for read in equation_reads(op) if read.tensor == name]
            affine_reads = all(isinstance(s, Affine) for read in reads for s in read.subscripts)
            if name in bases or not affine_reads or any(read.subscripts[time] != end for read in reads):
                return False
        elif isinstance(op, Loop) and any(c.initial.name == name for c in op.carried):
            return False
    return True


def _is_entered(loop: Loop, graph: Graph) -> bool:
    """Whether the loop has no negative number of iterations, so that the last level is the one before the first where it has none."""
    span = loop.stop - loop.start
    if span.is_constant:
        return span.constant >= 0
    known = graph.context
    names = ", ".join(graph.sizes)
    for needed in graph.requires:
        known = known.intersect(isl.Set(f"[{names}] -> {{ : {needed.isl_text()} >= 0 }}"))
    return bool(known.is_subset(isl.Set(f"[{names}] -> {{ : {span.isl_text()} >= 0 }}")))


def _first_levels(
    ops: Sequence[Op], initial: Tensor, time: int, numbers: Sequence[Affine], start: Affine, tensors: dict[str, Tensor]
) -> tuple[list[Op], list[Tensor], Const | None] | None:
    """What makes the levels of these numbers, them, and what all later ones have; None where that is not known."""
    by_result = {op.result.name: op for op in ops if isinstance(op, Equation)}
    writers: list[Equation] = []
    filled: Const | None = None
    name = initial.name
    while True:
        equation = by_result.get(name)
        if equation is None or equation.reduce is not None or equation.only_if is not None:
            return None
        if equation.base is None and isinstance(equation.body, Const) and equation.is_plain:
            filled = equation.body
            break
        place = equation.target[time]
        later = isinstance(place, Affine) and (place - start).is_constant and (place - start).constant < 0
        if not later or not all(isinstance(s, Affine) for s in equation.target):
            return None
        writers.append(equation)
        if equation.base is None:
            break
        name = equation.base.name
    ahead: list[Op] = []
    levels: list[Tensor] = []
    shape = tuple(extent for d, extent in enumerate(initial.shape) if d != time)
    for number in numbers:
        model = replace(initial, shape=shape)
        base: Tensor | None = None
        if filled is not None:
            base = replace(model, name=fresh_name(initial.label, tensors))
            tensors[base.name] = base
            ahead.append(fill(base, filled, None))
        for writer in reversed(writers):
            if writer.target[time] != number:
                continue
            result = replace(model, name=fresh_name(initial.label, tensors))
            tensors[result.name] = result
            target = _without(writer.target, time)
            ahead.append(
                replace(
                    writer, result=result, target=target, base=base, domain=writer.domain.set_tuple_name(result.name)
                )
            )
            base = result
        if base is None:
            return None
        levels.append(base)
    return ahead, levels, filled


def _with_levels(
    loop: Loop,
    updates: Sequence[Equation],
    time: int,
    ahead: Sequence[Op],
    values: Sequence[Tensor],
    filled: Const | None,
    end: Affine,
    tensors: dict[str, Tensor],
) -> History | None:
    (carried,) = loop.carried
    inner = [new_tensor(values[0], tensors) for _ in values]
    written = updates[0].target[time]
    assert isinstance(written, Affine), "internal: a level with an expression for its number"

    def change(read: Read) -> Read:
        if read.tensor != carried.inner.name:
            return read
        place = read.subscripts[time]
        assert isinstance(place, Affine), "internal: a level with an expression for its number"
        return Read(inner[(written - place).constant - 1].name, _without(read.subscripts, time), read.dtype)

    body: list[Op] = []
    base: Tensor | None = None
    if filled is not None:
        base = new_tensor(values[0], tensors)
        body.append(fill(base, filled, loop.span))
    for update in updates:
        result = new_tensor(values[0], tensors)
        body.append(
            replace(
                map_expressions(update, lambda expr: map_reads(expr, change)),
                result=result,
                target=_without(update.target, time),
                base=base,
                domain=update.domain.set_tuple_name(result.name),
            )
        )
        base = result
    assert base is not None, "internal: a step that writes nothing"
    results = [new_tensor(values[0], tensors) for _ in values]
    nexts = [base, *inner[:-1]]
    levels = tuple(Carried(*level) for level in zip(values, inner, nexts, results, strict=True))
    made = replace(loop, body=tuple(body), carried=levels)
    return History(tuple(ahead), made, results[0], carried.result, time, end)
