"""What keeps parameters away from the points where something fails, as few affine conditions that one known point satisfies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import islpy as isl

from polyml.sets.affine import Affine, FloorDiv
from polyml.sets.from_isl import Constraint, constraints_of
from polyml.sets.spaces import parameters_text

__all__ = ["half_spaces", "onto_parameters", "with_values"]


def half_spaces(
    bad: isl.Set, movable: Collection[str], example: Mapping[str, int], known: isl.Set
) -> tuple[Affine, ...] | None:
    """Expressions over the parameters, such that where all of them are at least 0 there is no point of `bad`; None where there are none.

    Of each convex piece of `bad` one constraint is turned round, which the example satisfies then: a polyhedron around the example comes out,
    and not always the largest.

    Args:
        bad: a set of parameters. movable: those that a condition must mention. example: values of parameters (of the others nothing is known).
        known: what holds of the parameters anyway.
    """
    found: list[Affine] = []
    for piece in bad.intersect(known).coalesce().gist(known).get_basic_sets():
        rest = isl.Set.from_basic_set(piece).intersect(known).intersect(_where(found, known))
        if rest.is_empty():
            continue
        possible = [value for value in _turned_round(piece) if _fits(value, movable, example)]
        if not possible:
            return None
        found.append(min(possible, key=_weight))
    return tuple(found)


def onto_parameters(points: isl.Set, names: Collection[str]) -> isl.Set:
    """The values of the parameters `names` for which there is a point; its dimensions of these names become parameters first."""
    for name in names:
        position = points.find_dim_by_name(isl.dim_type.set, name)
        if position >= 0:
            points = points.move_dims(isl.dim_type.param, points.dim(isl.dim_type.param), isl.dim_type.set, position, 1)
    others = [
        d for d in range(points.dim(isl.dim_type.param)) if points.get_dim_name(isl.dim_type.param, d) not in names
    ]
    for position in reversed(others):
        points = points.project_out(isl.dim_type.param, position, 1)
    return points.params()


def with_values(known: isl.Set, values: Collection[Affine]) -> isl.Set:
    """The set of parameters where every value is at least 0, too."""
    return known.intersect(_where(values, known)) if values else known


def _where(values: Collection[Affine], like: isl.Set) -> isl.Set:
    """The set of parameters, in the space of `like`, where every value is at least 0."""
    space = like.get_space()
    names = [str(space.get_dim_name(isl.dim_type.param, d)) for d in range(like.dim(isl.dim_type.param))]
    text = " and ".join(f"{value.isl_text()} >= 0" for value in values)
    return isl.Set(f"{parameters_text(names)}{{ : {text} }}")


def _turned_round(piece: isl.BasicSet) -> Iterator[Affine]:
    """Expressions that are negative on the whole piece; those without divisions first."""
    plain = piece.remove_divs()
    exact = isl.Set.from_basic_set(piece).compute_divs().get_basic_sets()
    constraints = [*constraints_of(plain, ())]
    if len(exact) == 1:
        constraints += constraints_of(exact[0], ())
    for constraint in constraints:
        yield from _negated(constraint)


def _negated(constraint: Constraint) -> Iterator[Affine]:
    yield -constraint.value - 1
    if constraint.equality:
        yield constraint.value - 1


def _fits(value: Affine, movable: Collection[str], example: Mapping[str, int]) -> bool:
    names = value.variables()
    if names.isdisjoint(movable):
        return False
    return not names <= example.keys() or value.evaluate(example) >= 0


def _weight(value: Affine) -> tuple[int, int, str]:
    """Conditions with fewer divisions and names are cheaper, and leave more room."""
    divisions = sum(isinstance(atom, FloorDiv) for atom, _ in value.terms)
    return divisions, len(value.variables()), str(value)
