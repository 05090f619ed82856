"""Products that read one matrix, some along its rows and some down its columns, take it row by row together.

q = A p sums along rows, s = A^T r over them. Each by itself reads the whole matrix, and where that does not stay in cache, memory decides. What A^T r adds to s for a few
rows needs those rows only, so a block of rows that A p has brought to cache serves both: every statement that follows the rows goes through them in blocks, in one loop. Parts of
the blocks have sums of their own, which are combined at the end; the cut depends on sizes alone, so that threads may share the parts and results are the same for any number of them.

Rewrite: for i, j: q[i] += A[i, j] * p[j];  for j, i: s[j] += r[i] * A[i, j]
    ->  for parts c: (for j: s_part[c, j] = 0;  for blocks b: (for i in b, j: q[i] += A[i, j] * p[j];  for j, i in b: s_part[c, j] += r[i] * A[i, j]));
        for j, c: s[j] += s_part[c, j]

When: the matrix does not fit in L2, or in L1 where that holds blocks of it, one statement sums over its rows and another does not, and nothing that follows the rows needs a sum over all of them (A^T (A x) does
not, A (A^T y) does). Contractions are left to tiles.

Sizes that stay symbolic count as large; whether they are is asked at each call (`RowSums.worth`). Blocks of 16 rows are then dealt out to eight parts in turns.

Source: loop fusion for BLAS-2 sequences, Howell, Demmel, Fulton, Hammarling and Marmol, "Cache efficient bidiagonalization using BLAS 2.5 operators" (ACM TOMS 34, 2008); partial
sums are rfactor's (codegen/passes/sums/partial_sums.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import groupby
from math import inf

import islpy as isl

from polyml.expressions import reads_of, substitute
from polyml.new_names import underscored
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.gpu.partial_sums import parts_of_sum
from polyml.schedule.ilp.driver import Around, Outline
from polyml.schedule.matching import Matcher
from polyml.schedule.schedule import Product
from polyml.schedule.sweeps.row_cuts import BEYOND, RowCut, any_cut, elements_of, known_cut
from polyml.schedule.sweeps.row_registers import Together, sums_together
from polyml.schedule.written import in_order, with_statements
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import is_known
from polyml.target import Target

__all__ = ["RowSums", "cut", "large_matrices", "plan_row_sums"]

_ROW = 3
"""Indices of a statement that has one instance for each row: the part's, the block's and the row's."""

_HEAVY = 6
"""Instances per element touched from which a statement counts as a contraction."""


@dataclass(frozen=True, slots=True)
class RowSums:
    """The scop in blocks of rows.

    before, starts, rows, after: its statements by the place where they run: ahead, at the start of each part, in each block, at the end.
    parts, blocks: the loops around them, an index for each statement. size: rows of a block. matrix, sums: what they are called, for notes.
    worth: what must hold at a call for it to pay. together: those of `rows` that take elements of the matrix together. near: L1 holds a block.
    """

    scop: Scop
    before: tuple[str, ...]
    starts: tuple[str, ...]
    rows: tuple[str, ...]
    after: tuple[str, ...]
    parts: Mapping[str, str]
    blocks: Mapping[str, str]
    size: int
    count: int
    matrix: str
    sums: tuple[str, ...]
    worth: tuple[Product, ...] = ()
    together: Together | None = None
    near: bool = False

    @property
    def outline(self) -> Outline:
        """The loops around the statements."""
        rows: Outline = self._by_kind() if self.near else (self.rows,)
        if self.together is not None:
            behind = tuple(name for name in self.rows if name in self.together.behind)
            ahead = tuple(name for name in self.rows if name not in self.together.rows and name not in behind)
            rows = (*((ahead,) if ahead else ()), self.together.loops, *((behind,) if behind else ()))
        blocks = Around(self.blocks, parallel=False, inside=rows)
        parts = Around(self.parts, parallel=True, inside=(self.starts, blocks))
        return tuple(stage for stage in (self.before, parts, self.after) if stage)

    def _by_kind(self) -> Outline:
        """What follows the rows, in its order, with numbers of a row by themselves: these have lanes across the rows of a block, sums theirs along the rows."""
        along = {
            name: s.kind in ("init", "update") or len(s.indices) > _ROW for name, s in self.scop.statements.items()
        }
        return tuple(tuple(names) for _, names in groupby(self.rows, key=along.__getitem__))

    def __str__(self) -> str:
        how = " for all that reads them" if self.together is None else ", each element loaded once for all sums"
        if self.together is not None and self.together.late:
            how = f", {' and '.join(sorted(self.together.late))} one block late"
        return (
            f"blocks of {self.size} rows of {self.matrix}{how}; {', '.join(self.sums)}: summed over {self.count} parts"
        )


def large_matrices(scop: Scop, target: Target) -> list[Array]:
    """What does not stay in cache and several statements touch, the largest first."""
    touched = [{a.array for a in _accesses(s)} for s in scop.statements.values()]
    found = (
        a
        for a in scop.arrays.values()
        if len(a.shape) > 1 and (not is_known(a.shape) or elements_of(a) * a.dtype.itemsize >= BEYOND * target.l1_bytes)
    )
    return sorted((a for a in found if sum(a.name in t for t in touched) > 1), key=elements_of, reverse=True)


def plan_row_sums(scop: Scop, matcher: Matcher, models: Mapping[str, StatementModel], target: Target) -> RowSums | None:
    """The blocks for the largest matrix that has such readers; None when there is none. The new scop's dependences are to be computed."""
    if any(s.argument is not None for s in scop.statements.values()) or not in_order(scop):
        return None
    for array in large_matrices(scop, target):
        rows = _rows(scop, array, matcher, models)
        stages = None if rows is None else _stages(scop, matcher, rows)
        if rows is not None and stages is not None:
            return _plan(scop, array, rows, stages, matcher, target)
    return None


@dataclass(frozen=True, slots=True)
class _Rows:
    """Per statement that follows the rows its index along them; which of the statements sum over that; the statements in the order in which they run
    for a block; the dimension of the matrix that rows follow."""

    index: Mapping[str, str]
    sums: tuple[str, ...]
    ordered: tuple[str, ...]
    along: int


def _rows(scop: Scop, array: Array, matcher: Matcher, models: Mapping[str, StatementModel]) -> _Rows | None:
    """The statements that touch the array, when they all follow its rows from the first to the last."""
    strides = array.memory_strides
    along = max(range(len(strides)), key=lambda d: inf if (step := strides[d]) is None else step)
    index: dict[str, str] = {}
    for s in scop.statements.values():
        own = [a.subscripts[along] for a in _accesses(s) if a.array == array.name]
        names = {subscript.name if isinstance(subscript, Affine) else None for subscript in own}
        if names:
            name = names.pop()
            if names or name is None or name not in s.indices:
                return None
            index[s.name] = name
    sums = [name for name, i in index.items() if _sums_over(scop.statements[name], i)]
    ranges = {matcher.values(name, scop.statements[name].indices.index(i)) for name, i in index.items()}
    if len({scop.statements[name].target.array for name in sums}) < len(sums):
        return None
    if not sums or len(sums) == len(index) or len(ranges) > 1:
        return None
    if not all(isinstance(place, Affine) for name in sums for place in scop.statements[name].target.subscripts):
        return None  # a part's sums are those of elements that are known ahead
    if is_known(array.shape) and ranges != {(0, array.shape[along].constant - 1)}:
        return None
    if any(_is_heavy(scop.statements[name], scop, models[name]) for name in index):
        return None
    found = _with_neighbours(scop, matcher, index, sums)
    written = [name for name in scop.statements if name in found]
    # What does not sum over the rows comes first where it can: it brings them to cache in the order of memory.
    waits = any(source in sums and sink in found and sink not in sums for source, sink in matcher.edges)
    ordered = written if waits else sorted(written, key=lambda name: name in sums)
    return _Rows(found, tuple(sums), tuple(ordered), along)


def _accesses(s: Statement) -> list[Access]:
    return [Access(read.tensor, read.subscripts) for read in reads_of(s.value)] + [s.target]


def _sums_over(s: Statement, index: str) -> bool:
    subscripts = (t for t in s.target.subscripts if isinstance(t, Affine))
    return s.kind == "update" and not any(index in t.variables() for t in subscripts)


def _is_heavy(s: Statement, scop: Scop, model: StatementModel) -> bool:
    touched = sum(elements_of(scop.arrays[name]) for name in {a.array for a in _accesses(s)})
    return s.kind == "update" and model.instances >= _HEAVY * touched


def _with_neighbours(scop: Scop, matcher: Matcher, index: dict[str, str], sums: list[str]) -> dict[str, str]:
    """The statements that follow the rows, and those that give them something or take something of the same row."""
    found = dict(index)
    wanted = {
        matcher.values(name, scop.statements[name].indices.index(i)) for name, i in index.items() if name not in sums
    }
    grown = True
    while grown:
        grown = False
        positions = {n: scop.statements[n].indices.index(i) for n, i in found.items() if n not in sums}
        for name, s in scop.statements.items():
            if name in found:
                continue
            for k, i in enumerate(s.indices):
                if not any(matcher.aligned(name, k, other, position) for other, position in positions.items()):
                    continue
                free = matcher.values(name, k) in wanted and not _sums_over(s, i)
                if free and s.domain.is_box() and matcher.carries_nothing({**positions, name: k}):
                    found[name], grown = i, True
                    break
            if grown:
                break
    return found


def _stages(scop: Scop, matcher: Matcher, rows: _Rows) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """What runs before the rows, and what after them; None when something that follows the rows needs all of them."""
    positions = {
        name: scop.statements[name].indices.index(i) for name, i in rows.index.items() if name not in rows.sums
    }
    if not matcher.carries_nothing(positions):
        return None
    results = {scop.statements[name].target.array for name in rows.sums}
    edges = matcher.edges
    for name in rows.sums:
        k = scop.statements[name].indices.index(rows.index[name])
        near = [n for n in rows.index if n not in rows.sums and {(n, name), (name, n)} & edges]
        if not all(matcher.carries_nothing({n: positions[n], name: k}) for n in near):
            return None
    if any(a.array in results for n in positions for a in _accesses(scop.statements[n])):
        return None
    if any(read.tensor in results for n in rows.sums for read in reads_of(scop.statements[n].value)):
        return None
    before: set[str] = set()
    found = set(rows.index)
    while found:
        found = {source for source, sink in edges if sink in found and source not in rows.index} - before
        before |= found
    if any(source in rows.index and sink in before for source, sink in edges):
        return None
    # What starts a sum is wanted where it is combined.
    starts = {n for n in before if scop.statements[n].kind == "init" and scop.statements[n].target.array in results}
    before -= starts
    moved = {scop.statements[n].target.array for n in starts}
    if any(a.array in moved for n in before for a in _accesses(scop.statements[n])):
        return None
    others = [n for n in scop.statements if n not in rows.index]
    return tuple(n for n in others if n in before), tuple(n for n in others if n not in before)


def _plan(
    scop: Scop,
    array: Array,
    rows: _Rows,
    stages: tuple[tuple[str, ...], tuple[str, ...]],
    matcher: Matcher,
    target: Target,
) -> RowSums | None:
    sums = [scop.arrays[scop.statements[name].target.array] for name in rows.sums]
    together = sums_together(scop, array.name, rows.index, rows.along, rows.ordered, matcher)
    if all(is_known(a.shape) for a in (array, *sums)):
        once = together is not None and not together.late
        cut_at = known_cut(array, rows.along, sums, target, once=once)
    else:
        cut_at = any_cut(array, rows.along, sums, target)
    if cut_at is None:
        return None
    parted = _InParts(scop, rows, cut_at, dict(scop.arrays))
    for name in rows.ordered:
        parted.take(name)
    before, after = stages
    ordered = {n: scop.statements[n] for n in before} | parted.starts | parted.inside
    # Sums are complete before anything but what starts them.
    written = {c.target.array for c in parted.combined}
    first = [n for n in after if scop.statements[n].kind == "init" and scop.statements[n].target.array in written]
    last = {n: scop.statements[n] for n in first} | {c.name: c for c in parted.combined}
    last |= {n: scop.statements[n] for n in after if n not in last}
    made = with_statements(scop, ordered | last, parted.arrays)
    if together is not None:
        # Nothing waits for a block that is in L1.
        together = None if cut_at.near else replace(together, rows={n: parted.within[n] for n in together.rows})
    return RowSums(
        made, before, tuple(parted.starts), tuple(parted.inside), tuple(last), parted.parts, parted.blocks, cut_at.size, cut_at.count, array.name,
        tuple(scop.statements[name].target.array for name in rows.sums), cut_at.worth, together, cut_at.near,
    )  # fmt: skip


@dataclass(slots=True)
class _InParts:
    """The statements that follow the rows, in parts and blocks of these. starts, combined: what sets and adds up the parts of sums; parts, blocks, within: each statement's indices of the part, of the block, and of the row there."""

    scop: Scop
    rows: _Rows
    cut_at: RowCut
    arrays: dict[str, Array]
    starts: dict[str, Statement] = field(default_factory=dict)
    inside: dict[str, Statement] = field(default_factory=dict)
    combined: list[Statement] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    within: dict[str, str] = field(default_factory=dict)

    def take(self, name: str) -> None:
        if self.cut_at.part is None:
            self._in_turns(name)
        else:
            self._one_by_one(name, self.cut_at.part)

    def _in_turns(self, name: str) -> None:
        """Blocks first: each of a number of parts has every count-th of them."""
        index = self.within[name] = self.rows.index[name]
        s = cut(self.scop.statements[name], index, self.cut_at.size, f"{index}_block")
        index = s.indices[0]
        if name in self.rows.sums:
            self.blocks[name] = self._summed(name, s, index, None)
            return
        # What is left of the block's number is the part's.
        self.inside[name] = cut(s, index, self.cut_at.count, f"{index}_in")
        self.parts[name], self.blocks[name] = index, self.inside[name].indices[0]

    def _one_by_one(self, name: str, part: int) -> None:
        """Parts first, of neighbouring rows, and blocks of these."""
        s, index = self.scop.statements[name], self.rows.index[name]
        if name in self.rows.sums:
            index = self._summed(name, s, index, part)
        else:
            self.inside[name] = cut(s, index, part, f"{index}_part")
            self.parts[name] = self.inside[name].indices[0]
        self.inside[name] = cut(self.inside[name], index, self.cut_at.size, f"{index}_block")
        self.blocks[name] = self.inside[name].indices[0]
        self.within[name] = index

    def _summed(self, name: str, s: Statement, index: str, part: int | None) -> str:
        """The sum by parts of the index: what stands in its place within a part."""
        (local,), (init, update, combine) = parts_of_sum(self.scop, s, index, part, self.cut_at.count)
        self.arrays[local.name] = local
        self.starts[init.name] = init
        self.parts |= {init.name: init.indices[0], name: update.indices[0]}
        self.combined.append(combine)
        self.inside[name] = update
        return update.indices[1 + s.indices.index(index)]


def cut(s: Statement, index: str, size: int, wish: str) -> Statement:
    """The statement with `size * block + index` for the index, the block its first index."""
    block = underscored(wish, s.indices)
    value = {index: affine(block) * size + affine(index)}
    indices = (block, *s.indices)
    old = ", ".join(f"{size}*{block} + {index}" if i == index else i for i in s.indices)
    into = isl.Map(f"{{ {s.name}[{', '.join(indices)}] -> {s.name}[{old}] : 0 <= {index} < {size} }}")
    domain = s.domain.apply(into.reverse())
    for position, name in enumerate(indices):
        domain = domain.set_dim_name(isl.dim_type.set, position, name)
    subscripts = tuple(
        t.substitute(value) if isinstance(t, Affine) else substitute(t, value) for t in s.target.subscripts
    )
    target = Access(s.target.array, subscripts)
    return replace(s, indices=indices, domain=domain, target=target, value=substitute(s.value, value))
