"""Terms of zeros at the ends of a padded row are left out of the sums of the points there.

Where a register tile's points lie along a row of a padded image, its first and its last ones multiply by zeros at some of a window's places: of 3x3 windows over 14 columns a twentieth of all terms, over 7 a tenth. Other points of
the tile have values there, so that the loop over the window's row keeps its range (codegen/passes/sums/skip_zeros.py): at these places the tiles at the row's ends have sums for fewer points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise

from polyml.codegen.loops import Assign, For, Function, If, Node
from polyml.codegen.passes.sums.skip_zeros import Range, Values, ranges_with_values
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, IndexValue
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import affine

__all__ = ["skip_edges"]

MANY_SUMS = 9
"""That leave few registers for anything else."""

MOST_SUMS = 96
"""Of all places of a window's row: what codegen/llvm/few_steps.py writes out."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Which sums have values in an iteration, by their numbers: in most tiles, in the first and in the last one of a row. variable: of the loop over the row's tiles, which goes through these places, where they differ."""

    most: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    variable: str = ""
    places: range = range(0)


def skip_edges(function: Function, values: Values) -> Function:
    """The function with sums of a register tile that leave out what is zero beside a row.

    Rewrite:
        for (s = 0; s < 3; s++) { sum_0 += x[c, p, q + s] * w[c, s]; .. sum_4 += x[c, p, q + 4 + s] * w[c, s]; }    where x[c, p, 0] is zero, for q = 0, 5, ..
        -> if (q < 5) { for (s = 0; s < 1; s++) { sum_1 += ..; .. } } else { for (s = 0; s < 1; s++) { sum_0 += ..; .. } }  for (s = 1; s < 3; s++) { sum_0 += ..; .. }
    """
    if not values:
        return function
    body = tuple(
        _skipped(function.body, values, Ranges(bounds=function.bounds, multiples=function.multiples), frozenset())
    )
    return function if body == function.body else replace(function, body=body)


def _skipped(nodes: tuple[Node, ...], values: Values, ranges: Ranges, lanes: frozenset[str]) -> tuple[Node, ...]:
    """lanes: variables of the vector loops around."""
    made: list[Node] = []
    for node in nodes:
        own, inside = lanes, ranges
        if isinstance(node, For):
            if _is_row(node):
                made += _parts(node, values, ranges, lanes)
                continue
            own, inside = lanes | {node.variable} if node.kind == "vector" else lanes, ranges.enter(node)
        made.append(with_body(node, partial(_skipped, values=values, ranges=inside, lanes=own)))
    return renewed(nodes, made)


def _is_row(loop: For) -> bool:
    """Whether the loop is a few steps of nothing but sums."""
    plain = loop.kind == "sequential" and loop.step == 1 and loop.lower.is_constant and loop.upper.is_constant
    if not plain:
        return False
    trips = loop.upper.constant - loop.lower.constant
    sums = all(isinstance(node, Assign) and node.reduction == "sum" for node in loop.body)
    return sums and 0 < trips * len(loop.body) <= MOST_SUMS


def _parts(loop: For, values: Values, ranges: Ranges, lanes: frozenset[str]) -> Sequence[Node]:
    """The loop in parts, in each of which the same sums have values."""
    terms = [node.value for node in loop.body if isinstance(node, Assign)]
    known = [tuple(ranges_with_values(loop.variable, term, values, lanes)) for term in terms]
    if not any(known):
        return (loop,)
    steps = [_step(value, known, ranges) for value in range(loop.lower.constant, loop.upper.constant)]
    everything = tuple(range(len(terms)))
    if all(step in (None, _Step(everything, everything, everything)) for step in steps):
        return (loop,)
    if _are_one_block(steps, len(terms)):
        steps[1:] = [None] * (len(steps) - 1)
    made: list[Node] = []
    begin = loop.lower.constant
    for step, same in groupby(steps):
        end = begin + len(list(same))
        part = replace(loop, lower=affine(begin), upper=affine(end))
        made += (part,) if step is None else _chosen(part, step)
        begin = end
    return made


def _are_one_block(steps: Sequence[_Step | None], sums: int) -> bool:
    """Whether LLVM would see neighbouring parts of one round each as one block, in which it holds what both load and add up, in more registers than there are."""
    parts = [(step is None or not step.variable) and len(list(same)) == 1 for step, same in groupby(steps)]
    return sums >= MANY_SUMS and any(a and b for a, b in pairwise(parts))


def _step(value: int, known: Sequence[tuple[Range, ...]], ranges: Ranges) -> _Step | None:
    """None: all sums, since it is not known which of them have values in which tiles."""
    # Not negative where there are values.
    ahead = [[affine(value) - first for first, _ in found] + [end - value - 1 for _, end in found] for found in known]
    most = tuple(k for k, found in enumerate(ahead) if not any(ranges.is_positive(-1 * a) for a in found))
    unsure = {k: [a for a in ahead[k] if not ranges.is_positive(a + 1)] for k in most}
    names = {name for found in unsure.values() for a in found for name in a.variables()}
    if not names:
        return _Step(most, most, most)
    loop = next((loop for loop in reversed(ranges.loops) if {loop.variable} == names), None)
    if loop is None or loop.kind == "vector" or not (loop.lower.is_constant and loop.upper.is_constant):
        return None
    places = range(loop.lower.constant, loop.upper.constant, loop.step)

    def at(place: int) -> tuple[int, ...]:
        return tuple(k for k in most if all(a.evaluate({loop.variable: place}) >= 0 for a in unsure[k]))

    # What has values in two tiles has them in those between, too.
    if any(at(place) != most for place in places[1 : -1 : max(1, len(places) - 3)]):
        return None
    return _Step(most, at(places[0]), at(places[-1]), loop.variable, places)


def _chosen(part: For, step: _Step) -> tuple[Node, ...]:
    """The sums that have values in the tile at hand."""

    def sums(kept: tuple[int, ...]) -> tuple[Node, ...]:
        return (replace(part, body=tuple(part.body[k] for k in kept)),) if kept else ()

    made, places = sums(step.most), step.places
    if step.last != step.most and len(places) > 1:
        made = _from_here_on(step.variable, places[-1], sums(step.last), made)
    if step.first != step.most:
        made = _from_here_on(step.variable, places[0] + places.step, made, sums(step.first))
    return made


def _from_here_on(variable: str, place: int, then: tuple[Node, ...], before: tuple[Node, ...]) -> tuple[Node, ...]:
    value, limit = IndexValue(affine(variable), i64), IndexValue(affine(place), i64)
    if not then:
        return (If(condition=Apply("lt", (value, limit), boolean), then=before),)
    return (If(condition=Apply("ge", (value, limit), boolean), then=then, otherwise=before),)
