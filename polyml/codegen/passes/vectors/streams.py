"""Aligned addresses: which loop index a vector loop must start its whole vectors at.

Stores that bypass the caches need them, and whole lines: of a line that is half written past them and half through them the one waits for the other (Zen 3, y = x + 1 in rows of 202, of any length: 0.18 of the speed of stores through the caches). And where lanes read their neighbours, add up a long row, or a row is a strip of a tile, data comes from the nearest cache, where a vector
across two lines costs twice: then most accesses are aligned.

An argument may lie anywhere. Its `Lead` says how far its first aligned element is, so the first index of a row whose address is aligned is known too.
Other arrays are taken to lie like it, as arrays of one kind from one allocator do; if one does not, its accesses are slower. A function's own arrays begin at a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from math import gcd

from polyml.codegen.loops import Assign, For, Lead, Node, Place, Variable
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Subscript, reads_of
from polyml.new_names import fresh
from polyml.operation_weights import operations_of
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, weighted_sum

__all__ = ["LINE", "Leads", "flat_element", "is_zero"]

LINE = 64
"""Bytes of a cache line, to tell how often a vector crosses one."""

LONG = 16
"""A row of fewer vectors than this is not worth a first one under a mask, for streaming stores."""

LONG_STRIP = 128
"""The same for strips that end where a row does, of which each has ends of its own."""

LONG_IN_CACHE = 4
"""The same for what comes from a cache."""

LONG_UNDER_VECTORS = 32
"""The same for whole rows where masks are vectors (AVX2): each of the two ends then takes 18 cycles (AMD), and an aligned vector saves about one."""

LONG_OVERLAPPING = 8
"""The same where whole vectors that overlap the row's others take the place of masks: one more of them, for the cycle that each aligned one saves."""

LONG_SUM = 64
"""The same for a sum along the lanes, which has an end of as many vectors as it has accumulators."""

LIGHT = 4
"""Instructions per access up to which loads bound a sum."""


@dataclass(slots=True)
class Leads:
    """The leads that a function's loops ask for. arguments: by name; scratch: the function's own arrays, likewise. taken: names in use. large: rows of arrays with symbolic extents are long
    (codegen/passes/large.py). sizes: the symbolic ones. needs: what must not be negative then. block: elements that go together in the loop that was asked about last: of a vector, or of a line if its stores bypass the caches."""

    arguments: Mapping[str, Variable]
    taken: set[str]
    large: bool = False
    sizes: frozenset[str] = frozenset()
    needs: set[Affine] = field(default_factory=set)
    scratch: Mapping[str, Variable] = field(default_factory=dict)
    found: dict[tuple[str, int, tuple[Affine, ...], str], Lead] = field(default_factory=dict)
    block: int = 0
    _streaming: tuple[str, Affine, tuple[Affine, ...]] | None = None
    _columns: bool = False

    def before_aligned(
        self, loop: For, ranges: Ranges, width: int, vector_bytes: int, *, sums: int, twice: bool = False
    ) -> Affine | None:
        """How many iterations of `loop` (which will have `width` lanes) come before the first whose streaming store is aligned, or whose accesses to
        data in cache are: 0 .. `block` - 1. It may be more than the loop has.

        twice: whether iterations may run twice, so that ends need no masks.

        None where that is not worth it: rows are short; or vectors are written now and then, to several rows in turn (a register tile), which leaves too
        many lines half written; or lanes add up (`sums` elements) what takes longer than its loads, or comes from rows side by side.
        """
        self._streaming, self._columns, self.block = None, False, width
        if any(isinstance(node, For) for node in walk_nodes(loop.body)):
            return self._before_columns(loop, ranges, width, vector_bytes)
        trips = ranges.constant(loop.upper - loop.lower)
        long = None if trips is not None or not self.large else self._long(loop, ranges, width, vector_bytes)
        jammed = {outer.variable for outer in ranges.loops if outer.kind == "jam"}
        # Of strips all but the last one are as long as the longest.
        most = ranges.highest(loop.upper - loop.lower) if trips is None else trips
        least = LONG * width if trips is not None else LONG_STRIP * width
        if not (long is not None or (most is not None and most >= least)) or not _streamed(loop.body):
            if sums:
                # Lanes of several registers are combined together (llvm/reductions/across.py), those of eight bytes not by halves: their order would be the address's.
                apart = sums == 1 or vector_bytes <= 4 * width
                return self._before_sum(loop, trips, width, vector_bytes) if apart and trips and not jammed else None
            return self._before_lines(loop, ranges, width, vector_bytes, jammed, twice=twice)
        for place in _streamed(loop.body):
            variable = self.arguments.get(place.variable)
            flat = None if variable is None else flat_element(variable, place.subscripts, whole_rows=self.large)
            if variable is None or flat is None or flat.stride(loop.variable) != 1:
                continue
            if variable.dtype.itemsize * width != vector_bytes:
                continue
            if flat.variables() & jammed:
                continue
            rows, line = _rows(variable, place.subscripts), max(vector_bytes, LINE)
            # Sums keep their order wherever rows lie, which goes by vectors (vectors/parts.py). Where rows are whole lines the two halves of a line that neighbours share meet in the processor's buffer.
            meet = not rows and _residue(flat, loop, line // variable.dtype.itemsize).is_constant
            size = vector_bytes if sums or meet else line
            self.block = size // variable.dtype.itemsize
            residue = _residue(flat, loop, self.block)
            lead = self._row_lead(variable, place, loop, ranges, size) if rows else None
            if rows and lead is None:
                continue
            if long is not None:
                self.needs.add(long)
            self._streaming = (variable.name, residue, rows)
            return self._before(variable, residue, self.block, size) if lead is None else affine(lead.name)
        return None

    def _before_columns(self, loop: For, ranges: Ranges, width: int, vector_bytes: int) -> Affine | None:
        """The same where lanes copy rows into columns side by side, each a line, block by block (passes/transposes/transpose_copies.py). None where columns begin at different places of a line."""
        match loop.body:
            case (For(body=(Assign(streaming=True, target=place),)),):
                variable = self.arguments.get(place.variable)
            case _:
                return None
        flat = None if variable is None else flat_element(variable, place.subscripts)
        if variable is None or flat is None or flat.stride(loop.variable) != 1:
            return None
        residue = _residue(flat, loop, width)
        moving = residue - residue.constant
        if variable.dtype.itemsize * width != vector_bytes or vector_bytes < LINE or ranges.multiple(moving) % width:
            return None
        self._columns = True
        return self._before(variable, affine(residue.constant), width, vector_bytes)

    def _long(self, loop: For, ranges: Ranges, width: int, vector_bytes: int) -> Affine | None:
        """What must not be negative for a loop of an unknown number of iterations to be long; None where sizes do not tell. Of a strip in a tile the first one: others lie beside it."""
        span = loop.upper - loop.lower
        if span.variables() <= self.sizes:
            return span - LONG * width * max(LINE // vector_bytes, 1)
        most = ranges.highest(span)
        for outer in reversed(ranges.loops):
            span = span.substitute({outer.variable: outer.lower})
        if most is None or most < LONG_IN_CACHE * width or not span.variables() <= self.sizes:
            return None
        return span - LONG_IN_CACHE * width

    def _row_lead(self, variable: Variable, place: Place, loop: For, ranges: Ranges, size: int) -> Lead | None:
        """The lead of the row that the loop writes, whose address depends on sizes: known in the body of the innermost loop that it moves with.

        None where later passes would copy that body under other names.
        """
        if any(outer.kind not in ("sequential", "parallel", "pipelined", "stage") for outer in ranges.loops):
            return None
        first = tuple(s.substitute({loop.variable: loop.lower}) for s in place.subscripts if isinstance(s, Affine))
        moving = frozenset[str]().union(*(s.variables() for s in first))
        inside = next((o.variable for o in reversed(ranges.loops) if o.variable in moving), "")
        key = (variable.name, size, first, inside)
        if key not in self.found:
            self.found[key] = Lead(fresh(f"{variable.name}_row", self.taken), variable.name, size, first, inside)
        return self.found[key]

    def marked(self, nodes: tuple[Node, ...], loop: For, width: int) -> tuple[Node, ...]:
        """The body of the vector loop that `before_aligned` was asked about last, with its streaming stores marked as aligned where symbolic strides, or blocks, hide that they are."""

        def visit(node: Node) -> Node:
            node = with_body(node, lambda body: tuple(visit(child) for child in body))
            if not (isinstance(node, Assign) and node.streaming):
                return node
            if self._columns:
                return replace(node, aligned=True)
            variable = self.arguments.get(node.target.variable)
            flat = None if variable is None else flat_element(variable, node.target.subscripts, whole_rows=True)
            if variable is None or flat is None or flat.stride(loop.variable) != 1:
                return node
            rows = _rows(variable, node.target.subscripts)
            same = (variable.name, _residue(flat, loop, self.block), rows) == self._streaming
            return replace(node, aligned=True) if same else node

        marks = self._columns or (self.large and self._streaming is not None)
        return tuple(visit(node) for node in nodes) if marks else nodes

    def _before_lines(
        self, loop: For, ranges: Ranges, width: int, vector_bytes: int, jammed: set[str], *, twice: bool
    ) -> Affine | None:
        """The same for most of the accesses of a loop over data in cache; None when less than half of them can be aligned at once."""
        most, strip = ranges.highest(loop.upper - loop.lower), ranges.constant(loop.upper - loop.lower) is None
        least = LONG_OVERLAPPING if twice and not strip else LONG_UNDER_VECTORS
        least = LONG_IN_CACHE if strip or vector_bytes >= LINE else least
        if most is None or most < least * width or 2 * vector_bytes < LINE:
            return None
        weights: Counter[Affine] = Counter()
        owners: dict[Affine, Variable] = {}
        total = 0
        for name, subscripts, weight in _accesses(loop.body):
            if any(isinstance(s, Affine) and s.stride(loop.variable) is None for s in subscripts):
                return None  # in panels, across two of which a vector that begins elsewhere would lie
            variable = self.arguments.get(name) or self.scratch.get(name)
            whole = variable is not None and name in self.scratch and _has_whole_lines(variable)
            flat = None if variable is None else flat_element(variable, subscripts, whole_rows=whole)
            if variable is None or flat is None or flat.stride(loop.variable) != 1:
                continue
            residue = _residue(flat, loop, width)
            if variable.dtype.itemsize * width != vector_bytes or residue.variables() & jammed:
                return None
            weights[residue] += weight
            owners.setdefault(residue, variable)
            total += weight
        if not weights or (len(weights) == 1 and not strip):
            return None
        ((residue, weight),) = weights.most_common(1)
        # Of rows too short for masked ends, those with two aligned accesses for each that is not: an aligned vector saves the one's lines and costs the other's.
        short = vector_bytes < LINE and not strip and most < LONG_UNDER_VECTORS * width
        enough = 3 * weight >= 2 * total if short else 2 * weight >= total
        return self._before(owners[residue], residue, width, vector_bytes) if enough else None

    def _before_sum(self, loop: For, trips: int, width: int, vector_bytes: int) -> Affine | None:
        """The same where lanes add up a row of arguments that all begin at one place of a line, as far as is known, and loads bound the loop: a vector across two lines takes two loads."""
        accesses = [a for a in _accesses(loop.body) if a[1]]
        assigns = [node for node in walk_nodes(loop.body) if isinstance(node, Assign)]
        work = sum(operations_of(node.value) + 1 for node in assigns)
        if trips < LONG_SUM * width or 2 * vector_bytes < LINE or work > LIGHT * len(accesses):
            return None
        if {node.reduction for node in assigns} - {None} != {"sum"}:  # extrema look for NaN at the end of each loop
            return None
        found: dict[Affine, Variable] = {}
        for name, subscripts, _ in accesses:
            if all(isinstance(s, Affine) and s.stride(loop.variable) == 0 for s in subscripts):
                continue
            variable = self.arguments.get(name)
            flat = None if variable is None else flat_element(variable, subscripts)
            if flat is not None and not flat.stride(loop.variable):
                continue
            if variable is None or flat is None or flat.stride(loop.variable) != 1:
                return None
            if variable.dtype.itemsize * width != vector_bytes:
                return None
            found.setdefault(_residue(flat, loop, width), variable)
        if len(found) != 1:
            return None
        ((residue, variable),) = found.items()
        return None if residue.variables() else self._before(variable, residue, width, vector_bytes)

    def _before(self, variable: Variable, residue: Affine, width: int, vector_bytes: int) -> Affine:
        if variable.name in self.scratch:
            return -residue % width
        lead = affine(self._lead(variable, vector_bytes).name)
        return lead if residue == affine(0) else (lead - residue) % width

    def _lead(self, variable: Variable, size: int) -> Lead:
        key = (variable.name, size, (), "")
        if key not in self.found:
            self.found[key] = Lead(fresh(f"{variable.name}_lead", self.taken), variable.name, size)
        return self.found[key]


def _residue(flat: Affine, loop: For, width: int) -> Affine:
    """The first iteration's element, up to multiples of the width."""
    first = flat + loop.lower - affine(loop.variable)
    return Affine(tuple((a, c % width) for a, c in first.terms if c % width), first.constant % width)


def _rows(variable: Variable, subscripts: tuple[Subscript, ...]) -> tuple[Affine, ...]:
    """The subscripts of dimensions whose strides depend on sizes; none where all are 0."""
    if variable.strides is not None:
        return ()
    inner = [k for k, extent in enumerate(variable.shape) if not extent.is_constant]
    found = tuple(s for s in subscripts[: inner[-1] if inner else 0] if isinstance(s, Affine))
    return found if any(s != Affine() for s in found) else ()


def _accesses(nodes: tuple[Node, ...]) -> Iterator[tuple[str, tuple[Subscript, ...], int]]:
    """What assignments read and write, and what a vector across two lines costs: a store also fetches its lines."""
    for node in walk_nodes(nodes):
        if isinstance(node, Assign):
            for read in dict.fromkeys(reads_of(node.value)):
                yield read.tensor, read.subscripts, 1
            yield node.target.variable, node.target.subscripts, 2


def _has_whole_lines(variable: Variable) -> bool:
    """Whether rows are whole lines, whatever the sizes are."""
    if not variable.shape or variable.strides is not None:
        return False
    last = variable.shape[-1]
    return gcd(last.constant, *(c for _, c in last.terms)) * variable.dtype.itemsize % LINE == 0


def _streamed(nodes: tuple[Node, ...]) -> list[Place]:
    return [node.target for node in walk_nodes(nodes) if isinstance(node, Assign) and node.streaming]


def flat_element(variable: Variable, subscripts: tuple[Subscript, ...], *, whole_rows: bool = False) -> Affine | None:
    """The element counted from the array's start; None when strides depend on sizes or a subscript is indirect.

    whole_rows: strides that depend on sizes count as 0: the address within a row.
    """
    parts: list[tuple[Affine, int]] = []
    for subscript, stride in zip(subscripts, variable.memory_strides, strict=True):
        if not isinstance(subscript, Affine) or (stride is None and not whole_rows and subscript != Affine()):
            return None
        parts.append((subscript, stride or 0))
    return weighted_sum(parts)


def is_zero(value: Affine) -> Expr:
    """The condition that the value, such as a lead, is 0."""
    return Apply("eq", (IndexValue(value, i64), Const(0, i64)), boolean)
