"""The cost model of the CPU strategy: what a statement costs per lane when it runs along an index (register_tiles.py: which register tile fits; statement_models.py: the model of a statement).

Costs are in vector instructions, the strides of the accesses decide them: 0 is a broadcast that the loop hoists, 1 a contiguous vector, anything else one
element at a time. Nothing is measured here; a tuner above may replace the choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import ceil, prod

from polyml.records import dataclass
from polyml.sets.turns import MOST_BETWEEN, MOST_GAP, shuffles
from polyml.target import Target

__all__ = ["LEAST_COLUMNS", "SHUFFLED", "AccessModel", "StatementModel"]

FEW_STEPS = 4
"""Iterations up to which a loop of a sum counts as part of a window (the phases of a row)."""

SHUFFLED = 4
"""Up to this stride a vector is as many contiguous loads, and shuffles between them."""

LEAST_COLUMNS = 4
"""Elements of a row below which a block that is transposed in registers is not worth its shuffles."""

_BROADCAST, _CONTIGUOUS, _REVERSED, _TRANSPOSED = 0.25, 1.0, 2.0, 4.0
_REDUCTION_PENALTY = 1.1
_ACROSS = 2.0
"""What adding up the lanes of one vector costs at least, beside others that are added up: of 49 terms in f64, seven for each vector of eight lanes, it was taken for one seventh of what it is."""
_FAR = 1.5
"""What an element costs that lanes reach one at a time, in an array that L2 does not hold: each is in a line, and soon in a page, of its own."""


@dataclass(frozen=True, slots=True)
class AccessModel:
    """One access. strides: elements per index that it moves by (an index that is absent: 0); None: irregular. `write`: also for updates. turns: of irregular indices that go through rows in turn, the number of rows.
    steady: of irregular indices of which only the quotient moves the access, by what they are divided: blocks of so many iterations have one element.
    near: how far from it statements access the array likewise, for the same values of the indices. places: of irregular indices that move it along one dimension whose stride is a size, which one, and by
    how many of its places."""

    array: str
    strides: Mapping[str, int | None]
    write: bool
    turns: Mapping[str, int] = field(default_factory=dict)
    steady: Mapping[str, int] = field(default_factory=dict)
    near: frozenset[int] = frozenset()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def steps(self, index: str, other: str) -> int | None:
        """How many steps along the other index move the access as one along the index does; None where no number of them does."""
        step, along = self.stride(index), self.stride(other)
        if index in self.places and other in self.places:
            (dimension, step), (same, along) = self.places[index], self.places[other]
            along = along if same == dimension else None
        return step // along if step and along and step % along == 0 else None

    def touches_row(self, gap: int) -> bool:
        """Whether all elements between those that are so far apart are accessed, too (codegen/llvm/memory/phases.py)."""
        starts = (range(first, first + gap) for first in range(1 - gap, 1))
        return gap <= MOST_GAP and any(self.near.issuperset(row) for row in starts)

    def lane_stride(self, index: str, lanes: int) -> int | None:
        """Elements between neighbouring lanes of a vector along the index, which begins at a multiple of its length."""
        block = self.steady.get(index)
        return 0 if block is not None and block % lanes == 0 else self.stride(index)

    def stride(self, index: str) -> int | None:
        """Elements between neighbours along the index; None when that is not one number."""
        return self.strides.get(index, 0)


@dataclass(frozen=True, slots=True)
class StatementModel:
    """What the model knows of a statement. operations: vector instructions of its arithmetic. itemsize: bytes of the widest number
    that is computed with. recurrences: indices whose loop must stay a sequential one. overlapping: indices along which neighbours read mostly the same elements (rows of windows); taps: the places of such windows.
    likely: of indices whose extents are not known, how many values they have in large calls like the one at hand. copies: it moves elements, and computes nothing. elementwise: it is
    no sum, and its numbers are plain ones. registers: of an element that is reduced into; argmax and argmin keep the best number and its index."""

    name: str
    extents: Mapping[str, int]
    accesses: tuple[AccessModel, ...]
    operations: float
    itemsize: int
    is_update: bool
    recurrences: frozenset[str] = frozenset()
    overlapping: frozenset[str] = frozenset()
    taps: frozenset[str] = frozenset()
    likely: Mapping[str, int] = field(default_factory=dict)
    copies: bool = False
    elementwise: bool = False
    registers: int = 1

    @property
    def instances(self) -> int:
        return prod(self.extents.values())

    @property
    def terms(self) -> int:
        """Terms of an element's sum that belong to the window: those of its places, and of loops of a few steps beside them."""
        summed = {i: n for i, n in self.extents.items() if self._target.stride(i) == 0}
        return prod(n for i, n in summed.items() if i in self.taps or n <= FEW_STEPS)

    @property
    def work(self) -> float:
        """Scalar operations of all instances."""
        return self.instances * (self.operations + 1)

    def lane_cost(self, index: str, target: Target, *, packed: frozenset[str] = frozenset()) -> float:
        """Vector instructions per element when the lanes run along `index`; arrays in `packed` count as contiguous."""
        lanes = target.lanes(self.itemsize)
        extent = self.extents[index]
        cost = self.operations
        for access in self.accesses:
            cost += self._access_cost(access, index, target, contiguous=access.array in packed)
        if self.is_update and self._target.stride(index) == 0:
            # Lanes are added up once per element, after so many vectors; along a short index each of these is added up.
            vectors = self._updates_per_element / (extent if extent < lanes else 1)
            across = max(lanes / max(vectors, 1), _ACROSS if extent < lanes else 0.0)
            cost = cost * _REDUCTION_PENALTY + across
        return cost / (lanes * extent / (ceil(extent / lanes) * lanes))

    def scalar_cost(self) -> float:
        """Instructions per element without lanes."""
        return self.operations + len(self.accesses)

    @property
    def _target(self) -> AccessModel:
        return next(a for a in self.accesses if a.write)

    @property
    def _updates_per_element(self) -> int:
        return prod(extent for index, extent in self.extents.items() if self._target.stride(index) == 0)

    def row_across(self, access: AccessModel, index: str) -> str | None:
        """The index along which an elementwise statement's operand has rows, across lanes along `index`: blocks of both are transposed in registers. None where rows are too short for that."""
        if not self.elementwise or access.write or self.recurrences:
            return None
        rows = (i for i, n in self.extents.items() if i != index and n >= LEAST_COLUMNS and access.stride(i) in (1, -1))
        return next(rows, None)

    def row_between(self, access: AccessModel, index: str) -> str | None:
        """The index that goes through all elements between those of neighbouring lanes along `index`: pixels with their channels last. Written out, what all lanes access lies side by side (codegen/llvm/memory/phases.py)."""
        gap = access.stride(index)
        # Of sums the rows of their terms, where results lie side by side.
        if self.is_update and (access.write or self._target.stride(index) != 1):
            return None
        if len(self.accesses) < 2 or self.recurrences or gap is None or not 1 < gap <= MOST_BETWEEN:
            return None
        return next((i for i, n in self.extents.items() if i != index and n == gap and access.stride(i) == 1), None)

    def _is_written_out(self, index: str) -> bool:
        """Whether a loop along short rows is written out inside of lanes along the index, so that there are no blocks of other rows."""
        return any(access.write and self.row_between(access, index) is not None for access in self.accesses)

    def _is_far(self, access: AccessModel, target: Target) -> bool:
        """Whether what a sum reads or writes with gaps is in no cache of a core."""
        size = prod(n for i, n in self.extents.items() if access.stride(i) != 0) * self.itemsize
        return self.is_update and size > target.l2_bytes

    def _access_cost(self, access: AccessModel, index: str, target: Target, *, contiguous: bool) -> float:
        lanes = target.lanes(self.itemsize)
        match access.lane_stride(index, lanes):
            case 0:
                cost = _BROADCAST
            case 1:
                cost = _CONTIGUOUS
            case -1:
                cost = _REVERSED
            case _ if contiguous:
                cost = _CONTIGUOUS
            case int(stride) if stride > 1 and access.touches_row(stride):
                cost = _CONTIGUOUS + shuffles(stride)
            case _ if self.row_between(access, index) is not None:
                cost = _CONTIGUOUS + shuffles(access.stride(index) or 0)
                if self.is_update or self.row_across(access, index) is not None:
                    cost = min(cost, _TRANSPOSED, float(lanes))
            case int(stride) if 1 < stride <= SHUFFLED and not access.write:
                cost = min(2.0 * stride - 1, float(lanes))
            case None if access.turns.get(index, lanes) < lanes and not access.write:
                cost = 2.0 * access.turns[index] - 1
            case _ if self.row_across(access, index) is not None and not self._is_written_out(index):
                cost = min(_TRANSPOSED, float(lanes))  # by blocks, too (codegen/passes/transposes/transpose_copies.py)
            case _ if any(access.stride(walked) in (1, -1) for walked in self.recurrences - {index}):
                cost = min(_TRANSPOSED, float(lanes))  # rows, by blocks (codegen/passes/transposes/transposes.py)
            case _:
                cost = float(lanes)
                if self._is_far(access, target):
                    cost *= _FAR
        if access.write:
            # An accumulator is read and written once for all updates of its element.
            cost = 2 * cost / (self._updates_per_element if self.is_update else 1)
        return cost
