"""How many lines of an operand meet in one set of a cache, which has room for a few: rows at multiples of powers of two fall into few sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import ceil

__all__ = ["L2_WAYS", "lines_in_set"]

L2_WAYS = 8
"""Of L2, at least. What counts is how many lines its bytes hold of those that meet: twice as many ways of half as many sets hold as many of rows at powers of two."""


def lines_in_set(places: Iterable[int], length: int, way: int, line: int) -> int:
    """Lines that meet in one set, at most, of pieces of `length` bytes at these places. way: bytes that one line of each set makes; line: bytes of one."""
    met: Counter[int] = Counter()
    for place in places:
        met.update((place // line + k) % (way // line) for k in range(ceil(length / line)))
    return max(met.values(), default=0)
