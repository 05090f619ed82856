"""Lanes of a vector loop that act because of where they are: those before its upper bound, those from some iteration on.

The number of lanes is compared with each lane's own in the narrowest integers that make a cheap mask.
"""

from __future__ import annotations

from polyml.codegen.llvm.ir import Value, integer
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import For
from polyml.expressions import Apply, Expr, IndexValue
from polyml.sets.affine import affine

__all__ = ["lanes_before", "lanes_from", "leading", "leading_lanes"]

_LANES_OF_I32_MASKS = 16


def lanes_before(state: State, node: For, upper: Value) -> Value | None:
    """The lanes before the upper bound; None when they all are, provably."""
    extent = node.upper - node.lower
    if all(number % node.width == 0 for number in (extent.constant, *(c for _, c in extent.terms))):
        return None
    left = state.builder.binary("sub", upper, state.nest.index(affine(node.variable)))
    return _compared(state, "slt", state.builder.intrinsic("smin", left, integer(node.width)), node.width)


def leading(node: For) -> int | None:
    """How many lanes of a loop of one iteration are before the upper bound, where that is a number."""
    extent = node.upper - node.lower
    return extent.constant if extent.is_constant and 0 < extent.constant < node.width else None


def leading_lanes(state: State, node: For, current: Value, upper: Value) -> int | Value | None:
    """How many lanes are before the upper bound, more than there are or not, where somebody asks for that: of a power of two, which is stored by halves."""
    known = leading(node)
    if known is not None or not state.builder.module.instructions.avx2 or node.width.bit_count() != 1:
        return known
    b = state.builder
    return b.intrinsic("smax", b.binary("sub", upper, current), integer(0))


def lanes_from(state: State, condition: Expr) -> Value | None:
    """What the condition is worth for each lane where it says that the loop's variable is an iteration, the same for all lanes, or a later one; None where it says anything else."""
    match condition:
        case Apply(op="le", args=(IndexValue(affine=first), IndexValue(affine=last))):
            lanes = state.lanes
            if lanes is None or last != affine(lanes.variable) or lanes.variable in first.variables():
                return None
        case _:
            return None
    b = state.builder
    gone = b.binary("sub", state.nest.index(first), state.nest.index(last))
    gone = b.intrinsic("smax", b.intrinsic("smin", gone, integer(lanes.width)), integer(0))
    return _compared(state, "sge", gone, lanes.width)


def _compared(state: State, how: str, count: Value, width: int) -> Value:
    b = state.builder
    count = b.convert("trunc", count, "i32" if width <= _LANES_OF_I32_MASKS else "i8")
    counting = ", ".join(f"{count.type} {lane}" for lane in range(width))
    return b.compare(how, Value(count.type.of(width), f"<{counting}>"), b.splat(count, width))
