"""Products whose factor is a sum of products with a name of its own are multiplied in the cheapest order, as those that are written as one: `w = a @ b; y = x @ w` may be `(x @ a) @ b`,

    w[n, m] = sum[r](a[n, r] * b[r, m])         becomes         y_inner[i, r] = sum[n](x[i, n] * a[n, r])
    y[i, m] = sum[n](x[i, n] * w[n, m])                         y[i, m] = sum[r](y_inner[i, r] * b[r, m])

where w is read by nothing else: matrices of low rank, a vector times several matrices, attention without a softmax. What goes first is decided as for one sum (sums/nested.py); the names stay where that takes more than half of the
products. What never changes is computed once, whatever it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from polyml.expressions import Expr, Read, factors_of, plain_indices, product_of, substitute
from polyml.graph.edit import protected_names, with_ops
from polyml.graph.ir import Equation, Graph, Op
from polyml.graph.rules.boxes import box_extents
from polyml.graph.rules.sums.nested import Nesting, nested
from polyml.graph.traverse import all_ops, equation_reads, read_names
from polyml.new_names import fresh
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["multiply_through_names"]

GAIN = 0.5
"""The part of the products that may be left, at most: each order has its own layouts, and tensors between."""

LEAST = 1 << 14
"""Products below which it does not matter."""

MOST_FACTORS = 8
"""Factors of one sum, at most."""


def multiply_through_names(graph: Graph, cache: int, vector_bytes: int, constants: Set[str]) -> Graph:
    """The graph with such products in another order; those in loops stay, as do sizes that are not known.

    Args:
        cache: bytes that a core keeps close.
        vector_bytes: of a register.
        constants: inputs that never change.
    """
    known = set(constants)
    uses = Counter(read.tensor for op in all_ops(graph.ops) if isinstance(op, Equation) for read in equation_reads(op))
    uses.update(name for op in graph.ops if not isinstance(op, Equation) for name in read_names(op))
    uses.update(op.base.name for op in all_ops(graph.ops) if isinstance(op, Equation) and op.base is not None)
    uses.update(protected_names(graph))
    work = Nesting.of(graph, cache, vector_bytes)
    made: dict[str, Equation] = {}
    result: list[Op] = []
    for op in graph.ops:
        parts: Sequence[Op] = (op,)
        if isinstance(op, Equation):
            if all(name in known for name in read_names(op)):
                known.add(op.result.name)
            parts, gone = _reordered(op, {n: e for n, e in made.items() if uses[n] == 1 and n not in known}, work)
            result = [other for other in result if not (isinstance(other, Equation) and other.result.name in gone)]
            for part in parts:
                if _is_product(part):
                    made[part.result.name] = part
                uses[part.result.name] = uses[part.result.name] or 1
        result += parts
    return with_ops(graph, result)


def _is_product(op: Op) -> bool:
    """Whether it is a sum of products over whole tensors."""
    if not isinstance(op, Equation) or op.reduce != "sum" or not op.reduced or not op.is_plain:
        return False
    if op.base is not None or op.instances is not None or op.padded or op.apart or op.only_if is not None:
        return False
    dtype = op.result.dtype
    return op.body.dtype == dtype and (dtype.is_float or dtype.is_integer) and not dtype.is_half


def _reordered(
    equation: Equation, made: Mapping[str, Equation], work: Nesting
) -> tuple[tuple[Equation, ...], frozenset[str]]:
    """The product in its best order, and the names that are not needed for that; as it is where that is best."""
    if not _is_product(equation):
        return (equation,), frozenset()
    for factor in factors_of(equation.body):
        inner = made.get(factor.tensor) if isinstance(factor, Read) else None
        if inner is None or not isinstance(factor, Read):
            continue
        joined = _joined(equation, factor, inner)
        if joined is None:
            continue
        before = _products((*nested(inner, work), *nested(equation, work)))
        parts = tuple(nested(joined, work))
        if before is None or before < LEAST or (after := _products(parts)) is None or after > GAIN * before:
            continue
        others = {name: e for name, e in made.items() if name != inner.result.name}
        done: list[Equation] = []
        gone = {inner.result.name}
        for part in parts:
            again, dropped = _reordered(part, others, work)
            done += again
            gone |= dropped
        return tuple(done), frozenset(gone)
    return (equation,), frozenset()


def _joined(equation: Equation, read: Read, inner: Equation) -> Equation | None:
    """Both sums as one; None where they are no boxes, or have other things between them."""
    places = [place for place in plain_indices(read.subscripts) if place is not None]
    factors, own = factors_of(equation.body), factors_of(inner.body)
    if len(set(places)) < len(read.subscripts) or factors.count(read) > 1 or read.dtype != equation.body.dtype:
        return None
    around, within = box_extents(equation), box_extents(inner)
    if around is None or within is None or len(factors) < 2 or len(factors) - 1 + len(own) > MOST_FACTORS:
        return None
    if len(own) < 2 or not all(_is_plain(f) for f in (*factors, *own)):
        return None
    taken = set(equation.indices)
    names = dict(zip(inner.left, places, strict=True)) | {i: fresh(i, taken) for i in inner.reduced}
    values = {old: affine(new) for old, new in names.items()}
    reduced = (*equation.reduced, *(names[i] for i in inner.reduced))
    extents = around | {names[i]: within[i] for i in inner.reduced}
    indices = (*equation.left, *reduced)
    body = product_of((*(f for f in factors if f != read), *(substitute(f, values) for f in own)))
    domain = box(equation.result.name, indices, extents)
    return replace(equation, indices=indices, reduced=reduced, domain=domain, body=body)


def _is_plain(factor: Expr) -> bool:
    """Whether nothing is computed for each product again."""
    return isinstance(factor, Read) and None not in plain_indices(factor.subscripts)


def _products(equations: Sequence[Equation]) -> int | None:
    """How many numbers are multiplied; None where that is not known."""
    found = 0
    for equation in equations:
        extents = box_extents(equation)
        if extents is None:
            return None
        found += max(len(factors_of(equation.body)) - 1, 1) * prod(extents.values())
    return found
