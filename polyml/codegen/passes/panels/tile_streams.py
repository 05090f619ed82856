"""Register tiles that write a large result once: where the result is aligned, its vectors go past the caches. They have to fill whole cache lines: of a line that others interrupt each part is a write of its own.

Whether an argument is aligned is known when the function starts (its `Lead`), and a tile has too few vectors in a row to start where they are: so the stores of a
tile come twice, past the caches for a lead of 0 (and rows of whole vectors, where their length is symbolic), and plain.

Where a vector is a part of a line and a tile's lines lie a multiple of `APART` bytes apart, they stay in the caches: addresses that agree in their low bits go to one channel of memory, and line buffers wait for it.
Evicted lines do not come at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Lead, Node, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.streams import flat_element, is_zero
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import have_no_bodies, nodes_of, walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, IndexValue, Read, reads_of
from polyml.new_names import fresh
from polyml.records import replace
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["stream_tiles"]

LEAST = 2
"""Stores in a row below which they stay as they are."""

LONG = 4
"""Lines that are filled one after the other of which the first and the last may be parts: what comes before and behind them fills these."""

APART = 1024
"""Bytes. Measured on Zen 3, 4096 rows of sums of 16 products in tiles of 6 x 2 vectors, past the caches over through them: rows of 16,384 and 17,408 bytes 1.6 and 1.44, of 16,448 to 16,896 (a multiple of 512) 0.95 to 1.03;
of 48 and 96 products 1.1 to 1.3 and 0.97."""


def stream_tiles(function: Function, *, vector_bytes: int, line_bytes: int) -> Function:
    """The function with runs of streaming stores, vectors that fill lines from the start of an argument, under the condition that this is aligned; all
    other stores in such runs lose their mark."""
    piece_bytes = max(vector_bytes, line_bytes)
    taken = names_in(function)
    leads = {lead.array: lead for lead in function.leads if not lead.row}
    pass_ = _Streams({v.name: v for v in function.arguments}, vector_bytes, piece_bytes, taken, leads)
    allocated = (node.variable for node in nodes_of(function) if isinstance(node, Allocate))
    pass_.scratch = frozenset(v.name for v in allocated if v.scope != "register")
    body = pass_.body(function.body, outside(function), None)
    if body is function.body:
        return function
    return replace(function, body=body, leads=tuple(dict.fromkeys((*function.leads, *pass_.leads.values()))))


class _Streams:
    def __init__(
        self,
        arguments: Mapping[str, Variable],
        vector_bytes: int,
        piece_bytes: int,
        taken: set[str],
        leads: Mapping[str, Lead],
    ) -> None:
        self.arguments, self.vector_bytes, self.piece_bytes, self.taken = arguments, vector_bytes, piece_bytes, taken
        self.leads = {array: lead for array, lead in leads.items() if lead.bytes == piece_bytes}
        self.scratch: frozenset[str] = frozenset()
        self.rows = frozenset(leads)  # arrays written by rows that start where they are aligned

    def body(self, nodes: tuple[Node, ...], ranges: Ranges, lanes: For | None) -> tuple[Node, ...]:
        if lanes is None and have_no_bodies(nodes):
            return nodes
        made: list[Node] = []
        run: list[Assign] = []
        for node in (*nodes, None):
            if isinstance(node, Assign) and node.streaming and lanes is not None:
                if run and run[-1].target.variable != node.target.variable:
                    made += self.run(run, ranges, lanes)
                    run = []
                run.append(node)
                continue
            if isinstance(node, Assign) and self.may_go_ahead(node, run):
                made.append(node)
                continue
            if run and lanes is not None:
                made += self.run(run, ranges, lanes)
                run = []
            if node is not None:
                made.append(self.inside(node, ranges, lanes))
        return renewed(nodes, made)

    def may_go_ahead(self, node: Assign, run: Sequence[Assign]) -> bool:
        """Whether what is stored into scratch memory between the stores of a run may be stored ahead of them: none of them reads it, and nobody reads what is stored past the caches."""
        name = node.target.variable
        return name in self.scratch and all(read.tensor != name for store in run for read in reads_of(store.value))

    def inside(self, node: Node, ranges: Ranges, lanes: For | None) -> Node:
        if isinstance(node, For):
            ranges = ranges.enter(node)
            lanes = node if node.kind == "vector" and self.is_tile(node) else lanes
        return with_body(node, lambda body: self.body(body, ranges, lanes))

    def is_tile(self, loop: For) -> bool:
        """Whether the loop computes a register tile, or copies what tiles have left in scratch memory."""
        return any(
            isinstance(node, For)
            or (isinstance(node, Assign) and isinstance(node.value, Read) and node.value.tensor in self.scratch)
            for node in walk_nodes(loop.body)
        )

    def run(self, stores: list[Assign], ranges: Ranges, lanes: For) -> list[Node]:
        if stores[0].target.variable in self.rows:
            return list(stores)
        plain = tuple(replace(store, streaming=False) for store in stores)
        if len(stores) < LEAST or not self.fill_lines(stores, ranges, lanes):
            return list(plain)
        condition = is_zero(affine(self.lead(stores[0].target.variable).name))
        length = self.arguments[stores[0].target.variable].shape[-1]
        if not length.is_constant:  # rows that are whole lines all begin at one
            condition = Apply("and", (condition, is_zero(length % (self.together * lanes.width))), boolean)
            if self.together > 1:
                beside = IndexValue(length % (APART * lanes.width // self.vector_bytes), i64)
                condition = Apply("and", (condition, Apply("ne", (beside, Const(0, i64)), boolean)), boolean)
            stores = [replace(store, aligned=True) for store in stores]
        return [If(condition=condition, then=tuple(stores), otherwise=plain)]

    @property
    def together(self) -> int:
        """Vectors of a line."""
        return self.piece_bytes // self.vector_bytes

    def fill_lines(self, stores: list[Assign], ranges: Ranges, lanes: For) -> bool:
        """Whether these are whole vectors at multiples of one, which fill the lines that they are part of."""
        places = [store.target for store in stores]
        variable = self.arguments.get(places[0].variable)
        if variable is None or lanes.masked or variable.dtype.itemsize * lanes.width != self.vector_bytes:
            return False
        unknown = variable.strides is None and not variable.shape[-1].is_constant
        flats = [flat_element(variable, place.subscripts, whole_rows=unknown) for place in places]
        known = [flat for flat in flats if flat is not None and flat.stride(lanes.variable) == 1]
        if len(known) < len(flats) or any(ranges.multiple(flat) % lanes.width for flat in known):
            return False
        rows = [place.subscripts[:-1] if unknown else () for place in places]
        follows = [
            row == before_row and flat == before + lanes.width
            for flat, before, row, before_row in zip(known[1:], known, rows[1:], rows, strict=False)
        ]
        starts = range(0, len(stores), self.together)
        whole = len(stores) % self.together == 0 and all(
            ranges.multiple(known[k]) % (self.together * lanes.width) == 0 and all(follows[k : k + self.together - 1])
            for k in starts
        )
        apart = [known[k] for k in starts if not k or not follows[k - 1]]
        if whole and not unknown and self.together > 1 and self.meet(apart, variable.dtype.itemsize):
            return False
        return whole or (all(follows) and len(stores) >= LONG * self.together)

    @staticmethod
    def meet(rows: Sequence[Affine], size: int) -> bool:
        """Whether more than half of several rows, which begin at these elements, lie a multiple of `APART` bytes apart."""
        places = Counter((row - row.constant, row.constant * size % APART) for row in rows)
        return 2 * max(places.values()) > len(rows) > 1

    def lead(self, array: str) -> Lead:
        if array not in self.leads:
            self.leads[array] = Lead(fresh(f"{array}_lead", self.taken), array, self.piece_bytes)
        return self.leads[array]
