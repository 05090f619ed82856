"""Times of statements for isl's dataflow, in which loops are no numbers.

isl takes a dimension of time that is a number for two statements for places in a sequence, one textually before the other, and for a loop where it is one for neither. Of three statements, in one iteration each (`if t == 1:`) and in all of
them, it then compares some one way and some the other, and keeps a write that another one hides, or loses a read (islpy 2026.2: reads ahead of writes were wrong in eight of 400 random sets of accesses). An unknown number is added to each dimension that differs, the same for
all, so that none of them is a number.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

__all__ = ["has_numbers", "numbered", "unnumbered"]

_SHIFT = "polyml.shift"
_OUT, _PARAM = isl.dim_type.out, isl.dim_type.param


def has_numbers(times: Sequence[isl.Map], depths: Sequence[int], outermost: int = 1) -> bool:
    """Whether some of these statements, and not all, run in one iteration of a loop.

    Args:
        times: of one space, where each second dimension from `outermost` on is a loop (2d+1 form). depths: how many loops are around each.
    """
    for k in range(max(depths, default=0)):
        inside = [m for m, depth in zip(times, depths, strict=True) if depth > k]
        if len({m.plain_get_val_if_fixed(_OUT, outermost + 2 * k).is_int() for m in inside}) > 1:
            return True
    return False


def unnumbered(times: Sequence[isl.Map]) -> list[isl.Map]:
    """The times `{ S[i] -> [time] }`, of one space, later by the same unknown number in each dimension that is not one and the same number for all of them."""
    dimensions = range(times[0].dim(_OUT))
    numbers = [{str(m.plain_get_val_if_fixed(_OUT, d)) for m in times} for d in dimensions]
    moved = [d for d in dimensions if len(numbers[d]) > 1 or not numbers[d].isdisjoint({"NaN"})]
    if not moved:
        return list(times)
    space = isl.Space.set_alloc(times[0].get_ctx(), 1, len(dimensions)).set_dim_name(_PARAM, 0, _SHIFT)
    local = isl.LocalSpace.from_space(space)
    shift, later = isl.Aff.var_on_domain(local, _PARAM, 0), isl.MultiAff.identity_on_domain_space(space)
    for d in moved:
        later = later.set_at(d, isl.Aff.var_on_domain(local, isl.dim_type.set, d).add(shift))
    return [m.apply_range(isl.Map.from_multi_aff(later)) for m in times]


def numbered(found: isl.UnionMap) -> isl.UnionMap:
    """What dataflow found with such times, without the number."""
    at = found.get_space().find_dim_by_name(_PARAM, _SHIFT)
    return found if at < 0 else found.project_out(_PARAM, at, 1)
