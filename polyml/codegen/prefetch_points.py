"""Operands whose elements are broadcast from where they lie, a piece of a line in each iteration of a sum: while a tile is summed up, the pieces of the next tile are fetched.

A convolution over 14 x 14 points takes 56 bytes of a channel in each iteration, and the next channel is 784 bytes away. The hardware's prefetchers do not go down such columns page by page, and what they fetch ends with the tile;
so the first sweep over all points waits for the last cache or memory in each iteration. What the next tile reads lies beside, so one line in each iteration is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from polyml.codegen.inner_loops import inner_loops, put_first
from polyml.codegen.loops import Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.prefetch import Caches
from polyml.codegen.streams import flat_element
from polyml.expressions import Read, reads_of
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_points"]

NEAR = 2
"""Lines up to which neighbouring elements, or the step of a loop, are so near that each iteration has to ask for one line only, and beyond which the next iteration's are no neighbours of this one's."""

LEAST_SHARE = 8
"""An operand of less than this part of L2 is there already."""

LEAST_SUM = 64
"""Iterations of a sum, at least: the processor looks through shorter ones by itself."""


def prefetch_points(function: Function, caches: Caches) -> Function:
    """The function with a prefetch per operand of this kind in its sums.

    Rewrite:
        for (p = 0; p < 14; p++) for (c = 0; c < 512; c++) { t += x[c, p, 0] * w[c]; u += x[c, p, 1] * w[c]; .. v += x[c, p, 13] * w[c]; }
        -> for (p ..) for (c ..) { prefetch x[c, p + 1, 13]; t += ..; .. }
    """
    arrays = {v.name: v for v in function.arguments if _bytes(v) * LEAST_SHARE > caches.l2} if caches.l2 else {}
    wanted: dict[int, tuple[Node, ...]] = {}
    for path in inner_loops(function.body) if arrays else ():
        places = [place for reads in _elements(path[-1], arrays) if (place := _next(path, reads, arrays, caches.line))]
        if places:
            wanted[id(path[-1])] = tuple(Prefetch(place, 2) for place in places)
    return replace(function, body=put_first(function.body, wanted)) if wanted else function


def _bytes(variable: Variable) -> int:
    """0 where that is not known."""
    extents = [extent.constant if extent.is_constant else 0 for extent in variable.shape]
    return variable.dtype.itemsize * prod(extents)


def _elements(loop: For, arrays: Mapping[str, Variable]) -> list[list[Read]]:
    """What an iteration reads of each array that nobody asks for yet."""
    asked = {node.place.variable for node in loop.body if isinstance(node, Prefetch)}
    found: dict[str, dict[Read, None]] = {}
    for node in loop.body:
        for read in reads_of(node.value) if isinstance(node, Assign) else ():
            if read.tensor in arrays and read.tensor not in asked:
                found.setdefault(read.tensor, {})[read] = None
    return [list(reads) for reads in found.values()]


def _next(path: Sequence[For], reads: Sequence[Read], arrays: Mapping[str, Variable], line: int) -> Place | None:
    """The last element that the next tile reads in the same iteration of the sum; None where they are not of this kind."""
    array = arrays[reads[0].tensor]
    near = NEAR * line // array.dtype.itemsize
    flats = [flat_element(array, read.subscripts) for read in reads]
    known = [flat for flat in flats if flat is not None]
    offsets = [flat - known[0] for flat in known]
    if len(known) < len(reads) or not all(offset.is_constant for offset in offsets):
        return None
    away = [offset.constant for offset in offsets]
    inner, steps = path[-1], [(known[0].stride(loop.variable) or 0) * loop.step for loop in path]
    trips = inner.upper - inner.lower
    if steps[-1] < near or max(away) - min(away) >= near or not trips.is_constant:
        return None
    if trips.constant < LEAST_SUM * inner.step or inner.kind != "sequential":
        return None
    outer = next((loop for loop, step in zip(reversed(path[:-1]), reversed(steps[:-1]), strict=True) if step), None)
    if outer is None or outer.kind == "vector" or not 0 < steps[path.index(outer)] < near:
        return None
    last = reads[away.index(max(away))]
    after: dict[str, Affine | int] = {outer.variable: affine(outer.variable) + outer.step}
    return Place(array.name, tuple(s.substitute(after) for s in last.subscripts if isinstance(s, Affine)))
