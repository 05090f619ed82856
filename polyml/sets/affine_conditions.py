"""Conditions in expressions as integer sets, where they compare index values only."""

from __future__ import annotations

from polyml.dtypes import i64
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.sets.affine import Affine, affine, combine

__all__ = ["condition_text"]

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
_SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "!="}
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def condition_text(condition: Expr, *, negated: bool = False) -> str | None:
    """The condition (or its negation) in isl's syntax, or None when it is not affine.

    Of a conjunction with parts that are not affine, the others remain: what is returned is implied by the condition.
    """
    match condition:
        case Const():
            return "true" if bool(condition.value) != negated else "false"
        case Apply(op="not"):
            return condition_text(condition.args[0], negated=not negated)
        case Apply(op="and" | "or"):
            parts = [condition_text(arg, negated=negated) for arg in condition.args]
            both = (condition.op == "and") != negated
            known = [part for part in parts if part is not None]
            if not known or (not both and len(known) < len(parts)):
                return None
            return f"({(' and ' if both else ' or ').join(known)})"
        case Apply() if condition.op in _SYMBOLS:
            x, y = (_affine(arg) for arg in condition.args)
            if x is None or y is None:
                return None
            symbol = _SYMBOLS[_OPPOSITE[condition.op] if negated else condition.op]
            return f"({x.isl_text()} {symbol} {y.isl_text()})"
        case _:
            return None


def _affine(expr: Expr) -> Affine | None:
    """The value of an expression of 64 bits made of index values and numbers; shorter and unsigned ones wrap."""
    if expr.dtype != i64:
        return None
    match expr:
        case IndexValue():
            return expr.affine
        case Const(value=int(value)):
            return affine(value)
        case Apply(op="neg", args=(inner,)):
            operand = _affine(inner)
            return None if operand is None else -operand
        case Apply(op=op, args=(first, second)) if op in _ARITHMETIC:
            x, y = _affine(first), _affine(second)
            return None if x is None or y is None else combine(_ARITHMETIC[op], x, y)
        case _:
            return None
