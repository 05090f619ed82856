"""DisjointSets: items in one set by way of others, and groups in the order of their first items."""

from __future__ import annotations

from polyml.disjoint_sets import DisjointSets


def test_sets_are_joined_by_way_of_others() -> None:
    sets = DisjointSets("abcdef")
    sets.join("c", "a")
    sets.join("f", "c")
    sets.join("e", "d")
    assert sets.root("f") == sets.root("a") == "a"
    assert sets.roots() == {"a": "a", "b": "b", "c": "a", "d": "d", "e": "d", "f": "a"}
    assert sets.groups() == [["a", "c", "f"], ["b"], ["d", "e"]]


def test_what_stands_for_the_other_stands_for_both() -> None:
    sets = DisjointSets(range(4))
    sets.join(0, 1)
    sets.join(2, 3)
    sets.join(1, 3)
    assert set(sets.roots().values()) == {3}
