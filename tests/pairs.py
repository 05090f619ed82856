"""Parameters of tests in pairs: faults hang on one parameter, or on two that meet; three and more at once are left to `-m slow`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product

import pytest

__all__ = ["cover", "pairwise"]


def pairwise(*axes: tuple[str, Iterable[object]]) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` over the product of the axes, each names and values as there, of which the default run has so much that any two values of two axes meet; the rest is slow.

    For axes that do not hang together, of programs that take long to compile.
    """
    values = [list(axis) for _, axis in axes]
    chosen = cover([len(axis) for axis in values])
    cases = []
    for place in product(*(range(len(axis)) for axis in values)):
        given: list[object] = []
        for (names, _), axis, k in zip(axes, values, place, strict=True):
            given += axis[k] if "," in names else [axis[k]]  # type: ignore[misc]  # a sequence, then
        cases.append(pytest.param(*given, marks=[] if place in chosen else [pytest.mark.slow]))
    return pytest.mark.parametrize(", ".join(names for names, _ in axes), cases)


def cover(sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Points of the product of `range(size)`, few, in which any two coordinates take any two values; the same ones each time."""
    points = list(product(*map(range, sizes)))
    bits: dict[object, int] = {}
    masks = [sum(1 << bits.setdefault(pair, len(bits)) for pair in _pairs(point)) for point in points]
    left, chosen = (1 << len(bits)) - 1, set[tuple[int, ...]]()
    while left:
        best = max(range(len(points)), key=lambda at: (masks[at] & left).bit_count())
        left &= ~masks[best]
        chosen.add(points[best])
    return chosen


def _pairs(point: tuple[int, ...]) -> list[object]:
    places = list(enumerate(point))
    return [*combinations(places, 2)] if len(places) > 1 else [*places]
