"""Copies between arrays whose contiguous directions differ: blocks of them are transposed in registers.

A vector loop writes its lanes side by side and reads rows that lie apart, or the other way round; the loop inside walks along the rows. That loop becomes blocks
of kind "transpose", as many columns at a time as there are lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import variables_by_name
from polyml.expressions import Read, Subscript
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, maximum, minimum

__all__ = ["transpose_copies"]

LEAST = 4
"""Columns below which a block is not worth its shuffles."""


def transpose_copies(function: Function) -> Function:
    """The function with copy loops inside vector loops in transposed blocks.

    Rewrite:
        vector(16) for (j ..) for (k = 0; k < 40; k++) p[k, j] = y[j, k];
        -> vector(16) for (j ..) {
             for (b = 0; b < 32; b += 16) transpose for (k = b; k < b + 16; k++) p[k, j] = y[j, k];
             transpose for (k = 32; k < 40; k++) p[k, j] = y[j, k];
           }
    """
    return map_loops(function, _Copies(variables_by_name(function), names_in(function)).transposed)


@dataclass(frozen=True, slots=True)
class _Copies:
    variables: Mapping[str, Variable]
    taken: set[str]

    def transposed(self, loop: For, ranges: Ranges, lanes: For | None) -> tuple[Node, ...] | None:
        copies = lanes is not None and self.is_transposed(loop, lanes)
        return self.blocks(loop, ranges, lanes.width) if lanes is not None and copies else None

    def is_transposed(self, loop: For, lanes: For) -> bool:
        """Whether the loop copies between lanes side by side and rows that it walks along."""
        ragged = lanes.variable in loop.lower.variables() | loop.upper.variables()
        if loop.kind != "sequential" or loop.step != 1 or len(loop.body) != 1 or ragged:
            return False
        (move,) = loop.body
        if not isinstance(move, Assign) or not isinstance(move.value, Read) or move.reduction is not None:
            return False
        sides = [
            self.strides(move.target.variable, move.target.subscripts, loop, lanes),
            self.strides(move.value.tensor, move.value.subscripts, loop, lanes),
        ]
        if move.target.variable == move.value.tensor or None in sides:
            return False
        known = [side for side in sides if side is not None]
        near = [side for side in known if side[0] == 1 and side[1] not in (0, 1, -1)]
        far = [side for side in known if side[0] not in (0, 1, -1) and side[1] in (1, -1)]
        return len(near) == 1 and len(far) == 1

    def strides(
        self, name: str, subscripts: tuple[Subscript, ...], loop: For, lanes: For
    ) -> tuple[int | None, int | None] | None:
        """Elements from lane to lane and from iteration to iteration (None: so many as depends on sizes, or other ones each time); None where nothing is known of the array."""
        variable = self.variables.get(name)
        if variable is None or variable.scope == "register" or variable.lanes != 1 or variable.dtype.kind in "bc":
            return None
        flat = flat_element(variable, subscripts)
        if flat is not None:
            return flat.stride(lanes.variable), flat.stride(loop.variable)
        across: int | None = 0
        along: int | None = 0
        for subscript, step in zip(subscripts, variable.memory_strides, strict=True):
            if not isinstance(subscript, Affine):
                return None
            moved = subscript.stride(lanes.variable), subscript.stride(loop.variable)
            across, along = (_plus(total, m, step) for total, m in zip((across, along), moved, strict=True))
        return across, along

    def blocks(self, loop: For, ranges: Ranges, width: int) -> tuple[Node, ...]:
        span = loop.upper - loop.lower
        trips, least = ranges.constant(span), ranges.lowest(span)
        if trips is None and (least is None or least < 0):
            span = maximum([span, affine(0)])
        if least is not None and least >= width and ranges.multiple(span) % width:
            # The last block overlaps the one before.
            start = fresh(f"{loop.variable}_block", self.taken)
            first = minimum([affine(start), loop.upper - width])
            block = replace(loop, lower=first, upper=first + width, kind="transpose")
            return (For(variable=start, lower=loop.lower, upper=loop.upper, step=width, body=(block,)),)
        whole = affine(trips // width * width) if trips is not None else span // width * width
        made: list[Node] = []
        if whole != affine(0):
            start = fresh(f"{loop.variable}_block", self.taken)
            block = replace(loop, lower=affine(start), upper=affine(start) + width, kind="transpose")
            made.append(For(variable=start, lower=loop.lower, upper=loop.lower + whole, step=width, body=(block,)))
        if trips is not None and trips % width >= LEAST:
            made.append(replace(loop, lower=loop.lower + whole, kind="transpose"))
        elif ranges.multiple(span) % width:
            rest = loop.lower + whole
            # Said once more, that there are few of them: "transpose_rows" leaves such loops alone.
            upper = loop.upper if trips is not None else minimum([loop.upper, rest + (width - 1)])
            made.append(replace(loop, lower=rest, upper=upper))
        return tuple(made)


def _plus(total: int | None, moved: int | None, step: int | None) -> int | None:
    """`total + moved * step`; None where it depends on sizes."""
    if moved == 0:
        return total
    return None if total is None or moved is None or step is None else total + moved * step
