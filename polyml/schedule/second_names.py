"""Arrays that a sum reads in two places get a second name: `x[n, i] * x[n, j]` and `x[i, k] * x[k, j]` are contractions of two operands, which happen to share their memory.

Blocks, panels and rows belong to operands, by name (schedule/blocking). The loops know nothing of this: they have the array under its own name again (codegen/generate.py).
"""

from __future__ import annotations

from dataclasses import replace

from polyml.expressions import Read, map_reads, reads_of
from polyml.new_names import array_name
from polyml.schedule.blocking.sides import is_plain
from polyml.schedule.copies import with_copies
from polyml.scop.scop import Array, Scop, Statement

__all__ = ["with_second_names"]


def with_second_names(scop: Scop) -> Scop:
    """The scop with another array for the second place, and so on, where a sum over a box reads an input in several ones, each by plain indices; the same scop where none does."""
    arrays: dict[str, Array] = {}
    changed: dict[str, Statement] = {}
    for name, statement in scop.statements.items():
        again = _again(scop, statement)
        if again:
            names = dict[Read, Read]()
            for read in again:
                new = array_name(f"{read.tensor}_again", {*scop.arrays, *arrays})
                arrays[new] = replace(scop.arrays[read.tensor], name=new, same_as=read.tensor)
                names[read] = replace(read, tensor=new)
            value = map_reads(statement.value, lambda read, names=names: names.get(read, read))  # type: ignore[misc]
            changed[name] = replace(statement, value=value)
    if not changed:
        return scop
    return with_copies(replace(scop, arrays={**scop.arrays, **arrays}), {}, changed)


def _again(scop: Scop, statement: Statement) -> list[Read]:
    """The reads of arrays that an earlier one reads elsewhere."""
    if statement.kind != "update" or statement.argument is not None or statement.loop_depth:
        return []
    reads = list(dict.fromkeys(reads_of(statement.value)))
    names = [read.tensor for read in reads]
    again = [read for k, read in enumerate(reads) if read.tensor in names[:k]]
    if not again or not all(is_plain(r.subscripts) for r in reads) or not is_plain(statement.target.subscripts):
        return []
    if any(scop.arrays[name].kind != "input" for name in names) or not statement.domain.is_box():
        return []
    return again
