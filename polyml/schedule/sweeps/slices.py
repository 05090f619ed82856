"""A region whose statements all go slice by slice through what they hand each other: the index of the slices as a loop around all of them.

`t[b, i, j] = x[b, i, k] * w[k, j]; s[b, j] = max[i](t[b, i, j])`: what one b makes, only this b reads. Written with the loop over b outside, an iteration is a program of its own (loop_bodies.py), and of t one slice is alive.

Rewrite: S[i, b] -> S[b, i] in a loop over b, for the one index of each statement that follows the arrays' first dimension
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyml.disjoint_sets import DisjointSets
from polyml.expressions import Read, plain_index, substitute, walk
from polyml.new_names import underscored
from polyml.records import dataclass
from polyml.schedule.sweeps.row_cuts import elements_of
from polyml.schedule.written import in_order, with_statements
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Access, Scop, Statement
from polyml.sets.affine import Affine, affine

__all__ = ["Slices", "in_slices"]

_PARAM, _SET, _IN, _OUT = isl.dim_type.param, isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class Slices:
    """scop: with the slices' index as a loop around all statements. count: of the slices."""

    scop: Scop
    count: int


def in_slices(scop: Scop, dependences: Dependences, *, most: int) -> Slices | None:
    """The slices of a scop; None where there are none, or one needs another. most: bytes of a slice of all local arrays."""
    found = None if any(s.argument is not None for s in scop.statements.values()) else _sliced(scop)
    if found is None or not in_order(scop):
        return None
    count, own = found
    local = [array for array in scop.arrays.values() if array.kind == "local"]
    if sum(elements_of(array) * array.dtype.itemsize for array in local) > most * count:
        return None
    taken = {index for s in scop.statements.values() for index in s.indices}
    loop = underscored(next(iter(own.values())), taken - set(own.values()), scop.sizes)
    if any(loop in s.indices and own[name] != loop for name, s in scop.statements.items()):
        return None
    if not _apart(scop, dependences.validity.union(dependences.reduction), own):
        return None
    statements = {name: _around(s, own[name], loop) for name, s in scop.statements.items()}
    return Slices(with_statements(scop, statements, scop.arrays, loops=(loop,)), count)


def _sliced(scop: Scop) -> tuple[int, dict[str, str]] | None:
    """The number of slices, and by statement the index that follows the first dimension of a local array, from one statement to the next; None where one has none, or several, or all go through the array's rows side by side as well, of which a few are a better slice."""
    sets = DisjointSets[tuple[str, str | int]](
        [
            *((name, i) for name, s in scop.statements.items() for i in s.indices),
            *((f"[{name}]", d) for name, array in scop.arrays.items() for d in range(len(array.shape))),
        ]
    )
    for name, s in scop.statements.items():
        for access in _accesses(s):
            for d, subscript in enumerate(access.subscripts):
                index = plain_index(subscript)
                if index is not None:
                    sets.join((name, index), (f"[{access.array}]", d))
    roots = sets.roots()
    for local, array in scop.arrays.items():
        if array.kind != "local" or len(array.shape) < 3:
            continue
        first, second = (_indices(scop, roots, roots[f"[{local}]", d]) for d in (0, 1))
        rows = all(len(own) == 1 and own <= _kept(scop.statements[name]) for name, own in second.items())
        if all(len(own) == 1 for own in first.values()) and not rows:
            count = array.shape[0]
            return (count.constant, {n: next(iter(own)) for n, own in first.items()}) if count.is_constant else None
    return None


def _indices(scop: Scop, roots: Mapping[tuple[str, str | int], object], root: object) -> dict[str, set[str]]:
    """By statement its indices of the class."""
    return {name: {i for i in s.indices if roots[name, i] == root} for name, s in scop.statements.items()}


def _kept(s: Statement) -> set[str]:
    """The indices that the statement's result has."""
    return set(filter(None, map(plain_index, s.target.subscripts)))


def _accesses(s: Statement) -> list[Access]:
    return [s.target, *(Access(e.tensor, e.subscripts) for e in walk(s.value) if isinstance(e, Read))]


def _apart(scop: Scop, order: isl.UnionMap, own: Mapping[str, str]) -> bool:
    """Whether no instance waits for one of another slice."""
    maps = order.get_map_list()
    for k in range(maps.n_map()):
        link = maps.get_at(k)
        source, sink = (scop.statements[link.get_tuple_name(side)] for side in (_IN, _OUT))
        places = source.indices.index(own[source.name]), sink.indices.index(own[sink.name])
        if not link.is_subset(link.equate(_IN, places[0], _OUT, places[1])):
            return False
    return True


def _around(s: Statement, own: str, loop: str) -> Statement:
    """The statement with its index `own` first, called `loop`."""
    at, new = s.indices.index(own), {own: affine(loop)}
    domain = s.domain.move_dims(_PARAM, s.domain.dim(_PARAM), _SET, at, 1)
    domain = domain.move_dims(_SET, 0, _PARAM, domain.dim(_PARAM) - 1, 1).set_tuple_name(s.name)
    indices = (loop, *(i for i in s.indices if i != own))
    for position, name in enumerate(indices):
        domain = domain.set_dim_name(_SET, position, name)
    places = (e.substitute(new) if isinstance(e, Affine) else substitute(e, new) for e in s.target.subscripts)
    target = replace(s.target, subscripts=tuple(places))
    return replace(s, indices=indices, domain=domain, target=target, value=substitute(s.value, new), loop_depth=1)
