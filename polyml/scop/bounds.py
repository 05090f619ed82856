"""The in-bounds proof at the scop's border: every access relation stays inside its array."""

from __future__ import annotations

import islpy as isl

from polyml.errors import BoundsError
from polyml.scop.scop import Scop
from polyml.sets.spaces import parameters_text

__all__ = ["prove_in_bounds"]


def prove_in_bounds(scop: Scop) -> None:
    """Proves that no instance touches an element outside of its array, for all sizes of the context.

    Raises:
        BoundsError: with a witness access (the frontend has proved the program, so this points at a wrong rewrite).
    """
    boxes = isl.UnionSet.empty(scop.context.get_space())
    for array in scop.arrays.values():
        dims = [f"e{d}'" for d in range(len(array.shape))]
        limits = [f"0 <= {e} < {extent.isl_text()}" for e, extent in zip(dims, array.shape, strict=True)]
        where = f" : {' and '.join(limits)}" if limits else ""
        box = isl.Set(f"{parameters_text(scop.sizes)}{{ {array.name}[{', '.join(dims)}]{where} }}")
        boxes = boxes.union(box.to_union_set())
    accesses = scop.reads.union(scop.may_writes).intersect_params(scop.context)
    outside = accesses.subtract_range(boxes)
    if not outside.is_empty():
        witness = outside.sample()
        raise BoundsError(f"access outside of its array: {witness}")
