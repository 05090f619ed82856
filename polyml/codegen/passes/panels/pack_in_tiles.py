"""A panel that several register tiles read is packed by the first of them, as it goes.

A copy of its own waits for each line twice, for the one that it reads and for the one that it writes, since both together are more than L1 holds; beside the sums of a tile this costs next to nothing, and
what the tile multiplies with is in registers already.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from polyml.codegen.loops import Assign, For, Function, If, Node
from polyml.codegen.passes.sums.chained_sums import IN_FLIGHT
from polyml.codegen.passes.unrolling.unroll import rolled_up
from polyml.codegen.prefetch.inner_loops import inner_loops, put_first
from polyml.codegen.rewrite import have_no_bodies, names_read, substitute_nodes, uses, walk_nodes, with_body
from polyml.expressions import Read, reads_of
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["pack_in_tiles"]

MOST_COPIES = 8
"""Vectors that are copied beside one step of the sums."""

SEVERAL = 8
"""Tiles from which on the sums of the first are in one copy, without requests for what comes next: four copies would be half of the code. Zen 3, 1x1 convolutions: 0.96 to 0.99 of the time; with the requests, in each step then, 0.98 to 1.04."""


def pack_in_tiles(function: Function, constants: Set[str] = frozenset()) -> Function:
    """The function with such copies inside the first of the tiles that follow them. constants: arguments whose copies are left as they are.

    Rewrite (all of `s` in lanes):
        for (k ..) panel[k, s] = x[k, s]; for (i = 0; i < 64; i += 8) { .. for (k ..) t += panel[k, s] * w[i, k]; .. }
        -> (i = 0) { .. for (k ..) { panel[k, s] = x[k, s]; t += panel[k, s] * w[0, k]; } .. } for (i = 8; i < 64; i += 8) { .. }
    """
    body = _body(function.body, constants)
    return function if body is function.body else replace(function, body=body)


def _body(nodes: tuple[Node, ...], constants: Set[str]) -> tuple[Node, ...]:
    if have_no_bodies(nodes):
        return nodes
    made: list[Node] = []
    changed = False
    for node in nodes:
        new = with_body(node, lambda body: _body(body, constants))
        joined = _joined(made[-1], new, constants) if made and isinstance(new, For) else None
        if joined is not None:
            made.pop()
            made += joined
        else:
            made.append(new)
        changed = changed or joined is not None or new is not node
    return tuple(made) if changed else nodes


def _joined(copy: Node, tiles: For, constants: Set[str]) -> tuple[Node, ...] | None:
    """What the two become, one after the other; None where they are not of this kind."""
    if isinstance(copy, For):
        return _packed(copy, tiles, constants)
    # Whole strips, and the last one: the loop over tiles goes into both.
    match copy, tiles.body:
        case If(then=(For() as whole,)), (If() as tile,) if copy.condition == tile.condition:
            packed = _packed(whole, replace(tiles, body=tile.then), constants)
            if packed is None or any(reads_of(copy.condition)):
                return None
            rest = (*copy.otherwise, replace(tiles, body=tile.otherwise)) if tile.otherwise else copy.otherwise
            return (replace(copy, then=packed, otherwise=rest),)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Copy:
    """levels: its loops, the one in lanes last; what is in them."""

    levels: tuple[For, ...]
    assigns: tuple[Assign, ...]
    panel: str
    sources: frozenset[str]


def _copy_of(loop: For) -> _Copy | None:
    levels = [loop]
    while len(levels[-1].body) == 1 and isinstance(inner := levels[-1].body[0], For):
        levels.append(inner)
    assigns = [node for node in levels[-1].body if isinstance(node, Assign)]
    lanes = levels[-1].variable
    if len(levels) < 2 or levels[-1].kind != "vector" or levels[-1].masked or len(assigns) < len(levels[-1].body):
        return None
    if any(level.kind != "sequential" or level.step != 1 for level in levels[:-1]):
        return None
    sources = set[str]()
    for assign in assigns:
        value = assign.value
        if assign.reduction is not None or not isinstance(value, Read) or value.tensor == assign.target.variable:
            return None
        if not _contiguous(value.subscripts, lanes) or not _contiguous(assign.target.subscripts, lanes):
            return None
        sources.add(value.tensor)
    panels = {assign.target.variable for assign in assigns}
    if len(panels) != 1 or panels & sources:
        return None
    return _Copy(tuple(levels), tuple(assigns), panels.pop(), frozenset(sources))


def _contiguous(subscripts: tuple[object, ...], lanes: str) -> bool:
    strides = [s.stride(lanes) if isinstance(s, Affine) else None for s in subscripts]
    return bool(strides) and strides[-1] == 1 and not any(strides[:-1])


def _packed(loop: For, tiles: For, constants: Set[str]) -> tuple[Node, ...] | None:
    copy, span = _copy_of(loop), tiles.upper - tiles.lower
    if copy is None or copy.sources <= constants:
        return None
    if tiles.kind != "sequential" or not span.is_constant or span.constant <= tiles.step:
        return None
    first = substitute_nodes(tiles.body, {tiles.variable: tiles.lower})
    if span.constant >= SEVERAL * tiles.step:
        first = _rolled_up(first, copy.panel)
    paths = list(inner_loops(first))
    readers = [path for path in paths if any(use.variable == copy.panel for n in path[-1].body for use in uses(n))]
    if len(readers) != 1:
        return None
    copies = _beside(copy, readers[0])
    inside = {id(node) for node in readers[0][-1].body}
    for node in walk_nodes(first):
        for use in uses(node):
            if use.variable in copy.sources and use.write:
                return None
            if use.variable == copy.panel and (use.write or id(node) not in inside):
                return None
    if not copies:
        return None
    return (*put_first(first, {id(readers[0][-1]): copies}), replace(tiles, lower=tiles.lower + tiles.step))


def _rolled_up(nodes: tuple[Node, ...], panel: str) -> tuple[Node, ...]:
    """The nodes with loops over enough sums that read the panel in steps of one."""

    def visit(node: Node) -> Node:
        if not isinstance(node, For) or not have_no_bodies(node.body):
            return with_body(node, inside)
        loop = rolled_up(node)
        return loop if len(loop.body) >= IN_FLIGHT and any(panel in names_read(n) for n in loop.body) else node

    def inside(body: tuple[Node, ...]) -> tuple[Node, ...]:
        return renewed(body, map(visit, body))

    return inside(nodes)


def _beside(copy: _Copy, path: tuple[For, ...]) -> tuple[Assign, ...]:
    """The copies for one iteration of the sums, where these read just what is copied there, and all of it is copied in the end; else none."""
    *levels, lanes = copy.levels
    vector, *sums = path
    same = (vector.variable, vector.lower, vector.upper, vector.step, vector.width, vector.kind, vector.masked)
    if same != (lanes.variable, lanes.lower, lanes.upper, lanes.step, lanes.width, lanes.kind, lanes.masked):
        return ()
    if [(s.variable, s.lower, s.upper, s.kind) for s in sums] != [
        (x.variable, x.lower, x.upper, x.kind) for x in levels
    ]:
        return ()
    inner = sums[-1]
    span = inner.upper - inner.lower
    if any(s.step != 1 for s in sums[:-1]) or not span.is_constant or span.constant % inner.step:
        return ()
    moved = [{inner.variable: affine(inner.variable) + d} for d in range(inner.step)]
    nodes = [node for step in moved for node in substitute_nodes(copy.assigns, step)]
    copies = tuple(node for node in nodes if isinstance(node, Assign))
    written = {node.target.subscripts for node in copies}
    read = {use.subscripts for node in inner.body for use in uses(node) if use.variable == copy.panel}
    return copies if read <= written and len(copies) <= MOST_COPIES else ()
