"""Packing: a read-only operand that the best lanes would read badly is copied ahead into an array in which they read it well.

A transformation of the Scop, before scheduling. `d[n, m] += (x[n, k] - y[m, k])**2` wants lanes along m and reads y with the stride of its rows: a copy
statement makes `y_by_0[k, m] = y[m, k]`, and the read becomes `y_by_0[k, m]`. A large operand becomes panels as wide as the register tile, each contiguous: the
array's elements stay `w_by_1[0, k, m]`, and its storage map puts them at `[m // width, k, m % width]`. It pays when each element is read many times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import field, replace
from math import prod

import islpy as isl

from polyml.expressions import Read, map_reads, plain_index, reads_of
from polyml.records import dataclass
from polyml.schedule.copies import universe, with_copies
from polyml.schedule.cost import StatementModel
from polyml.schedule.large_enough import extents_of
from polyml.schedule.register_tiles import RegisterTile, register_tile
from polyml.schedule.schedule import Note, Product, Storage
from polyml.schedule.sweeps.row_cuts import elements_of
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, Extent, affine, extent_of
from polyml.sets.shapes import is_known
from polyml.sets.spaces import parameters_text
from polyml.target import Target

__all__ = ["Packed", "Panel", "pack_operands"]

MIN_REUSE = 16
"""Times that an element must be read for a copy of it to pay where lanes would read it with a stride."""

SHORT_REUSE = 6
"""The same where the sum that lanes could run along instead is short: most of what it takes is its end."""

SHORT_SUM = 4
"""Vectors of such a sum, at most."""

COPY = 0.5
"""Vector instructions per element of a copy: blocks of it are transposed in registers."""

COPY_NEAR = 1.25
"""The same where the last level holds the operand and its copy, and L2 does not."""

COPY_FAR = 4.0
"""The same where none does: the operand is read from memory, and its copy is written there and read again."""

PANEL_REUSE = 64
"""The same where lanes read it contiguously already, and only caches suffer."""

PANEL_DEPTH = 32
"""Iterations of the reduction below which a panel is no use."""

GAIN = 1.25
"""How many times cheaper the statement must become for a strided operand to be packed."""

_PAGE = 4096

SOME_SIZE = 1024
"""What stands for a symbolic extent: such operands are packed when they are this large (`Packed.worth`)."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Layout of a packed array: `width` elements along the lanes are adjacent, and the panels' number is the dimension `position`."""

    width: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The scop with copies, its dependences, and per copy statement its panels (None: rows); storage: the panels' maps. worth: products of symbolic extents and what
    each must at least be for this to pay; else the scop without copies is the better one."""

    scop: Scop
    dependences: Dependences
    copies: Mapping[str, Panel | None] = field(default_factory=dict)
    panels: Mapping[str, Panel] = field(default_factory=dict)
    storage: Mapping[str, Storage] = field(default_factory=dict)
    worth: tuple[Product, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class _Plan:
    """Reads of `array` by `statement`, whose subscript `dimension` is along `lanes`, go to a copy with that dimension last."""

    statement: str
    array: str
    dimension: int
    lanes: str
    panel: Panel | None

    @property
    def copy(self) -> str:
        return f"{self.array}_by_{self.dimension}" + (f"_{self.panel.width}" if self.panel is not None else "")

    def arranged(self, items: tuple[Affine, ...], middle: Affine) -> tuple[Affine, ...]:
        """Extents or subscripts of the copy from those of the array; `middle` stands for the number of the panel."""
        d = self.dimension
        rest = (*items[:d], *items[d + 1 :])
        if self.panel is None:
            return (*rest, items[d])
        at = self.panel.position
        return (*rest[:at], middle, *rest[at:], items[d])


def pack_operands(
    scop: Scop,
    dependences: Dependences,
    models: Mapping[str, StatementModel],
    target: Target,
    *,
    skip: Collection[str] = (),
) -> Packed:
    """The scop with the copies that pay; the same scop when none does.

    Args:
        skip: statements whose operands are packed in another way (blocking/copies.py).
    """
    plans = [plan for name in scop.statements if name not in skip for plan in _plans(scop, models[name], target)]
    if not plans:
        return Packed(scop=scop, dependences=dependences)
    made = {plan.copy: (plan, *_copy(scop, plan)) for plan in reversed(plans)}
    changed = {name: _redirected(s, [p for p in plans if p.statement == name]) for name, s in scop.statements.items()}
    new_scop = with_copies(scop, {name: (array, copy) for name, (_, array, copy) in made.items()}, changed)
    flow = dependences.flow
    for name, (_, _, copy) in made.items():
        written = new_scop.must_writes.intersect_domain(copy.domain.to_union_set())
        reads = new_scop.reads.intersect_range(universe(new_scop, name))
        flow = flow.union(written.apply_range(reads.reverse()))
    return Packed(
        scop=new_scop,
        dependences=replace(dependences, flow=flow),
        copies={copy.name: plan.panel for plan, _, copy in made.values()},
        panels={name: plan.panel for name, (plan, _, _) in made.items() if plan.panel is not None},
        storage={name: _storage(new_scop, plan) for name, (plan, _, _) in made.items() if plan.panel is not None},
        worth=tuple(dict.fromkeys(limit for plan in plans for limit in _worth(scop, plan, target))),
        notes=tuple(_note(plan) for plan in plans),
    )


def _note(plan: _Plan) -> Note:
    layout = "rows" if plan.panel is None else f"panels of {plan.panel.width}"
    text = (
        f"copied into {layout} along dimension {plan.dimension}, for the lanes of {plan.statement} along {plan.lanes}"
    )
    return Note("packing", plan.array, text)


# -- what to pack -------------------------------------------------------------------------------------------------------------------


def _plans(scop: Scop, model: StatementModel, target: Target) -> list[_Plan]:
    """What to pack for one statement: for its cheapest lanes, when packing makes them cheap enough."""
    statement = scop.statements[model.name]
    if statement.kind != "update" or not model.extents:
        return []
    arrays = tuple(dict.fromkeys(r.tensor for r in reads_of(statement.value)))
    lanes = min(model.extents, key=lambda index: (model.lane_cost(index, target), -_place(model, index)))
    cost = model.lane_cost(lanes, target) / GAIN
    strided: list[tuple[str, int]] = []
    length = prod(model.extents[index] for index in _reduced(model))
    short = not scop.sizes and length <= SHORT_SUM * target.lanes(model.itemsize)
    least = SHORT_REUSE if short else MIN_REUSE
    for index in model.extents:
        found = [
            (a, d) for a in arrays if (d := _dimension(scop, model, a, index, strided=True, least=least)) is not None
        ]
        if not found:
            continue
        names = frozenset(a for a, _ in found)
        copies = sum(_copying(scop.arrays[a], target) for a in names)
        with_copies = model.lane_cost(index, target, packed=names) + copies / model.instances
        if with_copies < cost:
            lanes, cost, strided = index, with_copies, found
    found = strided
    if lanes not in _reduced(model):
        found = strided + [
            (a, d) for a in arrays if (d := _dimension(scop, model, a, lanes, strided=False)) is not None
        ]
    if not found:
        return []
    rows, tile = _tile(_packed(model, {a for a, _ in strided}, lanes), lanes, target)
    if strided and _meet_in_l1(model, rows, tile, target):
        return []
    width = tile.vectors * target.lanes(model.itemsize)
    plans = [_Plan(model.name, a, d, lanes, _panel(scop, model, a, d, lanes, width, target)) for a, d in found]
    return [plan for plan in plans if plan.panel is not None or (plan.array, plan.dimension) in strided]


def _copying(array: Array, target: Target) -> float:
    """Vector instructions that a copy of the array takes."""
    elements = elements_of(array)
    size = elements * array.dtype.itemsize
    if size <= target.l2_bytes:
        return elements * COPY
    return elements * (COPY_NEAR if 2 * size <= target.l3_bytes else COPY_FAR)


def _place(model: StatementModel, index: str) -> int:
    return tuple(model.extents).index(index)


def _reduced(model: StatementModel) -> tuple[str, ...]:
    """Indices that the update's element does not depend on."""
    target = next(a for a in model.accesses if a.write)
    return tuple(index for index in model.extents if target.stride(index) == 0)


def _packed(model: StatementModel, arrays: Set[str], lanes: str) -> StatementModel:
    """The model with copies of these arrays, contiguous along the lanes."""
    accesses = tuple(
        replace(a, strides={**a.strides, lanes: 1}) if a.array in arrays and a.stride(lanes) != 0 else a
        for a in model.accesses
    )
    return replace(model, accesses=accesses)


def _tile(model: StatementModel, lanes: str, target: Target) -> tuple[str | None, RegisterTile]:
    """The index of the rows and the register tile that the nest will have."""
    rows = [index for index in model.extents if index != lanes and index not in _reduced(model)]
    tiles = [(index, register_tile(model, index, lanes, target)) for index in (None, *rows)]
    return min(tiles, key=lambda found: found[1].cost)


def _meet_in_l1(model: StatementModel, rows: str | None, tile: RegisterTile, target: Target) -> bool:
    """Whether a tile's rows of an operand that few rows of the other one use lie a multiple of a page apart, and are more than L1 has ways: each line would be gone before the sum comes to its next term. Lanes along the sum of products, where
    both are contiguous along it, take whole vectors of fewer rows instead (strategy/contractions/side_by_side.py). Zen 3, 8 rows times the transpose of 4096 x 4096 in f32: 13 rows at a time 13.2 ms, so 5.3; times 4000 x 4000, ten rows at a time, 3.6."""
    reduced = _reduced(model)
    reads = [access for access in model.accesses if not access.write]
    plain = len(reduced) == 1 and model.operations <= 1 and all(access.stride(reduced[0]) == 1 for access in reads)
    if rows is None or not plain or tile.rows <= target.l1_bytes // _PAGE:
        return False
    for access in reads:
        step = abs(access.stride(rows) or 0) * model.itemsize
        elements = prod(extent for index, extent in model.extents.items() if access.stride(index) != 0)
        if step and step % _PAGE == 0 and model.instances < MIN_REUSE * elements:
            return True
    return False


def _dimension(
    scop: Scop, model: StatementModel, array: str, index: str, *, strided: bool, least: int = PANEL_REUSE
) -> int | None:
    """The dimension of the array that the index runs along, when all reads of it along the index could go to a copy with that dimension last.

    Args:
        strided: lanes along the index read it with a stride now; else contiguously. least: times that an element must be read.
    """
    statement, facts = scop.statements[model.name], scop.arrays[array]
    found = {a.stride(index) for a in model.accesses if a.array == array and not a.write}
    wanted = bool(found - {0, 1}) if strided else found == {1}
    reuse = model.instances / max(elements_of(facts), 1)
    if not wanted or reuse < least or facts.kind != "input" or _written(scop, array):
        return None
    # Where only windows overlap nobody knows by how much, and no call would ask for the copy (`_worth`).
    if not is_known(facts.shape) and not _readers(scop, statement, array):
        return None
    dimensions = set()
    for read in reads_of(statement.value):
        if read.tensor != array:
            continue
        where = [d for d, s in enumerate(read.subscripts) if not isinstance(s, Affine) or index in s.variables()]
        if not where:
            continue  # one element for all lanes: it is read where it is
        subscript = read.subscripts[where[0]] if len(where) == 1 else None
        if not isinstance(subscript, Affine) or subscript.stride(index) != 1:
            return None
        dimensions.add(where[0])
    return dimensions.pop() if len(dimensions) == 1 else None


def _panel(
    scop: Scop, model: StatementModel, array: str, dimension: int, lanes: str, width: int, target: Target
) -> Panel | None:
    """Panels where L1 does not hold what tiles go through again and again, and lanes do not sweep rows whole: every read must step along the lanes by the index itself, so that a tile stays in one panel.

    A strip of longer rows is a piece of a line or two from each, which no prefetcher of the hardware follows; a caller's begin anywhere in a line, so that vectors of half a line touch twice as many as there are, and
    rows at powers of two fall into few sets of a cache. A panel is read from end to end.
    """
    facts = scop.arrays[array]
    reads = [r for r in reads_of(scop.statements[model.name].value) if r.tensor == array]
    if any(plain_index(r.subscripts[dimension]) != lanes for r in reads) or _number(facts.shape[dimension]) <= width:
        return None
    reduced = set(_reduced(model))
    if lanes in reduced or prod(extent for index, extent in model.extents.items() if index in reduced) < PANEL_DEPTH:
        return None
    rest = [d for d in range(len(facts.shape)) if d != dimension]
    position = next(
        (k for k, d in enumerate(rest) if any(_variables(r.subscripts[d]) & reduced for r in reads)), len(rest)
    )
    row = facts.dtype.itemsize * _number(facts.shape[dimension])
    block = row * prod(_number(facts.shape[d]) for d in rest[position:])
    return Panel(width, position) if block > target.l1_bytes else None


def _variables(subscript: object) -> frozenset[str]:
    return subscript.variables() if isinstance(subscript, Affine) else frozenset()


def _written(scop: Scop, array: str) -> bool:
    return any(
        array in (s.target.array, None if s.argument is None else s.argument.array) for s in scop.statements.values()
    )


def _number(extent: Affine) -> int:
    return extent.constant if extent.is_constant else SOME_SIZE


def _worth(scop: Scop, plan: _Plan, target: Target) -> Iterator[Product]:
    """How large a packed operand of symbolic extents, and how often it is read, must be."""
    array = scop.arrays[plan.array]
    if is_known(array.shape):
        return
    if plan.panel is not None:
        yield Product(array.shape, target.l2_bytes // 4 // array.dtype.itemsize + 1)
    yield Product(_readers(scop, scop.statements[plan.statement], plan.array), MIN_REUSE)


def _readers(scop: Scop, statement: Statement, array: str) -> tuple[Affine, ...]:
    """Extents of the indices that the array's subscripts do not know: how often the statement reads each element."""
    reads = reads_of(statement.value)
    used = {v for read in reads if read.tensor == array for s in read.subscripts for v in _variables(s)}
    extents = extents_of(scop, statement)
    return tuple(extents[index] for index in statement.indices if index not in used and index in extents)


# -- the copies ---------------------------------------------------------------------------------------------------------------------


def _copy(scop: Scop, plan: _Plan) -> tuple[Array, Statement]:
    """The packed array and the statement that fills it."""
    source = scop.arrays[plan.array]
    indices = tuple(f"e{d}" for d in range(len(source.shape)))
    elements = tuple(affine(i) for i in indices)
    limits = " and ".join(f"0 <= {i} < {extent.isl_text()}" for i, extent in zip(indices, source.shape, strict=True))
    target = plan.arranged(elements, affine(0))
    names = [e.name for e in target if e.name is not None]
    name = f"S_{plan.copy}"
    statement = Statement(
        name=name,
        indices=tuple(names),
        domain=isl.Set(f"{parameters_text(scop.sizes)}{{ {name}[{', '.join(names)}] : {limits} }}"),
        kind="copy",
        target=Access(plan.copy, target),
        value=Read(plan.array, elements, source.dtype),
    )
    shape = plan.arranged(source.shape, affine(1))
    if plan.panel is None and shape[-1].is_constant and shape[-1].constant * source.dtype.itemsize % _PAGE == 0:
        # Rows at multiples of a page fall into the same few sets of a cache.
        shape = (*shape[:-1], shape[-1] + 64 // source.dtype.itemsize)
    return Array(name=plan.copy, dtype=source.dtype, shape=shape, kind="local"), statement


def _storage(scop: Scop, plan: _Plan) -> Storage:
    """Element [0, k, m] of the panels lies at [m // width, k, m % width]."""
    assert plan.panel is not None, "internal: rows need no storage map"
    width, at = plan.panel.width, plan.panel.position
    array = scop.arrays[plan.copy]
    shape: list[Extent] = [extent_of(extent) for extent in array.shape]
    shape[at], shape[-1] = extent_of((array.shape[-1] + (width - 1)) // width), width
    offsets = {}
    for name, statement in scop.statements.items():
        lanes = _lane_index(statement, plan)
        if lanes is None:
            continue
        offset = ["0"] * len(shape)
        offset[at], offset[-1] = f"-floor({lanes}/{width})", f"{width}*floor({lanes}/{width})"
        text = f"{{ {name}[{', '.join(statement.indices)}] -> [{', '.join(f'({o})' for o in offset)}] }}"
        offsets[name] = isl.MultiAff(parameters_text(scop.sizes) + text)
    return Storage(array=array.name, place="", shape=tuple(shape), offsets=offsets)


def _lane_index(statement: Statement, plan: _Plan) -> str | None:
    """The index with which the statement runs along the lanes of the plan's copy; None when it does not touch it."""
    if statement.target.array == plan.copy:
        return plain_index(statement.target.subscripts[-1])
    return next((plain_index(r.subscripts[-1]) for r in reads_of(statement.value) if r.tensor == plan.copy), None)


def _redirected(statement: Statement, plans: list[_Plan]) -> Statement:
    by_array = {plan.array: plan for plan in plans}

    def change(read: Read) -> Read:
        plan = by_array.get(read.tensor)
        if plan is None or not any(isinstance(x, Affine) and plan.lanes in x.variables() for x in read.subscripts):
            return read
        subscripts = tuple(s for s in read.subscripts if isinstance(s, Affine))
        assert len(subscripts) == len(read.subscripts), "internal: an indirect read cannot be packed"
        return Read(plan.copy, plan.arranged(subscripts, affine(0)), read.dtype)

    value = map_reads(statement.value, change)
    return statement if value is statement.value else replace(statement, value=value)
