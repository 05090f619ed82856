"""Elements that become registers: where each is loaded and stored again, and what its accesses turn into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import TypeGuard

from polyml.codegen.element_accesses import Element, Lanes
from polyml.codegen.loops import Assign, For, If, Node, Place, Variable
from polyml.codegen.rewrite import map_places, uses, variables_of, walk_nodes
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, reads_of
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["Promotion", "guarded_loop", "loaded_where_kept", "row_by_row", "with_registers"]


@dataclass(frozen=True, slots=True)
class Promotion:
    """An element that becomes a register within children `first` to `last` of a region.

    guard: the one child that accesses it, a loop without which the element need not exist. streaming: its first value should bypass the caches, so its last one does.
    """

    element: Element
    register: Variable
    first: int
    last: int
    load: bool
    guard: For | None
    streaming: bool

    def fetch(self) -> Node:
        name, subscripts = self.element
        return Assign(target=Place(self.register.name, ()), value=Read(name, subscripts, self.register.dtype))

    def write_back(self) -> Node:
        name, subscripts = self.element
        value = Read(self.register.name, (), self.register.dtype)
        return Assign(target=Place(name, subscripts), value=value, streaming=self.streaming)


def row_by_row(promotions: Iterable[Promotion]) -> list[Promotion]:
    """The promotions sorted so that neighbours in a row of an array are stored one after the other: a cache line that belongs to two vectors is then written at once."""
    rows: dict[tuple[str, tuple[Affine, ...]], list[Promotion]] = {}
    for promotion in promotions:
        name, subscripts = promotion.element
        moving = tuple(s - s.constant for s in subscripts[-1:])
        rows.setdefault((name, (*subscripts[:-1], *moving)), []).append(promotion)
    return [p for row in rows.values() for p in sorted(row, key=lambda p: [s.constant for s in p.element[1][-1:]])]


def loaded_where_kept(nodes: Sequence[Node], lanes: Lanes | None) -> tuple[Node, ...]:
    """The nodes without loads of registers that a condition, which is the same in all lanes, replaces at once: the first of several blocks of a sum need not bring its results from memory.

    Rewrite:
        r = y[i]; if (k_tile == 0) r = 0;
        -> if (k_tile == 0) r = 0; else r = y[i];
    """
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, If) and not node.otherwise and not any(reads_of(node.condition)):
            varies = lanes is not None and lanes.variable in variables_of(node.condition)
            begun = _begun(node.then)
            count = 0
            while not varies and count < len(made) and _begins(made[-1 - count], begun):
                count += 1
            loads = tuple(made[len(made) - count :])
            del made[len(made) - count :]
            node = replace(node, otherwise=loads) if loads else node
        made.append(node)
    return tuple(made)


def _begun(nodes: Sequence[Node]) -> Set[str]:
    """The registers that the nodes give a constant before anything else is done with them."""
    found, used = set[str](), set[str]()
    for node in nodes:
        if _begins(node) and node.target.variable not in used:
            found.add(node.target.variable)
        used |= {use.variable for part in walk_nodes((node,)) for use in uses(part)}
    return found


def _begins(node: Node, known: Set[str] | None = None) -> TypeGuard[Assign]:
    """Whether it gives a register (one of these) a constant, or with these, an element."""
    if not isinstance(node, Assign) or node.reduction is not None or node.scan is not None or node.target.subscripts:
        return False
    if known is None:
        return isinstance(node.value, Const)
    return node.target.variable in known and isinstance(node.value, Read) and bool(node.value.subscripts)


def guarded_loop(node: Node, promotions: list[Promotion]) -> Node:
    """The loop with loads of its elements before it and stores behind it, all under the condition that it has an iteration."""
    assert isinstance(node, For), "internal: only a loop is guarded"
    condition = Apply("lt", (IndexValue(node.lower, i64), IndexValue(node.upper, i64)), boolean)
    loads = (p.fetch() for p in promotions if p.load)
    return If(condition=condition, then=(*loads, node, *(p.write_back() for p in promotions)))


def with_registers(node: Node, promotions: list[Promotion]) -> Node:
    """The node with registers in the places of the elements."""
    names = {p.element: p.register.name for p in promotions}
    if not names:
        return node

    arrays = {variable for variable, _ in names}

    def name_of(variable: str, subscripts: tuple[object, ...]) -> str | None:
        if variable not in arrays:
            return None
        found = tuple(s for s in subscripts if isinstance(s, Affine))
        return names.get((variable, found)) if len(found) == len(subscripts) else None

    def place(old: Place) -> Place:
        name = name_of(old.variable, old.subscripts)
        return old if name is None else Place(name, ())

    def read(old: Read) -> Expr:
        name = name_of(old.tensor, old.subscripts)
        return old if name is None else Read(name, (), old.dtype)

    (changed,) = map_places((node,), place=place, read=read)
    return changed
