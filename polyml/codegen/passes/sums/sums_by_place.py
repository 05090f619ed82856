"""Sums along lanes, ordered by the place that their terms read: what two places add up alike comes first and together, so that one sum, shifted, serves both (llvm/memory/neighbours.py).

A window of 3 x 3 adds up three columns; the column of the next lane is that of the next place:

    a[i - 1, j - 1] + a[i - 1, j] + a[i - 1, j + 1] + a[i + 1, j - 1] + a[i + 1, j] + a[i + 1, j + 1]
    -> (a[i - 1, j - 1] + a[i + 1, j - 1]) + (a[i - 1, j] + a[i + 1, j]) + (a[i - 1, j + 1] + a[i + 1, j + 1])

Reassociation of floating-point sums, which the language allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import combinations

from polyml.codegen.loops import Assign, For, Function
from polyml.codegen.map_loops import map_loops
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, substitute, walk
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["LINE", "base_of", "order_by_place", "sum_of", "terms_of"]

LINE = 64
"""Bytes of the vectors for which it is worth it to shift one instead of loading another: shorter ones lie within a cache line more often than not."""

_TERMS = 64
"""Longer sums stay as they are."""


def order_by_place(function: Function, *, vector_bytes: int) -> Function:
    """The function with sums in its innermost vector loops in that order, where two places share two terms or more; such a loop takes one vector after another, since
    what they share is carried along."""
    if vector_bytes < LINE:
        return function
    return map_loops(function, lambda loop, *_: _in_order(loop) if loop.kind == "vector" else None)


def _in_order(node: For) -> For:
    if not all(isinstance(inner, Assign) for inner in node.body):
        return node
    made = renewed(node.body, (_assign(inner, node.variable) for inner in node.body if isinstance(inner, Assign)))
    return node if made is node.body else replace(node, body=made, factor=1)


def _assign(node: Assign, variable: str) -> Assign:
    value = _ordered(node.value, variable)
    return node if value is node.value else replace(node, value=value)


def _ordered(expr: Expr, variable: str) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    if expr.op in ("add", "sub") and expr.dtype.is_float:
        return _by_place(expr, variable)
    return expr.with_args(_ordered(arg, variable) for arg in expr.args)


def _by_place(total: Apply, variable: str) -> Expr:
    """The sum's terms, place by place; in each place those first that most places have."""
    terms = terms_of(total)
    if not 4 <= len(terms) <= _TERMS:
        return total
    places: dict[int, list[tuple[bool, Expr]]] = {}
    rest: list[tuple[bool, Expr]] = []
    for negative, term in terms:
        placed = base_of(term, variable)
        if placed is None:
            rest.append((negative, term))
        else:
            places.setdefault(placed[1], []).append((negative, placed[0]))
    # A place's sum begins with a term that is added; the sum itself may be subtracted.
    taken = {place: here[0][0] for place, here in places.items()}
    places = {place: [(negative != taken[place], base) for negative, base in here] for place, here in places.items()}
    if not any(len(set(places[one]) & set(places[other])) > 1 for one, other in combinations(places, 2)):
        return total
    count = Counter(term for here in places.values() for term in set(here))
    sums: list[tuple[bool, Expr]] = []
    for place in sorted(places, key=lambda place: (taken[place], place)):
        ordered = sorted(places[place], key=lambda term: (term[0], -count[term]))
        there = {variable: affine(variable) + place}
        sums.append((taken[place], sum_of([(negative, substitute(base, there)) for negative, base in ordered], total)))
    parts = sorted([*sums, *rest], key=lambda term: term[0])
    return total if parts[0][0] else sum_of(parts, total)


def sum_of(terms: Iterable[tuple[bool, Expr]], like: Apply) -> Expr:
    """The terms added up, or subtracted, from left to right; the first one is added. like: a sum of their type."""
    (_, made), *others = terms
    for negative, term in others:
        made = Apply("sub" if negative else "add", (made, term), like.dtype)
    return made


def terms_of(expr: Expr, whole: Collection[Expr] = ()) -> list[tuple[bool, Expr]]:
    """The terms of a sum, from left to right, and whether they are subtracted. whole: sums that are terms as they are."""
    found: list[tuple[bool, Expr]] = []
    stack = [(False, expr)]
    while stack:
        negative, node = stack.pop()
        match node:
            case Apply() if node in whole:
                found.append((negative, node))
            case Apply(op="add", args=(left, right)):
                stack += [(negative, right), (negative, left)]
            case Apply(op="sub", args=(left, right)):
                stack += [(not negative, right), (negative, left)]
            case _:
                found.append((negative, node))
    return found


def base_of(expr: Expr, variable: str) -> tuple[Expr, int] | None:
    """The expression moved to place 0, and its place: how far along the variable, which its reads have as they are in their last subscript only, the first of them is. None where it has no place."""
    places = []
    for node in walk(expr):
        match node:
            case Read(subscripts=(*around, Affine() as last)) if all(isinstance(s, Affine) for s in around):
                if any(variable in s.variables() for s in around if isinstance(s, Affine)):
                    return None
                rest = last - affine(variable)
                if variable in rest.variables():
                    return None
                places.append(rest.constant)
            case Apply() | Const():
                pass
            case Read() | IndexValue():
                return None
    if not places:
        return None
    place = min(places)
    return substitute(expr, {variable: affine(variable) - place}), place
