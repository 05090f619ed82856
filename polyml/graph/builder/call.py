"""Calls of other programs: their parameters bound to the caller's tensors, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyml.einsum_frontend.arguments import ArgumentType, Signature, bind_sizes
from polyml.einsum_frontend.proofs import Scope
from polyml.einsum_frontend.quasi_affine import Names, needs_affine
from polyml.einsum_frontend.syntax import CallProgram, Expression, Parameter, Program, Subscript
from polyml.einsum_frontend.typing import stored
from polyml.errors import DTypeError, ShapeError
from polyml.graph.builder.body import Body
from polyml.graph.builder.loop import assigned
from polyml.graph.builder.parts import Path, copied, fill, materialized
from polyml.graph.builder.state import State, Variable
from polyml.graph.ir import Tensor
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["Bound", "bind_call", "finish_call"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A call's parameters. env: the callee's variables. passed: parameter -> the caller's name, for tensors. sizes: the callee's."""

    env: Mapping[str, Variable]
    passed: Mapping[str, str]
    sizes: Mapping[str, Affine]


def bind_call(state: State, names: Names, callee: Program, statement: CallProgram) -> Bound:
    """The callee's parameters, from the caller's arguments.

    Raises:
        ShapeError, DTypeError: an argument does not fit, or a tensor that is written is passed twice.
    """
    if len(statement.args) != len(callee.parameters):
        raise ShapeError(
            f"{callee.name} takes {len(callee.parameters)} arguments, and {len(statement.args)} are given",
            span=statement.span,
        )
    env: dict[str, Variable] = {}
    passed: dict[str, str] = {}
    types: list[ArgumentType | int | None] = []
    ints: dict[str, Affine] = {}
    written = assigned(callee.body, callee)
    for parameter, arg in zip(callee.parameters, statement.args, strict=True):
        if parameter.is_size:
            value = needs_affine(arg, names, role=f"the int argument {parameter.name} of {callee.name}")
            ints[parameter.name] = value
            types.append(value.constant if value.is_constant else None)
            continue
        name = _tensor_name(arg)
        variable = None if name is None else state.lookup(name, arg.span)
        if name is None or variable is None or variable.weak:
            env[parameter.name] = _scalar(state, names, callee, parameter, arg)
        else:
            twice = [p for p, other in passed.items() if other == name]
            if twice and not written.isdisjoint({parameter.name, *twice}):
                raise ShapeError(f"{callee.name} writes to {name}, which is passed to it twice", span=arg.span)
            state.env[name] = variable = materialized(state, variable)
            env[parameter.name] = replace(variable, label=parameter.name)
            passed[parameter.name] = name
        types.append(ArgumentType(env[parameter.name].dtype, env[parameter.name].shape))
    try:
        sizes = bind_sizes(callee, Signature(tuple(types)), state.agree)
    except (ShapeError, DTypeError) as fault:
        message = f"in the call of {callee.name}: {fault.message}"
        raise type(fault)(message, span=statement.span, hint=fault.hint) from None
    return Bound(env, passed, {**sizes, **ints})


def _tensor_name(arg: Expression) -> str | None:
    if isinstance(arg, Subscript) and isinstance(arg.tensor, str) and not arg.subscripts:
        return arg.tensor
    return None


def _scalar(state: State, names: Names, callee: Program, parameter: Parameter, arg: Expression) -> Variable:
    """A scalar argument that is an expression, as a 0-d tensor."""
    assert parameter.dtype is not None, "internal: a parameter is a size or has a dtype"
    value = Body(state, names, {}, parameter.name).value(arg, Path(Scope(state.outer)))
    if not value.weak and value.dtype != parameter.dtype:
        raise DTypeError(
            f"argument {parameter.name} of {callee.name} has dtype {value.dtype}, and is declared {parameter.dtype}",
            span=arg.span,
            hint=f"convert it: {parameter.dtype}(..)",
        )
    tensor = state.tensor(parameter.name, parameter.dtype, ())
    state.emit(fill(tensor, stored(value, parameter.dtype, name=parameter.name, span=arg.span), arg.span))
    return Variable(state.fresh(f"{parameter.name}#"), parameter.name, tensor, parameter.dtype, ())


def finish_call(
    state: State, bound: Bound, after: Mapping[str, Variable], returned: Sequence[str], statement: CallProgram
) -> None:
    """Gives the caller's variables what the callee wrote to its parameters (`after`: its variables at the end) and what it returned.

    Raises:
        ShapeError: the number of results, or a target that exists with another shape or type.
    """
    taken: list[Tensor | None] = []
    for parameter in bound.env:
        taken.append(after[parameter].tensor)
        name = bound.passed.get(parameter)
        if name is not None and after[parameter] != bound.env[parameter]:
            old = state.env[name]
            state.env[name] = replace(after[parameter], key=old.key, label=old.label)
    if len(returned) != len(statement.targets):
        raise ShapeError(
            f"{statement.callee} returns {len(returned)} tensors, and {len(statement.targets)} are assigned",
            span=statement.span,
        )
    for target, result in zip(statement.targets, returned, strict=True):
        value = after[result]
        known = state.env.get(target)
        if known is not None and (known.shape, known.dtype) != (value.shape, value.dtype):
            raise ShapeError(
                f"{target} is {known.dtype}{list(known.shape)}, and {statement.callee} returns {value.dtype}{list(value.shape)}",
                span=statement.span,
            )
        if value.tensor in taken:
            value = copied(state, value, statement.span)
        taken.append(value.tensor)
        key = known.key if known is not None else state.fresh(f"{target}#")
        new = replace(value, key=key, label=target, home=known.home if known is not None else None)
        if new.home is not None:
            new = state.mark_written(new, state.box(new))
        state.env[target] = new
