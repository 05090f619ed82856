"""The loop passes for C: what is marked for vectors stays a plain loop, which the C compiler vectorizes; everything else as for machine code."""

from __future__ import annotations

from polyml.codegen.loops import Function
from polyml.codegen.passes.registers.scalar_replacement import scalar_replacement
from polyml.codegen.passes.simplify import simplify
from polyml.codegen.passes.unrolling.triangles import cut_triangles
from polyml.codegen.passes.unrolling.unroll import unroll
from polyml.codegen.passes.unrolling.unroll_and_jam import unroll_and_jam

__all__ = ["plain_loops"]


def plain_loops(function: Function) -> Function:
    """The function as generated, ready for `emit_c`: loops are sequential, parallel, or vector loops of width 1."""
    function = cut_triangles(simplify(function))
    function, _ = unroll_and_jam(function)
    function = simplify(unroll(function))
    return scalar_replacement(function)
