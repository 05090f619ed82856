"""What a rewrite leaves alone stays the same object: `is` tells whether anything changed, and a rewrite that changes nothing gives back what it got."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["renewed"]

T = TypeVar("T")


def renewed(old: tuple[T, ...], made: Iterable[T]) -> tuple[T, ...]:
    """`made` as a tuple, but `old` where its elements are the same objects."""
    new = tuple(made)
    return old if new is old or (len(new) == len(old) and all(map(operator.is_, new, old))) else new
