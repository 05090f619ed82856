"""Results whose rows are small matrices or vectors, one for each element of a batch: a statement for each element of a row, with the terms of small sums written out in their order.

    y[n, i, j] = sum_k A[n, i, k] * B[n, k, j]      becomes      y[n, 0, 0] = A[n, 0, 0] * B[n, 0, 0] + A[n, 0, 1] * B[n, 1, 0];  y[n, 0, 1] = ...

Lanes run along the batch then, and the rows of as many matrices as there are lanes are taken apart, and put together, in registers (codegen/llvm/memory/between.py). Lanes along a matrix's row would be two to four of eight or sixteen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import Apply, Expr, Read, map_reads, reads_of, substitute, variables_in, walk
from polyml.graph.edit import protected_names, with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import symbolic_box
from polyml.graph.rules.layouts.elements_apart import element_parts, every, row_gaps, spot
from polyml.graph.traverse import all_ops, estimated_bytes, read_names, tensors_of
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.turns import shuffles

__all__ = ["part_small_matrices"]

MOST_ELEMENTS = 9
"""Elements of a row of the result."""

MOST_TERMS = 9
"""Terms of a sum that is written out."""

MOST_FAR = 9
"""Elements of a row that is read, where operands are beyond caches: longer ones, of which each vector touches several lines, took up to 1.6 times as long as one row after the other."""

FAR = 4
"""How many times L2 operands take that are beyond caches."""

LEAST_BATCH = 64
"""Rows, where their number is known."""

_SHUFFLE, _EACH = 0.65, 0.25
"""Cycles of a shuffle of a vector, and of any other instruction."""

_ROW, _TERM, _LANE, _MASKED = 0.5, 0.5, 0.5, 1.0
"""Cycles of a row of a matrix whose elements are lanes, of each of its terms, of a row that is loaded for that or an element that is fetched alone, and of one under a mask."""


def part_small_matrices(graph: Graph, *, vector_bytes: int, l2_bytes: int = 0) -> Graph:
    """The graph with such equations in parts; those in loops stay as they are."""
    tensors = tensors_of(graph)
    parted: dict[str, tuple[Equation, Mapping[str, int]]] = {}
    for op in graph.ops:
        small = _small(op, graph, tensors) if isinstance(op, Equation) else None
        if small is not None and not small.is_far(l2_bytes) and small.pays(parted, vector_bytes):
            parted[small.equation.result.name] = small.without_sum(), small.inner
    if not parted:
        return graph
    within = _put_into_readers(graph, parted)
    made: list[Op] = []
    for op in graph.ops:
        name = op.result.name if isinstance(op, Equation) else None
        if name in parted:
            made += element_parts(*parted[name], tensors, substitute)
        elif name is None or name not in within:
            made.append(op)
    return with_ops(graph, made)


def _put_into_readers(graph: Graph, parted: dict[str, tuple[Equation, Mapping[str, int]]]) -> set[str]:
    """Takes out of `parted` what one elementwise equation of it alone reads, each element at its own place, and puts it there; the names taken out."""
    readers = Counter(name for op in all_ops(graph.ops) for name in read_names(op))
    kept = protected_names(graph)
    within = set[str]()
    for name, (equation, inner) in tuple(parted.items()):
        own = tuple(map(affine, equation.left))
        reads = Counter(reads_of(equation.body))
        for read, times in reads.items():
            alone = times == readers[read.tensor] == 1 and sum(r.tensor == read.tensor for r in reads) == 1
            if read.tensor not in parted or read.tensor in kept or not alone or read.subscripts != own:
                continue
            made, _ = parted[read.tensor]
            if made.result.dtype.is_half:  # rounded on its way
                continue
            del parted[read.tensor]
            within.add(read.tensor)
            value = substitute(made.body, dict(zip(made.left, own, strict=True)))
            equation = replace(equation, body=map_reads(equation.body, _exchange(read, value)))
        parted[name] = equation, inner
    return within


def _exchange(read: Read, value: Expr) -> Callable[[Read], Expr]:
    return lambda other: value if other == read else other


@dataclass(frozen=True, slots=True)
class _Small:
    """An equation over a batch.

    along: the index of the batch that lanes run along. inner: the last indices of the left side, with their extents. summed: those of the sum. gaps: of the rows that are read (rules/layouts/elements_apart.py).
    """

    equation: Equation
    along: str
    inner: Mapping[str, int]
    summed: Mapping[str, int]
    gaps: Sequence[int]
    tensors: Mapping[str, Tensor]

    @property
    def terms(self) -> int:
        return prod(self.summed.values())

    def is_far(self, l2_bytes: int) -> bool:
        """Whether operands have long rows, and come from beyond caches."""
        names = dict.fromkeys(read.tensor for read in reads_of(self.equation.body))
        far = sum(estimated_bytes(self.tensors[name]) for name in names) > FAR * l2_bytes > 0
        return far and max(self.gaps, default=0) > MOST_FAR

    def without_sum(self) -> Equation:
        """The equation with its terms written out, in their order."""
        equation = self.equation
        if equation.reduce is None:
            return equation
        combine = REDUCTIONS[equation.reduce].combine
        assert combine is not None, "internal: a sum that no operation adds up"
        body, *more = [substitute(equation.body, values) for values in every(self.summed)]
        for term in more:
            body = Apply(combine, (body, term), body.dtype)
        left = equation.left
        domain = equation.domain.project_out(isl.dim_type.set, len(left), len(equation.reduced))
        domain = domain.set_tuple_name(equation.result.name)
        return replace(equation, indices=left, domain=domain, body=body, reduce=None, reduced=())

    def pays(self, parted: Container[str], vector_bytes: int) -> bool:
        """Whether a vector of rows takes fewer cycles so than one row after the other. Elementwise equations follow what they read."""
        reads = list(dict.fromkeys(reads_of(self.equation.body)))
        if self.equation.reduce is None and any(read.tensor in parted for read in reads):
            return True
        one_index = len(self.inner) == 1  # rules/layouts/channels_apart.py
        if self.equation.reduce is None and (one_index or all(self._lies_alike(read) for read in reads)):
            return False
        own = [read for read in reads if variables_in(read.subscripts) & {self.along, *self.inner}]
        if own and all(map(self._ends_alike, own)):
            return False
        elements = prod(self.inner.values())
        rows = (*self.gaps, elements)
        operations = len({n for n in walk(self.equation.body) if isinstance(n, Apply) and n.op != "cast"})
        work = elements * self.terms * max(operations, 1)
        apart = _SHUFFLE * sum(gap * shuffles(gap) for gap in rows) + _EACH * (sum(rows) + work + self._shared(reads))
        sizes = [tensor.dtype.itemsize for tensor in (self.equation.result, *(self.tensors[r.tensor] for r in reads))]
        return apart < vector_bytes // max(sizes) * self._row_by_row(reads)

    def _shared(self, reads: Sequence[Read]) -> int:
        """Elements that are the same for all of the batch."""
        extents = {**self.inner, **self.summed}
        places = [_in_row(read, self.tensors[read.tensor])[1] for read in reads]
        return sum(
            prod(extent for index, extent in extents.items() if place.stride(index))
            for place in places
            if not place.stride(self.along)
        )

    def _row_by_row(self, reads: Sequence[Read]) -> float:
        """Cycles of one row of the batch with lanes along its last dimension."""
        *outer, last = self.inner
        width, rows = self.inner[last], prod(self.inner[index] for index in outer)
        each, once = _ROW + _TERM * self.terms, 0.0
        for read in reads:
            _, place = _in_row(read, self.tensors[read.tensor])
            if not place.stride(self.along) or not place.stride(last):
                continue
            if place.stride(last) == 1:
                each += self.terms * (_LANE if width & (width - 1) == 0 else _MASKED)
            elif any(place.stride(index) for index in outer):
                each += self.terms * _LANE * width
            else:
                once += self.terms * _LANE * width
        return each * rows + once

    def _lies_alike(self, read: Read) -> bool:
        """Whether the element lies as the result's does, or is one for all of a row."""
        tensor, equation = self.tensors[read.tensor], self.equation
        outer, place = _in_row(read, tensor)
        rows, own = _in_row(Read("", equation.target, tensor.dtype), equation.result)
        moved = [part.stride(index) for part in (*outer, place) for index in self.inner]
        alike = outer == rows and all(place.stride(index) == own.stride(index) for index in equation.left)
        return not any(moved) or alike

    def _ends_alike(self, read: Read) -> bool:
        """Whether rows of the batch follow each other as the result's do, whatever is summed over (scop/joined_indices.py)."""
        row = (self.along, *self.inner)
        ends = tuple(map(affine, row))
        if read.subscripts[-len(row) :] != ends or not variables_in(read.subscripts[: -len(row)]).isdisjoint(row):
            return False
        tensor, result = self.tensors[read.tensor], self.equation.result
        return (
            self.equation.target[-len(row) :] == ends and tensor.shape[1 - len(row) :] == result.shape[1 - len(row) :]
        )


def _small(equation: Equation, graph: Graph, tensors: Mapping[str, Tensor]) -> _Small | None:
    """The equation's batch and rows; None where it has none, or something else serves it."""
    if equation.base is not None or equation.only_if is not None or equation.apart or equation.padded:
        return None
    if equation.instances is not None or not equation.is_plain or len(equation.left) < 2:
        return None
    if equation.reduce is not None and (
        REDUCTIONS[equation.reduce].combine not in ("add", "max", "min") or equation.result.dtype.is_half
    ):
        return None
    extents = symbolic_box(equation, graph, tensors)
    if extents is None or equation.result.dtype.is_complex:
        return None
    inner: dict[str, int] = {}
    for index in reversed(equation.left[1:]):
        extent = extents[index]
        if not extent.is_constant or extent.constant * prod(inner.values()) > MOST_ELEMENTS:
            break
        inner = {index: extent.constant, **inner}
    if prod(inner.values()) < 2:
        return None
    along = equation.left[len(equation.left) - len(inner) - 1]
    if extents[along].is_constant and extents[along].constant < LEAST_BATCH:
        return None
    if not all(extents[index].is_constant for index in equation.reduced):
        return None
    summed = {index: extents[index].constant for index in equation.reduced}
    if not 0 < prod(summed.values()) <= MOST_TERMS:
        return None
    reads = list(reads_of(equation.body))
    if not any(_moves(read, along, tensors) for read in reads):
        return None
    gaps = row_gaps(reads, along, {**inner, **summed}, tensors)
    return None if gaps is None else _Small(equation, along, inner, summed, gaps, tensors)


def _place(read: Read, tensor: Tensor) -> Affine | None:
    """The element, counted from the tensor's first one; None where it is gathered, or strides are no numbers."""
    found = spot(read, tensor)
    return None if found is None or found[0] else found[1]


def _in_row(read: Read, tensor: Tensor) -> tuple[tuple[Affine, ...], Affine]:
    """The subscripts that say the row, and the element in it, of an array that `row_gaps` has looked at: what lies between such rows is no number."""
    found = spot(read, tensor)
    assert found is not None, "internal: rows of elements that are gathered"
    return found


def _moves(read: Read, along: str, tensors: Mapping[str, Tensor]) -> bool:
    place = _place(read, tensors[read.tensor])
    return place is not None and place.stride(along) != 0
