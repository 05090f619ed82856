"""Dimensions of a set whose values others do not depend on."""

from __future__ import annotations

import islpy as isl

__all__ = ["is_independent"]


def is_independent(points: isl.Set, position: int) -> bool:
    """Whether all other dimensions have the same values for each value of this one: the set is a product of the two."""
    behind = position + 1
    others = points.eliminate(isl.dim_type.set, position, 1)
    own = points.eliminate(isl.dim_type.set, 0, position)
    own = own.eliminate(isl.dim_type.set, behind, points.dim(isl.dim_type.set) - behind)
    return others.intersect(own).is_subset(points)
