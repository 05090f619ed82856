"""The model of sums weighted by exponentials (gpu/rescaled.py) in tiles on a GPU: how many rows a block has, how many keys are taken at a time, and what a thread owns of both.

A block of TY x TX threads has TY * R rows. Per tile of TX * C keys a thread has R x C scores, which it makes from rows and keys in shared memory, and whose exponentials go there, too; of the results it
has R x D, in registers from the first tile to the last. Rows are staged once per block, tiles of keys and of what is weighted one at a time: the next keys are on their way while the
results are summed up, and what is weighted while the scores are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import ceil, prod

from polyml.expressions import Apply, Expr, Read, plain_indices, reads_of
from polyml.gpu_core import ISSUE, L2_RATE, SHARED_RATE, SYNC, core_of
from polyml.records import dataclass
from polyml.schedule.gpu.rescaled import Weighted
from polyml.schedule.strategy.cuda.tile_plan import Side, moves
from polyml.schedule.strategy.cuda.tiles import LARGE
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["Operand", "RescaledPlan", "plan_bytes", "plan_rescaled", "split_weight", "tile_shape"]

REGISTERS, OTHER, REGISTER_FILE = 232, 40, 65536
"""Of a thread at most; what addresses, loops, maxima and exponentials take of them; of a core."""

EXPONENTIAL = 24
"""Instructions of an exponential, with what is around it."""

WARPS = 8
"""Of a core, below which it waits for its own instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """An input in shared memory. indices: of its tile's dimensions, those of the structure that it moves with, the fastest last; vector: elements that move at once."""

    read: Read
    indices: tuple[str, ...]
    vector: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaledPlan:
    """rows, keys, columns: of a block, and of a tile. found: what is computed. queries, keyed: operands of the scores' product, None where there is none; values: what is weighted."""

    found: Weighted
    rows: Side
    keys: Side
    columns: Side
    queries: Operand | None
    keyed: Operand | None
    values: Operand

    @property
    def outer(self) -> tuple[str, ...]:
        return tuple(i for i in self.found.rows if i != self.rows.index)

    @property
    def depth(self) -> int:
        return 0 if self.found.depth is None else self.found.extents[self.found.depth].constant

    @property
    def threads(self) -> int:
        return self.rows.threads * self.keys.threads

    def count(self, side: Side) -> Affine:
        """Tiles along a side."""
        return (self.found.extents[side.index] + (side.size - 1)) // side.size

    def padded(self, side: Side) -> Affine:
        """The extent of whole tiles."""
        return self.count(side) * side.size

    def box(self, operand: Operand) -> tuple[int, ...]:
        """Elements of a tile."""
        sizes = {side.index: side.size for side in (self.rows, self.keys, self.columns)}
        return tuple(sizes.get(i, self.depth) for i in operand.indices)

    def __str__(self) -> str:
        names = [o.read.tensor for o in (self.queries, self.keyed, self.values) if o is not None]
        tiles = f"blocks of {self.rows.size} {self.rows.index}, tiles of {self.keys.size} {self.keys.index}"
        own = f"{self.rows.own} x {self.keys.own} and {self.rows.own} x {self.columns.own} {self.columns.index} per thread"
        return f"{tiles}, {own}; sums are rescaled where the maximum grows; {', '.join(names)} staged through shared memory"


def plan_rescaled(scop: Scop, found: Weighted, target: Target) -> RescaledPlan | None:
    """The tiles; None where there is no room for them, or too little work for the device."""
    values = [r for r in dict.fromkeys(reads_of(found.result.value)) if moves(r, found.column)]
    row = max(_rows_of(found, values), key=lambda i: _many(found.extents[i]), default=None)
    if row is None or len(values) != 1 or not found.extents[found.column].is_constant:
        return None
    if any(not isinstance(x, Affine) for r in reads_of(found.result.value) for x in r.subscripts):
        return None
    weighted = _operand(scop, values[0], {found.key, found.column}, found)
    if split_weight(found.result.value, values[0]) is None or scop.arrays[found.maximum.target.array].dtype.is_half:
        return None
    queries = keyed = None
    if found.product is not None:
        sides = _product_sides(scop, found, found.product, row)
        if sides is None or found.depth is None or not found.extents[found.depth].is_constant:
            return None
        queries, keyed = sides
    if weighted is None:
        return None
    best: tuple[float, RescaledPlan] | None = None
    for rows, keys, columns in _sides(found, row, weighted, scop):
        plan = RescaledPlan(
            found=found, rows=rows, keys=keys, columns=columns, queries=queries, keyed=keyed, values=weighted
        )
        cost = _cost(plan, scop, target)
        if cost is not None and (best is None or cost < best[0]):
            best = cost, plan
    return None if best is None else best[1]


def _rows_of(found: Weighted, values: list[Read]) -> list[str]:
    """The rows' indices that share what is weighted, and keys."""
    shared = [i for i in found.rows if not any(moves(r, i) for r in values)]
    if found.product is None:
        return shared
    keyed = [r for r in reads_of(found.product.value) if moves(r, found.key)]
    return [i for i in shared if not any(moves(r, i) for r in keyed)]


def _product_sides(scop: Scop, found: Weighted, product: Statement, row: str) -> tuple[Operand, Operand] | None:
    assert found.depth is not None, "internal: a product without a depth"
    reads = list(dict.fromkeys(reads_of(product.value)))
    along = [r for r in reads if moves(r, row) and not moves(r, found.key)]
    across = [r for r in reads if moves(r, found.key) and not moves(r, row)]
    if len(along) != 1 or len(across) != 1 or len(reads) != 2:
        return None
    queries = _operand(scop, along[0], {row, found.depth}, found)
    keyed = _operand(scop, across[0], {found.key, found.depth}, found)
    return None if queries is None or keyed is None else (queries, keyed)


def _operand(scop: Scop, read: Read, wanted: set[str], found: Weighted) -> Operand | None:
    """The read as an operand that has just these indices beside those that are the same for a block; None where its subscripts are something else."""
    names = plain_indices(read.subscripts)
    plain = [n for n in names if n is not None]
    fixed = all(
        n is not None or (isinstance(s, Affine) and s.is_constant) for n, s in zip(names, read.subscripts, strict=True)
    )
    if not fixed or len(set(plain)) != len(plain) or not wanted <= set(plain):
        return None
    array = scop.arrays[read.tensor]
    width, last = max(1, 16 // array.dtype.itemsize), read.subscripts[-1]
    own = tuple(n for n in plain if n in wanted)
    assert isinstance(last, Affine), "internal: a subscript that is no index"
    row = found.extents.get(last.name or "")
    whole = row is not None and last.name == own[-1] and row.is_constant and row.constant % width == 0
    return Operand(read=read, indices=own, vector=width if whole and array.strides is None else 1)


def _sides(found: Weighted, row: str, values: Operand, scop: Scop) -> Iterator[tuple[Side, Side, Side]]:
    column = found.extents[found.column].constant
    width = max(1, 16 // scop.arrays[values.read.tensor].dtype.itemsize)
    vectors = {1, width} if values.indices[-1] == found.column else {1}
    for (down, across), own, keys, vector in product(
        ((8, 8), (16, 8), (8, 16), (16, 16), (4, 32), (8, 32)), (8, 6, 4, 2, 1), (8, 4, 2, 1), sorted(vectors)
    ):
        groups = ceil(column / (across * vector))
        yield Side(row, down, own, 1), Side(found.key, across, keys, 1), Side(found.column, across, groups, vector)


def _cost(plan: RescaledPlan, scop: Scop, target: Target) -> float | None:
    """Cycles of the busiest core; None where registers or shared memory are too small."""
    found, arrays = plan.found, scop.arrays
    sums = [found.maximum, found.result, *found.sums, *([] if found.product is None else [found.product])]
    itemsize = max(arrays[s.target.array].dtype.itemsize for s in sums)
    words, own, keys, columns = max(1, itemsize // 4), plan.rows.own, plan.keys.own, plan.columns.own
    fragments = max(4 * (own + keys) if plan.queries is not None else 0, 4 * own + columns)
    statistics = own * (3 + len(found.sums))
    registers = words * (own * keys + own * columns + fragments + statistics) + OTHER
    shared = plan_bytes(plan, scop)
    if plan.threads > target.block_threads or registers > min(REGISTERS, target.vector_registers):
        return None
    if shared > target.block_bytes:
        return None
    outer = prod(_many(found.extents[i]) for i in plan.outer)
    blocks, tiles = (
        outer * ceil(_many(found.extents[plan.rows.index]) / plan.rows.size),
        ceil(_many(found.extents[found.key]) / plan.keys.size),
    )
    if 2 * blocks < target.cores or tiles < 2:
        return None
    core = core_of(target.cpu)
    resident = min(
        core.resident(plan.threads, shared), max(1, REGISTER_FILE // (plan.threads * min(255, registers + 16)))
    )
    warps = plan.threads / 32
    depth = plan.depth
    # Elements along the sums come four at a time; columns do where they are neighbours.
    wide, lanes = 16 // itemsize, plan.columns.vector if plan.values.indices[-1] == found.column else 16 // itemsize
    reads = (own + keys) * depth / wide + (own / wide + columns / lanes) * plan.keys.size
    products = own * keys * depth + own * columns * plan.keys.size
    around = EXPONENTIAL * own * keys + 4 * own * plan.keys.threads
    arithmetic = warps * (words * (products + around) + reads) / ISSUE
    # A warp's read of 16 bytes per lane takes two turns where neighbouring lanes share them, as along rows, else up to three; of single elements one.
    column = 3 / wide if lanes > 1 else 1
    loads = warps * ((2 * own + 3 * keys) * depth / wide + (2 * own / wide + column * columns) * plan.keys.size)
    loads += warps * itemsize / 4 * (2 * own * keys + own * plan.keys.threads / 2)
    staged = [o for o in (plan.keyed, plan.values) if o is not None]
    copied = sum(prod(plan.box(o)) * arrays[o.read.tensor].dtype.itemsize for o in staged)
    loads += copied / SHARED_RATE
    traffic = copied / L2_RATE
    waves = ceil(blocks / (target.cores * resident)) * resident if blocks > target.cores else 1
    slow = max(1.0, WARPS / (warps * resident))
    return (
        waves
        * tiles
        * (slow * max(arithmetic, loads, traffic) + 0.2 * (arithmetic + loads + traffic) + 4 * SYNC / resident)
    )


def plan_bytes(plan: RescaledPlan, scop: Scop) -> int:
    """Of shared memory."""
    found, arrays, total = plan.found, scop.arrays, 0
    for operand in (plan.queries, plan.keyed, plan.values):
        if operand is not None:
            itemsize = arrays[operand.read.tensor].dtype.itemsize
            total += prod(tile_shape(plan, operand, itemsize)) * itemsize
    weight = arrays[found.result.target.array].dtype.itemsize
    total += plan.rows.size * (plan.keys.size + max(1, 16 // weight)) * weight
    for s in (found.maximum, *found.sums):
        total += plan.rows.size * plan.keys.threads * arrays[s.target.array].dtype.itemsize
    return total


def tile_shape(plan: RescaledPlan, operand: Operand, itemsize: int) -> tuple[int, ...]:
    """Of a tile in shared memory: rows are padded where neighbouring threads read along a column, since 16 bytes bring them to other banks."""
    crossed = operand.indices[-1] == (plan.found.depth if operand is not plan.values else plan.found.key)
    *outer, last = plan.box(operand)
    return (*outer, last + (max(1, 16 // itemsize) if crossed else 0))


def split_weight(value: Expr, weighted: Read) -> tuple[Callable[[Expr], Expr], Expr] | None:
    """A summand as what is done with a weight, and the weight: all of a product but what is weighted; None where it is no such product."""
    match value:
        case Apply(op="mul", args=(one, other)) if _only(other, weighted):
            return (lambda e: replace(value, args=(e, other))), one
        case Apply(op="mul", args=(one, other)) if _only(one, weighted):
            return (lambda e: replace(value, args=(one, e))), other
        case _:
            return None


def _only(value: Expr, weighted: Read) -> bool:
    """Whether the value is what is weighted, of another type perhaps."""
    return value == weighted or (isinstance(value, Apply) and value.op == "cast" and _only(value.args[0], weighted))


def _many(extent: Affine) -> int:
    return extent.constant if extent.is_constant else LARGE
