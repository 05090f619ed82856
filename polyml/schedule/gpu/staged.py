"""Contractions on a GPU in tiles: operands staged through shared memory, and accumulators that stay in a thread's registers across the reduction.

A transformation of the Scop, before its loops are mapped. Per visit v of a block tile (numbers of tiles, of the result and of the reduction) a copy statement
fills `x_tile[v, e] = x[e]` for the elements e that the visit reads; the contraction reads `x_tile[v(i), e(i)]`. Its sums go to `y_own[digits]`, whose dimensions are the
digits of the result's indices (number of the tile, thread, place in the thread), and a copy statement takes them to `y`. Everything is written once, so that
dependences are exact; storage maps then make the tiles one tile large and the sums a few registers per thread.

Source: Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra" (SC 2008); Verdoolaege et al., "Polyhedral parallel code generation for CUDA" (TACO 2013).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, Subscript, map_reads, reads_of
from polyml.new_names import array_name
from polyml.records import dataclass
from polyml.schedule.gpu.padded_tiles import can_pad, padded_domain, padding_of
from polyml.schedule.schedule import Storage
from polyml.schedule.strategy.cuda.tile_plan import Side, TilePlan
from polyml.schedule.written import with_inserted
from polyml.scop.accesses import access_map
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["StagedNest", "Tile", "stage_operands"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One staged operand. read: what it stands for, array: the copy in tiles. copy: its statement, with the plan's steps for indices, then `visit`, then `elements`, one per dimension.
    first: of each dimension, of the visit's elements; box: how many there are; vector: elements along the last dimension that move at once."""

    read: Read
    array: str
    copy: str
    visit: tuple[str, ...]
    elements: tuple[str, ...]
    first: tuple[Affine, ...]
    box: tuple[int, ...]
    vector: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedNest:
    """A contraction with what is around it. before, after: statements of the nest in order, `own` (the copy of the sums to the result; None where those behind read the
    sums themselves) first of the latter.
    indices: per statement of the result's indices its own name for each of the plan's, and for each of the steps. padded: those that are done in whole tiles (padded_tiles.py)."""

    plan: TilePlan
    tiles: tuple[Tile, ...]
    accumulators: str
    own: str | None
    before: tuple[str, ...]
    after: tuple[str, ...]
    indices: Mapping[str, Mapping[str, str]]
    padded: frozenset[str]

    @property
    def statements(self) -> tuple[str, ...]:
        return (*(tile.copy for tile in self.tiles), *self.before, self.plan.statement, *self.after)


def stage_operands(
    scop: Scop,
    plan: TilePlan,
    before: tuple[str, ...],
    after: tuple[str, ...],
    indices: Mapping[str, Mapping[str, str]],
) -> tuple[Scop, Dependences, StagedNest, dict[str, Storage]] | None:
    """The scop with tiles and accumulators, its dependences, the nest, and the storage of what is new; None where the written order has no place for copies.

    Args:
        before, after: the nest's other statements, those that set the sums among the former. indices: of each, its names for the plan's indices of the result and its steps.
    """
    update = scop.statements[plan.statement]
    own = _own(scop, plan, update)
    taken = {*scop.arrays, *scop.statements}
    tiles = [_tile(scop, plan, read, taken) for read in plan.operands]
    arrays = {**scop.arrays, own.name: own, **{tile.array: _copied(scop, plan, tile) for tile in tiles}}
    changed: dict[str, Statement] = {}
    here = {index: index for index in (*plan.steps, *plan.free)}
    for name in before:
        statement = scop.statements[name]
        if statement.target == _renamed(update.target, indices[name]):
            changed[name] = replace(statement, target=Access(own.name, _digits(plan, indices[name])))
    loaded = None if changed else _loaded(scop, plan, update, own)
    changed[update.name] = replace(_from_tiles(plan, update, tiles), target=Access(own.name, _digits(plan, here)))
    # A sum that nothing sets would go on from the last step's.
    whole = can_pad(scop, plan) and (loaded is None or not plan.steps)
    padded = frozenset(name for name in changed if whole and scop.statements[name].kind != "assign")
    for name in padded:
        domain = padded_domain(scop, plan, scop.statements[name], here if name == update.name else indices[name])
        changed[name] = replace(changed[name], domain=domain)
    for name in after if (direct := _stays(scop, plan, before, after, indices)) else ():
        changed[name] = _reading(scop.statements[name], update.target, own, indices[name], plan)
    result = None if direct else _result(scop, plan, update, own)
    copies = [_copy(scop, plan, tile) for tile in tiles]
    ahead = [*copies, *([] if loaded is None else [loaded])]
    behind = [] if result is None else [result]
    made = with_inserted(scop, changed, arrays, beside=plan.statement, ahead=ahead, behind=behind)
    if made is None:
        return None
    new = tuple(made.name for made in (loaded, result) if made is not None)
    names = (*(name for name in changed if name != update.name), *new)
    nest = StagedNest(
        plan=plan,
        tiles=tuple(tiles),
        accumulators=own.name,
        own=None if result is None else result.name,
        before=before if loaded is None else (loaded.name, *before),
        after=after if result is None else (result.name, *after),
        indices={**indices, plan.statement: here, **dict.fromkeys(new, here)},
        padded=padded,
    )
    storage = {tile.array: _tile_storage(made, plan, tile) for tile in tiles}
    storage[own.name] = _own_storage(made, nest, (plan.statement, *names))
    return made, analyse(made), nest, storage


def _own(scop: Scop, plan: TilePlan, update: Statement) -> Array:
    """The sums, by the digits of their indices."""
    target = scop.arrays[update.target.array]
    name = array_name(f"{target.name}_own", {*scop.arrays, *scop.statements})
    return Array(name=name, dtype=target.dtype, shape=_digit_extents(plan), kind="local")


def _copied(scop: Scop, plan: TilePlan, tile: Tile) -> Array:
    """A tile's elements, of all visits."""
    source = scop.arrays[tile.read.tensor]
    numbers = (plan.count(index) for index, _ in plan.visit)
    shape = [extent + beyond for extent, beyond in zip(source.shape, padding_of(plan, tile.read), strict=True)]
    return Array(name=tile.array, dtype=source.dtype, shape=(*numbers, *shape), kind="local")


def _from_tiles(plan: TilePlan, update: Statement, tiles: Sequence[Tile]) -> Statement:
    """The contraction, which reads its visit's tiles in place of the operands."""
    reads = {tile.read: tile for tile in tiles}
    visit = tuple(affine(index) // size for index, size in plan.visit)

    def staged(read: Read) -> Read:
        tile = reads.get(read)
        return read if tile is None else Read(tile.array, (*visit, *read.subscripts), read.dtype)

    return replace(update, value=map_reads(update.value, staged))


def _stays(
    scop: Scop,
    plan: TilePlan,
    before: tuple[str, ...],
    after: tuple[str, ...],
    indices: Mapping[str, Mapping[str, str]],
) -> bool:
    """Whether nobody but the nest sees the sums, and each statement behind reads the one of its own element."""
    target = scop.statements[plan.statement].target
    if scop.arrays[target.array].kind != "local":
        return False
    for name, s in scop.statements.items():
        found = {r.subscripts for r in reads_of(s.value) if r.tensor == target.array} if s.kind != "init" else set()
        mine = name in (*before, plan.statement)
        if name in after and found <= {_renamed(target, indices[name]).subscripts}:
            mine = s.target.array != target.array and s.argument is None
        if not mine and (found or target.array in (s.target.array, s.argument and s.argument.array)):
            return False
        if name in before and found:
            return False
    return True


def _reading(s: Statement, target: Access, own: Array, names: Mapping[str, str], plan: TilePlan) -> Statement:
    """The statement with its sum read where it was made."""

    def change(read: Read) -> Read:
        return Read(own.name, _digits(plan, names), read.dtype) if read.tensor == target.array else read

    return replace(s, value=map_reads(s.value, change))


def _renamed(access: Access, names: Mapping[str, str]) -> Access:
    values = {index: affine(name) for index, name in names.items()}
    return Access(access.array, tuple(s.substitute(values) if isinstance(s, Affine) else s for s in access.subscripts))


# -- accumulators -------------------------------------------------------------------------------------------------------------------


def _digits(plan: TilePlan, names: Mapping[str, str]) -> tuple[Affine, ...]:
    """The subscripts of the accumulator of a result's element."""
    return (
        *(digit for index in plan.outer for digit in _outer_digits(plan, index, names[index])),
        *plan.rows.digits(names[plan.rows.index]),
        *plan.columns.digits(names[plan.columns.index]),
    )


def _outer_digits(plan: TilePlan, index: str, name: str) -> tuple[Affine, ...]:
    """Number of the tile, and place in it where there are several."""
    count = plan.each(index)
    return (affine(name) // count, affine(name) % count) if count > 1 else (affine(name),)


def _digit_extents(plan: TilePlan) -> tuple[Affine, ...]:
    outer: list[Affine] = []
    for index in plan.outer:
        outer += [plan.count(index), affine(plan.each(index))] if plan.each(index) > 1 else [plan.extents[index]]
    return (*outer, *_side_extents(plan, plan.rows), *_side_extents(plan, plan.columns))


def _side_extents(plan: TilePlan, side: Side) -> tuple[Affine, ...]:
    return plan.count(side.index), affine(side.groups), affine(side.threads), affine(side.vector)


def _own_storage(scop: Scop, nest: StagedNest, names: Sequence[str]) -> Storage:
    """The places of one thread: its groups and vectors in both directions."""
    plan = nest.plan
    offsets = {}
    for name in names:
        digits = iter(_digits(plan, nest.indices[name]))
        firsts = []
        for index in plan.outer:
            firsts.append(next(digits).isl_text())
            if plan.each(index) > 1:
                next(digits)
                firsts.append("0")
        for _ in (plan.rows, plan.columns):
            number, _group, thread, _lane = (next(digits) for _ in range(4))
            firsts += [number.isl_text(), "0", thread.isl_text(), "0"]
        offsets[name] = _offset(scop, name, firsts)
    shape = [n for index in plan.outer for n in ((1, plan.each(index)) if plan.each(index) > 1 else (1,))]
    for side in (plan.rows, plan.columns):
        shape += [1, side.groups, 1, side.vector]
    array = nest.accumulators
    return Storage(array=array, place=f"allocate:{array}", shape=tuple(shape), offsets=offsets, private=True)


def _offset(scop: Scop, name: str, firsts: list[str]) -> isl.MultiAff:
    text, indices = ", ".join(f"({first})" for first in firsts), ", ".join(scop.statements[name].indices)
    return isl.MultiAff(f"{parameters_text(scop.sizes)}{{ {name}[{indices}] -> [{text}] }}")


def _loaded(scop: Scop, plan: TilePlan, update: Statement, own: Array) -> Statement:
    """accumulator[..] = result[..], where the sums go on from what is there."""
    digits = Access(own.name, _digits(plan, {index: index for index in plan.free}))
    value = Read(update.target.array, update.target.subscripts, own.dtype)
    return _for_each(scop, plan, f"S_{own.name}_from", digits, value, update)


def _result(scop: Scop, plan: TilePlan, update: Statement, own: Array) -> Statement:
    """result[..] = accumulator[..]."""
    value = Read(own.name, _digits(plan, {index: index for index in plan.free}), own.dtype)
    return _for_each(scop, plan, f"S_{own.name}", update.target, value, update)


def _for_each(scop: Scop, plan: TilePlan, name: str, target: Access, value: Read, update: Statement) -> Statement:
    """A copy per step and element of the result."""
    indices = (*plan.steps, *plan.free)
    return Statement(
        name=name, indices=indices, domain=_image(scop, update, name, tuple(map(affine, indices))), kind="copy",
        target=target, value=value, loop_depth=len(plan.steps), span=update.span,
    )  # fmt: skip


def _image(scop: Scop, update: Statement, name: str, outputs: tuple[Subscript, ...]) -> isl.Set:
    """`{ name[outputs] }` of the update's instances."""
    touched = access_map(update.name, update.indices, name, outputs, (), sizes=scop.sizes)
    return touched.intersect_domain(update.domain).range().coalesce()


# -- tiles --------------------------------------------------------------------------------------------------------------------------


def _tile(scop: Scop, plan: TilePlan, read: Read, taken: set[str]) -> Tile:
    """The operand's elements per visit: where they begin, and how many there are. Its name joins those that are taken."""
    visit = tuple(f"v{position}" for position in range(len(plan.visit)))
    first, box = plan.footprint(read.subscripts, visit)
    last = read.subscripts[-1]
    assert isinstance(last, Affine), "internal: a staged operand has computed subscripts"
    source = scop.arrays[read.tensor]
    width = 16 // source.dtype.itemsize
    name = array_name(f"{read.tensor}_tile", taken)
    taken |= {name, f"S_{name}"}
    moving = last.variables() & plan.extents.keys()
    whole = last.variables() == moving and all(plan.size(index) % width == 0 for index in moving)
    rows = [stride for stride in source.memory_strides if stride != 1]
    aligned = last.constant % width == 0 and all(stride is not None and stride % width == 0 for stride in rows)
    return Tile(
        read=read,
        array=name,
        copy=f"S_{name}",
        visit=visit,
        elements=tuple(f"e{d}" for d in range(len(box))),
        first=first,
        box=box,
        vector=width if width > 1 and whole and aligned and box[-1] % width == 0 else 1,
    )


def _copy(scop: Scop, plan: TilePlan, tile: Tile) -> Statement:
    """x_tile[v, e] = x[e] for all elements e that the visit v reads."""
    update = scop.statements[plan.statement]
    numbers = (affine(index) // size for index, size in plan.visit)
    outputs = (*map(affine, plan.steps), *numbers, *tile.read.subscripts)
    subscripts = tuple(map(affine, tile.elements))
    return Statement(
        name=tile.copy,
        indices=(*plan.steps, *tile.visit, *tile.elements),
        domain=_image(scop, update, tile.copy, outputs),
        kind="copy",
        loop_depth=len(plan.steps),
        target=Access(tile.array, (*map(affine, tile.visit), *subscripts)),
        value=Read(tile.read.tensor, subscripts, tile.read.dtype),
    )


def _tile_storage(scop: Scop, plan: TilePlan, tile: Tile) -> Storage:
    """One tile, or two that take turns where the next is copied while one is read."""
    update = scop.statements[plan.statement]
    numbers = [(affine(index) // size) for index, size in plan.visit]
    values = dict(zip(tile.visit, numbers, strict=True))
    inside = [*(n.isl_text() for n in numbers), *(f.substitute(values).isl_text() for f in tile.first)]
    copy = [*tile.visit, *(f.isl_text() for f in tile.first)]
    turns = [False] * (len(numbers) + len(tile.box))
    if plan.stages > 1:
        last = len(numbers) - 1  # the innermost tiles of the reduction
        inside[last] = copy[last] = "0"
        turns[last] = True
    offsets = {update.name: _offset(scop, update.name, inside), tile.copy: _offset(scop, tile.copy, copy)}
    itemsize = scop.arrays[tile.read.tensor].dtype.itemsize
    shape = (
        *(plan.stages if turn else 1 for turn, _ in zip(turns, numbers, strict=False)),
        *plan.shape(tile.read, tile.box, itemsize),
    )
    wraps = tuple(turns) if any(turns) else ()
    return Storage(array=tile.array, place=f"allocate:{tile.array}", shape=shape, offsets=offsets, wraps=wraps)
