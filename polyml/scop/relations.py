"""The access relations of a scop's statements: what they read, may write, must write, and combine into; and scops with other statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyml.expressions import Subscript
from polyml.scop.accesses import access_map, guarded_reads
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.linear_maps import map_to

__all__ = ["Relations", "in_order", "rebuilt"]


class Relations:
    """Collects the access relations of all statements."""

    def __init__(self, sizes: tuple[str, ...], arrays: Mapping[str, Array]) -> None:
        self.sizes, self.arrays = sizes, arrays
        empty = isl.UnionMap("{ }")
        self.reads = self.may_writes = self.must_writes = self.reductions = empty

    def add(self, statement: Statement) -> None:
        reads = guarded_reads(statement.value)
        for access in statement.written:
            reads += [r for s in access.subscripts if not isinstance(s, Affine) for r in guarded_reads(s)]
            relation = self.relation(statement, access.array, access.subscripts, ())
            self.may_writes = self.may_writes.union(relation)
            if all(isinstance(s, Affine) for s in access.subscripts):
                self.must_writes = self.must_writes.union(relation)
            if statement.kind == "update":
                self.reads = self.reads.union(relation)
                self.reductions = self.reductions.union(relation)
        for read, guard in dict.fromkeys(reads):
            self.reads = self.reads.union(self.relation(statement, read.tensor, read.subscripts, guard))

    def relation(
        self, statement: Statement, array: str, subscripts: tuple[Subscript, ...], guard: tuple[str, ...]
    ) -> isl.UnionMap:
        shape = self.arrays[array].shape
        relation = access_map(
            statement.name, statement.indices, array, subscripts, shape, sizes=self.sizes, guard=guard
        )
        return relation.intersect_domain(statement.domain).to_union_map()


def rebuilt(scop: Scop, statements: Mapping[str, Statement], arrays: Mapping[str, Array]) -> Scop:
    """The scop with other statements, of the same names or fewer, and the arrays that they or callers need."""
    used = {name for statement in statements.values() for name in statement.touched}
    kept = {name: array for name, array in arrays.items() if name in used or array.kind != "local"}
    relations = Relations(scop.sizes, kept)
    domain = isl.UnionSet.empty(scop.context.get_space())
    for statement in statements.values():
        relations.add(statement)
        domain = domain.union(statement.domain.to_union_set())
    return replace(
        scop,
        arrays=kept,
        statements=dict(statements),
        initial=scop.initial.intersect_domain(domain),
        reads=relations.reads,
        may_writes=relations.may_writes,
        must_writes=relations.must_writes,
        reductions=relations.reductions,
    )


def in_order(statements: Mapping[str, Statement], sizes: tuple[str, ...]) -> isl.UnionMap:
    """One statement after the other, each in the order of its indices: as written (`Scop.initial`), where there are no sequential loops."""
    depth = max(len(s.indices) for s in statements.values())
    order = isl.UnionMap("{ }")
    for number, s in enumerate(statements.values()):
        times = (affine(number), *map(affine, s.indices), *[affine(0)] * (depth - len(s.indices)))
        link = map_to(s.name, s.indices, "", times, sizes)
        order = order.union(link.intersect_domain(s.domain).to_union_map())
    return order
