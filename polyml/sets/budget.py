"""A quota of isl operations around a phase of the compiler, so that no program can make it hang.

isl counts its own elementary operations, which makes the limit reproducible where seconds are not. The quota belongs to isl's context: compile under one lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import islpy as isl

__all__ = ["BudgetExhausted", "operation_budget"]

_QUOTA_TEXT = "maximal number of operations exceeded"


class BudgetExhausted(Exception):
    """A phase used up its isl operations; `phase` and `operations` say which and how many. Caught by the phase's fallback."""

    def __init__(self, phase: str, operations: int) -> None:
        self.phase = phase
        self.operations = operations
        super().__init__(f"{phase} took more than {operations} isl operations")


@contextmanager
def operation_budget(operations: int, *, phase: str) -> Iterator[None]:
    """Within the block isl may do that many operations (<= 0: any number); an enclosing quota is in force again afterwards, counted anew.

    Raises:
        BudgetExhausted: when they did not suffice. isl works normally again at that point.
    """
    context = isl.DEFAULT_CONTEXT
    outer = context.get_max_operations()
    context.reset_operations()
    context.set_max_operations(max(operations, 0))
    try:
        yield
    except (isl.Error, TypeError, ValueError) as error:
        # islpy's conversions of values (`Val.to_python`) stumble over what isl did not give them.
        if _QUOTA_TEXT in str(error) or _is_exhausted():
            raise BudgetExhausted(phase, operations) from None
        raise
    finally:
        context.set_max_operations(outer)
        context.reset_operations()


def _is_exhausted() -> bool:
    """Whether the quota is used up: not every error that follows from it says so, but any further operation does."""
    try:
        isl.Set("{ [i] : 0 <= i < 10 }").is_empty()
    except isl.Error as error:
        return _QUOTA_TEXT in str(error)
    return False
