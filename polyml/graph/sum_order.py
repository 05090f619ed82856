"""In which order a product of many factors is summed: the cheapest tree of contractions, by dynamic programming over sets of factors.

What a set of factors gives keeps those of its indices that other factors or the result know, whatever is done inside it: so the best tree of a set is made of the best trees of two parts of it. A set may also be one loop nest over all
its indices, as nothing is stored in between then.

Of more factors than all sets can be tried of, indices are summed over one by one, whichever has the smallest product of all factors that know it, until few enough are left.

Source: Pfeifer, Haegeman and Verstraete, "Faster identification of optimal contraction sequences for tensor networks" (Physical Review E, 2014).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import prod

from polyml.records import dataclass

__all__ = ["MOST_FACTORS", "first_sum"]

MOST_FACTORS = 8
"""Factors of which all sets are tried, at most: 3^8 pairs of them take a few hundredths of a second."""


@dataclass(frozen=True, slots=True)
class _Best:
    """What a set of factors costs, and the two parts that it is made of; none where it is one loop nest. A bit per factor."""

    cost: int
    parts: tuple[int, int] | None


def first_sum(
    uses: Sequence[Set[str]], left: Set[str], extents: Mapping[str, int], moved: Mapping[int, int]
) -> frozenset[int] | None:
    """The factors, by place, whose product is summed by itself in the cheapest order; None where all are one nest.

    uses: the indices of each factor. left: those of the result. moved: how many products an element that is stored costs, by the least number of elements from which on that holds.
    """
    count = len(uses)
    if count < 3:
        return None
    if count > MOST_FACTORS:
        return _least_product(uses, left, extents, moved)
    everything = (1 << count) - 1
    known = [frozenset(set().union(*(uses[f] for f in _members(s)))) for s in range(everything + 1)]
    kept = [known[s] & (left | known[everything ^ s]) for s in range(everything + 1)]
    summed = [kept[s] < known[s] for s in range(everything + 1)]
    best = {1 << f: _Best(_size(known[1 << f], extents) if summed[1 << f] else 0, None) for f in range(count)}
    for s in sorted(range(1, everything + 1), key=int.bit_count):
        if s in best:
            continue
        found = _Best((s.bit_count() - 1) * _size(known[s] | (left if s == everything else set()), extents), None)
        first = s & -s
        rest = s ^ first  # the other part is what is left of this one, so that each pair comes once
        part = rest
        while part:
            cost = best[s ^ part].cost + best[part].cost + _size(kept[s ^ part] | kept[part], extents)
            cost += sum(_stored(kept[p], extents, moved) for p in (s ^ part, part) if summed[p])
            if cost < found.cost:
                found = _Best(cost, (s ^ part, part))
            part = (part - 1) & rest
        best[s] = found
    return _inner(everything, best, summed)


def _least_product(
    uses: Sequence[Set[str]], left: Set[str], extents: Mapping[str, int], moved: Mapping[int, int]
) -> frozenset[int] | None:
    """The factors that know the index whose sum is over the fewest products, if that leaves less to compute than one nest."""
    every = set(left).union(*uses)
    best: tuple[int, int] | None = None
    found = None
    for index in sorted(every - left):
        inside = frozenset(f for f, used in enumerate(uses) if index in used)
        known = set().union(*(uses[f] for f in inside))
        around = set(left).union(*(used for f, used in enumerate(uses) if f not in inside))
        products = max(len(inside) - 1, 1) * _size(known, extents)
        kept = known & around
        cost = products, _size(kept, extents)
        work = products + _stored(kept, extents, moved) + (len(uses) - len(inside)) * _size(around, extents)
        if (best is None or cost < best) and work < (len(uses) - 1) * _size(every, extents):
            best, found = cost, inside
    return found


def _inner(s: int, best: Mapping[int, _Best], summed: Sequence[bool]) -> frozenset[int] | None:
    """The first set of factors below s in the tree that sums something."""
    parts = best[s].parts or ()
    below = (frozenset(_members(part)) if summed[part] else _inner(part, best, summed) for part in parts)
    return next((found for found in below if found is not None), None)


def _members(s: int) -> list[int]:
    return [f for f in range(s.bit_length()) if s >> f & 1]


def _size(indices: Set[str], extents: Mapping[str, int]) -> int:
    return prod(extents[i] for i in indices)


def _stored(indices: Set[str], extents: Mapping[str, int], moved: Mapping[int, int]) -> int:
    """What storing and reading a tensor over the indices costs."""
    size = _size(indices, extents)
    return size * max(products for least, products in moved.items() if size >= least)
