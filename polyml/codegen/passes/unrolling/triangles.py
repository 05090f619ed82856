"""Loops to be jammed whose inner bounds or conditions change with their variable: cut into what all rows of a tile run, which is jammed, and what some do.

Without it a triangle has no register tiles: rows that are to run side by side have different ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyml.codegen.loops import Allocate, Block, For, Function, If, Node
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.guards import cut_at_guard, find_guard, guards_to_bounds, with_choice
from polyml.codegen.passes.simplify import simplify_nodes
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.boundaries import common_range, depends_on, over_lanes
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes
from polyml.new_names import fresh
from polyml.sets.affine import Extremum, affine, maximum, minimum

__all__ = ["cut_triangles"]


def cut_triangles(function: Function) -> Function:
    """The function with each loop of kind "jam" in parts: what all its rows run is jammed, what some run more (the teeth of a triangle) is in plain
    loops before and after. A loop of more rows than are jammed becomes a loop over tiles of them first.

    The parts of one row keep their order, and that rows may run side by side is the schedule's promise. Loops further inside are cut in the same way,
    with conditions for what some rows run.

    Rewrite:
        jam(4) for (i = t; i < t + 4; i++) for (j = 0; j < i; j++) S
        -> jam(4) for (i = t; i < t + 4; i++) for (j = 0; j < t; j++) S
           for (i = t; i < t + 4; i++) for (j = t; j < i; j++) S
    """
    taken = names_in(function)
    return map_loops(function, lambda loop, ranges, _: _cut(loop, ranges, taken))


def _cut(node: For, ranges: Ranges, taken: set[str]) -> tuple[Node, ...] | None:
    if node.kind != "jam" or node.factor < 2:
        return None
    guarded = any(isinstance(c, For) and find_guard(c, node.variable) is not None for c in node.body)
    if not (guarded or depends_on(node)) or any(_has_window(node.variable, child) for child in node.body):
        return (node,)
    trips = ranges.highest(node.upper - node.lower)
    if trips is not None and trips <= node.factor * node.step:
        return simplify_nodes(tuple(_parts(node)), ranges)
    if node.step != 1:
        return (node,)
    start = affine(fresh(f"{node.variable}_tile", taken))
    rows = replace(node, lower=start, upper=minimum([node.upper, start + node.factor]))
    tiles = replace(node, variable=start.name or "", kind="sequential", factor=1, step=node.factor)
    return simplify_nodes((replace(tiles, body=tuple(_parts(rows))),), ranges)


def _has_window(variable: str, child: Node) -> bool:
    """Whether a loop below the child has a bound with an extremum of the variable: the edges of a window, which are cut elsewhere."""
    inside = (node for body in _bodies(child) for node in walk_nodes(body) if isinstance(node, For))
    atoms = (atom for inner in inside for bound in (inner.lower, inner.upper) for atom, _ in bound.terms)
    return any(isinstance(atom, Extremum) and variable in affine(atom).variables() for atom in atoms)


def _bodies(node: Node) -> Iterator[tuple[Node, ...]]:
    match node:
        case For() | Allocate() | Block():
            yield node.body
        case If():
            yield from (node.then, node.otherwise)
        case _:
            pass


def _parts(rows: For) -> Iterator[For]:
    """The loops that replace a loop over the rows of one tile."""
    for child in rows.body:
        variable = rows.variable
        guard = find_guard(child, variable) if isinstance(child, For) else None
        ranges = None if guard is None else cut_at_guard(guard, rows)
        if isinstance(child, For) and guard is not None and ranges is not None:
            for lower, upper, holds in ranges:
                piece = replace(child, lower=lower, upper=upper)
                if holds is None:
                    yield _plain(rows, guards_to_bounds(piece, variable))
                elif body := with_choice(child.body, guard.node, guard.node.then if holds else guard.node.otherwise):
                    yield over_lanes(replace(rows, body=(replace(piece, body=body),)))
        elif (
            isinstance(child, For) and child.step == 1 and variable in child.lower.variables() | child.upper.variables()
        ):
            yield from _teeth(rows, child)
        else:
            yield over_lanes(replace(rows, body=(child,)))


def _teeth(rows: For, child: For) -> Iterator[For]:
    """A loop with other bounds in each row: its beginnings, what all rows have, and its ends. Where both bounds move there may be nothing that all rows have."""
    start, end = common_range(child, rows.variable, (rows.lower, rows.upper - 1))
    edge = replace(child, factor=1)
    both = rows.variable in child.lower.variables() & child.upper.variables()
    if rows.variable in child.lower.variables():
        yield _plain(rows, (replace(edge, upper=minimum([start, child.upper]) if both else start),))
    yield over_lanes(replace(rows, body=(replace(child, lower=start, upper=end),)))
    if rows.variable in child.upper.variables():
        yield _plain(rows, (replace(edge, lower=maximum([start, end]) if both else end),))


def _plain(rows: For, body: tuple[Node, ...]) -> For:
    return replace(rows, kind="sequential", factor=1, body=body)
