"""Integers that are written out, computed exactly: what 64 bits do not hold is refused, not wrapped, as `10**20` beside floats is no number of 64 bits."""

from __future__ import annotations

import operator
from collections.abc import Callable

from polyml.einsum_frontend.syntax import Binary, Expression, Number, Unary
from polyml.errors import EinsumSyntaxError

__all__ = ["check_whole_numbers", "whole_number"]

_OPS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip


def check_whole_numbers(e: Expression) -> None:
    """Raises EinsumSyntaxError where `e`, made of integers alone, has no value in 64 bits. Sizes and index values are no such integers: they wrap."""
    whole_number(e)


def whole_number(e: Expression) -> int | None:
    """The value of an expression of integers that are written out; None for others, and where there is no whole one."""
    match e:
        case Number(value=int() as value) if not isinstance(value, bool):
            return value
        case Unary(op="-"):
            operand = whole_number(e.operand)
            return None if operand is None else _held(-operand, e)
        case Binary() if e.op in _OPS:
            left = whole_number(e.left)
            right = None if left is None else whole_number(e.right)
            if (
                left is None
                or right is None
                or (right == 0 and e.op in ("//", "%"))
                or (right < 0 and e.op in ("**", "<<", ">>"))
            ):
                return None
            # What has more bits than that is not computed, which would take for ever.
            immense = right > 64 and ((e.op == "**" and abs(left) > 1) or (e.op == "<<" and left != 0))
            return _held(None if immense else _OPS[e.op](left, right), e)
        case _:
            return None


def _held(value: int | None, e: Expression) -> int:
    if value is None or not -(2**63) <= value < 2**63:
        raise EinsumSyntaxError(
            "the integer does not fit in 64 bits", span=e.span, hint="write it with floats: 1e30, 2.0**100"
        )
    return value
