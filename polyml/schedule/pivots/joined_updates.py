"""Updates that do the same, written as several statements, made one.

`A[i, j] -= A[i, k] * A[k, j]` below and above the diagonal of a factorization are two sums with bounds of their own, and what a program does on the diagonal may be
one of them with two indices equal (cholesky). As one statement over one convex domain they are tiled, jammed and vectorized across the border between them.
A renaming of instances: order and dependences stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import islpy as isl

from polyml.expressions import Apply, Const, Expr, Read, Subscript
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.spaces import parameters_text

__all__ = ["join_updates", "renamed"]


def join_updates(scop: Scop, dependences: Dependences) -> tuple[Scop, Dependences]:
    """The scop with updates joined as long as two of them have the same body, disjoint domains, and one convex domain together.

    Rewrite: S1[i, j, k] : k < j < i and S2[i, k] : k < i, the body of S2[i, k] that of S1[i, i, k] -> S1[i, j, k] : k < j <= i.
    """
    while (found := _pair(scop)) is not None:
        wide, narrow, values, domain = found
        target = ", ".join(values[index] for index in wide.indices)
        keep = [f"{s.name}[{', '.join(s.indices)}]" for s in scop.statements.values() if s.name != narrow.name]
        maps = [f"{text} -> {text}" for text in keep]
        maps.append(f"{narrow.name}[{', '.join(narrow.indices)}] -> {wide.name}[{target}]")
        renaming = isl.UnionMap(f"{parameters_text(scop.sizes)}{{ {'; '.join(maps)} }}")
        joined = replace(wide, domain=domain, loop_depth=min(wide.loop_depth, narrow.loop_depth))
        statements = {
            name: joined if name == wide.name else s for name, s in scop.statements.items() if name != narrow.name
        }
        scop, dependences = renamed(scop, dependences, renaming, statements)
    return scop, dependences


def renamed(
    scop: Scop, dependences: Dependences, renaming: isl.UnionMap, statements: Mapping[str, Statement]
) -> tuple[Scop, Dependences]:
    """The scop with `statements` in the place of its own, whose instances `renaming` takes to theirs one to one."""

    def sources(relation: isl.UnionMap) -> isl.UnionMap:
        return relation.apply_domain(renaming)

    def both(relation: isl.UnionMap) -> isl.UnionMap:
        return relation.apply_domain(renaming).apply_range(renaming)

    d = dependences
    return (
        replace(
            scop,
            statements=dict(statements),
            initial=sources(scop.initial),
            reads=sources(scop.reads),
            may_writes=sources(scop.may_writes),
            must_writes=sources(scop.must_writes),
            reductions=sources(scop.reductions),
        ),
        replace(
            d,
            flow=both(d.flow), anti=both(d.anti), output=both(d.output), reduction=both(d.reduction),
            live_in=sources(d.live_in), live_out=sources(d.live_out),
        ),
    )  # fmt: skip


def _pair(scop: Scop) -> tuple[Statement, Statement, dict[str, str], isl.Set] | None:
    updates = [s for s in scop.statements.values() if s.kind == "update" and s.argument is None]
    for wide, narrow in permutations(updates, 2):
        same = wide.reduction == narrow.reduction and wide.target.array == narrow.target.array
        if not same or len(wide.indices) < len(narrow.indices):
            continue
        values = _match(wide, narrow)
        if values is None:
            continue
        text = (
            f"{narrow.name}[{', '.join(narrow.indices)}] -> {wide.name}[{', '.join(values[i] for i in wide.indices)}]"
        )
        moved = narrow.domain.apply(isl.Map(f"{parameters_text(scop.sizes)}{{ {text} }}"))
        if moved.is_disjoint(wide.domain):
            domain = moved.union(wide.domain).coalesce()
            if domain.n_basic_set() == 1:
                for position, index in enumerate(wide.indices):
                    domain = domain.set_dim_name(isl.dim_type.set, position, index)
                return wide, narrow, values, domain
    return None


def _match(wide: Statement, narrow: Statement) -> dict[str, str] | None:
    """Per index of the wide statement the index of the narrow one for which the bodies are equal; None: there are none."""
    values: dict[str, str] = {}
    pairs = list(zip(wide.target.subscripts, narrow.target.subscripts, strict=True))
    if not all(_subscript(a, b, values) for a, b in pairs) or not _expression(wide.value, narrow.value, values):
        return None
    if set(values) != set(wide.indices) or set(values.values()) != set(narrow.indices):
        return None
    return values


def _expression(a: Expr, b: Expr, values: dict[str, str]) -> bool:
    match a, b:
        case Read(), Read():
            same = a.tensor == b.tensor
            return same and all(_subscript(x, y, values) for x, y in zip(a.subscripts, b.subscripts, strict=True))
        case Apply(), Apply():
            same = a.op == b.op and a.dtype == b.dtype and len(a.args) == len(b.args)
            return same and all(_expression(x, y, values) for x, y in zip(a.args, b.args, strict=True))
        case Const(), Const():
            return a == b
        case _:
            return False


def _subscript(a: Subscript, b: Subscript, values: dict[str, str]) -> bool:
    """Plain indices that stand for each other everywhere, or equal constants."""
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return False
    if a.name is None or b.name is None:
        return a == b and a.is_constant
    return values.setdefault(a.name, b.name) == b.name
