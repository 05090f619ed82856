"""Neighbouring indices become one where every array has them side by side: y[o, p, q] of a product over 14 x 14 points is one row of 196, which is whole
vectors but for the last, instead of rows of 14, each of which wastes a part of one. Where extents are symbolic, so that nobody knows how short rows are, all reductions' neighbours become one; and so do all neighbours of regions that go through
memory without contractions (sums, batch norms, permutations), whose loops are as long as memory allows then.
So do those of sums of products that use a large operand's elements a few times only: it is read in longer pieces. And so do the last ones of an operand whose innermost rows are shorter than a register tile.

A pair of indices (i, j) may become one, E*i + j, when each access of the statement has both as neighbouring plain subscripts, or neither; the array's dimension of j has E elements, and
they follow each other without gaps. Where extents are numbers and E is small, i may be moved by other indices: the windows x[i + r, j] of an image whose channels come last are x[E*i + j + E*r]. All accesses to such an array must have pairs there. This is an exact change of names, without dependences: the same instances touch the same memory, and since j follows i
among the statement's indices they do so in the same order.

A copy whose source, or target, ends in a short index that the other side has elsewhere goes along one index, too: `y[d, c, a] = x[a, c, d]` with two d is `y[e mod 2, e // 2, a] = x[a, e]`, rows of
which go to different places. What has them side by side is read, or written, in blocks of whole vectors, which are transposed in registers.

E*i is not affine where E is symbolic, and need not be: nothing but the new index is left. The number of its values is a size of its own (`Scop.products`), which functions get like all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

import islpy as isl

from polyml.expressions import IndexValue, Read, Subscript, map_reads, plain_indices, reads_of, walk
from polyml.records import dataclass
from polyml.scop.products import product_of, with_used_sizes
from polyml.scop.relations import in_order, rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import element_count
from polyml.sets.spaces import parameters_text

__all__ = ["joined_indices"]

VECTORS = 4
"""Rows of as many vectors lose little at their end."""

FEW_USES = 16
"""Uses of an operand's elements below which it is read once, in order."""

TILE = 6
"""Rows of a register tile: a shorter index is none by itself."""

LEAST_WORK = 1 << 15
"""Instances below which nothing is gained."""

LEAST_COPIED = 1 << 12
"""The same of copies, whose index arithmetic is all that they compute."""

SHORT = 4
"""Elements of an end from which on it makes blocks of its own: index arithmetic for each row costs more than columns that are idle."""


def joined_indices(scop: Scop, lanes_bytes: int, *, turns: bool = True) -> Scop:
    """The scop with the rows of its contractions' results joined where they are short and no whole vectors, all indices that can be where there is no contraction or an operand is read a few times only,
    and for symbolic sizes all indices of reductions that can be; the same object where nothing can be.

    Args:
        lanes_bytes: of a vector register. turns: whether copies transpose blocks in registers.
    """
    if any(s.loop_depth or s.argument is not None for s in scop.statements.values()):
        return scop
    given = scop
    contracts = any(map(_is_contraction, scop.statements.values()))
    for statement in scop.statements.values():
        if scop.sizes:
            scop = _neighbours(scop, statement.name) if statement.kind == "update" else scop
        elif not contracts:
            scop = _neighbours(scop, statement.name)
            scop = _short_ends(scop, statement.name) if turns else scop
        elif statement.kind == "update":
            scop = _rows(scop, statement.name, lanes_bytes)
            scop = _in_a_row(scop, statement.name)
            scop = _short_columns(scop, statement.name)
    return scop if scop is given else with_used_sizes(scop)


def _is_contraction(statement: Statement) -> bool:
    """Whether several operands move along what the statement sums over: register tiles are for such, which have rules of their own."""
    kept = frozenset(i for s in statement.target.subscripts if isinstance(s, Affine) for i in s.variables())
    moving = {
        read.tensor
        for read in reads_of(statement.value)
        for s in read.subscripts
        if not isinstance(s, Affine) or s.variables() - kept
    }
    return statement.kind == "update" and len(moving) > 1


def _rows(scop: Scop, name: str, lanes_bytes: int) -> Scop:
    """One statement's rows, as often as there is another dimension outside."""
    while True:
        statement = scop.statements[name]
        pair = _short_row(scop, statement, lanes_bytes)
        found = None if pair is None else _Joining(scop).all(name, pair)
        if found is None:
            return scop
        scop = _joined(scop, *found)


def _neighbours(scop: Scop, name: str) -> Scop:
    """One statement's pairs, as long as there are any: of symbolic sizes those of which an extent is, of numbers those of large statements."""
    while True:
        statement, joining = scop.statements[name], _Joining(scop)
        extents = _extents(scop, statement) or {}
        least = LEAST_COPIED if isinstance(statement.value, Read) else LEAST_WORK
        if not scop.sizes and prod(extent.constant for extent in extents.values()) < least:
            return scop
        numbers = [index for index, extent in extents.items() if scop.sizes and extent.is_constant]
        pairs = (pair for pair in _pairs(statement) if not all(i in numbers for i in pair))
        found = next((made for pair in pairs if (made := joining.all(name, pair)) is not None), None)
        if found is None:
            return scop
        scop = _joined(scop, *found)


def _short_ends(scop: Scop, name: str) -> Scop:
    """A copy with a short last index of one side joined to the one before, where the other side ends in neither and nobody else uses the array."""
    statement = scop.statements[name]
    if scop.sizes or statement.kind != "assign" or not isinstance(statement.value, Read):
        return scop
    extents = _extents(scop, statement)
    source, target = Access(statement.value.tensor, statement.value.subscripts), statement.target
    if extents is None or prod(extent.constant for extent in extents.values()) < LEAST_COPIED:
        return scop
    for side, other in ((source, target), (target, source)):
        ends = [s.name if isinstance(s, Affine) else None for s in (*side.subscripts[-2:], *other.subscripts[-1:])]
        if len(ends) < 3 or len(set(ends)) < 3 or None in ends:
            continue
        outer, inner, _ = (str(end) for end in ends)
        at = len(side.subscripts) - 2
        array = scop.arrays[side.array]
        fits = array.shape[at] == extents[outer] and _Joining(scop).fits(array, at, extents[outer], extents[inner])
        alone = sum(access.array == side.array for s in scop.statements.values() for access in _accesses(s)) == 1
        plain = all(isinstance(s, Affine) and s.name is not None for s in (*side.subscripts, *other.subscripts))
        if fits and alone and plain and extents[inner].constant < SHORT:
            return _split_again(scop, statement, side, (outer, inner), extents)
    return scop


def _split_again(
    scop: Scop, statement: Statement, side: Access, pair: tuple[str, str], extents: dict[str, Affine]
) -> Scop:
    """The scop with the copy's pair as one index, and the last two dimensions of one side as one; the other side takes the index apart again."""
    outer, inner = pair
    count = extents[inner].constant
    total = affine(count * extents[outer].constant)
    name = f"{outer}_{inner}"
    while name in statement.indices:
        name += "_"
    one = affine(name)
    parts = {outer: one // count, inner: one - one // count * count}

    def moved(access: Access) -> Access:
        if access == side:
            return Access(access.array, (*access.subscripts[:-2], one))
        return Access(access.array, tuple(s.substitute(parts) for s in access.subscripts if isinstance(s, Affine)))

    assert isinstance(statement.value, Read), "internal: a copy that computes"
    source = moved(Access(statement.value.tensor, statement.value.subscripts))
    indices = tuple(name if index == outer else index for index in statement.indices if index != inner)
    made = replace(
        statement,
        indices=indices,
        domain=_box(statement.name, indices, {**extents, name: total}, scop.sizes),
        target=moved(statement.target),
        value=replace(statement.value, tensor=source.array, subscripts=source.subscripts),
    )
    statements = {**scop.statements, statement.name: made}
    array = _array(scop.arrays[side.array], len(side.subscripts) - 2, total)
    return rebuilt(
        replace(scop, initial=in_order(statements, scop.sizes)), statements, {**scop.arrays, array.name: array}
    )


def _pairs(statement: Statement) -> dict[tuple[str, str], None]:
    """Neighbours among the statement's indices that are neighbours in an access, too."""
    found: dict[tuple[str, str], None] = {}
    indices = dict(zip(statement.indices, statement.indices[1:], strict=False))
    for access in _accesses(statement):
        names = plain_indices(access.subscripts)
        found |= {(a, b): None for a, b in pairwise(names) if a is not None and b == indices.get(a, "")}
    return found


def _short_row(scop: Scop, statement: Statement, lanes_bytes: int) -> tuple[str, str] | None:
    """The last two indices of the result, where its rows should be longer."""
    names = plain_indices(statement.target.subscripts)
    shape = scop.arrays[statement.target.array].shape
    if len(names) < 2 or names[-1] is None or names[-2] is None or not shape[-1].is_constant:
        return None
    lanes = max(1, lanes_bytes // scop.arrays[statement.target.array].dtype.itemsize)
    row = shape[-1].constant
    extents = _extents(scop, statement)
    if row % lanes == 0 or row >= VECTORS * lanes or extents is None or len(extents) <= len(names):
        return None
    work = prod(extent.constant for extent in extents.values())
    return (names[-2], names[-1]) if work >= LEAST_WORK else None


def _in_a_row(scop: Scop, name: str) -> Scop:
    """One statement with what it meets in a row in a large operand joined: indices of a sum, and what lies beside the operand's last one."""
    while True:
        statement, joining = scop.statements[name], _Joining(scop)
        large = _read_few_times(scop, statement)
        if large is None:
            return scop
        kept = {v for s in statement.target.subscripts if isinstance(s, Affine) for v in s.variables()}
        last = large.subscripts[-1]
        ends = {last.name} if isinstance(last, Affine) else set()
        pairs = (pair for pair in _pairs(statement) if not kept & set(pair) or pair[1] in ends)
        found = next((made for pair in pairs if (made := joining.all(name, pair)) is not None), None)
        if found is None:
            return scop
        scop = _joined(scop, *found)


def _short_columns(scop: Scop, name: str) -> Scop:
    """One statement with the last indices of an operand joined, all that the result has, where the innermost is short: a register tile's rows lie side by side then, so that panels are packed from pieces of whole vectors."""
    operand: str | None = None
    while True:
        statement = scop.statements[name]
        read = None if scop.sizes else _with_short_end(scop, statement, operand)
        outer, inner = (None, None) if read is None else plain_indices(read.subscripts)[-2:]
        found = None if outer is None or inner is None else _Joining(scop).all(name, (outer, inner))
        if read is None or found is None:
            return scop
        scop, operand = _joined(scop, *found), read.tensor


def _with_short_end(scop: Scop, statement: Statement, operand: str | None) -> Read | None:
    """The one operand of a contraction that moves along its last two indices, which the result has, the innermost of which has few values; or of this name (None: any)."""
    extents = _extents(scop, statement)
    if extents is None or not _is_contraction(statement):
        return None
    if prod(extent.constant for extent in extents.values()) < LEAST_WORK:
        return None
    kept = set(plain_indices(statement.target.subscripts))
    reads = list(dict.fromkeys(reads_of(statement.value)))
    for read in reads:
        outer, inner = (None, None, *plain_indices(read.subscripts))[-2:]
        if outer is None or inner is None or not {outer, inner} <= kept:
            continue
        others = {
            v for r in reads if r is not read for s in r.subscripts if isinstance(s, Affine) for v in s.variables()
        }
        fits = extents[inner].constant < TILE if operand is None else read.tensor == operand
        if fits and not others & {outer, inner}:
            return read
    return None


def _read_few_times(scop: Scop, statement: Statement) -> Read | None:
    """The large operand of a product whose elements are used a few times only: memory is what it waits for, and the fewer and longer the pieces are that are read, the better."""
    extents = _extents(scop, statement)
    reads = list(dict.fromkeys(reads_of(statement.value)))
    if scop.sizes or extents is None or len(reads) != 2 or not statement.target.subscripts:
        return None

    def size(read: Read) -> int:
        return element_count(scop.arrays[read.tensor].shape)

    work, large = prod(extent.constant for extent in extents.values()), max(reads, key=size)
    return large if work >= LEAST_WORK and work < FEW_USES * size(large) and large.subscripts else None


def _extents(scop: Scop, statement: Statement) -> dict[str, Affine] | None:
    """The number of values of each index, all from 0 on; None for a domain that is no such box."""
    domain = statement.domain
    found: dict[str, Affine] = {}
    if not scop.sizes:
        for position, index in enumerate(statement.indices):
            high = domain.dim_max_val(position)
            if not domain.dim_min_val(position).is_zero() or not high.is_int():
                return None
            found[index] = affine(high.to_python() + 1)
        return found if domain.is_box() else None
    for access in _accesses(statement):
        for subscript, extent in zip(access.subscripts, scop.arrays[access.array].shape, strict=True):
            if isinstance(subscript, Affine) and subscript.name in statement.indices:
                found.setdefault(subscript.name, extent)
    if found.keys() != set(statement.indices):
        return None
    known = scop.context
    box = _box(statement.name, statement.indices, found, scop.sizes)
    return found if box.intersect_params(known).is_equal(domain.intersect_params(known)) else None


def _box(name: str, indices: tuple[str, ...], extents: dict[str, Affine], sizes: tuple[str, ...]) -> isl.Set:
    limits = " and ".join(f"0 <= {index} < {extents[index].isl_text()}" for index in indices)
    return isl.Set(f"{parameters_text(sizes)}{{ {name}[{', '.join(indices)}] : {limits or 'true'} }}")


@dataclass(frozen=True, slots=True)
class _Joining:
    scop: Scop

    def all(self, name: str, pair: tuple[str, str]) -> tuple[dict[str, tuple[str, str]], dict[str, int]] | None:
        """Everything that becomes one together with the statement's pair: pairs of indices by statement, and the first of two dimensions by array."""
        pairs: dict[str, tuple[str, str]] = {name: pair}
        arrays: dict[str, int] = {}
        statements, waiting = [name], list[str]()
        while statements or waiting:
            if statements:
                for array, dimension in self.dimensions(statements.pop(), pairs):
                    if dimension is None or arrays.setdefault(array, dimension) != dimension:
                        return None
                    waiting.append(array)
                continue
            array = waiting.pop()
            for user, found in self.users(array, arrays[array]):
                if found is None or pairs.get(user, found) != found:
                    return None
                if user not in pairs:
                    pairs[user] = found
                    statements.append(user)
        return pairs, arrays

    def dimensions(self, name: str, pairs: dict[str, tuple[str, str]]) -> Iterator[tuple[str, int | None]]:
        """The arrays that the statement reaches by its pair, and where; None where that does not do."""
        statement, (outer, inner) = self.scop.statements[name], pairs[name]
        if not _apart_from_others(statement, outer, inner):
            yield name, None
            return
        extents = _extents(self.scop, statement)
        if extents is None:
            yield name, None
            return
        for access in _accesses(statement):
            used = [
                k for k, s in enumerate(access.subscripts) if isinstance(s, Affine) and s.variables() & {outer, inner}
            ]
            if any(not isinstance(s, Affine) for s in access.subscripts):
                yield access.array, None
            elif used:
                at = used[0]
                plain = len(used) == 2 and self.pair_at(statement, access, at) == (outer, inner)
                fits = plain and self.fits(self.scop.arrays[access.array], at, extents[outer], extents[inner])
                yield access.array, at if fits else None

    def fits(self, array: Array, dimension: int, outer: Affine, inner: Affine) -> bool:
        """Whether the inner dimension is swept whole, and both lie without gaps; of symbolic extents the outer one, too."""
        if array.shape[dimension + 1] != inner or (self.scop.sizes and array.shape[dimension] != outer):
            return False
        strides = array.strides
        return strides is None or inner * strides[dimension + 1] == affine(strides[dimension])

    def users(self, array: str, dimension: int) -> Iterator[tuple[str, tuple[str, str] | None]]:
        """The statements that touch the array, and the pairs of indices by which they do."""
        for statement in self.scop.statements.values():
            for access in _accesses(statement):
                if access.array == array:
                    yield statement.name, self.pair_at(statement, access, dimension)

    def pair_at(self, statement: Statement, access: Access, dimension: int) -> tuple[str, str] | None:
        """The indices of the statement by which an access goes along two dimensions: one of them alone in the second, and the one before it in the first, where others may move it if extents are numbers.

        Longer rows are left alone: neighbours of a window share what they load where a row is a vector or two."""
        first, second = access.subscripts[dimension : dimension + 2]
        if not isinstance(first, Affine) or not isinstance(second, Affine) or second.name not in statement.indices[1:]:
            return None
        outer = statement.indices[statement.indices.index(second.name) - 1]
        if first.stride(outer) != 1 or second.name in first.variables():
            return None
        inner = self.scop.arrays[access.array].shape[dimension + 1]
        if first.name is None and (self.scop.sizes or inner.constant > SHORT):
            return None
        return outer, second.name


def _apart_from_others(statement: Statement, outer: str, inner: str) -> bool:
    """Whether the one index follows the other, so that their instances stay in order, and no value is computed from either."""
    indices = statement.indices
    if indices.index(inner) != indices.index(outer) + 1:
        return False
    values = (node.affine for node in walk(statement.value) if isinstance(node, IndexValue))
    return not any(value.variables() & {outer, inner} for value in values)


def _accesses(statement: Statement) -> list[Access]:
    return [statement.target, *(Access(r.tensor, r.subscripts) for r in reads_of(statement.value))]


def _joined(scop: Scop, pairs: dict[str, tuple[str, str]], arrays: dict[str, int]) -> Scop:
    """The scop with the pairs as one index, and the dimensions as one."""
    first = next(iter(pairs))
    known = _extents(scop, scop.statements[first])
    assert known is not None, "internal: a domain that is no box"
    scop, total = product_of(scop, [known[index] for index in pairs[first]])
    statements: dict[str, Statement] = {}
    for statement in scop.statements.values():
        if statement.name not in pairs:
            statements[statement.name] = statement
            continue
        outer, inner = pairs[statement.name]
        extents = _extents(scop, statement)
        assert extents is not None, "internal: a domain that is no box"
        name = f"{outer}_{inner}"
        while name in statement.indices or name in scop.sizes:
            name += "_"
        indices = tuple(name if index == outer else index for index in statement.indices if index != inner)
        count = total if scop.sizes else affine(extents[outer].constant * extents[inner].constant)
        place = _Place(arrays, name, outer, extents[inner])
        statements[statement.name] = replace(
            statement,
            indices=indices,
            domain=_box(statement.name, indices, {**extents, name: count}, scop.sizes),
            target=place.access(statement.target),
            value=map_reads(statement.value, place.read),
        )
    changed = {array.name: _whole(array, arrays.get(array.name), total, scop) for array in scop.arrays.values()}
    return rebuilt(replace(scop, initial=in_order(statements, scop.sizes)), statements, changed)


@dataclass(frozen=True, slots=True)
class _Place:
    """Accesses with one subscript in the place of two: `name` for `outer` and the index behind it, which has so many values."""

    arrays: dict[str, int]
    name: str
    outer: str
    count: Affine

    def access(self, old: Access) -> Access:
        at = self.arrays.get(old.array)
        return old if at is None else Access(old.array, self.subscripts(old.subscripts, at))

    def read(self, old: Read) -> Read:
        at = self.arrays.get(old.tensor)
        return old if at is None else Read(old.tensor, self.subscripts(old.subscripts, at), old.dtype)

    def subscripts(self, old: tuple[Subscript, ...], at: int) -> tuple[Subscript, ...]:
        first = old[at]
        assert isinstance(first, Affine), "internal: a computed subscript of a pair"
        moved = first - affine(self.outer)
        here = affine(self.name) + (moved * self.count.constant if moved != affine(0) else moved)
        return (*old[:at], here, *old[at + 2 :])


def _whole(array: Array, at: int | None, total: Affine, scop: Scop) -> Array:
    """The array with two dimensions as one; of symbolic extents both are swept whole."""
    if at is None or scop.sizes:
        return _array(array, at, total)
    return _array(array, at, affine(array.shape[at].constant * array.shape[at + 1].constant))


def _array(array: Array, at: int | None, total: Affine) -> Array:
    if at is None:
        return array
    shape = (*array.shape[:at], total, *array.shape[at + 2 :])
    strides = None if array.strides is None else (*array.strides[:at], *array.strides[at + 1 :])
    return replace(array, shape=shape, strides=strides)
