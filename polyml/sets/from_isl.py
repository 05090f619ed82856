"""From isl back to polyml's own index arithmetic: affine functions and the constraints of a set."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, weighted_sum

__all__ = ["Constraint", "affine_of", "constraints_of", "integer"]

_IN, _PARAM, _DIV = isl.dim_type.in_, isl.dim_type.param, isl.dim_type.div


@dataclass(frozen=True, slots=True)
class Constraint:
    """`value >= 0`, or `value == 0` where `equality`."""

    value: Affine
    equality: bool


def integer(value: isl.Val) -> int:
    """An integer value as a number; not by way of its text, which takes ten times as long, unless it is longer than a word.

    Raises:
        ValueError: it is a fraction, infinite or no number.
    """
    if not value.is_int():
        raise ValueError(f"{value.to_str()} is no integer")
    found = value.get_num_si()  # 0 beyond 64 bits
    return int(found if found or value.is_zero() else value.to_str())


def affine_of(function: isl.Aff, names: Sequence[str]) -> Affine:
    """The quasi-affine function over the variables `names` (one per domain dimension; parameters keep their own names).

    A function with a denominator becomes a floor division by it: only integral values occur in integer sets.
    """
    denominator = function.get_denominator_val()
    scaled = integer(denominator)

    def number(value: isl.Val) -> int:
        return integer(value if scaled == 1 else value * denominator)

    parts = [(affine(1), number(function.get_constant_val()))]
    for position, name in enumerate(names):
        factor = function.get_coefficient_val(_IN, position)
        if not factor.is_zero():
            parts.append((affine(name), number(factor)))
    for position in range(function.dim(_PARAM)):
        factor = function.get_coefficient_val(_PARAM, position)
        if not factor.is_zero():
            parameter = function.get_dim_name(_PARAM, position)
            assert parameter is not None, "internal: a parameter without a name"
            parts.append((affine(parameter), number(factor)))
    for position in range(function.dim(_DIV)):
        factor = function.get_coefficient_val(_DIV, position)
        if not factor.is_zero():
            parts.append((affine_of(function.get_div(position), names), number(factor)))
    return weighted_sum(parts) // scaled


def constraints_of(piece: isl.BasicSet, names: Sequence[str]) -> tuple[Constraint, ...]:
    """The constraints of one convex piece, whose integer divisions must be known (`compute_divs` first)."""
    return tuple(Constraint(affine_of(c.get_aff(), names), c.is_equality()) for c in piece.get_constraints())
