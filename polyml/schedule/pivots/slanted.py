"""Contractions over a domain that is no box: triangular products (syrk, trmm, symm, covariances) in blocks of the sum.

`C[i, j] += R[i, k] * V[k, j]` for j <= i, or k > i. Register tiles that are all there make up nearly all of it and run as in any product; those at the slanted edge
are the rest. The vector operand is copied into panels, a block of the sum at a time, and the other one, where it is not contiguous along the sum. What the
region does else comes before or after. These are the parts of a factorization beyond its pivot's block (pivots/parts.py), with nothing but such parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import islpy as isl

from polyml.expressions import Read, Subscript, reads_of
from polyml.schedule.blocking.operands import terms_in_l1
from polyml.schedule.blocking.sides import sides_of
from polyml.schedule.cost import StatementModel
from polyml.schedule.large_enough import at_least
from polyml.schedule.pivots.parts import PivotParts, with_panels
from polyml.schedule.pivots.plan import Loops3, Pivots, moves, roles_of, widest_tile
from polyml.schedule.prologues import maker_of
from polyml.schedule.register_tiles import RegisterTile
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.sets.spaces import maps_of
from polyml.target import Target

__all__ = ["plan_slanted", "slanted_parts", "split_around"]

MIN_LENGTH = 32
"""Of all three loops: below, there is little between the edges."""


def plan_slanted(
    scop: Scop, models: Mapping[str, StatementModel], target: Target, *, shared: bool = False
) -> Pivots | None:
    """The plan for the heaviest contraction over a convex domain that is no box; None when there is none that is worth panels. shared: by threads, which meet at the ends of blocks."""
    if any(statement.loop_depth for statement in scop.statements.values()):
        return None
    for name in sorted(scop.statements, key=lambda name: -models[name].work):
        statement, model = scop.statements[name], models[name]
        if statement.kind != "update" or statement.domain.n_basic_set() != 1 or statement.domain.is_box():
            continue
        if statement.domain.is_empty():  # a condition leaves no term
            continue
        found = roles_of(statement, model)
        if found is not None and _pays(scop, model, *found, target):
            return _sized(scop, model, *found, target, shared=shared)
    return None


def _pays(scop: Scop, model: StatementModel, own: Loops3, reads: tuple[Read, ...], target: Target) -> bool:
    written = {s.target.array for s in scop.statements.values()} - {
        read.tensor for read in reads if maker_of(scop, read.tensor)
    }
    arrays = {*(read.tensor for read in reads), scop.statements[model.name].target.array}
    same = all(scop.arrays[a].dtype.itemsize == model.itemsize for a in arrays)
    size = model.itemsize * model.extents[own.pivot] * model.extents[own.lanes]
    long = min(model.extents.values()) >= MIN_LENGTH
    return same and long and size > target.l1_bytes // 2 and not any(read.tensor in written for read in reads)


def _sized(
    scop: Scop, model: StatementModel, own: Loops3, reads: tuple[Read, ...], target: Target, *, shared: bool
) -> Pivots:
    tile = widest_tile(target)
    depth = model.extents[own.pivot]
    near = 0 if shared else _terms_in_l1(scop, model, own, tile, target)
    room = near or max(1, target.l1_bytes // 3 // (tile.rows * model.itemsize))
    block = ceil(ceil(depth / ceil(depth / room)) / 8) * 8
    strip = max(1, target.l2_bytes // 3 // (block * model.itemsize) // tile.rows) * tile.rows
    vector, *others = reads
    along = [read for read in others if moves(read, own.rows) and moves(read, own.pivot)]
    apart = not near and len(along) == 1 and len(along[0].subscripts) == 2
    apart = apart and (not _contiguous(scop, along[0], own.pivot) or maker_of(scop, along[0].tensor) is not None)
    return Pivots(
        core=model.name, loops={model.name: own}, free=frozenset({"rows", "lanes"}), tile=tile,
        width=tile.vectors * target.lanes(model.itemsize), block=block, strip=strip, vector=vector,
        contiguous=_contiguous(scop, vector, own.lanes), broadcast=along[0] if apart else None,
        worth=at_least(scop, scop.statements[model.name], dict.fromkeys((own.rows, own.lanes, own.pivot), MIN_LENGTH)),
    )  # fmt: skip


def _terms_in_l1(scop: Scop, model: StatementModel, own: Loops3, tile: RegisterTile, target: Target) -> int:
    """The block of the sum for which L1 holds all rows of both operands, as in a contraction over a box; 0 where rows are packed."""
    sides = None if scop.sizes else sides_of(model)
    if sides is None or any(scop.arrays[a.array].kind == "local" for a in sides.others):
        return 0
    if sides.rows != [own.rows]:
        return 0
    found = terms_in_l1(scop, model, sides, own.rows, tile, target)
    return 0 if found is None else found[own.pivot]


def _contiguous(scop: Scop, read: Read, index: str) -> bool:
    last = read.subscripts[-1]
    return scop.arrays[read.tensor].memory_strides[-1] == 1 and isinstance(last, Affine) and last.name == index


def slanted_parts(scop: Scop, dependences: Dependences, plan: Pivots) -> PivotParts:
    """The scop with the copies that the contraction reads."""
    both = {plan.core: plan.core}
    loops = {**plan.loops, **_rows_and_lanes(scop, plan)}
    parts = PivotParts(scop, dependences, plan, {"rows": {}, "lanes": {}, "both": both}, loops)
    parts = with_panels(parts, "both", f"{plan.vector.tensor}_panels")
    if plan.broadcast is not None:
        parts = with_panels(parts, "both", f"{plan.broadcast.tensor}_rows", role="rows")
    return parts


def _rows_and_lanes(scop: Scop, plan: Pivots) -> dict[str, Loops3]:
    """What starts the sums, and what is made of each of them: statements that run along the result's rows and lanes and no other index, and find side by side what the lanes touch."""
    core, own = scop.statements[plan.core], plan.loops[plan.core]
    found: dict[str, Loops3] = {}
    for name, statement in scop.statements.items():
        if statement.loop_depth or len(statement.indices) != 2 or statement.kind not in ("init", "assign"):
            continue
        touched = [(statement.target.array, statement.target.subscripts)]
        touched += [(read.tensor, read.subscripts) for read in reads_of(statement.value)]
        sums = {subscripts for array, subscripts in touched if array == core.target.array}
        if len(sums) != 1:
            continue
        pairs = zip(core.target.subscripts, *sums, strict=True)
        names = {str(a): b.name for a, b in pairs if isinstance(b, Affine) and b.name is not None}
        if len(names) == 2 and all(_steps(scop, *access, names[own.lanes]) in (0, 1) for access in touched):
            found[name] = Loops3(names[own.rows], names[own.lanes], "")
    return found


def _steps(scop: Scop, array: str, subscripts: Sequence[Subscript], index: str) -> int | None:
    """Elements from one value of the index to the next; None where that is not a number."""
    total = 0
    for subscript, stride in zip(subscripts, scop.arrays[array].memory_strides, strict=True):
        moved = subscript.stride(index) if isinstance(subscript, Affine) else None
        if moved is None or (moved and stride is None):
            return None
        total += moved * (stride or 0)
    return total


def split_around(scop: Scop, dependences: Dependences, core: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The other statements: those that run before the core, and those that need it."""
    ends = (isl.dim_type.in_, isl.dim_type.out)
    pairs = [tuple(str(edge.get_tuple_name(end)) for end in ends) for edge in maps_of(dependences.validity)]
    later, found = {core}, {core}
    while found:
        found = {sink for source, sink in pairs if source in found} - later
        later |= found
    names = [name for name in scop.statements if name != core]
    return tuple(n for n in names if n not in later), tuple(n for n in names if n in later)
