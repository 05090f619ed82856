"""Results whose rows end in a few channels, of operands that lie in another way: a statement for each channel.

    y[h, w, c] = x[c, h, w] * m[h, w]      becomes      y[h, w, 0] = x[0, h, w] * m[h, w];  y[h, w, 1] = x[1, h, w] * m[h, w];  ...

Where all that is read lies like the result, both indices become one row (scop/joined_indices.py, rules/layouts/repeated_rows.py). Else lanes run along the pixels, and the channels of a vector of these are put between each other in registers (codegen/llvm/memory/phases.py); alone,
each channel would store one element after another, or have lanes of its own, of which there are three. Sums over the channels of a pixel, each of which is used a few times, are written out for the same reason. How many pixels there are need not be known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from polyml.expressions import Apply, Expr, IndexValue, Read, reads_of, substitute, walk
from polyml.graph.edit import with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.algebra.polynomials import multiplied_powers, power_by_index
from polyml.graph.rules.boxes import whole_box
from polyml.graph.rules.layouts.elements_apart import element_parts, row_gaps, spot
from polyml.graph.traverse import tensors_of
from polyml.ops import REDUCTIONS
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.turns import MOST_BETWEEN, shuffles

__all__ = ["part_channels"]

FEW = 4
"""Channels, at most."""

LEAST_WORK = 1 << 12
"""Elements of the result below which statements of their own cost more than they gain."""

LEAST_ROW = 16
"""Pixels of a row."""

MANY = 1 << 12
"""What sizes are taken for where nothing is known of them, or no more than one call of less work than that: the kernel is for all sizes, and large ones are where time goes."""

_TWO_SOURCES = 64
"""Bytes of vectors that come with shuffles of two registers in any order; shorter ones take twice as many."""

_HALVING = 1.5
"""Cycles of such a shuffle, with what waits for it; those within a register take one."""

_ROW, _TERM = 1.0, 0.5
"""Cycles of a pixel whose sums are lanes, and of one term of these."""

_EACH, _EACH_SHORT, _PIXEL = 0.35, 0.25, 1.5
"""Cycles of an instruction other than a shuffle, of one of a single pixel, and of that pixel's loop."""


def part_channels(graph: Graph, *, vector_bytes: int) -> Graph:
    """The graph with such equations in parts; those in loops stay as they are."""
    tensors = tensors_of(graph)
    ops = [_spelled(op, graph, tensors, vector_bytes) if isinstance(op, Equation) else op for op in graph.ops]
    summed = {op.result.name for op in ops if isinstance(op, Equation) and op.reduced}
    made: list[Op] = []
    for op in ops:
        inner = op.indices[-1:] if isinstance(op, Equation) else ()
        # What follows a contraction is done where its sums are.
        follows = isinstance(op, Equation) and any(
            read.tensor in summed and _moves(read, *inner) for read in reads_of(op.body) if inner
        )
        made += _parts(op, graph, tensors, vector_bytes) if isinstance(op, Equation) and not follows else [op]
    return with_ops(graph, made)


def _values(extents: Mapping[str, Affine], graph: Graph) -> dict[str, int]:
    """What sizes are taken for, where it is asked what pays."""
    known = {size: graph.examples.get(size, MANY) for size in graph.sizes}
    work = prod(extent.evaluate(known) for extent in extents.values())
    return known if work >= LEAST_WORK else dict.fromkeys(graph.sizes, MANY)


def _spelled(equation: Equation, graph: Graph, tensors: Mapping[str, Tensor], vector_bytes: int) -> Equation:
    """A sum (or extremum) over the channels of pixels, each of which is used a few times, with its terms written out: `y[i] = x[i, c] * x[i, c]` adds up three products."""
    op = REDUCTIONS[equation.reduce].combine if equation.reduce is not None else None
    plain = equation.base is None and equation.only_if is None and not equation.apart and not equation.padded
    if op not in ("add", "max", "min") or not plain or len(equation.reduced) != 1 or not equation.is_plain:
        return equation
    if equation.instances is not None or not equation.left:
        return equation
    whole = whole_box(equation, graph, tensors)
    if whole is None:
        return equation
    values = _values(whole, graph)
    extents = {index: extent.evaluate(values) for index, extent in whole.items()}
    (inner,) = equation.reduced
    few = len(equation.left) > 1 and whole[equation.left[-1]].is_constant and extents[equation.left[-1]] <= FEW
    along, count = equation.left[-2 if few else -1], extents[inner]
    uses = extents[equation.left[-1]] if few else 1
    if (
        not whole[inner].is_constant
        or not 1 < count <= FEW
        or extents[along] < LEAST_ROW
        or prod(extents.values()) < LEAST_WORK
    ):
        return equation
    moving = [read for read in reads_of(equation.body) if _moves(read, along)]
    if not moving or not all(_is_pixel(read, along, inner, tensors[read.tensor], count) for read in moving):
        return equation
    elements = (prod(extent.evaluate(values) for extent in tensors[read.tensor].shape) for read in moving)
    if any(prod(extents.values()) > uses * size for size in elements):
        return equation
    if few and not _is_less_than_rows(equation, uses, count, vector_bytes):
        return equation
    body = substitute(equation.body, {inner: 0})
    for number in range(1, count):
        body = Apply(op, (body, substitute(equation.body, {inner: number})), body.dtype)
    domain = box(equation.result.name, equation.left, whole, graph.sizes)
    return replace(equation, indices=equation.left, domain=domain, body=body, reduce=None, reduced=())


def _is_less_than_rows(equation: Equation, results: int, count: int, vector_bytes: int) -> bool:
    """Whether pixels of a few sums each take fewer cycles so than one after the other, with lanes along the sums."""
    apart = _shuffles((count, results), vector_bytes) + _EACH * (count + results * (count + 1))
    return apart < vector_bytes // equation.result.dtype.itemsize * (_ROW + _TERM * count)


def _shuffles(gaps: Iterable[int], vector_bytes: int) -> float:
    halving = _HALVING if vector_bytes >= _TWO_SOURCES else 2 * _HALVING
    return sum(gap * shuffles(gap, halving) for gap in gaps)


def _moves(read: Read, along: str) -> bool:
    return any(not isinstance(s, Affine) or along in s.variables() for s in read.subscripts)


def _is_pixel(read: Read, along: str, inner: str, tensor: Tensor, count: int) -> bool:
    """Whether the element is a channel of the pixel at that place of a row."""
    places = [s for s in read.subscripts if isinstance(s, Affine)]
    if len(places) < len(read.subscripts) or len(places) < 2:
        return False
    whole = places[-1] == affine(inner) and tensor.shape[-1] == affine(count)
    return whole and places[-2] == affine(along) and not any(inner in place.variables() for place in places[:-1])


def _parts(equation: Equation, graph: Graph, tensors: dict[str, Tensor], vector_bytes: int) -> Sequence[Op]:
    count = _channels(equation, graph, tensors, vector_bytes)
    if count is None:
        return [equation]
    inner = equation.indices[-1]
    return element_parts(equation, {inner: count}, tensors, lambda body, place: _at(body, inner, place[inner]))


def _at(body: Expr, inner: str, channel: int) -> Expr:
    made = substitute(body, {inner: channel})
    return multiplied_powers(made) if _has_powers(body, inner) else made


def _has_powers(body: Expr, inner: str) -> bool:
    """Whether channels are told apart by the powers that they take of something (Vandermonde's matrices): exponents that are numbers are multiplications."""
    return any(power_by_index(node, inner) for node in walk(body))


def _channels(equation: Equation, graph: Graph, tensors: dict[str, Tensor], vector_bytes: int) -> int | None:
    """How many channels an elementwise equation over pixels has; None where something else serves it."""
    if equation.reduce is not None or equation.base is not None or equation.only_if is not None or equation.apart:
        return None
    if len(equation.indices) < 2 or not equation.is_plain or not equation.result.shape[-1].is_constant:
        return None
    whole = whole_box(equation, graph, tensors)
    if whole is None:
        return None
    known = _values(whole, graph)
    extents = {index: extent.evaluate(known) for index, extent in whole.items()}
    along, inner = equation.indices[-2:]
    count = extents[inner]
    powers = _has_powers(equation.body, inner)
    most = MOST_BETWEEN if powers else FEW
    if not 1 < count <= most or prod(extents.values()) < LEAST_WORK or extents[along] < LEAST_ROW:
        return None
    reads = list(dict.fromkeys(reads_of(equation.body)))
    if isinstance(equation.body, Read) and _ends_elsewhere(equation.body, inner):
        return None
    values = (node.affine.variables() for node in walk(equation.body) if isinstance(node, IndexValue))
    alike = not any(variables & {along, inner} for variables in values)
    if alike and all(_lies_alike(r, along, inner, tensors[r.tensor], count) for r in reads):
        return None
    rows = row_gaps(reads, along, {inner: count}, tensors)
    if rows is not None and powers:
        return count
    return count if rows is not None and _is_less(equation, reads, rows, count, tensors, vector_bytes) else None


def _is_less(
    equation: Equation,
    reads: Sequence[Read],
    rows: Sequence[int],
    count: int,
    tensors: Mapping[str, Tensor],
    vector_bytes: int,
) -> bool:
    """Whether so many pixels take fewer cycles than one after the other, with lanes along the channels, where what is read has these side by side."""
    inner = equation.indices[-1]
    spots = [spot(read, tensors[read.tensor]) for read in reads]
    if any(at is None or at[1].stride(inner) not in (0, 1) for at in spots):
        return True
    if any(subscript.stride(inner) != 0 for at in spots if at is not None for subscript in at[0]):
        return True
    operations = len({node for node in walk(equation.body) if isinstance(node, Apply) and node.op != "cast"})
    lanes = vector_bytes // max(
        tensor.dtype.itemsize for tensor in (equation.result, *(tensors[r.tensor] for r in reads))
    )
    apart = _shuffles((*rows, count), vector_bytes) + _EACH * (sum(rows) + count * (operations + 1))
    return apart < lanes * (_PIXEL + _EACH_SHORT * (len(reads) + operations + 2))


def _ends_elsewhere(read: Read, inner: str) -> bool:
    """Whether a copy's source has the channels as a dimension of its own, but not as its last one: a transposition, which has blocks of its own."""
    names = [s.name if isinstance(s, Affine) else None for s in read.subscripts]
    return inner in names[:-1]


def _lies_alike(read: Read, along: str, inner: str, tensor: Tensor, count: int) -> bool:
    """Whether the element lies as the result's does, or is one for a row."""
    places = [s for s in read.subscripts if isinstance(s, Affine)]
    if len(places) < len(read.subscripts):
        return False
    if not any(place.variables() & {along, inner} for place in places):
        return True
    if len(places) < 2 or places[-1] != affine(inner) or tensor.shape[-1] != affine(count):
        return False
    return places[-2].stride(along) == 1 and inner not in places[-2].variables()
