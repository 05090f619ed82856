"""Quotients in addresses: several with one stride are one number, and `a - 8 * (a // 8)` is what `and` makes of it.

What a register tile fetches ahead takes turns (`codegen/prefetch/tiles_along_rows.py`), so that its address has remainders. Term by term each quotient would be multiplied by the stride, or kept in a
register that is counted up beside it: twenty instructions in a loop that has slots for a few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyml.codegen.llvm.ir import Builder, Value, integer
from polyml.sets.affine import Affine, Atom, FloorDiv

__all__ = ["Term", "quotients_together", "sum_of_quotients"]

Term = tuple[Atom | Affine | None, str | None]
"""A summand of an address: an atom (None: one), or a sum of quotients, times a run-time stride (the name under which the nest knows it; None: one)."""


def quotients_together(terms: Sequence[tuple[Term, int]], level_of: Callable[[Atom], int]) -> list[tuple[Term, int]]:
    """The terms with all quotients of one loop level and stride as one. level_of: the loop in which an atom is known."""
    found: dict[tuple[int, str | None], list[tuple[Atom, int]]] = {}
    alone: list[tuple[Term, int]] = []
    for (atom, stride), coefficient in terms:
        if isinstance(atom, FloorDiv):
            found.setdefault((level_of(atom), stride), []).append((atom, coefficient))
        else:
            alone.append(((atom, stride), coefficient))
    for (_, stride), own in found.items():
        if len(own) > 1:
            alone.append(((Affine(tuple(own)), stride), 1))
        else:
            alone += [((atom, stride), coefficient) for atom, coefficient in own]
    return alone


def sum_of_quotients(total: Affine, value_of: Callable[[Atom], Value], b: Builder) -> Value:
    """The sum, with remainders of powers of two for pairs of terms."""
    left = dict(total.terms)
    pieces: list[tuple[Value, int]] = []
    for atom, coefficient in total.terms:
        if not isinstance(atom, FloorDiv) or len(atom.numerator.terms) != 1 or atom.numerator.constant:
            continue
        ((whole, once),) = atom.numerator.terms
        times, rest = divmod(-coefficient, atom.denominator)
        power = atom.denominator & (atom.denominator - 1) == 0
        if power and not rest and once == 1 and atom in left and left.get(whole) == times:
            pieces.append((b.binary("and", value_of(whole), integer(atom.denominator - 1)), times))
            del left[atom], left[whole]
    pieces += [(value_of(atom), coefficient) for atom, coefficient in left.items()]
    values = [v if times == 1 else b.binary("mul", v, integer(times)) for v, times in pieces]
    found = values[0]
    for value in values[1:]:
        found = b.binary("add", found, value)
    return found
