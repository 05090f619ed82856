"""Which updates are contractions, and what each of their indices is: C[rows, columns, lanes] (+)= f(R[rows, reduced], V[reduced, columns, lanes]).

Lanes run along C's contiguous index; V is the one operand that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

import islpy as isl

from polyml.expressions import Read, Subscript, reads_of
from polyml.records import dataclass
from polyml.schedule.cost import AccessModel, StatementModel, model_statement
from polyml.scop.accesses import parameters_text
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine

__all__ = [
    "AtHand",
    "Sides",
    "at_hand",
    "at_large",
    "exchanged",
    "is_plain",
    "is_turned",
    "sides_of",
    "symbolic_ends",
    "turned_column",
]

UNBOUNDED = 1 << 20
"""What stands for a symbolic extent: more than any block."""

LARGE_CALL = 1 << 24
"""Instances of what counts as a large call. A smaller one is taken for a large one of the same proportions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The result C, the operand V that has lanes, the other operands; and the indices by role.

    rows: of C, not of V (there may be none: a vector times a matrix); batch: of C, V and another operand; columns: the others of C and V beside `lanes`. reduced: not of C, all of V; innermost the one along
    which the broadcast operand is contiguous, so that its rows need no packing.
    """

    out: AccessModel
    operand: AccessModel
    others: list[AccessModel]
    lanes: str
    rows: list[str]
    batch: list[str]
    columns: list[str]
    reduced: list[str]

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
    if len(large) != 1 or abs(out.stride(lanes) or 0) != 1:
        return None
    (operand,) = large
    rows = [i for i in free if operand.stride(i) == 0]
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
    )


def exchanged(sides: Sides) -> Sides | None:
    """Lanes along the rows instead, of an operand that is contiguous along them: the result has its lanes' elements apart. None where there are other indices than those of a product of matrices and of its batch."""
    if len(sides.rows) != 1 or len(sides.others) != 1 or len(sides.reduced) != 1 or sides.columns:
        return None
    (rows,), (other,) = sides.rows, sides.others
    if other.stride(rows) != 1:
        return None
    return replace(sides, operand=other, others=[sides.operand], lanes=rows, rows=[sides.lanes])


def symbolic_ends(scop: Scop, statement: Statement, model: StatementModel) -> dict[str, Affine] | None:
    """The symbolic extents of an update whose operands are inputs, each read once, by indices that start at 0 (plain ones, but for windows of a broadcast operand);
    None for any other statement."""
    if statement.kind != "update" or statement.argument is not None or statement.loop_depth:
        return None
    reads = list(dict.fromkeys(reads_of(statement.value)))
    arrays = [read.tensor for read in reads]
    if len(set(arrays)) != len(arrays) or any(scop.arrays[a].kind != "input" for a in arrays):
        return None
    accesses = [*(read.subscripts for read in reads), statement.target.subscripts]
    plain = [is_plain(subscripts) for subscripts in accesses]
    slices = any(_is_number(s) for subscripts in accesses for s in subscripts)
    if slices and (scop.sizes or any(map(_is_number, accesses[-1]))):
        return None
    # Windows of a broadcast operand are read where they lie.
    if not plain[-1] or not all(isinstance(s, Affine) for subscripts in accesses for s in subscripts):
        return None
    if not all(plain) and _vector_reads(statement, reads, plain):
        return None
    if any(scop.arrays[a].dtype.itemsize != model.itemsize for a in (*arrays, statement.target.array)):
        return None
    if scop.sizes:
        return _symbolic_box(
            scop, statement, [*zip(arrays, accesses, strict=False), (statement.target.array, accesses[-1])]
        )
    bounded = all(
        statement.domain.dim_min_val(k).is_zero() and statement.domain.dim_max_val(k).is_int()
        for k in range(len(statement.indices))
    )
    return {} if bounded and (all(plain) or statement.domain.is_box()) else None


def is_plain(subscripts: Sequence[Subscript]) -> bool:
    """Whether every subscript is an index of its own, or a number (a slice)."""
    names = [s.name if isinstance(s, Affine) else None for s in subscripts if not _is_number(s)]
    return None not in names and len(set(names)) == len(names)


def _is_number(subscript: Subscript) -> bool:
    return isinstance(subscript, Affine) and subscript.is_constant


def _vector_reads(statement: Statement, reads: Sequence[Read], plain: Sequence[bool]) -> bool:
    """Whether one of the reads that are not plain moves along with the result's last dimension."""
    last = statement.target.subscripts[-1:]
    lanes = {name for s in last if isinstance(s, Affine) for name in s.variables()}
    others = (read for read, known in zip(reads, plain, strict=False) if not known)
    return any(isinstance(s, Affine) and s.variables() & lanes for read in others for s in read.subscripts)


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
    readers = [
        s for s in scop.statements.values() if s.name != statement.name and array in map(_array, reads_of(s.value))
    ]
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


def _array(read: Read) -> str:
    return read.tensor


def at_large(scop: Scop, statement: Statement, model: StatementModel, ends: Mapping[str, Affine]) -> StatementModel:
    """The model with a large number for each symbolic extent, in strides, too."""
    large = affine(UNBOUNDED)
    arrays = {
        name: replace(array, shape=tuple(extent if extent.is_constant else large for extent in array.shape))
        for name, array in scop.arrays.items()
    }
    extents = {**model.extents, **dict.fromkeys(ends, UNBOUNDED)}
    made = model_statement(statement, replace(scop, arrays=arrays), extents)
    return replace(made, likely=_likely(scop, model, ends))


@dataclass(frozen=True, slots=True)
class AtHand:
    """A contraction of symbolic extents with the numbers of the call at hand. ends: the symbolic extents."""

    model: StatementModel
    sides: Sides
    ends: Mapping[str, Affine]

    def extents(self, indices: Iterable[str]) -> tuple[Affine, ...]:
        """Of these indices, symbolic where they are."""
        return tuple(self.ends.get(i, affine(self.model.extents[i])) for i in indices)


def at_hand(scop: Scop, model: StatementModel) -> AtHand | None:
    """The contraction with the numbers of the call at hand, in strides, too; None where its extents are known anyway, where these numbers are not, or are too small to say which index is contiguous."""
    statement = scop.statements[model.name]
    ends = symbolic_ends(scop, statement, model)
    if not ends or not set(scop.sizes) <= scop.examples.keys():
        return None
    arrays = {
        name: replace(array, shape=tuple(affine(extent.evaluate(scop.examples)) for extent in array.shape))
        for name, array in scop.arrays.items()
    }
    numbers = {index: end.evaluate(scop.examples) for index, end in ends.items()}
    if any(number < 2 for number in numbers.values()):
        return None
    made = model_statement(statement, replace(scop, arrays=arrays), {**model.extents, **numbers})
    sides = sides_of(made)
    return None if sides is None else AtHand(made, sides, ends)


def _likely(scop: Scop, model: StatementModel, ends: Mapping[str, Affine]) -> dict[str, int]:
    """How many values the indices of symbolic extent have in a large call like that at hand; none where that is not known."""
    if not all(end.variables() <= scop.examples.keys() for end in ends.values()):
        return {}
    known = {index: max(1, end.evaluate(scop.examples)) for index, end in ends.items()}
    work = prod(known.get(index, extent) for index, extent in model.extents.items())
    scale = max(1.0, LARGE_CALL / work) ** (1 / len(ends))
    return {index: ceil(count * scale) for index, count in known.items()}


def _symbolic_box(
    scop: Scop, statement: Statement, accesses: Sequence[tuple[str, Sequence[Subscript]]]
) -> dict[str, Affine] | None:
    """The symbolic ones among the extents of the arrays that the statement's indices run along, when its domain is that box; else None."""
    ends: dict[str, Affine] = {}
    for array, subscripts in accesses:
        for subscript, extent in zip(subscripts, scop.arrays[array].shape, strict=True):
            if isinstance(subscript, Affine) and subscript.name is not None:
                ends.setdefault(subscript.name, extent)
    if set(ends) != set(statement.indices):
        return None
    limits = " and ".join(f"0 <= {i} < {ends[i].isl_text()}" for i in statement.indices)
    box = isl.Set(f"{parameters_text(scop.sizes)}{{ {statement.name}[{', '.join(statement.indices)}] : {limits} }}")
    known = scop.context
    if not box.intersect_params(known).is_equal(statement.domain.intersect_params(known)):
        return None
    return {index: end for index, end in ends.items() if not end.is_constant}
