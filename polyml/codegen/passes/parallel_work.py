"""How much a parallel loop has to do, as far as sizes and the loops around decide it: what it asks for itself, each time, before it wakes threads.

A kernel of any size, and a triangular loop nest near its corner, have loops that are worth threads in one execution and not in the next. The work of one is a sum of products of
trip counts, taken in the middle of the loop that is shared and at the beginning of those within, but in the middle of a row of tiles, whose first ones are parts of tiles; an estimate in cycles, of the same kind as the schedule's (schedule/strategy/threads.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, UpdateArgument
from polyml.codegen.rewrite import expressions
from polyml.expressions import Apply, Read, walk
from polyml.records import dataclass, replace
from polyml.sets.affine import Affine

__all__ = ["LIGHT", "Work", "work_of_loop"]

LIGHT = 20_000
"""Cycles below which waking threads costs more than it saves."""

HEAVY = {"exp": 10, "log": 12, "sin": 15, "cos": 15, "tanh": 15, "pow": 30, "div": 6, "sqrt": 8, "rsqrt": 8, "erf": 15}
"""Cycles of a vector of operations that are more than one instruction."""

TERMS = 24
"""Products that are kept of those with the most trip counts, and as many of those with the most cycles: the ends of slanted tiles have more trip counts than whole tiles, but few iterations, which are none where no edge is."""


@dataclass(frozen=True, slots=True)
class Work:
    """`cycles` times the trip counts, each at least 0."""

    cycles: float
    trips: tuple[Affine, ...]


def work_of_loop(loop: For) -> tuple[Work, ...]:
    """The work of one execution, in what is known where the loop begins; their sum counts."""
    middle = (loop.lower + loop.upper) // 2
    return _largest(_repeated(_work(loop.body, {loop.variable: middle}), loop, loop.upper - loop.lower))


def _work(nodes: Iterable[Node], values: Mapping[str, Affine]) -> list[Work]:
    found: list[Work] = []
    for node in nodes:
        match node:
            case For():
                lower, upper = node.lower.substitute(values), node.upper.substitute(values)
                at = (lower + upper) // 2 if node.kind == "stage" else lower
                found += _repeated(_work(node.body, {**values, node.variable: at}), node, upper - lower)
            case If():
                found += max(_work(node.then, values), _work(node.otherwise, values), key=_weight)
            case Allocate() | Block():
                found += _work(node.body, values)
            case Assign() | UpdateArgument():
                found.append(Work(_cycles(node), ()))
            case _:
                pass
    return _merged(found)


def _repeated(body: Iterable[Work], loop: For, span: Affine) -> list[Work]:
    if span.is_constant:
        return [replace(work, cycles=work.cycles * max(0, -(-span.constant // loop.step))) for work in body]
    return [Work(work.cycles / loop.step, (*work.trips, span)) for work in body]


def _merged(works: Iterable[Work]) -> list[Work]:
    """Those of the same trip counts together."""
    cycles: dict[tuple[Affine, ...], float] = {}
    for work in works:
        cycles[work.trips] = cycles.get(work.trips, 0.0) + work.cycles
    return list(_largest(Work(count, trips) for trips, count in cycles.items()))


def _largest(works: Iterable[Work]) -> tuple[Work, ...]:
    deepest = sorted(works, key=lambda work: (len(work.trips), work.cycles), reverse=True)
    heaviest = sorted(deepest, key=lambda work: work.cycles, reverse=True)
    return tuple(dict.fromkeys((*deepest[:TERMS], *heaviest[:TERMS])))


def _weight(works: Iterable[Work]) -> tuple[int, float]:
    return max(((len(work.trips), work.cycles) for work in works), default=(0, 0.0))


def _cycles(node: Assign | UpdateArgument) -> float:
    """Two operations and two loads a cycle."""
    inside = [part for expr in expressions(node) for part in walk(expr)]
    simple = sum(isinstance(part, Apply) and part.op not in HEAVY for part in inside)
    reads = sum(isinstance(part, Read) for part in inside)
    return max(1.0, simple / 2, reads / 2) + sum(HEAVY.get(part.op, 0) for part in inside if isinstance(part, Apply))
