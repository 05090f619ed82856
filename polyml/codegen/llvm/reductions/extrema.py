"""Loops that find minima or maxima of floats, in the hope that no NaN comes along.

A maximum that hands NaN on takes three instructions on x86, one that does not takes one. So a loop runs with the latter, and whether each pair of candidates is ordered goes into a
mask: two and a half instructions for two candidates beside what makes them. Where the mask has a hole at the end, the extrema are found once more as they are written. They start from what the first run has
left, which is right: of the candidates that are no NaN it takes the greatest again, a NaN that was there before has stayed, and those that come along now win.

    for k: t = max(t, e); ..    ->      whole = true
                                        for k: t = e > t ? e : t; whole &= ordered(e, e of the next); ..
                                        if not whole: for k: t = max(t, e)

What else the loop does it does once: nothing of that sees an extremum, and candidates see none of it but what an iteration makes for itself.

So do argmax and argmin, of which a step takes six instructions otherwise, three of them in turn: whether the candidate is better or no number, whether the best is none, and whether there was no candidate before. An index of -1 at the end, which
tells that all candidates were what the register began with (infinities), also makes the loop run once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import reduce
from typing import TypeGuard

from polyml.codegen.llvm.expression import evaluate
from polyml.codegen.llvm.ir import BIT, Lines, Type, Value, constant
from polyml.codegen.llvm.reductions.combine import read_place
from polyml.codegen.llvm.reductions.hope import Hope
from polyml.codegen.llvm.reductions.numbers_across import emit_for_numbers
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Place, Prefetch, UpdateArgument
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr, Read, reads_of

__all__ = ["emit_extrema", "extrema_of"]

TOGETHER = 4
"""Minima and maxima in an iteration, at least: fewer wait for the ones before, and for a NaN of theirs nobody does."""

LEAST = 16
"""Minima and maxima in a loop, else looking at the mask costs more than is saved."""

LEAST_OF_SINGLES = 64
"""Steps of argmin and argmax of f32 where masks are vectors, as wide as the indices are: a step is then not much longer with regard to NaN (Zen 3: 3.9 cycles instead of 3.2)."""


def extrema_of(state: State, node: For) -> For | None:
    """The loop with its steps as reductions, where it finds minima and maxima of floats, of what it does not change, and NaN is dear here."""
    if not state.builder.module.instructions.nan_is_dear:
        return None
    if state.hope is not None or node.kind not in ("sequential", "vector"):
        return None
    if node.masked or (node.kind == "vector" and state.lanes is not None):
        return None
    lanes = node.width if node.kind == "vector" else state.width
    for step in walk_nodes(node.body):
        if isinstance(step, For | If | Block):
            return None
        # Whole numbers, and what is in no register, have no second run.
        if isinstance(step, Assign) and step.reduction in ("min", "max") and _extremum(state, step, lanes) is None:
            return None
    body = _reductions(state, node.body, lanes)
    steps = list(walk_nodes(body))
    found = [step for step in steps if _is_extremum(step)]
    others = [step for step in steps if isinstance(step, Assign) and not _is_extremum(step)]
    extent = node.upper - node.lower
    least = LEAST
    if any(isinstance(step, UpdateArgument) and step.candidate.dtype.name == "f32" for step in found):
        least = LEAST_OF_SINGLES if state.builder.module.instructions.avx2 else LEAST
    if len(found) < TOGETHER or (extent.is_constant and extent.constant * len(found) < least * node.step):
        return None
    if any(isinstance(step, UpdateArgument) and not _is_in_lanes(state, step, lanes) for step in found):
        return None
    best = {name for step in found for name in _written(step)}
    written = best | {step.target.variable for step in others}
    own = _own_values(steps, written)
    if any(step.scan or step.reduction not in (None, "sum") or step.target.variable in best for step in others):
        return None
    if any(read.tensor in best for step in others for read in reads_of(step.value)):
        return None
    if any(read.tensor in written - own for step in found for read in reads_of(_candidate(step))):
        return None
    return replace(node, body=body)


def _reductions(state: State, nodes: tuple[Node, ...], lanes: int) -> tuple[Node, ...]:
    """The nodes with minima and maxima into registers around them as reductions."""
    return tuple(
        (_extremum(state, node, lanes) or node)
        if isinstance(node, Assign)
        else with_body(node, lambda body: _reductions(state, body, lanes))
        for node in nodes
    )


def _own_values(steps: Sequence[Node], written: Set[str]) -> set[str]:
    """Registers that an iteration makes for itself, of nothing that the loop writes: made again they are the same."""
    own = {step.variable.name for step in steps if isinstance(step, Allocate) and step.variable.scope == "register"}
    for step in steps:
        if isinstance(step, Assign) and step.target.variable in own:
            changes = step.reduction is not None or any(read.tensor in written for read in reads_of(step.value))
            own -= {step.target.variable} if changes else set()
    return own


def _again(loop: For) -> For:
    """The loop with its extrema, and what their candidates are made of, alone."""
    found = [step for step in walk_nodes(loop.body) if _is_extremum(step)]
    needed = {read.tensor for step in found for read in reads_of(_candidate(step))}

    def kept(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        steps = (n for n in nodes if not isinstance(n, Assign) or _is_extremum(n) or n.target.variable in needed)
        return tuple(with_body(node, kept) for node in steps if not isinstance(node, Prefetch))

    return replace(loop, body=kept(loop.body))


def _is_extremum(node: Node) -> TypeGuard[Assign | UpdateArgument]:
    return isinstance(node, UpdateArgument) or (isinstance(node, Assign) and node.reduction in ("min", "max"))


def _written(node: Assign | UpdateArgument) -> tuple[str, ...]:
    if isinstance(node, Assign):
        return (node.target.variable,)
    return node.best.variable, node.argument.variable


def _candidate(node: Assign | UpdateArgument) -> Expr:
    return node.value if isinstance(node, Assign) else node.candidate


def _is_in_lanes(state: State, node: UpdateArgument, lanes: int) -> bool:
    """Whether an argmax or argmin has registers around the loop with all lanes, of which all act."""
    slots = [state.slots.get(place.variable) for place in (node.best, node.argument)]
    if node.across or (state.lanes is not None and state.lanes.mask is not None):
        return False
    return all(s is not None and s.variable.scope == "register" and s.variable.lanes == lanes for s in slots)


def _extremum(state: State, node: Assign, lanes: int) -> Assign | None:
    """The step as a reduction into a register."""
    slot = state.slots.get(node.target.variable)
    if slot is None:  # made in each iteration
        return None
    target = slot.variable
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


def emit_extrema(state: State, loop: For, emit: Callable[[For], None]) -> None:
    """The loop, and its extrema, which `emit` writes: without regard to NaN, and as it is. Which of them runs is known ahead (numbers_ahead.py, numbers_kept.py), or the second one repairs what the first one has left."""
    if loop.if_numbers:
        _emit_known(state, loop, emit)
    else:
        _emit_hopeful(state, loop, emit)


def _emit_known(state: State, loop: For, emit: Callable[[For], None]) -> None:
    b = state.builder
    flags = [evaluate(state, Read(flag, (), boolean)) for flag in loop.if_numbers]
    known = reduce(lambda one, other: b.binary("and", one, other), flags)
    hopeful = (lambda: _emit_hopeful(state, loop, emit)) if loop.hopes else None
    emit_for_numbers(state, known, lambda: emit(loop), hopeful)


def _emit_hopeful(state: State, loop: For, emit: Callable[[For], None]) -> None:
    b = state.builder
    before: Lines = []
    b.lines.append(before)
    hope = state.hope = Hope(b, state.entry)
    emit(loop)
    state.hope = None
    with b.into(before):
        for type_, places in hope.masks.items():
            for place in places:
                b.write(f"store {constant(type_, -1)}, {place}")
    whole: Value | None = None
    for type_, places in hope.masks.items():
        parts = [b.emit(type_, f"load {type_}, {place}") for place in places]
        mask = reduce(lambda one, other: b.binary("and", one, other), parts)
        if type_.element != "i1":
            mask = b.compare("slt", mask, constant(type_, 0))
        mask = mask if mask.lanes == 1 else b.intrinsic("vector.reduce.and", mask, result=BIT)
        whole = mask if whole is None else b.binary("and", whole, mask)
    if hope.arguments:
        seen = _all_seen(state, tuple(hope.arguments))
        whole = seen if whole is None else b.binary("and", whole, seen)
    if whole is None:
        return
    again, after = b.fresh("again"), b.fresh("after")
    b.branch(b.negate(whole), again, after, rare=True)
    b.start(again)
    emit(_again(loop))
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
