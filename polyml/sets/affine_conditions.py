"""Conditions in expressions as integer sets, where they compare index values only."""

from __future__ import annotations

from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.sets.affine import Affine, affine

__all__ = ["condition_text"]

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
    """The value of an integer expression made of index values and numbers."""
    match expr:
        case IndexValue():
            return expr.affine if expr.dtype.is_integer else None
        case Const(value=int(value)) if expr.dtype.is_integer:
            return affine(value)
        case Apply(op="cast") if expr.dtype.bits >= 32 and expr.dtype.is_integer:
            return _affine(expr.args[0])
        case Apply(op="add" | "sub" | "mul") if expr.dtype.is_integer:
            x, y = (_affine(arg) for arg in expr.args)
            if x is None or y is None:
                return None
            if expr.op == "mul":
                return x * y.constant if y.is_constant else y * x.constant if x.is_constant else None
            return x + y if expr.op == "add" else x - y
        case _:
            return None
