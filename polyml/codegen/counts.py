"""Loops that count tiles, read as loops over the tiles' first elements.

isl scans bands whose values have a common factor as numbers without it (`quotients.py`). Here its iterators get their values back: an iterator `c` that
stands for steps of 48 becomes `v / 48`, where v is what the loop of the program runs over, a multiple of 48. All that isl says about `c` has
integer values, so that a sum of such quotients is exact, even where its terms are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm

from polyml.expressions import Apply, Expr, IndexValue
from polyml.sets.affine import Affine, Extremum, FloorDiv, affine, maximum, minimum, operands

__all__ = ["condition_of_values", "value_of_values", "values_before"]

_COMPARISONS = ("eq", "ne", "le", "lt", "ge", "gt")


def value_of_values(value: Affine, counts: Mapping[str, int]) -> Affine:
    """An expression in iterators that count as one in their values, under the same names. counts: what a step of each stands for (left out: 1)."""
    if not counts:
        return value
    numerator, denominator = _fraction(value, counts)
    return numerator // denominator


def values_before(end: Affine, count: int) -> Affine:
    """Where a loop over multiples of `count` ends that ends before `end` if it counts them. Still in iterators that count."""
    if count == 1:
        return end
    return minimum(_before(one, count) for one in operands(end, "min"))


def condition_of_values(condition: Expr, counts: Mapping[str, int]) -> Expr:
    """A condition over iterators that count as one over their values."""
    if not counts:
        return condition
    match condition:
        case Apply(op=op, args=(IndexValue() as left, IndexValue() as right)) if op in _COMPARISONS:
            sides = [_fraction(side.affine, counts) for side in (left, right)]
            common = lcm(*(denominator for _, denominator in sides))
            values = [numerator * (common // denominator) for numerator, denominator in sides]
            divisor = gcd(*(abs(number) for v in values for number in (v.constant, *(c for _, c in v.terms)))) or 1
            made = tuple(IndexValue(v // divisor, side.dtype) for v, side in zip(values, (left, right), strict=True))
            return Apply(op, made, condition.dtype)
        case Apply():
            return Apply(
                condition.op, tuple(condition_of_values(arg, counts) for arg in condition.args), condition.dtype
            )
        case IndexValue():
            return IndexValue(value_of_values(condition.affine, counts), condition.dtype)
        case _:
            return condition


def _fraction(value: Affine, counts: Mapping[str, int]) -> tuple[Affine, int]:
    """Numerator and denominator."""
    denominator = _denominator(value, counts)
    if denominator > 1:
        value = _within_quotient(value, counts)
        denominator = _denominator(value, counts)
    found = affine(value.constant * denominator)
    for atom, coefficient in value.terms:
        match atom:
            case str():
                found = found + affine(atom) * (coefficient * denominator // counts.get(atom, 1))
            case FloorDiv():
                numerator, inner = _fraction(atom.numerator, counts)
                found = found + (numerator // (inner * atom.denominator)) * (coefficient * denominator)
            case Extremum():
                chosen = (minimum if atom.kind == "min" else maximum)(
                    value_of_values(one, counts) for one in atom.operands
                )
                found = found + chosen * (coefficient * denominator)
    return found, denominator


def _denominator(value: Affine, counts: Mapping[str, int]) -> int:
    """What the coefficients of the values have in their denominators."""
    scaled = ((counts.get(atom, 1), c) for atom, c in value.terms if isinstance(atom, str))
    return lcm(*(count // gcd(count, coefficient) for count, coefficient in scaled))


def _within_quotient(value: Affine, counts: Mapping[str, int]) -> Affine:
    """`2 c + floor(c / 2)` as `floor(5 c / 2)`: one division of values instead of two."""
    scaled = Affine(tuple((atom, c) for atom, c in value.terms if isinstance(atom, str) and atom in counts))
    for atom, coefficient in value.terms:
        if isinstance(atom, FloorDiv) and all(c % coefficient == 0 for _, c in scaled.terms):
            part = Affine(tuple((name, c // coefficient) for name, c in scaled.terms))
            whole = affine(FloorDiv(atom.numerator + part * atom.denominator, atom.denominator))
            return value - scaled + (whole - affine(atom)) * coefficient
    return value


def _before(end: Affine, count: int) -> Affine:
    """`count * end`; where `end` is a quotient, rounded down, simply what is divided: in between there are no multiples."""
    for atom, coefficient in end.terms:
        if isinstance(atom, FloorDiv) and count % atom.denominator == 0 and coefficient == 1:
            return atom.numerator * (count // atom.denominator) + (end - affine(atom) - 1) * count + 1
    return end * count
