"""Constant folding and algebra on expressions: a table of rules per op, applied from the leaves up.

Only what holds for every float is here: NaN and infinities keep their meaning, and so does the sign of zero (`x + 0.0` turns -0.0 into 0.0, so it stays; `x - 0.0`
goes). `x * 0` and `x - x` go for integers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.graph.edit import map_equations, map_expressions
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.algebra.simplify_indices import INDEX_RULES
from polyml.graph.rules.algebra.simplify_scalars import SCALAR_RULES, Rule
from polyml.ops import OPS
from polyml.sets.affine import Affine, affine

__all__ = ["RULES", "simplify", "simplify_expression"]


def simplify(graph: Graph) -> Graph:
    """Every expression in its simplest form; the same object when all are."""

    def change(equation: Equation) -> Equation:
        return map_expressions(equation, simplify_expression)

    ops = map_equations(graph.ops, change)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def simplify_expression(expr: Expr) -> Expr:
    """The expression with all rules of the table applied, innermost first; the same object when none applies."""
    match expr:
        case Const():
            return expr
        case IndexValue():
            return Const(expr.affine.constant, expr.dtype) if expr.affine.is_constant else expr
        case Read():
            return expr.at(map(_simplify_subscript, expr.subscripts))
        case Apply():
            applied = expr.with_args(map(simplify_expression, expr.args))
            for rule in (_fold, *RULES.get(expr.op, ())):
                simpler = rule(applied)
                if simpler is not None and simpler.dtype == expr.dtype:
                    return simplify_expression(simpler)
            return applied


def _simplify_subscript(subscript: Subscript) -> Subscript:
    """A gathered subscript whose value is affine after all becomes an affine one."""
    if isinstance(subscript, Affine):
        return subscript
    simpler = simplify_expression(subscript)
    match simpler:
        case IndexValue():
            return simpler.affine
        case Const(value=int(value)):
            return affine(value)
        case _:
            return simpler


def _fold(expr: Apply) -> Expr | None:
    """An op on constants is a constant, computed as NumPy does."""
    values = [arg.value for arg in expr.args if isinstance(arg, Const)]
    if len(values) < len(expr.args) or expr.dtype.is_complex:
        return None
    least = {"floordiv": 1, "mod": 1, "pow": 0}.get(expr.op)
    if least is not None and expr.dtype.is_integer and values[1] < least:
        return None
    dtype = expr.dtype.numpy
    with np.errstate(all="ignore"):
        numbers = [np.asarray(value, arg.dtype.numpy) for value, arg in zip(values, expr.args, strict=True)]
        if (
            expr.op == "cast"
            and expr.dtype.kind in "iu"
            and expr.args[0].dtype.is_float
            and not np.isfinite(numbers[0])
        ):
            return None
        if OPS[expr.op].rule in ("float", "true_divide"):
            numbers = [number.astype(dtype) for number in numbers]
        result = np.asarray(OPS[expr.op].meaning(*numbers)).astype(dtype)
    return Const(result.item(), expr.dtype)


RULES: Mapping[str, tuple[Rule, ...]] = {
    op: tuple(table[op] for table in (INDEX_RULES, SCALAR_RULES) if op in table)
    for op in INDEX_RULES.keys() | SCALAR_RULES.keys()
}
"""By op; index values first."""
