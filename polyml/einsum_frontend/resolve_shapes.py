"""Shapes of parameters and declarations, resolved; the sizes that they bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyml.einsum_frontend.affine_form import require_affine
from polyml.einsum_frontend.names import RESERVED, looks_like_size
from polyml.einsum_frontend.quasi_affine import size_of
from polyml.einsum_frontend.scope import Scope, Tensor, number_at
from polyml.einsum_frontend.syntax import Expression, Name, Parameter, SizeRef
from polyml.einsum_frontend.walk import map_children, walk
from polyml.errors import EinsumSyntaxError

__all__ = ["resolve_declared_shape", "resolve_parameters"]


def resolve_parameters(parameters: tuple[Parameter, ...], scope: Scope) -> tuple[Parameter, ...]:
    """The parameters with resolved shapes; they and their sizes are added to `scope`.

    Raises:
        EinsumSyntaxError: a size that is lower-case, has a tensor's name, or is bound by nothing.
    """
    names = {parameter.name for parameter in parameters}
    for parameter in parameters:
        if parameter.is_size:
            scope.sizes[parameter.name] = parameter.span
    ints = set(scope.sizes)
    entries = [entry for p in parameters for entry in p.shape or ()]
    bare = {entry.identifier for entry in entries if isinstance(entry, Name)}
    solved = {found[0] for entry in entries if (found := size_of(_as_sizes(entry))) is not None}
    for parameter in parameters:
        for name in (part for entry in parameter.shape or () for part in walk(entry) if isinstance(part, Name)):
            word = name.identifier
            if word in ints or word in scope.sizes:
                continue
            if word in names:
                hint = f"make it a size ({word}: int), or choose another name"
                raise EinsumSyntaxError(f"{word!r} is a parameter, but no size", span=name.span, hint=hint)
            if word in bare or (word in solved and not scope.has_outer_number(word)):
                _check_new_size(name)
                scope.sizes[word] = name.span
    resolved = []
    for parameter in parameters:
        shape = parameter.shape
        if shape is not None:
            shape = tuple(_resolve(entry, scope, lambda name: _unbound(name, scope)) for entry in shape)
        if not parameter.is_size:
            is_scalar = shape is None
            scope.tensors[parameter.name] = Tensor(
                len(shape or ()), has_value=True, is_parameter=True, is_scalar_parameter=is_scalar
            )
        resolved.append(replace(parameter, shape=shape))
    return tuple(resolved)


def resolve_declared_shape(shape: tuple[Expression, ...], scope: Scope) -> tuple[Expression, ...]:
    """The shape of a declared tensor: affine in the program's sizes and captured numbers.

    Raises:
        EinsumSyntaxError: a name that is neither.
    """
    return tuple(_resolve(entry, scope, lambda name: _undeclared(name, scope)) for entry in shape)


def _resolve(entry: Expression, scope: Scope, otherwise: Callable[[Name], Expression]) -> Expression:
    def resolved(e: Expression) -> Expression:
        if isinstance(e, Name):
            return SizeRef(scope.safe(e.identifier), e.span) if e.identifier in scope.sizes else otherwise(e)
        return map_children(e, resolved)

    result = resolved(entry)
    require_affine(result, role="an entry of a shape", reads=False)
    return result


def _as_sizes(entry: Expression) -> Expression:
    """A parsed entry with all of its names taken for sizes."""
    return SizeRef(entry.identifier, entry.span) if isinstance(entry, Name) else map_children(entry, _as_sizes)


def _check_new_size(name: Name) -> None:
    word = name.identifier
    if word in RESERVED:
        raise EinsumSyntaxError(f"{word!r} is a word of the language", span=name.span, hint="choose another name")
    if not looks_like_size(word):
        hint = f"write {word[:1].upper() + word[1:]}, or make {word!r} an `int` parameter"
        raise EinsumSyntaxError(f"the size {word!r} is not upper-case", span=name.span, hint=hint)


def _unbound(name: Name, scope: Scope) -> Expression:
    number = scope.outer_number(name.identifier, name.span)
    if number is not None:
        return number_at(number, name.span)
    hint = f"give some parameter an entry of this size alone ({name.identifier}, or 2*{name.identifier}), or add {name.identifier}: int"
    raise EinsumSyntaxError(f"no argument gives the size {name.identifier!r}", span=name.span, hint=hint)


def _undeclared(name: Name, scope: Scope) -> Expression:
    word = name.identifier
    if word in scope.tensors:
        raise EinsumSyntaxError(f"{word!r} is no size", span=name.span, hint=f"make it one: {word}: int")
    if word in scope.loops:
        hint = "declare the tensor with its largest shape"
        raise EinsumSyntaxError(f"{word!r} is a loop variable: a shape is made of sizes", span=name.span, hint=hint)
    if word in scope.local:
        raise EinsumSyntaxError(f"{word!r} is no size", span=name.span, hint=f"make it one: {word}: int")
    number = scope.outer_number(word, name.span)
    if number is not None:
        return number_at(number, name.span)
    raise scope.undefined(word, name.span, _known_sizes(scope))


def _known_sizes(scope: Scope) -> str:
    known = ", ".join(scope.sizes) or "none"
    return f"sizes come from the parameters: {known}"
