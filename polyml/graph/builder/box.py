"""Extents that follow from ranges over symbolic sizes: what a first left side fills, what a nested reducer needs."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.einsum_frontend.proofs import parameters
from polyml.einsum_frontend.ranges import Range
from polyml.graph.builder.state import State
from polyml.sets.affine import Extent, extent_of
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of

__all__ = ["bounds_of", "box_of", "greatest_plus_one", "stop_of"]


def stop_of(state: State, r: Range) -> Extent | None:
    """One past the greatest value of an index whose values are 0, 1, .. whatever the loop variables; assumes of `int` parameters that it is so. None: it is not."""
    if r.extent is not None or not state.sizes:
        return r.extent
    found = box_of(state, isl.Set(f"{parameters(state.outer)}{{ [{r.name}] : {r.constraint or 'true'} }}"))
    return None if found is None else found[0]


def greatest_plus_one(state: State, r: Range) -> Extent | None:
    """One past the greatest value that an index has in any iteration of the enclosing loops; assumes of `int` parameters what makes it one expression."""
    known = r.extent if r.high is None else r.high
    if known is not None or not state.sizes:
        return known
    text = " and ".join([f"({r.constraint})", *(f"({o.constraint})" for o in state.outer if o.constraint)])
    inside = isl.Set(f"{parameters(state.outer)}{{ [{r.name}] : {text} }}")
    loops = inside.dim(isl.dim_type.param) - len(state.sizes)
    values = inside.project_out(isl.dim_type.param, len(state.sizes), loops)
    some = values.params()
    if not _holds(state, some):
        return 0 if state.avoid(some) else None
    return _greatest(state, values, 0)


def box_of(state: State, values: isl.Set) -> tuple[Extent, ...] | None:
    """The extents of a set over symbolic sizes that is a box from 0 on and not empty, as they are for the call's sizes; assumes of `int` parameters that it is so.

    Args:
        values: its parameters are among the symbolic sizes and loop variables.

    *Returns* None where it is not a box, or depends on loop variables.
    """
    outside = _outside_of_loops(state, values)
    extents = None if outside is None else _extents(state, outside)
    if outside is None or extents is None:
        return None
    dims = [f"e{d}'" for d in range(len(extents))]
    limits = [f"0 <= {e} < {n if isinstance(n, int) else n.isl_text()}" for e, n in zip(dims, extents, strict=True)]
    text = " and ".join(["true", *limits])
    whole = isl.Set(f"{parameters(state.size_ranges)}{{ [{', '.join(dims)}] : {text} }}")
    return extents if state.avoid(whole.intersect_params(state.known).subtract(outside)) else None


def bounds_of(state: State, values: isl.Set) -> tuple[Extent, ...] | None:
    """The same of the least box from 0 on around a set that is none, or that not every iteration of the loops has."""
    outside = _outside_of_loops(state, values)
    if outside is None:
        outside = _without(values.intersect_params(_iterations(state)), _loops(state, values))
    return _extents(state, outside)


def _extents(state: State, values: isl.Set) -> tuple[Extent, ...] | None:
    """One past the greatest value of each dimension."""
    found = [_greatest(state, values, position) for position in range(values.dim(isl.dim_type.set))]
    extents = tuple(extent for extent in found if extent is not None)
    return extents if len(extents) == len(found) else None


def _outside_of_loops(state: State, values: isl.Set) -> isl.Set | None:
    """The values without the loop variables, and without what these imply of sizes; None where not every iteration has the same ones."""
    loops = _loops(state, values)
    same = _without(values, loops)
    if not any(
        values.involves_dims(isl.dim_type.param, values.find_dim_by_name(isl.dim_type.param, v), 1) for v in loops
    ):
        return same
    iterations = _iterations(state)
    if not same.intersect_params(iterations).is_subset(values):
        return None
    return same.gist_params(_without(iterations, loops))


def _loops(state: State, values: isl.Set) -> list[str]:
    names = [values.get_dim_name(isl.dim_type.param, d) for d in range(values.dim(isl.dim_type.param))]
    return [name for name in names if name is not None and name not in state.sizes]


def _iterations(state: State) -> isl.Set:
    """What holds of loop variables and sizes in any iteration of the loops around."""
    constraints = " and ".join(["true", *(f"({r.constraint})" for r in state.outer if r.constraint)])
    return isl.Set(f"{parameters(state.outer)}{{ : {constraints} }}")


def _without(values: isl.Set, names: Sequence[str]) -> isl.Set:
    for name in names:
        position = values.find_dim_by_name(isl.dim_type.param, name)
        if position >= 0:
            values = values.project_out(isl.dim_type.param, position, 1)
    return values


def _greatest(state: State, values: isl.Set, position: int) -> Extent | None:
    """One past the greatest value of a dimension, as one expression in the sizes: the one that holds for the call. There is assumed to be one."""
    values = values.intersect_params(state.known)
    if not values.is_bounded() or not state.avoid(state.known.subtract(values.params())):
        return None
    for where, value in pieces_of(values.dim_max(position)):
        here = where.params()
        if _holds(state, here) and state.avoid(state.known.subtract(here)):
            return extent_of(affine_of(value, ()) + 1)
    return None


def _holds(state: State, where: isl.Set) -> bool:
    """Whether the call's sizes are in a set of parameters."""
    for name in state.sizes:
        position = where.find_dim_by_name(isl.dim_type.param, name)
        if name in state.examples and position >= 0:
            where = where.fix_val(
                isl.dim_type.param, position, isl.Val.int_from_si(where.get_ctx(), state.examples[name])
            )
    return not where.is_empty()
