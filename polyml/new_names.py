"""Names that nothing has yet, for what a stage adds to a program."""

from __future__ import annotations

from collections.abc import Container

__all__ = ["array_name", "derived", "fresh", "fresh_name", "underscored"]


def fresh_name(wish: str, taken: Container[str]) -> str:
    """`wish`, or the first of wish_2, wish_3, .. that is not taken."""
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    return name


def fresh(wish: str, taken: set[str]) -> str:
    """The same, added to `taken`."""
    name = fresh_name(wish, taken)
    taken.add(name)
    return name


def derived(name: str, ending: str) -> str:
    """The name of what is made of a statement or an index, which nothing in a program is called: `y_rest` is a tensor's name as well."""
    bare = name.rstrip("'")  # isl takes them at the end only
    return f"{bare}_{ending}" + "'" * (len(name) - len(bare) + 1)


def underscored(wish: str, *taken: Container[str]) -> str:
    """`wish` with as many underscores behind it as keep it apart from all that is taken."""
    name = wish
    while any(name in names for names in taken):
        name += "_"
    return name


def array_name(wish: str, taken: Container[str]) -> str:
    """The same for an array; with S_ before it, it names a statement that fills the array."""
    name = wish
    while name in taken or f"S_{name}" in taken:
        name += "_"
    return name
