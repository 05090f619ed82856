"""The parts that a vector loop is cut into: a masked first vector where others lie at lines, a main loop over several vectors at once, a loop over single vectors, and a masked end."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod

from polyml.codegen.loops import Allocate, Assign, For, If, Node
from polyml.codegen.passes.unrolling.jam import jam
from polyml.codegen.passes.vectors.in_turn import IN_TURN, is_long
from polyml.codegen.passes.vectors.overlap import may_run_twice
from polyml.codegen.passes.vectors.privatize import Accumulators, Partial, private_body
from polyml.codegen.passes.vectors.streams import LINE, Leads
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, IndexValue
from polyml.operation_weights import operations_of
from polyml.records import dataclass, replace
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, maximum, minimum
from polyml.target import FEW_REGISTERS

__all__ = ["VectorPlan", "loops_of", "plan_parts", "with_lanes"]

_INDEPENDENT = 4
"""Accumulators that hide the latency of one addition: at least so many vectors are in flight in a reducing loop."""

_OF_FUNCTIONS = 2
"""The same where a vector's instructions take half of that latency themselves, and registers are few: what accumulators do not need holds constants of functions. Zen 3, sums of exp: 5.9 cycles a vector, with four 6.7, three 6.2, one 5.9."""

_HEAVY = 8.0
"""Instructions of a vector that take half of an addition's latency: four a cycle."""

_STRIP = 32
"""A loop of an unknown number of iterations, but fewer vectors than this, runs one by one: code for several at once would hardly be used."""


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """Width and number of vectors of one loop, and its parts as ends of ranges: masked until `start`, main until `middle`, single vectors until `end`,
    then masked. in_turn: the main loop's vectors are the parts of one that is as long as all of them. overlapping: whole vectors at both ends, which overlap the others, take the place of masked ones. lines: the main part is whole lines, and no other part's stores go past the caches: a line of which some does is written to memory twice."""

    width: int
    vectors: int
    start: Affine
    middle: Affine
    end: Affine
    has_main: bool
    has_single: bool
    has_tail: bool
    has_head: bool = False
    in_turn: bool = False
    overlapping: bool = False
    lines: bool = False


def plan_parts(
    loop: For,
    ranges: Ranges,
    width: int,
    *,
    leads: Leads,
    vector_bytes: int,
    sums: int,
    window: int = 0,
    registers: int = 32,
) -> VectorPlan:
    """How the loop is cut. leads: what is known of where rows begin. sums: of results that all lanes share. window: Target's; 0: vectors are taken one after the other. registers: of vectors."""
    in_turn = not sums and loop.factor == 1 and is_long(loop, window)
    span = loop.upper - loop.lower
    trips = ranges.constant(span)
    # Copies of a jammed loop around have accumulators of their own.
    copies = prod(outer.factor for outer in ranges.loops if outer.kind == "jam")
    least = IN_TURN if in_turn else loop.factor
    independent = _independent(loop, registers) if sums and not _has_loops(loop.body) else 1
    vectors = max(least, -(-independent // copies))
    if trips is None and not sums and not _has_loops(loop.body):
        most = ranges.highest(span)
        vectors = 1 if most is not None and most < _STRIP * width else vectors
    # Masks as wide as a line cost nothing; of vectors shorter than that they are vectors themselves (AVX2).
    twice = trips is not None and trips >= width and not sums and 2 * vector_bytes <= LINE and may_run_twice(loop)
    head = leads.before_aligned(loop, ranges, width, vector_bytes, sums=sums, twice=twice)
    if head is not None:
        start = loop.lower + head
        if trips is None or trips < leads.block:
            start = minimum([start, loop.upper])
        whole = loop.upper - start
        block = lcm(vectors * width, leads.block)
        middle, end = start + whole // block * block, start + whole // width * width
        first, lines = not twice or start != loop.lower, leads.block > width
        return VectorPlan(width, vectors, start, middle, end, True, block > width, True, first, in_turn, twice, lines)
    if trips is None:
        low = ranges.lowest(span)
        span = span if low is not None and low >= 0 else maximum([span, affine(0)])
        middle = loop.lower + span // (vectors * width) * (vectors * width)
        end = loop.lower + span // width * width
        many = vectors > 1
        return VectorPlan(
            width, vectors, loop.lower, middle if many else loop.lower, end, many, True, True, in_turn=in_turn
        )
    if trips < width:
        width = max(2, 1 << (trips - 1).bit_length())
    vectors = max(1, min(vectors, trips // width))
    middle = loop.lower + trips // (vectors * width) * (vectors * width)
    end = loop.lower + trips // width * width
    main = trips >= vectors * width
    single = trips // width % vectors > 0
    return VectorPlan(width, vectors, loop.lower, middle, end, main, single, trips % width > 0, in_turn=in_turn)


def _independent(loop: For, registers: int) -> int:
    """Accumulators of a loop that reduces; minima and maxima are found four at a time (llvm/reductions/extrema.py)."""
    nodes = list(walk_nodes(loop.body))
    only_sums = all(isinstance(n, Allocate) or (isinstance(n, Assign) and n.reduction in (None, "sum")) for n in nodes)
    if registers > FEW_REGISTERS or not only_sums:
        return _INDEPENDENT
    work = sum(operations_of(node.value) for node in nodes if isinstance(node, Assign))
    return _OF_FUNCTIONS if work >= _HEAVY else _INDEPENDENT


def loops_of(
    plan: VectorPlan,
    loop: For,
    partials: tuple[Partial, ...],
    accumulators: Accumulators,
    *,
    leads: Leads,
    taken: set[str],
) -> Iterator[Node]:
    """The masked first vector, the main loop, the loop over single vectors, and the masked one."""
    width = plan.width
    body = with_lanes(loop.body, width)
    body = private_body(body, partials)
    shape = replace(loop, kind="vector", factor=1, width=width)
    # All parts but the main one use the first accumulators.
    first = accumulators.names[:1]
    if plan.has_head:
        body = leads.marked(body, loop, width)
    ends = _in_cache(body) if plan.lines else body
    single = jam(ends, loop.variable, [affine(loop.variable)], taken=set(), names=first)
    if plan.has_head:
        before = jam(ends, loop.variable, [affine(loop.variable)], taken=set(), names=accumulators.names[-1:])
        if plan.overlapping:
            ahead = (plan.start - loop.lower + (width - 1)) // width * width
            yield replace(shape, upper=loop.lower + ahead, step=width, body=before)
        else:
            yield _head(replace(shape, upper=plan.start, step=width, masked=True, body=before), loop.lower)
    start = plan.start
    if plan.has_main and plan.in_turn:
        whole = plan.vectors * width
        copies = jam(with_lanes(body, whole), loop.variable, [affine(loop.variable)], taken=taken)
        yield replace(shape, lower=start, upper=plan.middle, step=whole, width=whole, body=copies)
        start = plan.middle
    elif plan.has_main:
        values = [affine(loop.variable) + u * width for u in range(plan.vectors)]
        copies = jam(body, loop.variable, values, taken=taken, names=accumulators.names)
        yield replace(shape, lower=start, upper=plan.middle, step=plan.vectors * width, body=copies)
        start = plan.middle
    if plan.has_head and partials:
        rest = replace(shape, lower=start, step=plan.vectors * width, masked=True)
        yield _in_turns(rest, ends, accumulators)
        return
    if plan.has_single:
        yield replace(shape, lower=start, upper=plan.end, step=width, body=single)
        start = plan.end
    if plan.has_tail and plan.overlapping:
        left = (loop.upper - plan.end + (width - 1)) // width * width
        yield replace(shape, lower=loop.upper - left, step=width, body=single)
    elif plan.has_tail:
        yield replace(shape, lower=start, step=width, masked=True, body=single)


def _in_cache(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes without stores past the caches."""

    def visit(node: Node) -> Node:
        if isinstance(node, Assign) and node.streaming:
            return replace(node, streaming=False)
        return with_body(node, _in_cache)

    return renewed(nodes, map(visit, nodes))


def _in_turns(rest: For, body: tuple[Node, ...], accumulators: Accumulators) -> For:
    """What is left behind the main loop of a sum that starts where vectors lie at lines: once more as many vectors, under masks. So an element's accumulator, and its order there, are the same wherever the array lies;
    only lanes are rotated, and what combines them by halves does not see that."""
    made: list[Node] = []
    for u, names in enumerate(accumulators.names):
        here = affine(rest.variable) + u * rest.width
        inside = Apply("lt", (IndexValue(here, i64), IndexValue(rest.upper, i64)), boolean)
        made.append(If(condition=inside, then=jam(body, rest.variable, [here], taken=set(), names=(names,))))
    return replace(rest, body=tuple(made))


def _head(part: For, first: Affine) -> For:
    """The part before the first whole vector, from iteration `first` on: that vector's predecessor, without the lanes before `first`, so that it lies as whole ones do and its accesses cross lines where theirs do."""
    inside = Apply("le", (IndexValue(first, i64), IndexValue(affine(part.variable), i64)), boolean)
    lower = part.upper - (part.upper - first + (part.width - 1)) // part.width * part.width
    return replace(part, lower=lower, body=(If(condition=inside, then=part.body),))


def with_lanes(nodes: tuple[Node, ...], width: int) -> tuple[Node, ...]:
    """The nodes with lanes in the registers and the scratch memory that they make."""

    def visit(node: Node) -> Node:
        node = with_body(node, lambda body: tuple(visit(child) for child in body))
        if isinstance(node, Allocate):
            return replace(node, variable=replace(node.variable, lanes=width))
        return node

    return tuple(visit(node) for node in nodes)


def _has_loops(nodes: tuple[Node, ...]) -> bool:
    return any(isinstance(node, For) for node in walk_nodes(nodes))
