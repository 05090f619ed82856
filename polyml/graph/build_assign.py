"""One assignment as Equations: ranges, left side, right side, and the form that the pair takes in SSA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import islpy as isl

from polyml.dtypes import DType
from polyml.einsum_frontend.proofs import Scope, points_without_items, prove_injective
from polyml.einsum_frontend.quasi_affine import Constraint, Names, constraint_of, nodes, to_affine
from polyml.einsum_frontend.ranges import Range, Use, bound_names, infer_ranges, plain_name, uses_of
from polyml.einsum_frontend.syntax import Assign, Expression, IndexRef, Reducer, Subscript
from polyml.einsum_frontend.typing import Typed, apply, cast, common, stored
from polyml.errors import EinsumSyntaxError, NotAffineError, ShapeError
from polyml.expressions import Const, Expr, Read
from polyml.expressions import Subscript as GraphSubscript
from polyml.graph.build_body import Body, Path, Reduction, extents_of, fill, image
from polyml.graph.build_state import State, Variable
from polyml.graph.ir import Equation, Tensor
from polyml.sets.affine import Affine, affine
from polyml.source import Span

__all__ = ["Target", "assign"]


@dataclass(frozen=True, slots=True)
class Target:
    """The left side: its subscripts over the indices of `path.scope`, which are exactly the left side's."""

    statement: Assign
    variable: Variable | None
    subscripts: tuple[GraphSubscript, ...]
    path: Path
    injective: bool

    @staticmethod
    def scope(state: State) -> Scope:
        """Where an expression without indices stands."""
        return Scope(state.outer)

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.path.scope.indices)

    @property
    def covers(self) -> bool:
        """True when the subscripts plainly reach every element of the existing tensor."""
        assert self.variable is not None, "internal: an existing tensor"
        plain = [s.name if isinstance(s, Affine) else None for s in self.subscripts]
        known = self.path.scope.known
        if self.path.scope.conditions or len(set(plain)) < len(plain) or None in plain:
            return False
        return all(
            name in self.indices and known[name].exact and known[name].low == 0 and known[name].high == extent
            for name, extent in zip(plain, self.variable.shape, strict=True)
            if name is not None
        )


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
    names = Names(outer_names.sizes, outer_names.loops, _variables(state, outer_names, everything))
    ranges = _ranges(state, names, statement, guards, variable, everything)
    body = Body(state, names, ranges, statement.target)
    scope = Scope(state.outer).bind(ranges[name] for name in left_names)
    own, body.extra = _guards(names, statement, guards, left_names)
    target = _target(body, statement, variable, Path(scope.within(*own)))
    if variable is None:
        _make(state, body, target)
    elif statement.op == "=":
        _overwrite(state, body, target, variable)
    elif statement.op in ("+=", "-="):
        _accumulate(state, body, target, variable)
    else:
        _scale(state, body, target, variable)


def _variables(state: State, outer: Names, everything: Sequence[str]) -> dict[str, Affine]:
    """Index -> its isl variable, distinct from each other and from all sizes and loop variables."""
    taken = {r.name for r in state.outer} | {"and", "or", "not", "exists", "min", "max", "mod", "floor", "ceil", "rat"}
    taken |= {"true", "false", "infty", "nan", "implies", "let"}
    found: dict[str, Affine] = {}
    for name in everything:
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
        chosen, count = base, 0
        while chosen in taken:
            count += 1
            chosen = f"{base}_{count}"
        taken.add(chosen)
        found[name] = affine(chosen)
    return found


def _ranges(
    state: State,
    names: Names,
    statement: Assign,
    guards: Sequence[Expression],
    variable: Variable | None,
    everything: Sequence[str],
) -> dict[str, Range]:
    left = statement.subscripts or ()
    restricting = frozenset(n.name for g in guards for n in nodes(g) if isinstance(n, IndexRef))

    def extents(node: Subscript) -> tuple[int, ...]:
        return extents_of(state, names, node)

    uses = list(uses_of(statement.value, names, extents, restricting))
    for subscript in left:
        uses += uses_of(subscript, names, extents, restricting)
    own: list[Use] = []
    if variable is not None:
        if len(variable.shape) != len(left):
            raise ShapeError(
                f"{variable.label} has {len(variable.shape)} dimensions, and is assigned with {len(left)} subscripts",
                span=statement.target_span,
            )
        own = [Use(s, to_affine(s, names), d, restricting) for s, d in zip(left, variable.shape, strict=True)]
    inferred = infer_ranges(
        statement.value, everything, own, uses, names, {r.name: r for r in state.outer}, statement.span
    )
    state.warnings.extend(inferred.warnings)
    return dict(inferred.ranges)


def _guards(
    names: Names, statement: Assign, guards: Sequence[Expression], left_names: Sequence[str]
) -> tuple[list[Constraint], list[Constraint]]:
    """The enclosing conditions: on the left side's indices, and (above `+=`, `-=`) on those that implied sums bind."""
    own: list[Constraint] = []
    inner: list[Constraint] = []
    summed = {name for reducer, name in bound_names(statement.value) if reducer.implied}
    for guard in guards:
        used = {n.name for n in nodes(guard) if isinstance(n, IndexRef)}
        condition = constraint_of(guard, names) if used <= {*left_names, *summed} else None
        if not used <= {*left_names, *summed}:
            lacking = sorted(used - {*left_names, *summed})[0]
            raise EinsumSyntaxError(
                f"the `if` names {plain_name(lacking)}, which the statement does not use",
                span=guard.span,
                hint=f"the statement: {statement.span}",
            )
        if condition is None:
            raise NotAffineError(
                "the condition of an `if` must be affine in indices, loop variables and sizes",
                span=guard.span,
                hint="use where(condition, new, old) for a condition on data",
            )
        if used <= set(left_names):
            own.append(condition)
            continue
        if statement.op not in ("+=", "-="):
            lacking = sorted(used - set(left_names))[0]
            raise EinsumSyntaxError(
                f"the `if` above `{statement.op}` names {plain_name(lacking)}, which is no index of the left side",
                span=guard.span,
                hint=f"put the condition into a reducer: sum[{plain_name(lacking)}, ..](..)",
            )
        inner.append(condition)
    return own, inner


def _target(body: Body, statement: Assign, variable: Variable | None, path: Path) -> Target:
    """The left side, its subscripts proved in bounds; `=` proved injective."""
    left = statement.subscripts or ()
    if variable is None:
        subscripts: tuple[GraphSubscript, ...] = tuple(_new_subscript(s, body.names, statement) for s in left)
        plain = [s.name for s in subscripts if isinstance(s, Affine)]
        if len(set(plain)) < len(plain):
            raise ShapeError(
                f"{statement.target} is made here, so its left side must be distinct plain indices",
                span=statement.target_span,
                hint=f"declare it first: {statement.target}: dtype[shape]",
            )
        return Target(statement, None, subscripts, path, True)
    subscripts = body.subscripts(left, variable.shape, variable.label, path)
    straight = [s for s in subscripts if isinstance(s, Affine)]
    if len(straight) < len(subscripts):
        if statement.op == "=":
            raise ShapeError(
                "`=` needs a left side that is known to hit each element once, and a subscript that reads a tensor is not",
                span=statement.target_span,
                hint="use `+=` on a filled tensor",
            )
        return Target(statement, variable, subscripts, path, False)
    injective = True
    if not {r.name for r in path.scope.indices} <= {s.name for s in straight}:
        try:
            prove_injective(straight, path.scope, name=variable.label, span=statement.target_span)
        except ShapeError:
            if statement.op == "=":
                raise
            injective = False
    return Target(statement, variable, subscripts, path, injective)


def _new_subscript(node: Expression, names: Names, statement: Assign) -> Affine:
    value = to_affine(node, names)
    if value is None or not isinstance(node, IndexRef):
        loops = value is not None and any(
            v in {n for a in names.loops.values() for n in a.variables()} for v in value.variables()
        )
        where = " before the loop" if loops else " first"
        raise ShapeError(
            f"{statement.target} is made here, so its left side must be distinct plain indices",
            span=node.span,
            hint=f"declare it{where}: {statement.target}: dtype[shape]",
        )
    return value


# -- the four forms ---------------------------------------------------------------------------------------------------


def _make(state: State, body: Body, target: Target) -> None:
    """The first statement of a tensor that is not declared: it takes its shape and type from here."""
    statement = target.statement
    shape = _whole_box(target)
    reduction, value = _right_side(body, target, None)
    dtype = reduction.result if reduction is not None else _of(value).dtype
    weak = (reduction.weak if reduction is not None else _of(value).weak) and not shape
    result = state.tensor(statement.target, dtype, shape)
    if reduction is not None:
        _emit_reduction(state, target, reduction, result, None)
    else:
        _emit_plain(state, target, result, _of(value).expr, None)
    key = state.fresh(f"{statement.target}#")
    state.env[statement.target] = Variable(key, statement.target, result, dtype, shape, weak)


def _whole_box(target: Target) -> tuple[int, ...]:
    """The shape that a first left side fills.

    Raises:
        ShapeError: it does not start at 0, depends on a loop variable, or is not a box.
    """
    scope, statement = target.path.scope, target.statement
    plain = [s.name for s in target.subscripts if isinstance(s, Affine)]
    hint = f"declare it first: {statement.target}: dtype[shape]"
    ranges = [scope.known[name] for name in plain if name is not None]
    for r in ranges:
        if r.low != 0 or r.high is None or not r.exact:
            raise ShapeError(
                f"{statement.target} is made here, and the range of {r.name} is {r.constraint or 'not known'}, not 0 to a fixed number",
                span=statement.target_span,
                hint=hint,
            )
    shape = [r.high or 0 for r in ranges]
    if not scope.conditions:
        return tuple(shape)
    domain = scope.domain("x", plain_names(plain)).reset_tuple_id()
    if domain.is_empty():
        raise ShapeError(
            f"{statement.target} is made here, and no instance is left of it", span=statement.target_span, hint=hint
        )
    free = domain.project_out(isl.dim_type.param, 0, domain.dim(isl.dim_type.param))
    shape = [free.dim_max_val(d).to_python() + 1 for d in range(len(shape))]
    limits = [f"0 <= {n} < {extent}" for n, extent in zip(plain_names(plain), shape, strict=True)]
    outer = [r.constraint for r in scope.outer if r.constraint]
    names = ", ".join(r.name for r in scope.outer)
    text = " and ".join([*limits, *outer])
    whole = isl.Set(f"[{names}] -> {{ [{', '.join(plain_names(plain))}]{' : ' + text if text else ''} }}")
    if not whole.is_subset(domain):
        raise ShapeError(
            f"{statement.target} is made here under an `if` that leaves holes in it",
            span=statement.target_span,
            hint=hint,
        )
    return tuple(shape)


def plain_names(names: Sequence[str | None]) -> list[str]:
    return [name for name in names if name is not None]


def _overwrite(state: State, body: Body, target: Target, variable: Variable) -> None:
    """`=` on a tensor that exists."""
    reduction, value = _right_side(body, target, variable.dtype if not variable.weak else None)
    dtype, weak = variable.dtype, False
    if variable.weak:
        source = Typed(Const(0, reduction.result), reduction.weak) if reduction is not None else _of(value)
        dtype, weak = source.dtype, source.weak
    written = image(target.subscripts, variable, target.path.scope) if variable.home is not None else None
    covers = target.covers
    if variable.tensor is None and written is not None and not covers:
        covers = _everywhere(state, variable, written, target.path.scope)
    base = None if covers else _base(state, target.statement.target, variable)
    result = state.tensor(variable.label, dtype, variable.shape)
    span = target.statement.span
    if reduction is not None:
        _emit_reduction(state, target, reduction, result, base)
    else:
        _emit_plain(state, target, result, stored(_of(value), dtype, name=variable.label, span=span), base)
    updated = replace(variable, tensor=result, dtype=dtype, weak=weak)
    if written is not None:
        updated = state.mark_written(updated, written)
    state.env[target.statement.target] = updated


def _everywhere(state: State, variable: Variable, written: isl.Set, scope: Scope) -> bool:
    """`written` is the whole tensor in every iteration of the enclosing loops."""
    bounds = " and ".join(r.constraint for r in scope.outer if r.constraint)
    outer = isl.Set(f"[{', '.join(r.name for r in scope.outer)}] -> {{ : {bounds or 'true'} }}")
    return bool(state.box(variable).intersect_params(outer).is_subset(written))


def _accumulate(state: State, body: Body, target: Target, variable: Variable) -> None:
    """`+=` and `-=`: instances that hit one element all count."""
    negate = target.statement.op == "-="
    span = target.statement.span
    needed = image(target.subscripts, variable, target.path.scope) if variable.home is not None else None
    if needed is not None:
        state.require_written(variable, needed, "updated", target.statement.target_span)
    node = target.statement.value
    reduction: Reduction | None = None
    value: Typed | None = None
    if isinstance(node, Reducer) and node.kind == "sum":
        reduction = body.reduction(node, target.path)
    else:
        value = body.value(node, target.path)
    source = value if value is not None else reduction.body if reduction is not None else None
    assert source is not None, "internal: a right side"
    dtype = variable.dtype
    weak = False
    if variable.weak:
        dtype, weak = common([Typed(Const(0, variable.dtype), True), source])
    base = _base(state, target.statement.target, variable)
    if base.dtype != dtype:
        strong = state.tensor(variable.label, dtype, ())
        state.emit(fill(strong, cast(Read(base.name, (), base.dtype), dtype), span))
        base = strong
    if negate:
        source = apply("neg", [source], span) if source.dtype.kind != "b" else source
    element = stored(source, dtype, name=variable.label, update=True, span=span)
    result = state.tensor(variable.label, dtype, variable.shape)
    inner = reduction.inner.scope if reduction is not None else target.path.scope
    bound = reduction.bound if reduction is not None else ()
    state.emit(
        Equation(
            result=result,
            indices=(*target.indices, *bound),
            domain=inner.domain(result.name, (*target.indices, *bound)),
            target=target.subscripts,
            body=element,
            reduce="sum",
            reduced=bound,
            accumulate=True,
            base=base,
            span=span,
        )
    )
    state.env[target.statement.target] = replace(variable, tensor=result, dtype=dtype, weak=weak)


def _scale(state: State, body: Body, target: Target, variable: Variable) -> None:
    """`*=` and `/=`: the element read, combined and written; where several instances hit one element, by way of their product."""
    statement = target.statement
    op = "mul" if statement.op == "*=" else "div"
    if variable.home is not None:
        needed = image(target.subscripts, variable, target.path.scope)
        state.require_written(variable, needed, "updated", statement.target_span)
    value = body.value(statement.value, target.path)
    base = _base(state, statement.target, variable)
    if not target.injective:
        base, value = _product(state, target, variable, value, base)
        elements = tuple(affine(f"e{d}") for d in range(len(variable.shape)))
        now = apply(op, [Typed(Read(base.name, elements, base.dtype), False), value], statement.span)
        result = state.tensor(variable.label, variable.dtype, variable.shape)
        element = stored(now, variable.dtype, name=variable.label, update=True, span=statement.span)
        state.emit(_pointwise(result, element, statement.span))
        state.env[statement.target] = replace(variable, tensor=result)
        return
    old = Typed(Read(base.name, target.subscripts, base.dtype), variable.weak)
    now = apply(op, [old, value], statement.span)
    dtype, weak = (now.dtype, now.weak) if variable.weak else (variable.dtype, False)
    result = state.tensor(variable.label, dtype, variable.shape)
    element = stored(now, dtype, name=variable.label, update=True, span=statement.span)
    whole = target.covers or (not variable.shape and not target.path.scope.conditions)
    _emit_plain(state, target, result, element, None if whole else base)
    state.env[statement.target] = replace(variable, tensor=result, dtype=dtype, weak=weak)


def _product(state: State, target: Target, variable: Variable, value: Typed, base: Tensor) -> tuple[Tensor, Typed]:
    """The base, and the elementwise product of all values that hit an element (1 where none does)."""
    dtype = variable.dtype
    span = target.statement.span
    ones = state.tensor(f"{variable.label}_ones", dtype, variable.shape)
    state.emit(fill(ones, cast(Const(1, dtype), dtype), span))
    product = state.tensor(f"{variable.label}_product", dtype, variable.shape)
    state.emit(
        Equation(
            result=product,
            indices=target.indices,
            domain=target.path.scope.domain(product.name, target.indices),
            target=target.subscripts,
            body=stored(value, dtype, name=variable.label, update=True, span=span),
            reduce="prod",
            accumulate=True,
            base=ones,
            span=span,
        )
    )
    elements = tuple(affine(f"e{d}") for d in range(len(variable.shape)))
    return base, Typed(Read(product.name, elements, dtype), False)


def _pointwise(result: Tensor, element: Expr, span: Span) -> Equation:
    """`result[e0, e1, ..] = element` over the whole tensor."""
    names = tuple(f"e{d}" for d in range(len(result.shape)))
    limits = " and ".join(f"0 <= {n} < {e.isl_text()}" for n, e in zip(names, result.shape, strict=True))
    domain = isl.Set(f"{{ {result.name}[{', '.join(names)}]{' : ' + limits if limits else ''} }}")
    target = tuple(affine(n) for n in names)
    return Equation(result=result, indices=names, domain=domain, target=target, body=element, span=span)


# -- emitting ---------------------------------------------------------------------------------------------------------


def _base(state: State, name: str, variable: Variable) -> Tensor:
    """The tensor's value before the statement; zeros, where it is declared and has none yet."""
    if variable.tensor is not None:
        return variable.tensor
    tensor = state.tensor(variable.label, variable.dtype, variable.shape)
    state.emit(fill(tensor, cast(Const(0, variable.dtype), variable.dtype), None))
    state.env[name] = replace(variable, tensor=tensor)
    return tensor


def _right_side(body: Body, target: Target, dtype: DType | None) -> tuple[Reduction | None, Typed | None]:
    """The right side: as the statement's own reduction where it is one reducer that uses every left index and accumulates in the target's type
    (`dtype`; None: whatever it is), else as a value."""
    node = target.statement.value
    if not isinstance(node, Reducer):
        return None, body.value(node, target.path)
    reduction = body.reduction(node, target.path)
    free = {r.name for r in reduction.free()}
    fits = dtype is None or dtype == reduction.result or (_widens(reduction, dtype))
    if not fits or not free >= set(target.indices):
        return None, body.nested(reduction)
    if dtype is not None and dtype != reduction.result:
        element = stored(reduction.body, dtype, name=target.statement.target, span=target.statement.span)
        reduction = replace(reduction, body=Typed(element, False))
    return reduction, None


def _widens(reduction: Reduction, dtype: DType) -> bool:
    """The target's type holds every value of the body's, so that the reduction may accumulate in it."""
    if reduction.kind in ("argmax", "argmin", "any", "all"):
        return False
    source = reduction.result
    return reduction.weak or (source.kind == dtype.kind and dtype.bits >= source.bits)


def _of(value: Typed | None) -> Typed:
    assert value is not None, "internal: a right side is a reduction or a value"
    return value


def _emit_plain(state: State, target: Target, result: Tensor, element: Expr, base: Tensor | None) -> None:
    state.emit(
        Equation(
            result=result,
            indices=target.indices,
            domain=target.path.scope.domain(result.name, target.indices),
            target=target.subscripts,
            body=element,
            base=base,
            span=target.statement.span,
        )
    )


def _emit_reduction(state: State, target: Target, reduction: Reduction, result: Tensor, base: Tensor | None) -> None:
    indices = (*target.indices, *reduction.bound)
    plain = tuple(s.name if isinstance(s, Affine) else None for s in target.subscripts)
    instances = None
    if base is not None or plain != target.indices:
        lacking = points_without_items(target.path.scope, reduction.inner.scope)
        if lacking is not None and not lacking.is_empty():
            instances = target.path.scope.domain(result.name, target.indices)
    state.emit(
        Equation(
            result=result,
            indices=indices,
            domain=reduction.inner.scope.domain(result.name, indices),
            target=target.subscripts,
            body=reduction.body.expr,
            reduce=reduction.kind,
            reduced=reduction.bound,
            base=base,
            instances=instances,
            span=target.statement.span,
        )
    )
