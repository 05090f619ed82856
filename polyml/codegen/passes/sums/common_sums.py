"""Sums that stand side by side: what two of them add up alike is added up once.

Rows of a stencil that are computed together read each other's elements. Two rows of a cross have two terms in common, and where all are weighed alike, their product as well:

    b[i, j] = w * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
    b[i + 1, j] = w * (a[i + 1, j] + a[i + 1, j - 1] + a[i + 1, j + 1] + a[i + 2, j] + a[i, j])
    -> b[i, j] = w * ((a[i, j - 1] + a[i, j + 1]) + a[i - 1, j]) + w * (a[i, j] + a[i + 1, j])
       b[i + 1, j] = w * ((a[i + 1, j - 1] + a[i + 1, j + 1]) + a[i + 2, j]) + w * (a[i, j] + a[i + 1, j])

Eight operations instead of ten, since a product goes with an addition. The part in common stands in both, in the same words: the compiler computes it once.

Before that, terms that the same sums have (of a window, those of one row of it) are one sum of their own, whatever the sums are multiplied by, so that four rows of 3 x 3 points take 18 additions instead of 32, of 3 x 3 x 3 points 55
instead of 104:

    b[i, j] = a[i - 1, j - 1] + a[i - 1, j] + a[i - 1, j + 1] + a[i, j - 1] + ..
    -> b[i, j] = (a[i - 1, j - 1] + a[i - 1, j] + a[i - 1, j + 1]) + (a[i, j - 1] + ..) + (a[i + 1, j - 1] + ..)

When: at least two terms are the same, which is then looked for pair by pair. Where a sum has parts that are the same at several places along the lanes (passes/sums/sums_by_place.py), these stay.

Reassociation of floating-point sums, which the language allows.

Source: Deitz, Chamberlain, Snyder, "Eliminating redundancies in sum-of-product array computations" (ICS 2001).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
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
    values = [node.value for node in assigns]
    if _has_places(values, lanes):
        return nodes
    grouped, whole = _grouped(values)
    sums = {
        id(node): found
        for node, value in zip(assigns, grouped, strict=True)
        if (found := _Sum.of(value, whole)) is not None
    }
    parts = _paired([node for node in assigns if id(node) in sums], sums)
    made = {
        id(node): sums[id(node)].around(parts[id(node)]) if id(node) in parts else value
        for node, value in zip(assigns, grouped, strict=True)
    }
    return tuple(
        replace(node, value=made[id(node)])
        if isinstance(node, Assign) and made.get(id(node), node.value) is not node.value
        else node
        for node in nodes
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    """The sum that is an assigned value, or that is multiplied by `weight`, in a product that nothing is added to; its terms, and whether they are subtracted."""

    total: Apply
    weight: Expr | None
    terms: _Terms

    @staticmethod
    def of(value: Expr, whole: Set[Expr]) -> _Sum | None:
        """None where it is none that is looked at. whole: sums that are terms as they are."""
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
        if not total.dtype.is_float:
            return None
        terms = terms_of(total, whole)
        return _Sum(total, weight, Counter(terms)) if _LEAST <= len(terms) <= _MOST else None

    def around(self, part: _Terms) -> Expr:
        """The value with the part as a sum of its own, which comes last."""
        left = self.terms - part
        rest, own = (self._sum(list(terms.elements())) for terms in (left, part))
        if self.weight is not None:
            rest, own = (Apply("mul", (self.weight, one), self.total.dtype) for one in (rest, own))
        return Apply("add", (rest, own), self.total.dtype)

    def _sum(self, terms: list[tuple[bool, Expr]]) -> Expr:
        return _ordered(terms, self.total)


def _ordered(terms: Iterable[tuple[bool, Expr]], like: Apply) -> Expr:
    return sum_of(sorted(terms, key=lambda term: term[0]), like)


def _grouped(values: Sequence[Expr]) -> tuple[list[Expr], Set[Expr]]:
    """The values, with terms that several sums in them have, the same ones of these sums, as sums of their own; and those sums."""
    sums: dict[Apply, _Terms] = {}
    for value in values:
        _find_sums(value, sums)
    having: dict[tuple[bool, Expr], list[Apply]] = {}
    for total, terms in sums.items():
        for term, count in terms.items():
            if count == 1:
                having.setdefault(term, []).append(total)
    together: dict[tuple[Apply, ...], list[tuple[bool, Expr]]] = {}
    for term, totals in having.items():
        if len(totals) > 1:
            together.setdefault(tuple(totals), []).append(term)
    parts: dict[Apply, list[_Terms]] = {}
    for having_all, group in together.items():
        if len(group) > 1 and any(not negative for negative, _ in group):
            for total in having_all:
                parts.setdefault(total, []).append(Counter(group))
    whole: set[Expr] = set()

    def visit(expr: Expr) -> Expr:
        if not isinstance(expr, Apply):
            return expr
        if expr not in parts:
            return expr.with_args(visit(arg) for arg in expr.args)
        left = sums[expr]
        for part in parts[expr]:
            left = left - part
        terms = [(negative, visit(term)) for negative, term in left.elements()]
        own = [_ordered(((negative, visit(term)) for negative, term in part), expr) for part in parts[expr]]
        whole.update(own)
        return _ordered([*terms, *((False, part) for part in own)], expr)

    return ([visit(value) for value in values] if parts else list(values)), whole


def _find_sums(expr: Expr, found: dict[Apply, _Terms]) -> None:
    """Puts the sums in the expression, those that are no part of another one, and in their terms, where they are looked at."""
    if not isinstance(expr, Apply):
        return
    inside: Iterable[Expr] = expr.args
    if expr.op in ("add", "sub") and expr.dtype.is_float:
        terms = terms_of(expr)
        if _LEAST <= len(terms) <= _MOST:
            found.setdefault(expr, Counter(terms))
        inside = (term for _, term in terms)
    for term in inside:
        _find_sums(term, found)


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


def _has_places(values: Sequence[Expr], variable: str) -> bool:
    """Whether a sum within them is the same at several places along the lanes."""
    places: dict[Expr, int] = {}
    for value in values:
        for expr in walk(value):
            if isinstance(expr, Apply) and expr.op in ("add", "sub"):
                found = base_of(expr, variable)
                if found is not None and places.setdefault(found[0], found[1]) != found[1]:
                    return True
    return False
