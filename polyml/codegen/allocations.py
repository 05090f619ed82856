"""Storage of a region's own arrays: where it exists, and whether it is a register."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from functools import partial

from polyml.codegen.loops import Allocate, Block, For, If, Node, Place, Scope, Variable
from polyml.codegen.rewrite import map_places, uses, walk_nodes, with_body
from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr, Read
from polyml.schedule.schedule import Schedule
from polyml.scop.scop import Array
from polyml.sets.affine import affine

__all__ = ["LOCAL_ALIGNMENT", "allocate", "as_register", "settle_allocations"]

LOCAL_ALIGNMENT = 64
"""Bytes: of the first element of scratch arrays; a cache line, and the widest vector."""


def allocate(schedule: Schedule, array: Array, body: tuple[Node, ...]) -> Node:
    """`body` with the array's storage around it, as scratch memory."""
    storage = schedule.storage.get(array.name)
    shape = array.shape if storage is None else tuple(affine(extent) for extent in storage.shape)
    scope: Scope = "private" if storage is not None and storage.private else "local"
    variable = Variable(name=array.name, dtype=array.dtype, shape=shape, scope=scope, alignment=LOCAL_ALIGNMENT)
    return Allocate(variable=variable, body=body)


def settle_allocations(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with the pieces of each Allocate joined, and single elements that no parallel loop shares turned into registers: after all pieces are joined, since one of them may have a parallel loop where others have none."""
    return _registers(_joined(nodes))


def _joined(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with the pieces of each Allocate joined.

    isl repeats a mark above every part of a sequence, below the guards of the part: what stands between the first and the last piece goes into one Allocate.
    Where the order allows it, it also gives the parts loops of their own, and none to a part that belongs to the last iteration: a piece that reads before it is sure to write belongs to an earlier
    one, whose last iteration's values it reads when that is in a loop.
    """
    nodes = tuple(
        with_body(node, _joined) for node in nodes
    )  # pieces next to each other are one before loops are judged
    places: dict[str, list[int]] = {}
    sources: dict[str, set[int]] = {}
    variables: dict[str, Variable] = {}
    before: dict[str, tuple[int, Variable]] = {}
    for position, node in enumerate(nodes):
        for variable in _pieces(node):
            places.setdefault(variable.name, []).append(position)
            variables[variable.name] = variable
        here = _allocations(node)
        for name in (a.variable.name for a in here if a.variable.name in before and _needs_values(a)):
            source, variables[name] = before[name]
            places.setdefault(name, []).extend([source, position])
            sources.setdefault(name, set()).add(source)
        before |= {a.variable.name: (position, a.variable) for a in here}
    for name, found in places.items():
        found.sort()
        first, last = found[0], found[-1]
        if first < last:
            read = sources.get(name, set())
            body = _without(nodes[first : last + 1], name, {k - first for k in read})
            joined = Allocate(variable=variables[name], body=body)
            return _joined((*nodes[:first], joined, *nodes[last + 1 :]))
    return nodes


def _pieces(node: Node) -> list[Variable]:
    """The variables that a node allocates, under conditions or not, but not in a loop."""
    match node:
        case Allocate():
            return [node.variable, *(v for inner in node.body for v in _pieces(inner))]
        case If():
            return [v for inner in (*node.then, *node.otherwise) for v in _pieces(inner)]
        case _:
            return []


def _allocations(node: Node) -> list[Allocate]:
    return [inner for inner in walk_nodes((node,)) if isinstance(inner, Allocate)]


def _in_loops(node: Node) -> list[Allocate]:
    loops = (loop for loop in walk_nodes((node,)) if isinstance(loop, For))
    return [inner for loop in loops for inner in walk_nodes(loop.body) if isinstance(inner, Allocate)]


def _reads(allocation: Allocate) -> list[bool]:
    """Of each use of the variable, in order, whether it reads."""
    return [read for read, _ in _uses(allocation.body, allocation.variable.name, frozenset())]


def _needs_values(allocation: Allocate) -> bool:
    """Whether there may be a read of an element that no write comes before under the same conditions, or fewer."""
    written: list[frozenset[Expr]] = []
    single = all(extent == affine(1) for extent in allocation.variable.shape)
    for read, conditions in _uses(allocation.body, allocation.variable.name, frozenset()):
        if not read:
            written.append(conditions)
        elif not written or not (any if single else all)(earlier <= conditions for earlier in written):
            return True
    return False


def _uses(nodes: Iterable[Node], name: str, conditions: frozenset[Expr]) -> Iterator[tuple[bool, frozenset[Expr]]]:
    """Of each use of the variable, in order, whether it reads, and the conditions that it is under."""
    for node in nodes:
        yield from ((use.read, conditions) for use in uses(node) if use.variable == name)
        match node:
            case If():
                yield from _uses(node.then, name, conditions | {node.condition})
                yield from _uses(node.otherwise, name, conditions | {Apply("not", (node.condition,), boolean)})
            case For() | Allocate() | Block():
                yield from _uses(node.body, name, conditions)
            case _:
                pass


def _is_partial(loop: For, name: str) -> bool:
    """Whether the variable's values come from before the loop or are for after it."""
    mine = [(_reads(a), _needs_values(a)) for a in _in_loops(loop) if a.variable.name == name]
    return any(reads and (needs or not any(reads)) for reads, needs in mine)


def _without(nodes: tuple[Node, ...], name: str, sources: Set[int] = frozenset()) -> tuple[Node, ...]:
    """The nodes with the Allocates of a variable dissolved, but for loops with storage of their own. Other loops share it now, and so do those at the positions
    `sources`, whose last values are read behind them: their iterations are no longer independent."""
    made: list[Node] = []
    for position, node in enumerate(nodes):
        whole = position in sources
        if isinstance(node, For) and (
            (whole and any(a.variable.name == name for a in _allocations(node))) or _is_partial(node, name)
        ):
            node = replace(node, kind="sequential", factor=1, body=_within(node.body, name, whole))
        elif isinstance(node, Allocate | If):
            node = with_body(node, partial(_within, name=name, whole=whole))
        made.extend(node.body if isinstance(node, Allocate) and node.variable.name == name else (node,))
    return tuple(made)


def _within(nodes: tuple[Node, ...], name: str, whole: bool) -> tuple[Node, ...]:
    return _without(nodes, name, frozenset(range(len(nodes))) if whole else frozenset())


def _registers(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(_register(with_body(node, _registers)) for node in nodes)


def _register(node: Node) -> Node:
    if not isinstance(node, Allocate) or any(extent != affine(1) for extent in node.variable.shape):
        return node
    if any(
        isinstance(inner, For) and (inner.kind in ("parallel", "pipelined") or inner.mapped)
        for inner in walk_nodes(node.body)
    ):
        return node
    return as_register(node)


def as_register(node: Allocate) -> Allocate:
    """The array of one element as a register, without subscripts."""
    name = node.variable.name

    def place(old: Place) -> Place:
        return Place(name, ()) if old.variable == name else old

    def read(old: Read) -> Expr:
        return Read(name, (), old.dtype) if old.tensor == name else old

    register = Variable(name=name, dtype=node.variable.dtype, shape=(), scope="register")
    return Allocate(variable=register, body=map_places(node.body, place=place, read=read))
