"""Loops that scatter compute places and values a block ahead, in whole vectors: `h[min(i64(x[n] * B), B - 1)] += w[n] * v[n]` goes element by element, and so did all that it computes on the way.

Loop distribution and scalar expansion (Allen and Kennedy, "Optimizing Compilers for Modern Architectures", 2001), a block of iterations at a time, so that what is kept between both loops lies in L1. Updates keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, Node, Place, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.dtypes import i64
from polyml.expressions import Apply, Expr, IndexValue, Read, Subscript, apart, map_reads, reads_of, walk
from polyml.new_names import fresh
from polyml.operation_weights import weight_of
from polyml.records import dataclass, replace
from polyml.sets.affine import Affine, affine, maximum

__all__ = ["compute_ahead_of_scatters"]

SHARE = 4
"""Of the first-level cache, what blocks may take: inputs go through it meanwhile, and what is updated may live there."""

LEAST, MOST = 32, 512
"""Iterations of a block."""

KEPT = 2
"""Instructions that a value which is kept takes, about, and those that each update has to save beside, since it does not overlap with what is computed any more: measured with grids from 24 x 24 to 600 x 600."""


def compute_ahead_of_scatters(function: Function, *, vector_bytes: int, l1_bytes: int) -> Function:
    """The function with its innermost loops that scatter in two, where vectors of what they compute save more than is kept.

    Rewrite:
        for (n ..) h[i64(x[n] * B)] += w[n] * v[n];
        -> for (b = 0; b < N; b += 512) { vector for (n = b; ..) { p[n - b] = i64(x[n] * B); q[n - b] = w[n] * v[n]; }  for (n = b; ..) h[p[n - b]] += q[n - b]; }
    """
    lanes = vector_bytes // i64.itemsize
    if lanes < 2:
        return function
    return map_loops(function, _Blocks(names_in(function), lanes, l1_bytes).cut)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """taken: names. lanes: of numbers of 64 bits."""

    taken: set[str]
    lanes: int
    l1_bytes: int

    def cut(self, loop: For, ranges: Ranges, lanes: For | None) -> tuple[Node, ...] | None:
        if loop.kind != "sequential" or loop.step != 1 or lanes is not None or loop.if_numbers:
            return None
        steps = _steps(loop.body)
        if steps is None or not any(_gathered(step.target.subscripts) for step in steps):
            return None
        values = self.ahead(steps)
        if not values or self.saved(*values) <= KEPT * (len(values) + len(steps)):
            return None
        room = (self.l1_bytes or MOST * i64.itemsize) // SHARE // sum(value.dtype.itemsize for value in values)
        length = max(LEAST, min(MOST, 1 << max(room, 1).bit_length() - 1))
        trips = ranges.highest(loop.upper - loop.lower)
        if trips is not None and trips < LEAST:
            return None
        low = ranges.lowest(loop.upper - loop.lower)
        return self.in_blocks(loop, steps, values, length, may_be_empty=low is None or low < 0)

    def ahead(self, steps: Iterable[Assign]) -> tuple[Expr, ...]:
        """What is computed for subscripts and values and reads nothing that the loop writes, each once."""
        written = {step.target.variable for step in steps}
        found = dict[Expr, None]()
        for step in steps:
            for expr in (*(_rest(s) for s in step.target.subscripts if not isinstance(s, Affine)), step.value):
                if written.isdisjoint(read.tensor for read in reads_of(expr)) and self.saved(expr) > KEPT:
                    found[expr] = None
        return tuple(found)

    def saved(self, *values: Expr) -> float:
        """Instructions that vectors save, each operation counted once."""
        work = {node for value in values for node in walk(value) if isinstance(node, Apply)}
        return sum(map(weight_of, work)) * (self.lanes - 1) / self.lanes

    def in_blocks(
        self, loop: For, steps: Iterable[Assign], values: tuple[Expr, ...], length: int, *, may_be_empty: bool
    ) -> tuple[Node, ...]:
        """Whole blocks, and the loop as it was for what is left."""
        n, span = loop.variable, loop.upper - loop.lower
        if span.is_constant and span.constant <= length:
            return self.block(loop, steps, values, loop.lower, span.constant)
        first = fresh(f"{n}_block", self.taken)
        if may_be_empty:  # the end may lie anywhere before the beginning
            span = maximum([span, affine(0)])
        whole = loop.lower + span // length * length
        inner = replace(loop, lower=affine(first), upper=affine(first) + length)
        body = self.block(inner, steps, values, affine(first), length)
        blocks = For(variable=first, lower=loop.lower, upper=whole, step=length, body=body)
        return blocks, replace(loop, lower=whole)

    def block(
        self, loop: For, steps: Iterable[Assign], values: tuple[Expr, ...], first: Affine, length: int
    ) -> tuple[Node, ...]:
        """Values in vectors, and then the updates."""
        place = (affine(loop.variable) - first,)
        kept = {
            value: Variable(
                name=fresh(f"{loop.variable}_ahead", self.taken),
                dtype=value.dtype,
                shape=(affine(length),),
                scope="local",
            )
            for value in values
        }
        reads = {value: Read(variable.name, place, value.dtype) for value, variable in kept.items()}
        made = tuple(Assign(target=Place(variable.name, place), value=value) for value, variable in kept.items())
        updates = tuple(_with_reads(step, reads) for step in steps)
        body: tuple[Node, ...] = (replace(loop, kind="vector", body=made), replace(loop, body=updates))
        for variable in kept.values():
            body = (Allocate(variable=variable, body=body),)
        return body


def _steps(nodes: Iterable[Node]) -> tuple[Assign, ...] | None:
    """The assignments to arrays, with what registers hold in place of these; None where something else is there, or registers hold what is written here."""
    registers, steps = dict[str, Expr](), list[Assign]()
    own = set[str]()

    def known(read: Read) -> Expr:
        return registers.get(read.tensor, read)

    for node in _flat(nodes):
        match node:
            case Allocate(variable=Variable(scope="register", lanes=1) as variable):
                own.add(variable.name)
            case Assign(scan=None, across=False, reduction=None) if node.target.variable in own:
                if node.target.variable in registers:
                    return None
                registers[node.target.variable] = map_reads(node.value, known)
            case Assign(scan=None, across=False) if node.target.variable not in own:
                subscripts = (s if isinstance(s, Affine) else map_reads(s, known) for s in node.target.subscripts)
                steps.append(replace(node, target=node.target.at(subscripts), value=map_reads(node.value, known)))
            case _:
                return None
    written = {step.target.variable for step in steps}
    held = {read.tensor for value in registers.values() for read in reads_of(value)}
    return tuple(steps) if steps and written.isdisjoint(held) else None


def _flat(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        if isinstance(node, Block):
            yield from _flat(node.body)
            continue
        yield node
        if isinstance(node, Allocate):
            yield from _flat(node.body)


def _gathered(subscripts: Iterable[Subscript]) -> bool:
    return any(not isinstance(subscript, Affine) for subscript in subscripts)


def _rest(subscript: Expr) -> Expr:
    """Of a subscript what is not affine: neighbours of a place share it."""
    rest = apart(subscript)[1]
    return subscript if rest is None else rest


def _with_reads(step: Assign, reads: Mapping[Expr, Read]) -> Assign:
    def subscript(given: Subscript) -> Subscript:
        if isinstance(given, Affine):
            return given
        known, rest = apart(given)
        if rest is None or rest not in reads:
            return given
        read = reads[rest]
        return Apply("add", (read, IndexValue(known, i64)), i64) if known != Affine() else read

    target = step.target.at(map(subscript, step.target.subscripts))
    return replace(step, target=target, value=reads.get(step.value, step.value))
