"""Innermost loops that only add up are unrolled a little: counting and jumping take issue slots that the sums of a register tile would use.

So are loops of a few iterations around one whose length they decide, such as the phases of a window's row, of which one has a tap more: all have a known length then.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import assert_never

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Prefetch, UpdateArgument
from polyml.codegen.passes.sums.chained_sums import IN_FLIGHT
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import have_no_bodies, subscript_variables, with_body
from polyml.expressions import Apply, Expr, ops_in, reads_of, substitute
from polyml.operation_weights import BRANCHING
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.turns import MOST_GAP

__all__ = ["unroll_sums"]

LEAST = 4
"""A loop of fewer sums waits for their latency anyway."""

LEAST_SHARED = 9
"""Of sums that share one vector: up to eight wait for the one before (4 cycles, two a cycle) with slots to spare for counting, and read little. Not where sizes are symbolic:
distances of rows are no constants then, and batches of 128 x 128 took 8 % longer."""

LARGE_PART = 2
"""The part of the registers that sums of one vector may take and be unrolled: LLVM adds each product into the register that its broadcast came in, so that copies move sums about, and with more of them some go to memory and back in each round. Zen 3, f32, sums of
43 terms in tiles of 9, 10, 11, 12 and 13 rows by one vector: 67, 68, 67, 68 and 60 GFLOP/s in copies of four, 80, 75, 81, 80 and 80 in none; of six rows by two vectors no sum has moved."""

AT_ONCE = 4
"""Registers of terms that are made apart from their sums, beside sums and vectors: two of terms, and their broadcasts. LLVM loads the next copy's vectors early, and where there is no room for them some sums go to memory and back in each copy.
Zen 3, squares of differences (k-means) in tiles of 6 x 2 of any size: 4.03 ms in two copies, 2.76 in none; of 5 x 2 3.47 and 2.82."""

MOST = 48
"""Sums in the unrolled body, at most: beyond, compiling takes longer and nothing runs faster."""

EXTREMUM = 3
"""As so many sums a minimum or a maximum counts: candidates are made first, and NaN wins."""

MANY = 16
"""Sums from which on two copies are enough, so that a rest, another copy of a large body, is avoided where another number of copies leaves none."""

ALONE = 8
"""Sums that are unrolled inside another loop, too, when there is a rest."""

PHASES = 4
"""Iterations of a loop that decides how often the loop inside of it runs."""

_FACTOR = 4

_FACTOR_ANY = 2
"""Where sizes are symbolic, unless chains need more: such a kernel has dozens of tiles, and two copies run as fast as four (products of 5 to 500: 0.99 of the time); without copies they take 2 to 5 % longer."""

_FACTOR_BRANCHING = 2
"""Of terms with a function that ends its block, so that nothing moves from one to the next. Zen 3, sums and maxima of exp(x[n, k] + y[k, m]), of 9 to 20 terms in tiles of four rows: two copies take 0.73 to 1.02 of the time of four. Of tanh, which is straight code, 1.0 to 1.07."""

RARE = 16
"""Loops with less than one of so many of all sums stay as they are: edges of tiles, which would be up to half of the code. Zen 3, 111 contractions and convolutions: 0.998 of the time to run in the mean, 0.86 of the time to compile."""

LATE = 16
"""How much more sums count there that wait for each other, by what is missing of those in flight: one to seven sums without chains."""

WRITTEN = 144
"""Sums of a short part of a sum that is written out whole, at most. Zen 3, 12 rows times 4000 x 4000, twelve rows at a time: in three rounds of four 7.1 ms, written out 5.8; six times 4096 x 4096 6.7 and 5.6. Eight rows, two rounds: no difference."""

ROUNDS = 2
"""Rounds up to which such a part stays a loop."""

SHORT = 32
"""Iterations up to which a loop for a rest would show: fewer copies leave none in most blocks of a sum. Of more, those of one sum in 120 steps of cholesky, nothing runs faster written out, and compiling takes longer."""


def unroll_sums(function: Function, *, chains: bool = False, vector_registers: int = 32) -> Function:
    """The function with its innermost loops in lanes marked for unrolling, where they do nothing but reductions into elements that stay put; the copies
    follow one another, so that each sum keeps its order. chains: few sums will be several chains each (passes/sums/chained_sums.py). vector_registers: that sums and what they read share."""
    few, held = IN_FLIGHT if chains else 0, vector_registers // LARGE_PART
    rule = _Rule(LEAST, few, _FACTOR_ANY, MOST, vector_registers)
    if not function.sizes:
        rule = _Rule(LEAST_SHARED, few, _FACTOR, held, vector_registers)
        rule = replace(rule, rare=_rare_sums(function, few))
    body = _body(function.body, outside(function), rule, lane=None, nested=False)
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Rule:
    """shared: sums of one vector that are enough; held: and the most of these. few: sums below which copies become chains. copies: of more sums, at most. registers: of vectors. rare: loops that stay as they are, by id."""

    shared: int
    few: int
    copies: int
    held: int
    registers: int
    rare: Set[int] = frozenset()


def _rare_sums(function: Function, few: int) -> Set[int]:
    """The loops of sums, by id, that are a small part of what the function adds up; none where some loop may have no iterations, such as those of a triangle, which `ranges` does not count (cholesky took 1.03 of the time)."""
    found: dict[int, float] = {}
    total, box = 0, True

    def visit(nodes: tuple[Node, ...], ranges: Ranges, times: int) -> None:
        nonlocal total, box
        for node in nodes:
            match node:
                case For():
                    span = node.upper - node.lower
                    trips, box = ranges.highest(span), box and ranges.is_positive(span)
                    inside = times * (1 if trips is None else -(-trips // node.step))
                    sums = sum(isinstance(inner, Assign) and inner.reduction is not None for inner in node.body)
                    if sums:
                        total += inside * sums
                        found[id(node)] = inside * sums * max(1, LATE * (few - sums) / sums)
                    if not have_no_bodies(node.body):
                        visit(node.body, ranges.enter(node), inside)
                case If():
                    visit((*node.then, *node.otherwise), ranges, times)
                case Allocate() | Block():
                    visit(node.body, ranges, times)
                case Assign() | UpdateArgument() | Prefetch():
                    pass
                case _:
                    assert_never(node)

    visit(function.body, outside(function), 1)
    return {loop for loop, work in found.items() if box and work * RARE < total}


def _body(nodes: tuple[Node, ...], ranges: Ranges, rule: _Rule, *, lane: str | None, nested: bool) -> tuple[Node, ...]:
    return renewed(nodes, (_node(node, ranges, rule, lane=lane, nested=nested) for node in nodes))


def _node(node: Node, ranges: Ranges, rule: _Rule, *, lane: str | None, nested: bool) -> Node:
    """lane: the variable of the vector loop around the node. nested: the node is all that a loop of sums in lanes has."""
    if not isinstance(node, For):
        return with_body(node, lambda body: _body(body, ranges, rule, lane=lane, nested=False))
    if id(node) in rule.rare:
        return node
    if lane is not None and node.kind == "sequential" and _only_sums(node, lane, rule):
        factor = min(_copies(node, rule), MOST // sum(_weight(inner) for inner in node.body))
        trips = ranges.highest(node.upper - node.lower)
        if trips is not None and trips <= SHORT * node.step and ranges.constant(node.upper - node.lower) is None:
            factor = next((f for f in range(factor, 1, -1) if trips % (f * node.step) == 0), factor)
        # With a second loop for the rest inside another, or under a condition, LLVM's allocator was seen to keep most sums of a large tile in memory.
        nested = nested or not ranges.is_positive(node.upper - node.lower)
        if len(node.body) >= MANY:
            times = ranges.multiple(node.upper - node.lower)
            factor = next((f for f in range(factor, 1, -1) if times % (f * node.step) == 0), factor)
        ragged = factor > 1 and len(node.body) > ALONE and ranges.multiple(node.upper - node.lower) % factor
        left = nested and (ragged or _overlaps(node))
        left = left or (trips is not None and trips * len(node.body) <= MOST and _sums_rows(node, lane, trips))
        if _is_short_part(node, ranges.constant(node.upper - node.lower), factor):
            return _marked(node, ranges.constant(node.upper - node.lower) or factor)
        return node if factor < 2 or left or (trips is not None and trips < 2 * factor) else _marked(node, factor)
    if lane is not None and _is_uneven(node, ranges):
        return _marked(node, PHASES)
    inner = ranges.enter(node)
    lanes = node.variable if node.kind == "vector" and node.width > 1 else lane
    sums = lane is not None and node.kind == "sequential" and len(node.body) == 1
    return with_body(node, lambda body: _body(body, inner, rule, lane=lanes, nested=sums))


def _copies(loop: For, rule: _Rule) -> int:
    """How many copies of its sums the loop may have."""
    most = rule.copies if rule.copies * len(loop.body) >= rule.few else _FACTOR
    return min(most, _FACTOR_BRANCHING) if _branches(loop) else most


def _branches(loop: For) -> bool:
    """Whether a test for rare arguments ends the block of one of its terms."""
    return any(isinstance(node, Assign) and ops_in(node.value) & BRANCHING for node in loop.body)


def _is_uneven(node: For, ranges: Ranges) -> bool:
    """Whether a loop of a few iterations has nothing but a loop of sums whose length depends on its variable."""
    match node:
        case For(kind="sequential", body=(For(kind="sequential") as inner,)):
            trips, depends = ranges.constant(node.upper - node.lower), (inner.upper - inner.lower).variables()
            sums = [n for n in inner.body if isinstance(n, Assign) and n.reduction is not None]
            few = trips is not None and trips <= PHASES * node.step and len(sums) <= MOST
            return few and node.variable in depends and len(sums) == len(inner.body)
        case _:
            return False


def _is_short_part(loop: For, trips: int | None, factor: int) -> bool:
    """Whether it is a short part of a sum, in a tile of few elements, which would take several rounds: a few rows that are read from end to end, mostly. Of functions with tests, counting is little beside them."""
    part = loop.step == 1 and not loop.lower.is_constant and not _branches(loop)
    return part and trips is not None and ROUNDS * factor < trips <= SHORT and trips * len(loop.body) <= WRITTEN


def _marked(loop: For, factor: int) -> For:
    return replace(loop, kind="unroll", factor=factor)


def _overlaps(loop: For) -> bool:
    """Whether so many sums that registers are full read in one step what others read in the next (windows): LLVM would keep that in registers too, from copy to copy, and the sums in memory."""
    reads = {read for node in loop.body if isinstance(node, Assign) for read in reads_of(node.value)}
    later = {loop.variable: affine(loop.variable) + loop.step}
    return len(loop.body) > ALONE and any(
        moved != read and moved in reads for read in reads for moved in (substitute(read, later),)
    )


def _sums_rows(loop: For, lane: str, trips: int) -> bool:
    """Whether lanes go across short rows, which the loop goes along: written out (as LLVM does with few steps), what its steps read with gaps is loaded once and shuffled (codegen/llvm/memory/phases.py); else each is a load for each lane."""
    if trips > MOST_GAP:
        return False
    places = [read.subscripts for node in loop.body if isinstance(node, Assign) for read in reads_of(node.value)]
    along = [
        place for *_, place in filter(None, places) if isinstance(place, Affine) and place.stride(loop.variable) == 1
    ]
    return any(
        len(place) > 1 and place[-1] in along and any(lane in subscript_variables((s,)) for s in place[:-1])
        for place in places
    )


def _weight(node: Node) -> int:
    return EXTREMUM if isinstance(node, Assign) and node.reduction in ("min", "max") else 1


def _only_sums(loop: For, lane: str, rule: _Rule) -> bool:
    """Whether the loop does nothing else than sums that stay put, and enough of them, or few enough."""
    sums = [node for node in loop.body if isinstance(node, Assign) and node.reduction is not None]
    moving = any(loop.variable in subscript_variables(node.target.subscripts) for node in sums)
    if moving or not 0 < len(sums) == len(loop.body):
        return False
    if len(sums) < rule.few and all(node.reduction == "sum" for node in sums):
        return True
    if len(sums) < LEAST:
        return False
    vectors = {read for node in sums for read in reads_of(node.value) if lane in subscript_variables(read.subscripts)}
    if any(_is_apart(node.value, lane) for node in sums) and len(sums) + 2 * len(vectors) + AT_ONCE > rule.registers:
        return False
    return len(vectors) > 1 or (sum(map(_weight, sums)) >= rule.shared and len(sums) <= rule.held)


def _is_apart(term: Expr, lane: str) -> bool:
    """Whether what is added up is made in a register of its own, for each sum: it is no product that is added by the instruction that makes it, of factors that rows or vectors share."""
    match term:
        case Apply(op="neg", args=(other,)):
            return _is_apart(other, lane)
        case Apply(op="mul", args=factors):
            return any(_is_of_one_sum(factor, lane) for factor in factors)
        case _:
            return _is_of_one_sum(term, lane)


def _is_of_one_sum(value: Expr, lane: str) -> bool:
    """Whether a value is made of elements of both operands, of which one differs from lane to lane."""
    differ = {lane in subscript_variables(read.subscripts) for read in reads_of(value)}
    return isinstance(value, Apply) and len(differ) == 2
