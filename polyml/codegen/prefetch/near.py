"""Strips of an operand that register tiles read where they lie: vectors of coming rows are asked for, from L2 into L1.

Such rows begin anywhere, so that most vectors lie in two lines. Loads of these that miss L1 are slow: out of order, a processor hides what one line takes, not two for each of three vectors. The lines are asked for a few steps
before, each by a load that touches it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.tile_sums import LEAST, affine_subscripts, map_tiles, with_prefetches
from polyml.codegen.rewrite import walk_nodes
from polyml.expressions import Read, reads_of
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_near"]

ROWS = 4
"""Steps ahead: 2 gain most of what 4 do, 8 and 16 no more."""


def prefetch_near(function: Function) -> Function:
    """The function with prefetches of the rows of strips whose next one it asks for already.

    Rewrite:
        vector for (l..) for (k..) { prefetch L2 v[.., l + ..]; s += r[n, k] * v[k, l]; t += r[n, k] * v[k, l + 16]; .. }
        -> .. { prefetch L2 v[.., l + ..]; prefetch L1 v[k + 4, l]; prefetch L1 v[k + 4, l + 15]; prefetch L1 v[k + 4, l + 31]; s += .. }
    """
    pass_ = _Strips({v.name: v for v in function.arguments})
    body = map_tiles(function.body, pass_.tile)
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Strips:
    arguments: Mapping[str, Variable]

    def tile(self, lanes: For, loops: tuple[For, ...]) -> For:
        """The vector loop with prefetches in its sums."""
        for sums in (node for node in walk_nodes(lanes.body) if isinstance(node, For)):
            asked = {n.place.variable for n in sums.body if isinstance(n, Prefetch)}
            adds = [n for n in sums.body if isinstance(n, Assign) and n.reduction is not None]
            if asked and len(adds) >= LEAST:
                nodes = tuple(self.rows(adds, asked, lanes, sums))
                return replace(lanes, body=with_prefetches(lanes.body, sums, nodes)) if nodes else lanes
        return lanes

    def rows(self, adds: list[Assign], asked: set[str], lanes: For, sums: For) -> Iterator[Node]:
        """The line where each row begins, and that of each vector's last element."""
        found = dict[tuple[str, Affine], Read]()
        for read in (r for node in adds for r in reads_of(node.value) if r.tensor in asked & self.arguments.keys()):
            flat = flat_element(self.arguments[read.tensor], read.subscripts, whole_rows=True)
            if flat is not None and flat.stride(lanes.variable) == 1:
                found.setdefault((read.tensor, flat), read)
        for (array, start), read in found.items():
            if (array, start - lanes.width) not in found:
                yield self.line(read, 0, lanes, sums)
            yield self.line(read, lanes.width - 1, lanes, sums)

    def line(self, read: Read, column: int, lanes: For, sums: For) -> Prefetch:
        moved = {sums.variable: affine(sums.variable) + ROWS, lanes.variable: affine(lanes.variable) + column}
        return Prefetch(Place(read.tensor, tuple(s.substitute(moved) for s in affine_subscripts(read))), 1)
