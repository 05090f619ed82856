"""Copies of blocks of a large matrix (panels that are packed): a few rows further on are fetched on the way.

A block's rows are pieces of the matrix's, some hundred bytes to a few KiB, and lie in pages of their own: at the end of each the hardware's prefetchers stop, and the next one starts at the speed of single misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.caches import AHEAD, Caches
from polyml.codegen.prefetch.tile_sums import affine_subscripts, large_inputs, map_tiles, most_of
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import nodes_of, subscript_variables
from polyml.expressions import Read
from polyml.records import dataclass
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine

__all__ = ["prefetch_copies"]

ROWS = 4
"""Rows ahead: 1 gains half of what 4 do, 16 no more."""

MOST_ROWS = 16
"""Rows that are read side by side, at most, for the ones to ask for to be those that come after all of them: 4 ahead would be half of the next ones, and half of these themselves."""

PIECES = 2
"""Pieces ahead, at most, where a block has so little of each that what is asked for further along is not even in the next block. Zen 3, `afbce,df->edcba` in f64, pieces of 360 and 264 bytes, of the time with requests past their ends: one
ahead 0.72, 0.94, two 0.71, 0.85, four 0.76, 0.81."""

APART = 1024
"""Bytes from row to row, at least: nearer ones are a stream."""


def prefetch_copies(
    function: Function, caches: Caches, held: Set[str] = frozenset()
) -> tuple[Function, tuple[Note, ...]]:
    """The function with prefetches in the vector loops that do nothing but copy elements of large inputs, row by row, to scratch memory. held: inputs of symbolic size that L2 holds in every call; others may be large.

    Rewrite:
        for (k..) vector for (j..) panels[k, j] = y[k, j];
        -> for (k..) vector for (j..) { prefetch y[k + 4, j]; panels[k, j] = y[k, j]; }
    """
    large = large_inputs(function, caches.l2 // 4) | _of_any_size(function, held) if caches.l2 else {}
    # What register tiles have asked for is near.
    asked = {node.place.variable for node in nodes_of(function) if isinstance(node, Prefetch)}
    large = {name: variable for name, variable in large.items() if name not in asked}
    pass_ = _Copies(large, frozenset(v.name for v in function.arguments), caches, [])
    body = map_tiles(function.body, pass_.copy) if large else function.body
    return (function if body is function.body else replace(function, body=body)), tuple(dict.fromkeys(pass_.notes))


@dataclass(frozen=True, slots=True)
class _Copies:
    """inputs: large ones, by name. arguments: names of all."""

    inputs: Mapping[str, Variable]
    arguments: frozenset[str]
    caches: Caches
    notes: list[Note]

    def copy(self, lanes: For, loops: tuple[For, ...]) -> For:
        """The vector loop with prefetches, where it copies."""
        if len(lanes.body) == 1 and isinstance(lanes.body[0], For):
            return self.transposed(lanes, lanes.body[0], loops)
        reads = [self.source(node, lanes) for node in lanes.body]
        if not reads or any(read is None for read in reads):
            return lanes
        lines: dict[tuple[Place, Affine, int], Prefetch] = {}
        for read in reads:
            assert read is not None, "internal: a copy of nothing"
            variable = self.inputs[read.tensor]
            flat = flat_element(variable, read.subscripts, whole_rows=True)
            row = next((loop for loop in reversed(loops) if _is_row(variable, read, loop)), None)
            if flat is None or row is None:
                return lanes
            ahead = _rows_ahead(row, loops)
            there = {row.variable: affine(row.variable) + ahead * row.step}
            place = Place(read.tensor, tuple(s.substitute(there) for s in affine_subscripts(read)))
            line = flat.constant * variable.dtype.itemsize // self.caches.line
            apart = zip(place.subscripts, variable.memory_strides, strict=True)
            rows = Place(read.tensor, tuple(s for s, stride in apart if stride is None))
            lines.setdefault((rows, flat - flat.constant, line), Prefetch(place, 2))
            self.notes.append(Note("prefetch", row.variable, f"{read.tensor} {ahead} rows ahead, for its copy"))
        return replace(lanes, body=(*lines.values(), *lanes.body))

    def transposed(self, lanes: For, blocks: For, loops: tuple[For, ...]) -> For:
        """The same where blocks of the input's rows are transposed in registers: for each block the one that comes in the place of that some iterations of a loop further out."""
        block = blocks.body[0] if len(blocks.body) == 1 else None
        move = block.body[0] if isinstance(block, For) and block.kind == "transpose" else None
        if not isinstance(move, Assign) or not isinstance(move.value, Read) or move.value.tensor not in self.inputs:
            return lanes
        assert isinstance(block, For)
        read, variable = move.value, self.inputs[move.value.tensor]
        flat = flat_element(variable, read.subscripts)
        if lanes.masked or flat is None or flat.stride(block.variable) != 1:
            return lanes
        apart = abs(flat.stride(lanes.variable) or 0) * variable.dtype.itemsize
        found = _pieces_ahead(variable, flat, move.target, (*loops, lanes, blocks)) if apart >= APART else None
        if found is None:
            return lanes
        row, count = found
        there = {row.variable: affine(row.variable) + count * row.step, block.variable: affine(blocks.variable)}
        coming = [s.substitute(there) for s in affine_subscripts(read)]
        moved = [{lanes.variable: affine(lanes.variable) + lane} for lane in range(lanes.width)]
        lines = [Prefetch(Place(read.tensor, tuple(s.substitute(m) for s in coming)), 2) for m in moved]
        self.notes.append(Note("prefetch", row.variable, f"{read.tensor} {count} rows ahead, for its copy"))
        return replace(lanes, body=(replace(blocks, body=(*lines, block)),))

    def source(self, node: Node, lanes: For) -> Read | None:
        """What a node copies to scratch memory, where neighbouring lanes read neighbouring elements of a large input."""
        if not isinstance(node, Assign) or node.reduction is not None or node.target.variable in self.arguments:
            return None
        if not node.target.subscripts or not isinstance(node.value, Read) or node.value.tensor not in self.inputs:
            return None
        flat = flat_element(self.inputs[node.value.tensor], node.value.subscripts, whole_rows=True)
        return node.value if flat is not None and flat.stride(lanes.variable) == 1 else None


def _of_any_size(function: Function, held: Set[str]) -> dict[str, Variable]:
    """Arguments of symbolic size that the function only reads, and that may be large."""
    read = (v for v in function.arguments if v.name not in function.written and v.name not in held)
    return {v.name: v for v in read if v.bytes is None}


def _is_row(variable: Variable, read: Read, loop: For) -> bool:
    """Whether the loop goes from row to row, one after the other. Rows of unknown length are taken for long ones."""
    if loop.kind != "sequential" or loop.step != 1:
        return False
    step = 0
    for subscript, stride in zip(read.subscripts, variable.memory_strides, strict=True):
        along = subscript.stride(loop.variable) if isinstance(subscript, Affine) else None
        if along and stride is None:
            return True
        step += (along or 0) * (stride or 0)
    return abs(step) * variable.dtype.itemsize >= APART


def _pieces_ahead(variable: Variable, flat: Affine, panel: Place, loops: tuple[For, ...]) -> tuple[For, int] | None:
    """The loop whose iterations go on to what is transposed next, and how many ahead that is: the innermost one where that is in this block or the one that follows, or whose values go on where the next loop's next value begins.
    panel: where the block goes. loops: the last two go through it."""
    inside, size = Ranges(loops), variable.dtype.itemsize
    found: tuple[For, int] | None = None
    end = 0
    for place, loop in reversed(list(enumerate(loops))):
        exact = inside.constant(loop.upper - loop.lower)
        trips, step = most_of(loop) if exact is None else exact, flat.stride(loop.variable)
        if place < len(loops) - 2 and loop.kind == "sequential" and loop.step == 1 and step:
            if found is not None and step == end:
                return found
            count = max(1, -(-AHEAD // size))
            found = loop, count if found is None else min(count, PIECES)
            if trips is None or count < trips or (count <= 2 * trips and _follows(loop, panel, loops[:place])):
                return found
            end = trips * step
        if trips is None or (found is None and exact is None):
            break
        size *= trips
    return found


def _follows(loop: For, panel: Place, around: Sequence[For]) -> bool:
    """Whether the block that goes on with the loop's values is made next: no other blocks between. A loop over blocks of one value has no place in a panel."""
    block = next((k for k, other in enumerate(around) if other.variable in loop.lower.variables()), None)
    used = subscript_variables(panel.subscripts)
    return block is not None and all(other.variable in used for other in around[block + 1 :])


def _rows_ahead(row: For, loops: Sequence[For]) -> int:
    """How many rows ahead are asked for. Where a loop between this one and that over blocks of rows takes one piece of all of a block's rows after the other, as many as there are."""
    trips = most_of(row)
    around = loops[: loops.index(row)]
    block = next((k for k, loop in enumerate(around) if loop.variable in row.lower.variables()), len(around))
    beside = block + 1 < len(around) and trips is not None and trips <= MOST_ROWS
    return max(ROWS, trips) if beside and trips is not None else ROWS
