"""Subscripts that go through rows in turn: the place a*v + b*(v // d), where a*d + b = 1, is the next element of one of d rows for each v."""

from __future__ import annotations

from polyml.sets.affine import Affine, FloorDiv

__all__ = ["MOST_BETWEEN", "MOST_GAP", "MOST_ROWS", "rows_in_turn", "shuffles"]

MOST_ROWS = 4
"""As many rows as are loaded for one vector."""

MOST_GAP = 16
"""As far apart as the elements of a row are that vectors are shuffled for, where all between them are touched, too."""

MOST_BETWEEN = 8
"""The same where a loop goes through them, which is written out for that."""


def shuffles(gap: int, halving: float = 1.0) -> float:
    """Shuffles for each vector of rows of so many elements that lanes go across (codegen/llvm/memory/between.py): by halves, as long as their number is even, each of which costs `halving`; then one, and selections, two of which take as long."""
    halves = (gap & -gap).bit_length() - 1
    rest = gap >> halves
    return halves * halving + (1 + (rest - 1).bit_length() / 2 if rest > 1 else 0)


def rows_in_turn(place: Affine, variable: str) -> tuple[int, int, Affine] | None:
    """The number of rows, by how much the place grows from one to the next, and what is divided; None where the variable moves the place in another way."""
    apart, division = 0, None
    for atom, coefficient in place.terms:
        if atom == variable:
            apart += coefficient
        elif isinstance(atom, FloorDiv) and variable in atom.variables():
            if division is not None or atom.numerator.stride(variable) != 1:
                return None
            division = atom, coefficient
        elif not isinstance(atom, str) and variable in atom.variables():
            return None
    if division is None:
        return None
    quotient, coefficient = division
    rows = quotient.denominator
    return (rows, apart, quotient.numerator) if apart * rows + coefficient == 1 else None
