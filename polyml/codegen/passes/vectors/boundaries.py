"""Loops whose inner bounds change with their variable (zero padding, windows at an edge), made fit for lanes and copies.

Two remedies: the variable's range is cut where the bounds change their form, so that they are constant in the interior; and where lanes straddle an edge,
the inner loop runs over the hull of all lanes' ranges, with a condition per lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from polyml.codegen.loops import Assign, For, If, Node
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, reads_of
from polyml.renewed import renewed
from polyml.sets.affine import Affine, Extremum, FloorDiv, affine, maximum, minimum

__all__ = [
    "common_range",
    "cut_interior",
    "depends_on",
    "extreme",
    "over_hull",
    "over_lanes",
    "with_inner_loops",
    "within",
]

_WASTE = 2
"""How many times as many iterations the hull may have as one lane, at most."""

_UNROLL = 4
"""Hulls of so few iterations are unrolled: most of their conditions are then certain."""


def cut_interior(loop: For, ranges: Ranges, *, grain: int, at_least: int) -> tuple[For, ...]:
    """The loop in up to three parts, where the middle one has inner bounds of one form, and goes round no edge (`x[(j - 1) % n]`) if that leaves most of it; or the loop itself.

    Only loops with known bounds are cut, at multiples of `grain` iterations, and when the middle part has `at_least` iterations.
    """
    lower, upper = ranges.constant(loop.lower), ranges.constant(loop.upper)
    if lower is None or upper is None or loop.step != 1:
        return (loop,)
    first, last = _without_wraps(loop, *_interior(loop, lower, upper))
    start = lower + -((lower - first) // grain) * grain
    end = upper if last == upper else start + (last - start) // grain * grain
    if end - start < at_least or (start, end) == (lower, upper):
        return (loop,)
    ends = [(lower, start), (start, end), (end, upper)]
    return tuple(replace(loop, lower=affine(low), upper=affine(high)) for low, high in ends if low < high)


def over_hull(loop: For, ranges: Ranges) -> For:
    """The loop with inner loops whose bounds depend on its variable run over all values that any iteration needs, and their bodies under the condition that
    this iteration does. Loops for which that would cost too much stay as they are.

    Rewrite:
        for (i = 0; i < 9; i++) for (j = max(0, 1 - i); j < 3; j++) S
        -> for (i = 0; i < 9; i++) for (j = 0; j < 3; j++) if (max(0, 1 - i) <= j) S
    """
    low, high = ranges.lowest(loop.lower), ranges.highest(loop.upper - 1)
    if low is None or high is None or low > high:
        return loop
    return with_inner_loops(loop, lambda inner: (_hull(inner, loop.variable, (low, high)),))


def over_lanes(loop: For) -> For:
    """The loop, a vector's lanes from its lower to its upper bound, with inner loops whose bounds depend on its variable in up to three parts: what
    some lanes run, under a condition; what all of them run; and again what some run.

    Rewrite:
        for (i = s; i < s + 8; i++) for (j = 0; j < i; j++) S
        -> for (i = s; i < s + 8; i++) { for (j = 0; j < s; j++) S  for (j = s; j < s + 7; j++) if (j < i) S }
    """
    extent = (loop.lower, loop.upper - 1)
    return with_inner_loops(loop, lambda inner: tuple(_thirds(inner, loop.variable, extent)))


def depends_on(loop: For) -> bool:
    """Whether bounds of loops inside depend on the loop's variable."""
    inside = (node for node in walk_nodes(loop.body) if isinstance(node, For))
    return any(loop.variable in inner.lower.variables() | inner.upper.variables() for inner in inside)


def with_inner_loops(loop: For, change: Callable[[For], tuple[Node, ...]]) -> For:
    """The loop with each loop inside of it in another form, from the innermost ones on."""

    def body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return renewed(nodes, (new for node in nodes for new in visit(node)))

    def visit(node: Node) -> tuple[Node, ...]:
        node = with_body(node, body)
        return change(node) if isinstance(node, For) else (node,)

    changed = body(loop.body)
    return loop if changed is loop.body else replace(loop, body=changed)


def _thirds(inner: For, variable: str, extent: tuple[Affine, Affine]) -> Iterator[Node]:
    if variable not in inner.lower.variables() | inner.upper.variables() or inner.step != 1:
        yield inner
        return
    first, last = (extreme(bound, variable, extent, s) for bound, s in ((inner.lower, -1), (inner.upper, 1)))
    start, end = common_range(inner, variable, extent)
    some = (If(condition=within(inner, variable), then=inner.body),)
    if variable in inner.lower.variables():
        yield replace(inner, lower=first, upper=start, body=some)
    yield replace(inner, lower=start, upper=end)
    if variable in inner.upper.variables():
        yield replace(inner, lower=end, upper=last, body=some)


def common_range(inner: For, variable: str, extent: tuple[Affine, Affine]) -> tuple[Affine, Affine]:
    """What the inner loop runs for every value of `variable` from `extent[0]` to `extent[1]`: start and end, which is not before the start."""
    last = extreme(inner.upper, variable, extent, 1)
    start = minimum([extreme(inner.lower, variable, extent, 1), last])
    return start, maximum([start, minimum([extreme(inner.upper, variable, extent, -1), last])])


def within(inner: For, variable: str) -> Expr:
    """Whether the iteration is within those bounds of the loop that depend on the variable."""
    value = IndexValue(affine(inner.variable), i64)
    conditions: list[Expr] = []
    if variable in inner.lower.variables():
        conditions.append(Apply("le", (IndexValue(inner.lower, i64), value), boolean))
    if variable in inner.upper.variables():
        conditions.append(Apply("lt", (value, IndexValue(inner.upper, i64)), boolean))
    return conditions[0] if len(conditions) == 1 else Apply("and", tuple(conditions), boolean)


def _hull(inner: For, variable: str, extent: tuple[int, int]) -> For:
    if variable not in inner.lower.variables() | inner.upper.variables():
        return inner
    lower, upper = extreme(inner.lower, variable, extent, -1), extreme(inner.upper, variable, extent, 1)
    middle = (extent[0] + extent[1]) // 2
    usual = (inner.upper - inner.lower).substitute({variable: middle})
    trips = upper - lower
    if not trips.is_constant or not usual.is_constant or trips.constant > _WASTE * max(usual.constant, 1):
        return inner
    if inner.step != 1 and variable in inner.lower.variables():
        return inner
    made = replace(inner, lower=lower, upper=upper, body=(If(condition=within(inner, variable), then=inner.body),))
    small = trips.constant <= _UNROLL and not any(isinstance(node, For) for node in walk_nodes(inner.body))
    return replace(made, kind="unroll", factor=trips.constant) if small and inner.kind == "sequential" else made


def extreme(value: Affine, variable: str, extent: tuple[Affine, Affine] | tuple[int, int], sense: int) -> Affine:
    """An expression without `variable` that is never above (sense -1) or below (sense 1) the value for the variable within `extent`."""
    total = Affine((), value.constant)
    for atom, coefficient in value.terms:
        inward = sense if coefficient > 0 else -sense
        match atom:
            case str():
                term = affine(atom if atom != variable else extent[inward > 0])
            case FloorDiv():
                term = extreme(atom.numerator, variable, extent, inward) // atom.denominator
            case Extremum():
                operands = [extreme(operand, variable, extent, inward) for operand in atom.operands]
                term = (minimum if atom.kind == "min" else maximum)(operands)
        total = total + term * coefficient
    return total


def _interior(loop: For, lower: int, upper: int) -> tuple[int, int]:
    """The values around the middle for which the same operand wins in each extremum of an inner bound, end exclusive."""
    middle = (lower + upper) // 2
    for difference in _differences(loop):
        slope = difference.stride(loop.variable)
        if not slope or difference.variables() != {loop.variable}:
            continue
        # The sign of slope * v + c stays as in the middle until the zero, which belongs to both sides.
        if (difference.evaluate({loop.variable: middle}) >= 0) == (slope > 0):
            lower = max(lower, -(difference.constant // slope))
        else:
            upper = min(upper, -difference.constant // slope + 1)
    return lower, upper


def _without_wraps(loop: For, lower: int, upper: int) -> tuple[int, int]:
    """The values around the middle for which quotients by numbers in what is read and written stay the same, end exclusive, as far as these are more than half."""
    middle, least = (lower + upper) // 2, (upper - lower) // 2
    for division in _divisions(loop):
        slope = division.numerator.stride(loop.variable)
        if not slope or division.numerator.variables() != {loop.variable}:
            continue
        at = division.numerator.evaluate({loop.variable: middle})
        below, above = at % division.denominator, division.denominator - 1 - at % division.denominator
        if slope < 0:
            below, above = above, below
        first, last = max(lower, middle - below // abs(slope)), min(upper, middle + above // abs(slope) + 1)
        if last - first > least:
            lower, upper = first, last
    return lower, upper


def _divisions(loop: For) -> Iterator[FloorDiv]:
    """The quotients in subscripts."""
    for node in walk_nodes(loop.body):
        if isinstance(node, Assign):
            places = (node.target.subscripts, *(read.subscripts for read in reads_of(node.value)))
            for subscript in itertools.chain.from_iterable(places):
                if isinstance(subscript, Affine):
                    yield from (atom for atom, _ in subscript.terms if isinstance(atom, FloorDiv))


def _differences(loop: For) -> Iterator[Affine]:
    """All pairs of operands of the extrema in inner bounds, as differences."""
    for node in walk_nodes(loop.body):
        if not isinstance(node, For):
            continue
        for bound in (node.lower, node.upper):
            for atom, _ in bound.terms:
                if isinstance(atom, Extremum):
                    yield from (a - b for a, b in itertools.combinations(atom.operands, 2))
