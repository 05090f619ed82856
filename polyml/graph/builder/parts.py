"""Small parts of the graph builder: where an expression stands, what it mentions, which elements it touches, fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.dtypes import i64
from polyml.einsum_frontend.proofs import Scope
from polyml.einsum_frontend.quasi_affine import Constraint
from polyml.einsum_frontend.typing import Typed, apply, cast, number
from polyml.expressions import Const, Expr, IndexValue, Read, Subscript, variables_in, walk
from polyml.graph.builder.state import State, Variable
from polyml.graph.ir import Equation, Tensor
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.source import Span

__all__ = ["Path", "copied", "fill", "fold", "image", "index_value", "materialized", "variables_of"]


@dataclass(frozen=True, slots=True)
class Path:
    """Where an expression stands: the points (`scope`), and the conditions on data that hold there.

    in_subscript: it computes a subscript, in which operands of 8 and 16 bits are promoted, as in C (6.3.1.1), so that `x[t + d[c]]` of a u8 does not wrap.
    """

    scope: Scope
    data: tuple[Expr, ...] = ()
    in_subscript: bool = False

    def within(self, *conditions: Constraint | None) -> Path:
        return replace(self, scope=self.scope.within(*conditions))


def variables_of(expr: Expr) -> frozenset[str]:
    """The index and loop variables that an expression mentions."""
    found: set[str] = set()
    for node in walk(expr):
        match node:
            case IndexValue():
                found |= node.affine.variables()
            case Read():
                for subscript in node.subscripts:
                    if isinstance(subscript, Affine):
                        found |= subscript.variables()
            case _:
                pass
    return frozenset(found)


def image(subscripts: Sequence[Subscript], variable: Variable, scope: Scope) -> isl.Set:
    """`[outer] -> { [elements] }` that the instances of the scope touch; a gather touches its whole dimension."""
    elements = [f"e{d}'" for d in range(len(subscripts))]
    limits = [
        f"{e} = {s.isl_text()}" if isinstance(s, Affine) else f"0 <= {e} < {affine(extent).isl_text()}"
        for e, s, extent in zip(elements, subscripts, variable.shape, strict=True)
    ]
    return scope.image(elements, limits)


def fill(result: Tensor, value: Expr, span: Span | None) -> Equation:
    """`result[i0, i1, ..] = value` over the whole tensor."""
    names = tuple(f"i{d}" for d in range(len(result.shape)))
    extents = dict(zip(names, result.shape, strict=True))
    return Equation(
        result=result,
        indices=names,
        domain=box(result.name, names, extents, sorted(variables_in(result.shape))),
        target=tuple(affine(n) for n in names),
        body=value,
        span=span,
    )


def index_value(value: Affine) -> Typed:
    """Index arithmetic as a weak number, which wraps whether sizes are known or not."""
    if not value.is_constant:
        return Typed(IndexValue(value, i64), True)
    return number((value.constant + 2**63) % 2**64 - 2**63)


def fold(op: str, values: Sequence[Typed], span: Span) -> Typed:
    """`values[0] op values[1] op ...`, from the left."""
    total = values[0]
    for value in values[1:]:
        total = apply(op, [total, value], span)
    return total


def materialized(state: State, variable: Variable) -> Variable:
    """The variable with an SSA value: zeros, where it is declared and not written yet."""
    if variable.tensor is not None:
        return variable
    tensor = state.tensor(variable.label, variable.dtype, variable.shape)
    state.emit(fill(tensor, cast(Const(0, i64), variable.dtype), None))
    return replace(variable, tensor=tensor)


def copied(state: State, variable: Variable, span: Span | None) -> Variable:
    """The variable with an equal tensor of its own."""
    assert variable.tensor is not None, "internal: a variable without a value"
    tensor = state.tensor(f"{variable.label}_copy", variable.dtype, variable.shape, variable.label)
    elements = tuple(affine(f"i{d}") for d in range(len(variable.shape)))
    state.emit(fill(tensor, Read(variable.tensor.name, elements, variable.dtype), span))
    return replace(variable, tensor=tensor)
