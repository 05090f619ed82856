"""Left sides: the ranges and conditions of a statement, its subscripts, and the shape that a first left side gives."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.einsum_frontend.infer import infer_ranges
from polyml.einsum_frontend.proofs import find_collision, prove_injective
from polyml.einsum_frontend.quasi_affine import Constraint, Names, constraint_of, to_affine, why_not_affine
from polyml.einsum_frontend.ranges import Range, Use, bound_names, plain_name, uses_of, variable_of
from polyml.einsum_frontend.syntax import Assign, Expression, IndexRef, Subscript
from polyml.einsum_frontend.walk import index_names
from polyml.errors import EinsumSyntaxError, NotAffineError, ShapeError
from polyml.expressions import Subscript as GraphSubscript
from polyml.expressions import plain_indices
from polyml.graph.builder.body import Body, extents_of
from polyml.graph.builder.box import bounds_of, box_of, greatest_plus_one, stop_of
from polyml.graph.builder.parts import Path
from polyml.graph.builder.state import State, Variable, identifier
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extent, affine

__all__ = ["Target", "first_shape", "guard_conditions", "index_variables", "left_side", "statement_ranges"]


@dataclass(frozen=True, slots=True)
class Target:
    """The left side: its subscripts over the indices of `path.scope`, which are exactly the left side's."""

    statement: Assign
    variable: Variable | None
    subscripts: tuple[GraphSubscript, ...]
    path: Path
    injective: bool

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.path.scope.indices)

    @property
    def covers(self) -> bool:
        """True when the subscripts plainly reach every element of the existing tensor."""
        assert self.variable is not None, "internal: an existing tensor"
        plain = plain_indices(self.subscripts)
        known = self.path.scope.known
        if self.path.scope.conditions or len(set(plain)) < len(plain) or None in plain:
            return False
        return all(
            name in self.indices and known[name].extent == extent
            for name, extent in zip(plain, self.variable.shape, strict=True)
            if name is not None
        )


def index_variables(state: State, everything: Sequence[str]) -> dict[str, Affine]:
    """Index -> its isl variable, distinct from each other and from all sizes and loop variables."""
    taken = {r.name for r in state.outer}
    found: dict[str, Affine] = {}
    for name in everything:
        chosen = identifier(name, taken)
        taken.add(chosen)
        found[name] = affine(chosen)
    return found


def statement_ranges(
    state: State,
    names: Names,
    statement: Assign,
    guards: Sequence[Expression],
    variable: Variable | None,
    everything: Sequence[str],
) -> dict[str, Range]:
    left = statement.subscripts or ()
    restricting = frozenset[str]().union(*map(index_names, guards))

    def extents(node: Subscript) -> tuple[Extent, ...]:
        return extents_of(state, names, node)

    uses = uses_of(statement.value, names, extents, restricting)
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
        statement.value,
        everything,
        own,
        uses,
        names,
        {r.name: r for r in state.outer},
        statement.span,
        state.sizes,
        state.avoid,
        guards,
    )
    state.warnings.extend(inferred.warnings)
    state.assume(inferred.assumed)
    return dict(inferred.ranges)


def guard_conditions(
    names: Names, statement: Assign, guards: Sequence[Expression], left_names: Sequence[str]
) -> tuple[list[Constraint], list[Constraint]]:
    """The enclosing conditions: on the left side's indices, and (above `+=`, `-=`) on those that implied sums bind."""
    own: list[Constraint] = []
    inner: list[Constraint] = []
    summed = {name for reducer, name in bound_names(statement.value) if reducer.implied}
    inner_variables = {variable_of(name, names) for name in summed}
    for guard in guards:
        used = index_names(guard)
        condition = constraint_of(guard, names) if used <= {*left_names, *summed} else None
        if not used <= {*left_names, *summed}:
            lacking = sorted(used - {*left_names, *summed})[0]
            raise EinsumSyntaxError(
                f"the `if` names {plain_name(lacking)}, which the statement does not use",
                span=guard.span,
                hint=f"the statement: {statement.span}",
            )
        if condition is None:
            why, part = why_not_affine(guard, names)
            raise NotAffineError(
                f"the condition of an `if` must be affine in indices, loop variables and sizes, but this one {why}",
                span=part.span,
                hint="use where(condition, new, old) for a condition on data",
            )
        if condition.names.isdisjoint(inner_variables):  # of `r - r` nothing is left
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


def left_side(body: Body, statement: Assign, variable: Variable | None, path: Path) -> Target:
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
            _check_one_for_each(statement, variable, straight, path)
        return Target(statement, variable, subscripts, path, statement.op == "=")
    if statement.op == "=":
        prove_injective(straight, path.scope, name=variable.label, span=statement.target_span, avoid=body.state.avoid)
        return Target(statement, variable, subscripts, path, True)
    return Target(statement, variable, subscripts, path, find_collision(straight, path.scope) is None)


def _check_one_for_each(statement: Assign, variable: Variable, straight: Sequence[Affine], path: Path) -> None:
    """`=` at a computed place: the subscripts that are not computed tell the instances apart, and what no instance writes has a value.

    Raises:
        ShapeError: otherwise.
    """
    if find_collision(straight, path.scope) is not None:
        raise ShapeError(
            "`=` needs a left side that is known to hit each element once, and a subscript that reads a tensor is not",
            span=statement.target_span,
            hint="use `+=` on a filled tensor, or a loop over the indices in it: its iterations are one after another",
        )
    if variable.home is not None:
        raise ShapeError(
            f"`=` at a computed place leaves elements of {variable.label} that have no value yet",
            span=statement.target_span,
            hint=f"fill it where it is declared: {variable.label}: ... = 0",
        )


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


def first_shape(state: State, target: Target) -> tuple[tuple[Extent, ...], bool]:
    """The shape that a first left side gives, and whether it fills it: under an `if` it may leave out elements below the last ones.

    Raises:
        ShapeError: a range does not start at 0, or an extent depends on a loop variable.
    """
    scope, statement = target.path.scope, target.statement
    if scope.conditions:
        return _restricted_shape(state, target)
    shape: list[Extent] = []
    for name in (s.name for s in target.subscripts if isinstance(s, Affine) and s.name is not None):
        extent = stop_of(state, scope.known[name])
        if extent is None:
            raise _not_fixed(statement, scope.known[name])
        shape.append(extent)
    return tuple(shape), True


def _not_fixed(statement: Assign, r: Range) -> ShapeError:
    return ShapeError(
        f"{statement.target} is made here, and the range of {r.name} is {r.constraint or 'not known'}, not 0 to a fixed number",
        span=statement.target_span,
        hint=f"declare it first: {statement.target}: dtype[shape]",
    )


def _restricted_shape(state: State, target: Target) -> tuple[tuple[Extent, ...], bool]:
    """The same under an `if`."""
    scope, statement = target.path.scope, target.statement
    plain = [s.name for s in target.subscripts if isinstance(s, Affine) and s.name is not None]
    restricted = frozenset[str]().union(*(condition.names for condition in scope.conditions))
    for r in (scope.known[name] for name in plain):
        if not (r.exact or state.sizes) or (r.low not in (0, None) and r.name not in restricted):
            raise _not_fixed(statement, r)
    domain = scope.domain("x", plain).reset_tuple_id()
    if state.sizes and (found := box_of(state, domain)) is not None:
        return found, True
    if state.sizes and (bounds := bounds_of(state, domain)) is not None:
        return bounds, False
    if state.avoid(domain.params()):
        return tuple(0 if n in restricted else greatest_plus_one(state, scope.known[n]) or 0 for n in plain), True
    free = domain.project_out(isl.dim_type.param, 0, domain.dim(isl.dim_type.param))
    if not free.is_bounded():
        raise _not_fixed(statement, scope.known[plain[0]])
    shape = [free.dim_max_val(d).to_python() + 1 for d in range(len(plain))]
    limits = [f"0 <= {n} < {extent}" for n, extent in zip(plain, shape, strict=True)]
    outer = [r.constraint for r in scope.outer if r.constraint]
    names = ", ".join(r.name for r in scope.outer)
    text = " and ".join([*limits, *outer])
    whole = isl.Set(f"[{names}] -> {{ [{', '.join(plain)}]{' : ' + text if text else ''} }}")
    return tuple(shape), bool(whole.is_subset(domain))
