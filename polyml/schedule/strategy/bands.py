"""Bands taken apart for the strategy: what each loop is to each statement, and what stands above and below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms import Loop, loops_of
from polyml.schedule.tree import Kind, kind_of, mark_name, members, statements_below
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.sets.independence import is_independent
from polyml.sets.spaces import parameters_text

__all__ = [
    "Band",
    "Place",
    "along",
    "bounds_inner_loops",
    "descend",
    "has_band_below",
    "has_inner_loops",
    "has_lanes_above",
    "indices_above",
    "is_flat",
    "jammed_above",
    "near_rows",
    "sums_together",
    "take_band",
    "with_extent",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Of a node in the tree. parallel: threads are still to be given a loop. extents: of point loops, per statement and index.
    in_cache: inside of tiles whose data stays in cache."""

    parallel: bool
    extents: Mapping[tuple[str, str], int]
    in_cache: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A band whose members are indices of all its statements.

    loops: the members' functions. indices: per member, the index that it is to each statement. extents: iterations per member.
    above: per statement, the indices that are loops further out. core: the statement that does most of the work.
    """

    node: isl.ScheduleNode
    statements: tuple[str, ...]
    loops: tuple[Loop, ...]
    indices: tuple[Mapping[str, str], ...]
    extents: tuple[int, ...]
    above: Mapping[str, frozenset[str]]
    core: str

    def own(self, statement: str) -> frozenset[str]:
        """The statement's indices that are members of the band."""
        return frozenset(member[statement] for member in self.indices)

    def sized(self, model: StatementModel) -> StatementModel:
        """The statement's model with the extents of the band's loops (those of point loops)."""
        own = {m[model.name]: extent for m, extent in zip(self.indices, self.extents, strict=True)}
        return replace(model, extents={index: own.get(index, extent) for index, extent in model.extents.items()})

    @property
    def title(self) -> str:
        """The statements, for notes."""
        return " ".join(self.statements)


def with_extent(band: Band, member: int, extent: int) -> Band:
    """The band where the member has so many iterations."""
    return replace(band, extents=tuple(extent if k == member else n for k, n in enumerate(band.extents)))


SUMS = 8.0
"""How many times the work of sums counts where register tiles are chosen, which keep what they share."""


def take_band(node: isl.ScheduleNode, facts: Facts, place: Place) -> Band | None:
    """The band's parts; None when a member is not simply an index of every statement (a skewed or shifted loop, or a size: one step), or conditions leave none of them an instance."""
    names = statements_below(node)
    if not names:
        return None
    indices: list[dict[str, str]] = []
    for member in members(node, facts.scop):
        found = {name: index for name in names if (index := member.index(name)) is not None}
        own = {name: index for name, index in found.items() if index in facts.models[name].extents}
        if len(own) < len(names):
            return None
        indices.append(own)

    def extent(name: str, index: str) -> int:
        return place.extents.get((name, index), facts.models[name].extents[index])

    above = indices_above(node, facts, names)
    around = {name: above[name] | {own[name] for own in indices} for name in names}
    return Band(
        node=node,
        statements=names,
        loops=loops_of(node),
        indices=tuple(indices),
        extents=tuple(max(extent(name, index) for name, index in own.items()) for own in indices),
        above=above,
        core=_core(names, around, facts),
    )


def _core(names: tuple[str, ...], around: Mapping[str, frozenset[str]], facts: Facts) -> str:
    """The statement that does most of the work; a sum inside of the band comes before what is done with it once, even functions, unless it is little beside that."""

    def work(name: str) -> float:
        inner = len(facts.models[name].extents) > len(around[name])
        return facts.models[name].work * (SUMS if inner else 1.0)

    return max(names, key=work)


def indices_above(node: isl.ScheduleNode, facts: Facts, names: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Per statement, its indices that are loops above the node (tile loops are none)."""
    found: dict[str, set[str]] = {name: set() for name in names}
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.band:
            for member in members(node, facts.scop):
                for name in names:
                    if (index := member.index(name)) is not None:
                        found[name].add(index)
    return {name: frozenset(indices) for name, indices in found.items()}


def has_inner_loops(name: str, band: Band, facts: Facts) -> bool:
    """Whether the statement has loops below the band."""
    return len(facts.models[name].extents) > len(band.above[name] | band.own(name))


def sums_together(band: Band, facts: Facts) -> int:
    """How many sums go through the loops below the band side by side with the core's, each with accumulators of its own, which computed elements do not have."""
    node = band.node.child(0)
    while kind_of(node) not in (Kind.band, Kind.leaf):
        parts = [node.child(k) for k in range(node.n_children())]
        if kind_of(node) in (Kind.sequence, Kind.set):
            parts = [part.child(0) for part in parts]
        node = next(part for part in parts if band.core in statements_below(part))
    names = (n for n in statements_below(node) if facts.models[n].is_update and has_inner_loops(n, band, facts))
    places = (facts.scop.statements[n].target.subscripts for n in names)
    return max(sum(all(isinstance(s, Affine) for s in subscripts) for subscripts in places), 1)


def near_rows(band: Band, name: str, facts: Facts) -> list[int]:
    """The band's members in the order in which register tiles take them as rows: as they are, or where sizes do not tell them apart those first along which elements that the statement writes lie near each other."""
    members = list(range(len(band.indices)))
    if not facts.scop.sizes:
        return members
    subscripts = facts.scop.statements[name].target.subscripts
    used = [s.variables() if isinstance(s, Affine) else frozenset[str]() for s in subscripts]

    def dimension(k: int) -> int:
        return max((d for d, names in enumerate(used) if band.indices[k][name] in names), default=-1)

    return sorted(members, key=dimension, reverse=True)


def bounds_inner_loops(band: Band, name: str, index: str, facts: Facts) -> bool:
    """Whether the loops inside run over other values for some values of this index, as over the places of windows that are beside their operand: such rows are no register tile."""
    statement = facts.scop.statements[name]
    domain, at = statement.domain, statement.indices.index(index)
    for position, other in enumerate(statement.indices):
        if other != index and other in band.own(name):
            domain = domain.eliminate(isl.dim_type.set, position, 1)
    return not is_independent(domain, at)


def is_flat(node: isl.ScheduleNode) -> bool:
    """Whether the node is one loop around nothing but statements."""
    if kind_of(node) != Kind.band or node.band_n_member() != 1:
        return False
    body = node.child(0)
    inside = [body.child(k).child(0) for k in range(body.n_children())] if kind_of(body) == Kind.sequence else [body]
    return all(kind_of(child) == Kind.leaf for child in inside)


def has_band_below(node: isl.ScheduleNode) -> bool:
    """Whether the node is a band or one stands below it."""
    if kind_of(node) == Kind.band:
        return True
    return any(has_band_below(node.child(k)) for k in range(node.n_children()))


def has_lanes_above(node: isl.ScheduleNode) -> bool:
    """Whether the node is inside a vector loop."""
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.mark and mark_name(node).startswith("vector"):
            return True
    return False


def jammed_above(node: isl.ScheduleNode) -> int:
    """Copies of what is below the node that jammed loops around it make."""
    copies = 1
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.mark and mark_name(node).startswith("jam:"):
            copies *= int(mark_name(node).removeprefix("jam:"))
    return copies


def descend(node: isl.ScheduleNode, depth: int) -> isl.ScheduleNode:
    """The first child's first child ..., `depth` times."""
    for _ in range(depth):
        node = node.child(0)
    return node


def along(scop: Scop, names: Sequence[str], index: Mapping[str, str]) -> isl.UnionPwAff:
    """An index of each statement, or what is computed of its indices, as one function."""
    pieces = (f"{name}[{', '.join(scop.statements[name].indices)}] -> [({index[name]})]" for name in names)
    return isl.UnionPwAff(f"{parameters_text(scop.sizes)}{{ {'; '.join(pieces)} }}")
