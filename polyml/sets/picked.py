"""Copies by shuffles: vectors of a run of neighbours, each of which is picked out of the vectors that hold its elements at their places in another array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

__all__ = ["LARGEST", "places_of_parts", "places_of_run", "vectors_of_run", "windows_of"]

LARGEST = 8
"""Bytes of what is moved by itself; larger elements are moved in parts."""


def places_of_run(loops: Iterable[tuple[int, int, int]]) -> list[int] | None:
    """For each element of a run of neighbours, in order, its place in the other array, where the copy's loops have so many iterations, which move the run's place and the other one by so much; None where there are gaps in the run, or elements twice."""
    places = [0]
    for extent, along, other in sorted(loops, key=lambda loop: loop[1]):
        if along != len(places):
            return None
        places = [at + step * other for step in range(extent) for at in places]
    return places


def places_of_parts(places: Sequence[int], size: int) -> Sequence[int]:
    """The same of the parts of elements of so many bytes."""
    parts = max(1, size // LARGEST)
    return places if parts == 1 else [at * parts + part for at in places for part in range(parts)]


def vectors_of_run(length: int, width: int) -> Iterator[int]:
    """Where the vectors of a run begin, of which the last one overlaps the one before: 0, width, .. length - width."""
    yield from range(0, length - width, width)
    yield length - width


def windows_of(places: Sequence[int], width: int, low: int, high: int) -> list[int]:
    """Where as few vectors of so many neighbours as hold all these places begin, none of which reaches beyond low .. high."""
    assert low + width <= high + 1, "internal: no room for a vector"
    found: list[int] = []
    for place in sorted(set(places)):
        if not found or place >= found[-1] + width:
            found.append(min(place, high + 1 - width))
    return found
