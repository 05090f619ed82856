"""One assignment as Equations: the form that its left and right side take in SSA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.dtypes import DType, boolean, i64
from polyml.einsum_frontend.complex_parts import parts_of
from polyml.einsum_frontend.proofs import Scope, parameters
from polyml.einsum_frontend.quasi_affine import Names, nodes
from polyml.einsum_frontend.ranges import bound_names
from polyml.einsum_frontend.syntax import Assign, Expression, IndexRef, Reducer
from polyml.einsum_frontend.typing import Typed, apply, cast, common, element, stored
from polyml.expressions import Apply, Const, Expr, Read, plain_indices
from polyml.graph.builder.body import Body
from polyml.graph.builder.gather import value_interval
from polyml.graph.builder.parts import Path, fill, image
from polyml.graph.builder.product import product_into
from polyml.graph.builder.reduction import Reduction, has_idle_instances, nested
from polyml.graph.builder.state import State, Variable
from polyml.graph.builder.target import (
    Target,
    first_shape,
    guard_conditions,
    index_variables,
    left_side,
    statement_ranges,
)
from polyml.graph.ir import Equation, Tensor
from polyml.sets.affine import affine

__all__ = ["assign"]

Source = Reduction | Typed
"""A right side: the statement's own reduction, or a value per left instance."""


def assign(state: State, outer_names: Names, statement: Assign, guards: Sequence[Expression]) -> None:
    """Emits the Equations of one assignment and updates its variable.

    guards: conditions of the enclosing `if`s.
    """
    variable = state.env.get(statement.target)
    if variable is None and statement.op != "=":
        state.lookup(statement.target, statement.target_span)
    left = statement.subscripts or ()
    left_names = list(dict.fromkeys(n.name for s in left for n in nodes(s) if isinstance(n, IndexRef)))
    everything = list(dict.fromkeys([*left_names, *(name for _, name in bound_names(statement.value))]))
    names = Names(outer_names.sizes, outer_names.loops, index_variables(state, everything))
    ranges = statement_ranges(state, names, statement, guards, variable, everything)
    body = Body(state, names, ranges, statement.target)
    scope = Scope(state.outer).bind(ranges[name] for name in left_names)
    own, body.extra = guard_conditions(names, statement, guards, left_names)
    path = Path(scope.within(*own))
    if own and path.scope.points().is_empty() and not scope.points().is_empty():
        state.warnings.append(f"{statement.span}: no instance satisfies the enclosing `if` at these sizes")
    target = left_side(body, statement, variable, path)
    if variable is None:
        _make(state, body, target)
    elif statement.op == "=":
        _overwrite(state, body, target, variable)
    else:
        _update(state, body, target, variable)


def _make(state: State, body: Body, target: Target) -> None:
    """The first statement of a tensor that is not declared: it takes its shape and type from here."""
    name = target.statement.target
    shape, whole = first_shape(state, target)
    source = _right_side(body, target, None)
    dtype, weak = _type(source)
    if not whole:
        made = Variable(state.fresh(f"{name}#"), name, None, dtype, shape, home=len(state.frames) - 1)
        _write(state, replace(target, variable=made), made, source)
        return
    result = state.tensor(name, dtype, shape)
    _emit(state, target, result, source, None)
    state.env[name] = Variable(state.fresh(f"{name}#"), name, result, dtype, shape, weak and not shape)


def _overwrite(state: State, body: Body, target: Target, variable: Variable) -> None:
    """`=` on a tensor that exists."""
    source = _right_side(body, target, None if variable.weak else variable.dtype)
    covers = target.covers
    dtype, weak = variable.dtype, False
    if variable.weak:
        dtype, weak = _type(source)
        if weak and not covers:
            dtype, weak = common([Typed(Const(0, variable.dtype), True), Typed(Const(0, dtype), True)])
    _write(state, target, replace(variable, dtype=dtype, weak=weak), source, covers=covers)


def _write(state: State, target: Target, variable: Variable, source: Source, *, covers: bool = False) -> None:
    """The elements of the left side, of the variable's type; the others stay."""
    written = image(target.subscripts, variable, target.path.scope) if variable.home is not None else None
    if variable.tensor is None and written is not None and not covers:
        covers = _is_whole(state, variable, written, target.path.scope)
    base = None if covers else _base(state, target, variable, variable.dtype)
    result = state.tensor(variable.label, variable.dtype, variable.shape)
    _emit(state, target, result, source, base)
    updated = replace(variable, tensor=result)
    if written is not None:
        updated = state.mark_written(updated, written)
    state.env[target.statement.target] = updated


def _is_whole(state: State, variable: Variable, written: isl.Set, scope: Scope) -> bool:
    """`written` is the whole tensor in every iteration of the enclosing loops."""
    bounds = " and ".join(r.constraint for r in scope.outer if r.constraint)
    iterations = isl.Set(f"{parameters(scope.outer)}{{ : {bounds or 'true'} }}")
    return bool(state.box(variable).intersect_params(iterations).is_subset(written))


def _update(state: State, body: Body, target: Target, variable: Variable) -> None:
    """`+= -= *= /=`: element by element where each is hit once; else all instances that hit an element count."""
    op = target.statement.op
    if variable.home is not None:
        needed = image(target.subscripts, variable, target.path.scope)
        state.require_written(variable, needed, "updated", target.statement.target_span)
    source = _right_side(body, target, None if variable.weak else variable.dtype, adding=op in ("+=", "-="))
    if isinstance(source, Typed) and target.injective:
        _combine(state, target, variable, {"+=": "add", "-=": "sub", "*=": "mul", "/=": "div"}[op], source)
    elif op in ("+=", "-="):
        _accumulate(state, target, variable, source)
    else:
        assert isinstance(source, Typed), "internal: only additions take a reduction as their own"
        _scale(state, target, variable, source)


def _combine(state: State, target: Target, variable: Variable, op: str, value: Typed) -> None:
    """`element = element op value`, each element by one instance."""
    base = _base(state, target, variable, variable.dtype)
    span = target.statement.span
    now = apply(op, [element(Read(base.name, target.subscripts, base.dtype), variable.weak), value], span)
    dtype, weak = (now.dtype, now.weak) if variable.weak else (variable.dtype, False)
    result = state.tensor(variable.label, dtype, variable.shape)
    stored(now, dtype, name=variable.label, update=True, span=span)
    kept = None if target.covers else _base(state, target, variable, dtype)
    _emit(state, target, result, now, kept)
    state.env[target.statement.target] = replace(variable, tensor=result, dtype=dtype, weak=weak)


def _accumulate(state: State, target: Target, variable: Variable, source: Source) -> None:
    """`+=` and `-=` as a reduction that continues from the old elements."""
    terms = source if isinstance(source, Typed) else source.body
    span = target.statement.span
    dtype, weak = variable.dtype, False
    if variable.weak:
        dtype, weak = common([Typed(Const(0, variable.dtype), True), terms])
    if target.statement.op == "-=":
        terms = apply("neg", [terms], span)
    if dtype.part != dtype:
        assert isinstance(source, Typed), "internal: such sums are tensors of their own"
        _accumulate_apart(state, target, variable, terms)
        return
    terms = Typed(stored(terms, dtype, name=variable.label, update=True, span=span), weak)
    base = _base(state, target, variable, dtype)
    result = state.tensor(variable.label, dtype, variable.shape)
    kind = "any" if dtype == boolean else "sum"
    _emit(
        state, target, result, terms if isinstance(source, Typed) else replace(source, body=terms), base, combine=kind
    )
    state.env[target.statement.target] = replace(variable, tensor=result, dtype=dtype, weak=weak)


def _accumulate_apart(state: State, target: Target, variable: Variable, terms: Typed) -> None:
    """The same for types that nothing is computed in: in f32 and rounded once, or part by part."""
    dtype, label, span = variable.dtype, variable.label, target.statement.span
    base = _base(state, target, variable, dtype)
    indices = tuple(affine(f"i{d}") for d in range(len(variable.shape)))
    old = element(Read(base.name, indices, dtype))
    new = cast(terms.expr, dtype, span) if dtype.is_complex else terms.expr
    stored(terms, dtype, name=label, update=True, span=span)
    sums: list[Expr] = []
    for before, term in zip(_both(old.expr), _both(new), strict=True):
        wide, total = (state.tensor(f"{label}_part", dtype.part, variable.shape) for _ in range(2))
        state.emit(fill(wide, before, span))
        _emit(state, target, total, Typed(cast(term, dtype.part, span), False), wide, combine="sum")
        sums.append(Read(total.name, indices, dtype.part))
    result = state.tensor(label, dtype, variable.shape)
    whole = Apply("complex", tuple(sums), dtype) if dtype.is_complex else cast(sums[0], dtype, span)
    state.emit(fill(result, whole, span))
    state.env[target.statement.target] = replace(variable, tensor=result)


def _both(expr: Expr) -> tuple[Expr, ...]:
    """The parts of a complex expression; any other alone."""
    if not expr.dtype.is_complex:
        return (expr,)
    parts = parts_of(expr)
    assert parts.imag is not None, "internal: a complex value has two parts"
    return (parts.real, parts.imag)


def _scale(state: State, target: Target, variable: Variable, value: Typed) -> None:
    """`*=` and `/=` where several instances hit one element: by the product of their values (1 where none does)."""
    dtype, label, span = variable.dtype, variable.label, target.statement.span
    stored(value, dtype, name=label, update=True, span=span)
    if dtype.is_complex:
        factors = Typed(cast(value.expr, dtype, span), False)
        scope, places = target.path.scope, target.subscripts
        product = product_into(
            state, f"{label}_product", dtype, variable.shape, places, factors.expr, scope, (), target.indices, span
        )
    else:
        ones = state.tensor(f"{label}_ones", dtype.part, variable.shape)
        state.emit(fill(ones, cast(Const(1, i64), dtype.part), span))
        product = state.tensor(f"{label}_product", dtype.part, variable.shape)
        factors = Typed(cast(value.expr, dtype.part, span), False)
        _emit(state, target, product, factors, ones, combine="prod")
    base = _base(state, target, variable, dtype)
    result = state.tensor(label, dtype, variable.shape)
    place = tuple(affine(f"i{d}") for d in range(len(variable.shape)))
    both = [element(Read(t.name, place, t.dtype)) for t in (base, product)]
    now = apply("mul" if target.statement.op == "*=" else "div", both, span)
    state.emit(fill(result, stored(now, dtype, name=label, update=True, span=span), span))
    state.env[target.statement.target] = replace(variable, tensor=result)


# -- right sides and emitting -----------------------------------------------------------------------------------------


def _right_side(body: Body, target: Target, dtype: DType | None, *, adding: bool = False) -> Source:
    """The right side; as the statement's own reduction where it is one reducer that uses every left index and has the target's type (`dtype`;
    None: any), since it accumulates in its own. adding: the statement adds to its target, so that only a sum will do."""
    statement = target.statement
    node = body.in_order(statement.value, target.path)
    if not isinstance(node, Reducer):
        return body.value(node, target.path)
    reduction = body.reduction(node, target.path)
    right_kind = reduction.kind == "sum" if adding else statement.op == "="
    uses_all = set(target.indices) <= {r.name for r in reduction.free()}
    if dtype in (None, reduction.result) and right_kind and uses_all and not reduction.accumulates_apart:
        return reduction
    return nested(body.state, body.label, reduction)


def _type(source: Source) -> tuple[DType, bool]:
    """The type of the values, and whether it is weak."""
    return (source.dtype if isinstance(source, Typed) else source.result), source.weak


def _base(state: State, target: Target, variable: Variable, dtype: DType) -> Tensor:
    """The tensor's value before the statement, as `dtype`; zeros, where it is declared and has none yet."""
    tensor = variable.tensor
    if tensor is None:
        tensor = state.tensor(variable.label, dtype, variable.shape)
        state.emit(fill(tensor, cast(Const(0, i64), dtype), None))
    if tensor.dtype != dtype:
        assert not variable.shape, "internal: only a number changes its type"
        strong = state.tensor(variable.label, dtype, ())
        state.emit(fill(strong, cast(Read(tensor.name, (), tensor.dtype), dtype), target.statement.span))
        tensor = strong
    return tensor


def _emit(
    state: State, target: Target, result: Tensor, source: Source, base: Tensor | None, *, combine: str | None = None
) -> None:
    """The statement's Equation. combine: continue that reduction from the base."""
    reduction = source if isinstance(source, Reduction) else None
    bound = reduction.bound if reduction is not None else ()
    body = source if isinstance(source, Typed) else source.body
    kind = combine or (reduction.kind if reduction is not None else None)
    expr = body.expr
    if kind not in ("argmax", "argmin"):
        expr = stored(body, result.dtype, name=target.statement.target, span=target.statement.span)
    inner = reduction.inner.scope if reduction is not None else target.path.scope
    plain = tuple(plain_indices(target.subscripts))
    instances = None
    if reduction is not None and combine is None and (base is not None or plain != target.indices):
        idle = has_idle_instances(reduction)
        instances = target.path.scope.domain(result.name, target.indices) if idle else None
    state.emit(
        Equation(
            result=result,
            indices=(*target.indices, *bound),
            domain=inner.domain(result.name, (*target.indices, *bound)),
            target=target.subscripts,
            body=expr,
            reduce=kind,
            reduced=bound,
            padded=reduction is not None and reduction.padded,
            accumulate=combine is not None,
            base=base,
            instances=instances,
            span=target.statement.span,
        )
    )
    if base is None and result.dtype.is_integer:
        _note_values(state, target, result, reduction, expr)


def _note_values(state: State, target: Target, result: Tensor, reduction: Reduction | None, element: Expr) -> None:
    """Remembers between which numbers the values of an integer tensor lie, for subscripts that read it."""
    if reduction is not None:
        values = reduction.value_range()
    else:
        low, high = value_interval(element, target.path.scope.known, state.value_ranges)
        values = None if low is None or high is None else (low, high)
    if values is not None:
        state.value_ranges[result.name] = values
