"""Arithmetic on bytes that fits into 16 bits is done there: `u8((i32(x[i]) + i32(x[i + 1]) + 1) // 2)` computes numbers up to 511, of which a vector has twice as many.

Ranges follow from types, constants and how many terms a sum has; every value on the way must fit, so that nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.dtypes import DType, i16, u16
from polyml.expressions import Apply, Const, Expr, Read, map_reads, reads_of
from polyml.graph.edit import map_equations, map_expressions, protected_names, with_name
from polyml.graph.ir import Equation, Graph, Loop, Tensor
from polyml.graph.rules.boxes import most_values
from polyml.graph.traverse import all_ops, equation_reads

__all__ = ["Range", "fits", "in_type", "range_of", "shorten_numbers", "widest_read"]

Range = tuple[int, int]

_SHORT = (i16, u16)
"""As which numbers are tried; one expression is of one type."""

_WIDE = ("i32", "i64", "u32", "u64")


def shorten_numbers(graph: Graph) -> Graph:
    """The graph with such expressions, and such sums, in 16 bits."""
    shorter = _sums(graph)
    ranges = {tensor.name: span for tensor, span in shorter.values()}
    types = {tensor.name: tensor.dtype for tensor, _ in shorter.values()}

    def read(found: Read) -> Expr:
        if found.tensor not in shorter:
            return found
        return Apply("cast", (Read(found.tensor, found.subscripts, types[found.tensor]),), found.dtype)

    def change(equation: Equation) -> Equation:
        if equation.result.name in shorter:
            tensor, _ = shorter[equation.result.name]
            made = in_type(equation.body, {}, tensor.dtype)
            assert made is not None, "internal: a sum that does not fit"
            return with_name(replace(equation, body=made, result=tensor), tensor)
        if shorter:
            equation = map_expressions(equation, lambda expr: map_reads(expr, read))
        return map_expressions(equation, lambda expr: _shortened(expr, ranges))

    ops = map_equations(graph.ops, change)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _sums(graph: Graph) -> dict[str, tuple[Tensor, Range]]:
    """Sums of bytes that fit, as tensors of 16 bits with their ranges, where nothing but expressions sees them."""
    kept = protected_names(graph)
    for op in all_ops(graph.ops):
        kept |= {c.initial.name for c in op.carried} if isinstance(op, Loop) else set()
        if isinstance(op, Equation) and op.base is not None:
            kept |= {op.base.name, op.result.name}
    used = {r.tensor for op in all_ops(graph.ops) if isinstance(op, Equation) for r in equation_reads(op)}
    found: dict[str, tuple[Tensor, Range]] = {}
    for op in graph.ops:
        short = _short_sum(op) if isinstance(op, Equation) and op.result.name in used - kept else None
        if short is not None and isinstance(op, Equation):
            dtype, span = short
            found[op.result.name] = replace(op.result, dtype=dtype), span
    return found


def _short_sum(equation: Equation) -> tuple[DType, Range] | None:
    """The type and the values of a sum of bytes; None where it is another, or too large."""
    whole = equation.reduce == "sum" and not equation.accumulate and equation.only_if is None
    terms = most_values(equation, equation.reduced) if whole and equation.result.dtype.name in _WIDE else None
    span = None if terms is None else range_of(equation.body, {})
    if terms is None or span is None:
        return None
    total = min(0, span[0] * terms), max(0, span[1] * terms)
    least = widest_read(equation.body)
    fitting = (
        d for d in _SHORT if least <= d.itemsize and fits(total, d) and in_type(equation.body, {}, d) is not None
    )
    dtype = next(fitting, None)
    return None if dtype is None else (dtype, total)


def _shortened(expr: Expr, ranges: Mapping[str, Range]) -> Expr:
    """The expression with what ends in a byte, or a number of 16 bits, made of such."""
    if not isinstance(expr, Apply):
        return expr
    if expr.op == "cast" and expr.dtype.kind in "iu" and expr.dtype.itemsize <= i16.itemsize:
        (inner,) = expr.args
        if isinstance(inner, Apply) and inner.op != "cast" and inner.dtype.name in _WIDE:
            for dtype in _SHORT:
                made = in_type(inner, ranges, dtype)
                if made is not None:
                    return made if expr.dtype == dtype else Apply("cast", (made,), expr.dtype)
    return expr.with_args(_shortened(arg, ranges) for arg in expr.args)


def in_type(expr: Expr, ranges: Mapping[str, Range], dtype: DType) -> Expr | None:
    """The expression in a narrower type of whole numbers; None where a value on the way may not fit."""
    span = range_of(expr, ranges)
    if span is None or not fits(span, dtype):
        return None
    if isinstance(expr, Const):
        return Const(expr.value, dtype)
    if not isinstance(expr, Apply):
        return None
    if expr.op == "cast":
        (source,) = expr.args
        return source if source.dtype == dtype else Apply("cast", (source,), dtype)
    values = expr.args[1:] if expr.op == "select" else expr.args
    made = [in_type(value, ranges, dtype) for value in values]
    if any(value is None for value in made):
        return None
    first = (_shortened(expr.args[0], ranges),) if expr.op == "select" else ()
    return Apply(expr.op, (*first, *(value for value in made if value is not None)), dtype)


def widest_read(expr: Expr) -> int:
    """Bytes of the widest element that it reads, at least 1: lanes are no more than these allow."""
    return max((read.dtype.itemsize for read in reads_of(expr)), default=1)


def fits(span: Range, dtype: DType) -> bool:
    """Whether the type has all of these values."""
    limits = _of_type(dtype)
    return limits is not None and limits[0] <= span[0] and span[1] <= limits[1]


def _of_type(dtype: DType) -> Range | None:
    bits = 8 * dtype.itemsize
    if dtype.kind == "u":
        return 0, (1 << bits) - 1
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.kind == "i" else None


def range_of(expr: Expr, ranges: Mapping[str, Range]) -> Range | None:
    """The least and the greatest value of a whole number; None where that is not known from its parts, or its type does not have them all: a difference of unsigned numbers wraps."""
    match expr:
        case Const(value=value):
            found = (int(value), int(value)) if expr.dtype.kind in "iu" else None
        case Apply(op="cast", args=(Read(tensor=name),)) if name in ranges:
            found = ranges[name]
        case Apply(op="cast", args=(source,)):
            small = source.dtype.kind in "iu" and source.dtype.itemsize == 1
            found = (0, 1) if source.dtype.kind == "b" else _of_type(source.dtype) if small else None
        case Apply(op="popcount"):
            found = 0, expr.dtype.bits
        case Apply(op="select", args=(_, *values)) | Apply(args=(*values,)):
            spans = [range_of(value, ranges) for value in values]
            known = [span for span in spans if span is not None]
            found = _combined(expr, known) if len(known) == len(spans) else None
        case _:
            found = None
    return found if found is not None and fits(found, expr.dtype) else None


def _combined(expr: Apply, spans: list[Range]) -> Range | None:
    (a, b), (c, d) = spans[0], spans[-1]
    match expr.op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            products = (a * c, a * d, b * c, b * d)
            return min(products), max(products)
        case "neg":
            return -b, -a
        case "abs":
            return max(0, a, -b), max(-a, b)
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "select":
            return min(a, c), max(b, d)
        case "floordiv" if c == d and c > 0:
            return a // c, b // c
        case _:
            return None
