"""Places that are numbers of several digits: `6*g + e`, where e is below 6, has the digits g and e."""

from __future__ import annotations

from collections.abc import Mapping

from polyml.sets.affine import Affine

__all__ = ["digits", "indices_of_digits"]


def digits(place: Affine, radices: tuple[int, ...]) -> tuple[Affine, ...]:
    """The digits of a place, the outermost first. radices: how many values each of them has."""
    found = list[Affine]()
    for radix in reversed(radices[1:]):
        found.insert(0, place % radix)
        place //= radix
    return (place, *found)


def indices_of_digits(place: Affine, extents: Mapping[str, int]) -> tuple[str, ...] | None:
    """The indices, from 0 on, that are the digits of the place, the outermost first; None where it is something else. extents: how many values each index has."""
    weight, found = 1, list[str]()
    for atom, coefficient in sorted(place.terms, key=lambda term: term[1]):
        if not isinstance(atom, str) or coefficient != weight or atom not in extents:
            return None
        found.insert(0, atom)
        weight *= extents[atom]
    return tuple(found) if found and place.constant == 0 else None
