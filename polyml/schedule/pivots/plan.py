"""Factorizations and triangular systems: which of a recurrence's loops is the pivot's, and in which blocks they run.

In `A[i, j] -= A[i, k] * A[k, j]` with what divides by the diagonal around it, three loops (rows, columns, pivot) may be tiled together, every statement standing
on them with indices of its own: the division of A[i, j] at pivot j. In tiles, a pivot's block is followed by those beside it and those beyond it in
both directions, and these are nothing but a contraction, nearly all of the work.

Source: Carr and Kennedy, "Compiler blockability of numerical algorithms" (Supercomputing '92), who block LU by strip-mining and index-set splitting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import lcm

from polyml.expressions import Read, reads_of
from polyml.graph import diagonal_tiles
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.large_enough import at_least, extents_of
from polyml.schedule.register_tiles import RegisterTile
from polyml.schedule.schedule import Product
from polyml.schedule.shared_loops import Order, assign
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.shown import counted
from polyml.target import Target

__all__ = ["Loops3", "Pivots", "moves", "plan_pivots", "roles_of", "updates_in_place", "widest_tile", "within_block"]

MIN_BLOCKS = 4
"""Blocks of the pivot below which there is little beyond them."""

FEWEST_BLOCKS, LEAST_STEPS = 2, 2
"""Blocks of a pivot of symbolic length, at least, and steps of one (a step: whole register tiles both ways): what has no blocks goes row by row over all of the matrix. Zen 3, lu of any size, of the speed of the kernel for the size, without
blocks and with ones of 48, two at least: N = 100 0.51, 0.86; 150 0.47, 1.07; 200 0.46, 1.05; 250 0.32, 0.89."""


@dataclass(frozen=True, slots=True)
class Loops3:
    """The index that each of the three loops is to one statement."""

    rows: str
    lanes: str
    pivot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivots:
    """The plan for one scop. core: the update that is a contraction beyond the pivot's block; loops: per statement, the core's first.

    free: "rows" or "lanes" where no dependence crosses them (the right-hand sides of a triangular system). tile, width: of the registers, width in elements along the lanes. block: of the pivot, a multiple of both sides of the tile; strip: rows that share a panel of the
    vector operand, a multiple of `block`. vector: the core's read that moves with the lanes; contiguous: with stride 1. broadcast: the read that moves with the rows,
    where it is packed as well. worth: what must hold at a call for it to pay, of extents that are symbolic.
    """

    core: str
    loops: Mapping[str, Loops3]
    free: frozenset[str]
    tile: RegisterTile
    width: int
    block: int
    strip: int
    vector: Read
    contiguous: bool
    broadcast: Read | None = None
    worth: tuple[Product, ...] = ()

    def __str__(self) -> str:
        own = self.loops[self.core]
        rows = "" if self.broadcast is None else f", {self.broadcast.tensor} in panels of {self.tile.rows}"
        return (
            f"blocks of {self.block} {own.pivot}; beyond them a register tile of {self.tile.rows} {own.rows} x {counted(self.tile.vectors, 'vector')} of {own.lanes}, "
            f"{self.vector.tensor} packed in panels of {self.width}{rows}, strips of {self.strip} {own.rows}"
        )


def updates_in_place(scop: Scop) -> bool:
    """Whether there is an update of three indices that reads other elements of what it writes: a quick look before a plan."""
    return any(
        len(s.indices) == 3
        and any(r.tensor == s.target.array and r.subscripts != s.target.subscripts for r in reads_of(s.value))
        for s in scop.statements.values()
    )


def plan_pivots(
    scop: Scop, dependences: Dependences, models: Mapping[str, StatementModel], target: Target
) -> Pivots | None:
    """The plan; None when some statement does not stand on the three loops of an in-place update, or they are too short for blocks."""
    for name in sorted(scop.statements, key=lambda name: -models[name].work):
        core = _core(scop.statements[name], models[name])
        if core is not None:
            own, vector = core
            return _sized(scop, dependences, models[name], own, vector, target)
    return None


def within_block(models: Mapping[str, StatementModel], plan: Pivots) -> dict[str, StatementModel]:
    """The models of the statements as they are in one block of the pivot."""
    return {
        name: replace(model, extents={index: min(extent, plan.block) for index, extent in model.extents.items()})
        for name, model in models.items()
    }


def _core(statement: Statement, model: StatementModel) -> tuple[Loops3, Read] | None:
    """The roles of the indices of `out[rows, lanes] += f(.. [rows, pivot], .. [pivot, lanes])`, one of whose operands is `out`, or of the same as an
    assignment per pivot; and the read along the lanes."""
    found = roles_of(statement, model)
    if found is None or all(read.tensor != statement.target.array for read in found[1]):
        return None
    return found[0], found[1][0]


def roles_of(statement: Statement, model: StatementModel) -> tuple[Loops3, tuple[Read, ...]] | None:
    """The indices of an update of three, and its operands: the one that moves with the lanes first; None when it is no contraction of plain indices."""
    if statement.kind not in ("update", "assign") or statement.argument is not None or len(statement.indices) != 3:
        return None
    target = statement.target
    every = list(dict.fromkeys(reads_of(statement.value)))
    reads = [read for read in every if (read.tensor, read.subscripts) != (target.array, target.subscripts)]
    if statement.kind == "assign" and len(reads) == len(every):
        return None
    places = [target.subscripts, *(read.subscripts for read in reads)]
    if not all(isinstance(s, Affine) and s.name is not None for subscripts in places for s in subscripts):
        return None
    out = next(a for a in model.accesses if a.write)
    free = [index for index in model.extents if out.stride(index) != 0]
    lanes = [index for index in free if abs(out.stride(index) or 0) == 1]
    if len(free) != 2 or len(lanes) != 1:
        return None
    rows = next(index for index in free if index != lanes[0])
    pivot = next(index for index in model.extents if index not in free)
    moving = [read for read in reads if moves(read, lanes[0])]
    if len(moving) != 1 or len(moving[0].subscripts) != 2 or moves(moving[0], rows) or not moves(moving[0], pivot):
        return None
    return Loops3(rows, lanes[0], pivot), (moving[0], *(read for read in reads if read != moving[0]))


def moves(read: Read, index: str) -> bool:
    """Whether one of the read's subscripts is the index."""
    return any(isinstance(s, Affine) and s.name == index for s in read.subscripts)


def _sized(
    scop: Scop, dependences: Dependences, model: StatementModel, own: Loops3, vector: Read, target: Target
) -> Pivots | None:
    tile = widest_tile(target)
    width = tile.vectors * target.lanes(model.itemsize)
    step = lcm(tile.rows, width)
    fewest, likely = _likely_blocks(scop, model, own)
    # A register tile's rows of the broadcast operand take less than a quarter of L1: the block itself runs row by row, and on one thread.
    room = 3 * target.l1_bytes // 16 // (tile.rows * model.itemsize)
    least = LEAST_STEPS * step if fewest < MIN_BLOCKS else step
    block = max(1, min(room, max(least, likely // (2 * MIN_BLOCKS))) // step) * step
    if (
        model.extents[own.pivot] < MIN_BLOCKS * block
        or model.extents[own.lanes] < width
        or model.extents[own.rows] < tile.rows
    ):
        return None
    order = Order(scop, dependences)
    loops = _all_loops(scop, order, own, model.name)
    if loops is None:
        return None
    strip = max(1, target.l2_bytes // 3 // (block * model.itemsize) // block) * block
    last = vector.subscripts[-1]
    adjacent = scop.arrays[vector.tensor].memory_strides[-1] == 1
    return Pivots(
        core=model.name, loops=loops, free=_free(order, loops), tile=tile, width=width, block=block, strip=strip, vector=vector,
        contiguous=adjacent and isinstance(last, Affine) and last.name == own.lanes,
        worth=at_least(scop, scop.statements[model.name], {own.pivot: fewest * block, own.lanes: width, own.rows: tile.rows}),
    )  # fmt: skip


def _likely_blocks(scop: Scop, model: StatementModel, own: Loops3) -> tuple[int, int]:
    """How many blocks of the pivot there are at least, and how many values it has: of symbolic length as many as in the call at hand, if these are known."""
    end = extents_of(scop, scop.statements[model.name]).get(own.pivot)
    if end is None or end.is_constant:
        return MIN_BLOCKS, model.extents[own.pivot]
    known = end.variables() <= scop.examples.keys()
    return FEWEST_BLOCKS, end.evaluate(scop.examples) if known else model.extents[own.pivot]


def widest_tile(target: Target) -> RegisterTile:
    """The tile with the fewest cycles per vector operation."""
    return RegisterTile(*diagonal_tiles.widest_tile(target.vector_registers))


def _free(order: Order, loops: Mapping[str, Loops3]) -> frozenset[str]:
    along = {
        "rows": {name: own.rows for name, own in loops.items()},
        "lanes": {name: own.lanes for name, own in loops.items()},
    }
    return frozenset(role for role, chosen in along.items() if order.stays(chosen))


def _all_loops(scop: Scop, order: Order, own: Loops3, core: str) -> dict[str, Loops3] | None:
    """Indices for all statements such that no dependence points backwards in any of the three loops; None when there are none."""
    found: dict[str, dict[str, str]] = {}
    for role in ("rows", "lanes", "pivot"):
        chosen = assign(scop, order, core, getattr(own, role), summed=role == "pivot")
        if chosen is None:
            return None
        found[role] = chosen
    return {name: Loops3(*(found[role][name] for role in ("rows", "lanes", "pivot"))) for name in scop.statements}
