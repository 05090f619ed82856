"""Sums with constant factors in their cheapest form: `x + 0.5*(y - 2*x) + 0.5*(z - 2*x)` becomes `0.5*(y + z) - x`.

A sum is a combination of terms with one constant each: equal terms are added up, and terms with the same constant share its product. It is rewritten when that saves
operations, products that go with an addition (FMA) counted as none.

The language allows it (sums are reassociated and common factors moved out of them); results may differ in rounding, so it is off where the written order is asked for.
A term that would vanish stays: it may be infinite.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import TypeGuard

from polyml.dtypes import DType
from polyml.expressions import Apply, Const, Expr, Numbered, Read, walk
from polyml.graph.ir import Equation, Graph, Loop, Op
from polyml.records import dataclass
from polyml.renewed import renewed

__all__ = ["combine_terms"]

LEAST_TERMS = 3
"""Shorter sums have nothing to save."""


def combine_terms(graph: Graph) -> Graph:
    """The graph with the sums of its bodies combined."""
    ops = _block(graph.ops)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    made = tuple(_op(op) for op in ops)
    return renewed(ops, made)


def _op(op: Op) -> Op:
    match op:
        case Loop():
            body = _block(op.body)
            return op if body is op.body else replace(op, body=body)
        case Equation():
            value = _combined(op.body, Numbered(), _combinations(op.body))
            return op if value is op.body else replace(op, body=value)
        case _:
            return op


def _combined(expr: Expr, numbered: Numbered, combinations: Set[int]) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    if _is_sum(expr) and id(expr) in combinations and expr.dtype.is_float and expr.dtype.itemsize >= 4:
        return _combined_sum(expr, numbered, combinations)
    return expr.with_args(_combined(arg, numbered, combinations) for arg in expr.args)


def _is_sum(expr: Expr) -> TypeGuard[Apply]:
    return isinstance(expr, Apply) and expr.op in ("add", "sub")


def _combined_sum(expr: Apply, numbered: Numbered, combinations: Set[int]) -> Expr:
    """A combination of elements: the longest beginning of the sum that is cheaper so has one constant per term; what is added to that is combined by itself."""
    sums = [expr]
    while _is_sum(first := sums[-1].args[0]):
        sums.append(first)
    sums.reverse()  # the shortest first, each the beginning of the next
    cheaper = _longest_cheaper(sums, numbered)
    if cheaper is None:
        made, others = _combined(first, numbered, combinations), sums
    else:
        made, others = _one_constant_each(sums[cheaper], numbered), sums[cheaper + 1 :]
    for total in others:
        before, last = total.args
        term = _combined(last, numbered, combinations)
        made = total if made is before and term is last else replace(total, args=(made, term))
    return made


def _combinations(expr: Expr) -> set[int]:
    """Which parts (by id) are combinations of elements: what sums, negations and products with constants make of them."""
    found: set[int] = set()
    for node in reversed(list(walk(expr))):  # children first
        match node:
            case Read():
                found.add(id(node))
            case Apply(op="mul", args=(Const(), x)) | Apply(op="mul", args=(x, Const())):
                found.update([id(node)] if id(x) in found else [])
            case Apply(op="add" | "sub" | "neg", args=args):
                found.update([id(node)] if all(id(arg) in found for arg in args) else [])
            case _:
                pass
    return found


def _longest_cheaper(sums: Sequence[Apply], numbered: Numbered) -> int | None:
    """Which of these sums, each the beginning of the next, is the last one that takes fewer operations with one constant per term."""
    terms, operations = _Terms(sums[0].dtype, numbered), _Operations(numbered)
    terms.collect(sums[0].args[0], 1.0)
    before, found = 0, None
    for position, total in enumerate(sums):
        last = total.args[1]
        terms.collect(last, 1.0 if total.op == "add" else -1.0)
        # Of the first sum both terms are new, of all others the last one.
        before += operations.of_sum(total, total.args if position == 0 else (last,))
        after = len(terms.found) - 1 + (0 if terms.units else 1)
        # Products of constants may be beyond what the type has: 1e25 * (1e25 * (x - y)) is no infinity times zero where x = y.
        if after < before and len(terms.found) >= LEAST_TERMS and not terms.beyond:
            found = position
    return found


def _one_constant_each(expr: Apply, numbered: Numbered) -> Expr:
    """The sum, a combination of elements, with one constant per term; terms of the same constant share its product."""
    terms = _Terms(expr.dtype, numbered)
    terms.collect(expr, 1.0)
    groups: dict[float, _Group] = {}
    for term, constant in terms.found.values():
        group = groups.setdefault(abs(constant), _Group([], []))
        (group.plus if constant > 0 else group.minus).append(term)
    # What nothing is multiplied in comes first, and all others are added to it; what is only taken away comes last.
    ordered = sorted(groups.items(), key=lambda item: (not item[1].plus, item[0] != 1.0))
    total: Expr | None = None
    for constant, group in ordered:
        total = _added(total, constant, group, expr)
    assert total is not None, "internal: a sum without terms"
    return total


@dataclass(frozen=True, slots=True)
class _Group:
    """Terms of one absolute constant."""

    plus: list[Expr]
    minus: list[Expr]


def _added(total: Expr | None, constant: float, group: _Group, like: Apply) -> Expr:
    """`total + constant * (the group's terms)`."""
    negative = not group.plus
    first, *others = group.minus if negative else group.plus
    value = first
    for term in others:
        value = Apply("add", (value, term), like.dtype)
    for term in () if negative else group.minus:
        value = Apply("sub", (value, term), like.dtype)
    if constant != 1.0:
        factor = -constant if negative and total is None else constant
        value = Apply("mul", (Const(factor, like.dtype), value), like.dtype)
    elif negative and total is None:
        value = Apply("neg", (value,), like.dtype)
    return value if total is None else Apply("sub" if negative else "add", (total, value), like.dtype)


class _Terms:
    """The terms of a sum of this type by number, each with its constant. units: how many have the constant 1 or -1; beyond: how many one that the type does not have."""

    def __init__(self, dtype: DType, numbered: Numbered) -> None:
        self.dtype, self.numbered = dtype, numbered
        self.found: dict[int, tuple[Expr, float]] = {}
        self.units = self.beyond = 0

    def collect(self, expr: Expr, constant: float) -> None:
        """Adds the constants of the expression's terms, times `constant`."""
        match expr:
            case Apply(op="add" | "sub", args=(x, y)):
                self.collect(x, constant)
                self.collect(y, constant if expr.op == "add" else -constant)
            case Apply(op="neg", args=(x,)):
                self.collect(x, -constant)
            case Apply(op="mul", args=(Const(value=value), x)) | Apply(op="mul", args=(x, Const(value=value))):
                self.collect(x, constant * float(value))
            case _:
                assert isinstance(expr, Read), "internal: a sum that is no combination of elements"
                number = self.numbered(expr)
                term, before = self.found.get(number, (expr, None))
                if before is not None:
                    self._count(before, -1)
                    constant += before
                self._count(constant, 1)
                self.found[number] = term, constant

    def _count(self, constant: float, by: int) -> None:
        self.units += by * (abs(constant) == 1.0)
        self.beyond += by * (not self.dtype.is_normal(constant))


class _Operations:
    """Vector instructions of parts of a sum as they stand, equal ones once: an addition takes one of its operands' products along."""

    def __init__(self, numbered: Numbered) -> None:
        self.numbered = numbered
        self.seen = set[int]()

    def of_sum(self, total: Apply, terms: Sequence[Expr]) -> int:
        """Those of the sum itself, and of these of its terms."""
        products = [arg for arg in total.args if isinstance(arg, Apply) and arg.op == "mul"]
        taken = products[0] if products and total.op != "neg" else None
        return 1 + sum(self._of(term, fused=term is taken) for term in terms)

    def _of(self, node: Expr, *, fused: bool) -> int:
        if not isinstance(node, Apply) or self.numbered(node) in self.seen:
            return 0
        if node.op == "mul":
            if not fused:
                self.seen.add(self.numbered(node))
            inner = [arg for arg in node.args if not isinstance(arg, Const)]
            return (0 if fused else 1) + sum(self._of(arg, fused=False) for arg in inner)
        if node.op not in ("add", "sub", "neg"):
            return 0
        self.seen.add(self.numbered(node))
        return self.of_sum(node, node.args)
