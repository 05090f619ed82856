"""Which memory elements a piece of Loops touches, under which loops and conditions, and whether two of them may be one."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import lru_cache
from typing import assert_never

from polyml.codegen.loops import Allocate, Assign, Block, For, If, Node, Prefetch, UpdateArgument
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = [
    "Certainties",
    "Element",
    "ElementAccess",
    "Lanes",
    "accesses_of",
    "always_apart",
    "may_overlap",
]

Element = tuple[str, tuple[Affine, ...]]
"""A memory element: the array and its subscripts."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The vector loop around a piece of code."""

    variable: str
    width: int


@dataclass(frozen=True, slots=True)
class ElementAccess:
    """One access below a region.

    loops: between the region and the access, outermost first; doubtful: those of them that may have no iteration. conditional: below an If or in
    a value of a select. indirect: a subscript is read from memory, so that it may be any element.
    """

    variable: str
    subscripts: tuple[Subscript, ...]
    read: bool
    write: bool
    conditional: bool
    loops: tuple[For, ...]
    doubtful: tuple[For, ...]

    @property
    def certain(self) -> bool:
        """It happens whenever the region runs."""
        return not self.conditional and not self.doubtful

    @property
    def indirect(self) -> bool:
        return any(not isinstance(subscript, Affine) for subscript in self.subscripts)

    @property
    def element(self) -> Element:
        return self.variable, tuple(s for s in self.subscripts if isinstance(s, Affine))


Certainties = dict[tuple[int, ...], tuple[tuple[For, ...], bool]]
"""Whether the last of these loops, each inside the one before, is sure to have an iteration; by their identities. Ranges take their time to say so."""


def accesses_of(node: Node, ranges: Ranges, *, of: Set[str], known: Certainties | None = None) -> list[ElementAccess]:
    """The accesses to the variables `of`, by a node and all below it, in order of execution; `ranges` hold at the node. known: what other calls have found out."""
    found: list[ElementAccess] = []
    _collect((node,), _Path(ranges, {} if known is None else known), of, found)
    return found


def may_overlap(one: ElementAccess, other: ElementAccess, ranges: Ranges, lanes: Lanes | None) -> bool:
    """Whether two accesses of one variable may touch a common element. `one` does not move with the loops below the region, `ranges` hold at the
    region, which `lanes` is around (each access then stands for that many elements)."""
    pairs: list[tuple[Affine, Affine]] = []
    for a, b in zip(one.subscripts, other.subscripts, strict=True):
        if not isinstance(a, Affine) or not isinstance(b, Affine):
            return True
        pairs.append((a, b))
        if _differ(a, b) and _apart(a, b, lanes):
            return False
    for loop in other.loops:
        ranges = ranges.enter(loop)
    if lanes is None:
        return not any(ranges.never_zero(a - b) for a, b in pairs)
    lane = _other_lane(lanes)
    inside, moved = ranges.enter(lane), {lanes.variable: affine(lane.variable)}
    return not any(inside.never_zero(a - b.substitute(moved)) for a, b in pairs)


@lru_cache(maxsize=64)
def _other_lane(lanes: Lanes) -> For:
    """The other access in any lane: a variable of its own, less than a vector away."""
    here = affine(lanes.variable)
    return For(variable=f"{lanes.variable}'", lower=here - (lanes.width - 1), upper=here + lanes.width, body=())


def always_apart(one: ElementAccess, other: ElementAccess, lanes: Lanes | None) -> bool:
    """Whether two accesses never meet, whichever lanes and iterations they belong to: a subscript that no inner loop moves differs by enough."""
    if one.indirect or other.indirect:
        return False
    moved = {loop.variable for loop in (*one.loops, *other.loops)}
    pairs = zip(one.element[1], other.element[1], strict=True)
    return any(_differ(a, b) and _apart(a, b, lanes) for a, b in pairs if not a.variables() & moved)


def _differ(a: Affine, b: Affine) -> bool:
    """Whether they differ by a constant, which is not 0."""
    return a.constant != b.constant and a.terms == b.terms


def _apart(a: Affine, b: Affine, lanes: Lanes | None) -> bool:
    """Whether subscripts that `_differ` never meet."""
    stride = 0 if lanes is None else a.stride(lanes.variable)
    if stride is None or lanes is None or stride == 0:
        return stride is not None
    distance = a.constant - b.constant
    return distance % stride != 0 or abs(distance // stride) >= lanes.width


@dataclass(frozen=True, slots=True)
class _Path:
    """What lies between a region and a node."""

    ranges: Ranges
    known: Certainties
    conditional: bool = False
    loops: tuple[For, ...] = ()
    doubtful: tuple[For, ...] = ()

    def access(self, variable: str, subscripts: tuple[Subscript, ...], read: bool, write: bool) -> ElementAccess:
        return ElementAccess(variable, subscripts, read, write, self.conditional, self.loops, self.doubtful)

    def enter(self, loop: For) -> _Path:
        around = (*self.ranges.loops, loop)
        key = tuple(map(id, around))
        if key not in self.known:
            self.known[key] = around, self.ranges.is_positive(loop.upper - loop.lower)
        doubtful = self.doubtful if self.known[key][1] else (*self.doubtful, loop)
        return replace(self, ranges=self.ranges.enter(loop), loops=(*self.loops, loop), doubtful=doubtful)


def _collect(nodes: tuple[Node, ...], path: _Path, of: Set[str], found: list[ElementAccess]) -> None:
    for node in nodes:
        for expr in expressions(node):
            _collect_reads(expr, path, of, found)
        match node:
            case Assign():
                place = node.target
                if place.variable in of:
                    found.append(path.access(place.variable, place.subscripts, node.reduction is not None, True))
            case UpdateArgument():
                for place in (node.best, node.argument):
                    if place.variable in of:
                        found.append(path.access(place.variable, place.subscripts, True, True))
            case Prefetch():
                pass
            case For():
                _collect(node.body, path.enter(node), of, found)
            case If():
                _collect((*node.then, *node.otherwise), replace(path, conditional=True), of, found)
            case Allocate() | Block():
                _collect(node.body, path, of, found)
            case _:
                assert_never(node)


def _collect_reads(expr: Expr, path: _Path, of: Set[str], found: list[ElementAccess]) -> None:
    match expr:
        case Const() | IndexValue():
            return
        case Read():
            for subscript in expr.subscripts:
                if not isinstance(subscript, Affine):
                    _collect_reads(subscript, path, of, found)
            if expr.tensor in of:
                found.append(path.access(expr.tensor, expr.subscripts, True, False))
        case Apply():
            for position, arg in enumerate(expr.args):
                chosen = expr.op == "select" and position > 0
                _collect_reads(arg, replace(path, conditional=True) if chosen else path, of, found)
        case _:
            assert_never(expr)
