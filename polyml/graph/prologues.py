"""Operands that are made element by element go into the region of the contraction that packs them, which applies what makes them on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyml.expressions import Apply, Expr, Read, walk
from polyml.graph.ir import Equation, Loop
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.traverse import estimated_bytes, index_extents
from polyml.sets.affine import Affine

__all__ = ["is_prologue", "move_prologues"]

CHEAP = frozenset(("add", "sub", "mul", "div", "neg", "abs", "min", "max", "cast"))
"""What may be done in every copy."""

LEAST = 32
"""Of all three loops of the contraction."""


def is_prologue(body: Expr) -> bool:
    """Whether it is arithmetic that may be done in every copy."""
    nodes = list(walk(body))
    direct = all(isinstance(s, Affine) for node in nodes if isinstance(node, Read) for s in node.subscripts)
    cheap = all(node.op in CHEAP for node in nodes if isinstance(node, Apply))
    return direct and cheap


def move_prologues(
    ops: Sequence[Equation | Loop],
    groups: Sequence[frozenset[int]],
    users: Mapping[str, set[int]],
    kept: set[str],
    before: Sequence[set[int]],
    cache_bytes: int,
) -> list[frozenset[int]]:
    """The groups with such equations moved where an order of the groups is left.

    Args:
        users: the ops that touch a tensor. kept: tensors that are results. before: per op those that must run earlier. cache_bytes: operands that fit are left where they are.
    """
    found = list(groups)
    for k, op in enumerate(ops):
        if not isinstance(op, Equation) or op.result.name in kept or op.apart:
            continue
        if not is_elementwise(op) or not is_prologue(op.body):
            continue
        others = users.get(op.result.name, set()) - {k}
        if len(others) != 1 or estimated_bytes(op.result) <= cache_bytes:
            continue
        (consumer,) = others
        if not _packs(ops[consumer]):
            continue
        home = next(g for g in found if k in g)
        away = next(g for g in found if consumer in g)
        if home is away:
            continue
        trial = [g for g in found if g not in (home, away)] + [away | {k}, *([home - {k}] if len(home) > 1 else [])]
        if _has_order(trial, before):
            found = trial
    return found


def _packs(op: Equation | Loop) -> bool:
    """Whether it is a sum of three loops, long enough for panels, over a convex set that is no box."""
    if (
        not isinstance(op, Equation)
        or op.reduce != "sum"
        or len(op.indices) != 3
        or len(op.reduced) != 1
        or op.base is not None
    ):
        return False
    slanted = op.domain.n_basic_set() == 1 and not op.domain.is_box()
    return slanted and min(index_extents(op).values()) >= LEAST


def _has_order(groups: Sequence[frozenset[int]], before: Sequence[set[int]]) -> bool:
    waiting, done = list(groups), set[int]()
    while waiting:
        ready = [g for g in waiting if all(p in done or p in g for k in g for p in before[k])]
        if not ready:
            return False
        waiting = [g for g in waiting if g not in ready]
        done.update(k for g in ready for k in g)
    return True
