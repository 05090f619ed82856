"""Operands of a contraction that are made a block of the sum at a time, right before the register tiles that read them.

`e[b, s, d] = exp(k[b, s, d])` ahead of `m[b, d, f] += e[b, s, d] * v[b, s, f]` and of `z[b, d] += e[b, s, d]`: for each block of s the elements of e, what they add to z, and their products. The array between is as
large as a block, and k comes from memory while products are computed. Each element is made once, as blocks of the result's columns are blocks of the operand too, or there is but one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from polyml.expressions import Read, Subscript, plain_indices, reads_of
from polyml.records import dataclass
from polyml.schedule.blocking.blocks import Blocking
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["Makers", "in_copies", "made_operand", "makers_of"]

SHARE = 4
"""Of L2, what a block of the operand may take: the other operand's block is in there, too, and what comes next."""


@dataclass(frozen=True, slots=True)
class Makers:
    """operand: the array that is made; begins: what sums over it begin with; steps: what makes it and then adds it up; indices: per statement, the contraction's own among them, the name of each index of the contraction; lanes: the one along which the operand is contiguous."""

    operand: str
    begins: tuple[str, ...]
    steps: tuple[str, ...]
    indices: Mapping[str, Mapping[str, str]]
    lanes: str

    @property
    def statements(self) -> tuple[str, ...]:
        return (*self.begins, *self.steps)

    def moves_with(self, index: str) -> bool:
        """Whether the operand has the index."""
        return index in self.indices[self.steps[0]]


def makers_of(scop: Scop, plan: Blocking, target: Target) -> Makers | None:
    """What makes an operand of the contraction, where that and sums over it are all that there is beside the contraction, and a block of it stays in L2; None elsewhere."""
    core = scop.statements[plan.statement]
    if plan.streams or plan.turned or plan.across or plan.ends or plan.result_order:
        return None
    read = made_operand(scop, core)
    found = None if read is None else _all_of(scop, core, read, plan)
    if read is None or found is None or not _is_made_once(scop, plan, read, target, sums=len(found.begins)):
        return None
    return found


def made_operand(scop: Scop, core: Statement) -> Read | None:
    """The first read of what the region makes itself, element by element."""
    for read in reads_of(core.value):
        own = plain_indices(read.subscripts)
        if scop.arrays[read.tensor].kind == "local" and None not in own and len(set(own)) == len(own):
            return read
    return None


def in_copies(plan: Blocking, operand: str, sums: int) -> bool:
    """Whether the copies of a block make what they would copy: all that reads the operand. sums: over it, beside the contraction."""
    packed = plan.packed and not (plan.in_place or plan.strips or plan.rest)
    return packed and operand == plan.vector_operand and not sums


def _is_made_once(scop: Scop, plan: Blocking, read: Read, target: Target, *, sums: int) -> bool:
    """Whether no block of the nest makes what another one has made, and L2 holds what each of them makes."""
    own = [i for i in plain_indices(read.subscripts) if i is not None]
    if plan.lanes in own:
        if plan.strips:
            return False
        if in_copies(plan, read.tensor, sums):
            return True
    elif plan.row_operand is not None:
        return False
    sides = [] if plan.strips else [i for i in (*plan.vector_side, plan.lanes) if plan.blocked(i)]
    # Columns that are left belong to the last whole block, what they read of the operand to none.
    if any(i not in own for i in sides) or (plan.rest and plan.lanes in sides):
        return False
    blocks = {i: plan.sizes[i] for i in (*plan.reduced, *sides)} | dict.fromkeys(plan.batch, 1)
    return (
        prod(blocks.get(i, plan.extents[i]) for i in own) * scop.arrays[read.tensor].dtype.itemsize
        <= target.l2_bytes // SHARE
    )


def _all_of(scop: Scop, core: Statement, read: Read, plan: Blocking) -> Makers | None:
    """The scop as what makes this operand, sums over it, and the contraction."""
    by_array: dict[str, list[Statement]] = {}
    for statement in scop.statements.values():
        by_array.setdefault(statement.target.array, []).append(statement)
    indices: dict[str, Mapping[str, str]] = {}
    for array, statements in by_array.items():
        if array == core.target.array:
            found = _with_init(core, statements, {i: i for i in core.indices})
        elif array == read.tensor:
            found = _making(statements, read)
        else:
            found = _summing(statements, read)
        if found is None or any(
            r.tensor in by_array and r.tensor != read.tensor for s in statements for r in reads_of(s.value)
        ):
            return None
        indices |= found
    (lanes,) = plain_indices(read.subscripts[-1:])
    if read.tensor not in by_array or lanes is None or (lanes in plan.reduced and len(by_array) > 2):
        return None  # sums would be over lanes
    others = [s for s in scop.statements.values() if s.target.array not in (core.target.array, read.tensor)]
    begins = tuple(s.name for s in others if s.kind == "init")
    steps = (by_array[read.tensor][0].name, *(s.name for s in others if s.kind == "update"))
    return Makers(read.tensor, begins, steps, indices, lanes)


def _making(statements: Sequence[Statement], read: Read) -> dict[str, Mapping[str, str]] | None:
    """The one statement that makes the operand, element by element."""
    maker = statements[0]
    places = _renamed(read.subscripts, maker.target.subscripts)
    alone = len(statements) == 1 and maker.kind == "assign" and not maker.loop_depth and maker.argument is None
    return {maker.name: places} if alone and places is not None and set(places.values()) == set(maker.indices) else None


def _summing(statements: Sequence[Statement], read: Read) -> dict[str, Mapping[str, str]] | None:
    """A sum of functions of the operand, whose elements lie along the operand's own lanes."""
    update = statements[-1]
    reads = {r for r in reads_of(update.value) if r.tensor == read.tensor}
    if update.kind != "update" or update.loop_depth or update.argument is not None or len(reads) != 1:
        return None
    places = _renamed(read.subscripts, reads.pop().subscripts)
    if places is None or set(places.values()) != set(update.indices):
        return None
    last = read.subscripts[-1]
    lanes = places[last.name] if isinstance(last, Affine) and last.name is not None else None
    return _with_init(update, statements, places) if lanes in plain_indices(update.target.subscripts) else None


def _with_init(
    update: Statement, statements: Sequence[Statement], places: Mapping[str, str]
) -> dict[str, Mapping[str, str]] | None:
    """The names of indices for an update and the statement that begins its sums."""
    if len(statements) != 2 or statements[0].kind != "init" or statements[1] is not update:
        return None
    own = _renamed(update.target.subscripts, statements[0].target.subscripts)
    if own is None or set(own.values()) != set(statements[0].indices):
        return None
    return {statements[0].name: {i: own[name] for i, name in places.items() if name in own}, update.name: places}


def _renamed(names: Sequence[Subscript], others: Sequence[Subscript]) -> dict[str, str] | None:
    """From the index of each subscript to the other's at the same place; None where one of them is no index by itself, or one comes twice."""
    pairs = list(zip(plain_indices(names), plain_indices(others), strict=True))
    found = {a: b for a, b in pairs if a is not None and b is not None}
    return found if len(found) == len(pairs) == len(set(found.values())) else None
