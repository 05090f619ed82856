"""Scops whose statements were written one after the other, and such scops with other statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyml.scop.accesses import parameters_text
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Array, Scop, Statement

__all__ = ["in_order", "with_statements"]


def in_order(scop: Scop) -> bool:
    """Whether each statement's instances were all written before those of the next, without loops around."""
    for position, s in enumerate(scop.statements.values()):
        times = scop.initial.intersect_domain(s.domain.to_union_set()).range()
        if s.loop_depth or times.is_empty():
            return False
        low, high = times.as_set().dim_min_val(0), times.as_set().dim_max_val(0)
        if not (low.is_int() and high.is_int()) or low.to_python() != position or high.to_python() != position:
            return False
    return True


def with_statements(scop: Scop, statements: Mapping[str, Statement], arrays: Mapping[str, Array]) -> Scop:
    """The scop (`in_order`) with these statements, in their order."""
    depth = max(len(s.indices) for s in statements.values())
    initial = isl.UnionMap.empty(scop.context.get_space())
    for position, s in enumerate(statements.values()):
        time = [str(position), *s.indices, *("0" for _ in range(depth - len(s.indices)))]
        text = f"{parameters_text(scop.sizes)}{{ {s.name}[{', '.join(s.indices)}] -> [{', '.join(time)}] }}"
        initial = initial.union(isl.Map(text).intersect_domain(s.domain).to_union_map())
    return replace(rebuilt(scop, statements, arrays), initial=initial)
