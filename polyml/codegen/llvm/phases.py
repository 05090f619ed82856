"""Reads with gaps along the lanes that together touch all of a row: x[2 k] and x[2 k + 1] are shuffled out of the same two vectors.

Alone, each of them loads as many vectors as its gap, up to its own last element (memory.py), and those of the next one begin elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyml.codegen.loops import Assign, For
from polyml.expressions import Apply, Expr, Read, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["Phase", "phases_of"]

MOST_GAP = 4
"""As far apart as elements are that vectors are shuffled for."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A read's place among those that touch a row together: so many elements behind the `first`, whose subscripts these are."""

    first: tuple[Affine, ...]
    number: int


def phases_of(loop: For) -> Mapping[tuple[str, tuple[Subscript, ...]], Phase]:
    """By array and subscripts, the reads that all lanes of a vector loop make in each iteration, and that have all their phases there."""
    if loop.masked:
        return {}
    rows: dict[tuple[str, tuple[Affine, ...], Affine], set[int]] = {}
    for node in loop.body:
        if not isinstance(node, Assign):
            continue
        for read in _surely_read(node.value):
            match read.subscripts:
                case (*around, Affine() as last) if all(isinstance(s, Affine) for s in around):
                    gap = last.stride(loop.variable)
                    still = all(isinstance(s, Affine) and loop.variable not in s.variables() for s in around)
                    if still and gap is not None and 1 < gap <= MOST_GAP:
                        outer = tuple(s for s in around if isinstance(s, Affine))
                        rows.setdefault((read.tensor, outer, last - last.constant), set()).add(last.constant)
    found: dict[tuple[str, tuple[Subscript, ...]], Phase] = {}
    for (array, outer, base), places in rows.items():
        gap = base.stride(loop.variable) or 1
        for place in sorted(places):
            group = range(place, place + gap)
            if places.issuperset(group) and (array, (*outer, base + place)) not in found:
                first = (*outer, base + place)
                found |= {(array, (*outer, base + at)): Phase(first, at - place) for at in group}
    return found


def _surely_read(value: Expr) -> Iterator[Read]:
    match value:
        case Read():
            yield value
        case Apply(op="select"):
            return
        case Apply():
            for arg in value.args:
                yield from _surely_read(arg)
