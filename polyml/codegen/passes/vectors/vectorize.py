"""Loops asked to be vector loops get lanes: a main loop over several vectors at once, a loop over single vectors, and a masked end.

A register tile whose columns are no whole vectors has a last vector that overlaps the one before instead (passes/vectors/overlap.py).

Notation stays scalar: inside a vector loop of width W its variable stands for W consecutive values, registers that live inside have W lanes, and emitters choose
broadcast, contiguous, strided or gathering accesses by strides. A reduction whose element does not move along the lanes goes into registers of W
lanes (accumulators) around the loops, which are combined at the end (passes/vectors/privatize.py). A loop that cannot have lanes is left sequential, with a Note.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Variable
from polyml.codegen.passes.simplify import simplify_nodes
from polyml.codegen.passes.unrolling.jam import CannotJam, jam, names_in
from polyml.codegen.passes.vectors.boundaries import cut_interior, depends_on, over_hull, over_lanes
from polyml.codegen.passes.vectors.check import NotVectorizable, check_lanes, lane_dtypes
from polyml.codegen.passes.vectors.overlap import clamped_tiles, overlapping_starts, overlapping_tiles, settled
from polyml.codegen.passes.vectors.parts import VectorPlan, loops_of, plan_parts, with_lanes
from polyml.codegen.passes.vectors.places import counted_steps, counts_steps
from polyml.codegen.passes.vectors.privatize import Accumulators, shared_targets
from polyml.codegen.passes.vectors.ragged_sums import has_long_sums, held
from polyml.codegen.passes.vectors.streams import Leads
from polyml.codegen.passes.vectors.window_edges import over_taps
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import variables_by_name, walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, IndexValue, Read, reads_of
from polyml.new_names import fresh
from polyml.records import replace
from polyml.renewed import renewed
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine, maximum, minimum
from polyml.shown import counted

__all__ = ["vectorize"]

_LONG = 4
"""An interior of so many vectors is worth code of its own."""

_FEW_TERMS = 16
"""Terms of a sum that its tile's addresses take as long as: those of four rows and three vectors are 130 instructions. Zen 3, f32, of a row's windows with 2, 5, 9, 15 weights, vectors that overlap took 1.43, 1.24, 1.32, 1.11 of the time, five filters of 25 weights 0.89."""

_ROWS = 16
"""Rows that are copied side by side, at most: blocks of so many columns and rows are transposed in registers."""


def vectorize(
    function: Function,
    *,
    vector_bytes: int,
    registers: int = 32,
    window: int = 0,
    precise: bool = False,
    large: bool = False,
) -> tuple[Function, tuple[Note, ...]]:
    """The function with its vector loops carried out: their width is `vector_bytes` over the size of the widest element that a lane computes with.

    That the lanes are independent, reductions apart, is the schedule's promise. Loops inside a vector loop stay as they are; a vector loop inside another
    is sequential.

    Args:
        vector_bytes: of one vector register, a power of two. registers: how many there are. window: Target's; 0: vectors are never taken in turn.
        precise: floating-point sums and products keep their order, so that they cannot have lanes.
        large: what codegen/passes/large.py asks for holds.
    """
    taken = names_in(function)
    arguments = {v.name: v for v in function.arguments}
    leads_ = Leads(arguments, taken, large, frozenset(function.sizes), scratch=_scratch(function.body))
    pass_ = _Vectorize(vector_bytes, registers, window, precise, taken, leads_, variables_by_name(function))
    body = pass_.body(function.body, outside(function))
    if body is function.body:
        return function, tuple(pass_.notes)
    leads = (*function.leads, *pass_.leads.found.values())
    needs = tuple(sorted(leads_.needs, key=str))
    return replace(function, body=body, leads=leads, needs=needs), tuple(pass_.notes)


def _scratch(nodes: tuple[Node, ...]) -> dict[str, Variable]:
    """Memory of the function's own that exists as long as it runs, by name."""
    found: dict[str, Variable] = {}
    for node in nodes:
        if isinstance(node, Allocate) and node.variable.scope == "local":
            found |= {node.variable.name: node.variable, **_scratch(node.body)}
    return found


class _Vectorize:
    def __init__(
        self,
        vector_bytes: int,
        registers: int,
        window: int,
        precise: bool,
        taken: set[str],
        leads: Leads,
        variables: dict[str, Variable],
    ) -> None:
        self.vector_bytes = vector_bytes
        self.registers = registers
        self.window = window
        self.precise = precise
        self.taken = taken
        self.leads = leads
        self.variables = variables
        self.types = {name: variable.dtype for name, variable in variables.items()}
        self.notes: list[Note] = []
        self.widest: dict[tuple[str, int], tuple[tuple[Node, ...], int]] = {}

    def body(self, nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
        return renewed(nodes, (new for node in nodes for new in self.node(node, ranges)))

    def node(self, node: Node, ranges: Ranges) -> tuple[Node, ...]:
        if not isinstance(node, For):
            return (with_body(node, lambda body: self.body(body, ranges)),)
        if node.kind == "vector" and node.width == 1:
            try:
                return self.pieces(node, ranges)
            except (NotVectorizable, CannotJam) as refusal:
                self.notes.append(Note("vector", _subject(node), f"the loop stays scalar: {refusal}"))
                node = replace(node, kind="sequential", factor=1)
        inner = ranges.enter(node)
        return (with_body(node, lambda body: self.body(body, inner)),)

    def pieces(self, loop: For, ranges: Ranges) -> tuple[Node, ...]:
        """The loops that replace `loop`, its edges apart where inner bounds are different there."""
        if loop.step != 1:
            raise NotVectorizable(f"its step is {loop.step}")
        loop = replace(loop, body=_without_vectors(loop.body))
        width = self.width(loop)
        known, made = len(self.notes), list[Node]()
        for piece in cut_interior(loop, ranges, grain=width, at_least=_LONG * width):
            body = simplify_nodes(piece.body, ranges.enter(piece))
            piece = replace(piece, body=body)
            try:
                if has_long_sums(piece, ranges, piece.factor * width):
                    made += self.long_sums(piece, ranges)
                    continue
                piece = over_hull(piece, ranges)
                if depends_on(piece):
                    made += self.windows(piece, ranges) or self.strips(piece, ranges)
                else:
                    made += self.vector_loop(piece, ranges)
            except (NotVectorizable, CannotJam):
                del self.notes[known:]
                raise
        return tuple(made)

    def windows(self, loop: For, ranges: Ranges) -> tuple[Node, ...]:
        """A loop over single vectors, the last of which overlaps the one before, with those at the edges of windows apart; and for rows of less than a vector a masked one. Nothing where that does not do."""
        width, span = self.width(loop), loop.upper - loop.lower
        if ranges.constant(span) is not None or self.reduces_across(loop, ranges):
            return ()
        body = settled(loop, self.types, self.taken, at_once=False)
        taps = None if body is None else over_taps(replace(loop, body=with_lanes(body, width)), ranges)
        if taps is None:
            return ()
        check_lanes(taps.around, ())
        strip = fresh(f"{loop.variable}_strip", self.taken)
        first = minimum([affine(strip), loop.upper - width])
        inside, around = (
            replace(made, kind="vector", factor=1, lower=first, upper=first + width, step=width, width=width)
            for made in (taps.inside, taps.around)
        )
        either = If(condition=taps.all_whole(first, first + (width - 1)), then=(inside,), otherwise=(around,))
        vectors = replace(loop, variable=strip, step=width, kind="sequential", factor=1, body=(either,))
        short = replace(around, lower=loop.lower, upper=loop.upper, masked=True)
        long = Apply("le", (IndexValue(affine(width), i64), IndexValue(span, i64)), boolean)
        how = f"{width} lanes, those that have whole windows apart, the last ones overlapping at the end"
        self.notes.append(Note("vector", _subject(loop), how))
        return (If(condition=long, then=(vectors,), otherwise=(short,)),)

    def strips(self, loop: For, ranges: Ranges) -> tuple[Node, ...]:
        """A loop over single vectors, whose inner loops run as far as some lane does; and the masked end."""
        width = self.width(loop)
        if self.reduces_across(loop, ranges):
            raise NotVectorizable("the bounds of an inner loop differ between lanes that share a sum")
        plan = self.plan(replace(loop, factor=1), ranges, width, sums=0)
        start = fresh(f"{loop.variable}_strip", self.taken)
        strip = replace(loop, lower=affine(start), upper=affine(start) + plan.width, factor=1)
        outer = replace(
            loop, variable=start, upper=plan.end, step=plan.width, kind="sequential", factor=1, body=(strip,)
        )
        inside = ranges.enter(outer)
        made: list[Node] = []
        if plan.has_main or plan.has_single:
            strip = over_lanes(strip)
            strip = replace(strip, body=simplify_nodes(strip.body, inside.enter(strip)))
            made.append(replace(outer, body=self.vector_loop(strip, inside)))
        if plan.has_tail:
            tail = over_lanes(replace(loop, lower=plan.end, factor=1))
            tail = replace(tail, body=simplify_nodes(tail.body, ranges.enter(tail)))
            made += self.vector_loop(tail, ranges)
        return tuple(made)

    def long_sums(self, loop: For, ranges: Ranges) -> Iterator[Node]:
        """A loop over register tiles of several vectors, without conditions where all of a tile's lanes are in range; one over single vectors; and the masked end. Where their number is known the last two are one tile."""
        width = self.width(loop)
        if self.reduces_across(loop, ranges):
            raise NotVectorizable("the bounds of an inner loop differ between lanes that share a sum")
        trips, start, step = ranges.constant(loop.upper - loop.lower), loop.lower, loop.factor * width
        known = ranges.enter(loop)
        if trips is not None:
            if trips > step:
                start += trips // step * step
                yield self.tiles(replace(loop, upper=start), ranges, known)
            if start != loop.upper:
                yield from self.lanes_at_end(replace(loop, lower=start), ranges, known)
            return
        for factor in dict.fromkeys((loop.factor, 1)):
            lanes, left = factor * width, loop.upper - start
            least = ranges.lowest(left)
            end = start + (left if least is not None and least >= 0 else maximum([left, affine(0)])) // lanes * lanes
            yield self.tiles(replace(loop, lower=start, upper=end, factor=factor), ranges, known)
            start = end
        yield from self.lanes_at_end(replace(loop, lower=start, factor=1), ranges, known)

    def lanes_at_end(self, loop: For, ranges: Ranges, known: Ranges) -> tuple[Node, ...]:
        """The lanes behind whole tiles: a lower tile, or one masked vector."""
        width, trips = self.width(loop), ranges.constant(loop.upper - loop.lower)
        loop = over_lanes(held(loop, known, self.variables, self.taken))
        loop = replace(loop, body=simplify_nodes(loop.body, ranges.enter(loop)))
        # Scratch memory has as many lanes in all parts.
        if trips is not None and (trips >= width or not isinstance(loop.body[0], Allocate)):
            return self.vector_loop(loop, ranges)
        check_lanes(loop, ())
        plan = VectorPlan(width, 1, loop.lower, loop.lower, loop.lower, False, False, True)
        none = Accumulators.make((), width, 1, self.taken)
        return tuple(loops_of(plan, loop, (), none, leads=self.leads, taken=self.taken))

    def tiles(self, loop: For, ranges: Ranges, known: Ranges) -> For:
        """The loop, a whole number of tiles of `factor` vectors, as one over tiles, inside of which all lanes share what all of them run."""
        start, step = affine(fresh(f"{loop.variable}_tile", self.taken)), loop.factor * self.width(loop)
        outer = replace(loop, variable=start.name or "", step=step, kind="sequential", factor=1)
        inside = ranges.enter(outer)
        tile = over_lanes(held(replace(loop, lower=start, upper=start + step), known, self.variables, self.taken))
        tile = replace(tile, body=simplify_nodes(tile.body, inside.enter(tile)))
        return replace(outer, body=self.vector_loop(tile, inside))

    def width(self, loop: For) -> int:
        key = loop.variable, id(loop.body)
        if key not in self.widest:  # pieces of one loop share its body, which is kept for its id
            widest = max((dtype.itemsize for dtype in lane_dtypes(loop)), default=self.vector_bytes)
            self.widest[key] = loop.body, widest
        widest = self.widest[key][1]
        if self.vector_bytes <= widest:
            raise NotVectorizable("one element fills a vector")
        width = self.vector_bytes // widest
        return min(width, _ROWS) if _copied_row(loop) is not None else width

    def vector_loop(self, loop: For, ranges: Ranges, *, counts: bool = True) -> tuple[Node, ...]:
        """The loops that replace `loop`, in lanes. counts: whether places of extrema may be counted in steps."""
        inner = ranges.enter(loop)
        partials = shared_targets(loop, inner, precise=self.precise, vector_bytes=self.vector_bytes)
        check_lanes(loop, partials)
        overlapped = None if partials else self.overlapped(loop, ranges)
        if overlapped is not None:
            return (overlapped,)
        copied = self.copied(loop, ranges)
        if copied is not None:
            return (copied,)
        taps = () if partials else self.taps(loop, ranges)
        if taps:
            return taps
        plan = self.plan(loop, ranges, self.width(loop), sums=len(partials))
        if counts and counts_steps(loop, plan, partials):
            main = counted_steps(loop, plan, partials[0], self.taken)
            rest = replace(loop, lower=plan.middle)
            about = f"{plan.width} lanes, {counted(plan.vectors, 'vector')} at once, places of {partials[0].dtype.bits} bits"
            self.notes.append(Note("vector", _subject(loop), about))
            none_left = not (plan.has_single or plan.has_tail)
            return (main,) if none_left else (main, *self.vector_loop(rest, ranges, counts=False))
        clamped = () if partials else self.clamped(loop, plan, ranges)
        if clamped:
            return clamped
        together = () if partials else self.together(loop, plan, ranges)
        if together:
            return together
        count = plan.vectors if plan.has_main else 1
        accumulators = Accumulators.make(partials, plan.width, count, self.taken)
        parts = tuple(loops_of(plan, loop, partials, accumulators, leads=self.leads, taken=self.taken))
        about = f"{plan.width} lanes" + (f", {counted(plan.vectors, 'vector')} at once" if plan.has_main else "")
        about += ", in turn" if plan.in_turn else ""
        about += f", reduces {', '.join(str(p.target) for p in partials)} in lanes" if partials else ""
        self.notes.append(Note("vector", _subject(loop), about))
        return accumulators.around(parts, self.taken)

    def overlapped(self, loop: For, ranges: Ranges) -> For | None:
        """All vectors of a register tile side by side, where its columns are no whole number of them."""
        width, trips = self.width(loop), ranges.constant(loop.upper - loop.lower)
        if trips is None or not width < trips < loop.factor * width or trips % width == 0:
            return None
        body = settled(loop, self.types, self.taken)
        if body is None:
            return None
        starts = overlapping_starts(loop, trips, width)
        copies = jam(with_lanes(body, width), loop.variable, starts, taken=self.taken)
        self.notes.append(
            Note("vector", _subject(loop), f"{width} lanes, {len(starts)} vectors at once, the last one overlapping")
        )
        return replace(loop, kind="vector", factor=1, upper=loop.lower + width, step=width, width=width, body=copies)

    def together(self, loop: For, plan: VectorPlan, ranges: Ranges) -> tuple[Node, ...]:
        """Several vectors at once, and all that are left at once behind them, the last one overlapping: steps of one vector alone wait for each other. Nothing where no more than one is left."""
        width, trips = plan.width, ranges.constant(loop.upper - loop.lower)
        rest = 0 if trips is None else trips % (plan.vectors * width)
        if trips is None or rest <= width or rest == trips or plan.has_head or not _has_steps(loop):
            return ()
        body = settled(loop, self.types, self.taken)
        if body is None:
            return ()
        own = affine(loop.variable)
        shape = replace(loop, kind="vector", factor=1, width=width)
        wide = with_lanes(body, width)
        whole = jam(wide, loop.variable, [own + at * width for at in range(plan.vectors)], taken=self.taken)
        last = replace(loop, lower=plan.middle)
        starts = overlapping_starts(last, rest, width)
        left = jam(wide, loop.variable, starts, taken=self.taken)
        how = f"{width} lanes, {counted(plan.vectors, 'vector')} at once, then {len(starts)} that are left"
        self.notes.append(Note("vector", _subject(loop), how))
        return (
            replace(shape, upper=plan.middle, step=plan.vectors * width, body=whole),
            replace(shape, lower=plan.middle, upper=plan.middle + width, step=width, body=left),
        )

    def taps(self, loop: For, ranges: Ranges) -> tuple[Node, ...]:
        """The vectors of a register tile over windows in one loop, of which the last ones overlap at its end: so there is one tile, whose taps are written out (passes/sums/window_taps.py); nothing where that does not do."""
        width, trips = self.width(loop), ranges.constant(loop.upper - loop.lower)
        if trips is None or trips < width or trips % (loop.factor * width) == 0 or not _shares_rows(loop, ranges):
            return ()
        body = settled(loop, self.types, self.taken, at_once=False)
        if body is None:
            return ()
        vectors = min(loop.factor, -(-trips // width))
        self.notes.append(
            Note(
                "vector",
                _subject(loop),
                f"{width} lanes, {counted(vectors, 'vector')} at once, the last ones overlapping at the end",
            )
        )
        return (clamped_tiles(loop, with_lanes(body, width), vectors, width, self.taken),)

    def copied(self, loop: For, ranges: Ranges) -> For | None:
        """Blocks of rows that are copied, the last of which overlaps the one before, where rows are no whole number of vectors but more than one."""
        width, span = self.width(loop), loop.upper - loop.lower
        least = ranges.lowest(span)
        move = _copied_row(loop)
        if move is None or move.target.variable in {r.tensor for r in reads_of(move.value)}:
            return None
        if least is None or least < width or ranges.multiple(span) % width == 0:
            return None
        start = fresh(f"{loop.variable}_rows", self.taken)
        first = minimum([affine(start), loop.upper - width])
        lanes = replace(loop, kind="vector", factor=1, lower=first, upper=first + width, step=width, width=width)
        self.notes.append(Note("vector", _subject(loop), f"{width} lanes, the last ones overlapping"))
        return replace(loop, variable=start, step=width, kind="sequential", factor=1, body=(lanes,))

    def clamped(self, loop: For, plan: VectorPlan, ranges: Ranges) -> tuple[Node, ...]:
        """Several vectors of a register tile at once as long as more than one is left, of which the last ones overlap at the end, and the masked one; nothing where that does not do."""
        known = ranges.constant(loop.upper - loop.lower) is not None
        if known or plan.vectors < 2 or plan.has_head:
            return ()
        if _has_few_terms(loop, ranges.enter(loop)):
            return ()
        # Tiles of steps that go from loop to loop begin and end at whole vectors, and would be tiles no more.
        if _has_steps(loop) and (loop.upper - loop.lower).variables() & {around.variable for around in ranges.loops}:
            return ()
        body = settled(loop, self.types, self.taken)
        if body is None:
            return ()
        how = f"{plan.width} lanes, {plan.vectors} vectors at once, the last ones overlapping at the end"
        self.notes.append(Note("vector", _subject(loop), how))
        return overlapping_tiles(loop, with_lanes(body, plan.width), plan.vectors, plan.width, self.taken)

    def reduces_across(self, loop: For, ranges: Ranges) -> bool:
        inner = ranges.enter(loop)
        return bool(shared_targets(loop, inner, precise=self.precise, vector_bytes=self.vector_bytes))

    def plan(self, loop: For, ranges: Ranges, width: int, *, sums: int) -> VectorPlan:
        return plan_parts(
            loop,
            ranges,
            width,
            leads=self.leads,
            vector_bytes=self.vector_bytes,
            sums=sums,
            window=self.window,
            registers=self.registers,
        )


def _subject(loop: For) -> str:
    """The loop's variable and what it makes; of copies of a register, which differ by a number, the first."""
    nodes = [node for node in walk_nodes(loop.body) if isinstance(node, Assign)]
    made = dict.fromkeys(node.target.variable for node in nodes)
    first = [name for name in made if name.rstrip("0123456789").rstrip("_") not in made or name[-1] not in "0123456789"]
    return f"{loop.variable} ({', '.join(first)})" if first else loop.variable


def _without_vectors(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with vector loops turned sequential."""

    def visit(node: Node) -> Node:
        node = with_body(node, lambda body: tuple(visit(child) for child in body))
        if isinstance(node, For) and node.kind == "vector":
            return replace(node, kind="sequential", factor=1)
        return node

    return tuple(visit(node) for node in nodes)


def _has_steps(loop: For) -> bool:
    """Whether loops inside follow a recurrence: no sum, whose parts may be added up in any order."""
    assigned = [node for node in walk_nodes(loop.body) if isinstance(node, Assign)]
    return any(isinstance(node, For) for node in loop.body) and all(node.reduction is None for node in assigned)


def _has_few_terms(loop: For, inside: Ranges) -> bool:
    """Whether all loops inside together have few iterations: to find where each of several vectors begins in each row of a register tile takes longer then."""
    trips = [inside.constant(node.upper - node.lower) for node in walk_nodes(loop.body) if isinstance(node, For)]
    return None not in trips and prod(number for number in trips if number is not None) <= _FEW_TERMS


def _copied_row(loop: For) -> Assign | None:
    """What the loop does where each lane copies a row (passes/transposes/transpose_copies.py)."""
    match loop.body:
        case (For(kind="sequential", body=(Assign(value=Read(), reduction=None) as move,)),):
            return move
        case _:
            return None


def _shares_rows(loop: For, ranges: Ranges) -> bool:
    """Whether sums inside read windows along this loop and along a jammed one, whose rows are read by several of them."""
    loops = [node for node in walk_nodes(loop.body) if isinstance(node, For)]
    inner = {node.variable for node in loops}
    if not all(node.lower.variables() | node.upper.variables() <= inner for node in loops):
        return False  # rows with edges of their own are not jammed
    jammed = {outer.variable for outer in ranges.loops if outer.kind == "jam" and outer.factor > 1}
    sums = (node for node in walk_nodes(loop.body) if isinstance(node, Assign) and node.reduction is not None)
    places = [
        s.variables() for node in sums for r in reads_of(node.value) for s in r.subscripts if isinstance(s, Affine)
    ]
    moved = [names for names in places if names & inner]
    return any(loop.variable in names for names in moved) and any(names & jammed for names in moved)
