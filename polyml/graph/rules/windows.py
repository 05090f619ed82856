"""Windows as a tensor of their own: `sum[c, r, s](x[c, 2*p + r, 2*q + s] * w[o, c, r, s])` becomes a product of `v[c, r, s, p, q] = x[c, 2*p + r, 2*q + s]` and w.

A contraction of two operands with plain subscripts runs in register tiles from packed panels (schedule/blocking.py), whatever its extents; windows with padding have ragged
rows, and strided ones need single elements. Unfolding costs about as much as a few multiplications per element, so it pays where the other operand uses each element many times.

Source: Chellapilla, Puri and Simard, "High performance convolutional neural networks for document processing" (2006), on unfolding.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import islpy as isl

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, reads_of
from polyml.graph.edit import fresh_name
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box, hull_extents
from polyml.graph.traverse import tensors_of
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["unfold_windows"]

USES = 96
"""Times that an element of a window must be used to pay for the copy, where its rows are contiguous."""

STRIDED_USES = 16
"""The same where the rows have gaps, which lanes would gather."""

DEPTH = 16
"""Terms of a sum, at least."""

LEAST_WORK = 1 << 20
"""Products below which it does not matter."""

GROWTH = 16
"""Elements of the windows per element of their source, at most."""


@dataclass(frozen=True, slots=True)
class _Window:
    """What reads windows (zero where that is padding), the other factor, and the indices that the first depends on, the reduced ones first."""

    factor: Expr
    other: Read
    indices: tuple[str, ...]
    extents: dict[str, int]


def unfold_windows(graph: Graph) -> Graph:
    """The graph with such windows as tensors; sums in loops stay as they are."""
    tensors = tensors_of(graph)
    made: list[Op] = []
    for op in graph.ops:
        window = _window(op, tensors) if isinstance(op, Equation) else None
        if window is None or not isinstance(op, Equation):
            made.append(op)
            continue
        shape = tuple(affine(window.extents[index]) for index in window.indices)
        label = next(iter(reads_of(window.factor))).tensor
        name = fresh_name(f"{label}_windows", tensors)
        result = tensors[name] = Tensor(name, op.result.dtype, shape, name)
        places = tuple(affine(index) for index in window.indices)
        domain = box(name, window.indices, window.extents)
        made.append(
            Equation(
                result=result,
                indices=window.indices,
                domain=domain,
                target=places,
                body=window.factor,
                span=op.span,
                apart=True,
            )
        )
        body = Apply("mul", (Read(name, places, result.dtype), window.other), op.body.dtype)
        whole = box(op.result.name, op.indices, window.extents)
        made.append(replace(op, body=body, domain=whole, padded=False))
    return graph if len(made) == len(graph.ops) else replace(graph, ops=tuple(made))


def _window(equation: Equation, tensors: dict[str, Tensor]) -> _Window | None:
    left = equation.indices[: len(equation.indices) - len(equation.reduced)]
    plain = equation.target == tuple(map(affine, left)) and equation.base is None and equation.instances is None
    body = equation.body
    if equation.reduce != "sum" or not equation.reduced or not plain or not isinstance(body, Apply) or body.op != "mul":
        return None
    if not body.dtype.is_float or len(body.args) != 2:
        return None
    for window, other in (body.args, body.args[::-1]):
        if not isinstance(window, Read) or not isinstance(other, Read) or _is_plain(window) or not _is_plain(other):
            continue
        if all(isinstance(s, Affine) for s in window.subscripts):
            return _paying(equation, left, window, other, tensors)
    return None


def _is_plain(read: Read) -> bool:
    names = [s.name if isinstance(s, Affine) else None for s in read.subscripts]
    return None not in names and len(set(names)) == len(names)


def _paying(
    equation: Equation, left: tuple[str, ...], read: Read, other: Read, tensors: dict[str, Tensor]
) -> _Window | None:
    extents = hull_extents(equation)
    shape = tensors[read.tensor].shape
    if extents is None or not all(extent.is_constant for extent in shape):
        return None
    places = [s for s in read.subscripts if isinstance(s, Affine)]
    used = {name for place in places for name in place.variables()}
    weights = {s.name for s in other.subscripts if isinstance(s, Affine)}
    inside = tuple(index for index in (*equation.reduced, *left) if index in used)
    if not used <= set(equation.indices) or not set(equation.reduced) <= used & weights or left[-1] not in used:
        return None
    uses = prod(extents[index] for index in left if index not in used)
    pays = (
        uses >= (USES if places[-1].stride(left[-1]) == 1 else STRIDED_USES)
        and prod(extents[index] for index in equation.reduced) >= DEPTH
        and prod(extents.values()) >= LEAST_WORK
        and prod(extents[index] for index in inside) <= GROWTH * prod(extent.constant for extent in shape)
        and not set(left) & weights & used
    )
    factor = _padded(equation, read, extents, [extent.constant for extent in shape]) if pays else None
    return None if factor is None else _Window(factor, other, inside, extents)


def _padded(equation: Equation, read: Read, extents: dict[str, int], shape: list[int]) -> Expr | None:
    """The element, zero outside its tensor where the equation allows that; None where other terms are left out than those."""
    whole = box(equation.result.name, equation.indices, extents)
    if equation.domain.is_equal(whole):
        return read
    conditions: list[Expr] = []
    texts: list[str] = []
    for place, extent in zip(read.subscripts, shape, strict=True):
        assert isinstance(place, Affine), "internal: a window with a computed subscript"
        if place.name is None:
            value = IndexValue(place, i64)
            conditions.append(Apply("ge", (value, Const(0, i64)), boolean))
            conditions.append(Apply("lt", (value, Const(extent, i64)), boolean))
            texts.append(f"0 <= {place.isl_text()} < {extent}")
    where = " and ".join(texts)
    within = isl.Set(f"{{ {equation.result.name}[{', '.join(equation.indices)}] : {where} }}")
    if not equation.padded or not equation.domain.is_equal(whole.intersect(within)):
        return None
    condition = conditions[0]
    for part in conditions[1:]:
        condition = Apply("and", (condition, part), boolean)
    return Apply("select", (condition, read, Const(0.0, read.dtype)), read.dtype)
