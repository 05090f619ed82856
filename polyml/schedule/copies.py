"""Copies of arrays as statements of a scop that run ahead of all others, and the reads that go to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read
from polyml.scop.accesses import access_map, guarded_reads
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["read_along", "universe", "with_copies"]


def with_copies(scop: Scop, made: Mapping[str, tuple[Array, Statement]], changed: Mapping[str, Statement]) -> Scop:
    """The scop with these arrays and the copy statements that fill them ahead, and with the changed statements."""
    arrays = {**scop.arrays, **{name: array for name, (array, _) in made.items()}}
    statements = {**{s.name: s for _, s in made.values()}, **scop.statements, **changed}
    reads, writes, must = scop.reads, scop.may_writes, scop.must_writes
    for name, statement in changed.items():
        if statement is not scop.statements[name]:
            own = statement.domain.to_union_set()
            reads = reads.subtract_domain(own).union(scop.reductions.intersect_domain(own))
            reads = reads.union(_reads(statement, arrays, scop.sizes))
    for _, copy in made.values():
        reads = reads.union(_reads(copy, arrays, scop.sizes))
        relation = access_map(
            copy.name, copy.indices, copy.target.array, copy.target.subscripts, (), sizes=scop.sizes
        ).intersect_domain(copy.domain)
        writes, must = writes.union(relation.to_union_map()), must.union(relation.to_union_map())
    return replace(
        scop,
        arrays=arrays,
        statements=statements,
        initial=_initial(scop, [copy for _, copy in made.values()]),
        reads=reads,
        may_writes=writes,
        must_writes=must,
    )


def _reads(statement: Statement, arrays: Mapping[str, Array], sizes: tuple[str, ...]) -> isl.UnionMap:
    total = isl.UnionMap.empty(statement.domain.get_space().params())
    for read, guard in guarded_reads(statement.value):
        shape = arrays[read.tensor].shape
        relation = access_map(
            statement.name, statement.indices, read.tensor, read.subscripts, shape, sizes=sizes, guard=guard
        )
        total = total.union(relation.intersect_domain(statement.domain).to_union_map())
    return total


def _initial(scop: Scop, copies: list[Statement]) -> isl.UnionMap:
    """The written order with the copies ahead: times of the scop's own statements begin at 0."""
    maps = scop.initial.get_map_list()
    depth = maps.get_at(0).dim(isl.dim_type.out) if maps.n_map() else 1
    total = scop.initial
    widest = max((depth, *(1 + len(copy.indices) for copy in copies)))
    if widest > depth:
        zeros = ", ".join("0" for _ in range(widest - depth))
        times = ", ".join(f"t{d}" for d in range(depth))
        total = total.apply_range(isl.UnionMap(f"{{ [{times}] -> [{times}, {zeros}] }}"))
    for position, copy in enumerate(copies):
        time = [str(position - len(copies)), *copy.indices]
        time += ["0"] * (widest - len(time))
        text = f"{parameters_text(scop.sizes)}{{ {copy.name}[{', '.join(copy.indices)}] -> [{', '.join(time)}] }}"
        total = total.union(isl.Map(text).intersect_domain(copy.domain).to_union_map())
    return total


def universe(scop: Scop, array: str) -> isl.UnionSet:
    """All elements that an array of that rank may have."""
    names = ", ".join(f"a{d}" for d in range(len(scop.arrays[array].shape)))
    return isl.UnionSet(f"{parameters_text(scop.sizes)}{{ {array}[{names}] }}")


def read_along(read: Read, indices: Collection[str], own: Collection[str]) -> Read:
    """The read at place 0 of those of the reading statement's `own` indices that are not among these: the array's memory does not move along them, it is broadcast, or has one element there. Any other name is a size: a loop around the statement, whose
    value says where to read."""
    left = set(own).difference(indices)
    places = tuple(affine(0) if isinstance(s, Affine) and s.name in left else s for s in read.subscripts)
    return Read(read.tensor, places, read.dtype)
