"""Windows at the edges of rows of any length: lanes that all have the whole window run its taps without conditions, and apart from those of which some have not.

    for (q = 0; q < n; q++) for (s = max(0, 1 - q); s < min(3, n - q + 1); s++) y[q] += x[q + s - 1] * w[s];
    -> inside: for (q ..) for (s = 0; s < 3; s++) ..    around: for (q ..) { if (q >= 1) .. x[q - 1] * w[0]; .. x[q] * w[1]; if (q <= n - 2) .. x[q + 1] * w[2]; }

Rows of known length are cut where their windows are whole instead (passes/vectors/boundaries.py). Of any length all vectors are in one loop, which asks for each: a branch that is foreseen nearly always, beside the sums of all rows of a register tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Literal

from polyml.codegen.loops import For, If, Node
from polyml.codegen.passes.vectors.boundaries import extreme, with_inner_loops
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import substitute_nodes, walk_nodes
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue
from polyml.records import dataclass, replace
from polyml.sets.affine import Affine, Extremum, affine

__all__ = ["Taps", "over_taps"]

TAPS = 16
"""Iterations of a loop over a window's taps, at most."""

_WRITTEN_OUT = 4
"""So many taps are written out where they have conditions, of which most are certain then, and the others are asked once for all rows."""


@dataclass(frozen=True, slots=True)
class Taps:
    """A loop with inner loops over all taps that any iteration has: inside without conditions, around with one for each tap that some iteration has not. beyond: what is above 0 in iterations that have not all of them."""

    inside: For
    around: For
    beyond: tuple[Affine, ...]

    def all_whole(self, first: Affine, last: Affine) -> Expr:
        """Whether all iterations from the first to the last one have all taps."""
        most = (extreme(beyond, self.inside.variable, (first, last), 1) for beyond in self.beyond)
        return _none_above_zero(tuple(most))


def over_taps(loop: For, ranges: Ranges) -> Taps | None:
    """The loop where all inner loops whose bounds depend on its variable have few iterations, as those over a window's taps do; None where their number is not known, or depends on other loops inside."""
    lanes = ranges.enter(loop)
    inner_loops = [node for node in walk_nodes(loop.body) if isinstance(node, For)]
    own = {inner.variable for inner in inner_loops}
    spans: dict[tuple[Affine, Affine], range] = {}
    for inner in inner_loops:
        bounds = inner.lower.variables() | inner.upper.variables()
        if loop.variable not in bounds:
            continue
        least, most = lanes.lowest(inner.lower), lanes.highest(inner.upper)
        if least is None or most is None or most - least > TAPS or inner.step != 1 or bounds & own:
            return None
        spans[inner.lower, inner.upper] = range(least, most)

    def whole(inner: For) -> tuple[Node, ...]:
        span = spans.get((inner.lower, inner.upper))
        return (inner,) if span is None else (replace(inner, lower=affine(span.start), upper=affine(span.stop)),)

    def asking(inner: For) -> tuple[Node, ...]:
        span = spans.get((inner.lower, inner.upper))
        return (inner,) if span is None else tuple(_asking(inner, span, lanes))

    beyond = (edge for (lower, upper), span in spans.items() for edge in _beyond(lower, upper, span))
    edges = tuple(edge for edge in dict.fromkeys(beyond) if not _is_never_above_zero(edge, lanes))
    return Taps(with_inner_loops(loop, whole), with_inner_loops(loop, asking), edges) if edges else None


def _asking(inner: For, span: range, lanes: Ranges) -> Iterator[Node]:
    """The loop over all taps, each under the condition that it is one of the iteration's own."""
    here = affine(inner.variable)
    short = tuple(low - here for low in _operands(inner.lower, "max"))
    short += tuple(here - high + 1 for high in _operands(inner.upper, "min"))
    if len(span) > _WRITTEN_OUT or any(isinstance(node, For) for node in walk_nodes(inner.body)):
        over_all = replace(inner, lower=affine(span.start), upper=affine(span.stop))
        yield replace(over_all, body=tuple(_where(short, inner.body, lanes.enter(over_all))))
        return
    for tap in span:
        values = {inner.variable: affine(tap)}
        yield from _where([value.substitute(values) for value in short], substitute_nodes(inner.body, values), lanes)


def _where(short: Sequence[Affine], body: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    """The nodes, where none of these is above 0."""
    asked = [value for value in short if not _is_never_above_zero(value, ranges)]
    return (If(condition=_none_above_zero(asked), then=body),) if asked else body


def _none_above_zero(values: Sequence[Affine]) -> Expr:
    zero = IndexValue(affine(0), i64)
    conditions = [Apply("le", (IndexValue(value, i64), zero), boolean) for value in values]
    return reduce(lambda one, other: Apply("and", (one, other), boolean), conditions)


def _is_never_above_zero(value: Affine, ranges: Ranges) -> bool:
    most = ranges.highest(value)
    return most is not None and most <= 0


def _beyond(lower: Affine, upper: Affine, span: range) -> Iterator[Affine]:
    """What is above 0 where the range is not the whole span."""
    yield from (low - span.start for low in _operands(lower, "max"))
    yield from (span.stop - high for high in _operands(upper, "min"))


def _operands(value: Affine, kind: Literal["min", "max"]) -> tuple[Affine, ...]:
    """What the value is the extremum of; itself where it is none of that kind."""
    match value.terms:
        case ((Extremum() as atom, 1),) if atom.kind == kind:
            return tuple(operand + value.constant for operand in atom.operands)
        case _:
            return (value,)
