"""Loops that scatter, element by element, are unrolled a little: one jump a cycle is all that a core takes, and counting one by one leaves it no time for the next element (a histogram is a load and an addition to memory)."""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function
from polyml.codegen.map_loops import map_loops
from polyml.codegen.ranges import Ranges
from polyml.sets.affine import Affine

__all__ = ["unroll_scatters"]

_FACTOR = 4


def unroll_scatters(function: Function) -> Function:
    """The function with its innermost loops marked for unrolling whose one statement goes to an element that another tensor says; the copies follow one another, so that each element keeps its order."""
    return map_loops(function, _unrolled)


def _unrolled(loop: For, ranges: Ranges, _: For | None) -> For | None:
    if loop.kind != "sequential" or not _scatters(loop):
        return None
    trips = ranges.highest(loop.upper - loop.lower)
    long = trips is None or trips >= 2 * _FACTOR * loop.step
    return replace(loop, kind="unroll", factor=_FACTOR) if long else loop


def _scatters(loop: For) -> bool:
    match loop.body:
        case (Assign(scan=None) as assign,):
            return any(not isinstance(subscript, Affine) for subscript in assign.target.subscripts)
        case _:
            return False
