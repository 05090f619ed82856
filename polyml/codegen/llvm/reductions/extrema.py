"""Loops that find minima or maxima of floats, in the hope that no NaN comes along.

A maximum that hands NaN on takes three instructions on x86, one that does not takes one. So a loop of nothing else runs with the latter, and whether each pair of candidates is ordered goes into a
mask: two and a half instructions for two candidates beside what makes them. Where the mask has a hole at the end, the loop runs once more as it is written. It starts from what the first run has
left, which is right: of the candidates that are no NaN it takes the greatest again, a NaN that was there before has stayed, and those that come along now win.

    for k: t = max(t, e)        ->      whole = true
                                        for k: t = e > t ? e : t; whole &= ordered(e, e of the next)
                                        if not whole: for k: t = max(t, e)

So do argmax and argmin, of which a step takes six instructions otherwise, three of them in turn: whether the candidate is better or no number, whether the best is none, and whether there was no candidate before. An index of -1 at the end, which
tells that all candidates were what the register began with (infinities), also makes the loop run once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import BIT, Lines, Type, Value, constant, type_of
from polyml.codegen.llvm.reductions.combine import read_place
from polyml.codegen.llvm.reductions.hope import Hope
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, For, Node, Place, Prefetch, UpdateArgument
from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr, Read, reads_of

__all__ = ["emit_extrema", "extrema_of"]

TOGETHER = 4
"""Minima and maxima in an iteration, at least: fewer wait for the ones before, and for a NaN of theirs nobody does."""

LEAST = 16
"""Minima and maxima in a loop, else looking at the mask costs more than is saved."""


def extrema_of(state: State, node: For) -> For | None:
    """The loop with its steps as reductions, where it does nothing but minima and maxima of floats, of what it does not change, and NaN is dear here."""
    if not state.builder.module.scalef or state.hope is not None or node.kind not in ("sequential", "vector"):
        return None
    if node.masked or (node.kind == "vector" and state.lanes is not None):
        return None
    extent = node.upper - node.lower
    if extent.is_constant and extent.constant * len(node.body) < LEAST * node.step:
        return None
    lanes = node.width if node.kind == "vector" else state.width
    body: list[Node] = []
    for inner in node.body:
        made: Node | None = inner
        if isinstance(inner, Assign):
            made = _extremum(state, inner, lanes)
        elif isinstance(inner, UpdateArgument) and not _is_in_lanes(state, inner, lanes):
            return None
        if not isinstance(made, Assign | UpdateArgument | Prefetch):
            return None
        body.append(made)
    written, values = set[str](), list[Expr]()
    for inner in body:
        match inner:
            case Assign():
                written.add(inner.target.variable)
                values.append(inner.value)
            case UpdateArgument():
                written |= {inner.best.variable, inner.argument.variable}
                values.append(inner.candidate)
    if len(values) < TOGETHER or any(read.tensor in written for value in values for read in reads_of(value)):
        return None
    return replace(node, body=tuple(body))


def _is_in_lanes(state: State, node: UpdateArgument, lanes: int) -> bool:
    """Whether an argmax or argmin has registers with all lanes, of which all act."""
    best, argument = (state.slots[place.variable].variable for place in (node.best, node.argument))
    if node.across or (state.lanes is not None and state.lanes.mask is not None):
        return False
    return all(v.scope == "register" and v.lanes == lanes for v in (best, argument))


def _extremum(state: State, node: Assign, lanes: int) -> Assign | None:
    """The step as a reduction into a register."""
    target = state.slots[node.target.variable].variable
    if target.scope != "register" or target.lanes != lanes or target.dtype.name not in ("f32", "f64"):
        return None
    if node.across or node.scan is not None:
        return None
    match node.value:
        case Apply(op="min" | "max" as op, args=(Read(tensor=target.name), value)) if node.reduction is None:
            return replace(node, value=value, reduction=op)
        case Apply(op="min" | "max" as op, args=(value, Read(tensor=target.name))) if node.reduction is None:
            return replace(node, value=value, reduction=op)
    return node if node.reduction in ("min", "max") else None


def emit_extrema(state: State, loop: For, emit: Callable[[], None]) -> None:
    """The loop, which `emit` writes, twice: without regard to NaN, and as it is. Which of them runs is known ahead (numbers_ahead.py), or the second one repairs what the first one has left."""
    if loop.if_numbers:
        _emit_known(state, loop, emit)
    else:
        _emit_hopeful(state, emit)


def _emit_known(state: State, loop: For, emit: Callable[[], None]) -> None:
    b = state.builder
    flags = [evaluate(state, Read(flag, (), boolean)) for flag in loop.if_numbers]
    known = reduce(lambda one, other: b.binary("and", one, other), flags)
    numbers, exact, after = b.fresh("numbers"), b.fresh("exact"), b.fresh("after")
    b.branch(b.negate(known), exact, numbers, rare=True)
    b.start(numbers)
    state.numbers = True
    emit()
    state.numbers = False
    b.jump(after)
    b.start(exact)
    emit()
    b.jump(after)
    b.start(after)


def _emit_hopeful(state: State, emit: Callable[[], None]) -> None:
    b = state.builder
    before: Lines = []
    b.lines.append(before)
    hope = state.hope = Hope(b, state.entry)
    emit()
    state.hope = None
    with b.into(before):
        for lanes, places in hope.masks.items():
            for place in places:
                b.write(f"store {_all_true(lanes)}, {place}")
    whole: Value | None = None
    for lanes, places in hope.masks.items():
        parts = [b.emit(type_of("i1", lanes), f"load {type_of('i1', lanes)}, {place}") for place in places]
        mask = parts[0] if len(parts) == 1 else b.binary("and", *parts)
        mask = mask if lanes == 1 else b.intrinsic("vector.reduce.and", mask, result=BIT)
        whole = mask if whole is None else b.binary("and", whole, mask)
    if hope.arguments:
        seen = _all_seen(state, tuple(hope.arguments))
        whole = seen if whole is None else b.binary("and", whole, seen)
    if whole is None:
        return
    again, after = b.fresh("again"), b.fresh("after")
    b.branch(b.negate(whole), again, after, rare=True)
    b.start(again)
    emit()
    b.jump(after)
    b.start(after)


def _all_seen(state: State, arguments: Sequence[Place]) -> Value:
    """Whether none of the registers has an index of -1: the only negative one."""
    b = state.builder
    by_type: dict[Type, list[Value]] = {}
    for index in (read_place(state, place) for place in arguments):
        by_type.setdefault(index.type, []).append(index)
    found: list[Value] = []
    for type_, indices in by_type.items():
        seen = b.compare("sge", reduce(lambda one, other: b.binary("or", one, other), indices), constant(type_, 0))
        found.append(seen if seen.lanes == 1 else b.intrinsic("vector.reduce.and", seen, result=BIT))
    return reduce(lambda one, other: b.binary("and", one, other), found)


def _all_true(lanes: int) -> Value:
    return Value(type_of("i1", lanes), "true" if lanes == 1 else "splat (i1 true)")
