"""A column that each step of a sequential loop makes, and that others walk down again and again, is written a second time as a row.

Orthogonalization by columns reads Q[i, k] at step k for every column j behind: a line, and soon a page, for each element, once for every vector of columns. A copy
`Q_columns[k, i] = Q[i, k]`, made where the element is, has them side by side. It is a transformation of the Scop, before scheduling: the copy follows its writer, and is the only thing
that reads the array down its columns.

Rewrite: Q[i, k] = v; for j: R[k, j] += Q[i, k] * A[i, j]  ->  Q[i, k] = v; Q_columns[k, i] = Q[i, k]; for j: R[k, j] += Q_columns[k, i] * A[i, j]

When: the array does not fit in L2, one statement of the loop writes it, each element once, and what is read is nothing else.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, Subscript, map_reads, plain_indices, reads_of
from polyml.scop.dependences import values_of
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["with_columns_aside"]


def with_columns_aside(scop: Scop, target: Target) -> Scop | None:
    """The scop with copies of such columns, whose dependences are to be computed anew; None when there are none."""
    made = scop
    for array in scop.arrays.values():
        readers = [s.name for s in scop.statements.values() if _column_read(s, array) is not None]
        if not readers or array.kind == "local" or (array.bytes or 0) <= target.l2_bytes:
            continue
        writer = _writer(scop, array.name)
        if writer is not None and _comes_from_inside(scop, array.name, readers):
            made = _with_copy(made, array, writer, readers)
    return None if made is scop else made


def _column_read(statement: Statement, array: Array) -> Read | None:
    """What a statement of three indices or more reads of the array: a single column, which a loop around tells, and not along its result's lanes."""
    if len(statement.indices) < 3 or not statement.loop_depth or statement.target.array == array.name:
        return None
    reads = {r for r in reads_of(statement.value) if r.tensor == array.name}
    if len(reads) != 1:
        return None
    (read,) = reads
    names = plain_indices(read.subscripts)
    if len(names) != 2 or array.memory_strides[-1] != 1 or names[0] in statement.indices[: statement.loop_depth]:
        return None
    inside = names[0] in statement.indices and names[1] in statement.indices[: statement.loop_depth]
    last = statement.target.subscripts[-1] if statement.target.subscripts else None
    return read if inside and isinstance(last, Affine) and last.name not in names else None


def _writer(scop: Scop, array: str) -> Statement | None:
    """The one statement that writes the array, one element per instance."""
    found = [s for s in scop.statements.values() if array in (s.target.array, s.argument and s.argument.array)]
    if len(found) != 1 or found[0].kind != "assign" or found[0].argument is not None:
        return None
    names = plain_indices(found[0].target.subscripts)
    return found[0] if sorted(map(str, names)) == sorted(found[0].indices) else None


def _comes_from_inside(scop: Scop, array: str, readers: list[str]) -> bool:
    """Whether all that the readers find in the array is written in the region."""
    _, from_before = values_of(scop, array)
    domain = isl.UnionSet("{ }")
    for name in readers:
        domain = domain.union(scop.statements[name].domain.to_union_set())
    return from_before.intersect_domain(domain).is_empty()


def _with_copy(scop: Scop, array: Array, writer: Statement, readers: list[str]) -> Scop:
    """The scop with the copy behind each instance of its writer."""
    local = Array(
        name=scop.new_array(f"{array.name}_columns"),
        dtype=array.dtype,
        shape=tuple(reversed(array.shape)),
        kind="local",
    )

    def turned(subscripts: tuple[Subscript, ...]) -> tuple[Subscript, ...]:
        return tuple(reversed(subscripts))

    name = f"S_{local.name}"
    copy = replace(
        writer, name=name, domain=writer.domain.set_tuple_name(name), kind="copy",
        target=Access(local.name, turned(writer.target.subscripts)),
        value=Read(array.name, writer.target.subscripts, array.dtype),
    )  # fmt: skip

    def redirected(statement: Statement) -> Statement:
        read = _column_read(statement, array)
        assert read is not None, "internal: a reader that does not read"
        instead = Read(local.name, turned(read.subscripts), read.dtype)
        return replace(statement, value=map_reads(statement.value, lambda r: instead if r == read else r))

    statements = {n: redirected(s) if n in readers else s for n, s in scop.statements.items()}
    times = ", ".join(f"t{d}" for d in range(scop.initial.get_map_list().get_at(0).dim(isl.dim_type.out)))
    at, behind = (isl.UnionMap(f"{{ [{times}] -> [{times}, {last}] }}") for last in (0, 1))
    own = scop.initial.intersect_domain(writer.domain.to_union_set()).get_map_list().get_at(0)
    own = own.set_tuple_name(isl.dim_type.in_, name)
    initial = scop.initial.apply_range(at).union(own.to_union_map().apply_range(behind))
    order: dict[str, Statement] = {}
    for known, statement in statements.items():
        order[known] = statement
        if known == writer.name:
            order[name] = copy
    return rebuilt(replace(scop, initial=initial), order, {**scop.arrays, local.name: local})
