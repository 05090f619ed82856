"""Disjoint sets that are joined step by step (union-find): which things belong together by way of others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["DisjointSets"]

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Each item is a set of its own at first."""

    def __init__(self, items: Iterable[T]) -> None:
        self._parent = {item: item for item in items}

    def root(self, item: T) -> T:
        """The item that stands for the set that this one is in."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = item = parent[parent[item]]
        return item

    def join(self, item: T, other: T) -> None:
        """One set of the two that these are in; what stands for the other's stands for it."""
        self._parent[self.root(item)] = self.root(other)

    def roots(self) -> dict[T, T]:
        """`root` of all items."""
        return {item: self.root(item) for item in self._parent}

    def groups(self) -> list[list[T]]:
        """The sets, in the order of their first items."""
        found: dict[T, list[T]] = {}
        for item, root in self.roots().items():
            found.setdefault(root, []).append(item)
        return list(found.values())
