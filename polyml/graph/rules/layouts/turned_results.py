"""Products of a large tensor that is contiguous along another index than the result, and has as many elements at least: the result changes its layout, not the operand.

    z[c, b, a] = sum[d](x[a, d, b] * y[c, d])   becomes   z_turned[c, a, b] = sum[d](x[a, d, b] * y[c, d]); z[c, b, a] = z_turned[c, a, b]

Lanes run along b then, so that x is read as it lies, and where d is longer than c fewer elements change places. The second statement follows a block of the first
(`turned` in schedule/blocking/plan.py), so that the intermediate tensor stays in L2. Of symbolic sizes the numbers of the call at hand decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod

from polyml.expressions import Apply, Read
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import symbolic_box
from polyml.graph.traverse import indices_of, tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["turn_results", "turned_order"]

LEAST_ROWS, SHORT = 2, 16
"""Bounds that a contraction must reach for its operand to be read where it lies, or from panels: rows and terms (FEWEST_USES in schedule/blocking/turned.py, MIN_DEPTH in schedule/blocking/worth.py)."""

FEW_ROWS, FAR = 8, 4
"""Rows below which the operand must take so many times what a core keeps close: read as the result's order has it, it comes from memory in short pieces, each from a page of its own. Zen 3, of the time in that order:
`afbce,df->edcba` with seven rows f64 0.36, five 0.45, f32 0.44, `aebd,ce->dcba` seven f64 0.5, five f32 0.26, `adb,cd->cba` two of 9 MB 0.46, five 0.36; six and seven of 0.8 to 1.7 MB 0.64 to 1.66."""

AGAIN = 4
"""How many times what a core keeps close the other operand may take: each block reads all of it again. 12.8 MB, which 350 blocks of seven columns met, took 1.38 s instead of 0.40."""


IDLE = 1.3
"""Lanes along the operand's rows for each in use, of those along the result's, at most. Zen 3, `afbce,df->edcba` with five values of e and 21 of a, of the time turned: f32 0.89, f64 0.77."""


def turn_results(graph: Graph, *, cache: int, vector_bytes: int) -> Graph:
    """The graph with such products computed in the operand's order; those in loops stay as they are.

    Args:
        cache: bytes that a core keeps close. vector_bytes: of a vector register.
    """
    tensors = tensors_of(graph)
    made: list[Op] = []
    for op in graph.ops:
        made += (isinstance(op, Equation) and _turned(op, graph, tensors, cache, vector_bytes)) or (op,)
    return graph if len(made) == len(graph.ops) else replace(graph, ops=tuple(made))


def _turned(
    equation: Equation, graph: Graph, tensors: dict[str, Tensor], cache: int, vector_bytes: int
) -> tuple[Op, ...]:
    """The product in the order that suits the operand, and what lays it out; nothing where the equation is to stay."""
    left = equation.left
    body = equation.body
    if equation.reduce != "sum" or not equation.reduced or equation.base is not None or equation.instances is not None:
        return ()
    if not equation.is_plain or len(left) < 3 or not isinstance(body, Apply) or body.op != "mul":
        return ()
    extents = symbolic_box(equation, graph, tensors)
    if (
        extents is None
        or not frozenset[str]().union(*(e.variables() for e in extents.values())) <= graph.examples.keys()
    ):
        return ()
    known = {i: e.evaluate(graph.examples) for i, e in extents.items()}
    # Blocks of a few rows are made of numbers alone (schedule/blocking/turned.py).
    least = FEW_ROWS if any(e.variables() for e in extents.values()) else LEAST_ROWS
    order = turned_order(equation, body, known, tensors, cache, vector_bytes, least=least)
    if order is None:
        return ()
    name = fresh_name(f"{equation.result.name}_turned", tensors)
    turned = Tensor(name, equation.result.dtype, tuple(extents[i] for i in order), equation.result.label)
    tensors[name] = turned
    indices = (*order, *equation.reduced)
    domain, target = box(name, indices, extents, graph.sizes), tuple(map(affine, order))
    product = replace(equation, result=turned, indices=indices, domain=domain, target=target)
    names = {index: f"i{k}" for k, index in enumerate(left)}
    back = Read(name, tuple(affine(names[index]) for index in order), turned.dtype)
    return product, fill(equation.result, back, equation.span)


def turned_order(
    equation: Equation,
    product: Apply,
    extents: Mapping[str, int],
    tensors: Mapping[str, Tensor],
    cache: int,
    vector_bytes: int,
    *,
    least: int = LEAST_ROWS,
    whole: bool = False,
) -> tuple[str, ...] | None:
    """The indices of the result in the order that suits the operand; None where it is to stay. least: rows; whole: of those below FEW_ROWS only such as fill a vector along the operand's last index, beside which another layout
    may be better: pieces that are shorter come from pages of their own (Zen 3, `afbce,df->edcba` f32, five rows, five and six values of e, 1.7 and 1.6 times the time of the operand's whole order)."""
    left = equation.left
    reads = [(read, names) for read in product.args if isinstance(read, Read) and (names := indices_of(read))]
    if len(reads) != 2 or not product.dtype.is_float:
        return None
    for (read, own), (_, other) in (reads, reads[::-1]):
        rows = [i for i in left if i not in own]
        columns = [i for i in own if i in left]
        size = prod(extents[i] for i in own)
        fewer = prod(extents[i] for i in left) <= size
        wide = own[-1] in left and own[-1] != left[-1] and left[-1] in own and rows
        apart = wide and set(rows) <= set(other) and not set(columns) & set(other)
        count = prod(extents[i] for i in rows)
        lanes = max(1, vector_bytes // tensors[read.tensor].dtype.itemsize)
        enough = FEW_ROWS if whole and extents[own[-1]] < lanes else least
        deep = count >= enough and prod(extents[i] for i in equation.reduced) >= SHORT
        far = size * tensors[read.tensor].dtype.itemsize > (cache if count >= FEW_ROWS else FAR * cache)
        # Each block of the operand meets all of the other one.
        again = prod(extents[i] for i in other) <= AGAIN * cache // tensors[read.tensor].dtype.itemsize
        full = _idle(extents[own[-1]], lanes) <= IDLE * _idle(extents[left[-1]], lanes)
        if apart and full and deep and fewer and again and far:
            between = [i for i in columns if i not in (left[-1], own[-1])]
            return (*between, *rows, left[-1], own[-1])
    return None


def _idle(row: int, lanes: int) -> float:
    """Lanes that are there for each that is used."""
    return ceil(row / lanes) * lanes / max(row, 1)
