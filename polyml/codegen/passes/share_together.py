"""Two parallel loops, one inside the other and nothing else in the outer one, become one: threads share the pairs.

A loop of few long iterations (blocks of filters) leaves threads waiting for the last one, the more so where one of them runs slower than others, on a core that something else uses, too; pairs with a loop inside (parts of the rows) are
many and short. The outer variable changes last, so that a thread's share is a run of the inner loop's iterations for each of the outer one.
"""

from __future__ import annotations

from polyml.codegen.loops import For, Function, Node
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.new_names import fresh
from polyml.records import replace
from polyml.sets.affine import affine

__all__ = ["share_together"]


def share_together(function: Function) -> Function:
    """The function (the same object where nothing changes) with loops of known lengths shared together.

    Rewrite:
        parallel for (j = 0; j < 64; j += 16) parallel for (i = 0; i < 28; i += 7) S
        -> parallel for (j_i = 0; j_i < 16; j_i++) for (j = 16*(j_i//4); j < 16*(j_i//4) + 16; j += 16) for (i = 7*(j_i % 4); i < 7*(j_i % 4) + 7; i += 7) S
    """
    taken = names_in(function)

    def together(loop: For, ranges: Ranges, lanes: For | None) -> For | None:
        match loop:
            case For(kind="parallel", body=(For(kind="parallel") as inner,)) if _trips(loop) and _trips(inner):
                return _together(loop, inner, taken)
            case For(kind="parallel"):
                return loop
            case _:
                return None

    return map_loops(function, together)


def _trips(loop: For) -> int:
    """The iterations of a loop between numbers; 0 where they are none."""
    if not (loop.lower.is_constant and loop.upper.is_constant):
        return 0
    return max(0, -(-(loop.upper.constant - loop.lower.constant) // loop.step))


def _together(outer: For, inner: For, taken: set[str]) -> For:
    count = _trips(inner)
    name = fresh(f"{outer.variable}_{inner.variable}", taken)
    number = affine(name)
    body: tuple[Node, ...] = inner.body
    for loop, at in ((inner, number % count), (outer, number // count)):
        first = loop.lower + loop.step * at
        body = (replace(loop, kind="sequential", factor=1, lower=first, upper=first + loop.step, body=body),)
    return replace(outer, variable=name, lower=affine(0), upper=affine(_trips(outer) * count), step=1, body=body)
