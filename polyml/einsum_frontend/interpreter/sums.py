"""The interpreter's own reading of the summation convention (docs/language.md, "The summation convention", rules 1 to 4)."""

from __future__ import annotations

from dataclasses import replace

from polyml.einsum_frontend.interpreter.names import free_indices
from polyml.einsum_frontend.syntax import Binary, Call, Expression, IndexRef, Reducer, Subscript, Unary
from polyml.errors import EinsumSyntaxError

__all__ = ["sum_missing"]


def sum_missing(value: Expression, missing: frozenset[str]) -> Expression:
    """`value` (resolved) with an explicit `Reducer(implied=True)` for each sum that the convention implies over `missing`.

    Raises:
        EinsumSyntaxError: the convention refuses.
    """
    return _terms(value, missing, top=True)


def _terms(expr: Expression, missing: frozenset[str], *, top: bool) -> Expression:
    if isinstance(expr, Binary) and expr.op in ("+", "-"):
        left, right = (_terms(e, missing, top=top) for e in (expr.left, expr.right))
        return replace(expr, left=left, right=right)
    here = free_indices(expr) & missing
    return _product(expr, here, top=top) if here else expr


def _product(expr: Expression, here: frozenset[str], *, top: bool) -> Expression:
    """One term: the indices of rules 1 and 2 are summed around it, those of rule 3 are handed to the one factor that has them."""
    factors, divisors = _factors(expr)
    summed: list[str] = []
    deeper: dict[int, set[str]] = {}
    for name in sorted(here):
        if any(name in free_indices(d) for d in divisors):
            raise _refusal(expr, name, "it is in a divisor")
        having = [f for f in factors if name in free_indices(f)]
        if len(having) >= 2:
            summed.append(name)
            continue
        match having[0]:
            case Subscript() if top:
                summed.append(name)
            case Binary(op="+" | "-"):
                deeper.setdefault(id(having[0]), set()).add(name)
            case Call(args=args) if sum(name in free_indices(a) for a in args) == 1:
                deeper.setdefault(id(having[0]), set()).add(name)
            case Reducer(items=items) if not any(name in free_indices(e) for e in items):
                deeper.setdefault(id(having[0]), set()).add(name)
            case _:
                raise _refusal(expr, name, "it is in one factor only")
    inner = _push(expr, {key: frozenset(names) for key, names in deeper.items()})
    if not summed:
        return inner
    items = tuple(IndexRef(name, expr.span) for name in summed)
    return Reducer("sum", items, inner, expr.span, implied=True)


def _factors(expr: Expression) -> tuple[list[Expression], list[Expression]]:
    """The factors and the divisors of a term."""
    match expr:
        case Binary(op="*"):
            (left, left_divisors), (right, right_divisors) = _factors(expr.left), _factors(expr.right)
            return left + right, left_divisors + right_divisors
        case Binary(op="/"):
            factors, divisors = _factors(expr.left)
            return factors, [*divisors, expr.right]
        case Unary(op="-"):
            return _factors(expr.operand)
        case _:
            return [expr], []


def _push(expr: Expression, deeper: dict[int, frozenset[str]]) -> Expression:
    """The product with the convention applied inside the factors that `deeper` lists by identity."""
    if id(expr) in deeper:
        missing = deeper[id(expr)]
        match expr:
            case Call():
                return replace(expr, args=tuple(_terms(a, missing, top=False) for a in expr.args))
            case Reducer():
                return replace(expr, body=_terms(expr.body, missing, top=False))
            case _:
                return _terms(expr, missing, top=False)
    match expr:
        case Binary(op="*" | "/"):
            return replace(expr, left=_push(expr.left, deeper), right=_push(expr.right, deeper))
        case Unary(op="-"):
            return replace(expr, operand=_push(expr.operand, deeper))
        case _:
            return expr


def _refusal(expr: Expression, name: str, why: str) -> EinsumSyntaxError:
    message = f"the index {name} is not on the left side, and what to sum over it is not clear: {why}"
    return EinsumSyntaxError(message, span=expr.span, hint=f"write the reducer: sum[{name}](...)")
