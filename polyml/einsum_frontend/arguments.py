"""The types of a call's arguments, and the sizes that they bind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field

from polyml.dtypes import DType
from polyml.einsum_frontend.quasi_affine import Names, nodes, size_of, to_affine
from polyml.einsum_frontend.syntax import Expression, Parameter, Program, SizeRef
from polyml.errors import DTypeError, NotAffineError, ShapeError
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extent, affine
from polyml.shown import counted

__all__ = ["ArgumentType", "Signature", "bind_sizes", "check_argument"]


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """Of a tensor argument, or of a scalar one (`shape` is empty). Where sizes stay symbolic, extents are expressions in them."""

    dtype: DType
    shape: tuple[Extent, ...] = ()

    def __str__(self) -> str:
        return f'{self.dtype}["{" ".join(map(str, self.shape))}"]' if self.shape else str(self.dtype)


@dataclass(frozen=True, slots=True)
class Signature:
    """What one compilation is for: per parameter, in call order, an ArgumentType; for an `int` parameter its value, or None where it
    stays symbolic.

    examples: the values of symbolic sizes in the call that asks for it, where they are known: among the conditions that proofs may assume of them, those that hold there are taken.
    """

    arguments: tuple[ArgumentType | int | None, ...]
    examples: Mapping[str, int] = field(default_factory=dict)


Agree = Callable[[Affine], bool]
"""Whether an expression in symbolic sizes may be taken to be 0."""


def bind_sizes(program: Program, signature: Signature, agree: Agree = lambda difference: False) -> dict[str, Affine]:
    """The value of every size of the program: a number, or for an `int` parameter that stays symbolic the variable of its name.

    Upper-case sizes are bound by an `int` parameter of that name, else by the first argument with a bare entry, else by the first entry `c*P + d` of the size alone; all other entries are checked.

    Args:
        agree: asked where an entry and the extent differ by something that is no number.

    Raises:
        ShapeError: a rank or an entry disagrees, or a size is bound by nothing.
        DTypeError: an argument has another element type than its parameter.
    """
    if len(signature.arguments) != len(program.parameters):
        raise ShapeError(
            f"{program.name} takes {len(program.parameters)} arguments, and {len(signature.arguments)} were given"
        )
    sizes: dict[str, Affine] = {}
    for parameter, argument in zip(program.parameters, signature.arguments, strict=True):
        if parameter.is_size:
            assert not isinstance(argument, ArgumentType), f"internal: {parameter.name} is an int parameter"
            sizes[parameter.name] = affine(parameter.name if argument is None else argument)
    bound_by: dict[str, str] = {name: f"the int parameter {name}" for name in sizes}
    pairs = [
        (p, a) for p, a in zip(program.parameters, signature.arguments, strict=True) if isinstance(a, ArgumentType)
    ]
    for parameter, given in pairs:
        check_argument(parameter, given)
    for alone in (True, False):
        for parameter, given in pairs:
            for position, entry in enumerate(parameter.shape or ()):
                found = size_of(entry)
                if found is not None and found[0] not in sizes and alone == isinstance(entry, SizeRef):
                    sizes[found[0]] = _solved(parameter, position, given.shape[position], *found)
                    bound_by[found[0]] = f"dimension {position} of {parameter.name}"
    for parameter, given in pairs:
        for position, entry in enumerate(parameter.shape or ()):
            _check_entry(program, parameter, position, entry, given.shape[position], sizes, bound_by, agree)
    return sizes


def _solved(parameter: Parameter, position: int, extent: Extent, name: str, factor: int, offset: int) -> Affine:
    """The size of which a dimension is `factor * size + offset`."""
    times = affine(extent) - offset
    if not times.is_multiple(factor) or (times.is_constant and times.constant < 0):
        entry = affine(name) * factor + offset
        message = f"dimension {position} of argument {parameter.name} is {extent}, which is {entry} for no size {name}"
        raise ShapeError(message, span=(parameter.shape or ())[position].span)
    return times // factor


def _captured_in(entry: Expression, program: Program) -> list[str]:
    """Where the numbers come from that an entry names and no argument gives."""
    span = entry.span
    words = re.findall(r"[A-Za-z_]\w*", span.source.line(span.line)[span.column : span.end_column])
    found = [word for word in dict.fromkeys(words) if word in program.captured]
    return [f"{word} = {program.captured[word]} in the enclosing scope" for word in found]


def check_argument(parameter: Parameter, given: ArgumentType) -> None:
    """Refuses an element type or a rank other than the parameter's.

    Raises:
        DTypeError, ShapeError: naming the parameter and both.
    """
    assert parameter.dtype is not None, f"internal: {parameter.name} is an int parameter"
    if given.dtype != parameter.dtype:
        raise DTypeError(
            f"argument {parameter.name} has dtype {given.dtype}, and the program declares {parameter.dtype}",
            span=parameter.span,
            hint=f"convert it, or declare {parameter.name}: {given.dtype}",
        )
    rank = len(parameter.shape or ())
    if len(given.shape) != rank:
        raise ShapeError(
            f"argument {parameter.name} has {counted(len(given.shape), 'dimension')} {given.shape}, and the program declares {rank}",
            span=parameter.span,
        )


def _check_entry(
    program: Program,
    parameter: Parameter,
    position: int,
    entry: Expression,
    extent: Extent,
    sizes: dict[str, Affine],
    bound_by: dict[str, str],
    agree: Agree,
) -> None:
    used = {n.name for n in nodes(entry) if isinstance(n, SizeRef)}
    missing = sorted(used - sizes.keys())
    if missing:
        raise ShapeError(
            f"size {missing[0]} is bound by nothing: no parameter has an entry of this size alone",
            span=entry.span,
            hint=f"add an `{missing[0]}: int` parameter, or give a tensor the entry {missing[0]} alone",
        )
    expected = to_affine(entry, Names(sizes, {}, {}))
    if expected is None:
        raise NotAffineError(f"the shape of {parameter.name} must be affine in sizes", span=entry.span)
    difference = expected - affine(extent)
    if difference == affine(0) or (not difference.is_constant and agree(difference)):
        return
    if not expected.is_constant:
        message = f"the shape of {parameter.name} depends on {expected}, which is not one number here"
        raise ShapeError(message, span=entry.span)
    origins = [f"{name} = {sizes[name]} by {bound_by[name]}" for name in sorted(used)]
    origin = "; ".join([*origins, *_captured_in(entry, program)])
    raise ShapeError(
        f"dimension {position} of argument {parameter.name} is {extent}, and its entry says {expected.constant}"
        + (f" ({origin})" if origin else ""),
        span=entry.span,
    )
