"""Contractions with numbers for all of their extents: of symbolic ones a large number, or that of the call at hand.

Which of an operand's strides is the smallest, and what caches hold, is decided by numbers. A plan for sizes at large takes nothing else from them; one for the call at hand says which sizes it suits (Blocking.worth).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

import islpy as isl

from polyml.expressions import Read, Subscript, is_number, reads_of, variables_in
from polyml.records import dataclass
from polyml.schedule.blocking.sides import Sides, is_plain, sides_of
from polyml.schedule.cost import StatementModel
from polyml.schedule.statement_models import model_statement
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["UNBOUNDED", "Contraction", "at_hand", "at_large"]

UNBOUNDED = 1 << 20
"""What stands for a symbolic extent: more than any block."""

LARGE_CALL = 1 << 24
"""Instances of what counts as a large call. A smaller one is taken for a large one of the same proportions."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """An update with the roles of its indices, and numbers for all extents. ends: those that are symbolic, for which the numbers are large, or a call's. made: operands that are made a block at a time, and are in L1 for it."""

    scop: Scop
    model: StatementModel
    sides: Sides
    ends: Mapping[str, Affine]
    made: frozenset[str] = frozenset()

    @property
    def statement(self) -> Statement:
        return self.scop.statements[self.model.name]

    @property
    def is_alone(self) -> bool:
        """Whether nothing reads the sums in this region."""
        array = self.statement.target.array
        return not any(read.tensor == array for s in self.scop.statements.values() for read in reads_of(s.value))

    @property
    def is_constant(self) -> bool:
        """Whether the vector operand never changes."""
        return self.scop.arrays[self.sides.operand.array].constant

    @property
    def is_read_in_place(self) -> bool:
        """Whether an operand has narrower numbers than what is computed with, or is made in this region: no copies are made of it."""
        arrays = [self.scop.arrays[read.tensor] for read in reads_of(self.statement.value)]
        return any(a.kind == "local" or a.dtype.itemsize != self.model.itemsize for a in arrays)

    @property
    def reads_windows(self) -> bool:
        return any(not is_plain(read.subscripts) for read in reads_of(self.statement.value))

    def extents(self, indices: Iterable[str]) -> tuple[Affine, ...]:
        """Of these indices, symbolic where they are."""
        return tuple(self.ends.get(i, affine(self.model.extents[i])) for i in indices)


def at_large(scop: Scop, model: StatementModel) -> Contraction | None:
    """The contraction with large numbers for symbolic extents, in strides, too; None for any other statement."""
    ends = _symbolic_ends(scop, scop.statements[model.name], model)
    if ends is None:
        return None
    if ends:
        model = _enlarged(scop, model, ends)
    sides = sides_of(model)
    return None if sides is None else Contraction(scop, model, sides, ends)


def at_hand(scop: Scop, model: StatementModel) -> Contraction | None:
    """The contraction with the numbers of the call at hand, in strides, too; None where its extents are known anyway, where these numbers are not, or are too small to say which index is contiguous."""
    statement = scop.statements[model.name]
    ends = _symbolic_ends(scop, statement, model)
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
    return None if sides is None else Contraction(scop, made, sides, ends)


def _symbolic_ends(scop: Scop, statement: Statement, model: StatementModel) -> dict[str, Affine] | None:
    """The symbolic extents of an update whose operands are whole when it runs, each read once, by indices that start at 0 (plain ones, but for windows of a broadcast operand);
    None for any other statement."""
    if statement.kind != "update" or statement.argument is not None or statement.loop_depth:
        return None
    reads = list(dict.fromkeys(reads_of(statement.value)))
    arrays = [read.tensor for read in reads]
    if len(set(arrays)) != len(arrays) or any(scop.arrays[a].kind not in ("input", "local") for a in arrays):
        return None
    accesses = [*(read.subscripts for read in reads), statement.target.subscripts]
    plain = [is_plain(subscripts) for subscripts in accesses]
    numbers = any(is_number(s) for subscripts in accesses for s in subscripts)
    if numbers and ((scop.sizes and not _whole(scop, reads)) or any(map(is_number, accesses[-1]))):
        return None
    # Windows of a broadcast operand are read where they lie.
    if not plain[-1] or not all(isinstance(s, Affine) for subscripts in accesses for s in subscripts):
        return None
    if not all(plain) and _vector_reads(statement, reads, plain):
        return None
    if scop.arrays[statement.target.array].dtype.itemsize != model.itemsize:
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


def _whole(scop: Scop, reads: Sequence[Read]) -> bool:
    """Whether no read is a slice: subscripts that are numbers stand where there is one element."""
    places = ((s, extent) for r in reads for s, extent in zip(r.subscripts, scop.arrays[r.tensor].shape, strict=True))
    return all(extent == affine(1) for subscript, extent in places if is_number(subscript))


def _vector_reads(statement: Statement, reads: Sequence[Read], plain: Sequence[bool]) -> bool:
    """Whether one of the reads that are not plain moves along with the result's last dimension."""
    last = statement.target.subscripts[-1:]
    lanes = variables_in(last)
    others = (read for read, known in zip(reads, plain, strict=False) if not known)
    return any(isinstance(s, Affine) and s.variables() & lanes for read in others for s in read.subscripts)


def _enlarged(scop: Scop, model: StatementModel, ends: Mapping[str, Affine]) -> StatementModel:
    """The model with a large number for each symbolic extent, in strides, too."""
    large = affine(UNBOUNDED)
    arrays = {
        name: replace(array, shape=tuple(extent if extent.is_constant else large for extent in array.shape))
        for name, array in scop.arrays.items()
    }
    extents = {**model.extents, **dict.fromkeys(ends, UNBOUNDED)}
    made = model_statement(scop.statements[model.name], replace(scop, arrays=arrays), extents)
    return replace(made, likely=_likely(scop, model, ends))


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
            if isinstance(subscript, Affine) and subscript.name in statement.indices:
                ends.setdefault(subscript.name, extent)
    if set(ends) != set(statement.indices):
        return None
    limits = " and ".join(f"0 <= {i} < {ends[i].isl_text()}" for i in statement.indices)
    box = isl.Set(f"{parameters_text(scop.sizes)}{{ {statement.name}[{', '.join(statement.indices)}] : {limits} }}")
    known = scop.context
    if not box.intersect_params(known).is_equal(statement.domain.intersect_params(known)):
        return None
    return {index: end for index, end in ends.items() if not end.is_constant}
