"""isl's unions space by space, and the names of parameters as lists and texts."""

from __future__ import annotations

from collections.abc import Iterable

import islpy as isl

__all__ = ["maps_of", "parameters_of", "parameters_text", "sets_of"]


def maps_of(union: isl.UnionMap) -> list[isl.Map]:
    """The union's maps, one for each pair of spaces."""
    maps = union.get_map_list()
    return [maps.get_at(k) for k in range(maps.n_map())]


def sets_of(union: isl.UnionSet) -> list[isl.Set]:
    """The union's sets, one for each space."""
    sets = union.get_set_list()
    return [sets.get_at(k) for k in range(sets.n_set())]


def parameters_of(points: isl.Set) -> list[str]:
    """The names of its parameters, in order."""
    names = (points.get_dim_name(isl.dim_type.param, d) for d in range(points.dim(isl.dim_type.param)))
    return [name for name in names if name]


def parameters_text(names: Iterable[str]) -> str:
    """`[N, T] -> `, the head of every set's text; empty without names."""
    listed = ", ".join(names)
    return f"[{listed}] -> " if listed else ""
