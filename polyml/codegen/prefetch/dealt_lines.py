"""Lines that are asked for from inside sums, dealt out to the iterations of one of their loops, so that requests come at an even rate and every line has one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd

from polyml.codegen.loops import For
from polyml.codegen.prefetch.tile_sums import most_of
from polyml.codegen.ranges import Ranges
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Level", "dealt_out", "levels_of"]

BEYOND = 1.5
"""Iterations for each line at most, that may ask for one: what lies behind is next."""

MOST_LINES = 4
"""Lines that one iteration asks for, at most."""


def dealt_out(levels: Sequence[Level], lines: int) -> tuple[For, list[Affine]] | None:
    """The loop in which lines are asked for, and their numbers in terms of its iteration; what is left over comes when it is read."""
    # The innermost loop in which there is a line for each iteration,
    fitting = [level for level in levels if level.steps <= BEYOND * lines]
    if not fitting:
        return None
    outer = fitting[-1]
    count = ceil(lines / outer.steps)
    if count <= MOST_LINES:
        # Nine lines for seven iterations: two each, of which the first is the last one's second in five of them.
        common = gcd(lines, outer.steps)
        first = outer.done if count == 1 else outer.done * (lines // common) // (outer.steps // common)
        return outer.loop, [first + k for k in range(count)]
    if len(fitting) == len(levels):
        return None
    # or the next one, where several iterations ask for the same: but for the first, such a request finds the line in L2 or on its way.
    inner = levels[len(fitting)]
    trips = inner.steps // outer.steps
    same = max(1, round(inner.steps / lines))
    return inner.loop, [outer.done * -(-trips // same) + (inner.done - outer.done * trips) // same]


@dataclass(frozen=True, slots=True)
class Level:
    """done: how many iterations of the loop are over, over all of the loops around it that count. steps: how many there are in all, at most."""

    loop: For
    done: Affine
    steps: int


def levels_of(path: Sequence[For], first: int) -> list[Level]:
    """The loops of the path from the first one on that are not vectors, outermost first; none where one has no known number of iterations, or other ones than in order."""
    found: list[Level] = []
    for position, loop in enumerate(path):
        if position < first or loop.kind == "vector":
            continue
        lower, around = loop.lower, found
        length = most_of(loop)
        if length is None:
            length = Ranges(tuple(path[:position])).highest(loop.upper - loop.lower)
        if found and lower == affine(found[-1].loop.variable) and length == found[-1].loop.step:
            # Strips of a loop (sums in parts): both together count as the loop that they were.
            lower, length, around = found[-1].loop.lower, most_of(found[-1].loop), found[:-1]
        if length is None or length < 1 or loop.kind not in ("sequential", "parallel"):
            return []
        trips = -(-length // loop.step)
        done, steps = (around[-1].done, around[-1].steps) if around else (affine(0), 1)
        found.append(Level(loop, done * trips + (affine(loop.variable) - lower) // loop.step, steps * trips))
    return found
