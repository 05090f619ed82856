"""Dead-code elimination: ops that nothing returned, written or checked depends on."""

from __future__ import annotations

from dataclasses import replace

from polyml.graph.ir import Check, Equation, Graph, Loop, Op
from polyml.graph.traverse import read_names
from polyml.renewed import renewed

__all__ = ["remove_dead"]


def remove_dead(graph: Graph) -> Graph:
    """The graph without ops, and without carried values of loops, that are not needed."""
    needed = {tensor.name for tensor in graph.outputs}
    needed |= {item.final.name for item in graph.inputs if item.final is not None}
    ops = _without_repeated_checks(_live(graph.ops, needed))
    return graph if ops is graph.ops else replace(graph, ops=ops)


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


def _live(ops: tuple[Op, ...], needed: set[str]) -> tuple[Op, ...]:
    """The needed ops of a block; names that they use are added to `needed`."""
    kept: list[Op] = []
    for op in reversed(ops):
        live: Op | None = op
        match op:
            case Equation():
                live = op if op.result.name in needed else None
            case Loop():
                live = _live_loop(op, needed)
            case Check():
                pass
        if live is not None:
            kept.append(live)
            needed.update(read_names(live))
    kept.reverse()
    return renewed(ops, kept)


def _live_loop(loop: Loop, needed: set[str]) -> Loop | None:
    """The loop with the carried values that are used behind it, or that those depend on from one iteration to the next."""
    carried = [c for c in loop.carried if c.result.name in needed]
    has_check = any(isinstance(op, Check) for op in loop.body)
    if not carried and not has_check:
        return None
    while True:
        inside = {c.next.name for c in carried}
        body = _live(loop.body, inside)
        more = [c for c in loop.carried if c in carried or c.inner.name in inside]
        if len(more) == len(carried):
            break
        carried = more
    if body is loop.body and len(carried) == len(loop.carried):
        return loop
    return replace(loop, body=body, carried=tuple(carried))
