"""Sums over parts of one range, with an operand that is another tensor in each part: one sum, of an operand made of the parts ahead of it.

A symmetric matrix of which one half is stored is read as `sum[k, k <= i](A[i, k] * B[k, j]) + sum[k, k > i](A[k, i] * B[k, j])`: two triangular products, each with panels of B and a pass over
the result. Of `P[i, k] = where(k <= i, A[i, k], A[k, i])`, made once, it is a plain product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from math import prod

import islpy as isl

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, factors_of, product_of, reads_of, substitute
from polyml.graph.builder.parts import variables_of
from polyml.graph.edit import protected_names
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import any_box
from polyml.graph.traverse import UNKNOWN_EXTENT, all_ops, equation_reads, read_names, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.from_isl import constraints_of

__all__ = ["join_pieces"]

_USES = 16
"""How often an element of the operand must be used for a pass over all of them to pay."""


def join_pieces(graph: Graph) -> Graph:
    """The graph with such sums joined, where nothing but one addition reads them."""
    count = Counter(name for op in all_ops(graph.ops) for name in _reads(op))
    once = {name for name, n in count.items() if n == 1} - protected_names(graph)
    sums = {
        op.result.name: op for op in graph.ops if isinstance(op, Equation) and _is_sum(op) and op.result.name in once
    }
    if len(sums) < 2:
        return graph
    for op in graph.ops:
        for left, right in _added_pairs(op, sums) if isinstance(op, Equation) else ():
            joined = _joined(left, right, graph)
            if joined is not None:
                return replace(graph, ops=_replaced(graph.ops, left, right, joined))
    return graph


def _reads(op: Op) -> list[str]:
    """What the op uses, as often as it reads it: a sum that is read twice would be the joined one in both places."""
    if not isinstance(op, Equation):
        return list(read_names(op))
    reads = [read.tensor for read in equation_reads(op)]
    return [*reads, *(name for name in read_names(op) if name not in reads)]


def _is_sum(equation: Equation) -> bool:
    alone = equation.base is None and equation.instances is None and not equation.padded
    return (
        equation.reduce == "sum"
        and bool(equation.reduced)
        and equation.is_plain
        and alone
        and equation.result.dtype.is_float
    )


def _added_pairs(equation: Equation, sums: Mapping[str, Equation]) -> Iterator[tuple[Equation, Equation]]:
    """Sums of which the equation adds up the same element."""
    waiting: list[Expr] = [equation.body]
    while waiting:
        node = waiting.pop()
        terms = _terms(node)
        for one, other in combinations([t for t in terms if isinstance(t, Read) and t.tensor in sums], 2):
            if one.tensor != other.tensor and one.subscripts == other.subscripts:
                yield sums[one.tensor], sums[other.tensor]
        waiting += [arg for term in terms if isinstance(term, Apply) for arg in term.args]


def _terms(expr: Expr) -> list[Expr]:
    match expr:
        case Apply(op="add", args=(x, y)):
            return [*_terms(x), *_terms(y)]
        case _:
            return [expr]


# -- one sum of two -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Joined:
    """The operand made of the parts, and the sum that reads it."""

    operand: Equation
    total: Equation


def _joined(one: Equation, other: Equation, graph: Graph) -> _Joined | None:
    """None where the parts do not fill a box, differ in more than one factor, or use the operand too rarely (with symbolic sizes: if these are large)."""
    if (
        len(one.indices) != len(other.indices)
        or len(one.reduced) != len(other.reduced)
        or one.result.shape != other.result.shape
    ):
        return None
    renamed = substitute(other.body, {old: affine(new) for old, new in zip(other.indices, one.indices, strict=True)})
    mine, theirs = factors_of(one.body), factors_of(renamed)
    common = [factor for factor in mine if factor in theirs]
    left, right = [f for f in mine if f not in common], [f for f in theirs if f not in common]
    if not common or len(left) != 1 or len(right) != 1 or len(mine) != len(theirs):
        return None
    first, second = one.domain.reset_tuple_id(), other.domain.reset_tuple_id()
    if not first.is_disjoint(second):
        return None
    whole = first.union(second).coalesce()
    tensors = tensors_of(graph)
    extents = any_box(replace(one, domain=whole.set_tuple_name(one.result.name)), graph, tensors)
    if extents is None:
        return None
    condition = _condition(first, whole.intersect_params(graph.context), one.indices)
    indices = _indices_of((left[0], right[0], *([] if condition is None else [condition])), one.indices)
    if condition is None or indices is None:
        return None
    counts = {i: extent.constant if extent.is_constant else UNKNOWN_EXTENT for i, extent in extents.items()}
    if _USES * prod(counts[i] for i in indices) > prod(counts.values()):
        return None
    dtype = one.body.dtype
    name = fresh_name(f"{one.result.name}_parts", set(tensors))
    shape = tuple(extents[i] for i in indices)
    made = Tensor(name, dtype, shape, one.result.label)
    operand = Equation(
        result=made, indices=indices, domain=box(name, indices, extents, graph.sizes), span=one.span,
        target=tuple(map(affine, indices)), body=Apply("select", (condition, left[0], right[0]), dtype), apart=True,
    )  # fmt: skip
    body = product_of([Read(name, tuple(map(affine, indices)), dtype), *common])
    return _Joined(operand, replace(one, domain=whole.set_tuple_name(one.result.name), body=body))


def _condition(part: isl.Set, whole: isl.Set, indices: tuple[str, ...]) -> Expr | None:
    """What tells the part's points from the others; None when it is not one inequality."""
    pieces = part.gist(whole).coalesce().get_basic_sets()
    if len(pieces) != 1:
        return None
    found = constraints_of(pieces[0], indices)
    if len(found) != 1 or found[0].equality:
        return None
    return Apply("ge", (IndexValue(found[0].value, i64), Const(0, i64)), boolean)


def _indices_of(exprs: tuple[Expr, ...], indices: tuple[str, ...]) -> tuple[str, ...] | None:
    """The indices that the expressions use, in the order of `indices`; None where one is a computed subscript."""
    if not all(isinstance(s, Affine) for expr in exprs for read in reads_of(expr) for s in read.subscripts):
        return None
    used = frozenset[str]().union(*map(variables_of, exprs))
    return tuple(i for i in indices if i in used) if used <= set(indices) else None


def _replaced(ops: tuple[Op, ...], left: Equation, right: Equation, joined: _Joined) -> tuple[Op, ...]:
    """The ops with the joined sum in the place of the later one, and that one's element counted as nothing."""
    later = max((op for op in ops if op is left or op is right), key=ops.index)
    result: list[Op] = []
    for op in ops:
        if op is later:
            result += [joined.operand, joined.total]
        elif op is not left and op is not right:
            result.append(_without(op, right.result.name) if isinstance(op, Equation) else op)
    return tuple(result)


def _without(equation: Equation, name: str) -> Equation:
    """The equation without that term."""
    if all(read.tensor != name for read in reads_of(equation.body)):
        return equation
    return replace(equation, body=_dropped(equation.body, name))


def _dropped(expr: Expr, name: str) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    if expr.op == "add":
        for term, rest in (expr.args, expr.args[::-1]):
            if isinstance(term, Read) and term.tensor == name:
                return rest
    return replace(expr, args=tuple(_dropped(arg, name) for arg in expr.args))
