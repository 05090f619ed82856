"""Loops along short rows that lanes go across are written out: what all lanes touch lies side by side then, and is shuffled (codegen/llvm/memory/phases.py), where each iteration alone would take it one element at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import variables_by_name
from polyml.expressions import Subscript, reads_of
from polyml.records import dataclass
from polyml.sets.affine import Affine
from polyml.sets.turns import MOST_BETWEEN

__all__ = ["unroll_rows"]


def unroll_rows(function: Function) -> Function:
    """The function with innermost loops in lanes marked for unrolling that go through the elements between those of neighbouring lanes, as many as these are apart.

    Rewrite:
        vector(16) for (i ..) for (j = 0; j < 4; j++) y[j, i] = x[4*i + j];
        -> vector(16) for (i ..) unroll for (j = 0; j < 4; j += 1) y[j, i] = x[4*i + j];
    """
    return map_loops(function, _Rows(variables_by_name(function)).unrolled)


@dataclass(frozen=True, slots=True)
class _Rows:
    variables: Mapping[str, Variable]

    def unrolled(self, loop: For, ranges: Ranges, lanes: For | None) -> For | None:
        trips = None if lanes is None or lanes.masked else self.between(loop, ranges, lanes)
        return None if trips is None else replace(loop, kind="unroll", factor=trips)

    def between(self, loop: For, ranges: Ranges, lanes: For) -> int | None:
        """The iterations of a loop that goes through whole rows of an array, one for each lane, and only assigns, or adds up; None for others."""
        if loop.kind != "sequential" or loop.step != 1:
            return None
        if not all(isinstance(node, Assign) and node.scan is None for node in loop.body):
            return None
        trips = ranges.constant(loop.upper - loop.lower)
        # Rows that are whole blocks are transposed (passes/transposes).
        if trips is None or not 1 < trips <= MOST_BETWEEN or trips % lanes.width == 0:
            return None
        goes = any(
            flat is not None and flat.stride(lanes.variable) == trips and flat.stride(loop.variable) == 1
            for flat in (self.flat(*place) for node in loop.body for place in _places(node))
        )
        return trips if goes else None

    def flat(self, name: str, subscripts: tuple[Subscript, ...]) -> Affine | None:
        variable = self.variables.get(name)
        return None if variable is None or variable.scope == "register" else flat_element(variable, subscripts)


def _places(node: Node) -> Iterator[tuple[str, tuple[Subscript, ...]]]:
    if isinstance(node, Assign):
        yield node.target.variable, node.target.subscripts
        yield from ((read.tensor, read.subscripts) for read in reads_of(node.value))
