"""Operands whose elements are broadcast from where they lie, a piece of a line in each iteration of a sum: while a tile is summed up, the pieces of the next tile are fetched.

A convolution over 14 x 14 points takes 56 bytes of a channel in each iteration, and the next channel is 784 bytes away. The hardware's prefetchers do not go down such columns page by page, and what they fetch ends with the tile;
so the first sweep over all points waits for the last cache or memory in each iteration. What the next tile reads lies beside, so one line in each iteration is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

from polyml.codegen.loops import Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.inner_loops import inner_loops, put_first
from polyml.codegen.ranges import Ranges
from polyml.expressions import Read, reads_of
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import is_known

__all__ = ["prefetch_points"]

NEAR = 2
"""Lines from which on the iterations of a sum are so far apart that each has to ask for lines of its own."""

MOST_LINES = 5
"""Lines that one iteration asks for, at most: two vectors with stride 2 are as many."""

SHORT = 8
"""Tiles of a row, below which the first of the next one, which the last would have to ask for, is much of it."""

LEAST_SHARE = 8
"""An operand of less than this part of L2 is there already."""

LEAST_SUM = 256
"""Multiply-adds of a tile, all iterations together, at least: the processor looks through shorter sums by itself."""


def prefetch_points(function: Function, caches: Caches) -> Function:
    """The function with a prefetch per operand of this kind in its sums.

    Rewrite:
        for (p = 0; p < 14; p++) for (c = 0; c < 512; c++) { t += x[c, p, 0] * w[c]; u += x[c, p, 1] * w[c]; .. v += x[c, p, 13] * w[c]; }
        -> for (p ..) for (c ..) { prefetch x[c, p + 1, 13]; t += ..; .. }

    Of windows it is one for each of their rows: for (c ..) for (r ..) { prefetch x[c, p + 1 + r, ..]; for (s ..) { t += x[c, p + r, q + s] * w[c, r, s]; .. } }
    That holds for lanes along the points, too.
    """
    arrays = {v.name: v for v in function.arguments if (v.bytes or 0) * LEAST_SHARE > caches.l2} if caches.l2 else {}
    wanted: dict[int, tuple[Node, ...]] = {}
    known = Ranges()
    for path in inner_loops(function.body) if arrays else ():
        for reads in _elements(path, arrays):
            found = _next(path, reads, arrays, caches.line, known)
            if found is not None:
                loop, places = found
                wanted[id(loop)] = tuple(Prefetch(place, 2) for place in places)
    return replace(function, body=put_first(function.body, wanted)) if wanted else function


def _elements(path: Sequence[For], arrays: Mapping[str, Variable]) -> list[list[Read]]:
    """What an iteration reads of each array that nobody asks for yet."""
    asked = {node.place.variable for loop in path for node in loop.body if isinstance(node, Prefetch)}
    found: dict[str, dict[Read, None]] = {}
    for node in path[-1].body:
        for read in reads_of(node.value) if isinstance(node, Assign) else ():
            if read.tensor in arrays and read.tensor not in asked:
                found.setdefault(read.tensor, {})[read] = None
    return [list(reads) for reads in found.values()]


def _next(
    path: Sequence[For], reads: Sequence[Read], arrays: Mapping[str, Variable], line: int, outside: Ranges
) -> tuple[For, list[Place]] | None:
    """The loop of the sums whose iterations are lines apart, and the last elements that the next tile reads in the same one; None where they are not of this kind."""
    array = arrays[reads[0].tensor]
    line //= array.dtype.itemsize
    flats = [flat_element(array, read.subscripts) for read in reads]
    known = [flat for flat in flats if flat is not None]
    offsets = [flat - known[0] for flat in known]
    if len(known) < len(reads) or not is_known(offsets):
        return None
    away = [offset.constant for offset in offsets]
    steps = [(known[0].stride(loop.variable) or 0) * loop.step for loop in path]
    lanes = max((k for k, loop in enumerate(path) if loop.kind == "vector"), default=-1)
    at = next((k for k in range(len(path) - 1, lanes, -1) if steps[k] >= NEAR * line), None)
    if at is None or any(loop.kind != "sequential" for loop in path[lanes + 1 :]):
        return None
    trips = _trips(path, outside)
    if not all(trips[lanes + 1 :]):
        return None
    across = 0 if lanes < 0 else (known[0].stride(path[lanes].variable) or 0) * (path[lanes].width - 1)
    if across and (across < 0 or path[lanes].masked or at == len(path) - 1):
        return None
    inside = across + sum(step * (n - 1) for step, n in zip(steps[at + 1 :], trips[at + 1 :], strict=True))
    pieces = _pieces(sorted(set(away)), inside, line)
    adds = prod(trips[lanes + 1 :]) * len(path[-1].body)
    if adds < LEAST_SUM or any(last - first >= MOST_LINES * line for first, last in pieces):
        return None
    around = [k for k in range(lanes, -1, -1) if steps[k]]
    if not around or any(steps[k] < 0 for k in around[:2]):
        return None
    # A row of few tiles is asked for as a whole, by the row before, and so is one that is a tile itself.
    tiled = steps[around[0]] <= MOST_LINES * line
    short = tiled and len(around) > 1 and 0 < trips[around[0]] < SHORT
    outer = path[around[1] if short else around[0]]
    moved = {outer.variable: affine(outer.variable) + outer.step}
    if across:
        last_lane = affine(path[lanes].width - 1)
        moved[path[lanes].variable] = moved.get(path[lanes].variable, affine(path[lanes].variable)) + last_lane
    places: list[Place] = []
    for first, last in pieces:
        end = [s for s in reads[away.index(last - inside)].subscripts if isinstance(s, Affine)]
        # Innermost first: where a loop ends may depend on one around it.
        for loop in reversed(path[at + 1 :]):
            end = [s.substitute({loop.variable: loop.upper - loop.step}) for s in end]
        end = [s.substitute(moved) for s in end]
        count = ceil((steps[around[0]] if tiled else last - first + 1) / line)
        places += (Place(array.name, (*end[:-1], end[-1] - k * line)) for k in range(count))
    return path[at], places


def _pieces(away: Sequence[int], inside: int, line: int) -> list[tuple[int, int]]:
    """First and last element of what an iteration reads, for each of its steps where several are one iteration. inside: elements from the first of these reads to the last one of the loops inside."""
    found: list[tuple[int, int]] = []
    for element in away:
        if found and element - found[-1][1] < NEAR * line:
            found[-1] = found[-1][0], element + inside
        else:
            found.append((element, element + inside))
    return found


def _trips(path: Sequence[For], outside: Ranges) -> list[int]:
    """How often each of these loops runs at most, within those before it; 0 where that is no number."""
    found: list[int] = []
    ranges = outside
    for loop in path:
        span = ranges.highest(loop.upper - loop.lower)
        found.append(0 if span is None else ceil(span / loop.step))
        ranges = ranges.enter(loop)
    return found
