"""Reads whose subscripts `min` and `max` hold inside (`x[max(i - 1, 0)]`): one read for each case, each by an affine subscript."""

from __future__ import annotations

from dataclasses import replace

from polyml.einsum_frontend.syntax import Call, Compare, Expression, Reducer, Subscript
from polyml.einsum_frontend.walk import children, map_children, walk
from polyml.records import dataclass

__all__ = ["Cases", "by_cases"]


@dataclass(frozen=True, slots=True)
class Cases:
    """`first` is read where `test` holds, else `second`."""

    test: Compare
    first: Subscript
    second: Subscript


def by_cases(node: Subscript) -> Cases | None:
    """The read by the two smaller ones of an innermost `min` or `max` in a subscript; None where it has none. What reads tensors is a gather, and computed as it stands."""
    for position, subscript in enumerate(node.subscripts):
        if any(isinstance(part, Subscript | Reducer) for part in walk(subscript)):
            continue
        call = _innermost(subscript)
        if call is not None:
            a, b, *rest = call.args
            first, second = (
                replace(node, subscripts=(*node.subscripts[:position], put, *node.subscripts[position + 1 :]))
                for put in (
                    _put(subscript, call, replace(call, args=(kept, *rest)) if rest else kept) for kept in (a, b)
                )
            )
            return Cases(Compare((a, b), ("<=" if call.function == "min" else ">=",), call.span), first, second)
    return None


def _innermost(e: Expression) -> Call | None:
    for child in children(e):
        if (found := _innermost(child)) is not None:
            return found
    return e if isinstance(e, Call) and e.function in {"min", "max"} else None


def _put(e: Expression, call: Call, value: Expression) -> Expression:
    """`e` with `value` in the place of `call`."""
    return value if e is call else map_children(e, lambda child: _put(child, call, value))
