"""Register tiles of a large result: while one is summed up, the next one's elements are fetched.

A tile's rows lie far apart, a few lines each, which no prefetcher of the hardware follows. Where they are added to, its sums cannot start before they are there. Where they are written once, a plain store brings its line
first, and stores leave in order: those of a tile take longer than there is room for them to wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from math import prod

from polyml.codegen.loops import Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.prefetch import Caches
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import subscript_variables, with_body
from polyml.codegen.streams import flat_element
from polyml.expressions import Read
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_tiles"]

LEAST_TILE = 8
"""Elements (vectors) of a tile below which the processor looks far enough ahead by itself."""

LEAST_SUMS = 16
"""Iterations of the summing loop that a fetch should have time for."""

LEAST_SUMS_STORED = 8
"""The same where the tile is written once: what comes late still comes before the stores."""


def prefetch_tiles(function: Function, caches: Caches) -> Function:
    """The function with a prefetch per line of the next tile ahead of each loop that only sums up a tile in registers.

    Rewrite:
        for (i..; i += 8) { s0 = c[i, j]; s1 = c[i + 1, j]; ..; for (k ..) { s0 += ..; s1 += ..; .. } c[i, j] = s0; .. }
        -> for (i..; i += 8) { s0 = c[i, j]; ..; prefetch c[i + 8, j]; ..; for (k ..) { .. } c[i, j] = s0; .. }
    and for (i..; i += 8) { s0 = 0; ..; for (k ..) { .. } c[i, j] = s0; .. } likewise, into L2.
    """
    if not caches.l2:
        return function
    large = {v.name: v for v in function.arguments if v.name in function.written and _is_large(v, caches)}
    body = _body(function.body, _Tiles(large, caches), outside(function)) if large else function.body
    return function if body is function.body else replace(function, body=body)


class _Tiles:
    def __init__(self, arrays: Mapping[str, Variable], caches: Caches) -> None:
        self.arrays, self.caches = arrays, caches

    def next_tile(self, places: list[Place], ranges: Ranges, level: int) -> Iterator[Node]:
        """The lines of the tile that the innermost loop that moves it goes to next."""
        used = {name for place in places for name in subscript_variables(place.subscripts)}
        moving = next((l for l in reversed(ranges.loops) if l.kind == "sequential" and l.variable in used), None)
        if moving is None:
            return
        ahead = {moving.variable: affine(moving.variable) + moving.step}
        seen: set[tuple[Affine, int]] = set()
        for place in places:
            variable = self.arrays[place.variable]
            flat = flat_element(variable, place.subscripts)
            if flat is None:
                continue
            line = (flat - flat.constant, flat.constant * variable.dtype.itemsize // self.caches.line)
            if line not in seen:
                seen.add(line)
                moved = tuple(s.substitute(ahead) for s in place.subscripts if isinstance(s, Affine))
                yield Prefetch(Place(place.variable, moved), level)

    def stored(self, nodes: tuple[Node, ...]) -> list[Place]:
        """Where the first of the nodes store to, past no cache."""
        stores = takewhile(lambda n: isinstance(n, Assign) and n.target.variable in self.arrays, nodes)
        plain = [n.target for n in stores if isinstance(n, Assign) and not n.streaming and n.reduction is None]
        return [place for place in plain if place.subscripts]


def _body(nodes: tuple[Node, ...], tiles: _Tiles, ranges: Ranges) -> tuple[Node, ...]:
    made: list[Node] = []
    loads: list[Place] = []
    for position, node in enumerate(nodes):
        match node:
            case Assign(target=Place(subscripts=()), value=Read() as read) if read.tensor in tiles.arrays:
                loads.append(Place(read.tensor, read.subscripts))
            case For() if len(loads) >= LEAST_TILE and _sums_up(node, ranges):
                made.extend(tiles.next_tile(loads, ranges, 1))
                loads = []
            case For() if not loads and _sums_up(node, ranges, stored=True):
                stores = tiles.stored(nodes[position + 1 :])
                if len(stores) >= LEAST_TILE:
                    made.extend(tiles.next_tile(stores, ranges, 2))
            case _:
                loads = []
        made.append(_inside(node, tiles, ranges))
    return nodes if len(made) == len(nodes) and all(a is b for a, b in zip(made, nodes, strict=True)) else tuple(made)


def _inside(node: Node, tiles: _Tiles, ranges: Ranges) -> Node:
    inner = ranges.enter(node) if isinstance(node, For) else ranges
    return with_body(node, lambda body: _body(body, tiles, inner))


def _sums_up(loop: For, ranges: Ranges, *, stored: bool = False) -> bool:
    """Whether the loop does nothing but add to registers, often enough. stored: for a tile that is written once, whose operands may be fetched meanwhile."""
    trips = ranges.highest(loop.upper - loop.lower)
    long = trips is None or trips >= (LEAST_SUMS_STORED if stored else LEAST_SUMS)
    sums = [n for n in loop.body if not (stored and isinstance(n, Prefetch))]
    return long and all(isinstance(n, Assign) and n.reduction is not None and not n.target.subscripts for n in sums)


def _is_large(variable: Variable, caches: Caches) -> bool:
    """Whether the array stays in no cache of one core."""
    extents = [extent.constant for extent in variable.shape if extent.is_constant]
    return len(extents) < len(variable.shape) or variable.dtype.itemsize * prod(extents) > caches.l2
