"""Reducers as Equations: which terms a sum may skip, and nested reducers as tensors of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyml.dtypes import DType, boolean, i64
from polyml.einsum_frontend.complex_parts import Parts, joined, parts_of
from polyml.einsum_frontend.proofs import points_without_items
from polyml.einsum_frontend.quasi_affine import Constraint, Names, constraint_of
from polyml.einsum_frontend.ranges import Range
from polyml.einsum_frontend.syntax import Binary, Call, Expression, Number, Pad, Subscript, Unary
from polyml.einsum_frontend.typing import Typed, cast, element, is_narrow
from polyml.errors import DTypeError
from polyml.expressions import Const, Expr, Read
from polyml.graph.builder.parts import Path, variables_of
from polyml.graph.builder.product import free_box, product_into
from polyml.graph.builder.state import State
from polyml.graph.ir import Equation
from polyml.records import dataclass
from polyml.sets.affine import affine
from polyml.source import Span

__all__ = ["Reduction", "has_idle_instances", "nested", "nonzero", "typed_terms"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A translated reducer: `body` over the points of `inner`, which binds `bound` besides what `outer` has."""

    kind: str
    outer: Path
    inner: Path
    bound: tuple[str, ...]
    body: Typed
    span: Span
    padded: bool = False
    """Nothing but padding restricts its points (Equation.padded)."""

    @property
    def is_argument(self) -> bool:
        """Its result is an index."""
        return self.kind in ("argmax", "argmin")

    @property
    def result(self) -> DType:
        return i64 if self.is_argument else self.body.dtype

    @property
    def accumulates_apart(self) -> bool:
        """Its result is of a type that nothing is computed in: half precision is summed in f32, complex numbers part by part."""
        return not self.is_argument and self.body.dtype.part != self.body.dtype

    @property
    def weak(self) -> bool:
        return self.body.weak and not self.is_argument

    def free(self, body: Expr | None = None) -> list[Range]:
        """The outer indices that the body (or a part of it) or the reducer's own conditions use."""
        own = self.inner.scope.conditions[len(self.outer.scope.conditions) :]
        used = variables_of(self.body.expr if body is None else body).union(*(c.names for c in own))
        return [r for r in self.outer.scope.indices if r.name in used]

    def value_range(self) -> tuple[int, int] | None:
        """The least and greatest result of argmax and argmin."""
        index = self.inner.scope.known[self.bound[0]] if self.is_argument else None
        if index is None or index.low is None or index.high is None:
            return None
        return min(0, index.low), max(0, index.high - 1)


def typed_terms(kind: str, body: Typed, span: Span) -> Typed:
    """The terms in the type in which the reduction accumulates.

    Raises:
        DTypeError: a sum or product of 8- or 16-bit integers; the extremum of complex numbers.
    """
    if kind in ("any", "all"):
        return Typed(cast(body.expr, boolean), body.weak)
    if body.dtype.is_complex and kind not in ("sum", "prod"):
        raise DTypeError("complex numbers have no order", span=span, hint="compare abs(..) or real(..)")
    if kind in ("sum", "prod") and is_narrow(body.dtype):
        raise DTypeError(
            f"{kind} over {body.dtype} would wrap",
            span=span,
            hint=f"widen the terms by a dtype call: {kind}[..](i32(..))",
        )
    if kind in ("sum", "prod") and body.dtype == boolean:
        return Typed(cast(body.expr, i64), body.weak)
    return body


def has_idle_instances(reduction: Reduction) -> bool:
    """True when some outer point has nothing to reduce."""
    lacking = points_without_items(reduction.outer.scope, reduction.inner.scope)
    return lacking is not None and not lacking.is_empty()


def nested(state: State, label: str, reduction: Reduction) -> Typed:
    """The reduction as a tensor of its own (complex: one per part) over exactly the outer indices that it uses; an access to it."""
    body = reduction.body
    if not body.dtype.is_complex:
        value = _tensor_of(state, label, reduction, body.expr)
        return Typed(value, reduction.weak, None if reduction.is_argument else body.half)
    if reduction.kind == "prod":
        free = reduction.free()
        names = tuple(r.name for r in free)
        shape = free_box(state, free, reduction.kind, reduction.span)
        target = tuple(map(affine, names))
        scope, bound = reduction.inner.scope, reduction.bound
        name = f"{label}_prod"
        whole = product_into(state, name, body.dtype, shape, target, body.expr, scope, names, bound, reduction.span)
        return element(Read(whole.name, target, body.dtype), reduction.weak)
    parts = parts_of(body.expr)
    assert parts.imag is not None, "internal: a complex value has two parts"
    real = _tensor_of(state, label, reduction, parts.real)
    is_zero = isinstance(parts.imag, Const) and parts.imag.value == 0
    imag = parts.imag if is_zero else _tensor_of(state, label, reduction, parts.imag)
    return Typed(joined(Parts(real, imag), body.dtype), reduction.weak)


def _tensor_of(state: State, label: str, reduction: Reduction, body: Expr) -> Read:
    """An access to the new tensor that reduces `body`."""
    free = reduction.free(body)
    names = tuple(r.name for r in free)
    shape = free_box(state, free, reduction.kind, reduction.span)
    dtype = i64 if reduction.is_argument else body.dtype
    result = state.tensor(f"{label}_{reduction.kind}", dtype, shape, f"{label}.{reduction.kind}")
    target = tuple(affine(name) for name in names)
    state.emit(
        Equation(
            result=result,
            indices=(*names, *reduction.bound),
            domain=reduction.inner.scope.domain(result.name, [*names, *reduction.bound]),
            target=target,
            body=body,
            reduce=reduction.kind,
            reduced=reduction.bound,
            span=reduction.span,
            padded=reduction.padded,
        )
    )
    values = reduction.value_range()
    if values is not None:
        state.value_ranges[result.name] = values
    return Read(result.name, target, result.dtype)


Inside = Callable[[Subscript], list[Constraint]]


def nonzero(node: Expression, names: Names, inside: Inside) -> tuple[Expression, list[Constraint]]:
    """A sum's body without its `where(condition, e, 0)` factors, and the conditions outside which its terms are zeros.

    inside: of a padded access, the conditions that it is not in the padding.
    """
    match node:
        case Binary(op="*"):
            left, first = nonzero(node.left, names, inside)
            right, second = nonzero(node.right, names, inside)
            changed = left is not node.left or right is not node.right
            return (replace(node, left=left, right=right) if changed else node), [*first, *second]
        case Binary(op="/"):
            left, first = nonzero(node.left, names, inside)
            return (replace(node, left=left) if left is not node.left else node), first
        case Unary(op="-"):
            operand, first = nonzero(node.operand, names, inside)
            return (replace(node, operand=operand) if operand is not node.operand else node), first
        case Call(function="where", args=(test, chosen, Number(value=0) as zero)):
            condition = constraint_of(test, names)
            if condition is None:
                return node, []
            if not isinstance(zero.value, bool):  # beside it whole numbers may be floats, and bools are numbers
                chosen = Binary("*", chosen, replace(zero, value=type(zero.value)(1)), node.span)
            return chosen, [condition]
        case Subscript(tensor=Pad()):
            return node, inside(node)
        case _:
            return node, []
