"""Simplification of Loops by what the bounds of enclosing loops say: conditions that are certain, loops of one iteration or none, divisions with one
possible quotient, extrema with a sure winner, conditions on a loop's variable that are bounds."""

from __future__ import annotations

from typing import assert_never

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, Prefetch, UpdateArgument
from polyml.codegen.passes.guards import difference_of
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import substitute_nodes
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.records import replace
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, maximum, minimum, operands

__all__ = ["simplify", "simplify_nodes"]


def simplify(function: Function) -> Function:
    """An equal function. Vector loops that have their width stay loops, whatever their number of iterations; Blocks are dissolved."""
    body = _body(function.body, outside(function))
    return function if body is function.body else replace(function, body=body)


def simplify_nodes(nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    """The same for nodes in the loops of `ranges`."""
    return _body(nodes, ranges)


def _body(nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
    return renewed(nodes, (new for node in nodes for new in _node(node, ranges)))


def _node(node: Node, ranges: Ranges) -> tuple[Node, ...]:
    match node:
        case Assign():
            target, value = _place(node.target, ranges), _expr(node.value, ranges)
            same = target is node.target and value is node.value
            return (node if same else replace(node, target=target, value=value),)
        case UpdateArgument():
            made = replace(
                node,
                best=_place(node.best, ranges),
                argument=_place(node.argument, ranges),
                candidate=_expr(node.candidate, ranges),
                candidate_index=_expr(node.candidate_index, ranges),
            )
            return (node if made == node else made,)
        case Prefetch():
            return (node,)
        case For():
            return _loop(node, ranges)
        case If():
            return _if(node, ranges)
        case Allocate():
            body = _body(node.body, ranges)
            return () if not body else (node if body is node.body else replace(node, body=body),)
        case Block():
            return _body(node.body, ranges)
        case _:
            assert_never(node)


def _loop(node: For, ranges: Ranges) -> tuple[Node, ...]:
    lower, upper = ranges.simplify(node.lower), ranges.simplify(node.upper)
    span = upper - lower
    most, least = ranges.highest(span), ranges.lowest(span)
    if most is not None and most <= 0:
        return ()
    one = most is not None and least is not None and least > 0 and most <= node.step
    if one and not node.mapped and node.kind != "stage" and not (node.kind == "vector" and node.width > 1):
        return _body(substitute_nodes(node.body, {node.variable: lower}), ranges)
    if lower != node.lower or upper != node.upper:
        node = replace(node, lower=lower, upper=upper)
    body = _body(node.body, ranges.enter(node))
    if not body:
        return ()
    bounded = _bounded(node, body, ranges)
    if bounded is not None:
        return _loop(bounded, ranges)
    return (node if body is node.body else replace(node, body=body),)


def _bounded(node: For, body: tuple[Node, ...], ranges: Ranges) -> For | None:
    """The loop with a condition that sizes decide, which is all of its body, as a bound; None where there is none. A vector loop is whole vectors only without."""
    if node.step != 1 or node.mapped or (node.kind == "vector" and node.width > 1):
        return None
    match body:
        case (If(condition=condition, then=then, otherwise=()),):
            difference = difference_of(condition)
        case _:
            return None
    slope = None if difference is None else difference.stride(node.variable)
    if difference is None or slope not in (1, -1):
        return None
    rest = difference - affine(node.variable) * slope
    if rest.variables() & {loop.variable for loop in (*ranges.loops, node)}:
        return None
    if slope == 1:
        return replace(node, lower=maximum([*operands(node.lower, "max"), -rest]), body=then)
    return replace(node, upper=minimum([*operands(node.upper, "min"), rest + 1]), body=then)


def _if(node: If, ranges: Ranges) -> tuple[Node, ...]:
    decided = ranges.decide(node.condition)
    if decided is not None:
        return _body(node.then if decided else node.otherwise, ranges)
    condition = _expr(node.condition, ranges)
    then, otherwise = _body(node.then, ranges), _body(node.otherwise, ranges)
    if not then and not otherwise:
        return ()
    same = condition is node.condition and then is node.then and otherwise is node.otherwise
    return (node if same else If(condition=condition, then=then, otherwise=otherwise),)


def _place(place: Place, ranges: Ranges) -> Place:
    return place.at(_subscripts(place.subscripts, ranges))


def _subscripts(subscripts: tuple[Subscript, ...], ranges: Ranges) -> tuple[Subscript, ...]:
    for s in subscripts:
        if not isinstance(s, Affine) or not s.is_linear:
            return tuple([ranges.simplify(s) if isinstance(s, Affine) else _expr(s, ranges) for s in subscripts])
    return subscripts  # nearly all


def _expr(expr: Expr, ranges: Ranges) -> Expr:
    match expr:
        case Const():
            return expr
        case IndexValue():
            simple = ranges.simplify(expr.affine)
            return expr if simple is expr.affine else IndexValue(simple, expr.dtype)
        case Read():
            return expr.at(_subscripts(expr.subscripts, ranges))
        case Apply(op="select", args=(condition, if_true, if_false)):
            decided = ranges.decide(condition)
            if decided is not None:
                return _expr(if_true if decided else if_false, ranges)
            return _apply(expr, ranges)
        case Apply():
            return _apply(expr, ranges)
        case _:
            assert_never(expr)


def _apply(expr: Apply, ranges: Ranges) -> Expr:
    if expr.op in ("and", "or"):
        # One certain side decides the whole or drops out.
        left, right = (ranges.decide(arg) for arg in expr.args)
        ends = expr.op == "or"
        for known, other in ((left, expr.args[1]), (right, expr.args[0])):
            if known is not None:
                return Const(ends, expr.dtype) if known == ends else _expr(other, ranges)
    return expr.with_args(_expr(arg, ranges) for arg in expr.args)
