"""Rows that lanes go through with gaps and all lanes together touch whole: x[2 k] and x[2 k + 1] are shuffled out of the same two vectors, and y[3 k], y[3 k + 1] and y[3 k + 2] into the same three.

Alone, each such read loads as many vectors as its gap, up to its own last element (loads.py), and those of the next one begin elsewhere; each such write stores one element after another. Pixels with their channels last are such
rows, points in space, complex numbers in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from polyml.codegen.loops import Allocate, Assign, Block, For, Node, UpdateArgument
from polyml.codegen.rewrite import expressions, walk_nodes
from polyml.expressions import Apply, Expr, Read, Subscript, reads_of
from polyml.records import dataclass
from polyml.sets.affine import Affine
from polyml.sets.turns import MOST_GAP

__all__ = ["Flat", "Phase", "Rows", "phases_of", "written_phases"]

Rows = tuple[tuple[str, Affine], ...]
"""Subscripts of dimensions whose strides are known at run time only, by the stride's name."""

Flat = Callable[[str, tuple[Subscript, ...]], tuple[Affine, Rows] | None]
"""The element in memory, counted from the beginning of such rows; None where that is not one known expression."""

Element = tuple[str, tuple[Subscript, ...]]


@dataclass(frozen=True, slots=True)
class Phase:
    """An element's place among those that touch a row together: so many elements behind the `first`, whose subscripts these are. last: of a written row, whether it is complete then."""

    first: tuple[Subscript, ...]
    number: int
    gap: int
    last: bool = False


def phases_of(loop: For, flat: Flat) -> Mapping[Element, Phase]:
    """By array and subscripts, the reads that all lanes of a vector loop make in each iteration, and that have all their phases there."""
    if loop.masked:
        return {}
    rows: dict[tuple[str, Affine, Rows], dict[int, Element]] = {}
    for read in (read for assign in _straight(loop.body) for read in _surely_read(assign.value)):
        spot = flat(read.tensor, read.subscripts)
        if spot is not None and _gap(*spot, loop) is not None:
            place, outer = spot
            row = rows.setdefault((read.tensor, place - place.constant, outer), {})
            row.setdefault(place.constant, (read.tensor, read.subscripts))
    found: dict[Element, Phase] = {}
    for (_, base, outer), row in rows.items():
        gap = _gap(base, outer, loop) or 1
        for first in sorted(row):
            group = range(first, first + gap)
            if row[first] not in found and all(at in row for at in group):
                found |= {row[at]: Phase(row[first][1], at - first, gap) for at in group}
    return found


def written_phases(loop: For, flat: Flat) -> Mapping[Element, Phase]:
    """By array and subscripts, what all lanes of a vector loop write in each iteration, where that is all phases of a row, and nothing in an iteration sees the array."""
    rows: dict[str, dict[int, Element] | None] = {}
    bases: dict[str, tuple[Affine, Rows]] = {}
    straight = list(_straight(loop.body))
    for assign in straight:
        name, element = assign.target.variable, (assign.target.variable, assign.target.subscripts)
        spot, row = flat(*element), rows.setdefault(name, {})
        plain = assign.reduction is None and assign.scan is None and not assign.across
        if row is None or spot is None or not plain or _gap(*spot, loop) is None:
            rows[name] = None
            continue
        place, outer = spot
        base = place - place.constant, outer
        if place.constant in row or bases.setdefault(name, base) != base:
            rows[name] = None
        else:
            row[place.constant] = element
    if not any(rows.values()):
        return {}
    touched = set(_touched_otherwise(loop.body, straight))
    order = {(assign.target.variable, assign.target.subscripts): k for k, assign in enumerate(straight)}
    found: dict[Element, Phase] = {}
    for name, row in rows.items():
        if row and name not in touched:
            found |= _in_whole(row, _gap(*bases[name], loop) or 1, loop.width, order)
    return found


def _in_whole(row: Mapping[int, Element], gap: int, width: int, order: Mapping[Element, int]) -> dict[Element, Phase]:
    """The places as phases of rows that share no element; nothing where one is left over."""
    found: dict[Element, Phase] = {}
    beyond: int | None = None
    for place in sorted(row):
        if row[place] in found:
            continue
        group = range(place, place + gap)
        if not all(at in row for at in group) or (beyond is not None and place < beyond):
            return {}
        beyond = place + gap * width
        last = max(group, key=lambda at: order[row[at]])
        found |= {row[at]: Phase(row[place][1], at - place, gap, at == last) for at in group}
    return found


def _gap(place: Affine, rows: Rows, loop: For) -> int | None:
    """Elements from one lane to the next, where these are more than one, and few."""
    if any(loop.variable in subscript.variables() for _, subscript in rows):
        return None
    gap = place.stride(loop.variable)
    return gap if gap is not None and 1 < gap <= MOST_GAP else None


def _straight(nodes: Iterable[Node]) -> Iterator[Assign]:
    """The assignments that each iteration makes, in order."""
    for node in nodes:
        if isinstance(node, Assign):
            yield node
        elif isinstance(node, Allocate | Block):
            yield from _straight(node.body)


def _touched_otherwise(nodes: Iterable[Node], straight: Iterable[Assign]) -> Iterator[str]:
    """The arrays that something reads, or that others than these assignments write."""
    known = {id(assign) for assign in straight}
    for node in walk_nodes(tuple(nodes)):
        yield from (read.tensor for expr in expressions(node) for read in reads_of(expr))
        if isinstance(node, Assign) and id(node) not in known:
            yield node.target.variable
        elif isinstance(node, UpdateArgument):
            yield from (node.best.variable, node.argument.variable)


def _surely_read(value: Expr) -> list[Read]:
    """What is read whatever conditions say, in the order of the text."""
    found: list[Read] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Read):
            found.append(node)
        elif isinstance(node, Apply):
            stack.extend(reversed(node.args[:1] if node.op == "select" else node.args))
    return found
