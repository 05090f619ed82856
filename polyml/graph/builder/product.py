"""Products of complex numbers, whose parts depend on each other: a Loop that multiplies factor after factor, in the order of the reducer's items.

Every other reduction goes part by part. A scheduler sees recurrences over the reduced indices, and all other indices as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import islpy as isl

from polyml.dtypes import DType, i64
from polyml.einsum_frontend.proofs import Scope
from polyml.einsum_frontend.ranges import Range
from polyml.einsum_frontend.typing import Typed, apply, cast, element
from polyml.errors import UnboundedDomainError
from polyml.expressions import Const, Expr, Read, Subscript, substitute
from polyml.graph.builder.box import greatest_plus_one
from polyml.graph.builder.parts import fill
from polyml.graph.builder.state import State
from polyml.graph.ir import Carried, Equation, Loop, Op, Tensor
from polyml.sets.affine import Affine, Extent, affine
from polyml.source import Span

__all__ = ["free_box", "product_into"]


def free_box(state: State, free: Sequence[Range], kind: str, span: Span) -> list[Extent]:
    """The extents of a tensor with one element per point of `free`.

    Raises:
        UnboundedDomainError: no number bounds an index.
    """
    return [_stop(state, r, f"{kind}[..] needs one value per {r.name}", span) for r in free]


def _stop(state: State, r: Range, why: str, span: Span) -> Extent:
    extent = greatest_plus_one(state, r)
    if extent is None:
        raise UnboundedDomainError(
            f"the extent of {r.name} is not known at compile time, and {why}",
            span=span,
            hint="bound the index by a number or by the shape of an argument",
        )
    return extent


def product_into(
    state: State,
    label: str,
    dtype: DType,
    shape: Sequence[Extent],
    target: Sequence[Subscript],
    factor: Expr,
    scope: Scope,
    kept: Sequence[str],
    multiplied: Sequence[str],
    span: Span,
) -> Tensor:
    """A tensor of ones whose elements `target` are multiplied by `factor` for all values of indices of the scope.

    kept: the indices that different elements have. multiplied: those over which loops run, whose values may meet in one element. An index that is neither of them tells nothing apart, and no factor counts once for each of its values.
    """
    ones = state.tensor(label, dtype, shape)
    state.emit(fill(ones, cast(Const(1, i64), dtype), span))
    bound = [r for r in scope.indices if r.name in multiplied]
    stops = [_stop(state, r, f"a product over {dtype} runs over it", span) for r in bound]
    renamed = {r.name: affine(state.fresh(r.name)) for r in bound}

    def step(before: Tensor) -> tuple[Op, Tensor]:
        result = state.tensor(label, dtype, shape)
        places = tuple(s.substitute(renamed) if isinstance(s, Affine) else substitute(s, renamed) for s in target)
        old = element(Read(before.name, places, dtype))
        now = apply("mul", [old, Typed(substitute(factor, renamed), False)], span)
        domain = _with_loops(scope.domain(result.name, (*kept, *(r.name for r in bound))), len(kept), renamed)
        equation = Equation(
            result=result, indices=tuple(kept), domain=domain, target=places, body=now.expr, base=before, span=span
        )
        return equation, result

    levels = [
        (str(renamed[r.name].name), affine(0 if r.low is None else r.low), affine(stop))
        for r, stop in zip(bound, stops, strict=True)
    ]
    op, result = _looped(state, ones, levels, step, span)
    state.emit(op)
    return result


def _looped(
    state: State,
    before: Tensor,
    levels: Sequence[tuple[str, Affine, Affine]],
    step: Callable[[Tensor], tuple[Op, Tensor]],
    span: Span,
) -> tuple[Op, Tensor]:
    """`step` in loops that carry one tensor: (variable, start, stop), outermost first."""
    if not levels:
        return step(before)
    variable, start, stop = levels[0]
    inner = state.tensor(before.label, before.dtype, before.shape)
    op, after = _looped(state, inner, levels[1:], step, span)
    result = state.tensor(before.label, before.dtype, before.shape)
    carried = (Carried(initial=before, inner=inner, next=after, result=result),)
    return Loop(variable=variable, start=start, stop=stop, step=1, body=(op,), carried=carried, span=span), result


def _with_loops(domain: isl.Set, kept: int, renamed: dict[str, Affine]) -> isl.Set:
    """The dimensions from `kept` on as parameters of these names."""
    name = domain.get_tuple_name()
    outer = domain.dim(isl.dim_type.param)
    moved = domain.move_dims(isl.dim_type.param, outer, isl.dim_type.set, kept, len(renamed))
    for position, variable in enumerate(renamed.values()):
        moved = moved.set_dim_name(isl.dim_type.param, outer + position, str(variable.name))
    return moved.set_tuple_name(name)
