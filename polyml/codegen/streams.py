"""Stores that bypass the caches need aligned addresses: which loop index a vector loop must start its whole vectors at.

An argument may lie anywhere. Its `Lead` says how far its first aligned element is, so the first index of a row whose address is aligned is known too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyml.codegen.loops import Assign, For, Lead, Node, Place, Variable
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import fresh, walk_nodes
from polyml.expressions import Subscript
from polyml.sets.affine import Affine, affine

__all__ = ["Leads", "flat_element"]

LONG = 16
"""A row of fewer vectors than this is not worth a first one under a mask."""


@dataclass(slots=True)
class Leads:
    """The leads that a function's loops ask for. arguments: by name. taken: names in use."""

    arguments: Mapping[str, Variable]
    taken: set[str]
    found: dict[tuple[str, int], Lead] = field(default_factory=dict)

    def before_aligned(self, loop: For, ranges: Ranges, width: int, vector_bytes: int) -> Affine | None:
        """How many iterations of `loop` (which will have `width` lanes) come before the first whose streaming store is aligned: 0 .. width - 1.

        None where that is not worth it: rows are short; or vectors are written now and then, to several rows in turn (a register tile), which leaves too
        many lines half written.
        """
        trips = ranges.constant(loop.upper - loop.lower)
        if trips is None or trips < LONG * width or any(isinstance(node, For) for node in walk_nodes(loop.body)):
            return None
        jammed = {outer.variable for outer in ranges.loops if outer.kind == "jam"}
        for place in _streamed(loop.body):
            variable = self.arguments.get(place.variable)
            flat = None if variable is None else flat_element(variable, place.subscripts)
            if variable is None or flat is None or flat.stride(loop.variable) != 1:
                continue
            if variable.dtype.itemsize * width != vector_bytes:
                continue
            first = flat + loop.lower - affine(loop.variable)
            rest = Affine(tuple((a, c % width) for a, c in first.terms if c % width), first.constant % width)
            if flat.variables() & jammed:
                continue
            lead = affine(self._lead(variable, vector_bytes).name)
            return lead if rest == affine(0) else (lead - rest) % width
        return None

    def _lead(self, variable: Variable, size: int) -> Lead:
        key = (variable.name, size)
        if key not in self.found:
            self.found[key] = Lead(fresh(f"{variable.name}_lead", self.taken), variable.name, size)
        return self.found[key]


def _streamed(nodes: tuple[Node, ...]) -> list[Place]:
    return [node.target for node in walk_nodes(nodes) if isinstance(node, Assign) and node.streaming]


def flat_element(variable: Variable, subscripts: tuple[Subscript, ...]) -> Affine | None:
    """The element counted from the array's start; None when strides depend on sizes or a subscript is indirect."""
    strides = variable.strides
    if strides is None:
        steps, step = [], 1
        for extent in reversed(variable.shape):
            steps.append(step)
            if not extent.is_constant:
                return None
            step *= extent.constant
        strides = tuple(reversed(steps))
    total = Affine()
    for subscript, stride in zip(subscripts, strides, strict=True):
        if not isinstance(subscript, Affine):
            return None
        total = total + subscript * stride
    return total
