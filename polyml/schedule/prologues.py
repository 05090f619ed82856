"""Operands that are made element by element, applied while they are packed: the array that would hold them is never written.

`z[k, j] = data[k, j] - mean[j]` ahead of `C[i, j] += z[k, i] * z[k, j]` whose operands are copied into panels: the copies read data and mean themselves, and z is gone. What it costs is the arithmetic,
once per copy instead of once; what it saves are a pass that writes the array and passes that read it, all through memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Read, plain_indices, reads_of, substitute
from polyml.graph.prologues import is_prologue
from polyml.schedule.pack import Packed
from polyml.schedule.pivots.parts import PivotParts
from polyml.scop.dependences import Dependences
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["applied_in_copies", "applied_in_copy", "maker_of"]


def maker_of(scop: Scop, array: str) -> Statement | None:
    """The one statement that makes a local array, element by element and by little arithmetic; None when there is no such."""
    writers = [s for s in scop.statements.values() if s.target.array == array]
    if len(writers) != 1 or scop.arrays[array].kind != "local" or writers[0].kind != "assign" or writers[0].loop_depth:
        return None
    (maker,) = writers
    names = plain_indices(maker.target.subscripts)
    plain = maker.argument is None and len(set(names)) == len(names) and set(names) == set(maker.indices)
    return maker if plain and is_prologue(maker.value) else None


def applied_in_copies(parts: PivotParts) -> PivotParts:
    """The parts with copies that compute what they copied, and without the statements that made it for them alone."""
    scop, copies = parts.scop, {name for names in parts.copies.values() for name in names}
    changed, dependences = dict(scop.statements), parts.dependences
    for array in list(scop.arrays):
        maker = maker_of(scop, array)
        readers = [s for s in changed.values() if any(read.tensor == array for read in reads_of(s.value))]
        if maker is None or not readers or not all(_copies(s, copies) for s in readers):
            continue
        for reader in readers:
            changed[reader.name] = _computing(reader, maker)
        del changed[maker.name]
        dependences = _in_place_of(maker, readers, dependences)
    if dependences is parts.dependences:
        return parts
    return replace(parts, scop=rebuilt(scop, changed, scop.arrays), dependences=dependences)


def _in_place_of(maker: Statement, copies: Sequence[Statement], found: Dependences) -> Dependences:
    """The dependences where copies of what the maker has made read what it reads: after who makes that, and before who overwrites it."""
    own = maker.domain.to_union_set()
    there = isl.UnionSet.empty(own.get_space())
    for copy in copies:
        there = there.union(copy.domain.to_union_set())
    readers = found.flow.intersect_domain(own).intersect_range(there)

    def rest(relation: isl.UnionMap) -> isl.UnionMap:
        return relation.subtract_domain(own).subtract_range(own)

    return replace(
        found,
        flow=rest(found.flow).union(found.flow.intersect_range(own).apply_range(readers)),
        anti=rest(found.anti).union(found.anti.intersect_domain(own).apply_domain(readers)),
        output=rest(found.output),
        reduction=rest(found.reduction),
        live_in=found.live_in.subtract_domain(own).union(found.live_in.intersect_domain(own).apply_domain(readers)),
        live_out=found.live_out.subtract_domain(own),
    )


def applied_in_copy(packed: Packed, copy: str, maker: str) -> Packed:
    """The scop with the copy of an operand, which runs once for each element, computing what the maker has made for it alone."""
    scop, dependences = packed.scop, packed.dependences
    made = _computing(scop.statements[copy], scop.statements[maker])
    gone, own = scop.statements[maker].domain.to_union_set(), made.domain.to_union_set()
    statements = {name: made if name == copy else s for name, s in scop.statements.items() if name != maker}
    array = scop.statements[maker].target.array
    readers = [s.name for s in statements.values() if any(read.tensor == array for read in reads_of(s.value))]
    assert not readers, f"internal: {array} is gone, which {', '.join(readers)} read"
    new = rebuilt(scop, statements, scop.arrays)

    def rest(relation: isl.UnionMap) -> isl.UnionMap:
        return relation.subtract_domain(gone).subtract_range(gone)

    before = new.reads.intersect_domain(own)
    kept = replace(
        dependences,
        flow=rest(dependences.flow), anti=rest(dependences.anti), output=rest(dependences.output),
        reduction=rest(dependences.reduction), live_in=rest(dependences.live_in).union(before), live_out=rest(dependences.live_out),
    )  # fmt: skip
    return replace(packed, scop=new, dependences=kept)


def _copies(statement: Statement, copies: Collection[str]) -> bool:
    direct = isinstance(statement.value, Read) and all(isinstance(s, Affine) for s in statement.value.subscripts)
    return statement.name in copies and direct


def _computing(copy: Statement, maker: Statement) -> Statement:
    assert isinstance(copy.value, Read), "internal: a copy of more than one element"
    values: Mapping[str, Affine] = {
        place.name: subscript
        for place, subscript in zip(maker.target.subscripts, copy.value.subscripts, strict=True)
        if isinstance(place, Affine) and place.name is not None and isinstance(subscript, Affine)
    }
    return replace(copy, kind="assign", value=substitute(maker.value, values))
