"""Why a program has no kernel for any sizes: which of them must be numbers, each tried alone, or what is wrong with it whatever they are."""

from __future__ import annotations

from polyml.einsum_frontend.arguments import ArgumentType, Signature
from polyml.einsum_frontend.syntax import Program
from polyml.errors import PolymlError
from polyml.graph.builder.program import build
from polyml.sets.affine import affine, extent_of

__all__ = ["allows_any_size", "fault_at_numbers"]

SOME_SIZE = 24
"""What stands for the other sizes."""


def allows_any_size(program: Program, signature: Signature, name: str) -> bool:
    """Whether ranges and proofs allow that this size alone stays symbolic, of those that do in the signature."""
    arguments: list[ArgumentType | int | None] = []
    for parameter, argument in zip(program.parameters, signature.arguments, strict=True):
        if isinstance(argument, ArgumentType):
            extents = [affine(extent) for extent in argument.shape]
            some = [e.substitute({v: affine(SOME_SIZE) for v in e.variables() - {name}}) for e in extents]
            arguments.append(ArgumentType(argument.dtype, tuple(map(extent_of, some))))
        elif argument is None and parameter.name != name:
            arguments.append(signature.examples.get(parameter.name, SOME_SIZE))
        else:
            arguments.append(argument)
    try:
        build(program, Signature(tuple(arguments)))
    except PolymlError:
        return False
    return True


def fault_at_numbers(program: Program, signature: Signature) -> PolymlError | None:
    """What the program is refused for at the sizes of the call that asks, as numbers; None: it is right there, or they are not known."""
    numbers = {name: affine(number) for name, number in signature.examples.items()}
    arguments: list[ArgumentType | int | None] = []
    for parameter, argument in zip(program.parameters, signature.arguments, strict=True):
        if isinstance(argument, ArgumentType):
            extents = [affine(extent).substitute(numbers) for extent in argument.shape]
            if any(extent.variables() for extent in extents):
                return None
            arguments.append(ArgumentType(argument.dtype, tuple(map(extent_of, extents))))
        else:
            arguments.append(signature.examples.get(parameter.name, argument))
    try:
        build(program, Signature(tuple(arguments)))
    except PolymlError as fault:
        return fault
    return None
