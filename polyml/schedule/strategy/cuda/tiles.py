"""The model of a contraction in tiles on a GPU: which of its indices are rows and columns of a block, how many of them a thread owns, how deep a tile of the
reduction is, and which operands are staged through shared memory.

A block of TY x TX threads computes (TY * R) x (TX * C) elements, R x C per thread. Rows of a thread are TY apart; its columns are vectors of neighbours where an operand
is contiguous along them, TX vectors apart, else single elements TX apart: neighbouring threads read neighbouring words of shared memory.
All sizes follow from the target: registers, shared memory, cores. Where rows and columns are short, a thread has `several` iterations of another index of the result as well, one that moves
with the rows' operand, or with the columns'.

Source: Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra" (SC 2008).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, gcd, prod
from operator import itemgetter

from polyml.expressions import Apply, Read, plain_indices, reads_of, walk
from polyml.gpu_core import ISSUE, L2_RATE
from polyml.records import dataclass
from polyml.schedule.boxes import box_of
from polyml.schedule.cost import StatementModel
from polyml.schedule.strategy.cuda.room import shared_room
from polyml.schedule.strategy.cuda.tile_plan import Side, TilePlan, moves
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["plan_tiles"]

DEPTH = 16
"""Iterations of the reduction per tile: enough that a barrier costs little."""

LEAST_TILE = 32 * 32
"""Elements of the result in the smallest tile."""

REGISTERS, OTHER, EDGE = 128, 20, 8
"""Of a thread where a core is to hold 16 warps (65536 for 512 threads), which is what hides the wait at a barrier; what addresses and loops take of them, and in addition each operand whose tiles are not
all whole. Beyond, the compiler spills or a core holds one block (by ptxas's reports on the benchmark's cases)."""

FEW = 6
"""Elements per thread of one side, below which loads from shared memory take longer than what is computed with them."""

LARGE = 2048
"""What an extent in sizes is taken for: two waves of the largest tiles on a device with a hundred cores."""


def plan_tiles(scop: Scop, model: StatementModel, target: Target) -> TilePlan | None:
    """The tiles of one update; None where it is no contraction whose operands are used again, or there is too little work."""
    statement = scop.statements[model.name]
    extents = box_of(scop, statement) if _is_contraction(statement) else None
    if extents is None:
        return None
    many = {index: extent.constant if extent.is_constant else LARGE for index, extent in extents.items()}
    roles = _roles(statement, model, many)
    if roles is None or prod(many[i] for i in (*roles.outer, roles.y, roles.x)) < LEAST_TILE * target.cores // 2:
        return None
    depth = _depths(roles.reduced, many)
    if prod(depth.values()) < 4:
        return None
    arrays = (*(read.tensor for read in roles.operands), statement.target.array)
    itemsize = max(scop.arrays[array].dtype.itemsize for array in arrays)

    def with_costs(plans: Iterable[TilePlan]) -> Iterator[tuple[float, TilePlan]]:
        """Those that fit."""
        for plan in plans:
            cost = _cost(plan, many, itemsize, target)
            if cost is not None:
                yield cost, plan

    of_each_shape = (
        TilePlan(
            statement=model.name, rows=rows, columns=columns, steps=statement.indices[: statement.loop_depth], outer=roles.outer, reduced=roles.reduced,
            depth=depth, extents=extents, operands=roles.operands, crossed=roles.crossed,
        )
        for rows, columns in _sides(roles.y, roles.x, 16 // itemsize if roles.in_vectors else 1)
    )  # fmt: skip
    best = min(with_costs(of_each_shape), key=itemgetter(0), default=None)
    if best is None:
        return None
    if max(best[1].rows.own, best[1].columns.own) < FEW and not best[1].steps:
        best = min((best, *with_costs(_several(best[1]))), key=itemgetter(0))
    return best[1]


@dataclass(frozen=True, slots=True)
class _Roles:
    """What a contraction's indices and operands are for a block of threads.

    x: along the result's memory, for columns of a tile. y: for its rows: with another y, elements of an operand along x are used again. outer: the other indices of the result.
    reduced: the innermost last. operands: those that are staged, each used again along x or along y. crossed: those of them whose memory goes along neither. in_vectors: operands along x
    are contiguous there.
    """

    x: str
    y: str
    outer: tuple[str, ...]
    reduced: tuple[str, ...]
    operands: tuple[Read, ...]
    crossed: frozenset[Read]
    in_vectors: bool


def _roles(statement: Statement, model: StatementModel, many: Mapping[str, int]) -> _Roles | None:
    """The roles; None where the result is not contiguous along x, or no operand is used again. many: extents in numbers."""
    own = statement.indices[statement.loop_depth :]
    out = next(a for a in model.accesses if a.write)
    free = [index for index in own if out.stride(index) != 0]
    reduced = [index for index in own if out.stride(index) == 0]
    if not reduced or len(free) < 2:
        return None
    reads = list(dict.fromkeys(reads_of(statement.value)))
    x = min(free, key=lambda index: (abs(out.stride(index) or 1 << 40), index))
    along = [read for read in reads if moves(read, x)]
    rows = [i for i in free if i != x and any(not moves(read, i) for read in along)]
    shared = [i for i in rows if any(moves(read, i) and not moves(read, x) for read in reads)]
    if out.stride(x) != 1 or not shared:
        return None
    y = max(shared, key=lambda index: many[index])
    operands = tuple(read for read in reads if moves(read, x) != moves(read, y))
    if not all(_is_plain(statement, read) for read in operands):
        return None
    strides = [access for access in model.accesses if not access.write]
    reduced.sort(key=lambda i: -min(abs(a.stride(i) or 1 << 40) for a in strides))
    return _Roles(
        x=x,
        y=y,
        outer=tuple(i for i in free if i not in (x, y)),
        reduced=tuple(reduced),
        operands=operands,
        crossed=frozenset(read for read in operands if not _last(read) & {x, y}),
        in_vectors=all(x in _last(read) for read in along if read in operands),
    )


def _several(found: TilePlan) -> Iterator[TilePlan]:
    """The plan with more elements per thread, of outer indices whose extents they divide, one per side: where rows and columns are short there is nothing else to share loads with."""
    sides = (found.rows, found.columns)
    counts: list[list[tuple[tuple[str, int], ...]]] = []
    for side, other in zip(sides, reversed(sides), strict=True):
        mine = [read for read in found.operands if moves(read, side.index) and not moves(read, other.index)]
        others = [read for read in found.operands if read not in mine]
        fitting = [i for i in found.outer if any(moves(r, i) for r in mine) and not any(moves(r, i) for r in others)]
        choices: list[tuple[tuple[str, int], ...]] = [()]
        for i in fitting:
            extent = found.extents[i]
            choices += [((i, n),) for n in (2, 3, 4) if extent.is_constant and extent.constant % n == 0]
        counts.append(choices)
    height, width = (found.extents[side.index] for side in sides)
    for threads, across in ((16, 16), (8, 16), (16, 8), (8, 8)) if height.is_constant and width.is_constant else ():
        rows = replace(found.rows, threads=threads, groups=ceil(height.constant / threads))
        groups = ceil(width.constant / (across * found.columns.vector))
        columns = replace(found.columns, threads=across, groups=groups)
        if rows.groups > 8 or columns.own > 8:
            continue
        for above, beside in product(counts[0], counts[1]):
            if above or beside:
                yield replace(found, rows=rows, columns=columns, several=(*above, *beside))


def _is_contraction(statement: Statement) -> bool:
    """A plain reduction without conditions on what it reads."""
    if statement.kind != "update" or statement.argument is not None:
        return False
    if any(isinstance(e, Apply) and e.op == "select" for e in walk(statement.value)):
        return False
    names = plain_indices(statement.target.subscripts)
    if None in names or len(set(names)) != len(names):
        return False
    return all(isinstance(s, Affine) for read in reads_of(statement.value) for s in read.subscripts)


def _is_plain(statement: Statement, read: Read) -> bool:
    """Whether the subscripts are sums of indices, of another array than the result."""
    own = statement.indices[statement.loop_depth :]
    for subscript in read.subscripts:
        if not isinstance(subscript, Affine):
            return False
        if not all(isinstance(a, str) and (c > 0 or a not in own) for a, c in subscript.terms):
            return False
    return read.tensor != statement.target.array


def _last(read: Read) -> frozenset[str]:
    """The indices that the last subscript moves with."""
    last = read.subscripts[-1]
    return last.variables() if isinstance(last, Affine) else frozenset[str]()


def _depths(reduced: Sequence[str], extents: Mapping[str, int]) -> dict[str, int]:
    """Iterations per tile, from the innermost index outwards, until there are enough."""
    left, depth = DEPTH, {}
    for index in reversed(reduced):
        depth[index] = max(1, min(extents[index], left))
        left //= depth[index]
    return depth


def _sides(y: str, x: str, vector: int) -> Iterator[tuple[Side, Side]]:
    for threads, rows, columns in product((16, 8), (8, 6, 4, 3, 2), (8, 6, 4, 2)):
        lanes = gcd(vector, columns)
        yield Side(y, threads, rows, 1), Side(x, 16, columns // lanes, lanes)


def _cost(plan: TilePlan, extents: Mapping[str, int], itemsize: int, target: Target) -> float | None:
    """Cycles of the busiest core, with numbers for all extents; None where registers or shared memory are too small."""
    words, threads = max(1, itemsize // 4), plan.rows.threads * plan.columns.threads
    own = plan.own(plan.rows) * plan.own(plan.columns)
    if words * (own + _fragments(plan)) + OTHER + EDGE * _edges(plan) > min(REGISTERS, target.vector_registers + 1):
        return None
    depth = prod(plan.depth.values())
    boxes = {read: plan.footprint(read.subscripts, _names(plan))[1] for read in plan.operands}
    tile = sum(map(prod, boxes.values())) * itemsize
    padded = sum(prod(plan.shape(read, box, itemsize)) for read, box in boxes.items()) * itemsize
    if 2 * padded > shared_room(target) or threads > target.block_threads:
        return None
    blocks = prod(ceil(extents[i] / plan.size(i)) for i in plan.free)
    waves = ceil(blocks / target.cores)
    arithmetic = threads / 32 * own * words / ISSUE
    # A warp's read of 16 bytes per lane takes two turns where neighbouring lanes share them, as along rows, else up to four.
    loads = threads / 32 * (2 * plan.own(plan.rows) + 3 * plan.own(plan.columns)) * itemsize / 16
    traffic = tile / depth / L2_RATE
    return waves * (max(arithmetic, loads, traffic) + 0.2 * (arithmetic + loads + traffic) + 30 / depth)


def _fragments(plan: TilePlan) -> int:
    """Elements of the operands that a thread holds at a time: its own rows and columns, and four iterations of those that are read along the reduction, 16 bytes at a time."""
    total = 0
    for read in plan.operands:
        own = plan.own(plan.rows if moves(read, plan.rows.index) else plan.columns)
        total += own * (4 if read in plan.crossed else 1)
    return total


def _edges(plan: TilePlan) -> int:
    """Operands with tiles that are not whole, whose copies have bounds."""
    ragged = {i for i, size in plan.visit if plan.extents[i] % size != affine(0)}
    return sum(any(moves(read, i) for i in ragged) for read in plan.operands)


def _names(plan: TilePlan) -> list[str]:
    return [f"v{k}" for k in range(len(plan.visit))]
