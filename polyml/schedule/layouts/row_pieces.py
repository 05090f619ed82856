"""Rows that a sequential loop sweeps over again and again, cut in as many pieces as a vector has lanes: neighbours along a row are then neighbouring vectors.

A stencil's a[j - 1], a[j], a[j + 1] are vectors that overlap: they are loaded across lines, or shifted out of each other. With lane l on a piece of its own, from s*l on, they are three vectors one after the other, each at a
line, and a vector that is loaded once serves several results. What a piece needs of its neighbours' lies beside it and is copied from there after each sweep, a vector for each place. Local arrays stand in for the callers'
while the loop runs (layouts/relaid.py).

Rewrite, for rows of m elements from j = f on, with w lanes, s = m div w and pieces of n = m - (w - 1) s (neighbouring pieces share m mod w elements, which both compute, so that every vector is whole):
    for t: for j: b[j] = g(a[j - 1], a[j + 1])
    ->  b_pieces[p, l] = b[f + s l + p - 1]; (a likewise)
        for t:
            for v < n: for l < w: b_pieces[v + 1, l] = g(a_pieces[v, l], a_pieces[v + 2, l])
            for l in 1 .. w - 1: b_pieces[0, l] = b_pieces[s, l - 1]
            for l in 0 .. w - 2: b_pieces[n + 1, l] = b_pieces[n + 1 - s, l + 1]
        b[f + s l + v] = b_pieces[v + 1, l]

When: all that the loop's statements touch along rows stays in L1 (else strips of rows, which tiles over time need, would be pieces of pieces), all of them run over the same elements of a row, no instance needs another of
the same sweep, and there are enough steps for the copies, which is asked for at each call where it is not known.

Source: Henretty, Stock, Pouchet, Franchetti, Ramanujam, Sadayappan, "Data layout transformation for stencil computations on short-vector SIMD architectures" (CC 2011).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import IndexValue, Read, variables_in, walk
from polyml.new_names import derived, underscored
from polyml.records import dataclass
from polyml.schedule.layouts.padded_rows import swept_arrays, worth_of
from polyml.schedule.layouts.relaid import PAGE, Layout, Relaid, extents_of, redirected, relaid
from polyml.schedule.schedule import Product
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import maps_of, parameters_text
from polyml.target import Target

__all__ = ["Pieces", "cut_rows"]

LEAST_PIECE = 8
"""Elements of a piece: below, what is copied between pieces weighs as much as what is computed."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """dependences: of the scop with copies. worth: what must hold at a call."""

    relaid: Relaid
    dependences: Dependences
    worth: tuple[Product, ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The elements of each row that are computed: `count` from `first` on. along: per statement the index that runs over them. lanes: pieces."""

    first: int
    count: int
    lanes: int
    along: Mapping[str, str]

    @property
    def step(self) -> int:
        """From one piece to the next."""
        return self.count // self.lanes

    @property
    def length(self) -> int:
        """Elements of a piece."""
        return self.count - (self.lanes - 1) * self.step


@dataclass(frozen=True, slots=True)
class _Piece:
    """An array's pieces. before, behind: places beside a piece that are its neighbours'."""

    array: Array
    local: Array
    before: int
    behind: int


def cut_rows(scop: Scop, dependences: Dependences, target: Target) -> Pieces | None:
    """The scop on arrays whose rows are in pieces; None where there is no such loop."""
    worth = worth_of(scop)
    swept = {array.name: array for array in swept_arrays(scop) if extents_of(array) is not None}
    if worth is None or not swept:
        return None
    rows = _rows(scop, swept, target)
    if rows is None or not _are_independent(scop, dependences):
        return None
    cut = _cut(scop, rows)
    if cut is None or not _stay_in_cache(cut, rows, target):
        return None
    inside = _inside(scop, rows, cut)
    layouts = [_layout(piece, rows) for piece in cut.values()]
    made = relaid(scop, inside, layouts)
    return Pieces(made, made.dependences(analyse(inside), inside), worth)


def _rows(scop: Scop, swept: Mapping[str, Array], target: Target) -> _Rows | None:
    """What all statements run over along rows; None where they differ, or one does anything that has no place in pieces."""
    along: dict[str, str] = {}
    ranges: set[tuple[int, int]] = set()
    for statement in scop.statements.values():
        lasts = {a.subscripts[-1] for a in statement.accesses if a.array in swept}
        names = variables_in(lasts)
        if len(names) != 1 or statement.kind not in ("assign", "copy") or statement.argument is not None:
            return None
        (index,) = names
        if index not in statement.indices[statement.loop_depth :] or not _is_plain(statement, index):
            return None
        found = _range(statement, index)
        if found is None:
            return None
        along[statement.name] = index
        ranges.add(found)
    sizes = {scop.arrays[a.array].dtype.itemsize for s in scop.statements.values() for a in s.accesses}
    if len(ranges) != 1 or len(sizes) != 1:
        return None
    ((first, last),) = ranges
    rows = _Rows(first, last - first + 1, target.lanes(sizes.pop()), along)
    return rows if rows.lanes >= 4 and rows.step >= LEAST_PIECE else None


def _is_plain(statement: Statement, index: str) -> bool:
    """Whether the index is nothing but the last subscript, moved by a constant; of what is written not moved at all."""
    if any(isinstance(node, IndexValue) and index in node.affine.variables() for node in walk(statement.value)):
        return False
    if statement.target.subscripts[-1:] != (affine(index),):
        return False
    for access in statement.accesses:
        if not all(isinstance(s, Affine) for s in access.subscripts):
            return False
        *around, last = access.subscripts or (Affine(),)
        if any(isinstance(s, Affine) and index in s.variables() for s in around):
            return False
        if isinstance(last, Affine) and index in last.variables() and not (last - affine(index)).is_constant:
            return False
    return True


def _range(statement: Statement, index: str) -> tuple[int, int] | None:
    """The index's first and last value, the same whatever the others are; None where it is not."""
    position = statement.indices.index(index)
    low, high = statement.domain.dim_min_val(position), statement.domain.dim_max_val(position)
    if not low.is_int() or not high.is_int():
        return None
    others = statement.domain.drop_constraints_involving_dims(isl.dim_type.set, position, 1)
    box = others.lower_bound_val(isl.dim_type.set, position, low).upper_bound_val(isl.dim_type.set, position, high)
    return (low.to_python(), high.to_python()) if box.is_equal(statement.domain) else None


def _are_independent(scop: Scop, dependences: Dependences) -> bool:
    """Whether no statement's instance depends on another of its own within one iteration of the sequential loops."""
    for statement in scop.statements.values():
        names = ", ".join(statement.indices)
        others = ", ".join([*statement.indices[: statement.loop_depth], *(f"{i}'" for i in statement.indices[statement.loop_depth :])])  # fmt: skip
        same = isl.UnionMap(f"{{ {statement.name}[{names}] -> {statement.name}[{others}] }}")
        if not dependences.validity.intersect(same).is_empty():
            return False
    return True


def _cut(scop: Scop, rows: _Rows) -> dict[str, _Piece] | None:
    """All arrays with rows that the statements run along, in pieces; None where one of them is not the callers', or the pieces are shorter than what they need beside them."""
    found_at: dict[str, set[int]] = {}
    for statement in scop.statements.values():
        moving = affine(rows.along[statement.name])
        for access in statement.accesses:
            last = access.subscripts[-1] if access.subscripts else None
            if isinstance(last, Affine) and last.variables() == moving.variables():
                found_at.setdefault(access.array, set()).add((last - moving).constant)
    found = {}
    for name, shifts in found_at.items():
        array = scop.arrays[name]
        if array.kind == "local" or extents_of(array) is None:
            return None
        users = (a for s in scop.statements.values() for a in s.accesses if a.array == name)
        if any(not (isinstance(a.subscripts[-1], Affine) and a.subscripts[-1].variables()) for a in users):
            return None
        before, behind = max(0, -min(shifts)), max(0, max(shifts))
        if max(before, behind) > rows.step:
            return None
        *around, _ = array.shape
        places = _apart(before + rows.length + behind, rows.lanes * array.dtype.itemsize)
        shape = (*around, affine(places), affine(rows.lanes))
        local = Array(name=scop.new_array(f"{name}_pieces"), dtype=array.dtype, shape=shape, kind="inout")
        found[name] = _Piece(array, local, before, behind)
    return found


def _apart(places: int, vector_bytes: int) -> int:
    """So many places or more that arrays one after the other are half a page apart: a load whose address has the last 12 bits of an earlier store's waits for that."""
    half = PAGE // 2 // vector_bytes
    return places + (half - places) % (2 * half) if vector_bytes <= PAGE // 2 else places


def _stay_in_cache(cut: Mapping[str, _Piece], rows: _Rows, target: Target) -> bool:
    """Whether L1 holds all pieces with what lies beside them; places that only keep arrays apart are never touched."""
    touched = 0
    for piece in cut.values():
        *around, _, lanes = extents_of(piece.local) or (0, 0)
        touched += prod(around) * (piece.before + rows.length + piece.behind) * lanes * piece.array.dtype.itemsize
    return touched <= target.l1_bytes


def _inside(scop: Scop, rows: _Rows, cut: Mapping[str, _Piece]) -> Scop:
    """The loops on pieces that are there already, and are what is wanted."""
    maps = {m.get_tuple_name(isl.dim_type.in_): m for m in _maps(scop.initial)}
    statements: dict[str, Statement] = {}
    order = isl.UnionMap("{ }")
    for statement in scop.statements.values():
        time = maps[statement.name].as_pw_multi_aff().gist(statement.domain)
        assert time.isa_multi_aff(), "internal: a statement without one written order"
        everywhere = isl.Map.from_multi_aff(time.as_multi_aff())
        for position, (made, back) in enumerate(_on_pieces(statement, rows, cut, scop.sizes)):
            statements[made.name] = made
            own = back.intersect_domain(made.domain).apply_range(everywhere)
            order = order.union(_followed(own, position).to_union_map())
    arrays = {**scop.arrays, **{piece.local.name: piece.local for piece in cut.values()}}
    kept = {name: array for name, array in arrays.items() if name not in cut}
    return rebuilt(replace(scop, initial=order), statements, kept)


def _followed(own: isl.Map, position: int) -> isl.Map:
    """The order with one more dimension at its end."""
    depth = own.dim(isl.dim_type.out)
    return own.add_dims(isl.dim_type.out, 1).fix_val(
        isl.dim_type.out, depth, isl.Val.int_from_si(own.get_ctx(), position)
    )


def _on_pieces(
    statement: Statement, rows: _Rows, cut: Mapping[str, _Piece], sizes: tuple[str, ...]
) -> Iterator[tuple[Statement, isl.Map]]:
    """The statement on pieces, then the copies between pieces; each with the written instances in whose places it stands (for copies: one behind the row's last)."""
    index = rows.along[statement.name]
    around = [i for i in statement.indices if i != index]
    inner, lane = (underscored(f"{index}_{part}", statement.indices, sizes) for part in ("place", "piece"))
    moved = {}
    for access in statement.accesses:
        piece = cut.get(access.array)
        if piece is not None:
            *outer, last = access.subscripts
            assert isinstance(last, Affine), "internal: an indirect subscript in a piece"
            place = affine(inner) + (last - affine(index)).constant + piece.before
            moved[access] = Access(piece.local.name, (*outer, place, affine(lane)))
    there = [f"{rows.first} + {rows.step} * {lane} + {inner}" if i == index else i for i in statement.indices]
    head = parameters_text(sizes)
    back = isl.Map(
        f"{head}{{ {statement.name}[{', '.join([*around, inner, lane])}] -> {statement.name}[{', '.join(there)}] :"
        f" 0 <= {inner} < {rows.length} and 0 <= {lane} < {rows.lanes} }}"
    )
    indices = (*around, inner, lane)
    domain = back.intersect_range(statement.domain).domain()
    yield replace(redirected(statement, moved), indices=indices, domain=domain), back
    piece = cut[statement.target.array]
    rest = statement.target.subscripts[:-1]
    edges = (
        ("before", piece.before, 0, rows.step, -1, 1),
        ("behind", piece.behind, piece.before + rows.length, -rows.step, 1, 0),
    )
    for side, count, start, move, other, first in edges:
        if not count:
            continue
        name = derived(statement.name, side)
        behind = [str(rows.first + rows.count) if i == index else i for i in statement.indices]
        back = isl.Map(
            f"{head}{{ {name}[{', '.join([*around, inner, lane])}] -> {statement.name}[{', '.join(behind)}] :"
            f" 0 <= {inner} < {count} and {first} <= {lane} < {first + rows.lanes - 1} }}"
        )
        row = statement.domain.drop_constraints_involving_dims(isl.dim_type.set, statement.indices.index(index), 1)
        place = affine(inner) + start
        target = Access(piece.local.name, (*rest, place, affine(lane)))
        value = Read(piece.local.name, (*rest, place + move, affine(lane) + other), piece.array.dtype)
        yield Statement(
            name=name, indices=indices, domain=back.intersect_range(row).domain(), kind="copy", target=target, value=value,
            loop_depth=statement.loop_depth, span=statement.span,
        ), back  # fmt: skip


def _layout(piece: _Piece, rows: _Rows) -> Layout:
    around = [f"e{d}" for d in range(len(piece.array.shape) - 1)]
    same = tuple(affine(e) for e in around)
    element = affine("l0") * rows.step + affine("p0") + (rows.first - piece.before)
    length = piece.before + rows.length + piece.behind
    within = f"0 <= l0 < {rows.lanes}"
    whole = f"{piece.before} <= p0 < {piece.before + rows.step}"
    rest = f"{piece.before} <= p0 < {piece.before + rows.length} and l0 = {rows.lanes - 1}"
    return Layout(
        piece.array,
        replace(piece.local, kind="local"),
        (*around, "p0", "l0"),  # as no size is called (looks_made)
        (*same, element),
        (*same, affine("p0"), affine("l0")),
        limits=f"0 <= p0 < {length} and {within}",
        back_limits=f"(({whole}) or ({rest})) and {within}",
    )


def _maps(relation: isl.UnionMap) -> Iterator[isl.Map]:
    yield from maps_of(relation)
