"""Results that are laid out when their sums are finished: while these are made, the lines that they will be stored to are asked for, to write.

Blocks that are transposed in registers are stored to a piece of each of many rows, as soon as they are there, and each store waits for its line. There is all the time of the sums to ask for these lines: few of them ahead of
the sums, more at an even rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, Prefetch, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.dealt_lines import Level, dealt_out, levels_of
from polyml.codegen.prefetch.inner_loops import inner_loops, put_first
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import have_no_bodies, nodes_of, walk_nodes, with_body
from polyml.expressions import reads_of
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, minimum

__all__ = ["prefetch_turned"]

SHARE = 16
"""The part of L2 that a result, or what is read along with it, must exceed."""

AT_ONCE = 64
"""Lines, at most, that are asked for ahead of the sums: about as many as a core waits for at a time."""

ROW_LINES = 8
"""Lines of a row, at most, that one iteration asks for."""


def prefetch_turned(function: Function, caches: Caches) -> Function:
    """The function with a prefetch for each line of such results.

    Rewrite:
        for (p ..) { for (k ..) t[q, o] += ..; vector for (q ..) transpose for (o = 0; o < 32; o++) y[o, p, q] = t[q, o]; }
        -> for (p ..) { for (n = 0; n < 32; n++) prefetch y[n, p, 13] to write; for (k ..) t[q, o] += ..; vector for (q ..) .. }

    With more lines than AT_ONCE: for (k ..) { prefetch y[k//4, p, 16*(k % 4) + 15] to write; t[q, o] += ..; }
    """
    if not caches.l2:
        return function
    large = {v.name: v for v in function.arguments if v.strides is None and (v.bytes or 0) * SHARE > caches.l2}
    if not large.keys() & function.written or not any(map(_turns, nodes_of(function))):
        return function
    body = _Turned(large, caches.line, names_in(function), outside(function)).body(function.body, ())
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a result that are laid out together: the subscripts of the first element, the dimension that counts rows and how many there are, elements of each, which follow each other from the first on, and lines of each."""

    array: str
    first: tuple[Affine, ...]
    dimension: int
    count: int
    length: int
    line: int
    write: bool = True

    @property
    def lines(self) -> int:
        """All, but what a row has of the line where the one before it in memory ends."""
        return self.count * self.each

    @property
    def each(self) -> int:
        """Lines of a row."""
        return ceil(self.length / self.line)

    def row(self, number: Affine) -> tuple[Prefetch, ...]:
        """For the lines of a row, whose places are numbers beside it."""
        return tuple(self.request(self.each * number + k) for k in range(self.each))

    def request(self, number: Affine) -> Prefetch:
        """For the last element of a line, or of a row."""
        each = self.each
        within = number % each if each > 1 else affine(0)
        at = list(self.first)
        at[self.dimension] += number // each
        at[-1] += minimum((within * self.line + (self.line - 1), affine(self.length - 1)))
        return Prefetch(Place(self.array, tuple(at)), 1, write=self.write)


@dataclass(frozen=True, slots=True)
class _Turned:
    """arrays: large arguments; line: bytes of one."""

    arrays: Mapping[str, Variable]
    line: int
    taken: set[str]
    known: Ranges

    def body(self, nodes: tuple[Node, ...], around: tuple[For, ...]) -> tuple[Node, ...]:
        if have_no_bodies(nodes):
            return nodes
        at = next((k for k, node in enumerate(nodes) if _is_turn(node)), 0)
        if at > 0:
            found = list(self.rows(nodes[at:], around))
            return (*self.asking(nodes[:at], found, around), *nodes[at:]) if found else nodes

        def inside(node: Node) -> Node:
            loops = (*around, node) if isinstance(node, For) else around
            return with_body(node, lambda body: self.body(body, loops))

        return renewed(nodes, map(inside, nodes))

    def asking(self, sums: tuple[Node, ...], found: Sequence[_Rows], around: tuple[For, ...]) -> tuple[Node, ...]:
        """What comes ahead of the layout, with requests for its lines."""
        lines = max(rows.lines for rows in found)
        if lines <= AT_ONCE:
            name = fresh("line", self.taken)
            requests = tuple(rows.request(affine(name)) for rows in found)
            return (For(variable=name, lower=affine(0), upper=affine(lines), body=requests), *sums)
        levels: list[Level] = []
        for path in inner_loops(sums, around):
            if any(isinstance(node, Assign) and node.reduction is not None for node in path[-1].body):
                # Of several, such as tiles and what is left of a row, the one that takes longest.
                levels = max(levels, levels_of(path, len(around)), key=lambda found: found[-1].steps if found else 0)
        dealt = self.whole_rows(levels, found) or self.single_lines(levels, found)
        return sums if dealt is None else put_first(sums, {id(dealt[0]): dealt[1]})

    def whole_rows(self, levels: Sequence[Level], found: Sequence[_Rows]) -> tuple[For, tuple[Node, ...]] | None:
        """A loop whose iterations ask for a row each, where rows have few lines: quotients of a line's number would take as long as a fair part of short sums."""
        count = max(rows.count for rows in found)
        dealt = dealt_out(levels, count)
        if dealt is None or len(dealt[1]) > 1 or sum(rows.each for rows in found) > ROW_LINES:
            return None
        loop, (number,) = dealt
        if any(level.loop is loop and level.steps >= 2 * count for level in levels):
            # Several iterations would ask for the same row.
            return None
        return loop, tuple(request for rows in found for request in rows.row(number))

    def single_lines(self, levels: Sequence[Level], found: Sequence[_Rows]) -> tuple[For, tuple[Node, ...]] | None:
        """A loop whose iterations ask for the next lines."""
        dealt = dealt_out(levels, max(rows.lines for rows in found))
        if dealt is None:
            return None
        loop, numbers = dealt
        return loop, tuple(rows.request(number) for number in numbers for rows in found)

    def rows(self, behind: Sequence[Node], around: tuple[For, ...]) -> Iterator[_Rows]:
        """What is stored there, and read at the same places."""
        seen: set[str] = set()
        for store, loops in _stores(behind, ()):
            target = store.target
            same = [r.tensor for r in reads_of(store.value) if r.subscripts == target.subscripts]
            for name in (target.variable, *same):
                if name not in self.arrays or name in seen:
                    continue
                seen.add(name)
                first = self.first(target, self.arrays[name], loops, around)
                if first is not None:
                    yield replace(first, write=name == target.variable)

    def first(self, target: Place, array: Variable, loops: tuple[For, ...], around: tuple[For, ...]) -> _Rows | None:
        """The rows of an array that a store inside of these loops goes along, from the beginning of each."""
        at = [s for s in target.subscripts if isinstance(s, Affine)]
        own = {loop.variable: loop for loop in loops}
        lanes = next((loop.variable for loop in loops if loop.kind == "vector"), None)
        if not at or len(at) < len(target.subscripts) or lanes is None or at[-1].name != lanes:
            return None
        length, last = 1, len(at)
        while last and (last == len(at) or self.is_whole(at[last - 1], array.shape[last - 1].constant, own)):
            # All values of one more dimension: its rows follow each other.
            last -= 1
            length *= array.shape[last].constant
            at[last] = affine(0)
        left = [k for k in range(last) if at[k].variables() & own.keys()]
        if len(left) > 1:
            return None
        count, ranges = 1, self.known
        for loop in around:
            ranges = ranges.enter(loop)
        for loop in reversed(loops):
            for k in left:
                if loop.variable in at[k].variables():
                    count = max(count, ranges.highest(loop.upper - loop.lower) or 0)
                    at[k] = at[k].substitute({loop.variable: loop.lower})
        line = self.line // array.dtype.itemsize
        return _Rows(array.name, tuple(at), left[0] if left else 0, count, length, line)

    def is_whole(self, subscript: Affine, extent: int, own: Mapping[str, For]) -> bool:
        loop = own.get(subscript.name or "")
        return loop is not None and (loop.upper - loop.lower) == affine(extent)


def _is_turn(node: Node) -> bool:
    """Whether it does nothing but lay out."""
    found = False
    for inner in walk_nodes((node,)):
        if isinstance(inner, Assign) and inner.reduction is not None:
            return False
        found = found or _turns(inner)
    return found


def _turns(node: Node) -> bool:
    return isinstance(node, For) and node.kind == "transpose"


def _stores(nodes: Sequence[Node], loops: tuple[For, ...]) -> Iterator[tuple[Assign, tuple[For, ...]]]:
    """What is stored inside of vector loops, with the loops around."""
    for node in nodes:
        match node:
            case For():
                yield from _stores(node.body, (*loops, node))
            case Assign() if any(loop.kind == "vector" for loop in loops) and not node.streaming:
                yield node, loops
            case Allocate() | Block():
                yield from _stores(node.body, loops)
            case If():
                yield from _stores((*node.then, *node.otherwise), loops)
            case _:
                pass
