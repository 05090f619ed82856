"""Whole register tiles apart from those at the edges: `if (the tile is whole) { without conditions } else { with them }`, one answer for all threads of a block.

With a condition around each element of a thread's tile its sums would not stay in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from polyml.codegen.loops import Allocate, Block, For, Function, If, Node
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue
from polyml.sets.affine import Affine, affine, operands

__all__ = ["split_whole_tiles"]


def split_whole_tiles(function: Function) -> Function:
    """A kernel's function, as generated, with two versions of what is in its innermost block loops where jammed loops inside may end early."""
    sizes = frozenset(function.sizes)
    body = tuple(_visit(node, frozenset(), sizes) for node in function.body)
    return function if body == function.body else replace(function, body=body)


def _visit(node: Node, outer: frozenset[str], sizes: frozenset[str]) -> Node:
    if not isinstance(node, For) or node.kind != "block":
        return node if outer else with_body(node, lambda body: tuple(_visit(n, outer, sizes) for n in body))
    outer |= {node.variable}
    if any(isinstance(inner, For) and inner.kind == "block" for inner in walk_nodes(node.body)):
        return replace(node, body=tuple(_visit(n, outer, sizes) for n in node.body))
    return replace(node, body=_versions(node.body, outer, sizes))


def _versions(nodes: tuple[Node, ...], outer: frozenset[str], sizes: frozenset[str]) -> tuple[Node, ...]:
    needs: dict[Affine, None] = {}  # what must not be negative
    for loop, ranges in _loops(nodes, Ranges()):
        if loop.kind == "jam":
            found = _needs(loop, outer)
            least = None if found is None else [_least(value, outer | sizes, ranges) for value in found]
            if least is None or None in least:
                return nodes
            needs |= dict.fromkeys(value for value in least if value is not None)
    if not needs:
        return nodes
    whole = tuple(_whole(node, tuple(needs), outer) for node in nodes)
    tests: list[Expr] = [Apply("le", (IndexValue(affine(0), i64), IndexValue(n, i64)), boolean) for n in needs]
    condition = functools.reduce(lambda one, other: Apply("and", (one, other), boolean), tests)
    return (If(condition=condition, then=whole, otherwise=nodes),)


def _loops(nodes: tuple[Node, ...], ranges: Ranges) -> Iterator[tuple[For, Ranges]]:
    """The loops, each with what is known of those around it."""
    for node in nodes:
        if isinstance(node, For):
            yield node, ranges
            yield from _loops(node.body, ranges.enter(node))
        elif isinstance(node, If):
            yield from _loops((*node.then, *node.otherwise), ranges)
        elif isinstance(node, Allocate | Block):
            yield from _loops(node.body, ranges)


def _least(value: Affine, known: frozenset[str], ranges: Ranges) -> Affine | None:
    """The least value, in terms of the known names alone; None where the rest has no bound."""
    own = affine(0)
    for atom, coefficient in value.terms:
        own = own + affine(atom) * coefficient if isinstance(atom, str) and atom in known else own
    least = ranges.lowest(value - own)
    return None if least is None else own + least


def _parts(bound: Affine, kind: str, outer: frozenset[str]) -> tuple[Affine, list[Affine]] | None:
    """The operand that moves with the tile, and the others; None where that is not one."""
    found = operands(bound, kind)
    own = [o for o in found if o.variables() & outer]
    return (own[0], [o for o in found if o is not own[0]]) if len(own) == 1 else None


def _needs(loop: For, outer: frozenset[str]) -> list[Affine] | None:
    """What must not be negative for the jammed loop to run in full; None where it is no tile's."""
    upper, lower = _parts(loop.upper, "min", outer), _parts(loop.lower, "max", outer)
    if upper is None or lower is None:
        return None
    return [other - upper[0] for other in upper[1]] + [lower[0] - other for other in lower[1]]


def _whole(node: Node, needs: tuple[Affine, ...], outer: frozenset[str]) -> Node:
    """The node where the needs are met."""
    if isinstance(node, For) and node.kind == "jam":
        upper, lower = _parts(node.upper, "min", outer), _parts(node.lower, "max", outer)
        assert upper is not None, "internal: a jammed loop without a tile"
        assert lower is not None, "internal: a jammed loop without a tile"
        node = replace(node, upper=upper[0], lower=lower[0])
    elif isinstance(node, For) and node.kind == "thread":
        found, first = operands(node.upper, "min"), operands(node.lower, "max")
        last = next((o for o in found if o.is_constant), None)
        if last is not None and all(o is last or _implied(o - last, needs) for o in found):
            node = replace(node, upper=last)
        start = next((o for o in first if o.is_constant), None)
        if start is not None and all(o is start or _implied(start - o, needs) for o in first):
            node = replace(node, lower=start)
    return with_body(node, lambda body: tuple(_whole(child, needs, outer) for child in body))


def _implied(value: Affine, needs: tuple[Affine, ...]) -> bool:
    """Whether the value is not negative where the needs are not."""
    return any((value - need).is_constant and (value - need).constant >= 0 for need in needs)
