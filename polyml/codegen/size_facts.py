"""What holds between expressions in symbolic sizes, for all values that these may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from fractions import Fraction
from math import ceil, gcd

import islpy as isl

from polyml.disjoint_sets import DisjointSets
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extremum, FloorDiv, affine, minimum, operands
from polyml.sets.spaces import parameters_of

__all__ = ["SizeFacts", "facts_of"]

_Linear = tuple[dict[str, Fraction], Fraction]
"""Coefficients of variables, and a constant."""


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """least: of each size, where there is one. same: sizes that equal another one, which stands for them."""

    least: Mapping[str, int]
    same: Mapping[str, Affine] = field(default_factory=dict)

    def of(self, value: Affine) -> Affine:
        """The value in the sizes that stand for all."""
        return value.substitute(self.same)

    def at_most(self, one: Affine, other: Affine) -> bool:
        """Whether `one <= other` is sure."""
        difference = other - one
        if difference.is_constant:
            return difference.constant >= 0
        linear = _below(difference)
        if linear is None:
            return False
        bound = linear[1]
        for name, coefficient in linear[0].items():
            if coefficient > 0 and name in self.least:
                bound += coefficient * self.least[name]
            elif coefficient:
                return False
        # All values are a constant and multiples of what the coefficients have in common.
        common = gcd(*(coefficient for _, coefficient in difference.terms))
        return ceil((bound - difference.constant) / common) * common + difference.constant >= 0

    def smallest(self, values: Iterable[Affine]) -> Affine:
        """Their minimum, without those that are sure to be no less than another one."""
        left = list(dict.fromkeys(one for value in values for one in operands(value, "min")))
        for one in tuple(left):
            if any(other is not one and self.at_most(other, one) for other in left):
                left.remove(one)
        return minimum(left)


def facts_of(context: isl.Set, sizes: Iterable[str]) -> SizeFacts:
    """What a context, a set of parameters, says of each size alone."""
    least: dict[str, int] = {}
    for size in sizes:
        values = isl.Map(f"[{size}] -> {{ [] -> [{size}] }}").intersect_params(context).range()
        value = values.dim_min_val(0)
        if value.is_int():
            least[size] = value.to_python()
    return SizeFacts(least, _equal_sizes(context))


def _equal_sizes(context: isl.Set) -> dict[str, Affine]:
    """By size the first one that it equals for all values that there are, where that is another one."""
    names = parameters_of(context)
    together = DisjointSets(names)
    for constraint in context.affine_hull().get_constraints():
        factors = [constraint.get_coefficient_val(isl.dim_type.param, k).to_python() for k in range(len(names))]
        used = [k for k, factor in enumerate(factors) if factor]
        if len(used) == 2 and sum(factors) == 0 and constraint.get_constant_val().is_zero():
            together.join(names[used[0]], names[used[1]])
    return {name: affine(group[0]) for group in together.groups() for name in group[1:]}


def _below(value: Affine) -> _Linear | None:
    """A linear function that is no larger: `floor(n / d)` is at least `(n - d + 1) / d` and at most `n / d`."""
    sums: dict[str, Fraction] = {}
    constant = _add(value, Fraction(1), sums)
    return None if constant is None else (sums, constant)


def _add(value: Affine, factor: Fraction, sums: dict[str, Fraction]) -> Fraction | None:
    """Adds a function no larger than the multiple to the sums; its constant, or None."""
    constant = value.constant * factor
    for atom, coefficient in value.terms:
        part = coefficient * factor
        match atom:
            case str():
                sums[atom] = sums.get(atom, Fraction(0)) + part
            case FloorDiv():
                more = _add(atom.numerator, part / atom.denominator, sums)
                if more is None:
                    return None
                constant += more - (part * Fraction(atom.denominator - 1, atom.denominator) if part > 0 else 0)
            case Extremum():
                return None
    return constant
