"""Large complex values as tensors of their own: each part of a product or a quotient names both parts of its operands, so that text grows with every operator."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polyml.dtypes import i64
from polyml.einsum_frontend.complex_functions import FUNCTIONS, power_of
from polyml.einsum_frontend.complex_parts import joined, parts_of, size_of
from polyml.einsum_frontend.typing import Typed, apply, cast, common, element, number, whole_exponent
from polyml.expressions import Const, Read, reads_of
from polyml.graph.builder.parts import Path, fill, variables_of
from polyml.graph.builder.state import State
from polyml.graph.ir import Equation
from polyml.sets.affine import Affine, affine
from polyml.source import Span

__all__ = ["applied", "settled"]

_LARGE = 150
"""Nodes of an expression: a product of four elements, or a quotient."""

_MANY_USES = 24
"""The same for what a function names a dozen times."""

_MOST_ELEMENTS = 1 << 24


def applied(state: State, label: str, op: str, args: Sequence[Typed], path: Path, span: Span) -> Typed:
    """The op on values of any types; complex operands and results that are large become tensors of their own.

    Raises:
        DTypeError: the op is not defined for the type.
    """
    if not any(arg.dtype.is_complex for arg in args):
        return apply(op, args, span)

    def small(value: Typed) -> Typed:
        return settled(state, label, value, path, span, _MANY_USES)

    if op in FUNCTIONS:
        args = [small(arg) for arg in args]
    if op == "rsqrt":
        made = apply("div", [number(1), small(apply("sqrt", args, span))], span)
    elif op == "pow" and not all(arg.weak for arg in args) and whole_exponent(args[1].expr) is None:
        dtype, weak = common(args, span)
        base, exponent = (parts_of(cast(arg.expr, dtype, span)) for arg in args)
        log = small(apply("log", [Typed(joined(base, dtype), weak)], span))
        power = small(apply("exp", [small(apply("mul", [args[1], log], span))], span))
        made = Typed(joined(power_of(base, exponent, parts_of(power.expr)), dtype), weak)
    else:
        made = apply(op, args, span)
    return settled(state, label, made, path, span)


def settled(state: State, label: str, value: Typed, path: Path, span: Span, most: int = _LARGE) -> Typed:
    """The value; a complex one of more than `most` nodes as an access to a new tensor over the indices that it uses.

    It stays an expression where it reads what a condition on data guards, and where the tensor would be large or its extent is not known.
    """
    if not value.dtype.is_complex or value.weak or size_of(value.expr) <= most:
        return value
    gathers = any(not isinstance(s, Affine) for read in reads_of(value.expr) for s in read.subscripts)
    used = variables_of(value.expr)
    free = [r for r in path.scope.indices if r.name in used]
    shape = [extent for r in free if (extent := r.extent if r.high is None else r.high) is not None]
    if (path.data and gathers) or len(shape) < len(free):
        return value
    if prod(extent for extent in shape if isinstance(extent, int)) > _MOST_ELEMENTS:
        return value
    names = tuple(r.name for r in free)
    target = tuple(affine(name) for name in names)
    base = None
    whole = not path.scope.conditions and all(r.extent is not None for r in free)
    if not whole:
        base = state.tensor(f"{label}_value", value.dtype, shape, label)
        state.emit(fill(base, cast(Const(0, i64), value.dtype), span))
    result = state.tensor(f"{label}_value", value.dtype, shape, label)
    domain = path.scope.domain(result.name, names)
    state.emit(
        Equation(result=result, indices=names, domain=domain, target=target, body=value.expr, base=base, span=span)
    )
    return element(Read(result.name, target, result.dtype))
