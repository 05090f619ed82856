"""Lanes of a vector loop that act because of where they are: those before its upper bound, those from some iteration on.

The number of lanes is compared with each lane's own in the narrowest integers that make a cheap mask.
"""

from __future__ import annotations

from functools import partial

from polyml.codegen.llvm.ir import Builder, Value, integer
from polyml.codegen.llvm.state import State
from polyml.codegen.loops import For
from polyml.codegen.passes.guards import difference_of
from polyml.expressions import Expr
from polyml.sets.affine import affine

__all__ = ["lanes_before", "lanes_where", "leading", "leading_lanes"]

_LANES_OF_I32_MASKS = 16

_FAR = 127
"""What 8 bits hold."""


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


def lanes_where(state: State, condition: Expr) -> Value | None:
    """What the condition is worth for each lane where it compares two places of which one moves against the other by a number from lane to lane; None where it says anything else."""
    lanes, difference = state.lanes, difference_of(condition)
    if lanes is None or difference is None:
        return None
    slope = state.nest.lane_stride(difference, lanes.variable, lanes.width)
    if not slope or abs(slope) * lanes.width > _FAR:
        return None
    first = state.nest.index(difference)
    # Ends of rows of known length compare with one number for all: beside exponentials a row at a time had two moves more of 64 instructions (softmax, Zen 3, 1.04 of the time).
    if first.is_constant or (slope < 0 and difference.variables() <= {lanes.variable}):
        return None
    # The difference is at least 0 from the first lane on that makes up for what the first one lacks, or before the one that takes away more than it has.
    how = "sge" if slope > 0 else "slt"
    lacks = partial(_lacking, state.builder, first, slope, lanes.width)
    level = state.nest.level_of_affine(difference)
    return state.nest.once(
        level, ("lanes", how, difference, lanes.width), lambda: _compared(state, how, lacks(), lanes.width, abs(slope))
    )


def _lacking(b: Builder, first: Value, slope: int, width: int) -> Value:
    """How far the first lane is from where the difference changes its sign, as far as the last one."""
    far = b.binary("sub", integer(0), first) if slope > 0 else b.binary("add", first, integer(1))
    return b.intrinsic("smax", b.intrinsic("smin", far, integer(abs(slope) * width)), integer(0))


def _compared(state: State, how: str, count: Value, width: int, step: int = 1) -> Value:
    b = state.builder
    count = b.convert("trunc", count, "i32" if width <= _LANES_OF_I32_MASKS else "i8")
    counting = ", ".join(f"{count.type} {step * lane}" for lane in range(width))
    return b.compare(how, Value(count.type.of(width), f"<{counting}>"), b.splat(count, width))
