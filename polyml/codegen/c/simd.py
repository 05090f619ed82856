"""Whether a loop marked for vectors may carry `#pragma omp simd`, and with which reduction clauses."""

from __future__ import annotations

from polyml.codegen.c.names import Names
from polyml.codegen.loops import Allocate, Assign, For, Place, UpdateArgument
from polyml.codegen.rewrite import walk_nodes
from polyml.sets.affine import Affine

__all__ = ["simd_clauses"]

_CLAUSES = {"sum": "+", "prod": "*", "max": "max", "min": "min", "any": "||", "all": "&&"}


def simd_clauses(loop: For, names: Names) -> str | None:
    """The clauses; None when lanes would meet in one element, or one lane's value would be seen by another.

    Elements of arrays that do not depend on the loop's variable must not be written; scalars from outside only by reductions, one kind each. OpenMP takes
    an extremum of NaN as it likes, so extrema of floats stay without the pragma. So do loops around others: compilers warn that they cannot do it.
    """
    nodes = list(walk_nodes(loop.body))
    if any(isinstance(node, For) for node in nodes):
        return None
    inside = {node.variable.name for node in nodes if isinstance(node, Allocate)}
    shared: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, UpdateArgument):
            return None
        if not isinstance(node, Assign) or node.target.variable in inside or _moves(node.target, loop):
            continue
        kind = node.reduction
        if node.target.subscripts or kind is None or (kind in ("max", "min") and node.value.dtype.is_float):
            return None
        if shared.setdefault(node.target.variable, kind) != kind:
            return None
    return "".join(f" reduction({_CLAUSES[kind]}:{names.array(name)})" for name, kind in shared.items())


def _moves(target: Place, loop: For) -> bool:
    """Whether different iterations write different elements: the variable has a fixed coefficient in a subscript."""
    return any(isinstance(s, Affine) and s.stride(loop.variable) for s in target.subscripts)
