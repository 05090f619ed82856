"""Sums of products of several complex factors as sums within sums, in the cheapest order.

`y[i, j] = sum[k, l](u[i, k] * r[k, l] * conj(u[j, l]))` of N x N matrices takes N^4 products in one sum, N^3 in two. Of real numbers a rule finds that out (rules/sums/nested.py); a complex product becomes a
polynomial in the parts of all factors as it is built, in which no factor can be told apart any more, so that its order is chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from polyml.dtypes import DTYPES, DType
from polyml.einsum_frontend.ranges import Range
from polyml.einsum_frontend.syntax import (
    Binary,
    Call,
    Expression,
    IndexRef,
    LoopRef,
    Number,
    Pad,
    Reducer,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.einsum_frontend.walk import children, index_names, walk
from polyml.graph.builder.state import State
from polyml.graph.sum_order import first_sum

__all__ = ["in_order"]

_MOVED = {0: 4, 1 << 15: 8, 1 << 20: 16}
"""Products that storing and reading an element takes as long as, from so many elements on: in L2, in the last level, in memory. A complex product is four real ones."""


def in_order(state: State, node: Reducer, ranges: Mapping[str, Range], left: Set[str]) -> Expression:
    """The reducer, or an equal expression with sums within it. left: the indices of the points at which it is one value.

    A sum stays as it is under conditions of its own, where its terms have conditions, which tell what it may skip, where an extent is no number, and where
    factors are of several precisions: those of the lower one, or whole numbers, would be added up in their own type.
    """
    if node.kind != "sum" or not all(isinstance(item, IndexRef) for item in node.items):
        return node
    factors = _factors(node.body)
    if len(factors) < 3 or sum(_is_complex(state, factor) for factor in factors) < 2:
        return node
    precisions = {_precision(state, factor) for factor in factors if not _is_constant(factor)}
    if any(_has_conditions(factor) for factor in factors) or len(precisions) != 1 or None in precisions:
        return node
    bound = {item.name: item for item in node.items if isinstance(item, IndexRef)}
    used = [index_names(factor) & (left | bound.keys()) for factor in factors]
    extents = {name: ranges[name].extent for name in set().union(*used) | bound.keys()}
    numbers = {name: extent for name, extent in extents.items() if isinstance(extent, int)}
    if len(numbers) < len(extents):
        return node
    chosen = first_sum(used, set(numbers) - bound.keys(), numbers, _MOVED)
    if chosen is None:
        return node
    inside = [factor for place, factor in enumerate(factors) if place in chosen]
    outside = [factor for place, factor in enumerate(factors) if place not in chosen]
    around = set(left).union(*(used[place] for place in range(len(factors)) if place not in chosen))
    within = [item for name, item in bound.items() if name not in around]
    rest = [item for name, item in bound.items() if name in around]
    inner = replace(node, items=tuple(within), body=_product(inside))
    body = _product([inner, *outside])
    return replace(node, items=_by_place(rest, inside, numbers), body=body) if rest else body


def _by_place(
    items: Sequence[IndexRef], inside: Sequence[Expression], extents: Mapping[str, int]
) -> tuple[Expression, ...]:
    """The outer sum's indices, which are the last ones of the inner one's tensor: behind others those along which factors are contiguous, the longest last."""
    last = {
        name
        for factor in inside
        for n in walk(factor)
        if isinstance(n, Subscript) and n.subscripts
        for name in index_names(n.subscripts[-1])
    }
    return tuple(sorted(items, key=lambda item: (item.name in last, extents[item.name])))


def _factors(node: Expression) -> list[Expression]:
    if isinstance(node, Binary) and node.op == "*":
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _product(factors: Sequence[Expression]) -> Expression:
    product = factors[0]
    for factor in factors[1:]:
        product = Binary("*", product, factor, factor.span)
    return product


def _has_conditions(node: Expression) -> bool:
    return any(
        (isinstance(n, Call) and n.function == "where") or (isinstance(n, Subscript) and isinstance(n.tensor, Pad))
        for n in walk(node)
    )


def _precision(state: State, node: Expression) -> DType | None:
    """The float type that all tensors of an arithmetic expression have, or have as their parts; None where it has none, several, or another kind of value."""
    found: set[DType | None] = set()
    for n in _values(node):
        match n:
            case Subscript(tensor=str(name)):
                variable = state.env.get(name)
                found.add(variable.dtype.part if variable is not None and variable.dtype.part.is_float else None)
            case Number() | IndexRef() | LoopRef() | SizeRef() | Unary(op="-") | Reducer(kind="sum"):
                pass
            case Binary(op="+" | "-" | "*" | "/" | "**"):
                pass
            case Call(function=name) if name not in DTYPES:
                pass
            case _:
                found.add(None)
    return found.pop() if len(found) == 1 else None


def _is_constant(node: Expression) -> bool:
    return all(isinstance(n, Number | Unary | Binary | Call) for n in walk(node))


def _values(node: Expression) -> Iterator[Expression]:
    """The expression and all in it but subscripts."""
    yield node
    if not isinstance(node, Subscript):
        for child in children(node):
            yield from _values(child)


def _is_complex(state: State, node: Expression) -> bool:
    """Whether the value has an imaginary part."""
    match node:
        case Subscript(tensor=str(name)):
            variable = state.env.get(name)
            return variable is not None and variable.dtype.is_complex
        case Call(function="real" | "imag" | "abs"):
            return False
        case Call(function="complex"):
            return True
        case _:
            return any(_is_complex(state, child) for child in children(node))
