"""Zeros inside products become smaller domains: `sum_r where(0 <= h + r - 1 < H, x[h + r - 1], 0) * f[r]` sums over the r that are inside.

Padding written as `where` then costs nothing in the innermost loop. The language allows skipping such terms (it differs where the other factor is infinite or NaN).
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Const, Expr
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.sets.affine_conditions import condition_text

__all__ = ["restrict_domains"]


def restrict_domains(graph: Graph) -> Graph:
    """The graph with affine conditions that make a sum's products zero moved into the sums' domains."""
    ops = map_equations(graph.ops, _restricted)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _restricted(equation: Equation) -> Equation:
    body = equation.body
    if equation.reduce != "sum" or not (isinstance(body, Apply) and body.op == "mul"):
        return equation
    conditions: list[Expr] = []
    product = _without_zeros(body, conditions)
    if not conditions:
        return equation
    exact = [_exact(condition) for condition in conditions]
    texts = [text for text in exact if text is not None]
    if len(texts) < len(conditions):
        return equation
    where = " and ".join(texts)
    parameters = [
        equation.domain.get_dim_name(isl.dim_type.param, d) for d in range(equation.domain.dim(isl.dim_type.param))
    ]
    head = f"[{', '.join(name for name in parameters if name)}] -> "
    inside = isl.Set(f"{head}{{ {equation.result.name}[{', '.join(equation.indices)}] : {where} }}")
    instances = equation.instances
    if instances is None and not equation.accumulate:
        # Points of the left side that lose all their terms still take the identity.
        count = len(equation.indices) - len(equation.reduced)
        projected = equation.domain.project_out(isl.dim_type.set, count, len(equation.reduced))
        instances = projected.set_tuple_name(equation.result.name)
    return replace(equation, body=product, domain=equation.domain.intersect(inside), instances=instances)


def _without_zeros(expr: Expr, conditions: list[Expr]) -> Expr:
    """The product with `where(c, x, 0)` replaced by x in its factors; the conditions are added to the list."""
    match expr:
        case Apply(op="mul", args=(x, y)):
            return Apply("mul", (_without_zeros(x, conditions), _without_zeros(y, conditions)), expr.dtype)
        case Apply(op="select", args=(condition, x, Const(value=zero))) if zero == 0 and _exact(condition) is not None:
            conditions.append(condition)
            return _without_zeros(x, conditions)
        case _:
            return expr


def _exact(condition: Expr) -> str | None:
    """The condition in isl's syntax, when all of it is affine."""
    text, opposite = condition_text(condition), condition_text(condition, negated=True)
    # A conjunction with other parts keeps only the affine ones; its negation then has no form at all.
    return text if opposite is not None else None
