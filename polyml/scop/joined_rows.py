"""Short rows of a product that nothing but a copy reads become long ones: indices that lie side by side in an operand and in the product's own array are one there, and the copy takes that apart.

    z_laid[b, c, a] = sum[g](x[b, g] * y[g, c, a]); z[c, b, a] = z_laid[b, c, a]   becomes   z_laid[b, e] = sum[g](x[b, g] * y[g, e]); z[c, b, a] = z_laid[b, 9*c + a]

With nine values of a, lanes along a are nine of sixteen; along c and a together whole vectors. Where the copy has both side by side, too, all three become one index (joined_indices.py).
An exact change of names: the copy reads the elements that it read before.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.expressions import Read, plain_indices, reads_of
from polyml.scop.joining import Joining, box_extents, joined
from polyml.scop.relations import in_order, rebuilt
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["with_joined_rows"]

IDLE = 16
"""Lanes in use for each one that is not, from which on nothing is gained by longer rows."""


def with_joined_rows(scop: Scop, name: str, lanes: int) -> Scop:
    """The scop with the last indices of an update's result joined, as long as an operand has them side by side; the same object where its rows are whole vectors, or something else than one copy that keeps the last index reads them.

    Args:
        lanes: elements of a vector.
    """
    copy = _only_copy(scop, name)
    if copy is None or scop.sizes:
        return scop
    alone = {other.name: other for other in scop.statements.values() if other is not copy}
    made = rebuilt(replace(scop, initial=in_order(alone, scop.sizes)), alone, scop.arrays)
    assert isinstance(copy.value, Read), "internal: a copy that computes"
    read, result = copy.value, scop.statements[name].target.array
    while True:
        pair = plain_indices(made.statements[name].target.subscripts)[-2:]
        extents = box_extents(made, made.statements[name])
        outer, inner = pair if len(pair) == 2 else (None, None)
        if extents is None or outer is None or inner is None or _is_full(extents[inner].constant, lanes):
            break
        found = Joining(made).all(name, (outer, inner))
        if found is None or found[1].keys() & {copy.target.array}:
            break
        made = joined(made, *found)
        one, last = read.subscripts[-2:]
        assert isinstance(one, Affine), "internal: a computed subscript of a copy"
        assert isinstance(last, Affine), "internal: a computed subscript of a copy"
        read = replace(read, subscripts=(*read.subscripts[:-2], one * extents[inner].constant + last))
    if len(made.arrays[result].shape) == len(scop.arrays[result].shape):
        return scop
    statements = {**made.statements, copy.name: replace(copy, value=read)}
    return rebuilt(replace(made, initial=in_order(statements, scop.sizes)), statements, {**scop.arrays, **made.arrays})


def _is_full(row: int, lanes: int) -> bool:
    """Whether a row leaves few lanes of its last vector idle. What is left apart may be blocks."""
    return IDLE * (-row % lanes) <= row


def _only_copy(scop: Scop, name: str) -> Statement | None:
    """The last statement, where it is a copy of the update's result, which is local, and the only one that reads it; both end in the same index."""
    update, (*_, last) = scop.statements[name], scop.statements.values()
    array = update.target.array
    readers = [s for s in scop.statements.values() if any(read.tensor == array for read in reads_of(s.value))]
    if update.kind != "update" or readers != [last] or last.kind != "assign" or not isinstance(last.value, Read):
        return None
    source, target = plain_indices(last.value.subscripts), plain_indices(last.target.subscripts)
    if scop.arrays[array].kind != "local" or None in source or sorted(map(str, source)) != sorted(map(str, target)):
        return None
    plain = len(set(source)) == len(source) > 1 and set(source) == set(last.indices)
    return last if plain and source[-1] == target[-1] and source != target else None
