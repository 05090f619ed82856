"""Indices of extrema in 32 bits: where each lane finds a winner of its own, a register counts beside numbers of no more bits, and the winner's index is stored when it is known.

Indices that results are made of have 64 bits. Kept so beside numbers of 32, each is two registers, and each mask of a comparison is widened for them; else there are only half as many lanes.

    vector s: y[s] = -1                          ->   vector s: place = -1
              for r: best, y[s] = better(x, r)                  for r: best, place = better(x, r)
                                                                y[s] = i64(place)
"""

from __future__ import annotations

from collections.abc import Iterator

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, UpdateArgument, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.privatize import is_short
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import map_places, nodes_of, subscript_variables, uses, walk_nodes, with_body
from polyml.dtypes import i32, i64
from polyml.expressions import Apply, Const, Read
from polyml.new_names import fresh
from polyml.records import dataclass, replace
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["for_short_sizes", "shorten_indices", "without_lanes"]

LONGEST = (1 << 31) - 1
"""The greatest index, and the greatest size, of 32 bits."""


def shorten_indices(function: Function) -> Function:
    """The function with indices of 32 bits in loops that are to have lanes, where they are known to fit and numbers have no more bits."""
    if not any(isinstance(node, UpdateArgument) for node in nodes_of(function)):
        return function
    body = _Shorten(names_in(function)).body(function.body, outside(function), None)
    return function if body is function.body else replace(function, body=body)


def for_short_sizes(function: Function) -> Function | None:
    """The function for sizes of 32 bits; None where indices of extrema are no shorter for that."""
    if all(most is not None for _, _, most in function.bounds):
        return None
    bounds = tuple((size, low, LONGEST if most is None else most) for size, low, most in function.bounds)
    short = replace(function, bounds=bounds)
    gains = any(
        isinstance(node, UpdateArgument)
        and node.candidate.dtype.bits <= i32.bits
        and is_short(node, there)
        and not is_short(node, here)
        for (node, there), (_, here) in zip(
            _with_ranges(function.body, outside(short)), _with_ranges(function.body, outside(function)), strict=True
        )
    )
    return short if gains else None


def without_lanes(function: Function) -> Function:
    """The function one element after another: little code for calls that hardly come."""

    def change(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return renewed(nodes, map(one, nodes))

    def one(node: Node) -> Node:
        if isinstance(node, For) and node.kind in ("vector", "jam"):
            node = replace(node, kind="sequential", factor=1)
        return with_body(node, change)

    return replace(function, body=change(function.body))


@dataclass(frozen=True, slots=True)
class _Shorten:
    taken: set[str]

    def body(self, nodes: tuple[Node, ...], ranges: Ranges, lanes: For | None) -> tuple[Node, ...]:
        """The nodes, inside of the loop whose iterations are lanes, if there is one."""
        if lanes is not None:
            for first, node in enumerate(nodes):
                last = _last_step(nodes, first, ranges, lanes)
                if last is not None:
                    assert isinstance(node, Assign)
                    before, found, after = nodes[:first], nodes[first : last + 1], nodes[last + 1 :]
                    return self.body((*before, *self.apart(node.target, found), *after), ranges, lanes)
        return renewed(nodes, (self.node(node, ranges, lanes) for node in nodes))

    def node(self, node: Node, ranges: Ranges, lanes: For | None) -> Node:
        if isinstance(node, For):
            ranges = ranges.enter(node)
            lanes = node if node.kind == "vector" else lanes
        return with_body(node, lambda body: self.body(body, ranges, lanes))

    def apart(self, argument: Place, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes, from the index's first value to its last step, with a register for it, which is stored behind them."""
        register = Variable(name=fresh(f"{argument.variable}_place", self.taken), dtype=i32, shape=(), scope="register")
        own = Place(register.name, ())
        steps = map_places(nodes[1:], place=lambda place: own if place == argument else place, read=lambda read: read)
        begin = Assign(target=own, value=Const(-1, i32))
        store = Assign(target=argument, value=Apply("cast", (Read(register.name, (), i32),), i64))
        return (Allocate(variable=register, body=(begin, *steps, store)),)


def _last_step(nodes: tuple[Node, ...], first: int, ranges: Ranges, lanes: For) -> int | None:
    """Where the last step towards the index is that this node begins with -1; None where it does not begin one, or something else has to do with the index meanwhile."""
    match nodes[first]:
        case Assign(target=argument, value=Const(value=-1), reduction=None, scan=None):
            pass
        case _:
            return None
    moving = subscript_variables(argument.subscripts)
    if lanes.variable not in moving or any(not isinstance(s, Affine) for s in argument.subscripts):
        return None
    last: int | None = None
    for position in range(first + 1, len(nodes)):
        steps = _steps(nodes[position : position + 1], argument, ranges)
        inside = {node.variable for node in walk_nodes(nodes[position : position + 1]) if isinstance(node, For)}
        if steps is None or moving & inside:
            break
        last = position if steps else last
    return last


def _steps(nodes: tuple[Node, ...], argument: Place, ranges: Ranges) -> int | None:
    """How many steps towards the index the nodes and those inside have; None where its variable has to do with anything else, or its index may be too long."""
    count = 0
    for node, here in _with_ranges(nodes, ranges):
        if isinstance(node, UpdateArgument) and node.argument == argument:
            short = node.candidate.dtype.bits <= i32.bits and not node.across and is_short(node, here)
            own = [use for use in uses(node) if use.variable == argument.variable]
            if not short or len(own) > 1:
                return None
            count += 1
        elif any(use.variable == argument.variable for use in uses(node)):
            return None
    return count


def _with_ranges(nodes: tuple[Node, ...], ranges: Ranges) -> Iterator[tuple[Node, Ranges]]:
    """All nodes, parents first, and what is known of loops' variables there."""
    for node in nodes:
        yield node, ranges
        match node:
            case For():
                yield from _with_ranges(node.body, ranges.enter(node))
            case If():
                yield from _with_ranges((*node.then, *node.otherwise), ranges)
            case Allocate() | Block():
                yield from _with_ranges(node.body, ranges)
            case _:
                pass
