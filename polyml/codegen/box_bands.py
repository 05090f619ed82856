"""What both scans of boxes (`boxes.py`, `any_boxes.py`) read off a schedule tree: bands that are indices or tiles of them, and functions of indices whose quotients are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from polyml.sets.affine import Affine, FloorDiv, affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of

__all__ = ["MARKS", "BeyondBoxes", "rows_of", "tile_of", "value_of"]

MARKS = ("parallel", "vector", "jam", "unroll", "allocate")
"""Marks that say nothing about other loops than the one below."""


class BeyondBoxes(Exception):
    """The tree has something else."""


def rows_of(member: isl.UnionPwAff, indices: Mapping[str, Sequence[str]]) -> dict[str, Affine]:
    """The values of a band's member by statement. indices: of the statements that reach it."""
    found = member.get_pw_aff_list()
    rows: dict[str, Affine] = {}
    for value in (found.get_at(k) for k in range(found.n_pw_aff())):
        name = str(value.get_space().get_tuple_name(isl.dim_type.in_))
        if name not in indices:
            continue
        pieces = pieces_of(value)
        if len(pieces) != 1 or name in rows:
            raise BeyondBoxes
        rows[name] = affine_of(pieces[0][1], indices[name])
    if rows.keys() != indices.keys():
        raise BeyondBoxes
    return rows


def tile_of(row: Affine) -> tuple[str, int, bool]:
    """The index that a member runs along, in steps of what, and whether these are tiles of it."""
    match row.terms:
        case ((str() as index, factor),) if factor > 0 and not row.constant:
            return index, factor, False
        case ((FloorDiv(numerator=Affine(name=str() as index), denominator=size), factor),) if (
            size == factor and not row.constant
        ):
            return index, size, True
        case _:
            raise BeyondBoxes


def value_of(offset: Affine, fixed: Mapping[str, Affine], quotients: Mapping[tuple[str, int], Affine]) -> Affine:
    """A function of indices in what these are. quotients: by index and divisor."""
    total = affine(offset.constant)
    for atom, coefficient in offset.terms:
        match atom:
            case str() if atom in fixed:
                total = total + fixed[atom] * coefficient
            case FloorDiv(numerator=Affine(name=str() as index)) if (index, atom.denominator) in quotients:
                total = total + quotients[index, atom.denominator] * coefficient
            case FloorDiv(numerator=Affine(terms=((str() as index, -1),), constant=more), denominator=size) if (
                more + 1
            ) % size == 0 and (index, size) in quotients:  # floor((-1 - i) / d) is -1 - floor(i / d)
                total = total + ((more + 1) // size - 1 - quotients[index, size]) * coefficient
            case _:
                raise BeyondBoxes
    return total
