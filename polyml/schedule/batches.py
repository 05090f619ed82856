"""Copies of packed operands, one value of a batch's index at a time: made in the loop of the products that read them, where they stay in L1.

`z[b, i, k] += x[b, i, j] * y[b, k, j]` for many b reads y through a copy with k contiguous. Ahead of everything that copy is as large as y, written and read again from wherever it fits; around one b it is as large as a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyml.expressions import plain_index, plain_indices, reads_of
from polyml.schedule.ilp.driver import Around, Outline
from polyml.scop.scop import Scop, Statement

__all__ = ["copies_in_batches"]


def copies_in_batches(scop: Scop, copies: Sequence[str]) -> Outline | None:
    """Loops over the indices that the copies, the one sum that reads them, and what begins or follows it have in common, with the copies first in the innermost of them; None where there are no such, or other sums. copies: names of
    their statements.

    Rewrite:
        for (e0..) for (e2..) for (e1..) p[e0, e2, e1] = y[e0, e1, e2];  for (b..) for (i..) for (k..) { z[b, i, k] = 0; for (j..) z[b, i, k] += x[b, i, j] * p[b, j, k]; }
        -> for (b..) { for (e2..) for (e1..) p[b, e2, e1] = y[b, e1, e2];  for (i..) for (k..) { z[b, i, k] = 0; .. } }
    """
    if not copies or any(statement.domain.is_empty() for statement in scop.statements.values()):
        return None
    others = [statement for name, statement in scop.statements.items() if name not in copies]
    if sum(s.kind == "update" for s in others) != 1 or any(s.argument or s.loop_depth for s in others):
        return None
    found = list(_batches([scop.statements[name] for name in copies], others))
    inside: Outline = (*((name,) for name in copies), tuple(s.name for s in others))
    for indices in reversed(found):
        inside = (Around(indices, parallel=True, inside=inside),)
    return inside if found else None


def _batches(copies: list[Statement], others: list[Statement]) -> Iterator[dict[str, str]]:
    """By statement the index of each dimension of the results that the copies have too, and each of their reads by itself, outermost first."""
    places = {s.name: plain_indices(s.target.subscripts) for s in others}
    written = {s.target.array for s in others}
    for dimension in range(min(map(len, places.values()))):
        indices = {name: own[dimension] for name, own in places.items() if own.count(own[dimension]) == 1}
        inside = [(s, r) for s in others for r in reads_of(s.value) if r.tensor in written]
        apart = len(indices) < len(others) or None in indices.values()
        if apart or any(plain_indices(r.subscripts)[dimension : dimension + 1] != [indices[s.name]] for s, r in inside):
            continue
        along = {copy.name: _dimension(copy, others, indices) for copy in copies}
        if all(along.values()):
            yield {name: index for name, index in {**indices, **along}.items() if index is not None}


def _dimension(copy: Statement, others: list[Statement], indices: dict[str, str | None]) -> str | None:
    """The copy's own index where all reads of what it makes have these indices; not the one that lanes run along, its last."""
    reads = [(s.name, r) for s in others for r in reads_of(s.value) if r.tensor == copy.target.array]
    for place, own in enumerate(plain_indices(copy.target.subscripts[:-1])):
        if own is not None and all(plain_index(r.subscripts[place]) == indices[name] for name, r in reads):
            return own
    return None
