"""Reads behind conditions of elements that are there whatever the conditions say: such a read needs no mask."""

from __future__ import annotations

from polyml.codegen.llvm.state import State
from polyml.codegen.loops import For
from polyml.expressions import Subscript

__all__ = ["is_inside", "reads_all_lanes"]


def is_inside(state: State, name: str, subscripts: tuple[Subscript, ...], *loops: For) -> bool:
    """Whether all iterations of the loops around, and of these inside of them, have such an element, for certain."""
    slot = state.slots.get(name)
    if slot is None or not subscripts:
        return False
    ranges = state.outside
    for loop in (*state.loops, *loops):
        ranges = ranges.enter(loop)
    return ranges.is_element(slot.variable.shape, subscripts)


def reads_all_lanes(state: State, name: str, subscripts: tuple[Subscript, ...]) -> bool:
    """Whether lanes that a condition keeps from acting read, too: no instruction reads numbers so small under a mask, and all of the elements are there."""
    lanes, whole = state.lanes, state.loop_lanes
    if lanes is None or lanes.mask is None or whole is None or lanes.mask == whole.mask:
        return False
    if (whole.variable, whole.width) != (lanes.variable, lanes.width):
        return False  # along the rows of a block that is transposed
    slot = state.slots[name]
    small = 8 * slot.variable.dtype.itemsize < state.builder.module.instructions.least_masked
    return small and is_inside(state, name, subscripts)
