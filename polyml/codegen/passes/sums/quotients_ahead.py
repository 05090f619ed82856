"""Quotients that all lanes share, and all loops around: computed once, ahead of these.

A tridiagonal solver of many rows that have one matrix divides by d[j] in each of them, and so in each step of a loop over time. Lanes along the rows share the quotient, but each group of vectors makes it anew, and a
division takes a core as long as five to ten multiplications. The loop along a row reads a table instead.

The same operations on the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from polyml.codegen.loops import Allocate, Assign, For, Function, Node, Place, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import nodes_of, variables_of, walk_nodes, with_body
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, substitute, walk
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["quotients_ahead"]

_L2 = 512 * 1024
"""What L2 is taken for where it is not known."""

LEAST_RUNS = 4
"""Of a loop along rows, at least, where that is known: with two a table is as much work as it saves."""

_SHARE = 8
"""The part of L2 that tables may take: what lanes keep along a row has the rest."""


def quotients_ahead(function: Function, *, l2_bytes: int = 0) -> Function:
    """The function with such quotients of innermost sequential loops inside vector loops in tables, which are filled ahead of the outermost loop around.

    Rewrite:
        for (t ..) vector for (i ..) for (j = 1; j < 9; j++) y[j, i] = y[j - 1, i] * (-c / d[j]) + x[j, i];
        -> local q[8]; for (j = 1; j < 9; j++) q[j - 1] = -c / d[j];
           for (t ..) vector for (i ..) for (j = 1; j < 9; j++) y[j, i] = y[j - 1, i] * q[j - 1] + x[j, i];

    Args:
        l2_bytes: of one core's L2; 0: not known.
    """
    if not any(isinstance(node, For) and node.kind == "vector" for node in nodes_of(function)):
        return function
    arguments = {v.name: v for v in function.arguments if v.name not in function.written}
    unchanging = frozenset((*function.sizes, *(lead.name for lead in function.leads if not lead.inside)))
    ahead = _Ahead(function, (l2_bytes or _L2) // _SHARE, arguments, unchanging)
    body = ahead.outermost(function.body)
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Table:
    """The values of one quotient in all iterations of the loop that fills it."""

    variable: Variable
    fill: For

    def read(self, along: str) -> Read:
        return Read(self.variable.name, (affine(along) - self.fill.lower,), self.variable.dtype)


_Tables = dict[tuple[Expr, Affine, Affine], _Table]
"""By the quotient, along a variable that all share, and by its bounds."""


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops around, innermost. runs: how often a loop in it runs, at most; None: that is not known. has_lanes: whether one of them is a vector loop."""

    ranges: Ranges
    runs: int | None = 1
    has_lanes: bool = False

    def enter(self, loop: For) -> _Nest:
        span = self.ranges.highest(loop.upper - loop.lower)
        runs = None if self.runs is None or span is None else self.runs * -(-span // loop.step)
        return _Nest(self.ranges.enter(loop), runs, self.has_lanes or loop.kind == "vector")


@dataclass(frozen=True, slots=True)
class _Ahead:
    """room: bytes that the tables of one nest may take. arguments: those that nothing writes. unchanging: what is the same in the whole function."""

    function: Function
    room: int
    arguments: Mapping[str, Variable]
    unchanging: frozenset[str]
    taken: set[str] = field(default_factory=set)

    def outermost(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return renewed(nodes, map(self.ahead_of, nodes))

    def ahead_of(self, node: Node) -> Node:
        """The node; loops with the tables that they read around them."""
        if not isinstance(node, For):
            return with_body(node, self.outermost)
        tables: _Tables = {}
        made: Node = self.inside(node, _Nest(outside(self.function)), tables)
        if not tables:
            return node
        body: tuple[Node, ...] = (*(table.fill for table in tables.values()), made)
        for table in reversed(tables.values()):
            body = (Allocate(variable=table.variable, body=body),)
        return body[0]

    def inside(self, loop: For, around: _Nest, tables: _Tables) -> For:
        """The loop with tables read in the loops along rows; they are added to `tables`."""
        if any(isinstance(inner, For) for inner in walk_nodes(loop.body)):
            here = around.enter(loop)

            def visit(node: Node) -> Node:
                if isinstance(node, For):
                    return self.inside(node, here, tables)
                return with_body(node, lambda body: renewed(body, map(visit, body)))

            body = renewed(loop.body, map(visit, loop.body))
            return loop if body is loop.body else replace(loop, body=body)
        if loop.kind != "sequential" or loop.step != 1 or not around.has_lanes:
            return loop
        if not (self.is_alike(loop.lower) and self.is_alike(loop.upper)):
            return loop
        often = around.runs is None or around.runs >= LEAST_RUNS

        def look_up(node: Node) -> Node:
            if not isinstance(node, Assign) or node.scan is not None:
                return with_body(node, lambda body: renewed(body, map(look_up, body)))
            value = self.looked_up(node.value, loop, tables, often)
            return node if value is node.value else replace(node, value=value)

        body = renewed(loop.body, map(look_up, loop.body))
        return loop if body is loop.body else replace(loop, body=body)

    def looked_up(self, expr: Expr, loop: For, tables: _Tables, often: bool) -> Expr:
        """The expression with its largest quotients of that kind read from tables, new ones where the loop runs often and there is room for these."""
        if not isinstance(expr, Apply):
            return expr
        if expr.op == "div" and loop.variable in variables_of(expr) and self.is_shared(expr, loop):
            table = self.table_of(expr, loop, tables, often)
            return expr if table is None else table.read(loop.variable)
        return expr.with_args(self.looked_up(arg, loop, tables, often) for arg in expr.args)

    def table_of(self, quotient: Expr, loop: For, tables: _Tables, often: bool) -> _Table | None:
        """The table that has it; None where there is none, and a new one does not pay, or its length is not known, or there is no room."""
        key = (substitute(quotient, {loop.variable: affine(_ALONG)}), loop.lower, loop.upper)
        found = tables.get(key)
        length = outside(self.function).constant(loop.upper - loop.lower)
        if found is not None or not often or length is None or length < 1:
            return found
        held = sum(table.variable.bytes or 0 for table in tables.values())
        if held + length * quotient.dtype.itemsize > self.room:
            return None
        if not self.taken:
            self.taken.update(names_in(self.function))
        name, along = (fresh(wish, self.taken) for wish in ("quotient", f"{loop.variable}_ahead"))
        variable = Variable(name=name, dtype=quotient.dtype, shape=(affine(length),), scope="local", alignment=64)
        value = substitute(quotient, {loop.variable: affine(along)})
        fill = Assign(target=Place(name, (affine(along) - loop.lower,)), value=value)
        found = tables[key] = _Table(variable, replace(loop, variable=along, body=(fill,)))
        return found

    def is_alike(self, bound: Affine) -> bool:
        """Whether it is the same in all loops."""
        return bound.variables() <= self.unchanging

    def is_shared(self, expr: Expr, loop: For) -> bool:
        """Whether it is made of numbers and of elements of arguments that nothing writes, the same in all loops around, and may be computed in every iteration of the loop, whether it is run or not."""
        ranges, arguments = outside(self.function).enter(loop), self.arguments
        for node in walk(expr):
            match node:
                case Const() | IndexValue():
                    pass
                case Apply() if node.dtype.is_float:
                    pass
                case Read() if node.tensor in arguments:
                    if not _is_inside(node, arguments[node.tensor], ranges):
                        return False
                case _:
                    return False
        return variables_of(expr) <= self.unchanging | {loop.variable}


_ALONG = ""
"""The name of no variable: a quotient is the same along any."""


def _is_inside(read: Read, variable: Variable, ranges: Ranges) -> bool:
    """Whether the element is in its array in every iteration."""
    for subscript, extent in zip(read.subscripts, variable.shape, strict=True):
        if not isinstance(subscript, Affine):
            return False
        least, beyond = ranges.lowest(subscript), ranges.highest(subscript - extent)
        if least is None or least < 0 or beyond is None or beyond >= 0:
            return False
    return True
