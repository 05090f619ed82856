"""Columns of a contraction that are left beside whole vectors: sums of their own, with lanes along the sum (one to four columns), or across the rows (half a vector at most) where the other operand is contiguous along these.

33 columns are two vectors of 16 and one column, which would take a vector of its own (or half of one) in every row and at every step. With lanes along the sum it takes a sixteenth of that, and at its end the lanes of a few
registers are combined. The operand's columns are copied ahead, so that each is contiguous; the other operand is so already. For that the statements of the nest are cut in two: those of the whole vectors, and those of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, map_reads, reads_of
from polyml.new_names import derived
from polyml.schedule.blocking.blocks import Blocking
from polyml.schedule.copies import read_along
from polyml.schedule.pack import Packed
from polyml.schedule.schedule import Storage
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import affine

__all__ = ["cut_rest", "rest_copy", "rest_name", "rest_storage"]


def rest_name(name: str) -> str:
    """The statement that does for the rest of the columns what `name` does for the others."""
    return derived(name, "rest")


def cut_rest(packed: Packed, plan: Blocking, lanes: Mapping[str, str]) -> Packed:
    """The scop with each of these statements cut in two. lanes: the index of each that is the plan's."""
    scop, known = packed.scop, packed.dependences
    first = plan.extents[plan.lanes]
    statements: dict[str, Statement] = {}
    pieces: list[str] = []
    for name, statement in scop.statements.items():
        own = ", ".join(statement.indices)
        if name not in lanes:
            statements[name] = statement
            pieces.append(f"{name}[{own}] -> {name}[{own}]")
            continue
        index, new = lanes[name], rest_name(name)
        inside = isl.Set(f"{{ {name}[{own}] : {index} < {first} }}")
        statements[name] = replace(statement, domain=statement.domain.intersect(inside))
        beyond = statement.domain.subtract(inside).set_tuple_name(new)
        statements[new] = replace(statement, name=new, domain=beyond)
        pieces.append(f"{name}[{own}] -> {name}[{own}] : {index} < {first}")
        pieces.append(f"{name}[{own}] -> {new}[{own}] : {index} >= {first}")
    to_parts = isl.UnionMap(f"{{ {'; '.join(pieces)} }}")
    made = replace(
        scop,
        statements=statements,
        initial=scop.initial.apply_domain(to_parts),
        reads=scop.reads.apply_domain(to_parts),
        may_writes=scop.may_writes.apply_domain(to_parts),
        must_writes=scop.must_writes.apply_domain(to_parts),
        reductions=scop.reductions.apply_domain(to_parts),
    )
    dependences = replace(
        known,
        flow=known.flow.apply_domain(to_parts).apply_range(to_parts),
        anti=known.anti.apply_domain(to_parts).apply_range(to_parts),
        output=known.output.apply_domain(to_parts).apply_range(to_parts),
        reduction=known.reduction.apply_domain(to_parts).apply_range(to_parts),
        live_in=known.live_in.apply_domain(to_parts),
        live_out=known.live_out.apply_domain(to_parts),
    )
    return replace(packed, scop=made, dependences=dependences)


def rest_copy(scop: Scop, plan: Blocking, array: str) -> tuple[Array, Statement, Statement]:
    """The array of the columns that are left, each contiguous, the statement that fills it, and the sums that read it."""
    sums = scop.statements[rest_name(plan.statement)]
    read = next(r for r in reads_of(sums.value) if r.tensor == plan.vector_operand)
    indices = (*plan.batch, plan.lanes, *plan.reduced)
    first = plan.extents[plan.lanes]
    limits = [f"0 <= {i} < {plan.extents[i]}" for i in (*plan.batch, *plan.reduced)]
    limits.append(f"{first} <= {plan.lanes} < {first + plan.rest}")
    subscripts = tuple(affine(i) - first if i == plan.lanes else affine(i) for i in indices)
    name = f"S_{array}"
    copy = Statement(
        name=name,
        indices=indices,
        domain=isl.Set(f"{{ {name}[{', '.join(indices)}] : {' and '.join(limits)} }}"),
        kind="copy",
        target=Access(array, subscripts),
        value=read_along(read, indices, sums.indices),
    )
    shape = tuple(affine(plan.rest if i == plan.lanes else plan.extents[i]) for i in indices)

    def change(old: Read) -> Read:
        return Read(array, subscripts, old.dtype) if old.tensor == plan.vector_operand else old

    changed = replace(sums, value=map_reads(sums.value, change))
    return Array(name=array, dtype=read.dtype, shape=shape, kind="local"), copy, changed


def rest_storage(plan: Blocking, array: str, statements: Sequence[Statement]) -> Storage:
    """One value of the batch, a block of the sum."""
    indices = (*plan.batch, plan.lanes, *plan.reduced)
    sizes = [
        plan.rest if i == plan.lanes else 1 if i in plan.batch else plan.sizes.get(i, plan.extents[i]) for i in indices
    ]
    offset = [
        f"{size}*floor({i}/{size})" if i != plan.lanes and size < plan.extents[i] else "0"
        for i, size in zip(indices, sizes, strict=True)
    ]
    offsets = {
        s.name: isl.MultiAff(f"{{ {s.name}[{', '.join(s.indices)}] -> [{', '.join(f'({o})' for o in offset)}] }}")
        for s in statements
    }
    return Storage(array=array, place=f"allocate:{array}", shape=tuple(sizes), offsets=offsets)
