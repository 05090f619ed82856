"""Counts, `sum[k](where(x[n, k] > t, 1, 0))`, are made in numbers as narrow as what is read and the count allow: of numbers that are written out they have 64 bits, of which a vector holds an eighth of what it holds of bytes.

    c[n] = sum[k](select(x[n, k] > t, 1, 0)), 64 bits    becomes    t[n] = sum[k](select(x[n, k] > t, 1, 0)), 16 or 32 bits;    c[n] = i64(t[n])

The range of the terms and how many there are say that nothing wraps. Narrower than what is read the count is no shorter: lanes are as many as the widest numbers allow. So the sum is made apart from the 64 bits that it becomes.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.dtypes import DType, i16, i32, u16
from polyml.expressions import Apply, IndexValue, Read, walk
from polyml.graph.edit import new_tensor, replace_equations, with_name
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.rules.numbers.short_numbers import Range, fits, in_type, range_of, widest_read
from polyml.graph.traverse import tensors_of
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["count_narrowly"]

_NARROW = (i16, u16, i32)
"""As which types sums are tried, the narrowest first."""


def count_narrowly(graph: Graph) -> Graph:
    """The graph with such sums in narrower types."""
    tensors = tensors_of(graph)
    ops = replace_equations(graph.ops, lambda equation: _narrowed(equation, tensors))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _narrowed(equation: Equation, tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    dtype = _type_of(equation)
    body = None if dtype is None else in_type(equation.body, {}, dtype)
    if dtype is None or body is None:
        return (equation,)
    wide, left = equation.result, equation.left
    short = new_tensor(replace(wide, dtype=dtype, label=f"{wide.name}_narrow"), tensors)
    extents = box_extents(equation)
    assert extents is not None, "internal: sums over boxes only"
    read = Read(short.name, tuple(map(affine, left)), dtype)
    widened = Equation(
        result=wide,
        indices=left,
        domain=box(wide.name, left, {name: extents[name] for name in left}),
        target=equation.target,
        body=Apply("cast", (read,), wide.dtype),
        span=equation.span,
    )
    return with_name(replace(equation, result=short, body=body, apart=True), short), widened


def _type_of(equation: Equation) -> DType | None:
    """The type that the sum is made in; None where it is another equation, or no narrower type has room."""
    counts = equation.reduce == "sum" and isinstance(equation.body, Apply) and equation.body.op in ("select", "cast")
    if not counts or equation.accumulate or equation.base is not None or equation.instances is not None:
        return None
    if equation.result.dtype.name not in ("i32", "i64", "u32", "u64") or not equation.is_plain:
        return None
    span, extents = range_of(equation.body, {}), box_extents(equation)
    if span is None or extents is None:
        return None
    total = _total(span, equation, extents)
    by_place = any(isinstance(expr, IndexValue) for expr in walk(equation.body))
    least = 8 if by_place else widest_read(equation.body)
    fitting = (d for d in _NARROW if least <= d.itemsize < equation.result.dtype.itemsize and fits(total, d))
    return next(fitting, None)


def _total(span: Range, equation: Equation, extents: dict[str, int]) -> Range:
    terms = 1
    for name in equation.reduced:
        terms *= extents[name]
    return min(0, span[0] * terms), max(0, span[1] * terms)
