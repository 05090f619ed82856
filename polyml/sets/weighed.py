"""Comparisons of sums of products of sizes: whether a choice that was made for some sizes pays for others, asked at each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["Term", "Weighed", "term", "total"]

Term = tuple[int, tuple[Affine, ...]]
"""A number and expressions in sizes, multiplied."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """That the sum of `less` is at most that of `more`."""

    less: tuple[Term, ...]
    more: tuple[Term, ...]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is so for these sizes."""
        return total(self.less, sizes) <= total(self.more, sizes)


def term(factor: int, extents: Iterable[Affine]) -> Term:
    """The product, its numbers as one."""
    symbolic: list[Affine] = []
    for extent in extents:
        if extent.is_constant:
            factor *= extent.constant
        else:
            symbolic.append(extent)
    return factor, tuple(symbolic)


def total(terms: Iterable[Term], sizes: Mapping[str, int]) -> int:
    """The sum of the products for these sizes."""
    found = 0
    for factor, extents in terms:
        for extent in extents:
            factor *= extent.evaluate(sizes)
        found += factor
    return found
