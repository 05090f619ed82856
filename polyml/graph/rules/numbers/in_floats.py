"""Sums of products of bytes that f32 holds exactly are made there: whatever arranges windows and operands for multiply-adds does so for floats.

    y[o, p] = sum[c, r](i32(x[c, 2*p + r]) * i32(w[o, c, r]))    becomes    s[o, p] = sum[c, r](f32(x[c, 2*p + r]) * f32(w[o, c, r]));    y[o, p] = i32(s[o, p])

All partial sums are whole numbers of up to 24 bits, in any order, so nothing is rounded. Both operands are used so often that a pass over each converts it ahead (rules/reuse/ahead.py), and sums that an instruction adds several products of
at once have become others before (rules/numbers/pairs.py). None of the terms is infinite: what windows read beside their tensor may be zeros.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.dtypes import f32
from polyml.expressions import Apply, Read
from polyml.graph.edit import new_tensor, replace_equations, with_name
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import hull_extents
from polyml.graph.rules.numbers.short_numbers import range_of
from polyml.graph.rules.reuse.ahead import USES_SHORT
from polyml.graph.traverse import tensors_of
from polyml.sets.affine import affine
from polyml.sets.boxes import box
from polyml.sets.shapes import element_count, is_known

__all__ = ["sum_in_floats"]

EXACT = 1 << 24
"""Up to here f32 has all whole numbers."""


def sum_in_floats(graph: Graph) -> Graph:
    """The graph with such sums in f32."""
    tensors = tensors_of(graph)
    ops = replace_equations(graph.ops, lambda equation: _in_floats(equation, tensors))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _in_floats(equation: Equation, tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    extents = hull_extents(equation) if _is_sum(equation) else None
    body = None if extents is None else _exact_product(equation, extents, tensors)
    if extents is None or body is None:
        return (equation,)
    whole, left = equation.result, equation.left
    floats = new_tensor(replace(whole, dtype=f32, label=f"{whole.name}_floats"), tensors)
    converted = Equation(
        result=whole,
        indices=left,
        domain=box(whole.name, left, {name: extents[name] for name in left}),
        target=equation.target,
        body=Apply("cast", (Read(floats.name, tuple(map(affine, left)), f32),), whole.dtype),
        span=equation.span,
    )
    return with_name(replace(equation, result=floats, body=body, padded=True), floats), converted


def _is_sum(equation: Equation) -> bool:
    """Whether all of a tensor is a sum, of whole numbers."""
    alone = (
        not equation.accumulate and equation.base is None and equation.instances is None and equation.only_if is None
    )
    return equation.reduce == "sum" and alone and equation.is_plain and equation.result.dtype.name in ("i32", "i64")


def _exact_product(equation: Equation, extents: dict[str, int], tensors: dict[str, Tensor]) -> Apply | None:
    """The product of two bytes in f32; None where it is another body, sums may be too large, or an operand is used seldom."""
    body = equation.body
    if not (isinstance(body, Apply) and body.op == "mul"):
        return None
    reads = [factor.args[0] for factor in body.args if isinstance(factor, Apply) and factor.op == "cast"]
    span, instances = range_of(body, {}), prod(extents.values())
    terms = prod(extents[index] for index in equation.reduced)
    if len(reads) < 2 or span is None or max(-span[0], span[1]) * terms > EXACT:
        return None
    for read in reads:
        shape = tensors[read.tensor].shape if isinstance(read, Read) else None
        if shape is None or not is_known(shape) or element_count(shape) * USES_SHORT > instances:
            return None
    return Apply("mul", tuple(Apply("cast", (read,), f32) for read in reads), f32)
