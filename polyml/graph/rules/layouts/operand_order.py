"""Products that read each element of a large operand a few times only: the small operand and the result are laid out in its order.

    z[b, a] = sum[c, d, e](x[c, d, e] * y[e, c, d, a, b])   becomes   x_laid[e, c, d] = x[c, d, e]
                                                                      z_laid[a, b] = sum[e, c, d](x_laid[e, c, d] * y[e, c, d, a, b])
                                                                      z[b, a] = z_laid[a, b]

What lies side by side everywhere is one index then (scop/joined_indices.py): here a vector times a matrix, which is read from end to end.

    z[c, a, b, e] = sum[d](w[d, e] * y[d, e, b, a, c])   becomes   z_laid[e, b, a, c] = sum[d](w[d, e] * y[d, e, b, a, c]); z[c, a, b, e] = z_laid[e, b, a, c]

Along e neighbours lie pages apart in y, of which each line would be met again and again: what is summed up is smaller, and a copy of it goes in blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from math import prod

from polyml.graph.rules.layouts.costs import LINE, Layout, Machine, Roles

__all__ = ["FEW_USES", "layout_in_order", "layout_of_result"]

FEW_USES = 16
"""Products with each element of the operand, below which memory is what they wait for."""

LARGER = 8
"""How many times more elements it has than what changes places, at least."""

MOST_PIECES = 3
"""Indices that are left of its own, at most: with more, what is next to each other in it is met one after the other neither by the sum nor by the result."""

LEAST_RUN = 32
"""Elements of its last index, joined with those before, at least, where it meets no other rows: sums along fewer take several of the result's indices side by side, each by itself."""

LEAST = 1 << 17
"""Elements below which the copies' loops would show."""

SMALLER = 2
"""How many times fewer elements than the operand a result has, at least, that is copied for it alone."""


def layout_in_order(given: Layout, roles: Roles, extents: Mapping[str, int]) -> Layout | None:
    """The layout in the large operand's order; None where there is no such operand, or it would be read in as many pieces."""
    left, right = (prod(extents[i] for i in order) for order in (given.left, given.right))
    large = max(left, right)
    if prod(extents.values()) >= FEW_USES * large or large < LEAST:
        return None
    order, small = (given.left, given.right) if left >= right else (given.right, given.left)
    others = roles.right if left >= right else roles.left
    in_order = (*others, *(i for i in order if i in small))
    best: Layout | None = None
    least = _in_a_row(order, given, roles)
    most = (least, 0)
    for result in (given.result, (*others, *(i for i in order if i in given.result))):
        for rest in (small, in_order):
            layout = Layout(order, rest, result) if left >= right else Layout(rest, order, result)
            moved = sum(
                prod(extents[i] for i in new) for new, old in ((rest, small), (result, given.result)) if new != old
            )
            pieces = _pieces(order, layout)
            score = _in_a_row(order, layout, roles), -pieces
            short = not others and _tail(order, layout, extents) < LEAST_RUN
            if LARGER * moved <= large and score > most and score[0] > least and pieces <= MOST_PIECES and not short:
                best, most = layout, score
    return best


def layout_of_result(
    given: Layout, roles: Roles, extents: Mapping[str, int], itemsize: int, machine: Machine
) -> Layout | None:
    """The result in the order of a large operand that no cache holds, and that short pieces would be read of; None where there is no such operand, or a copy of the result would cost as much."""
    left, right = (prod(extents[i] for i in order) for order in (given.left, given.right))
    large = max(left, right)
    if prod(extents.values()) >= FEW_USES * large or large * itemsize <= 2 * machine.cache:
        return None
    order, others = (given.left, roles.right) if left >= right else (given.right, roles.left)
    long = [i for i in given.result if extents[i] > 1]
    if not long or long[-1] not in order or SMALLER * prod(extents[i] for i in given.result) > large:
        return None
    between = prod(extents[i] for i in order[order.index(long[-1]) + 1 :])
    summed = prod(extents[i] for i in takewhile(lambda i: i in roles.reduced or extents[i] == 1, reversed(order)))
    if between * itemsize < LINE or summed * itemsize >= LINE:
        return None
    return replace(given, result=(*others, *(i for i in order if i in given.result)))


def _in_a_row(order: tuple[str, ...], layout: Layout, roles: Roles) -> int:
    """How much of the operand is met in a row: indices of the sum that are joined with the next one, those that are joined with its last one, and that one itself where lanes along it suit a sum with no other rows."""
    rest = layout.right if layout.left == order else layout.left
    together = [_are_joined(pair, layout) for pair in pairwise(order)]
    summed = sum(
        joined and set(pair) <= set(roles.reduced) for joined, pair in zip(together, pairwise(order), strict=True)
    )
    last = next((k for k, joined in enumerate(reversed(together)) if not joined), len(together))
    along = rest[-1] if order[-1] in roles.reduced else layout.result[-1]
    few = not (roles.left and roles.right)
    return summed + last + (few and order[-1] == along)


def _tail(order: Sequence[str], layout: Layout, extents: Mapping[str, int]) -> int:
    """Elements that lie side by side, as one index, at the end of the operand's order."""
    found = extents[order[-1]]
    for pair in reversed(list(pairwise(order))):
        if not _are_joined(pair, layout):
            break
        found *= extents[pair[0]]
    return found


def _pieces(order: Sequence[str], layout: Layout) -> int:
    """Indices that are left of the operand's when those that lie side by side in each tensor that has one of them are joined."""
    return len(order) - sum(_are_joined(pair, layout) for pair in pairwise(order))


def _are_joined(pair: tuple[str, str], layout: Layout) -> bool:
    """Whether each tensor has both next to each other, or neither."""
    tensors = (layout.left, layout.right, layout.result)
    return all(pair in pairwise(tensor) or not set(pair) & set(tensor) for tensor in tensors)
