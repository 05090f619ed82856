"""Terms that a condition makes nothing of: `where(c, x, 0)` of a sum, `where(c, x, -inf)` of a maximum.

A reduction may leave such a term out. Of floating-point numbers it does unless their order is kept: what is added to a sum last may be a zero, which makes 0 of -0.
"""

from __future__ import annotations

from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Expr, factors_of, ops_in, product_of
from polyml.ops import REDUCTIONS

__all__ = ["LEAST_SKIPPED", "LEAST_SKIPPED_IN_LANES", "mask_of"]

LEAST_SKIPPED = 16
"""Updates of computed elements, two to five cycles each, from which on skipping them is worth a branch that is guessed wrong now and then."""

LEAST_SKIPPED_IN_LANES = 64
"""The same of rows of such elements, which lanes go along."""


def mask_of(term: Expr, reduction: str, *, precise: bool) -> tuple[Expr, Expr] | None:
    """The condition without which a term of the reduction changes nothing, and the term where it holds; None where there is none.

    A zero among the factors of a product counts as in docs/numerics.md: of floating-point numbers where a `where` says so, and not with `precise`.
    """
    if precise and term.dtype.is_float and reduction == "sum":
        return None
    identity = REDUCTIONS[reduction].identity(term.dtype)
    if identity is None:
        return None
    found = _chosen(term, identity)
    if found is not None or reduction != "sum":
        return found
    factors = factors_of(term)
    for k, factor in enumerate(factors):
        found = _chosen(factor, 0)
        if found is not None and (not term.dtype.is_float or not _is_flag(factor)):
            condition, rest = found
            return condition, product_of([*factors[:k], rest, *factors[k + 1 :]])
    return None


def _chosen(value: Expr, identity: int | float | bool) -> tuple[Expr, Expr] | None:
    """The condition under which a value is not the identity, and what it is then."""
    match value:
        case Apply(op="select", args=(condition, chosen, Const(value=other))) if other == identity:
            return condition, chosen
        case Apply(op="select", args=(condition, Const(value=other), chosen)) if other == identity:
            return Apply("not", (condition,), boolean), chosen
        case Apply(op="neg", args=(positive,)) if identity == 0:
            found = _chosen(positive, identity)
            return None if found is None else (found[0], value.with_args([found[1]]))
        case Apply(op="cast", args=(flag,)) if flag.dtype == boolean and identity == 0:
            return flag, Const(1, value.dtype)
        case _:
            return None


def _is_flag(factor: Expr) -> bool:
    """Whether a factor is zero without a `where` that says so."""
    return "select" not in ops_in(factor)
