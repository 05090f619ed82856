"""Copies of rows that are overwritten from their beginning on, each element when it has been read, are left out: rows are read where they are.

`v[i] = p * v[i + 1] + q * v[i]` sees the values from before it. Which elements that means does not depend on an order (scop/copies.py), and dependences are those of any order, so that a loop may be anything. Once it is a loop that goes up, with
lanes or without, every read of a place not behind the one that is written comes in time: all lanes load before one is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, Node
from polyml.codegen.rewrite import flatten, map_places, uses, walk_nodes, with_body
from polyml.expressions import Expr, Read, Subscript, reads_of
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["read_ahead"]


def read_ahead(function: Function) -> Function:
    """The function without such copies.

    Rewrite:
        local t[n]; for (e = 1; e < n; e++) t[e] = v[e]; for (i = 0; i < n - 1; i++) v[i] = p * t[i + 1] + q * v[i];
        -> for (i = 0; i < n - 1; i++) v[i] = p * v[i + 1] + q * v[i];
    """
    body = _body(function.body)
    return function if body is function.body else replace(function, body=body)


def _body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    made: list[Node] = []
    for node in nodes:
        node = with_body(node, _body)
        made += (_without_copy(node) if isinstance(node, Allocate) else None) or (node,)
    return renewed(nodes, made)


def _without_copy(node: Allocate) -> tuple[Node, ...] | None:
    """What is in the scope of scratch memory, without it; None where that is no copy that is not needed."""
    name, body = node.variable.name, flatten(node.body)
    if node.variable.scope != "local" or node.variable.lanes > 1:
        return None
    users = [place for place, inside in enumerate(body) if _uses(inside, name)]
    if len(users) < 2 or users[-1] - users[0] != len(users) - 1:
        return None
    *copying, using = (inside for place, inside in enumerate(body) if place in users)
    if not isinstance(using, For):
        return None
    changed = [_reading(copy, using, name) if isinstance(copy, For) else None for copy in copying]
    if changed[0] is None or any(other != changed[0] for other in changed):
        return None
    return (*body[: users[0]], changed[0], *body[users[-1] + 1 :])


def _uses(node: Node, name: str) -> bool:
    return any(use.variable == name for part in walk_nodes((node,)) for use in uses(part))


def _reading(copying: For, using: For, name: str) -> For | None:
    """The second nest of loops, which reads what the first one copies from (a part of it, perhaps); None where it overwrites that too early."""
    copied, changed = _nest(copying), _nest(using)
    if copied is None or changed is None or changed[0][-1].kind not in ("sequential", "vector"):
        return None
    (copies, copy), (loops, change) = copied, changed
    source, last = copy.value, loops[-1].variable
    if not isinstance(source, Read) or copy.target.variable != name or change.target.variable != source.tensor:
        return None
    there, written = _affine(copy.target.subscripts), _affine(change.target.subscripts)
    here = _affine(source.subscripts)
    if there is None or written is None or here is None or _along(there, copies) is None:
        return None
    rows = _along(written, loops)  # each element is written once
    if rows is None:
        return None
    moved: dict[Read, Expr] = {}
    for read in reads_of(change.value):
        if read.tensor != name:
            continue
        places = _affine(read.subscripts)
        values = None if places is None else _values(there, places, copies)
        if values is None:
            return None
        subscripts = tuple(place.substitute(values) for place in here)
        for dimension, (mine, own) in enumerate(zip(subscripts, written, strict=True)):
            ahead = mine - own
            if not ahead.is_constant or ahead.constant < 0 or (ahead.constant and dimension != rows[last]):
                return None
        moved[read] = Read(source.tensor, subscripts, read.dtype)
    (made,) = map_places((using,), place=lambda place: place, read=lambda read: moved.get(read, read))
    assert isinstance(made, For), "internal: a loop became something else"
    return made


def _nest(loop: For) -> tuple[list[For], Assign] | None:
    """Loops that go up one by one, outermost first, and what is assigned in them; None where there is anything else in one."""
    loops: list[For] = []
    inside: Node = loop
    while isinstance(inside, For):
        if inside.step != 1 or inside.kind not in _KINDS or len(body := flatten(inside.body)) != 1:
            return None
        loops.append(inside)
        (inside,) = body
    if not isinstance(inside, Assign) or inside.reduction is not None or inside.scan is not None or inside.across:
        return None
    return loops, inside


_KINDS = ("sequential", "parallel", "jam", "unroll", "vector")


def _affine(subscripts: Sequence[Subscript]) -> list[Affine] | None:
    found = [subscript for subscript in subscripts if isinstance(subscript, Affine)]
    return found if len(found) == len(subscripts) else None


def _along(places: Sequence[Affine], loops: Sequence[For]) -> dict[str, int] | None:
    """The dimension that goes along with each loop, and with no other one; None where there is none."""
    variables = {loop.variable for loop in loops}
    found: dict[str, int] = {}
    for dimension, place in enumerate(places):
        for variable in place.variables() & variables:
            if variable in found or variables & (place - affine(variable)).variables():
                return None
            found[variable] = dimension
    return found if len(found) == len(variables) else None


def _values(there: Sequence[Affine], places: Sequence[Affine], copies: Sequence[For]) -> dict[str, Affine] | None:
    """The copying loops' variables when the element at these places is made; None where none is."""
    variables = {loop.variable for loop in copies}
    found: dict[str, Affine] = {}
    for made, place in zip(there, places, strict=True):
        own = made.variables() & variables
        if not own and made != place:
            return None
        found.update({variable: place - (made - affine(variable)) for variable in own})
    return found
