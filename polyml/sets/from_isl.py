"""From isl back to polyml's own index arithmetic: affine functions and the constraints of a set."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Constraint", "affine_of", "constraints_of"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """`value >= 0`, or `value == 0` where `equality`."""

    value: Affine
    equality: bool


def affine_of(function: isl.Aff, names: Sequence[str]) -> Affine:
    """The quasi-affine function over the variables `names` (one per domain dimension; parameters keep their own names).

    A function with a denominator becomes a floor division by it: only integral values occur in integer sets.
    """
    denominator = function.get_denominator_val()
    scaled = denominator.to_python()

    def number(value: isl.Val) -> int:
        return int((value if scaled == 1 else value * denominator).to_python())

    total = affine(number(function.get_constant_val()))
    for position, name in enumerate(names):
        factor = function.get_coefficient_val(isl.dim_type.in_, position)
        total = total if factor.is_zero() else total + affine(name) * number(factor)
    for position in range(function.dim(isl.dim_type.param)):
        factor = function.get_coefficient_val(isl.dim_type.param, position)
        if not factor.is_zero():
            parameter = function.get_dim_name(isl.dim_type.param, position)
            assert parameter is not None, "internal: a parameter without a name"
            total = total + affine(parameter) * number(factor)
    for position in range(function.dim(isl.dim_type.div)):
        factor = function.get_coefficient_val(isl.dim_type.div, position)
        if not factor.is_zero():
            total = total + affine_of(function.get_div(position), names) * number(factor)
    return total // scaled


def constraints_of(piece: isl.BasicSet, names: Sequence[str]) -> tuple[Constraint, ...]:
    """The constraints of one convex piece, whose integer divisions must be known (`compute_divs` first)."""
    return tuple(Constraint(affine_of(c.get_aff(), names), c.is_equality()) for c in piece.get_constraints())
