"""Calls of other einsum programs: `a, b = f(x, w)`."""

from __future__ import annotations

from dataclasses import replace

from polyml.einsum_frontend.affine_form import require_affine
from polyml.einsum_frontend.names import RESERVED, did_you_mean
from polyml.einsum_frontend.printer import format_expression
from polyml.einsum_frontend.resolve_expressions import Names, resolve_expression
from polyml.einsum_frontend.scope import Scope, Tensor, holds_program
from polyml.einsum_frontend.signature import result_ranks, written_parameters
from polyml.einsum_frontend.spellings import spelled_out
from polyml.einsum_frontend.syntax import CallProgram, Expression, Name, Parameter, Program, Reducer, Subscript
from polyml.einsum_frontend.walk import walk
from polyml.errors import EinsumSyntaxError
from polyml.shown import counted

__all__ = ["resolve_call"]


def resolve_call(call: CallProgram, scope: Scope) -> CallProgram:
    """The call in resolved form; the callee is added to the scope's programs, the targets to its tensors.

    Raises:
        EinsumSyntaxError: no such program, or arguments and results that do not fit it.
    """
    callee = _callee(call, scope)
    if len(call.args) != len(callee.parameters):
        wanted = ", ".join(parameter.name for parameter in callee.parameters)
        message = f"{call.callee!r} takes {len(callee.parameters)} arguments ({wanted}), not {len(call.args)}"
        raise EinsumSyntaxError(message, span=call.span)
    written = written_parameters(callee)
    args = tuple(_argument(arg, p, call.callee, scope) for arg, p in zip(call.args, callee.parameters, strict=True))
    _check_written(call, callee, args, written)
    ranks = result_ranks(callee)
    if len(call.targets) != len(ranks):
        message = f"{call.callee!r} has {len(ranks)} results, but the statement has {len(call.targets)} targets"
        raise EinsumSyntaxError(message, span=call.span)
    if len(set(call.targets)) < len(call.targets):
        raise EinsumSyntaxError("a target appears twice", span=call.span, hint="give each result its own name")
    for target, rank in zip(call.targets, ranks, strict=True):
        _note_target(call, target, rank, scope)
    scope.programs[call.callee] = callee
    return replace(call, targets=tuple(scope.safe(target) for target in call.targets), args=args)


def _callee(call: CallProgram, scope: Scope) -> Program:
    word = call.callee
    if word in scope.tensors or word in scope.sizes or word in scope.loops or word in scope.local:
        hint = "subscripts are in square brackets: x[n, k]"
        raise EinsumSyntaxError(f"{word!r} is not a program and cannot be called", span=call.span, hint=hint)
    if word == scope.program and not isinstance(getattr(scope.namespace.get(word), "program", None), Program):
        hint = "write a loop (`for t in range(T):`), or call it from Python"
        raise EinsumSyntaxError(f"{word!r} calls itself, and programs have no recursion", span=call.span, hint=hint)
    if word not in scope.namespace:
        programs = [name for name, value in scope.namespace.items() if holds_program(value)]
        known = spelled_out(word) or did_you_mean(word, [*RESERVED, *programs])
        other = "functions of the language stand in assignments: y[n] = exp(x[n]); programs that are called are of the enclosing scope"
        raise EinsumSyntaxError(f"unknown function or program {word!r}", span=call.span, hint=known or other)
    program = getattr(scope.namespace[word], "program", None)
    if not isinstance(program, Program):
        what = type(scope.namespace[word]).__name__
        hint = "make it an einsum program: only those can be called"
        raise EinsumSyntaxError(f"{word!r} is a Python {what}, not an einsum program", span=call.span, hint=hint)
    return program


def _argument(arg: Expression, parameter: Parameter, callee: str, scope: Scope) -> Expression:
    if parameter.shape is not None:
        if not isinstance(arg, Name):
            hint = "pass the name of a tensor; assign an expression to one first"
            message = f"{parameter.name!r} is a tensor, and {format_expression(arg)!r} is not the name of one"
            raise EinsumSyntaxError(message, span=arg.span, hint=hint)
        tensor = scope.tensor(arg.identifier, arg.span)
        if tensor.rank != len(parameter.shape):
            message = f"{arg.identifier!r} has {counted(tensor.rank, 'dimension')}, and {callee!r} declares {len(parameter.shape)} for its {parameter.name!r}"
            raise EinsumSyntaxError(message, span=arg.span)
        return Subscript(scope.safe(arg.identifier), (), arg.span)
    for part in walk(arg):
        if isinstance(part, Reducer) or (isinstance(part, Subscript) and part.subscripts):
            message = f"{parameter.name!r} is one number, and its argument reads a tensor"
            raise EinsumSyntaxError(message, span=part.span, hint="assign it to a 0-d tensor first")
    resolved = resolve_expression(arg, Names(scope), {})
    if parameter.is_size:
        require_affine(resolved, role=f"the size {parameter.name!r}", reads=False)
    return resolved


def _check_written(call: CallProgram, callee: Program, args: tuple[Expression, ...], written: frozenset[str]) -> None:
    passed = [
        arg.tensor for arg, p in zip(args, callee.parameters, strict=True) if isinstance(arg, Subscript) and p.shape
    ]
    for arg, parameter in zip(args, callee.parameters, strict=True):
        if parameter.name in written and isinstance(arg, Subscript) and passed.count(arg.tensor) > 1:
            message = f"{call.callee!r} writes {parameter.name!r}, and {arg.tensor!r} is passed twice"
            raise EinsumSyntaxError(message, span=arg.span, hint="copy it to another tensor first")


def _note_target(call: CallProgram, target: str, rank: int, scope: Scope) -> None:
    if target in scope.sizes or target in scope.loops:
        raise EinsumSyntaxError(f"{target!r} is no tensor and cannot be assigned", span=call.span)
    tensor = scope.tensors.get(target)
    if tensor is None:
        scope.tensors[target] = Tensor(rank, has_value=True)
        return
    if tensor.is_scalar_parameter:
        raise EinsumSyntaxError(f"{target!r} is a scalar parameter and cannot be assigned", span=call.span)
    if tensor.rank != rank:
        message = f"{target!r} has {tensor.rank} dimensions, but the result of {call.callee!r} has {rank}"
        raise EinsumSyntaxError(message, span=call.span, hint="choose another name for the result")
    tensor.has_value = True
