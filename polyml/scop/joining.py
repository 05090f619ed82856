"""Two neighbouring indices as one: what else becomes one with a pair (index by index, array by array, until nothing changes), whether that is possible, and the scop in which they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyml.expressions import IndexValue, Read, Subscript, map_reads, walk
from polyml.new_names import underscored
from polyml.records import dataclass
from polyml.scop.products import product_of
from polyml.scop.relations import in_order, rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.from_isl import integer

__all__ = ["SHORT", "Joining", "as_one_dimension", "box_extents", "joined"]

SHORT = 4
"""Elements of an end from which on it makes blocks of its own: index arithmetic for each row costs more than columns that are idle."""


def box_extents(scop: Scop, statement: Statement) -> dict[str, Affine] | None:
    """The number of values of each index, all from 0 on; None for a domain that is no such box."""
    domain = statement.domain
    found: dict[str, Affine] = {}
    if not scop.sizes:
        for position, index in enumerate(statement.indices):
            high = domain.dim_max_val(position)
            if not domain.dim_min_val(position).is_zero() or not high.is_int():
                return None
            found[index] = affine(integer(high) + 1)
        return found if domain.is_box() else None
    for access in statement.accesses:
        for subscript, extent in zip(access.subscripts, scop.arrays[access.array].shape, strict=True):
            if isinstance(subscript, Affine) and subscript.name in statement.indices:
                found.setdefault(subscript.name, extent)
    if found.keys() != set(statement.indices):
        return None
    known = scop.context
    whole = box(statement.name, statement.indices, found, scop.sizes)
    return found if whole.intersect_params(known).is_equal(domain.intersect_params(known)) else None


@dataclass(frozen=True, slots=True)
class Joining:
    """Decides what becomes one together with a pair of a statement's indices."""

    scop: Scop

    def all(self, name: str, pair: tuple[str, str]) -> tuple[dict[str, tuple[str, str]], dict[str, int]] | None:
        """Everything that becomes one together with the statement's pair: pairs of indices by statement, and the first of two dimensions by array; None where an access does not have both as neighbours."""
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
        extents = box_extents(self.scop, statement)
        if extents is None:
            yield name, None
            return
        for access in statement.accesses:
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
            for access in statement.accesses:
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


def joined(scop: Scop, pairs: dict[str, tuple[str, str]], arrays: dict[str, int]) -> Scop:
    """The scop with each pair of indices as one, and each pair of dimensions as one. pairs, arrays: as `Joining.all` finds them."""
    first = next(iter(pairs))
    known = box_extents(scop, scop.statements[first])
    assert known is not None, "internal: a domain that is no box"
    scop, total = product_of(scop, [known[index] for index in pairs[first]])
    statements: dict[str, Statement] = {}
    for statement in scop.statements.values():
        if statement.name not in pairs:
            statements[statement.name] = statement
            continue
        outer, inner = pairs[statement.name]
        extents = box_extents(scop, statement)
        assert extents is not None, "internal: a domain that is no box"
        name = underscored(f"{outer}_{inner}", statement.indices, scop.sizes)
        indices = tuple(name if index == outer else index for index in statement.indices if index != inner)
        count = total if scop.sizes else affine(extents[outer].constant * extents[inner].constant)
        place = _Place(arrays, name, outer, extents[inner])
        statements[statement.name] = replace(
            statement,
            indices=indices,
            domain=box(statement.name, indices, {**extents, name: count}, scop.sizes),
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
        return as_one_dimension(array, at, total)
    return as_one_dimension(array, at, affine(array.shape[at].constant * array.shape[at + 1].constant))


def as_one_dimension(array: Array, at: int | None, total: Affine) -> Array:
    """The array with dimensions `at` and the next as one of so many elements."""
    if at is None:
        return array
    shape = (*array.shape[:at], total, *array.shape[at + 2 :])
    strides = None if array.strides is None else (*array.strides[:at], *array.strides[at + 1 :])
    return replace(array, shape=shape, strides=strides)
