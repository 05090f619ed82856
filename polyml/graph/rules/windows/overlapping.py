"""Windows that meet elements more than once: which elements, and how many sums it takes to tell them apart."""

from __future__ import annotations

from math import gcd

from polyml.records import dataclass

__all__ = ["MOST", "Windows"]

MOST = 4
"""Equations that one becomes, at most."""


@dataclass(frozen=True, slots=True)
class Windows:
    """A subscript `stride * place + step * inside + ...` that meets elements more than once; `inside` is the short index, of so many values."""

    place: str
    inside: str
    stride: int
    step: int
    length: int

    @property
    def remainders(self) -> int:
        """Every so-manieth value of `inside` meets the same elements."""
        return self.stride // gcd(self.stride, self.step)

    @property
    def even(self) -> bool:
        """Whether there are as many values of `inside` for each remainder, and more than one remainder."""
        return self.remainders > 1 and self.length % self.remainders == 0

    @property
    def is_ragged(self) -> bool:
        """Whether sums stay ragged: the remainders, of which some have more values of `inside`, are too many for an equation each."""
        return self.length % self.remainders != 0 and self.remainders > MOST

    @property
    def moves(self) -> int:
        """How far `place` goes back for the next of those."""
        return self.step // gcd(self.stride, self.step)

    @property
    def beyond(self) -> int:
        """Elements of a remainder before the first place with all of its terms."""
        return (-(-self.length // self.remainders) - 1) * self.moves
