"""Dead-code elimination: ops that nothing returned, written or checked depends on. Names are marked from these back, then what makes no marked one is left out."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import assert_never

from polyml.graph.ir import Check, Equation, Graph, Loop, Op
from polyml.graph.traverse import all_ops, read_names
from polyml.renewed import renewed

__all__ = ["remove_dead"]


def remove_dead(graph: Graph) -> Graph:
    """The graph without ops, and without carried values of loops, that are not needed."""
    ops = _without_repeated_checks(_live(graph.ops, _needed(graph)))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _needed(graph: Graph) -> set[str]:
    """The tensors that something returned, written or checked depends on, if need be by way of earlier iterations."""
    waiting = [tensor.name for tensor in graph.outputs]
    waiting += [item.final.name for item in graph.inputs if item.final is not None]
    uses: dict[str, list[str]] = {}
    for op in all_ops(graph.ops):
        match op:
            case Equation():
                uses[op.result.name] = list(read_names(op))
            case Loop():
                for carried in op.carried:
                    around = [carried.initial.name, carried.next.name]
                    uses[carried.inner.name] = uses[carried.result.name] = around
            case Check():
                waiting.append(op.flag.name)
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += uses.get(name, ())
    return needed


def _without_repeated_checks(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Of several checks of one flag only the first can raise."""
    seen: set[str] = set()
    kept: list[Op] = []
    for op in ops:
        if isinstance(op, Check):
            if op.flag.name in seen:
                continue
            seen.add(op.flag.name)
        kept.append(op)
    return ops if len(kept) == len(ops) else tuple(kept)


def _live(ops: tuple[Op, ...], needed: Set[str]) -> tuple[Op, ...]:
    """The ops of a block that make something needed, or check it."""
    return renewed(ops, (live for op in ops if (live := _live_op(op, needed)) is not None))


def _live_op(op: Op, needed: Set[str]) -> Op | None:
    match op:
        case Equation():
            return op if op.result.name in needed else None
        case Check():
            return op
        case Loop():
            body = _live(op.body, needed)
            carried = tuple(c for c in op.carried if c.result.name in needed or c.inner.name in needed)
            if not body and not carried:
                return None
            if body is op.body and len(carried) == len(op.carried):
                return op
            return replace(op, body=body, carried=carried)
        case _:
            assert_never(op)
