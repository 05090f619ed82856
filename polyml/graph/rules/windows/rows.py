"""Sums over windows without filters (depthwise convolutions, blurs): what windows read is copied first where lanes along the row gain by that.

- With the padding around it: rows have no edges of their own then, and several share a register tile, in which each element is loaded once (codegen/passes/sums/window_taps.py).
- Rows with gaps (stride 2) in phases, so that all taps read neighbours: `y[p, q] = sum[r, s](x[2 p + r, 2 q + s] * w[r, s])` becomes

      x_padded[h, b, v] = x[h, 2 v + b]
      y[p, q] = sum[r, b, u](x_padded[2 p + r, b, q + u] * w[r, 2 u + b]), where 2 u + b is a tap

  Each element is shuffled once, not for each tap.
- Where nothing else reads the result: in blocks of rows that stay in L1, each with the rows below it that its windows reach, which the next block copies again:

      x_padded[B, h, v] = x[16 B + h, v]
      y[16 B + p, q] = sum[r, s](x_padded[B, p + r, q + s] * w[r, s])

  Under filters (`rows_in_phases`) blocks have all channels, and L2 holds them: x_padded[B, c, h, b, v].

Where lanes run along channels that no window moves along, rows of a register tile share what they load as they lie. Most windows are whole then, and the schedule gives those that an edge cuts a loop of their own
(schedule/strategy/whole_windows.py); only where there are many of these is a copy worth its passes over memory.

Where lanes have masks in registers of their own, small windows read zeros under a mask instead, and nothing is copied: a register tile knows which of its rows are beyond the edge when its taps are written out, and masks along the row are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import Apply
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.windows.parts import Split, Window, padded, padded_copy, padded_shape
from polyml.graph.traverse import read_names
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.shapes import element_count, is_known

__all__ = ["MASK_BYTES", "copied_rows", "rows_in_phases"]

LEAST_WORK = 1 << 16
"""Products below which it does not matter."""

SHORT = 2
"""Vectors of a row in which edges are so much of it that padding is better copied than asked for, whatever rows share."""

TAPS = 16
"""Places of a window from which on it is better copied where sizes are symbolic, too: each of them has edges of its own, and rows whose edges differ share no register tile."""

FAR = 8
"""So many times L2 are no more in a core's share of the last level: rows in place come and go in a stream then, while copies wait for memory and sums for copies."""

BLOCK = 8
"""The part of L2 that a block of rows takes under filters: beside it come weights, and results go."""

MOST_GAP = 4
"""Gaps up to which rows are copied in phases."""

LEAST_ROWS = 4
"""Of a block, and of a register tile in place."""

MASK_BYTES = 64
"""Of vectors whose lanes have masks in registers of their own (AVX-512). As AVX2 code depthwise layers took 1.1 to 1.7 times as long under masks as from copies."""

SMALL = 9
"""Taps of a window that is read in place, at most: 3x3 took 0.6 to 1.05 of the time that it took from copies, 5x5 0.73 to 1.3, 7x7 0.9 to 1.5."""

WHOLE = 0.8
"""The part of windows that no edge cuts from which on those along which lanes do not run are read where they lie (3x3 over 56 x 56 0.7 of the time, over 28 x 28 0.9 and in f64 1.2, over 14 x 14 1.0 to 1.1; 7x7 over 28 x 28 1.4)."""

MOST_ROWS = 14
"""Of a register tile, at most."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A dimension of windows: the index of the result that moves along it, by so many places, and the taps from place to place; its number."""

    number: int
    index: str
    step: int
    taps: tuple[str, ...]


def copied_rows(
    equation: Equation,
    window: Window,
    graph: Graph,
    tensors: dict[str, Tensor],
    *,
    lanes: int,
    l1_bytes: int,
    l2_bytes: int,
) -> list[Op] | None:
    """The copy and the sum that reads it, or the sum that reads zeros beyond the edge; None where the sum stays as it is."""
    extents, points = window.numbers, window.points
    rows = _rows(equation, window)
    if not rows or prod(extents[i] for i in (*points, *equation.reduced)) < LEAST_WORK:
        return None
    last = rows[-1] if rows[-1].number == len(window.read.subscripts) - 1 else None
    shared = [row for row in rows if row is not last and _reach(window, row) > row.step]
    if lanes * equation.body.dtype.itemsize == MASK_BYTES and _is_in_place(window, rows, shared, lanes):
        return [_in_place(equation, window, graph, tensors)]
    if _in_lanes(window, lanes) and _whole(window, rows) >= WHOLE:
        return None
    gap = None if last is None or window.symbolic else _gap(window, last)
    short = window.padded and extents[points[-1]] <= SHORT * lanes
    taps = prod(extents[tap] for row in rows for tap in row.taps)
    far = _bytes(equation, tensors[window.read.tensor], extents) > FAR * l2_bytes
    ragged = window.padded and (taps >= TAPS or (shared and not window.symbolic and not far))
    if not (gap or short or ragged):
        return None
    masks = lanes * equation.body.dtype.itemsize == MASK_BYTES
    made = _Change(equation, window, graph, whole=1 if masks or last is None else lanes)
    if last is not None and gap:
        made.in_phases(last)
    # What reads the result goes along its rows, not its blocks, and would follow when all are finished.
    read = any(equation.result.name in read_names(op) for op in graph.ops)
    if shared and not window.symbolic and not read:
        made.in_blocks(shared[-1], tensors[window.read.tensor].dtype.itemsize, l1_bytes // 2)
    return made.ops(tensors)


def rows_in_phases(
    equation: Equation, window: Window, graph: Graph, tensors: dict[str, Tensor], *, lanes: int, l2_bytes: int
) -> list[Op] | None:
    """The copy in phases and the sum that reads it, for windows with filters; None where rows have no gaps. Where half of L2 does not hold the copy, and nothing else reads the result, a block of rows at a time, with all channels."""
    rows = _rows(equation, window)
    last = rows[-1] if rows and rows[-1].number == len(window.read.subscripts) - 1 else None
    if last is None or window.symbolic or _gap(window, last) is None:
        return None
    made = _Change(equation, window, graph, whole=lanes)
    made.in_phases(last)
    shared = [row for row in rows if row is not last and _reach(window, row) > row.step]
    itemsize = tensors[window.read.tensor].dtype.itemsize
    leaves = 2 * itemsize * prod(extent.constant for extent in made.shape) > l2_bytes
    if shared and leaves and not any(equation.result.name in read_names(op) for op in graph.ops):
        made.in_blocks(shared[-1], itemsize, l2_bytes // BLOCK, outermost=True)
    return made.ops(tensors)


def _is_in_place(window: Window, rows: Sequence[_Row], shared: Sequence[_Row], lanes: int) -> bool:
    """Whether small windows with padding move along rows of one dimension, which are whole register tiles (rows that are left share no loads, and ask for both edges), and take no more shuffles than copies in phases: one vector of a row with gaps."""
    if (
        not window.padded
        or window.symbolic
        or len(shared) != 1
        or len(rows) != 2
        or rows[-1].index != window.points[-1]
    ):
        return False
    taps = prod(window.numbers[tap] for row in rows for tap in row.taps)
    high, wide = (window.numbers[row.index] for row in (shared[0], rows[-1]))
    tiles = any(high % count == 0 for count in range(LEAST_ROWS, MOST_ROWS + 1))
    return taps <= SMALL and tiles and (rows[-1].step == 1 or wide <= lanes)


def _in_lanes(window: Window, lanes: int) -> bool:
    """Whether what windows read lies side by side along an index that they do not move along, for as many of its values as there are lanes."""
    last = window.read.subscripts[-1]
    return isinstance(last, Affine) and last.name in window.points and window.numbers[last.name] >= lanes


def _whole(window: Window, rows: Sequence[_Row]) -> float:
    """The part of the windows that no edge cuts, where they reach beyond their operand by what taps reach."""
    beyond = (max(0, _reach(window, row) - 1) // row.step for row in rows)
    return prod(max(0, 1 - count / window.numbers[row.index]) for row, count in zip(rows, beyond, strict=True))


def _in_place(equation: Equation, window: Window, graph: Graph, tensors: dict[str, Tensor]) -> Equation:
    """The sum over a box of indices, of zeros where the tensor ends."""
    name, extents = equation.result.name, window.extents
    value = padded(window.read, tensors[window.read.tensor].shape, padded_shape(window, extents), graph)
    body = Apply("mul", (value, window.other), equation.body.dtype)
    return replace(equation, body=body, domain=box(name, equation.indices, extents, graph.sizes), padded=False)


def _bytes(equation: Equation, source: Tensor, extents: Mapping[str, int]) -> int:
    """Of what windows read and of the result, where sizes are numbers."""
    read = element_count(source.shape) if is_known(source.shape) else 0
    return equation.body.dtype.itemsize * (
        read + prod(extents[i] for i in equation.indices if i not in equation.reduced)
    )


def _rows(equation: Equation, window: Window) -> list[_Row]:
    """The dimensions that windows move along, outermost first."""
    found = []
    for number, place in enumerate(window.read.subscripts):
        if not isinstance(place, Affine) or place.name is not None:
            continue
        moved = [index for index in window.points if index in place.variables()]
        taps = tuple(index for index in equation.reduced if index in place.variables())
        step = place.stride(moved[0]) if len(moved) == 1 else None
        if step is not None and step > 0 and taps:
            found.append(_Row(number, moved[0], step, taps))
    return found


def _reach(window: Window, row: _Row) -> int:
    """The places from the first tap to behind the last."""
    place = window.read.subscripts[row.number]
    assert isinstance(place, Affine), "internal: a window with a computed subscript"
    return 1 + sum(abs(place.stride(tap) or 0) * (window.numbers[tap] - 1) for tap in row.taps)


def _gap(window: Window, row: _Row) -> int | None:
    """The gap between neighbours where the taps are single steps over more than one place."""
    place = window.read.subscripts[row.number]
    assert isinstance(place, Affine), "internal: a window with a computed subscript"
    steps = len(row.taps) == 1 and place.stride(row.taps[0]) == 1 and window.numbers[row.taps[0]] > 1
    return row.step if steps and 1 < row.step <= MOST_GAP and row.index == window.points[-1] else None


class _Change:
    """The equation's indices, some in two parts, and how the copy's dimensions are split for that."""

    def __init__(self, equation: Equation, window: Window, graph: Graph, *, whole: int) -> None:
        self.equation, self.window, self.graph, self.whole = equation, window, graph, whole
        self.parts: dict[str, tuple[str, str]] = {}
        self.values: dict[str, Affine] = {}
        self.extents = dict(window.extents)
        self.splits: dict[int, Split] = {}
        self.ahead: set[str] = set()
        self.shape = [(high - low) for low, high in padded_shape(window, window.extents)]

    def _place(self, row: _Row) -> Affine:
        """From the copy's first element on, the index's own part left out."""
        place = self.window.read.subscripts[row.number]
        assert isinstance(place, Affine), "internal: a window with a computed subscript"
        low = padded_shape(self.window, self.window.extents)[row.number][0]
        return place - low

    def _part(self, index: str, factor: int, outer: int, inner: int, *, turned: bool = False) -> tuple[str, str]:
        """The index as `factor * outer + inner`; turned: the loop over the inner part goes around the other."""
        names: list[str] = []
        for suffix in ("block", "row") if not turned else ("step", "phase"):
            names.append(fresh_name(f"{index}_{suffix}", {*self.extents, *names}))
        self.values[index] = factor * affine(names[0]) + affine(names[1])
        self.extents |= {names[0]: affine(outer), names[1]: affine(inner)}
        self.parts[index] = (names[1], names[0]) if turned else (names[0], names[1])
        return names[0], names[1]

    def in_phases(self, row: _Row) -> None:
        (tap,), gap = row.taps, row.step
        step, phase = self._part(tap, gap, -(-self.window.numbers[tap] // gap), gap, turned=True)
        steps = -(-self.shape[row.number].constant // gap)
        read = (affine(phase), affine(row.index) + affine(step))
        self.splits[row.number] = Split((gap, steps), (1, gap), read)
        self.shape[row.number] = affine(gap * steps)

    def in_blocks(self, row: _Row, itemsize: int, most: int, *, outermost: bool = False) -> None:
        """Blocks of as many rows as fit in so many bytes, where they are whole."""
        plain = [
            d
            for d, s in enumerate(self.window.read.subscripts)
            if isinstance(s, Affine) and s.name in self.window.points
        ]
        bytes_ = itemsize * prod(e.constant for d, e in enumerate(self.shape) if d != row.number and d not in plain)
        high, reach = self.window.numbers[row.index], _reach(self.window, row)
        if bytes_ * self.shape[row.number].constant <= most:
            return
        fitting = (n for n in range(high - 1, LEAST_ROWS - 1, -1) if high % n == 0)
        count = next((n for n in fitting if bytes_ * ((n - 1) * row.step + reach) <= most), None)
        if count is None:
            return
        place = self._place(row)
        block, inner = self._part(row.index, count, high // count, count)
        read = (affine(block), place.substitute({row.index: affine(inner)}))
        self.ahead |= {block} if outermost else set()
        self.splits[row.number] = Split(
            (high // count, (count - 1) * row.step + reach), (count * row.step, 1), read, outermost
        )

    def ops(self, tensors: dict[str, Tensor]) -> list[Op]:
        equation, window = self.equation, self.window
        read, copy = padded_copy(equation, window, self.graph, tensors, self.splits, whole=self.whole)
        other = replace(window.other, subscripts=self._substituted(window.other.subscripts))
        kept = equation.left
        reduced = self._indices(equation.reduced)
        indices = tuple(sorted(self._indices(kept), key=lambda i: i not in self.ahead)) + reduced
        name = equation.result.name
        domain = box(name, indices, self.extents, self.graph.sizes)
        for index, value in self.values.items():
            limit = f"{value.isl_text()} < {window.extents[index].isl_text()}"
            domain = domain.intersect(isl.Set(f"{{ {name}[{', '.join(indices)}] : {limit} }}"))
        target = self._substituted(equation.target)
        body = Apply("mul", (read, other), equation.body.dtype)
        made = replace(
            equation, indices=indices, reduced=reduced, domain=domain, target=target, body=body, padded=False
        )
        return [copy, made]

    def _indices(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(part for name in names for part in self.parts.get(name, (name,)))

    def _substituted(self, subscripts: Sequence[object]) -> tuple[Affine, ...]:
        return tuple(s.substitute(self.values) for s in subscripts if isinstance(s, Affine))
