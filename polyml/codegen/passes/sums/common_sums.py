"""Sums that stand side by side: what two of them add up alike is added up once.

Rows of a stencil that are computed together read each other's elements. Two rows of a cross have two terms in common, and where all are weighed alike, their product as well:

    b[i, j] = w * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
    b[i + 1, j] = w * (a[i + 1, j] + a[i + 1, j - 1] + a[i + 1, j + 1] + a[i + 2, j] + a[i, j])
    -> b[i, j] = w * ((a[i, j - 1] + a[i, j + 1]) + a[i - 1, j]) + w * (a[i, j] + a[i + 1, j])
       b[i + 1, j] = w * ((a[i + 1, j - 1] + a[i + 1, j + 1]) + a[i + 2, j]) + w * (a[i, j] + a[i + 1, j])

Eight operations instead of ten, since a product goes with an addition. The part in common stands in both, in the same words: the compiler computes it once.

When: at least two terms are the same, which is looked for pair by pair. Where a sum has parts that are the same at several places along the lanes (passes/sums/sums_by_place.py), these stay.

Reassociation of floating-point sums, which the language allows.

Source: Deitz, Chamberlain, Snyder, "Eliminating redundancies in sum-of-product array computations" (ICS 2001).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node
from polyml.codegen.passes.sums.sums_by_place import base_of, sum_of, terms_of
from polyml.codegen.rewrite import with_body
from polyml.expressions import Apply, Expr, walk
from polyml.records import dataclass
from polyml.renewed import renewed

__all__ = ["share_sums"]

_LEAST, _MOST = 3, 64
"""Terms of a sum that is looked at."""

_COPIES = 16
"""Assignments among which pairs are looked for."""

_Terms = Counter[tuple[bool, Expr]]


def share_sums(function: Function) -> Function:
    """The function with sums in the bodies of vector loops written so that pairs of them have a part in common."""
    body = _body(function.body)
    return function if body is function.body else replace(function, body=body)


def _body(nodes: tuple[Node, ...], lanes: str | None = None) -> tuple[Node, ...]:
    """The nodes; `lanes`: the variable of the vector loop around them."""
    made = tuple(_node(node, lanes) for node in nodes)
    made = made if lanes is None else _shared(made, lanes)
    return renewed(nodes, made)


def _node(node: Node, lanes: str | None) -> Node:
    if isinstance(node, For) and node.kind == "vector":
        lanes = node.variable
    return with_body(node, lambda body: _body(body, lanes))


def _shared(nodes: tuple[Node, ...], lanes: str) -> tuple[Node, ...]:
    """The assignments among the nodes with what pairs of them have in common apart."""
    assigns = [node for node in nodes if isinstance(node, Assign) and node.reduction is None]
    if not 2 <= len(assigns) <= _COPIES:
        return nodes
    sums = {id(node): found for node in assigns if (found := _Sum.of(node.value)) is not None}
    if len(sums) < 2 or _has_places(list(sums.values()), lanes):
        return nodes
    parts = _paired([node for node in assigns if id(node) in sums], sums)
    return tuple(
        replace(node, value=sums[id(node)].around(parts[id(node)])) if isinstance(node, Assign) and id(node) in parts else node
        for node in nodes
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sum:
    """The sum in an assigned value. weight: what all of it is multiplied by, by a product that nothing is added to; else None. value: all of it."""

    value: Expr
    total: Apply
    weight: Expr | None

    @staticmethod
    def of(value: Expr) -> _Sum | None:
        weight: Expr | None = None
        match value:
            case Apply(op="mul", args=(factor, Apply(op="add" | "sub") as total)):
                weight = factor
            case Apply(op="mul", args=(Apply(op="add" | "sub") as total, factor)):
                weight = factor
            case Apply(op="add" | "sub") as total:
                pass
            case _:
                return None
        if not total.dtype.is_float or not _LEAST <= len(terms_of(total)) <= _MOST:
            return None
        return _Sum(value, total, weight)

    @property
    def terms(self) -> _Terms:
        return Counter(terms_of(self.total))

    def around(self, part: _Terms) -> Expr:
        """The value with the part as a sum of its own, which comes last."""
        left = self.terms - part
        rest, own = (self._sum(list(terms.elements())) for terms in (left, part))
        if self.weight is not None:
            rest, own = (Apply("mul", (self.weight, one), self.total.dtype) for one in (rest, own))
        return Apply("add", (rest, own), self.total.dtype)

    def _sum(self, terms: list[tuple[bool, Expr]]) -> Expr:
        return sum_of(sorted(terms, key=lambda term: term[0]), self.total)


def _paired(assigns: Sequence[Assign], sums: dict[int, _Sum]) -> dict[int, _Terms]:
    """By the identity of an assignment the part of its sum that another one has as well; none is in two pairs."""
    found: dict[int, _Terms] = {}
    for position, one in enumerate(assigns):
        mine = sums[id(one)]
        if id(one) in found:
            continue
        best: tuple[int, Assign, _Terms] | None = None
        for other in assigns[position + 1 :]:
            theirs = sums[id(other)]
            if id(other) in found or theirs.weight != mine.weight:
                continue
            common = mine.terms & theirs.terms
            if _is_worth(common, mine.terms, theirs.terms) and (best is None or common.total() > best[0]):
                best = common.total(), other, common
        if best is not None:
            found[id(one)] = found[id(best[1])] = best[2]
    return found


def _is_worth(common: _Terms, *sums: _Terms) -> bool:
    """Whether there are two terms, and something left of each sum; each part begins with a term that is added."""
    parts = [common, *(terms - common for terms in sums)]
    return common.total() >= 2 and all(any(not negative for negative, _ in part) for part in parts)


def _has_places(sums: Sequence[_Sum], variable: str) -> bool:
    """Whether a sum within them is the same at several places along the lanes."""
    places: dict[Expr, int] = {}
    for one in sums:
        for expr in walk(one.total):
            if isinstance(expr, Apply) and expr.op in ("add", "sub"):
                found = base_of(expr, variable)
                if found is not None and places.setdefault(found[0], found[1]) != found[1]:
                    return True
    return False
