"""`for` as a Loop: tensors that existed before and are assigned inside are carried; the others live for one iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from polyml.einsum_frontend.names import looks_made
from polyml.einsum_frontend.quasi_affine import Names, needs_affine, needs_bounds
from polyml.einsum_frontend.ranges import Range, interval
from polyml.einsum_frontend.syntax import (
    Assign,
    CallProgram,
    Declare,
    ForLoop,
    IfBlock,
    Program,
    Return,
    Statement,
    Subscript,
)
from polyml.einsum_frontend.typing import element, stored
from polyml.errors import NotAffineError
from polyml.expressions import Read
from polyml.graph.builder.parts import fill, materialized
from polyml.graph.builder.state import Frame, LoopLevel, State, loop_constraint
from polyml.graph.ir import Carried, Loop
from polyml.source import Span

__all__ = ["assigned", "build_loop"]

Walk = Callable[[State, str], None]
"""Walks the loop's body in a state, under the unique name of the loop variable."""


def build_loop(state: State, names: Names, statement: ForLoop, program: Program, walk: Walk) -> None:
    """Emits the Loop, and updates the carried variables and what is known to be written."""
    level = _level(state, names, statement)
    carried_names = sorted(n for n in assigned(statement.body, program) if n in state.env)
    for name in carried_names:
        state.env[name] = materialized(state, state.env[name])
    _strengthen(state, level, carried_names, statement.span, walk)
    before = dict(state.env)
    frame = _enter(state, level, carried_names)
    inner = {name: state.env[name].tensor for name in carried_names}
    walk(state, level.range.name)
    state.frames.pop()
    carried = []
    for name in carried_names:
        old, new = before[name], state.env[name]
        tensors = [t for t in (old.tensor, inner[name], new.tensor) if t is not None]
        assert len(tensors) == 3, "internal: a carried tensor has a value before, in and after an iteration"
        result = state.tensor(old.label, new.dtype, new.shape)
        carried.append(Carried(initial=tensors[0], inner=tensors[1], next=tensors[2], result=result))
        state.env[name] = replace(new, tensor=result, home=old.home)
    carried += _close_flags(state, frame)
    for name in [n for n in state.env if n not in before]:
        del state.env[name]
        state.dead.add(name)
    state.emit(
        Loop(
            variable=level.range.name,
            start=level.start,
            stop=level.stop,
            step=level.step,
            body=tuple(frame.ops),
            carried=tuple(carried),
            span=statement.span,
        )
    )
    state.settle(frame)


def _level(state: State, names: Names, statement: ForLoop) -> LoopLevel:
    """The loop as a variable's range."""
    by = needs_affine(statement.step, names, role="a loop step")
    if not by.is_constant or by.constant == 0:
        raise NotAffineError("the step of a loop must be an integer that is not zero", span=statement.step.span)
    step = by.constant
    start, stop = needs_bounds(statement.start, statement.stop, names, step=step)
    variable = state.fresh(f"{statement.variable}_" if looks_made(statement.variable) else statement.variable)
    known = {r.name: r for r in state.outer}
    first, last = interval(start, known), interval(stop, known)
    if step > 0:
        low, high = first[0], last[1]
    else:
        low, high = _next(last[0]), _next(first[1])
    exact = start.is_constant and stop.is_constant and abs(step) == 1
    return LoopLevel(Range(variable, loop_constraint(variable, start, stop, step), low, high, exact), start, stop, step)


def _next(value: int | None) -> int | None:
    return None if value is None else value + 1


def _enter(state: State, level: LoopLevel, carried_names: Sequence[str]) -> Frame:
    """Opens the loop's frame; carried variables get their inner tensors."""
    frame = Frame(level)
    state.frames.append(frame)
    for name in carried_names:
        variable = state.env[name]
        state.env[name] = replace(variable, tensor=state.tensor(variable.label, variable.dtype, variable.shape))
    return frame


def _strengthen(state: State, level: LoopLevel, carried_names: Sequence[str], span: Span, walk: Walk) -> None:
    """Gives weak 0-d variables that the loop assigns the type of their first strong assignment, found by walking the body on trial."""
    changed = [name for name in carried_names if state.env[name].weak]
    while changed:
        trial = state.fork()
        _enter(trial, level, carried_names)
        walk(trial, level.range.name)
        found = {name: trial.env[name] for name in carried_names}
        now = state.env
        changed = [n for n in carried_names if (found[n].dtype, found[n].weak) != (now[n].dtype, now[n].weak)]
        for name in changed:
            variable = state.env[name]
            assert variable.tensor is not None, "internal: a weak variable has a value"
            dtype = found[name].dtype
            tensor = state.tensor(name, dtype, ())
            value = element(Read(variable.tensor.name, (), variable.dtype), variable.weak)
            state.emit(fill(tensor, stored(value, dtype, name=name, span=span), span))
            state.env[name] = replace(variable, tensor=tensor, dtype=dtype, weak=found[name].weak)


def _close_flags(state: State, frame: Frame) -> list[Carried]:
    """Carries the flags of computed gathers out of a finished loop."""
    carried = []
    for number, (initial, inner) in frame.flags.items():
        flag = state.flags[number]
        final = flag.tensors.pop()
        result = state.tensor("out_of_range", final.dtype, (), final.label)
        carried.append(Carried(initial=initial, inner=inner, next=final, result=result))
        flag.tensors[-1] = result
    return carried


def assigned(body: Sequence[Statement], program: Program) -> set[str]:
    """The names that statements assign, also through programs that they call (declarations make new tensors and do not count)."""
    found: set[str] = set()
    for statement in body:
        match statement:
            case Assign():
                found.add(statement.target)
            case ForLoop():
                found |= assigned(statement.body, program)
            case IfBlock():
                found |= assigned(statement.body, program) | assigned(statement.orelse, program)
            case CallProgram():
                found |= set(statement.targets)
                callee = program.programs[statement.callee]
                written = assigned(callee.body, callee)
                for parameter, arg in zip(callee.parameters, statement.args, strict=False):
                    if parameter.name in written and isinstance(arg, Subscript) and isinstance(arg.tensor, str):
                        found.add(arg.tensor)
            case Declare() | Return():
                pass
            case _:
                assert_never(statement)
    return found
