"""Sums in which a loop waits for its last iteration: what is known early is added first, so that the wait is one addition long; a constant factor of the sum goes
to both parts, so that it is one fused multiply-add long.

Reassociation of floating-point sums, which the language allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.expressions import Apply, Const, Expr, Read, reads_of
from polyml.sets.affine import Affine

__all__ = ["order_sums"]


def order_sums(function: Function) -> Function:
    """The function with the terms of sums in innermost sequential loops in the order in which their values are there.

    Rewrite:
        for (j ..) a[j] = x[j] + a[j - 1] + y[j] + a[j - 2];
        -> for (j ..) a[j] = x[j] + y[j] + a[j - 2] + a[j - 1];
        for (j ..) a[j] = (x[j] + a[j - 1]) / 4;
        -> for (j ..) a[j] = a[j - 1] * 0.25 + x[j] * 0.25;
    """
    body = _body(function.body)
    return function if body is function.body else replace(function, body=body)


def _body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    made = tuple(_node(node) for node in nodes)
    return nodes if all(a is b for a, b in zip(made, nodes, strict=True)) else made


def _node(node: Node) -> Node:
    innermost = isinstance(node, For) and not any(isinstance(inner, For) for inner in walk_nodes(node.body))
    if not isinstance(node, For) or not innermost or node.kind != "sequential":
        return with_body(node, _body)
    writes = [inner for inner in walk_nodes(node.body) if isinstance(inner, Assign) and inner.target.subscripts]
    return with_body(node, lambda body: _ordered(body, writes, node))


def _ordered(nodes: tuple[Node, ...], writes: Sequence[Assign], loop: For) -> tuple[Node, ...]:
    def visit(node: Node) -> Node:
        if not isinstance(node, Assign):
            return with_body(node, lambda body: _ordered(body, writes, loop))
        value = _sorted(node.value, writes, loop)
        return node if value is node.value else replace(node, value=value)

    made = tuple(visit(node) for node in nodes)
    return nodes if all(a is b for a, b in zip(made, nodes, strict=True)) else made


def _sorted(expr: Expr, writes: Sequence[Assign], loop: For) -> Expr:
    """The expression with its sums ordered: terms from further back first, what the last iteration made at the end."""
    if not isinstance(expr, Apply):
        return expr
    if expr.op not in ("add", "sub") or not expr.dtype.is_float:
        args = tuple(_sorted(arg, writes, loop) for arg in expr.args)
        made = expr if all(a is b for a, b in zip(args, expr.args, strict=True)) else replace(expr, args=args)
        return _multiplied_out(made, writes, loop)
    terms = [(sign, _sorted(term, writes, loop)) for sign, term in _terms(expr, 1)]
    waits = [_wait(term, writes, loop) for _, term in terms]
    order = sorted(range(len(terms)), key=lambda k: (waits[k], k))
    if len(terms) < 3 or order == list(range(len(terms))):
        return expr
    first = next((k for k in order if terms[k][0] > 0), None)
    if first is None or waits[first] == max(waits) > 0:
        return expr
    total = terms[first][1]
    for k in order:
        if k != first:
            total = Apply("add" if terms[k][0] > 0 else "sub", (total, terms[k][1]), expr.dtype)
    return total


def _multiplied_out(expr: Apply, writes: Sequence[Assign], loop: For) -> Expr:
    """A product of a constant and a sum whose last term waits longest, as the sum of two products."""
    match expr:
        case (
            Apply(op="mul", args=(Apply() as total, Const(value=value)))
            | Apply(op="mul", args=(Const(value=value), Apply() as total))
        ):
            factor = float(value)
        case Apply(op="div", args=(Apply() as total, Const(value=value))) if value:
            factor = 1.0 / float(value)
        case _:
            return expr
    if total.op not in ("add", "sub") or not expr.dtype.is_float or total.dtype != expr.dtype:
        return expr
    first, last = total.args
    if _wait(first, writes, loop) >= _wait(last, writes, loop) or not isinstance(last, Read):
        return expr
    early = Apply("mul", (first, Const(factor, expr.dtype)), expr.dtype)
    late = Apply("mul", (last, Const(factor if total.op == "add" else -factor, expr.dtype)), expr.dtype)
    # Of two products LLVM fuses the first one with the addition.
    return Apply("add", (late, early), expr.dtype)


def _terms(expr: Expr, sign: int) -> Iterator[tuple[int, Expr]]:
    if isinstance(expr, Apply) and expr.op in ("add", "sub"):
        yield from _terms(expr.args[0], sign)
        yield from _terms(expr.args[1], sign if expr.op == "add" else -sign)
    else:
        yield sign, expr


def _wait(expr: Expr, writes: Sequence[Assign], loop: For) -> float:
    """0 for what no iteration before makes, else the greater the fewer iterations lie between."""
    return max((_nearness(read, write, loop) for read in reads_of(expr) for write in writes), default=0.0)


def _nearness(read: Read, write: Assign, loop: For) -> float:
    if read.tensor != write.target.variable:
        return 0.0
    distance: int | None = None
    for mine, theirs in zip(read.subscripts, write.target.subscripts, strict=True):
        if not isinstance(mine, Affine) or not isinstance(theirs, Affine):
            return 0.0
        gap, slope = theirs - mine, theirs.stride(loop.variable)
        if not gap.is_constant or slope is None:
            return 0.0
        if slope == 0:
            if gap.constant:
                return 0.0
            continue
        if gap.constant % (slope * loop.step) or distance not in (None, gap.constant // (slope * loop.step)):
            return 0.0
        distance = gap.constant // (slope * loop.step)
    return 1.0 / distance if distance is not None and distance > 0 else 0.0
