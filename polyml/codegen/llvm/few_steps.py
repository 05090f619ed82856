"""Inner loops of a few rounds around a register tile, such as the taps of a filter's row, written out: counting takes as long as several sums, and the end of a loop that is entered again and
again is not always foreseen."""

from __future__ import annotations

from collections.abc import Callable

from polyml.codegen.llvm.ir import INDEX, Value, integer
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Assign, For
from polyml.operation_weights import COSTLY, operations_of
from polyml.sets.affine import operands

__all__ = ["emit_few_steps", "is_few_steps", "most_trips"]

LEAST_SUMS = 9
"""Up to eight sums wait for the ones before (4 cycles, two a cycle), with slots to spare for counting."""

MOST_SUMS = 96
"""Of all copies: three rounds of the largest register tile."""


def most_trips(node: For) -> int:
    """Rounds of a loop that has these numbers among its ends, at most; more than any loop has that is written out where there are none."""
    firsts = [bound.constant for bound in operands(node.lower, "max") if bound.is_constant]
    ends = [bound.constant for bound in operands(node.upper, "min") if bound.is_constant]
    return max(0, -((max(firsts) - min(ends)) // node.step)) if firsts and ends else MOST_SUMS


def is_few_steps(state: State, node: For, trips: int) -> bool:
    """Whether so many rounds of the loop are a few steps of a register tile's sums, and of nothing else. Of terms that are functions a copy is much to compile, and counting little beside it."""
    sums = len(node.body)
    if state.lanes is None or node.kind != "sequential" or sums < LEAST_SUMS or trips * sums > MOST_SUMS:
        return False
    return all(
        isinstance(inner, Assign) and inner.reduction is not None and operations_of(inner.value) < COSTLY
        for inner in node.body
    )


def emit_few_steps(
    state: State, node: For, bounds: tuple[Value, Value], trips: int, emit: Callable[[Value], None]
) -> None:
    """Copies of the body, one after another, with a way out behind each that is hardly ever taken: LLVM does not know the numbers, or it would keep in registers what two copies load, and let
    one's sums wait until those of the next, in more registers than there are. emit: the body, for a value of the variable."""
    b = state.builder
    (following, upper), after = bounds, b.fresh("after")
    for left in reversed(range(trips)):
        current = b.emit(INDEX, f'call i64 asm "", "=r,0"(i64 {following.text})')
        emit(current)
        if left:
            following, copy = b.binary("add nsw", current, integer(node.step)), b.fresh("copy")
            b.branch(b.compare("sge", following, upper), after, copy, rare=True)
            b.start(copy)
    b.jump(after)
    b.start(after)
    b.depth = max(b.depth, 1)
