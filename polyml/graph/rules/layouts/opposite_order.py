"""Rows that the steps of a loop read backwards, beside others that they read forwards: one is copied in the opposite order once.

    for k in ..: s = sum[i, i < k](r[k - i - 1] * y[i])   becomes   r_back[i] = r[N - 1 - i]
                                                                    for k in ..: s = sum[i, i < k](r_back[N - k + i] * y[i])

Lanes along i read a vector of r and turn it around, which is a shuffle for each, in every step (Levinson's recursions, polynomials that are divided). The terms and their order are the same.

When: nothing in the loop changes the row, the lanes run along the index (that of the result's rows, or the only one of a sum), and all steps together read each element often. What does not change in loops further
out is copied ahead of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.expressions import Read, map_reads
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.boxes import most_values
from polyml.graph.traverse import UNKNOWN_EXTENT, all_ops, equation_reads, made_within, tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine

__all__ = ["copy_backwards"]

LEAST_USES = 8
"""Times that the steps of a loop read each element, at least: a copy turns each vector around once."""

LEAST_ELEMENTS = 64
"""That a step reads: fewer are a few vectors."""


def copy_backwards(graph: Graph) -> Graph:
    """The graph with such rows copied."""
    if not any(isinstance(op, Loop) for op in graph.ops):
        return graph
    tensors = tensors_of(graph)
    made: list[Op] = []
    for op in graph.ops:
        made += _loop(op, graph, tensors) if isinstance(op, Loop) else (op,)
    return graph if len(made) == len(graph.ops) else replace(graph, ops=tuple(made))


def _loop(loop: Loop, graph: Graph, tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    """The copies that steps of the loop read, and the loop; within it copies of what only loops in it do not change."""
    changing = made_within(loop)
    steps = _number(loop.stop - loop.start, graph) // loop.step
    copies: dict[str, Tensor] = {}
    for op in all_ops(loop.body):
        for name, count in _backwards(op).items() if isinstance(op, Equation) else ():
            row = tensors[name]
            length = _number(row.shape[0], graph)
            often = min(count, length) >= max(LEAST_ELEMENTS, -(-LEAST_USES * length // max(1, steps)))
            if often and name not in changing and name not in copies:
                copies[name] = Tensor(fresh_name(f"{name}_back", tensors), row.dtype, row.shape, row.label)
                tensors[copies[name].name] = copies[name]
    body = tuple(_reading(op, copies) for op in loop.body) if copies else loop.body
    inner = [made for op in body for made in (_loop(op, graph, tensors) if isinstance(op, Loop) else (op,))]
    if not copies and len(inner) == len(loop.body):
        return (loop,)
    ahead = (
        replace(fill(copy, Read(name, (copy.shape[0] - 1 - affine("i0"),), copy.dtype), loop.span), apart=True)
        for name, copy in copies.items()
    )
    return (*ahead, replace(loop, body=tuple(inner)))


def _number(extent: Affine, graph: Graph) -> int:
    """The extent, as in the call that asks for the kernel; what nobody knows counts as many."""
    known = extent.substitute({name: graph.examples.get(name, UNKNOWN_EXTENT) for name in graph.sizes})
    return known.constant if known.is_constant else UNKNOWN_EXTENT


def _reading(op: Op, copies: Mapping[str, Tensor]) -> Op:
    """The op where what reads the rows backwards reads their copies."""
    if isinstance(op, Loop):
        return replace(op, body=tuple(_reading(inner, copies) for inner in op.body))
    if not isinstance(op, Equation) or not copies.keys() & _backwards(op).keys():
        return op
    lanes = _lanes(op)

    def change(read: Read) -> Read:
        copy = copies.get(read.tensor)
        if copy is None or _step(read, lanes) != -1:
            return read
        (place,) = read.subscripts
        assert isinstance(place, Affine), "internal: a step along lanes"
        return Read(copy.name, (copy.shape[0] - 1 - place,), read.dtype)

    return replace(op, body=map_reads(op.body, change))


def _backwards(equation: Equation) -> dict[str, int]:
    """Names of the rows that the lanes read backwards, where they read something else forwards, and how many elements of each, at most."""
    lanes = _lanes(equation)
    if lanes is None:
        return {}
    reads = equation_reads(equation)
    back = [read.tensor for read in reads if len(read.subscripts) == 1 and _step(read, lanes) == -1]
    if not back or not any(_step(read, lanes) == 1 for read in reads):
        return {}
    count = most_values(equation, (lanes,))
    return dict.fromkeys(back, UNKNOWN_EXTENT if count is None else count)


def _lanes(equation: Equation) -> str | None:
    """The index that lanes run along: that of the result's rows, or the only one of a sum to a number."""
    if not equation.left:
        return equation.reduced[0] if len(equation.reduced) == 1 else None
    last, index = equation.target[-1] if equation.target else None, equation.left[-1]
    return index if isinstance(last, Affine) and last.stride(index) == 1 else None


def _step(read: Read, lanes: str | None) -> int:
    """How far apart neighbouring lanes read, in a row; 0 for what is no row of the index."""
    last = read.subscripts[-1] if read.subscripts else None
    if lanes is None or not isinstance(last, Affine):
        return 0
    others = any(isinstance(s, Affine) and lanes in s.variables() for s in read.subscripts[:-1])
    return 0 if others else last.stride(lanes) or 0
