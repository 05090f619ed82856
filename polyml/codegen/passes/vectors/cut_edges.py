"""Rows that are copied with padding around them: loops cut where conditions on their variable alone change, so that no row in the middle asks.

    for (i = 0; i < 57; i++) vector for (j = 0; j < 56; j++) z[i, j] = select(i - 1 >= 0 and j - 1 >= 0, x[i - 1, j - 1], 0);
    -> vector for (j ..) z[0, j] = 0;  for (i = 1; i < 57; i++) vector for (j ..) z[i, j] = select(j - 1 >= 0, x[i - 1, j - 1], 0);

So are, when they have their width, loops of vectors along the row.

Loops of a few iterations, such as the phases of a row with gaps, whose variable is in conditions together with others, are jammed, or written out inside of the lanes: masks at the ends of rows are constants then, and what
phases load, the same vectors, is loaded once (llvm/memory/phases.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.guards import difference_of
from polyml.codegen.passes.simplify import simplify_nodes
from polyml.codegen.passes.unrolling.jam import jam
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import with_body
from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Expr, walk
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, maximum, minimum

__all__ = ["cut_edges", "cut_vectors"]

FEW = 4
"""Iterations of a loop that is written out."""


def cut_edges(function: Function) -> Function:
    """The function with such loops over elementwise rows in parts, the first and the last of which have the conditions that differ from those in the middle."""
    body = _body(_written_out(function.body, outside(function)), outside(function))
    return function if body is function.body else replace(function, body=body)


def cut_vectors(function: Function) -> Function:
    """The function with loops of vectors in parts, where conditions on their variable alone hold for all lanes in the middle: masks of the vectors at the ends are constants then."""

    def parts(loop: For, ranges: Ranges, lanes: For | None) -> tuple[Node, ...] | None:
        if loop.kind == "vector" and loop.width > 1 and not loop.masked:
            return _vector_parts(loop) or (loop,)
        return None

    return map_loops(function, parts)


def _vector_parts(loop: For) -> tuple[Node, ...]:
    """The loop in parts; nothing where that is the loop itself, or not known."""
    values = [node.value for node in loop.body if isinstance(node, Assign) and node.reduction is None]
    if len(values) < len(loop.body) or not (loop.lower.is_constant and loop.upper.is_constant):
        return ()
    asked = {c: d for value in values for c, d in _conditions(value) if d.variables() == {loop.variable}}
    starts = range(loop.lower.constant, loop.upper.constant, loop.step)
    inside = _inner(starts, asked.values(), loop) if asked else None
    if inside is None or len(starts) < 2 or not (inside or len(starts) == 2):
        return ()
    # Two vectors of which either has an edge are a part each.
    start, end = (inside[0], inside[-1] + loop.step) if inside else (starts[1], starts[1])
    ends = [(loop.lower.constant, start), (start, end), (end, loop.upper.constant)]
    parts = [replace(loop, lower=affine(low), upper=affine(high)) for low, high in ends if low < high]
    return tuple(_known(p, asked, value=True) if p.lower.constant in inside else p for p in parts)


def _inner(starts: range, differences: Iterable[Affine], loop: For) -> range | None:
    """Those of the vectors' starts whose lanes all have differences of at least 0; None where these are not linear."""
    first, behind = 0, len(starts)
    for difference in differences:
        slope = difference.stride(loop.variable)
        if slope is None:
            return None
        # What it is for the lane that has least, and by how much it changes from vector to vector.
        least = difference.constant + slope * (starts.start + (loop.width - 1 if slope < 0 else 0))
        change = slope * starts.step
        if change > 0:
            first = max(first, -(least // change))
        elif change < 0:
            behind = min(behind, least // -change + 1)
        elif least < 0:
            behind = 0
    return starts[first : max(first, behind)]


def _body(nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    return renewed(nodes, (new for node in nodes for new in _node(node, ranges)))


def _node(node: Node, ranges: Ranges) -> tuple[Node, ...]:
    if isinstance(node, For) and node.kind == "sequential" and (found := _row(node)) is not None:
        parts = _parts(node, *found, ranges)
        if parts is not None:
            return tuple(_inside(made, ranges) for part in parts for made in simplify_nodes((part,), ranges))
    return (_inside(node, ranges),)


def _inside(node: Node, ranges: Ranges) -> Node:
    inner = ranges.enter(node) if isinstance(node, For) else ranges
    return with_body(node, lambda body: _body(body, inner))


def _written_out(nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    """The nodes with loops inside of lanes written out, a row's few phases, where edges depend on both."""

    def visit(node: Node) -> Node:
        if isinstance(node, For) and node.kind == "vector" and _is_copy(node.body):
            (loop,) = node.body
            assert isinstance(loop, For), "internal: a loop of copies is no loop"
            span = ranges.constant(loop.upper - loop.lower)
            both = {node.variable, loop.variable}
            asked = any(
                both <= d.variables() for row in loop.body if isinstance(row, Assign) for _, d in _conditions(row.value)
            )
            if span is None or span > FEW or loop.step != 1 or not asked:
                return node
            return replace(
                node, body=tuple(jam(loop.body, loop.variable, [loop.lower + k for k in range(span)], taken=set()))
            )
        return with_body(node, lambda body: renewed(body, map(visit, body)))

    return renewed(nodes, map(visit, nodes))


def _is_copy(body: tuple[Node, ...]) -> bool:
    """Whether the body is a loop that copies one element after the other."""
    match body:
        case (For(kind="sequential", body=(Assign(reduction=None),)),):
            return True
        case _:
            return False


def _row(loop: For) -> tuple[tuple[Assign, ...], str, frozenset[str]] | None:
    """The copies that are all that the loops below do, the variable of their lanes, and those of the loops between."""
    match loop.body:
        case (For(kind="vector") as lanes,):
            rows = tuple(node for node in lanes.body if isinstance(node, Assign) and node.reduction is None)
            return (rows, lanes.variable, frozenset()) if len(rows) == len(lanes.body) else None
        case (For(kind="sequential") as inner,):
            found = _row(inner)
            return None if found is None else (found[0], found[1], found[2] | {inner.variable})
        case _:
            return None


def _parts(
    loop: For, rows: tuple[Assign, ...], lane: str, between: frozenset[str], ranges: Ranges
) -> list[Node] | None:
    """The loop in parts; None where that is the loop itself, or not known."""
    asked = {c: d for row in rows for c, d in _conditions(row.value) if loop.variable in d.variables()}
    if not asked or loop.step != 1 or any(d.variables() & between for d in asked.values()):
        return None
    span = ranges.constant(loop.upper - loop.lower)
    if any(lane in d.variables() for d in asked.values()):
        if span is None or span > FEW:
            return None
        return list(jam(loop.body, loop.variable, [loop.lower + k for k in range(span)], taken=set()))
    start, end = loop.lower, loop.upper
    below: list[Expr] = []
    above: list[Expr] = []
    for condition, difference in asked.items():
        slope = difference.stride(loop.variable)
        if slope not in (1, -1):
            return None
        zero = affine(loop.variable) - difference * slope
        # From there on, or up to there, it holds.
        start, end = (maximum([start, zero]), end) if slope > 0 else (start, minimum([end, zero + 1]))
        (below if slope > 0 else above).append(condition)
    start = minimum([start, loop.upper])
    end = maximum([start, end])
    # Where there are several on a side, not all of them are false there.
    first = _known(replace(loop, upper=start), below, value=False) if len(below) == 1 else replace(loop, upper=start)
    last = _known(replace(loop, lower=end), above, value=False) if len(above) == 1 else replace(loop, lower=end)
    return [first, _known(replace(loop, lower=start, upper=end), [*below, *above], value=True), last]


def _conditions(value: Expr) -> Iterator[tuple[Expr, Affine]]:
    """The comparisons that decide what the value is, and what each asks to be at least 0: all of them must hold for the first one of two values."""
    for node in walk(value):
        if isinstance(node, Apply) and node.op == "select":
            for condition in _all_of(node.args[0]):
                difference = difference_of(condition)
                if difference is not None:
                    yield condition, difference


def _all_of(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Apply) and condition.op == "and":
        for part in condition.args:
            yield from _all_of(part)
    else:
        yield condition


def _known(loop: For, conditions: Collection[Expr], *, value: bool) -> Node:
    """The loop where these conditions are what `value` says."""

    def changed(expr: Expr) -> Expr:
        if expr in conditions:
            return Const(value, boolean)
        if not isinstance(expr, Apply):
            return expr
        return expr.with_args(map(changed, expr.args))

    def visit(node: Node) -> Node:
        if isinstance(node, Assign):
            return replace(node, value=changed(node.value))
        return with_body(node, lambda body: tuple(map(visit, body)))

    return visit(loop)
