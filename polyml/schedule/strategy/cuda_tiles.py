"""The model of a contraction in tiles on a GPU: which of its indices are rows and columns of a block, how many of them a thread owns, how deep a tile of the
reduction is, and which operands are staged through shared memory.

A block of TY x TX threads computes (TY * R) x (TX * C) elements, R x C per thread. Rows of a thread are TY apart; its columns are vectors of neighbours where an operand
is contiguous along them, TX vectors apart, else single elements TX apart: neighbouring threads read neighbouring words of shared memory.
All sizes follow from the target: registers, shared memory, cores.

Source: Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra" (SC 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, gcd, prod

from polyml.expressions import Apply, Read, Subscript, reads_of, walk
from polyml.gpu_core import ISSUE, L2_RATE
from polyml.records import dataclass
from polyml.schedule.boxes import box_of
from polyml.schedule.cost import StatementModel
from polyml.schedule.strategy.cuda_room import shared_room
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["Side", "TilePlan", "plan_tiles"]

DEPTH = 16
"""Iterations of the reduction per tile: enough that a barrier costs little."""

LEAST_TILE = 32 * 32
"""Elements of the result in the smallest tile."""

REGISTERS, OTHER, EDGE = 128, 20, 8
"""Of a thread where a core is to hold 16 warps (65536 for 512 threads), which is what hides the wait at a barrier; what addresses and loops take of them, and in addition each operand whose tiles are not
all whole. Beyond, the compiler spills or a core holds one block (by ptxas's reports on the benchmark's cases)."""

LARGE = 2048
"""What an extent in sizes is taken for: two waves of the largest tiles on a device with a hundred cores."""


@dataclass(frozen=True, slots=True)
class Side:
    """An index of the result in a block: `groups` per thread, `threads * vector` apart, of `vector` neighbours."""

    index: str
    threads: int
    groups: int
    vector: int

    @property
    def size(self) -> int:
        return self.threads * self.groups * self.vector

    @property
    def own(self) -> int:
        """Iterations of a thread."""
        return self.groups * self.vector

    def digits(self, name: str) -> tuple[Affine, Affine, Affine, Affine]:
        """Number of the tile, group, thread, neighbour; of the index under another name."""
        value = affine(name)
        step = self.threads * self.vector
        return value // self.size, value // step % self.groups, value // self.vector % self.threads, value % self.vector


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """One update statement's tiles. steps: sequential loops around it, each iteration a launch; outer: other indices of the result, one iteration per block; reduced: indices of the
    reduction, outermost first; depth: of those, iterations per tile. extents: of all but the steps, numbers or in sizes. operands: the reads that are staged; crossed: of those, what
    neighbouring threads read along a column."""

    statement: str
    rows: Side
    columns: Side
    steps: tuple[str, ...]
    outer: tuple[str, ...]
    reduced: tuple[str, ...]
    depth: Mapping[str, int]
    extents: Mapping[str, Affine]
    operands: tuple[Read, ...]
    crossed: frozenset[Read]

    @property
    def free(self) -> tuple[str, ...]:
        """The result's indices."""
        return (*self.outer, self.rows.index, self.columns.index)

    @property
    def visit(self) -> tuple[tuple[str, int], ...]:
        """The indices whose tile numbers tell visits apart, with the tiles' sizes; those of the reduction last."""
        blocks = ((i, 1) for i in self.outer)
        sides = ((side.index, side.size) for side in (self.rows, self.columns))
        return (
            *blocks,
            *sides,
            *((i, self.depth[i]) for i in self.reduced if self.extents[i] != affine(self.depth[i])),
        )

    @property
    def stages(self) -> int:
        """Tiles of each operand at a time: while one is read the next is on its way."""
        last = self.visit[-1][0]
        return 2 if last in self.reduced and self.count(last) != affine(1) else 1

    def size(self, index: str) -> int:
        """Iterations of an index in one visit: a number also where the extent is none, which is never one tile."""
        tiled = dict(self.visit).get(index, 1 if index in self.steps else None)
        return self.extents[index].constant if tiled is None else tiled

    def count(self, index: str) -> Affine:
        """Tiles along an index."""
        return (self.extents[index] + (self.size(index) - 1)) // self.size(index)

    def footprint(
        self, subscripts: Sequence[Subscript], visit: Sequence[str]
    ) -> tuple[tuple[Affine, ...], tuple[int, ...]]:
        """The box of elements that linear subscripts reach in a visit: its first element in the visit's numbers and the steps, and its extents."""
        firsts = {index: affine(name) * size for (index, size), name in zip(self.visit, visit, strict=True)}
        known = {index: firsts.get(index, affine(0)) for index in self.extents}
        first, box = [], []
        for subscript in subscripts:
            assert isinstance(subscript, Affine), "internal: a staged operand has computed subscripts"
            first.append(subscript.substitute(known))
            moving = subscript.variables() & self.extents.keys()
            box.append(1 + sum((subscript.stride(index) or 0) * (self.size(index) - 1) for index in moving))
        return tuple(first), tuple(box)

    def shape(self, read: Read, box: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """Of an operand's tile in shared memory: rows are padded where neighbouring threads read along a column, since 16 bytes bring them to other banks. box: as of `footprint`."""
        row = max((d for d, extent in enumerate(box) if extent > 1), default=len(box) - 1)
        pad = max(1, 16 // itemsize) if read in self.crossed else 0
        return tuple(extent + pad * (d == row) for d, extent in enumerate(box))

    def __str__(self) -> str:
        tile = f"tiles of {self.rows.size} {self.rows.index} x {self.columns.size} {self.columns.index}"
        depth = " x ".join(f"{self.depth[i]} {i}" for i in self.reduced if self.depth[i] > 1)
        own = f"{self.rows.own} x {self.columns.own} per thread"
        return f"{tile} x {depth}, {own}; {' and '.join(read.tensor for read in self.operands)} staged through shared memory{', twice' * (self.stages > 1)}"


def plan_tiles(scop: Scop, model: StatementModel, target: Target) -> TilePlan | None:
    """The tiles of one update; None where it is no contraction whose operands are used again, or there is too little work."""
    statement = scop.statements[model.name]
    if not _is_contraction(statement):
        return None
    steps, own = statement.indices[: statement.loop_depth], statement.indices[statement.loop_depth :]
    extents = box_of(scop, statement)
    if extents is None:
        return None
    many = {index: extent.constant if extent.is_constant else LARGE for index, extent in extents.items()}
    out = next(a for a in model.accesses if a.write)
    free = [index for index in own if out.stride(index) != 0]
    reduced = [index for index in own if out.stride(index) == 0]
    if not reduced or len(free) < 2 or prod(many[i] for i in free) < LEAST_TILE * target.cores // 2:
        return None
    reads = list(dict.fromkeys(reads_of(statement.value)))
    x = min(free, key=lambda index: (abs(out.stride(index) or 1 << 40), index))
    along = [read for read in reads if _moves(read, x)]
    rows = [i for i in free if i != x and any(not _moves(read, i) for read in along)]
    shared = [i for i in rows if any(_moves(read, i) and not _moves(read, x) for read in reads)]
    if out.stride(x) != 1 or not shared:
        return None
    y = max(shared, key=lambda index: many[index])
    operands = tuple(read for read in reads if _moves(read, x) != _moves(read, y))
    if not all(_is_plain(statement, read) for read in operands):
        return None
    strides = [access for access in model.accesses if not access.write]
    reduced.sort(key=lambda i: -min(abs(a.stride(i) or 1 << 40) for a in strides))
    depth = _depths(reduced, many)
    if prod(depth.values()) < 4:
        return None
    outer = tuple(i for i in free if i not in (x, y))
    itemsize = max(scop.arrays[a].dtype.itemsize for a in (*(read.tensor for read in operands), out.array))
    crossed = frozenset(read for read in operands if not _last(read) & {x, y})
    whole = all(x in _last(read) for read in along if read in operands)
    plans = []
    for rows_side, columns_side in _sides(y, x, 16 // itemsize if whole else 1):
        plan = TilePlan(
            statement=model.name, rows=rows_side, columns=columns_side, steps=steps, outer=outer, reduced=tuple(reduced),
            depth=depth, extents=extents, operands=operands, crossed=crossed,
        )  # fmt: skip
        cost = _cost(plan, many, itemsize, target)
        if cost is not None:
            plans.append((cost, plan))
    return min(plans, key=lambda found: found[0])[1] if plans else None


def _is_contraction(statement: Statement) -> bool:
    """A plain reduction without conditions on what it reads."""
    if statement.kind != "update" or statement.argument is not None:
        return False
    if any(isinstance(e, Apply) and e.op == "select" for e in walk(statement.value)):
        return False
    names = [s.name if isinstance(s, Affine) else None for s in statement.target.subscripts]
    if None in names or len(set(names)) != len(names):
        return False
    return all(isinstance(s, Affine) for read in reads_of(statement.value) for s in read.subscripts)


def _moves(read: Read, index: str) -> bool:
    return any(isinstance(s, Affine) and index in s.variables() for s in read.subscripts)


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


def _depths(reduced: list[str], extents: Mapping[str, int]) -> dict[str, int]:
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
    own = plan.rows.own * plan.columns.own
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
    loads = threads / 32 * (2 * plan.rows.own + 3 * plan.columns.own) * itemsize / 16
    traffic = tile / depth / L2_RATE
    return waves * (max(arithmetic, loads, traffic) + 0.2 * (arithmetic + loads + traffic) + 30 / depth)


def _fragments(plan: TilePlan) -> int:
    """Elements of the operands that a thread holds at a time: its own rows and columns, and four iterations of those that are read along the reduction, 16 bytes at a time."""
    total = 0
    for read in plan.operands:
        own = plan.rows.own if _moves(read, plan.rows.index) else plan.columns.own
        total += own * (4 if read in plan.crossed else 1)
    return total


def _edges(plan: TilePlan) -> int:
    """Operands with tiles that are not whole, whose copies have bounds."""
    ragged = {i for i, size in plan.visit if plan.extents[i] % size != affine(0)}
    return sum(any(_moves(read, i) for i in ragged) for read in plan.operands)


def _names(plan: TilePlan) -> list[str]:
    return [f"v{k}" for k in range(len(plan.visit))]
