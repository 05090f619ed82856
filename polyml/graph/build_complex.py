"""Large complex values as tensors of their own: each part of a product or a quotient names both parts of its operands, so that text grows with every operator."""

from __future__ import annotations

from math import prod

from polyml.dtypes import i64
from polyml.einsum_frontend.complex_parts import size_of
from polyml.einsum_frontend.typing import Typed, cast, element
from polyml.expressions import Const, Read
from polyml.graph.build_parts import Path, fill, variables_of
from polyml.graph.build_state import State
from polyml.graph.ir import Equation
from polyml.sets.affine import affine
from polyml.source import Span

__all__ = ["settled"]

_LARGE = 150
"""Nodes of an expression: a product of four elements, or a quotient."""

_MOST_ELEMENTS = 1 << 24


def settled(state: State, label: str, value: Typed, path: Path, span: Span) -> Typed:
    """The value; a large complex one as an access to a new tensor over the indices that it uses.

    It stays an expression where its reads are guarded by data, and where the tensor would be large or its extent is not known.
    """
    if not value.dtype.is_complex or value.weak or path.data or size_of(value.expr) <= _LARGE:
        return value
    used = variables_of(value.expr)
    free = [r for r in path.scope.indices if r.name in used]
    extents = [r.extent if r.high is None else r.high for r in free]
    if any(not isinstance(extent, int) for extent in extents):
        return value
    shape = [extent for extent in extents if isinstance(extent, int)]
    if prod(shape) > _MOST_ELEMENTS:
        return value
    names = tuple(r.name for r in free)
    target = tuple(affine(name) for name in names)
    base = None
    whole = not path.scope.conditions and all(r.low == 0 and r.exact for r in free)
    if not whole:
        base = state.tensor(f"{label}_value", value.dtype, shape, label)
        state.emit(fill(base, cast(Const(0, i64), value.dtype), span))
    result = state.tensor(f"{label}_value", value.dtype, shape, label)
    domain = path.scope.domain(result.name, names)
    state.emit(
        Equation(result=result, indices=names, domain=domain, target=target, body=value.expr, base=base, span=span)
    )
    return element(Read(result.name, target, result.dtype))
