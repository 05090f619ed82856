"""Lanes of a sum over several loops are added up once, behind all of them, not in each iteration of the loops around the lanes'.

Rewrite:
    for r: { part = 0; vector for s: part += a[r, s]; y += part (across) }
    -> part = 0; for r: vector for s: part += a[r, s]; y += part (across)

Adding the lanes of a vector up takes as long as several vectors of terms. Rows of different lengths stay apart: those that are shorter than their parts would wait for each other.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, Node
from polyml.codegen.passes.vectors.privatize import is_fill
from polyml.codegen.rewrite import nodes_of, subscript_variables, targets_of, uses, walk_nodes, with_body
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["add_up_outside"]


def add_up_outside(function: Function) -> Function:
    """The function with such parts outside of the loops around them, as far as nothing else happens in these."""
    if not any(isinstance(node, Assign) and node.across for node in nodes_of(function)):
        return function
    body = _inside(function.body)
    return function if body is function.body else replace(function, body=body)


def _inside(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return renewed(nodes, map(_node, nodes))


def _node(node: Node) -> Node:
    node = with_body(node, _inside)
    return _moved(node) if isinstance(node, For) and node.kind == "sequential" else node


def _moved(loop: For) -> Node:
    """The parts around the loop; the loop where it holds more than a sum in parts."""
    registers, body = list[Allocate](), loop.body
    while len(body) == 1 and isinstance(body[0], Allocate):
        registers.append(body[0])
        body = body[0].body
    split = _split(body) if registers else None
    if split is None:
        return loop
    before, rows, behind = split
    names = {made.variable.name for made in registers}
    targets = [place for node in walk_nodes(behind) for place in targets_of(node) if place.variable not in names]
    results = {place.variable for place in targets}
    if not all(isinstance(s, Affine) for place in targets for s in place.subscripts):
        return loop
    if any(loop.variable in subscript_variables(place.subscripts) for place in targets):
        return loop
    if any(use.variable in results for node in walk_nodes(rows) for use in uses(node)):
        return loop
    made: tuple[Node, ...] = (*before, replace(loop, body=rows), *behind)
    for register in reversed(registers):
        made = (replace(register, body=made),)
    return made[0]


def _split(nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]] | None:
    """What fills the parts, what adds terms to them, and what adds them up."""
    end = len(nodes)
    while end and isinstance(last := nodes[end - 1], Assign) and last.across:
        end -= 1
    if end == len(nodes) or not end or not is_fill(nodes[0]):
        return None
    joins = end - 1 if is_fill(nodes[end - 1]) and end > 1 else end
    rows = nodes[1:joins]
    known = (isinstance(node, For) and not is_fill(node) and (node.upper - node.lower).is_constant for node in rows)
    return (nodes[:1], rows, nodes[joins:]) if rows and all(known) else None
