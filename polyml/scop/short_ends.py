"""A copy whose source, or target, ends in a short index that the other side has elsewhere goes along one index.

`y[d, c, a] = x[a, c, d]` with two d is `y[e mod 2, e // 2, a] = x[a, e]`, rows of which go to different places. What has them side by side is read, or written, in blocks of whole vectors, which are transposed in registers.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.expressions import Read, variables_in
from polyml.new_names import underscored
from polyml.scop.joining import SHORT, Joining, as_one_dimension, box_extents
from polyml.scop.relations import in_order, rebuilt
from polyml.scop.scop import Access, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box

__all__ = ["with_short_ends"]

LEAST_COPIED = 1 << 12
"""Elements of a copy below which nothing is gained: index arithmetic is all that it computes."""


def with_short_ends(scop: Scop, name: str) -> Scop:
    """A copy with a short last index of one side joined to the one before, where the other side ends in neither and nobody else uses the array."""
    statement = scop.statements[name]
    if scop.sizes or statement.kind != "assign" or not isinstance(statement.value, Read):
        return scop
    extents = box_extents(scop, statement)
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
        fits = array.shape[at] == extents[outer] and Joining(scop).fits(array, at, extents[outer], extents[inner])
        alone = sum(access.array == side.array for s in scop.statements.values() for access in s.accesses) == 1
        plain = all(isinstance(s, Affine) and s.name is not None for s in (*side.subscripts, *other.subscripts))
        plain = plain and not variables_in(side.subscripts[:at]) & {outer, inner}  # nor a diagonal
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
    name = underscored(f"{outer}_{inner}", statement.indices)
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
        domain=box(statement.name, indices, {**extents, name: total}, scop.sizes),
        target=moved(statement.target),
        value=replace(statement.value, tensor=source.array, subscripts=source.subscripts),
    )
    statements = {**scop.statements, statement.name: made}
    array = as_one_dimension(scop.arrays[side.array], len(side.subscripts) - 2, total)
    return rebuilt(
        replace(scop, initial=in_order(statements, scop.sizes)), statements, {**scop.arrays, array.name: array}
    )
