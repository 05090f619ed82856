"""Zeros inside products become smaller domains: `sum_r where(0 <= h + r - 1 < H, x[h + r - 1], 0) * f[r]` sums over the r that are inside.

Padding written as `where` then costs nothing in the innermost loop. The language allows skipping such terms (it differs where the other factor is infinite or NaN).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import islpy as isl

from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Expr, Read, reads_of
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.sets.affine import Affine
from polyml.sets.affine_conditions import condition_text
from polyml.sets.spaces import parameters_of, parameters_text

__all__ = ["chosen_reads", "exact_condition", "kept_where", "restrict_domains", "restricted_to"]


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
    exact = [exact_condition(condition) for condition in conditions]
    texts = [text for text in exact if text is not None]
    return equation if len(texts) < len(conditions) else restricted_to(replace(equation, body=product), texts)


def restricted_to(equation: Equation, conditions: Sequence[str]) -> Equation:
    """The equation where all conditions hold, which are in isl's syntax and over its indices. A reduction gives the elements that lose all their terms the identity."""
    where = " and ".join(conditions)
    head = parameters_text(parameters_of(equation.domain))
    inside = isl.Set(f"{head}{{ {equation.result.name}[{', '.join(equation.indices)}] : {where} }}")
    instances, whole = equation.instances, equation.base is None and equation.is_plain
    if instances is None and equation.reduce is not None and not equation.accumulate and not whole:
        # Points of the left side that lose all their terms still take the identity.
        projected = equation.domain.project_out(isl.dim_type.set, len(equation.left), len(equation.reduced))
        instances = projected.set_tuple_name(equation.result.name)
    return replace(equation, domain=equation.domain.intersect(inside), instances=instances)


def _without_zeros(expr: Expr, conditions: list[Expr]) -> Expr:
    """The product with `where(c, x, 0)` replaced by x in its factors; the conditions are added to the list."""
    if isinstance(expr, Apply) and expr.op == "mul":
        x, y = (_without_zeros(arg, conditions) for arg in expr.args)
        return Apply("mul", (x, y), expr.dtype)
    if isinstance(expr, Apply) and expr.op == "cast":
        return Apply("cast", (_without_zeros(expr.args[0], conditions),), expr.dtype)
    kept = kept_where(expr, 0)
    if kept is None or exact_condition(kept[0]) is None:
        return expr
    conditions.append(kept[0])
    return _without_zeros(kept[1], conditions)


def kept_where(expr: Expr, other: float) -> tuple[Expr, Expr] | None:
    """A condition and what the expression is where it holds; elsewhere it is the other value."""
    match expr:
        case Apply(op="select", args=(condition, x, Const(value=value))) if value == other:
            return condition, x
        case Apply(op="select", args=(condition, Const(value=value), x)) if value == other:
            return Apply("not", (condition,), boolean), x
        case _:
            return None


def exact_condition(condition: Expr) -> str | None:
    """The condition in isl's syntax, when all of it is affine."""
    text, opposite = condition_text(condition), condition_text(condition, negated=True)
    # A conjunction with other parts keeps only the affine ones; its negation then has no form at all.
    return text if opposite is not None else None


def chosen_reads(expr: Expr, conditions: tuple[str, ...] = ()) -> Iterator[tuple[Read, tuple[str, ...]]]:
    """All reads with the affine conditions, in isl's syntax, without which a selection leaves out what they are a part of; a place in memory is said by numbers that are there, chosen or not."""
    match expr:
        case Apply(op="select", args=(condition, x, other)) if (text := exact_condition(condition)) is not None:
            opposite = condition_text(condition, negated=True)
            assert opposite is not None, "internal: an exact condition has an opposite"
            yield from chosen_reads(condition, conditions)
            yield from chosen_reads(x, (*conditions, text))
            yield from chosen_reads(other, (*conditions, opposite))
        case Apply():
            for arg in expr.args:
                yield from chosen_reads(arg, conditions)
        case Read():
            yield expr, conditions
            for subscript in expr.subscripts:
                if not isinstance(subscript, Affine):
                    yield from ((read, ()) for read in reads_of(subscript))
        case _:
            pass
