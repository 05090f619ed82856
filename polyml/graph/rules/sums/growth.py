"""How the terms of a reduction grow along a dimension of its result, and the terms at some of its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, substitute
from polyml.graph.elements import all_elements
from polyml.graph.ir import Equation, Tensor
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.from_isl import affine_of, constraints_of

__all__ = ["Growth", "Terms", "growth_along", "moved"]


@dataclass(frozen=True, slots=True)
class Growth:
    """A dimension along which an equation's terms grow.

    index: of the left side; step: 1, or -1 from the last element on. start, later: the points of the left side where that begins, and the others. first, others: terms there, and what is added by each of the others, over all indices.
    """

    index: str
    step: int
    start: isl.Set
    later: isl.Set
    first: isl.Set
    others: isl.Set


def growth_along(equation: Equation, position: int, known: isl.Set) -> Growth | None:
    """How the terms grow along a dimension; None where they do not, or are the same everywhere."""
    domain = equation.domain.reset_tuple_id().intersect_params(known)
    whole = all_elements(equation.result).intersect_params(known)
    count = len(equation.reduced)
    everywhere = whole.add_dims(isl.dim_type.set, count)
    for step in (1, -1):
        earlier = moved(domain, position, step).intersect(everywhere)
        if not earlier.is_subset(domain):
            continue
        later = whole.intersect(moved(whole, position, step))
        start = whole.subtract(later)
        others = domain.subtract(earlier).intersect(later.add_dims(isl.dim_type.set, count)).coalesce()
        first = domain.intersect(start.add_dims(isl.dim_type.set, count)).coalesce()
        if others.is_empty():
            return None
        return Growth(equation.left[position], step, start, later, first, others)
    return None


def moved(points: isl.Set, position: int, step: int) -> isl.Set:
    """The points, each so many places further along a dimension."""
    names = [f"e{d}" for d in range(points.dim(isl.dim_type.set))]
    places = [f"{name} + {step}" if d == position else name for d, name in enumerate(names)]
    return points.apply(isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(places)}] }}"))


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a reduction, with indices that others determine put in terms of these. points: over `left`, the indices of the left side, and `reduced`."""

    left: tuple[str, ...]
    reduced: tuple[str, ...]
    points: isl.Set
    body: Expr

    @staticmethod
    def of(equation: Equation, points: isl.Set) -> Terms:
        """Those of an equation at some of its points."""
        names, count = list(equation.indices), len(equation.left)
        body = equation.body
        while (found := _determined(points, names, count)) is not None:
            position, value = found
            body = substitute(body, {names.pop(position): value})
            points = points.project_out(isl.dim_type.set, position, 1).coalesce()
        return Terms(equation.left, tuple(names[count:]), points, body)

    def equation(self, like: Equation, result: Tensor, base: Tensor | None) -> Equation:
        """The sum of the terms at each point that has one. Without a base it is the identity elsewhere."""
        reduce = like.reduce if self.reduced or base is None else None
        if base is None and not self.reduced and _is_whole(self.points, result):
            reduce = None
        return replace(
            like,
            result=result,
            indices=(*self.left, *self.reduced),
            domain=self.points.set_tuple_name(result.name),
            body=self.body,
            reduce=reduce,
            reduced=self.reduced,
            base=base,
            padded=False,
        )

    def term(self, points: isl.Set, identity: Const) -> Expr | None:
        """The one term that each of these points of the left side has, or the identity; None where some have several, or which of them have one is no simple condition."""
        if self.reduced:
            return None
        if points.is_subset(self.points):
            return self.body
        condition = _condition(self.points.gist(points), self.left)
        return None if condition is None else Apply("select", (condition, self.body, identity), identity.dtype)


def _determined(points: isl.Set, names: Sequence[str], count: int) -> tuple[int, Affine] | None:
    """The last index behind so many that others determine: its place and its value."""
    if points.is_empty():
        return None
    equalities = [c for c in points.affine_hull().get_constraints() if c.is_equality()]
    for position in reversed(range(count, len(names))):
        for constraint in equalities:
            factor = constraint.get_coefficient_val(isl.dim_type.set, position).to_python()
            function = constraint.get_aff()
            quotients = range(function.dim(isl.dim_type.div))
            if factor and all(function.get_coefficient_val(isl.dim_type.div, d).is_zero() for d in quotients):
                others = affine_of(function, names) - affine(names[position]) * factor
                # Where it is no whole number there are no points.
                return position, (others * (-1 if factor > 0 else 1)) // abs(factor)
    return None


def _condition(points: isl.Set, names: Sequence[str]) -> Expr | None:
    """That a point, over these indices, is among them."""
    pieces = points.compute_divs().get_basic_sets()
    if len(pieces) != 1:
        return None
    condition: Expr | None = None
    for constraint in constraints_of(pieces[0], names):
        value = IndexValue(constraint.value, i64)
        holds = Apply("eq" if constraint.equality else "ge", (value, Const(0, i64)), boolean)
        condition = holds if condition is None else Apply("and", (condition, holds), boolean)
    return condition


def _is_whole(points: isl.Set, result: Tensor) -> bool:
    """Whether the points are all elements."""
    return bool(all_elements(result).intersect_params(points.params()).is_subset(points))
