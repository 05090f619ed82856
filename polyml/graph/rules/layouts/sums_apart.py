"""Products of few rows times a large matrix whose rows, and those of the result, lie a multiple of a page apart: sums are made in a tensor of their own, and copied when all are finished.

    z[n, m] = sum[k](x[n, k] * w[k, m])   becomes   z_sums[n, m] = sum[k](x[n, k] * w[k, m]); z[n, m] = z_sums[n, m]

w is read from end to end, a few of its rows side by side, and added to sums in L2 (schedule/blocking/in_order.py). Elements of all these rows and of all sums of a column would be in one set of L1, and loads of w wait for
stores to other addresses with the same place in a page. Rows of z_sums need not be a page apart: the schedule gives it some bytes more in each (schedule/blocking/copies.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.expressions import Apply, Read
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.traverse import indices_of, tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["sum_apart"]

PAGE, LINE = 4096, 64
"""Bytes of a page, within which an address selects the set of L1, and of a cache line."""

FEWEST, MOST = 4, 8
"""Rows for which this pays: fewer leave L1 room for all lines that meet, and more, of x, would meet there themselves. Zen 3, f32, ms, without and with: 3, 4, 5, 6, 8, 12 rows times 4096 x 4096 2.5, 3.7, 5.7, 5.9, 9.3, 8.8; 2.4 to 3.2, 2.8, 3.3, 3.9, 6.5, 16.4."""


def sum_apart(graph: Graph, *, cache: int, vector_bytes: int) -> Graph:
    """The graph with such sums in tensors of their own, where a vector is half a line at most: longer ones use whole lines at once.

    Args:
        cache: bytes that a core keeps close.
    """
    if 2 * vector_bytes > LINE:
        return graph
    tensors, outputs = tensors_of(graph), {tensor.name for tensor in graph.outputs}
    made: list[Op] = []
    for op in graph.ops:
        made += (isinstance(op, Equation) and op.result.name in outputs and _apart(op, graph, tensors, cache)) or (op,)
    return graph if len(made) == len(graph.ops) else replace(graph, ops=tuple(made))


def _apart(equation: Equation, graph: Graph, tensors: dict[str, Tensor], cache: int) -> tuple[Op, ...]:
    """The sums and what copies them; nothing where the equation is to stay."""
    left, body = equation.left, equation.body
    if equation.reduce != "sum" or len(equation.reduced) != 1 or len(left) != 2 or equation.base is not None:
        return ()
    if not equation.is_plain or equation.instances is not None or not isinstance(body, Apply) or body.op != "mul":
        return ()
    extents = box_extents(equation)
    if extents is None or not FEWEST <= extents[left[0]] <= MOST:
        return ()
    row = extents[left[1]] * equation.result.dtype.itemsize
    matrices = [
        read for read in body.args if isinstance(read, Read) and indices_of(read) == (equation.reduced[0], left[1])
    ]
    if row % PAGE or len(body.args) != 2 or len(matrices) != 1:
        return ()
    (matrix,) = matrices
    same = matrix.dtype == equation.result.dtype and matrix.dtype.is_float
    if not same or prod(extents[i] for i in (*equation.reduced, left[1])) * matrix.dtype.itemsize <= cache:
        return ()
    name = fresh_name(f"{equation.result.name}_sums", tensors)
    sums = Tensor(name, equation.result.dtype, equation.result.shape, equation.result.label)
    tensors[name] = sums
    domain = box(name, equation.indices, {i: affine(n) for i, n in extents.items()}, graph.sizes)
    copy = fill(equation.result, Read(name, (affine("i0"), affine("i1")), sums.dtype), equation.span)
    return replace(equation, result=sums, domain=domain), copy
