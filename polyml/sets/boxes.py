"""Boxes as integer sets: index ranges that start at 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import islpy as isl

from polyml.sets.affine import Affine, affine
from polyml.sets.from_text import set_of
from polyml.sets.spaces import parameters_text

__all__ = ["box"]

_SET = isl.dim_type.set


def box(
    name: str, indices: Sequence[str], extents: Mapping[str, int] | Mapping[str, Affine], sizes: Sequence[str] = ()
) -> isl.Set:
    """`[sizes] -> { name[indices] }` with each index below its extent. name: "" for points without one."""
    ends = [affine(extents[index]) for index in indices]
    if not sizes and all(end.is_constant and end.constant > 0 for end in ends):
        return _between_points(name, tuple(indices), tuple(end.constant for end in ends))
    limits = " and ".join(f"0 <= {index} < {end.isl_text()}" for index, end in zip(indices, ends, strict=True))
    return set_of(f"{parameters_text(sizes)}{{ {name}[{', '.join(indices)}] : {limits or 'true'} }}")


@lru_cache(maxsize=512)
def _between_points(name: str, indices: tuple[str, ...], extents: tuple[int, ...]) -> isl.Set:
    """The same from two corners: isl takes 20 times as long to read the conditions (eight indices: 540 us)."""
    space = isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, len(indices))
    space = space.set_tuple_name(_SET, name) if name else space
    for position, index in enumerate(indices):
        space = space.set_dim_name(_SET, position, index)
    first = last = isl.Point.zero(space)
    for position, extent in enumerate(extents):
        last = last.set_coordinate_val(_SET, position, isl.Val(extent - 1))
    return isl.Set.box_from_points(first, last)
