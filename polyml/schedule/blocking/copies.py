"""The copies of a blocked contraction: statements that pack one block of an operand, and the storage maps of the packed blocks.

`b_panels[0, k, m] = b[k, m]`: elements keep their own subscripts, so that reads stay simple. The storage map puts the element at
`[m // W - first panel of the block, k - first of the block, m % W]`, and one block is all that is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, gcd, prod

import islpy as isl

from polyml.expressions import Read, map_reads, reads_of
from polyml.new_names import array_name, derived
from polyml.records import dataclass
from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.blocking.makers import Makers
from polyml.schedule.blocking.rest_columns import cut_rest, rest_copy, rest_storage
from polyml.schedule.blocking.strips import WAY
from polyml.schedule.copies import read_along, universe, with_copies
from polyml.schedule.pack import Packed
from polyml.schedule.schedule import Note, Storage
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, Extent, affine, extent_of
from polyml.sets.spaces import parameters_text

__all__ = ["BlockCopies", "BlockedNest", "block_index", "copy_blocks"]

LINE, WAYS = 64, 8
"""Bytes of a cache line; ways of L1, at least."""

MOST_MORE = 8
"""A panel's rows, at least, for each that is left unused behind them."""


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Names of the copy statements and of the packed arrays: of the vector operand, and of the row operand where it is packed.

    rest_copy, rest_array: of columns that are left. A copy that is made again for each block of an index has the block's number as an index (`block_index`)."""

    vector_copy: str | None = None
    vector_array: str | None = None
    row_copy: str | None = None
    row_array: str | None = None
    rest_copy: str | None = None
    rest_array: str | None = None

    @property
    def statements(self) -> tuple[str, ...]:
        return tuple(name for name in (self.vector_copy, self.rest_copy, self.row_copy) if name is not None)


@dataclass(frozen=True, slots=True)
class BlockedNest:
    """A contraction with what surrounds it. statements: in order, the contraction among them; after: those that follow when rows of C are finished, where the plan is turned, or all of it, where V streams; makers: what makes an operand, a block at a time; rest: what `statements` are for the columns that are left;
    indices: per statement, the name of each index of C, or what stands for it. laid_order: the loops of what follows, where it has indices of its own (blocking/laid_blocks.py)."""

    plan: Blocking
    copies: BlockCopies
    statements: tuple[str, ...]
    after: tuple[str, ...]
    rest: tuple[str, ...]
    indices: Mapping[str, Mapping[str, str]]
    domains: Mapping[str, tuple[str, ...]]
    makers: Makers | None = None
    laid_order: tuple[str, ...] = ()


def block_index(index: str) -> str:
    """The name of the index that counts blocks of `index`."""
    return derived(index, "block")


def copy_blocks(packed: Packed, plan: Blocking, lanes: Mapping[str, str]) -> tuple[Packed, BlockCopies]:
    """The scop with the plan's copies, and the statement reading them; the same scop where nothing is packed. lanes: the plan's, by statement of the nest."""
    if plan.rest:
        packed = cut_rest(packed, plan, lanes)
    scop = packed.scop
    worth = tuple(dict.fromkeys((*packed.worth, *plan.worth)))
    packed = replace(packed, notes=(*packed.notes, Note("blocking", plan.statement, str(plan))), worth=worth)
    statement = scop.statements[plan.statement]
    taken = {*scop.arrays, *scop.statements}
    made: dict[str, tuple[Array, Statement]] = {}
    layouts: dict[str, tuple[str, tuple[str, ...]]] = {}
    copies = BlockCopies()
    if plan.packed and not plan.in_place:
        panels = array_name(f"{plan.vector_operand}_panels", taken)
        layout = _own(statement, plan.vector_operand, (*plan.batch, *plan.vector_side, "", *plan.reduced, plan.lanes))
        repeats = tuple(i for i in (*plan.row_side, plan.rows) if plan.blocked(i)) if plan.rows_ahead else ()
        made[panels] = vector = _copy(scop, plan, plan.vector_operand, panels, layout, repeats)
        copies = BlockCopies(vector_copy=vector[1].name, vector_array=panels)
        layouts[plan.vector_operand] = panels, layout
    if plan.row_operand is not None:
        name = array_name(f"{plan.row_operand}_panels", {*taken, *made})
        layout = _own(statement, plan.row_operand, (*plan.batch, *plan.row_side, "", *plan.reduced, plan.rows))
        repeats = tuple(i for i in (*plan.vector_side, plan.lanes) if plan.blocked(i) and not plan.rows_ahead)
        rows = _copy(scop, plan, plan.row_operand, name, layout, repeats)
        made[name] = rows
        copies = replace(copies, row_copy=rows[1].name, row_array=name)
        layouts[plan.row_operand] = (name, layout)
    packed = _rows_apart(packed, plan, scop.arrays[statement.target.array])
    changed = _redirected(statement, layouts)
    readers = dict.fromkeys(made, changed)
    if plan.rest and plan.rest_lanes in plan.reduced:
        name = array_name(f"{plan.vector_operand}_rest", {*taken, *made})
        array, copy, readers[name] = rest_copy(scop, plan, name)
        made[name] = array, copy
        copies = replace(copies, rest_copy=copy.name, rest_array=name)
    if not made:
        return packed, copies
    new = with_copies(scop, made, {reader.name: reader for reader in readers.values()})
    flow = packed.dependences.flow
    for name, (_, copy) in made.items():
        written = new.must_writes.intersect_domain(copy.domain.to_union_set())
        reads = new.reads.intersect_domain(readers[name].domain.to_union_set()).intersect_range(universe(new, name))
        link = written.apply_range(reads.reverse())
        flow = flow.union(link.intersect(_same_block(new, copy, changed, plan)))
    storage = dict(packed.storage)
    for name, layout in layouts.values():
        storage[name] = _apart(_storage(scop, name, plan, layout, (changed, made[name][1])), layout, made[name][0])
    if copies.rest_array is not None:
        name = copies.rest_array
        storage[name] = rest_storage(plan, name, (readers[name], made[name][1]))
    found = replace(packed, scop=new, dependences=replace(packed.dependences, flow=flow), storage=storage)
    return found, copies


def _rows_apart(packed: Packed, plan: Blocking, sums: Array) -> Packed:
    """With rows of the sums that are added to while the vector operand passes spread over a page, where they have memory of their own and would lie a multiple of a page apart: they would meet in one set of L1, with rows of the operand."""
    shape = [extent.constant for extent in sums.shape if extent.is_constant]
    row = shape[-1] * sums.dtype.itemsize if shape else 0
    if not plan.streams or sums.kind != "local" or len(shape) != len(sums.shape) or len(shape) < 2 or row % WAY:
        return packed
    more = max(LINE, WAY // prod(shape[:-1]) // LINE * LINE) // sums.dtype.itemsize
    room = Storage(array=sums.name, place="", shape=(*shape[:-1], shape[-1] + more), offsets={})
    return replace(packed, storage={**packed.storage, sums.name: room})


def _own(statement: Statement, operand: str, order: Sequence[str]) -> tuple[str, ...]:
    """Those of these indices that the operand has: C may have one that neither moves along, of what is broadcast."""
    read = next(r for r in reads_of(statement.value) if r.tensor == operand)
    used = [s.name for s in read.subscripts if isinstance(s, Affine)]
    return tuple(i for i in order if i == "" or i in used)


def _copy(
    scop: Scop, plan: Blocking, operand: str, name: str, layout: Sequence[str], repeats: Sequence[str]
) -> tuple[Array, Statement]:
    """The packed array and its copy statement, which runs along the indices that the operand has in the contraction."""
    sums = scop.statements[plan.statement]
    read = next(r for r in reads_of(sums.value) if r.tensor == operand)
    used = [i for i in layout if i]
    indices = (*(block_index(i) for i in repeats), *used)
    limits = " and ".join(
        [
            *(f"0 <= {block_index(i)} and {plan.sizes[i]} * {block_index(i)} < {plan.end(i)}" for i in repeats),
            *(f"0 <= {i} < {plan.end(i)}" for i in used),
        ]
    )
    copy = f"S_{name}"
    dtype = scop.arrays[operand].dtype
    statement = Statement(
        name=copy,
        indices=indices,
        domain=isl.Set(f"{parameters_text(scop.sizes)}{{ {copy}[{', '.join(indices)}] : {limits} }}"),
        kind="copy",
        target=Access(name, _subscripts(layout)),
        value=read_along(read, indices, sums.indices),
    )
    shape = tuple(plan.ends.get(i, affine(plan.extents[i])) if i else affine(1) for i in layout)
    return Array(name=name, dtype=dtype, shape=shape, kind="local"), statement


def _subscripts(layout: Sequence[str]) -> tuple[Affine, ...]:
    return tuple(affine(i) if i else affine(0) for i in layout)


def _redirected(statement: Statement, layouts: Mapping[str, tuple[str, Sequence[str]]]) -> Statement:
    def change(read: Read) -> Read:
        if read.tensor not in layouts:
            return read
        name, layout = layouts[read.tensor]
        return Read(name, _subscripts(layout), read.dtype)

    return replace(statement, value=map_reads(statement.value, change))


def _same_block(scop: Scop, copy: Statement, reader: Statement, plan: Blocking) -> isl.UnionMap:
    """{ copy -> reader }: what is packed for each block again is for the block that the reader is in."""
    sources = {i: f"c{d}'" for d, i in enumerate(copy.indices)}
    equal = " and ".join(
        f"{sources[block_index(i)]} = floor({i}/{plan.sizes[i]})" for i in reader.indices if block_index(i) in sources
    )
    text = f"{copy.name}[{', '.join(sources.values())}] -> {reader.name}[{', '.join(reader.indices)}]"
    return isl.UnionMap(f"{parameters_text(scop.sizes)}{{ {text} : {equal or 'true'} }}")


def _storage(scop: Scop, name: str, plan: Blocking, layout: Sequence[str], statements: Sequence[Statement]) -> Storage:
    """One block: elements along the last dimension adjacent, panel by panel."""
    shape: list[Extent] = []
    offset: list[str] = []
    last = layout[-1]
    width = plan.width if last == plan.lanes else plan.tile.rows
    for index in layout:
        # All parts of the rows read what one of them packs.
        size = plan.extents[index] if plan.in_parts and index in plan.reduced else plan.sizes.get(index, 1)
        if index == "":
            any_number = last in plan.ends and not plan.blocked(last)
            panels = (plan.ends[last] + (width - 1)) // width if any_number else affine(ceil(plan.sizes[last] / width))
            shape.append(extent_of(panels))
            first = f" - {plan.sizes[last] // width}*floor({last}/{plan.sizes[last]})" if plan.blocked(last) else ""
            offset.append(f"-(floor({last}/{width}){first})")
        elif index == last:
            shape.append(width)
            offset.append(f"{width}*floor({index}/{width})")
        else:
            shape.append(plan.ends.get(index, size) if size == plan.extents[index] else size)
            offset.append(f"{size}*floor({index}/{size})" if size < plan.extents[index] else "0")
    offsets = {
        s.name: isl.MultiAff(
            f"{parameters_text(scop.sizes)}{{ {s.name}[{', '.join(s.indices)}] -> [{', '.join(f'({o})' for o in offset)}] }}"
        )
        for s in statements
    }
    return Storage(array=name, place=f"allocate:{name}", shape=tuple(shape), offsets=offsets)


def _apart(storage: Storage, layout: Sequence[str], array: Array) -> Storage:
    """With some rows more in each panel, whole lines, where the panels that a row of the source goes to lie so that their lines meet in one set of L1: lines that stores have asked for push out each other
    before they are written."""
    shape = [
        extent.constant if isinstance(extent, Affine) and extent.is_constant else extent for extent in storage.shape
    ]
    at = layout.index("") + 1
    if len(shape) < at + 2 or not all(isinstance(extent, int) for extent in shape):
        return storage
    known = [extent for extent in shape if isinstance(extent, int)]
    row = prod(known[at + 1 :]) * array.dtype.itemsize
    more, panels = LINE // gcd(row, LINE), prod(known[:at])

    def meeting(panel: int) -> int:
        """How many panels have their lines in one set."""
        return ceil(panels * gcd(panel, WAY) / WAY)

    if meeting(known[at] * row) <= WAYS or meeting((known[at] + more) * row) > WAYS or MOST_MORE * more > known[at]:
        return storage
    return replace(storage, shape=(*storage.shape[:at], known[at] + more, *storage.shape[at + 1 :]))
