"""Sums in which a loop waits for its last iteration: what is known early is added first, so that the wait is one addition long; a constant factor of the sum, or what it is divided by, goes
to both parts, so that it is one fused multiply-add long.

Reassociation of floating-point sums, which the language allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, Node
from polyml.codegen.map_loops import map_loops
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import nodes_of, variables_of, walk_nodes, with_body
from polyml.expressions import Apply, Const, Expr, Read, reads_of, walk
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["order_sums"]


def order_sums(function: Function) -> Function:
    """The function with the terms of sums in innermost sequential loops in the order in which their values are there.

    Rewrite:
        for (j ..) a[j] = x[j] + a[j - 1] + y[j] + a[j - 2];
        -> for (j ..) a[j] = x[j] + y[j] + a[j - 2] + a[j - 1];
        for (j ..) a[j] = (x[j] + a[j - 1]) / 4;
        -> for (j ..) a[j] = a[j - 1] * 0.25 + x[j] * 0.25;
        for (j ..) a[j] = (x[j] - c * a[j - 1]) / d[j];
        -> for (j ..) a[j] = a[j - 1] * (-c / d[j]) + x[j] / d[j];
        vector for (i ..) for (j ..) a[j, i] = (x[j, i] - c * a[j - 1, i]) / d[j];
        -> vector for (i ..) for (j ..) a[j, i] = a[j - 1, i] * (-c / d[j]) + x[j, i] * (1 / d[j]);
    """
    copies = {n.variable.name for n in nodes_of(function) if isinstance(n, Allocate) and n.variable.lanes > 1}

    def ordered(loop: For, ranges: Ranges, lanes: For | None) -> Node | None:
        if loop.kind != "sequential" or any(isinstance(inner, For) for inner in walk_nodes(loop.body)):
            return None
        assigns = [inner for inner in walk_nodes(loop.body) if isinstance(inner, Assign)]
        writes = [inner for inner in assigns if inner.target.subscripts]
        if {inner.target.variable for inner in writes}.isdisjoint(r.tensor for a in assigns for r in reads_of(a.value)):
            return None  # no iteration waits for another
        wait = _Wait(loop, writes, _Lanes(None if lanes is None else lanes.variable, frozenset(copies)))
        return with_body(loop, lambda body: _ordered(body, wait))

    return map_loops(function, ordered)


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The variable of the vector loop around, and what exists once per lane."""

    variable: str | None
    copies: frozenset[str]

    def differ(self, expr: Expr) -> bool:
        """Whether lanes have values of their own."""
        if self.variable is None:
            return False
        return self.variable in variables_of(expr) or any(read.tensor in self.copies for read in reads_of(expr))


@dataclass(frozen=True, slots=True)
class _Wait:
    """An innermost loop, what it writes to memory, and the lanes around it."""

    loop: For
    writes: Sequence[Assign]
    lanes: _Lanes

    def of(self, expr: Expr) -> float:
        """0 for what no iteration before makes, else the greater the fewer iterations lie between."""
        return max((_nearness(read, write, self.loop) for read in reads_of(expr) for write in self.writes), default=0.0)


def _ordered(nodes: tuple[Node, ...], wait: _Wait) -> tuple[Node, ...]:
    def visit(node: Node) -> Node:
        if not isinstance(node, Assign):
            return with_body(node, lambda body: _ordered(body, wait))
        value = _sorted(node.value, wait)
        return node if value is node.value else replace(node, value=value)

    return renewed(nodes, (visit(node) for node in nodes))


def _sorted(expr: Expr, wait: _Wait) -> Expr:
    """The expression with its sums ordered: terms from further back first, what the last iteration made at the end."""
    if not isinstance(expr, Apply):
        return expr
    if expr.op not in ("add", "sub") or not expr.dtype.is_float:
        made = expr.with_args(_sorted(arg, wait) for arg in expr.args)
        return _divided_out(_multiplied_out(made, wait), wait)
    terms = [(sign, _sorted(term, wait)) for sign, term in _terms(expr, 1)]
    waits = [wait.of(term) for _, term in terms]
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


def _multiplied_out(expr: Apply, wait: _Wait) -> Expr:
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
    if wait.of(first) >= wait.of(last) or not isinstance(last, Read):
        return expr
    early = Apply("mul", (first, Const(factor, expr.dtype)), expr.dtype)
    late = Apply("mul", (last, Const(factor if total.op == "add" else -factor, expr.dtype)), expr.dtype)
    # Of two products LLVM fuses the first one with the addition.
    return Apply("add", (late, early), expr.dtype)


def _divided_out(expr: Expr, wait: _Wait) -> Expr:
    """A quotient whose dividend's last term, an element or a multiple of one, waits longest, as the sum of two quotients: the division itself waits no more."""
    match expr:
        case Apply(op="div", args=(Apply(op="add" | "sub", args=(first, last)) as total, divisor)):
            pass
        case _:
            return expr
    if not expr.dtype.is_float or isinstance(divisor, Const) or not _is_cheap(divisor):
        return expr
    if wait.of(divisor) or wait.of(first) >= wait.of(last):
        return expr
    element: Read
    factor: Expr
    match last:
        case Read():
            element, factor = last, Const(1.0, expr.dtype)
        case Apply(op="mul", args=(Read() as element, factor)) if wait.of(element) and not wait.of(factor):
            pass
        case Apply(op="mul", args=(factor, Read() as element)) if wait.of(element) and not wait.of(factor):
            pass
        case _:
            return expr
    # Two divisions in each lane would take longer than one is waited for.
    if wait.lanes.differ(factor) or wait.lanes.differ(divisor):
        return expr
    if total.op == "sub":
        factor = Apply("neg", (factor,), expr.dtype)
    late = Apply("mul", (element, Apply("div", (factor, divisor), expr.dtype)), expr.dtype)
    early = Apply("div", (first, divisor), expr.dtype)
    if wait.lanes.differ(first):
        # A correctly rounded quotient takes as long as all the rest of a step; one reciprocal serves all lanes.
        reciprocal = Apply("div", (Const(1.0, expr.dtype), divisor), expr.dtype)
        early = Apply("mul", (first, reciprocal), expr.dtype)
    return Apply("add", (late, early), expr.dtype)


def _is_cheap(expr: Expr) -> bool:
    """Whether it may be computed twice."""
    return all(not isinstance(node, Apply) or node.op in ("add", "sub", "mul", "neg") for node in walk(expr))


def _terms(expr: Expr, sign: int) -> Iterator[tuple[int, Expr]]:
    if isinstance(expr, Apply) and expr.op in ("add", "sub"):
        yield from _terms(expr.args[0], sign)
        yield from _terms(expr.args[1], sign if expr.op == "add" else -sign)
    else:
        yield sign, expr


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
