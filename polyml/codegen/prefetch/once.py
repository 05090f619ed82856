"""Requests of register tiles that go along rows: each line is asked for once.

A step of a tile's sums asks for the next elements of a row, and several steps are in one line. A request for what is in L2, or on its way, takes one of the few buffers (12 on Intel's Ice Lake) through which the panel's lines come
from there. So the steps of a line are a loop of their own, ahead of which the line is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, Node, Prefetch, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.prefetch.tile_sums import LEAST, LEAST_REGISTERS, map_tiles
from polyml.codegen.rewrite import have_no_bodies, nodes_of, with_body
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine, minimum

__all__ = ["LEAST_STEPS", "ask_once"]

LEAST_STEPS = 4
"""Steps of a line, at least: a loop of its own takes as many instructions as two requests."""


def ask_once(function: Function, line: int, registers: int) -> Function:
    """The function with sums of register tiles in loops over the lines that they ask for. line: bytes; 0: unknown. registers: of vectors, that the machine has; with 16 nothing is gained (measured with code for AVX2 on Ice Lake: 0.97 to 1.02 of
    the time).

    Rewrite:
        for (k..; k += 2) { prefetch L2 x[n + 8, k]; t += x[n, k] * p[k, m]; .. }
        -> for (l..; l += 8) { prefetch L2 x[n + 8, l]; for (k = l; k < l + 8; k += 2) { t += x[n, k] * p[k, m]; .. } }
    """
    if not line or registers < LEAST_REGISTERS or not any(isinstance(node, Prefetch) for node in nodes_of(function)):
        return function
    pass_ = _Once({v.name: v for v in function.arguments}, line, names_in(function))
    body = map_tiles(function.body, pass_.tile)
    return function if body is function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Once:
    """arguments: by name. line: bytes. taken: names that new loops may not have."""

    arguments: Mapping[str, Variable]
    line: int
    taken: set[str]

    def tile(self, lanes: For, _: tuple[For, ...]) -> For:
        body = self.inside(lanes.body)
        return lanes if body is lanes.body else replace(lanes, body=body)

    def inside(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if have_no_bodies(nodes):
            return nodes
        return renewed(nodes, (self.in_lines(n) if isinstance(n, For) else with_body(n, self.inside) for n in nodes))

    def in_lines(self, loop: For) -> Node:
        """The loop, where it asks for lines that several of its steps are in, as one over lines."""
        asked = [node for node in loop.body if isinstance(node, Prefetch)]
        adds = [node for node in loop.body if isinstance(node, Assign) and node.reduction is not None]
        if loop.kind != "sequential" or len(asked) + len(adds) < len(loop.body) or len(adds) < LEAST:
            return with_body(loop, self.inside)
        steps = [self.steps(node, loop) for node in asked]
        span = min((count for count in steps if count >= LEAST_STEPS), default=0) * loop.step
        if not span:
            return loop
        line = fresh(f"{loop.variable}_line", self.taken)
        once = [_at(node, loop, line) for node, count in zip(asked, steps, strict=True) if count >= LEAST_STEPS]
        each = [node for node, count in zip(asked, steps, strict=True) if count < LEAST_STEPS]
        length, end = loop.upper - loop.lower, affine(line) + span
        whole = length.is_constant and length.constant % span == 0
        upper = end if whole else minimum((loop.upper, end))
        inner = replace(loop, lower=affine(line), upper=upper, body=(*each, *adds))
        return replace(loop, variable=line, step=span, body=(*once, inner))

    def steps(self, asked: Prefetch, loop: For) -> int:
        """Steps of the loop in a line of an argument that is asked for; 0 where each asks for one elsewhere."""
        variable = self.arguments.get(asked.place.variable)
        flat = None if variable is None else flat_element(variable, asked.place.subscripts, whole_rows=True)
        along = None if flat is None else flat.stride(loop.variable)
        return self.line // (abs(along) * variable.dtype.itemsize * loop.step) if variable is not None and along else 0


def _at(asked: Prefetch, loop: For, line: str) -> Prefetch:
    """The request for what the line's first step asks for."""
    first = {loop.variable: affine(line)}
    there = (s.substitute(first) if isinstance(s, Affine) else s for s in asked.place.subscripts)
    return replace(asked, place=asked.place.at(there))
