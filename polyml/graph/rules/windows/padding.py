"""Sums over windows that reach beyond their operand, of whole numbers: they read a copy with zeros around it, over a box of indices.

Whole numbers have no infinity that a zero would make NaN of, so that a term that is left out is a term that is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript, map_reads, reads_of
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Tensor
from polyml.graph.rules.boxes import hull_extents, reach
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.shapes import is_known

__all__ = ["with_padding"]

_MOST = 4
"""A copy has at most so many times the elements."""


def with_padding(equation: Equation, tensors: dict[str, Tensor]) -> tuple[list[Equation], Equation] | None:
    """The copies and the sum over a box; None where something else than the ends of operands limits it.

    Args:
        equation: a sum of products of whole numbers. tensors: those of the graph, to which the copies are added.
    """
    extents = hull_extents(equation)
    reads = list(dict.fromkeys(reads_of(equation.body)))
    if extents is None or equation.base is not None or not all(_is_known(read, tensors) for read in reads):
        return None
    whole = box(equation.result.name, equation.indices, extents)
    ends = [
        f"0 <= {s.isl_text()} < {n.constant}"
        for read in reads
        for s, n in zip(read.subscripts, tensors[read.tensor].shape, strict=True)
        if isinstance(s, Affine)
    ]
    inside = isl.Set(f"{{ {equation.result.name}[{', '.join(equation.indices)}] : {' and '.join(ends)} }}")
    if not whole.intersect(inside).is_equal(equation.domain) or not _has_all(equation, whole):
        return None
    made: list[Equation] = []
    copies: dict[Read, Read] = {}
    for read in reads:
        reaches = [reach(s, extents) for s in read.subscripts if isinstance(s, Affine)]
        shape = [n.constant for n in tensors[read.tensor].shape]
        if all(low >= 0 and high < n for (low, high), n in zip(reaches, shape, strict=True)):
            continue
        places = [(min(low, 0), max(high, n - 1)) for (low, high), n in zip(reaches, shape, strict=True)]
        if prod(high - low + 1 for low, high in places) > _MOST * prod(shape):
            return None
        made.append(_copy(tensors[read.tensor], places, tensors))
        subscripts = (s - low for s, (low, _) in zip(read.subscripts, places, strict=True) if isinstance(s, Affine))
        copies[read] = Read(made[-1].result.name, tuple(subscripts), read.dtype)
    body = map_reads(equation.body, lambda read: copies.get(read, read))
    return made, replace(equation, domain=whole, body=body, instances=None)


def _is_known(read: Read, tensors: Mapping[str, Tensor]) -> bool:
    """Whether its places follow the indices in steps of numbers, in a tensor of known shape."""
    steps = [s.stride(name) if isinstance(s, Affine) else None for s in read.subscripts for name in _names(s)]
    return None not in steps and is_known(tensors[read.tensor].shape)


def _names(subscript: Subscript) -> tuple[str, ...]:
    return tuple(subscript.variables()) if isinstance(subscript, Affine) else ("",)


def _has_all(equation: Equation, whole: isl.Set) -> bool:
    """Whether elements without terms are zero, and not left as they are."""
    left = whole.project_out(isl.dim_type.set, len(equation.left), len(equation.reduced)).set_tuple_name(
        equation.result.name
    )
    return equation.instances is None or bool(left.is_subset(equation.instances))


def _copy(source: Tensor, places: list[tuple[int, int]], tensors: dict[str, Tensor]) -> Equation:
    """The tensor with these places in each dimension, zero where the source has none."""
    name = fresh_name(f"{source.name}_padded", tensors)
    shape = tuple(affine(high - low + 1) for low, high in places)
    tensor = tensors[name] = Tensor(name, source.dtype, shape, source.label)
    inner = tuple(affine(f"i{d}") + low for d, (low, _) in enumerate(places))
    value: Expr = Read(source.name, inner, source.dtype)
    for at, (low, high), n in zip(inner, places, source.shape, strict=True):
        for outside, op, end in ((low < 0, "ge", 0), (high >= n.constant, "lt", n.constant)):
            if outside:
                condition = Apply(op, (IndexValue(at, i64), Const(end, i64)), boolean)
                value = Apply("select", (condition, value, Const(0, source.dtype)), source.dtype)
    return fill(tensor, value, None)
