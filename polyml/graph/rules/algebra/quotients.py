"""Quotients of products by one number for all elements: `u[i] * dt / dx` is `u[i] * (dt / dx)`, and `(p[i]*a + q[i]*b) / c` is `p[i]*(a/c) + q[i]*(b/c)`.

A division of vectors takes as long as a dozen multiplications. Where a factor that is the same for all elements is divided instead, loops divide once, ahead, and an element takes as many roundings as before.
A quotient without such a factor, `u[i] / dx`, stays, since a product with the reciprocal rounds once more; so do products with whole constants and powers of two, which are often exact, and whatever is rounded to a whole
number or compared, and the same quotient elsewhere: `x - floor(x)` is not below zero, and something is as large as the maximum.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from math import frexp

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, ops_in, substitute, walk
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.graph.traverse import all_ops
from polyml.sets.affine import Affine, affine

__all__ = ["divide_factors"]

_STEPS = frozenset({"floor", "ceil", "round", "mod", "floordiv"})


def divide_factors(graph: Graph) -> Graph:
    """The graph with such quotients as products."""
    equations = [op for op in all_ops(graph.ops) if isinstance(op, Equation) and "div" in ops_in(op.body)]
    kept = frozenset(quotient for equation in equations for quotient in _kept(equation))
    ops = map_equations(graph.ops, lambda equation: _changed(equation, kept))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _changed(equation: Equation, kept: Set[Expr]) -> Equation:
    if not equation.indices or not equation.result.dtype.is_float:
        return equation
    body = _Quotients(frozenset(equation.indices), kept).changed(equation.body)
    return equation if body is equation.body else replace(equation, body=body)


def _kept(equation: Equation) -> Iterator[Expr]:
    """The quotients whose last bit may tell, with numbers for indices."""
    quotients = _Quotients(frozenset(equation.indices))
    targets = [s for s in equation.target if not isinstance(s, Affine)]
    told = [] if equation.result.dtype.is_float else [equation.body]
    for node in (node for expr in (equation.body, *targets) for node in walk(expr)):
        if isinstance(node, Apply) and _is_step(node):
            told += node.args
    for expr in told:
        for node in walk(expr):
            if isinstance(node, Apply) and node.op == "div":
                yield quotients.numbered(node)


class _Quotients:
    """Those in an equation with these indices. kept: those that stay, by `numbered`."""

    def __init__(self, indices: Set[str], kept: Set[Expr] = frozenset()) -> None:
        self.indices = indices
        self.kept = kept

    def changed(self, expr: Expr) -> Expr:
        """The expression with its quotients as products where they may be."""
        if not isinstance(expr, Apply) or "div" not in ops_in(expr) or self.is_fixed(expr):
            return expr
        if expr.op == "div" and self.kept and self.numbered(expr) in self.kept:
            return expr
        kept = len(expr.args) if _is_step(expr) else 1 if expr.op == "select" else 0
        made = expr.with_args([*expr.args[:kept], *map(self.changed, expr.args[kept:])])
        if made.op != "div" or not made.dtype.is_float or not self.is_fixed(made.args[1]):
            return made
        return self.divided(*made.args) or made

    def divided(self, expr: Expr, divisor: Expr) -> Expr | None:
        """The quotient, without a division for each element; None: there is none without another rounding."""
        if self.is_fixed(expr):
            return None if _is_exact(expr) else Apply("div", (expr, divisor), expr.dtype)
        if not isinstance(expr, Apply) or expr.dtype != divisor.dtype:
            return None
        match expr:
            case Apply(op="mul", args=(x, y)):
                first, second = (x, y) if self.is_fixed(x) else (y, x)
                if (made := self.divided(first, divisor)) is not None:
                    return expr.with_args((made, y) if first is x else (x, made))
                made = self.divided(second, divisor)
                return None if made is None else expr.with_args((x, made) if first is x else (made, y))
            case Apply(op="div", args=(x, y)) if self.is_fixed(y):
                return expr.with_args((x, Apply("mul", (y, divisor), expr.dtype)))
            case Apply(op="neg" | "add" | "sub", args=terms):
                parts = [self.divided(term, divisor) for term in terms]
                return expr.with_args(part for part in parts if part is not None) if None not in parts else None
            case _:
                return None

    def is_fixed(self, expr: Expr) -> bool:
        """Whether the value is one for all elements."""
        return all(self.indices.isdisjoint(_names(node)) for node in walk(expr))

    def numbered(self, expr: Expr) -> Expr:
        """The expression with numbers for its indices, the same in all equations."""
        names = (name for node in walk(expr) for name in sorted(self.indices & _names(node)))
        return substitute(expr, {name: affine(f"#{k}") for k, name in enumerate(dict.fromkeys(names))})


def _is_step(expr: Apply) -> bool:
    """Whether the last bit of an operand may change the result by far more."""
    return expr.op in _STEPS or (not expr.dtype.is_float and any(a.dtype.is_float for a in expr.args))


def _names(node: Expr) -> Set[str]:
    match node:
        case Read():
            return {name for s in node.subscripts if isinstance(s, Affine) for name in s.variables()}
        case IndexValue():
            return set(node.affine.variables())
        case _:
            return frozenset()


def _is_exact(expr: Expr) -> bool:
    """Products with it may well be exact: a whole constant, or a power of two."""
    if not isinstance(expr, Const):
        return False
    return float(expr.value).is_integer() or abs(frexp(expr.value)[0]) == 0.5
