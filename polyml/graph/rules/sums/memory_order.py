"""Sums over a large operand whose elements each are used once: sums that lie as the operand does, with its innermost indices left to a second, small sum.

    y[e, f] = sum[g, c, d](s[c, f, d] * x[g, c, f, e, d])   ->   t[f, e, d] = sum[g, c](s[c, f, d] * x[g, c, f, e, d]);  y[e, f] = sum[d](t[f, e, d])

Such a sum takes as long as x takes to come from memory, if that is read in its order. Lanes run along its rows then, of which d alone would be too short, and a row's sums are added to in L1 (schedule/strategy/sums_in_order.py).
Factors that know none of the first sum's indices are left to the second one, and small ones lie in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from polyml.expressions import Expr, Read, factors_of, map_reads, product_of, reads_of, substitute
from polyml.graph.builder.parts import fill, variables_of
from polyml.graph.edit import with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.traverse import indices_of, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["sum_in_memory_order"]

LEAST_ROW, LEAST_AT_HAND = 8, 4
"""Vectors of a row of sums, at least: of one that is added to, and of one that stays in registers for all terms."""

AT_HAND, FAR_AT_HAND = 16, 4
"""Vectors of a row of sums that are as well in registers, several tiles of them one after the other: of operands that the last level of caches holds from call to call, and of those that come from memory."""

IDLE = 4
"""As many times more lanes than a row has elements would be idle for the most part."""

LONG_RUN, FAR_RUN = 192, 1 << 14
"""Bytes along the innermost summed indices from which on lanes along them read long enough pieces, likewise."""

LAST_LEVEL = 16
"""That level holds so many times what a core keeps close."""

MANY = 2
"""Operands so many times as large as L2 wait for what is further away: smaller ones are read in pieces as fast."""

LEAST_TERMS = 16
"""Terms of each of the first sums, at least: the second one's work is small beside them."""

KINDS = frozenset({"sum", "min", "max"})
"""Reductions that may be taken apart."""


def sum_in_memory_order(graph: Graph, *, cache: int, vector_bytes: int, orders: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph with such sums in two equations, or one whose result lies as the operand does and a copy. Other sums over such operands go through their summed indices in the order of memory.

    Args:
        cache: bytes that a core keeps close. orders: of inputs that lie in memory otherwise than their dimensions say, these in the order of memory, none where no elements lie side by side.
    """
    work = _Work(tensors_of(graph), graph.sizes, cache, vector_bytes, orders)
    ops: list[Op] = []
    for op in graph.ops:
        ops += _in_order(op, work) if isinstance(op, Equation) else (op,)
    return with_ops(graph, ops)


@dataclass(frozen=True, slots=True)
class _Work:
    tensors: dict[str, Tensor]
    sizes: tuple[str, ...]
    cache: int
    vector_bytes: int
    orders: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """An equation, its indices' extents and, in the order of the operand's memory, all of them, those that the first sum keeps and those that it reduces. start: of a row."""

    equation: Equation
    extents: Mapping[str, int]
    order: tuple[str, ...]
    kept: tuple[str, ...]
    terms: tuple[str, ...]
    start: int


def _in_order(equation: Equation, work: _Work) -> tuple[Op, ...]:
    """What the equation becomes: two sums, or its own with the summed indices in the operand's order; itself where it waits for no operand."""
    dtype = equation.result.dtype
    if equation.reduce not in KINDS or not equation.is_plain or equation.accumulate:
        return (equation,)
    if equation.base is not None or equation.instances is not None or equation.padded or equation.only_if is not None:
        return (equation,)
    if not (dtype.is_float or dtype.is_integer) or dtype.is_half:
        return (equation,)
    extents = box_extents(equation)
    order = None if extents is None else _operand_order(equation, extents, work)
    if extents is None or order is None:
        return (equation,)
    start = _row(equation, order, extents, work)
    if start is not None:
        kept = tuple(i for k, i in enumerate(order) if k >= start or i in equation.left)
        terms = tuple(i for i in order if i not in kept)
        # Sums of another value of what is outermost have nothing to wait for.
        inner = order[order.index(terms[0]) :] if terms else order
        near = 2 * prod(extents[i] for i in kept if i in inner) * dtype.itemsize <= work.cache
        if kept != equation.left and prod(extents[i] for i in terms) >= LEAST_TERMS and near:
            return _apart(_Plan(equation, extents, order, kept, terms, start), work)
    reduced = tuple(i for i in order if i in equation.reduced)
    if reduced == equation.reduced or not _is_far(equation, extents, work):
        return (equation,)
    indices = (*equation.left, *reduced)
    domain = box(equation.result.name, indices, extents, work.sizes)
    return (replace(equation, indices=indices, reduced=reduced, domain=domain),)


def _operand_order(equation: Equation, extents: Mapping[str, int], work: _Work) -> tuple[str, ...] | None:
    """The indices in the order of the large operand that has all of them, or of several that lie alike, next to which others are small; None where there is none."""
    found = {read: indices_of(read) for read in reads_of(equation.body)}
    large = [read for read, own in found.items() if len(own) == len(equation.indices)]
    if any(read.subscripts and not own for read, own in found.items()):
        return None
    sizes = {read: prod(extents[i] for i in own) * read.dtype.itemsize for read, own in found.items()}
    if any(2 * n > work.cache for read, n in sizes.items() if read not in large):
        return None
    orders = {_in_memory(read, found[read], work) for read in large}
    if len(orders) != 1 or min(sizes[read] for read in large) <= MANY * work.cache:
        return None
    return orders.pop() or None


def _in_memory(read: Read, own: tuple[str, ...], work: _Work) -> tuple[str, ...]:
    """The read's indices in the order of memory."""
    order = work.orders.get(read.tensor)
    return own if order is None else tuple(own[d] for d in order)


def _row(equation: Equation, order: tuple[str, ...], extents: Mapping[str, int], work: _Work) -> int | None:
    """Where in the operand's order the rows of sums begin that terms are added to, right behind one of the terms' indices; None where lanes along the sum, or short rows in registers, do as well."""
    reduced, lanes = set(equation.reduced), work.vector_bytes // equation.result.dtype.itemsize
    run = len(order)
    while run and order[run - 1] in reduced:
        run -= 1
    far = _is_far(equation, extents, work)
    length = prod(extents[i] for i in order[run:]) * _operand_item(equation)
    if not run or length >= (FAR_RUN if far else LONG_RUN):
        return None
    free = run
    while free and order[free - 1] not in reduced:
        free -= 1
    row = prod(extents[i] for i in order[free:])
    if run == len(order) and lanes <= IDLE * row and row <= (FAR_AT_HAND if far else AT_HAND) * lanes:
        return None
    # The shortest row that is long enough, of whole dimensions.
    first = next(k for k, i in enumerate(order) if i in reduced)
    for start in range(len(order) - 1, 0, -1):
        at_hand = reduced.issuperset(order[first:start])
        least = (LEAST_AT_HAND if at_hand else LEAST_ROW) * lanes
        if order[start - 1] in reduced and prod(extents[i] for i in order[start:]) >= least:
            return start
    return None


def _is_far(equation: Equation, extents: Mapping[str, int], work: _Work) -> bool:
    """Whether the last level of caches does not hold the operand from call to call."""
    return prod(extents.values()) * _operand_item(equation) > LAST_LEVEL * work.cache


def _operand_item(equation: Equation) -> int:
    """Bytes of an element of the large operand, which may be narrower than the sums."""
    large = (read for read in reads_of(equation.body) if len(indices_of(read)) == len(equation.indices))
    return max(read.dtype.itemsize for read in large)


def _apart(plan: _Plan, work: _Work) -> tuple[Op, ...]:
    """The first sum, copies of small operands that do not lie in its order, and what makes the result."""
    equation, extents = plan.equation, plan.extents
    kind, dtype = equation.reduce, equation.body.dtype
    factors = factors_of(equation.body) if kind == "sum" else (equation.body,)
    terms = set(plan.terms)
    inside = [f for f in factors if variables_of(f) & terms]
    outside = [f for f in factors if not variables_of(f) & terms]
    name = fresh_name(f"{equation.result.name}_rows", work.tensors)
    rows = Tensor(name, dtype, tuple(affine(extents[i]) for i in plan.kept), equation.result.label)
    work.tensors[name] = rows
    copies: dict[Read, tuple[Op, Read]] = {}
    body = _laid_out(product_of(inside) if kind == "sum" else equation.body, plan, copies, work)
    indices = (*plan.kept, *plan.terms)
    first = replace(
        equation,
        result=rows,
        indices=indices,
        domain=box(name, indices, {i: affine(extents[i]) for i in indices}, work.sizes),
        target=tuple(map(affine, plan.kept)),
        body=body,
        reduced=plan.terms,
        apart=True,
    )
    read: Expr = Read(name, tuple(map(affine, plan.kept)), dtype)
    left = tuple(i for i in equation.reduced if i in plan.kept)
    rest = (*equation.left, *left)
    second = replace(
        equation,
        indices=rest,
        domain=box(equation.result.name, rest, {i: affine(extents[i]) for i in rest}, work.sizes),
        body=product_of([read, *outside]) if outside else read,
        reduce=kind if left else None,
        reduced=left,
    )
    return *(copy for copy, _ in copies.values()), first, second


def _laid_out(body: Expr, plan: _Plan, copies: dict[Read, tuple[Op, Read]], work: _Work) -> Expr:
    """The terms, where small operands lie in the operand's order; copies: what makes them, and their reads."""
    row = set(plan.order[plan.start :])
    place = {i: k for k, i in enumerate(plan.order)}

    def change(read: Read) -> Expr:
        own = indices_of(read)
        order = tuple(sorted(own, key=place.__getitem__))
        if len(own) == len(place) or order == _in_memory(read, own, work) or row.isdisjoint(own):
            return read
        if read in copies:
            return copies[read][1]
        source = work.tensors[read.tensor]
        shape = tuple(affine(plan.extents[i]) for i in order)
        made = Tensor(fresh_name(f"{source.name}_in_order", work.tensors), read.dtype, shape, source.label)
        work.tensors[made.name] = made
        value = substitute(read, {i: affine(f"i{k}") for k, i in enumerate(order)})
        new = Read(made.name, tuple(map(affine, order)), read.dtype)
        copies[read] = replace(fill(made, value, plan.equation.span), apart=True), new
        return new

    return map_reads(body, change)
