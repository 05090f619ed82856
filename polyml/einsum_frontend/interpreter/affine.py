"""Integer expressions of the interpreter: subscripts, bounds and conditions, evaluated at concrete values of all their names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from polyml.einsum_frontend.interpreter.names import children
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    CompareOp,
    Expression,
    IndexRef,
    LoopRef,
    Number,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.errors import NotAffineError

__all__ = ["affine_value", "compare", "condition_value", "decide", "has_reads"]


def has_reads(expr: Expression) -> bool:
    """Whether some tensor or scalar is read in the expression (a subscript that reads is a gather)."""
    if isinstance(expr, IndexRef | LoopRef | Number | SizeRef):  # most subscripts
        return False
    return isinstance(expr, Subscript) or any(has_reads(e) for e in children(expr))


def affine_value(expr: Expression, values: Mapping[str, int]) -> int:
    """The value of a quasi-affine expression where `values` gives every index, loop variable and size.

    Raises:
        NotAffineError: products of variables, division by a variable, a float, a read, a function.
    """
    match expr:
        case Number(value=bool() | int() as value):
            return int(value)
        case IndexRef() | LoopRef() | SizeRef():
            return values[expr.name]
        case Unary(op="-"):
            return -affine_value(expr.operand, values)
        case Binary(op="+"):
            return affine_value(expr.left, values) + affine_value(expr.right, values)
        case Binary(op="-"):
            return affine_value(expr.left, values) - affine_value(expr.right, values)
        case Binary(op="*") if _is_constant(expr.left) or _is_constant(expr.right):
            return affine_value(expr.left, values) * affine_value(expr.right, values)
        case Binary(op="//" | "%") if _is_constant(expr.right):
            divisor = affine_value(expr.right, values)
            if divisor <= 0:
                raise NotAffineError(f"division by {divisor}, which is not positive", span=expr.span)
            quotient, remainder = divmod(affine_value(expr.left, values), divisor)
            return quotient if expr.op == "//" else remainder
        case Binary(op="**") if _is_constant(expr) and 0 <= affine_value(expr.right, values) < 64:
            power: int = affine_value(expr.left, values) ** affine_value(expr.right, values)
            return power
        case Call(function="min" | "max" as name):  # in the bounds of loops, and in subscripts that are read
            return (min if name == "min" else max)(affine_value(arg, values) for arg in expr.args)
        case _:
            raise NotAffineError("the expression is not affine in indices, loop variables and sizes", span=expr.span)


def _is_constant(expr: Expression) -> bool:
    """Whether only numbers and sizes occur."""
    return isinstance(expr, Number | SizeRef) or (
        isinstance(expr, Unary | Binary) and all(_is_constant(e) for e in children(expr))
    )


def condition_value(expr: Expression, values: Mapping[str, int]) -> bool:
    """Whether an affine condition holds.

    Raises:
        NotAffineError: it is no comparison of affine expressions, nor `and`, `or`, `not` of such.
    """
    match expr:
        case Compare():
            pairs = itertools.pairwise(affine_value(e, values) for e in expr.operands)
            return all(compare(op, a, b) for op, (a, b) in zip(expr.ops, pairs, strict=True))
        case Boolean():
            results = [condition_value(e, values) for e in expr.operands]
            return all(results) if expr.op == "and" else any(results)
        case Unary(op="not"):
            return not condition_value(expr.operand, values)
        case Number(value=bool() as value):
            return value
        case _:
            raise NotAffineError("the condition is not affine in indices, loop variables and sizes", span=expr.span)


def decide(expr: Expression, values: Mapping[str, int]) -> bool | None:
    """The truth of a `where` condition as far as its affine parts settle it; None when it depends on data."""
    match expr:
        case Boolean():
            results = [decide(e, values) for e in expr.operands]
            settled = expr.op == "or"
            if settled in results:
                return settled
            return None if None in results else not settled
        case Unary(op="not"):
            inner = decide(expr.operand, values)
            return None if inner is None else not inner
        case _:
            try:
                return condition_value(expr, values)
            except NotAffineError:
                return None


def compare(op: CompareOp, a: int, b: int) -> bool:
    """`a op b` on integers."""
    match op:
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case "==":
            return a == b
        case "!=":
            return a != b
