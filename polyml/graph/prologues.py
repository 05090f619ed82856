"""Operands that are made element by element go into the region of the contraction that reads them: one that packs them applies what makes them on the way, others have them made a block of the sum at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from polyml.expressions import Apply, Expr, Read, walk
from polyml.graph.ir import Equation, Loop, Tensor
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.traverse import equation_reads, estimated_bytes, index_extents
from polyml.sets.affine import Affine
from polyml.sets.shapes import is_known

__all__ = ["is_prologue", "join_makers", "move_prologues"]

CHEAP = frozenset(("add", "sub", "mul", "div", "neg", "abs", "min", "max", "cast"))
"""What may be done in every copy."""

LEAST = 32
"""Of all three loops of the contraction."""

SMALL = 16
"""What travels to memory and back once more is so much smaller than the operand that does not, at least."""


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


def join_makers(
    ops: Sequence[Equation | Loop],
    groups: Sequence[frozenset[int]],
    users: Mapping[str, set[int]],
    kept: set[str],
    before: Sequence[set[int]],
    cache_bytes: int,
    suits: Callable[[frozenset[int]], bool],
) -> list[frozenset[int]]:
    """The groups, those of a contraction and of what makes its operand (and sums over that) joined where an order of the groups is left. Arguments as above; suits: whether a group can run so."""
    found = list(groups)
    for k, op in enumerate(ops):
        if not isinstance(op, Equation) or op.result.name in kept or op.apart or not is_elementwise(op):
            continue
        if not is_known(op.result.shape) or estimated_bytes(op.result) <= cache_bytes:
            continue
        readers = users.get(op.result.name, set()) - {k}
        if not all(_is_sum(ops[reader]) for reader in readers):
            continue
        joined = [g for g in found if g & (readers | {k})]
        union = frozenset((*readers, k))
        if len(joined) < 2 or not any(_multiplies(ops[reader]) for reader in readers):
            continue
        # What is computed of the contraction's result comes after all blocks.
        behind = [g - union for g in joined if g - union]
        if any(not _only_follows(g, ops, readers, op.result) for g in joined if g - union):
            continue
        trial = [g for g in found if g not in joined] + [union, *behind]
        if _has_order(trial, before) and suits(union):
            found = trial
    return found


def _only_follows(group: frozenset[int], ops: Sequence[Equation | Loop], readers: Set[int], operand: Tensor) -> bool:
    """Whether the group is one of the operand's readers, a contraction, and what is computed of its result, which is small beside the operand."""
    own = group & readers
    if len(own) != 1:
        return False
    (reader,) = own
    op = ops[reader]
    small = isinstance(op, Equation) and SMALL * estimated_bytes(op.result) <= estimated_bytes(operand)
    return small and _multiplies(op) and all(k >= reader for k in group)


def _is_sum(op: Equation | Loop) -> bool:
    return (
        isinstance(op, Equation) and op.reduce is not None and op.base is None and not op.apart and op.only_if is None
    )


def _multiplies(op: Equation | Loop) -> bool:
    """Whether it is a sum over products of what two tensors hold."""
    return isinstance(op, Equation) and op.reduce == "sum" and len({read.tensor for read in equation_reads(op)}) > 1


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
