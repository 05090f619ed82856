"""Loops to be jammed whose inner bounds or conditions change with their variable: inner loops are cut into what all copies run and what some do.

Without it a triangle has no register tiles: rows that are to run side by side have different ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from polyml.codegen.boundaries import common_range, depends_on, over_lanes
from polyml.codegen.loops import Allocate, Block, For, Function, If, Node
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.codegen.simplify import simplify_nodes
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.sets.affine import Affine, Extremum, affine, maximum, minimum

__all__ = ["cut_triangles"]


def cut_triangles(function: Function) -> Function:
    """The function with each loop of kind "jam" in parts: what all its iterations run is jammed, what some run more (the teeth of a triangle) is in plain
    loops before and after.

    The parts of one row keep their order, and that rows may run side by side is the schedule's promise. Loops further inside are cut in the same way,
    with conditions for what some rows run.

    Rewrite:
        jam(4) for (i = t; i < t + 4; i++) for (j = 0; j < i; j++) S
        -> jam(4) for (i = t; i < t + 4; i++) for (j = 0; j < t; j++) S
           for (i = t; i < t + 4; i++) for (j = t; j < i; j++) S
        for (j = 0; j < 9; j++) { S  if (i >= j) for (k ..) T }
        -> for (j = 0; j < min(9, i + 1); j++) { S  for (k ..) T }  for (j = max(0, i + 1); j < 9; j++) S
    """
    body = _body(function.body, Ranges())
    return function if body is function.body else replace(function, body=body)


def _body(nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    made = tuple(new for node in nodes for new in _node(node, ranges))
    same = len(made) == len(nodes) and all(a is b for a, b in zip(made, nodes, strict=True))
    return nodes if same else made


def _node(node: Node, ranges: Ranges) -> tuple[Node, ...]:
    if not isinstance(node, For):
        return (with_body(node, lambda body: _body(body, ranges)),)
    inside = ranges.enter(node)
    if node.kind != "jam" or node.factor < 2:
        return (with_body(node, lambda body: _body(body, inside)),)
    children = tuple(part for child in node.body for part in _without_guards(child, node.variable))
    if not depends_on(replace(node, body=children)) or any(map(partial(_has_window, node.variable), children)):
        return (node,)
    loops = (loop for child in children for loop in _rows(node, child))
    return simplify_nodes(tuple(loops), ranges)


def _has_window(variable: str, child: Node) -> bool:
    """Whether a loop below the child has a bound with an extremum of the variable: the edges of a window, which are cut elsewhere."""
    inside = (node for body in _bodies(child) for node in walk_nodes(body) if isinstance(node, For))
    atoms = (atom for inner in inside for bound in (inner.lower, inner.upper) for atom, _ in bound.terms)
    return any(isinstance(atom, Extremum) and variable in affine(atom).variables() for atom in atoms)


def _bodies(node: Node) -> Iterator[tuple[Node, ...]]:
    match node:
        case For() | Allocate() | Block():
            yield node.body
        case If():
            yield from (node.then, node.otherwise)
        case _:
            pass


def _rows(loop: For, child: Node) -> Iterator[For]:
    """The jammed loop over one node of its body: the beginning of rows, what all rows have, and their ends."""
    variable = loop.variable
    if (
        not isinstance(child, For)
        or variable not in child.lower.variables() | child.upper.variables()
        or child.step != 1
    ):
        yield over_lanes(replace(loop, body=(child,)))
        return
    start, end = common_range(child, variable, (loop.lower, loop.upper - 1))
    edge = replace(child, factor=1)
    plain = replace(loop, kind="sequential", factor=1)
    if variable in child.lower.variables():
        yield replace(plain, body=(replace(edge, upper=start),))
    yield over_lanes(replace(loop, body=(replace(child, lower=start, upper=end),)))
    if variable in child.upper.variables():
        yield replace(plain, body=(replace(edge, lower=end),))


def _without_guards(node: Node, variable: str) -> Iterator[Node]:
    """A loop with a condition that compares its variable with the jammed one, over loops: cut where the condition changes."""
    guard = _heavy_guard(node.body) if isinstance(node, For) else None
    cut = None if guard is None or not isinstance(node, For) else _boundary(guard, node, variable)
    if cut is None or guard is None or not isinstance(node, For):
        yield node
        return
    value, holds_below = cut
    for below in (True, False):
        body = _with_choice(node.body, guard, guard.then if below == holds_below else guard.otherwise)
        lower = node.lower if below else maximum([node.lower, value])
        upper = minimum([node.upper, value]) if below else node.upper
        if body:
            yield replace(node, lower=lower, upper=upper, body=body)


def _heavy_guard(nodes: tuple[Node, ...]) -> If | None:
    """The first condition over loops among the nodes, and in storage that they make."""
    for node in nodes:
        if isinstance(node, Allocate) and (inner := _heavy_guard(node.body)) is not None:
            return inner
        if isinstance(node, If) and any(isinstance(inner, For) for inner in walk_nodes(node.then)):
            return node
    return None


def _with_choice(nodes: tuple[Node, ...], guard: If, chosen: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with one branch in the condition's place."""

    def replaced(node: Node) -> tuple[Node, ...]:
        if node is guard:
            return chosen
        return (
            with_body(node, lambda body: _with_choice(body, guard, chosen)) if isinstance(node, Allocate) else node,
        )

    return tuple(new for node in nodes for new in replaced(node))


def _boundary(guard: If, loop: For, variable: str) -> tuple[Affine, bool] | None:
    """The value of the loop's variable from which on the condition is another one, and whether it holds before; None when there is none."""
    if loop.step != 1:
        return None
    difference = _difference(guard.condition)
    if difference is None or variable not in difference.variables():
        return None
    slope = difference.stride(loop.variable)
    if slope not in (1, -1):
        return None
    rest = difference - affine(loop.variable) * slope
    # The condition is `difference >= 0`: v >= -rest, or v <= rest.
    return (-rest, False) if slope == 1 else (rest + 1, True)


def _difference(condition: Expr) -> Affine | None:
    """What the condition says is >= 0."""
    if not isinstance(condition, Apply) or condition.op not in ("lt", "le", "gt", "ge"):
        return None
    left, right = (_index(arg) for arg in condition.args)
    if left is None or right is None:
        return None
    match condition.op:
        case "ge":
            return left - right
        case "gt":
            return left - right - 1
        case "le":
            return right - left
        case _:
            return right - left - 1


def _index(expr: Expr) -> Affine | None:
    if isinstance(expr, IndexValue):
        return expr.affine
    if isinstance(expr, Const) and expr.dtype.is_integer:
        return affine(int(expr.value))
    return None
