"""What may stand in a subscript, a condition and a bound: the quasi-affine form, checked on resolved expressions.

The check is by form, without numbers: a symbolic size may multiply or divide an index (the compiler then specializes on it); two indices, loop variables or values read
from tensors may not be multiplied, nor divide anything, nor stand in a power. Only the bounds of loops, and subscripts that are read, may be the smallest or largest of several.
A subscript in elements of tensors is computed, not analysed: there products and quotients are free, and a function may have anything in it (`t[i64(floor(x[n] * B))]`).
"""

from __future__ import annotations

from typing import assert_never

from polyml.einsum_frontend.printer import format_expression
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    LoopRef,
    Name,
    Number,
    Reducer,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.einsum_frontend.walk import walk
from polyml.einsum_frontend.whole_numbers import whole_number
from polyml.errors import NotAffineError

__all__ = ["require_affine", "require_condition"]

_LONGEST = "let it run to the end of the longest, and leave out by where(k < end[i], .., 0) what is beyond; entries of a sparse matrix carry their row: y[row[z]] += value[z] * x[column[z]]"


def require_affine(e: Expression, *, role: str, reads: bool, extrema: bool = False) -> None:
    """Refuses `e` unless it is quasi-affine. `role` names it in the message ("a subscript"); `reads`: whether tensor elements may stand in it. `extrema`: whether `min` and `max` may.

    Raises:
        NotAffineError: with the part at fault.
    """
    match e:
        case IndexRef() | LoopRef() | SizeRef():
            return
        case Number(value=value):
            if isinstance(value, bool) or not isinstance(value, int):
                raise NotAffineError(f"{role} has the number {value!r}, which is not an integer", span=e.span)
        case Subscript():
            if not reads:
                hint = "conditions on data go into where(condition, value, other)" if "condition" in role else None
                if "bound" in role:
                    hint = _LONGEST if e.subscripts else "pass it as an `int` parameter"
                raise NotAffineError(f"{role} reads {format_expression(e)!r}, which is data", span=e.span, hint=hint)
        case Unary(op="-"):
            require_affine(e.operand, role=role, reads=reads, extrema=extrema)
        case Binary(op="+" | "-" | "*" | "//" | "%"):
            require_affine(e.left, role=role, reads=reads, extrema=extrema)
            require_affine(e.right, role=role, reads=reads, extrema=extrema)
            if e.op == "*":
                _require_factor(e, role, reads)
            elif e.op in {"//", "%"}:
                _require_divisor(e, role, reads)
        case Binary(op="**") if not _varies(e) or (reads and _is_computed(e)):
            require_affine(e.left, role=role, reads=reads, extrema=extrema)
            require_affine(e.right, role=role, reads=reads, extrema=extrema)
            if (exponent := whole_number(e.right)) is not None and exponent < 0:
                raise NotAffineError(f"{role} has a power of {exponent}, which is no integer", span=e.span)
        case Binary(op="&" | "|" | "^" | "<<" | ">>") if reads and _is_computed(e):
            require_affine(e.left, role=role, reads=reads, extrema=extrema)
            require_affine(e.right, role=role, reads=reads, extrema=extrema)
        case Call() if reads and _is_computed(e):
            return
        case Call(function="min" | "max") if extrema:
            for arg in e.args:
                require_affine(arg, role=role, reads=reads, extrema=extrema)
        case Binary(op="/"):
            raise NotAffineError(f"{role} is not an integer", span=e.span, hint="write `//` to divide indices")
        case Binary() | Unary() | Compare() | Boolean() | Call() | Reducer():
            hint = "compute it in a statement of its own first" if reads else None
            if reads and isinstance(e, Compare | Boolean):
                hint = "how many elements a mask keeps is data: write where(mask, .., ..)"
            if reads and isinstance(e, Call) and e.function in {"min", "max"}:
                hint = "on a left side an `if` leaves out the instances that would lie outside"
            raise NotAffineError(f"{role} is not affine: {format_expression(e)!r}", span=e.span, hint=hint)
        case Name():
            raise AssertionError("internal: an unresolved name")
        case _:
            assert_never(e)


def _require_factor(e: Binary, role: str, reads: bool) -> None:
    """Refuses a product of two things that vary."""
    if _varies(e.left) and _varies(e.right) and not (reads and _is_computed(e)):
        raise NotAffineError(
            f"{role} multiplies {format_expression(e.left)!r} by {format_expression(e.right)!r}: it is not affine",
            span=e.span,
            hint="one of the two must be made of numbers and sizes",
        )


def _require_divisor(e: Binary, role: str, reads: bool) -> None:
    """Refuses a quotient or remainder by anything but a positive number or sizes."""
    if _varies(e.right) and not (reads and _is_computed(e)):
        message = f"{role} divides by {format_expression(e.right)!r}: it is not affine"
        raise NotAffineError(message, span=e.span, hint="divide by numbers and sizes only")
    divisor = whole_number(e.right)
    if divisor is not None and divisor <= 0:
        hint = "a divisor is 1 or more" if divisor == 0 else "turn the signs round: i // -2 is -i // 2"
        raise NotAffineError(f"{role} divides by {divisor}, which is not a positive number", span=e.span, hint=hint)


def require_condition(e: Expression, *, role: str) -> None:
    """Refuses `e` unless it is made of comparisons of affine expressions with and, or, not.

    Raises:
        NotAffineError: with the part at fault.
    """
    match e:
        case Compare():
            for operand in e.operands:
                require_affine(operand, role=role, reads=False)
        case Boolean():
            for operand in e.operands:
                require_condition(operand, role=role)
        case Unary(op="not"):
            require_condition(e.operand, role=role)
        case Number(value=bool()):
            return
        case Subscript():
            require_affine(e, role=role, reads=False)
        case _:
            hint = "write a comparison, such as i > 0"
            raise NotAffineError(f"{role} is not a comparison: {format_expression(e)!r}", span=e.span, hint=hint)


def _is_computed(e: Expression) -> bool:
    """Whether elements of tensors decide the value, and no reducer does, which has to be a statement of its own."""
    parts = tuple(walk(e))
    return any(isinstance(part, Subscript) for part in parts) and not any(isinstance(part, Reducer) for part in parts)


def _varies(e: Expression) -> bool:
    return any(isinstance(part, (IndexRef, LoopRef, Subscript)) for part in walk(e))
