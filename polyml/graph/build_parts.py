"""Small parts of the graph builder: where an expression stands, what it mentions, which elements it touches, fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import islpy as isl

from polyml.dtypes import i64
from polyml.einsum_frontend.proofs import Scope
from polyml.einsum_frontend.quasi_affine import Constraint
from polyml.einsum_frontend.ranges import Range
from polyml.einsum_frontend.typing import Typed, apply, number
from polyml.expressions import Expr, IndexValue, Read, Subscript, walk
from polyml.graph.build_state import Variable
from polyml.graph.ir import Equation, Tensor
from polyml.sets.affine import Affine, affine
from polyml.source import Span

__all__ = ["Path", "fill", "fold", "image", "index_value", "variables_of"]


@dataclass(frozen=True, slots=True)
class Path:
    """Where an expression stands: the points (`scope`), and the conditions on data that hold there."""

    scope: Scope
    data: tuple[Expr, ...] = ()

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
    elements = [f"e{d}" for d in range(len(subscripts))]
    limits = [
        f"{e} = {s.isl_text()}" if isinstance(s, Affine) else f"0 <= {e} < {extent}"
        for e, s, extent in zip(elements, subscripts, variable.shape, strict=True)
    ]
    return scope.image(elements, limits)


def fill(result: Tensor, value: Expr, span: Span | None) -> Equation:
    """`result[i0, i1, ..] = value` over the whole tensor."""
    names = tuple(f"i{d}" for d in range(len(result.shape)))
    limits = [f"0 <= {n} < {e.isl_text()}" for n, e in zip(names, result.shape, strict=True)]
    ranges = tuple(Range(n, limit, 0, None, False) for n, limit in zip(names, limits, strict=True))
    return Equation(
        result=result,
        indices=names,
        domain=Scope((), ranges).domain(result.name, names),
        target=tuple(affine(n) for n in names),
        body=value,
        span=span,
    )


def index_value(value: Affine) -> Typed:
    """Index arithmetic as a weak number."""
    return number(value.constant) if value.is_constant else Typed(IndexValue(value, i64), True)


def fold(op: str, values: Sequence[Typed], span: Span) -> Typed:
    """`values[0] op values[1] op ...`, from the left."""
    total = values[0]
    for value in values[1:]:
        total = apply(op, [total, value], span)
    return total
