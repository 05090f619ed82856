"""Domains that are boxes, also in symbolic sizes."""

from __future__ import annotations

import islpy as isl

from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of
from polyml.sets.spaces import parameters_text

__all__ = ["box_of"]


def box_of(scop: Scop, statement: Statement) -> dict[str, Affine] | None:
    """The extents of the statement's own indices where these are a box that begins at 0 in each of the steps around, numbers or in sizes; else None."""
    depth = statement.loop_depth
    inner = statement.domain.project_out(isl.dim_type.set, 0, depth).intersect_params(scop.context)
    found: dict[str, Affine] = {}
    for k, index in enumerate(statement.indices[depth:]):
        pieces = (
            pieces_of(inner.dim_max(k).gist(scop.context)) if inner.dim_has_upper_bound(isl.dim_type.set, k) else []
        )
        if len(pieces) != 1:
            return None
        found[index] = affine_of(pieces[0][1], []) + 1
    names = ", ".join(statement.indices)
    limits = " and ".join(f"0 <= {index} < {extent.isl_text()}" for index, extent in found.items())
    box = isl.Set(f"{parameters_text(scop.sizes)}{{ {statement.name}[{names}] : {limits} }}")
    around = statement.domain.project_out(isl.dim_type.set, depth, len(found))
    around = around.add_dims(isl.dim_type.set, len(found)).set_tuple_name(statement.name)
    whole = around.intersect(box).intersect_params(scop.context)
    return found if whole.is_equal(statement.domain.intersect_params(scop.context)) else None
