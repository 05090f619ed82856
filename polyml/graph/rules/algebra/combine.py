"""Sums with constant factors in their cheapest form: `x + 0.5*(y - 2*x) + 0.5*(z - 2*x)` becomes `0.5*(y + z) - x`.

A sum is a combination of terms with one constant each: equal terms are added up, and terms with the same constant share its product. It is rewritten when that saves
operations, products that go with an addition (FMA) counted as none.

The language allows it (sums are reassociated and common factors moved out of them); results may differ in rounding, so it is off where the written order is asked for.
A term that would vanish stays: it may be infinite.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.expressions import Apply, Const, Expr, Numbered, Read
from polyml.graph.ir import Equation, Graph, Loop, Op
from polyml.records import dataclass

__all__ = ["combine_terms"]

LEAST_TERMS = 3
"""Shorter sums have nothing to save."""


def combine_terms(graph: Graph) -> Graph:
    """The graph with the sums of its bodies combined."""
    ops = _block(graph.ops)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    made = tuple(_op(op) for op in ops)
    return ops if all(new is old for new, old in zip(made, ops, strict=True)) else made


def _op(op: Op) -> Op:
    match op:
        case Loop():
            body = _block(op.body)
            return op if body is op.body else replace(op, body=body)
        case Equation():
            value = _combined(op.body, Numbered())
            return op if value is op.body else replace(op, body=value)
        case _:
            return op


def _combined(expr: Expr, numbered: Numbered) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    if expr.op in ("add", "sub") and expr.dtype.is_float and expr.dtype.itemsize >= 4:
        found = _cheaper(expr, numbered)
        if found is not None:
            return found
    args = tuple(_combined(arg, numbered) for arg in expr.args)
    return expr if all(a is b for a, b in zip(args, expr.args, strict=True)) else replace(expr, args=args)


def _cheaper(expr: Apply, numbered: Numbered) -> Expr | None:
    """The sum with one constant per term, if that takes fewer operations; the sum itself, where that holds for none within it either."""
    found = _Terms(numbered)
    if not found.collect(expr, 1.0) or len(found.terms) < LEAST_TERMS:
        return None
    terms = list(found.terms.values())
    # Products of constants may be beyond what the type has: 1e25 * (1e25 * (x - y)) is no infinity times zero where x = y.
    if not all(expr.dtype.is_normal(constant) for _, constant in terms):
        return None
    groups: dict[float, _Group] = {}
    for term, constant in terms:
        group = groups.setdefault(abs(constant), _Group([], []))
        (group.plus if constant > 0 else group.minus).append(term)
    has_unit = 1.0 in groups
    after = len(terms) - 1 + (0 if has_unit else 1)
    before = _operations(expr, numbered)
    if after >= before:
        # Of n different elements n - 1 additions are left, and one product where none has the factor 1. If the whole has no product more than that, no part has.
        apart = found.leaves == len(terms) and not found.nested
        return expr if apart and (before < len(terms) or not has_unit) else None
    # What nothing is multiplied in comes first, and all others are added to it; what is only taken away comes last.
    ordered = sorted(groups.items(), key=lambda item: (not item[1].plus, item[0] != 1.0))
    total: Expr | None = None
    for constant, group in ordered:
        total = _added(total, constant, group, expr)
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
    """The terms of a sum by number, and their constants. leaves: how many there were, equal ones counted each; nested: a constant multiplies a sum."""

    def __init__(self, numbered: Numbered) -> None:
        self.numbered = numbered
        self.terms: dict[int, tuple[Expr, float]] = {}
        self.leaves, self.nested = 0, False

    def collect(self, expr: Expr, constant: float) -> bool:
        """Adds the constants of the expression's terms, times `constant`; False where one of them is no element of a tensor."""
        match expr:
            case Apply(op="add" | "sub", args=(x, y)):
                sign = 1 if expr.op == "add" else -1
                return self.collect(x, constant) and self.collect(y, sign * constant)
            case Apply(op="neg", args=(x,)):
                return self.collect(x, -constant)
            case Apply(op="mul", args=(Const(value=value), x)) | Apply(op="mul", args=(x, Const(value=value))):
                self.nested |= not isinstance(x, Read)
                return self.collect(x, constant * float(value))
            case Read():
                number = self.numbered(expr)
                term, before = self.terms.get(number, (expr, 0.0))
                self.terms[number] = term, before + constant
                self.leaves += 1
                return True
            case _:
                return False


def _operations(expr: Apply, numbered: Numbered) -> int:
    """Vector instructions of the sum as it stands: an addition takes one of its operands' products along."""
    seen = set[int]()

    def count(node: Expr, *, fused: bool) -> int:
        if not isinstance(node, Apply) or numbered(node) in seen:
            return 0
        if node.op == "mul":
            if not fused:
                seen.add(numbered(node))
            inner = [arg for arg in node.args if not isinstance(arg, Const)]
            return (0 if fused else 1) + sum(count(arg, fused=False) for arg in inner)
        if node.op not in ("add", "sub", "neg"):
            return 0
        seen.add(numbered(node))
        products = [arg for arg in node.args if isinstance(arg, Apply) and arg.op == "mul"]
        taken = products[0] if products and node.op != "neg" else None
        return 1 + sum(count(arg, fused=arg is taken) for arg in node.args)

    return count(expr, fused=False)
