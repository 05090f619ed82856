"""Which updates are contractions, and what each of their indices is: C[rows, columns, lanes] (+)= f(R[rows, reduced], V[reduced, columns, lanes]).

Lanes run along C's contiguous index; V is the one operand that has it, or the first of several that are summed down their columns and lie alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyml.expressions import Read, Subscript, is_number, reads_of
from polyml.records import dataclass
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["Sides", "exchanged", "is_plain", "is_turned", "sides_of", "turned_column"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The result C, the operand V that has lanes, the other operands; and the indices by role.

    rows: of C, not of V (there may be none: a vector times a matrix); batch: of C, V and another operand; columns: the others of C and V beside `lanes`. reduced: not of C, all of V; innermost the one along
    which the broadcast operand is contiguous, so that its rows need no packing. matrices: operands that lie like V and have all of its indices, V among them.
    """

    out: AccessModel
    operand: AccessModel
    others: list[AccessModel]
    lanes: str
    rows: list[str]
    batch: list[str]
    columns: list[str]
    reduced: list[str]
    matrices: int = 1

    @property
    def first(self) -> str:
        """The index along which V is contiguous, or nearly."""
        return min((*self.columns, *self.reduced, self.lanes), key=lambda i: abs(self.operand.stride(i) or 0))


def sides_of(model: StatementModel) -> Sides | None:
    """The roles of an update's indices; None where it is no contraction with lanes along C's memory."""
    out = next(a for a in model.accesses if a.write)
    free = [index for index in model.extents if out.stride(index) != 0]
    reduced = [index for index in model.extents if out.stride(index) == 0]
    if not free or not reduced:
        return None
    lanes = min(free, key=lambda index: abs(out.stride(index) or 0))
    reads = [a for a in model.accesses if not a.write]
    vector = [a for a in reads if a.stride(lanes) != 0]
    others = [a for a in reads if a.stride(lanes) == 0]
    large = [a for a in vector if any(a.stride(i) != 0 for i in reduced)]
    if not large or abs(out.stride(lanes) or 0) != 1:
        return None
    operand, *alike = large
    rows = [i for i in free if operand.stride(i) == 0]
    # What no operand moves along (all are broadcast) is no row: panels would be gone when its next iteration reads them.
    if any(model.extents[i] > 1 and all(a.stride(i) == 0 for a in others) for i in rows):
        return None
    # Sums down the columns of several matrices, which lie alike, read these side by side.
    if alike and (len(free) > 1 or any(a.stride(i) != operand.stride(i) for a in alike for i in model.extents)):
        return None
    # What all rows of V meet (its columns' means) is read along with C, a vector at a time.
    if len(vector) > 1 and rows:
        return None
    batch = [i for i in free if operand.stride(i) != 0 and any(a.stride(i) != 0 for a in others)]
    if (rows and not others) or any(operand.stride(i) == 0 for i in reduced):
        return None
    return Sides(
        out=out,
        operand=operand,
        others=others,
        lanes=lanes,
        rows=rows,
        batch=batch,
        columns=[i for i in free if i not in rows and i not in batch and i != lanes],
        reduced=sorted(
            reduced,
            key=lambda i: (
                -min((abs(a.stride(i) or 1 << 40) for a in others), default=0),
                -abs(operand.stride(i) or 0),
            ),
        ),
        matrices=len(large),
    )


def exchanged(sides: Sides) -> Sides | None:
    """Lanes along the rows instead, of an operand that is contiguous along them: the result has its lanes' elements apart. None where there are other indices than those of a product of matrices and of its batch."""
    if len(sides.rows) != 1 or len(sides.others) != 1 or len(sides.reduced) != 1 or sides.columns:
        return None
    (rows,), (other,) = sides.rows, sides.others
    if other.stride(rows) != 1:
        return None
    return replace(sides, operand=other, others=[sides.operand], lanes=rows, rows=[sides.lanes])


def is_plain(subscripts: Sequence[Subscript]) -> bool:
    """Whether every subscript is an index of its own, or a number (a slice)."""
    names = [s.name if isinstance(s, Affine) else None for s in subscripts if not is_number(s)]
    return None not in names and len(set(names)) == len(names)


def is_turned(scop: Scop, statement: Statement, lanes: str) -> bool:
    """Whether another statement reads the result, and lays it out with another index than the lanes' innermost."""
    position = next(k for k, s in enumerate(statement.target.subscripts) if isinstance(s, Affine) and s.name == lanes)
    for other in scop.statements.values():
        for read in reads_of(other.value) if other.name != statement.name else ():
            if read.tensor == statement.target.array and other.target.subscripts:
                return read.subscripts[position] != other.target.subscripts[-1]
    return False


def turned_column(scop: Scop, statement: Statement, sides: Sides) -> str | None:
    """The index of the vector operand, other than the lanes', along which the only reader of the result, a copy of all of it, lays it out; None where there is no such reader."""
    array = statement.target.array
    others = (other for other in scop.statements.values() if other.name != statement.name)
    readers = [other for other in others if any(read.tensor == array for read in reads_of(other.value))]
    if len(readers) != 1 or not isinstance(readers[0].value, Read) or not readers[0].target.subscripts:
        return None
    (reader,) = readers
    assert isinstance(reader.value, Read), "internal: a copy without a read"
    last = reader.target.subscripts[-1]
    if (
        not is_plain(reader.target.subscripts)
        or not is_plain(reader.value.subscripts)
        or last not in reader.value.subscripts
    ):
        return None
    own = statement.target.subscripts[reader.value.subscripts.index(last)]
    found = own.name if isinstance(own, Affine) else None
    return found if found in sides.columns else None
