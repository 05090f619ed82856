"""Neighbouring indices become one where every array has them side by side: y[o, p, q] of a product over 14 x 14 points is one row of 196, which is whole
vectors but for the last, instead of rows of 14, each of which wastes a part of one. Where extents are symbolic, so that nobody knows how short rows are, all reductions' neighbours become one; and so do all neighbours of regions that go through
memory without contractions (sums, batch norms, permutations, elements one by one), for any sizes, too, whose loops are as long as memory allows then.
So do those of sums of products that use a large operand's elements a few times only: it is read in longer pieces. And so do the last ones of an operand whose innermost rows are shorter than a register tile.

A pair of indices (i, j) may become one, E*i + j, when each access of the statement has both as neighbouring plain subscripts, or neither; the array's dimension of j has E elements, and
they follow each other without gaps. Where extents are numbers and E is small, i may be moved by other indices: the windows x[i + r, j] of an image whose channels come last are x[E*i + j + E*r]. All accesses to such an array must have pairs there. This is an exact change of names, without dependences: the same instances touch the same memory, and since j follows i
among the statement's indices they do so in the same order.

Copies that end in a short index are joined on one side only (short_ends.py); how two indices become one: joining.py.

E*i is not affine where E is symbolic, and need not be: nothing but the new index is left. The number of its values is a size of its own (`Scop.products`), which functions get like all others.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from polyml.expressions import Read, plain_indices, reads_of, variables_in
from polyml.scop.joined_rows import with_joined_rows
from polyml.scop.joining import Joining, box_extents, joined
from polyml.scop.products import with_used_sizes
from polyml.scop.scop import Scop, Statement
from polyml.scop.short_ends import with_short_ends
from polyml.sets.affine import Affine
from polyml.sets.shapes import element_count
from polyml.target import FEW_REGISTERS

__all__ = ["joined_indices"]

LONG = 4
"""Rows of as many vectors, or as many lines where these are longer, lose little at their end."""

OTHERS = 4
"""Registers of a tile of two vectors that are no sums: the vectors, and two in flight."""

FEW_USES = 16
"""Uses of an operand's elements below which it is read once, in order."""

TILE = 6
"""Rows of a register tile: a shorter index is none by itself."""

LEAST_WORK = 1 << 15
"""Instances of a contraction below which nothing is gained."""

LEAST_ELEMENTS = 1 << 9
"""The same where there is no contraction: loops over short rows take longer than what they do, and each row has an end that is no whole vector."""


def joined_indices(
    scop: Scop, lanes_bytes: int, *, line_bytes: int = 0, registers: int = 32, turns: bool = True
) -> Scop:
    """The scop with the rows of its contractions' results joined where they are short and not some whole vectors and lines, or no whole register tiles, all indices that can be where there is no contraction or an
    operand is read a few times only,
    and for symbolic sizes all indices of reductions that can be beside contractions; the same object where nothing can be.

    Args:
        lanes_bytes: of a vector register. line_bytes: of a cache line. registers: how many there are. turns: whether copies transpose blocks in registers.
    """
    if any(s.loop_depth or s.argument is not None for s in scop.statements.values()):
        return scop
    given = scop
    contracts = any(map(_is_contraction, scop.statements.values()))
    for statement in scop.statements.values():
        if scop.sizes:
            scop = _neighbours(scop, statement.name) if statement.kind == "update" or not contracts else scop
        elif not contracts:
            scop = _neighbours(scop, statement.name)
            scop = with_short_ends(scop, statement.name) if turns else scop
        elif statement.kind == "update":
            scop = _rows(scop, statement.name, lanes_bytes, line_bytes, registers)
            scop = _in_a_row(scop, statement.name)
            scop = _short_columns(scop, statement.name)
            if turns and registers <= FEW_REGISTERS:  # schedule/blocking/laid_blocks.py lays their blocks out
                size = scop.arrays[statement.target.array].dtype.itemsize
                scop = with_joined_rows(scop, statement.name, max(1, lanes_bytes // size))
    return scop if scop is given else with_used_sizes(scop)


def _is_contraction(statement: Statement) -> bool:
    """Whether several operands move along what the statement sums over: register tiles are for such, which have rules of their own."""
    kept = frozenset(variables_in(statement.target.subscripts))
    moving = {
        read.tensor
        for read in reads_of(statement.value)
        for s in read.subscripts
        if not isinstance(s, Affine) or s.variables() - kept
    }
    return statement.kind == "update" and len(moving) > 1


def _rows(scop: Scop, name: str, lanes_bytes: int, line_bytes: int, registers: int) -> Scop:
    """One statement's rows, as often as there is another dimension outside."""
    while True:
        statement = scop.statements[name]
        pair = _short_row(scop, statement, lanes_bytes, line_bytes, registers)
        found = None if pair is None else Joining(scop).all(name, pair)
        if found is None:
            return scop
        scop = joined(scop, *found)


def _neighbours(scop: Scop, name: str) -> Scop:
    """One statement's pairs, as long as there are any: of symbolic sizes those of which an extent is, of numbers those of large statements."""
    while True:
        statement, joining = scop.statements[name], Joining(scop)
        extents = box_extents(scop, statement) or {}
        if not scop.sizes and prod(extent.constant for extent in extents.values()) < LEAST_ELEMENTS:
            return scop
        numbers = [index for index, extent in extents.items() if scop.sizes and extent.is_constant]
        pairs = (pair for pair in _pairs(statement) if not all(i in numbers for i in pair))
        found = next((made for pair in pairs if (made := joining.all(name, pair)) is not None), None)
        if found is None:
            return scop
        scop = joined(scop, *found)


def _pairs(statement: Statement) -> dict[tuple[str, str], None]:
    """Neighbours among the statement's indices that are neighbours in an access, too."""
    found: dict[tuple[str, str], None] = {}
    indices = dict(zip(statement.indices, statement.indices[1:], strict=False))
    for access in statement.accesses:
        names = plain_indices(access.subscripts)
        found |= {(a, b): None for a, b in pairwise(names) if a is not None and b == indices.get(a, "")}
    return found


def _short_row(
    scop: Scop, statement: Statement, lanes_bytes: int, line_bytes: int, registers: int
) -> tuple[str, str] | None:
    """Two indices of the result that lie side by side, where the inner one's rows should be longer: the last two; or those before the last, where lanes run along that, unless a row is a register tile by itself, or several.

    Where vectors are shorter than lines, rows that are no whole lines end in half a register tile, and each strip of every other row lies in two lines where it could lie in one."""
    names = plain_indices(statement.target.subscripts)
    shape = scop.arrays[statement.target.array].shape
    extents = box_extents(scop, statement)
    size = scop.arrays[statement.target.array].dtype.itemsize
    lanes, whole = max(1, lanes_bytes // size), max(1, lanes_bytes // size, line_bytes // size)
    if extents is None or len(extents) <= len(names) or prod(e.constant for e in extents.values()) < LEAST_WORK:
        return None
    for end, least in ((len(names), 0), (len(names) - 1, (registers - OTHERS) // 2)):
        outer, inner = (None, None, *names[:end])[-2:]
        if outer is None or inner is None or not shape[end - 1].is_constant:
            continue
        row = shape[end - 1].constant
        if least:
            short = row > least and row % least != 0 and row < LONG * lanes
            if short and Joining(scop).all(statement.name, (outer, inner)) is not None:
                return outer, inner
        elif row <= lanes or (row % whole != 0 and row < LONG * whole):
            return outer, inner
    return None


def _in_a_row(scop: Scop, name: str) -> Scop:
    """One statement with what it meets in a row in a large operand joined: indices of a sum, what lies beside the operand's last one, and rows of the result, which are written in a row, too. Loops over rows that stay apart
    are in any order, for tiles of rows that are far from each other."""
    while True:
        statement, joining = scop.statements[name], Joining(scop)
        large = _read_few_times(scop, statement)
        if large is None:
            return scop
        kept = variables_in(statement.target.subscripts)
        last = large.subscripts[-1]
        ends = {last.name} if isinstance(last, Affine) else set()
        rows = kept & variables_in(large.subscripts)
        pairs = (pair for pair in _pairs(statement) if not kept & set(pair) or pair[1] in ends or rows.issuperset(pair))
        found = next((made for pair in pairs if (made := joining.all(name, pair)) is not None), None)
        if found is None:
            return scop
        scop = joined(scop, *found)


def _short_columns(scop: Scop, name: str) -> Scop:
    """One statement with the last indices of an operand joined, all that the result has, where the innermost is short: a register tile's rows lie side by side then, so that panels are packed from pieces of whole vectors."""
    operand: str | None = None
    while True:
        statement = scop.statements[name]
        read = None if scop.sizes else _with_short_end(scop, statement, operand)
        outer, inner = (None, None) if read is None else plain_indices(read.subscripts)[-2:]
        found = None if outer is None or inner is None else Joining(scop).all(name, (outer, inner))
        if read is None or found is None:
            return scop
        scop, operand = joined(scop, *found), read.tensor


def _with_short_end(scop: Scop, statement: Statement, operand: str | None) -> Read | None:
    """The one operand of a contraction that moves along its last two indices, which the result has, the innermost of which has few values; or of this name (None: any)."""
    extents = box_extents(scop, statement)
    if extents is None or not _is_contraction(statement):
        return None
    if prod(extent.constant for extent in extents.values()) < LEAST_WORK:
        return None
    kept = set(plain_indices(statement.target.subscripts))
    reads = list(dict.fromkeys(reads_of(statement.value)))
    for read in reads:
        outer, inner = (None, None, *plain_indices(read.subscripts))[-2:]
        if outer is None or inner is None or not {outer, inner} <= kept:
            continue
        others = variables_in(s for r in reads if r is not read for s in r.subscripts)
        fits = extents[inner].constant < TILE if operand is None else read.tensor == operand
        if fits and not others & {outer, inner}:
            return read
    return None


def _read_few_times(scop: Scop, statement: Statement) -> Read | None:
    """The large operand of a product whose elements are used a few times only: memory is what it waits for, and the fewer and longer the pieces are that are read, the better."""
    extents = box_extents(scop, statement)
    reads = list(dict.fromkeys(reads_of(statement.value)))
    if scop.sizes or extents is None or len(reads) != 2 or not statement.target.subscripts:
        return None

    def size(read: Read) -> int:
        return element_count(scop.arrays[read.tensor].shape)

    work, large = prod(extent.constant for extent in extents.values()), max(reads, key=size)
    return large if work >= LEAST_WORK and work < FEW_USES * size(large) and large.subscripts else None
