"""Tiles of what threads of a block read several times, in shared memory: windows of neighbouring threads overlap (stencils, convolutions of few filters), and steps of a loop that one
block runs go over the same arrays again and again.

    for tile of i: for threads i: y[i] = x[i - 1] + x[i] + x[i + 1]
    becomes    for tile of i: { x_tile[e] = x[tile - 1 + e], all threads together; barrier; for threads i: y[i] = x_tile[i - tile] + .. }

isl finds the box of elements that a visit of the block's loops reads, with its halo, as a function of their values; sizes may be symbolic. What is read may not be written
by the kernel, except where the whole array is moved: into shared memory ahead of a sequential loop, and back behind it. Barriers are placed, and proved, like all
others (cuda/blocks/barriers.py).

Source: Verdoolaege et al., "Polyhedral parallel code generation for CUDA" (TACO 2013), section 5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from math import prod

import islpy as isl

from polyml.codegen.cuda.proofs.touches import has_phases, loop_constraints
from polyml.codegen.loops import (
    Allocate,
    Assign,
    Axis,
    Block,
    For,
    Function,
    If,
    Node,
    Place,
    Prefetch,
    UpdateArgument,
    Variable,
)  # fmt: skip
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions, map_places, uses, walk_nodes
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Read, reads_of
from polyml.gpu_core import Core, staging_pays
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.schedule.storage import interval
from polyml.sets.affine import Affine, affine, minimum
from polyml.sets.from_isl import affine_of
from polyml.sets.spaces import parameters_text

__all__ = ["stage_windows"]

MOST_READS = 64
"""Different reads of one array in one place that are looked at."""


def stage_windows(function: Function, threads: dict[Axis, int], core: Core, room: int) -> Function:
    """A kernel's function, as generated, with tiles in shared memory.

    Args:
        threads: of a block, per axis. core: what runs it. room: bytes of shared memory for its arrays.
    """
    if "x" not in threads or "z" in threads:
        return function
    allocated = (n.variable for n in walk_nodes(function.body) if isinstance(n, Allocate))
    room -= sum(v.bytes or 0 for v in allocated if v.shape)
    blocks = any(isinstance(n, For) and n.kind == "block" for n in walk_nodes(function.body))
    taken = names_in(function)
    worker = _Staging(function, threads, core, room, taken)
    body = worker.windows(function.body, ()) if blocks else worker.whole(function.body)
    return function if body == function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Window:
    """A read, and the loops between the place of the tile and it, outermost first."""

    read: Read
    loops: tuple[For, ...]


@dataclass(slots=True)
class _Staging:
    function: Function
    threads: dict[Axis, int]
    core: Core
    room: int
    taken: set[str]
    done: set[str] = field(default_factory=set)

    # -- windows of a tile ----------------------------------------------------------------------------------------------------------

    def windows(self, nodes: tuple[Node, ...], around: tuple[For, ...]) -> tuple[Node, ...]:
        """Nodes that all threads of a block reach, with tiles as deep inside as they can be filled by all of them."""
        made = tuple(self._inside(node, around) for node in nodes)
        if not around or not any(isinstance(n, For) and n.kind == "thread" for n in _flat(made)):
            return made
        for variable in self.function.arguments:
            if variable.name not in self.function.written and variable.shape:
                made = self._staged(made, around, variable)
        return made

    def _inside(self, node: Node, around: tuple[For, ...]) -> Node:
        match node:
            case For() if node.kind != "thread" and has_phases(node):
                return replace(node, body=self.windows(node.body, (*around, node)))
            case Allocate() | Block() if has_phases(node):
                return replace(node, body=self.windows(node.body, around))
            case _:
                return node

    def _staged(self, nodes: tuple[Node, ...], around: tuple[For, ...], variable: Variable) -> tuple[Node, ...]:
        """With a tile of one array, where that is worth it."""
        found = list(_reads(nodes, variable.name, ()))
        if not 1 <= len({w.read.subscripts for w in found}) <= MOST_READS or not _overlap(found):
            return nodes
        if not all(isinstance(s, Affine) for w in found for s in w.read.subscripts):
            return nodes
        ranges = Ranges(around)
        box = self._box(found, around, len(variable.shape))
        if box is None:
            return nodes
        firsts, extents = box
        size = prod(extents) * variable.dtype.itemsize
        counts = [_count(window, ranges) for window in found]
        reads = sum(count for count in counts if count is not None)
        if None in counts or size > self.room:
            return nodes
        itemsize, block = variable.dtype.itemsize, prod(self.threads.values())
        if not staging_pays(self.core, elements=prod(extents), reads=reads, itemsize=itemsize, threads=block):
            return nodes
        self.room -= -(-size // 16) * 16
        tile = Variable(
            name=fresh(f"{variable.name}_tile", self.taken), dtype=variable.dtype,
            shape=tuple(map(affine, extents)), scope="shared",
        )  # fmt: skip

        def read(old: Read) -> Expr:
            if old.tensor != variable.name:
                return old
            places = tuple(s - f for s, f in zip(old.subscripts, firsts, strict=True) if isinstance(s, Affine))
            return Read(tile.name, places, old.dtype)

        def fill(place: Sequence[Affine]) -> Node:
            source = tuple(first + p for first, p in zip(firsts, place, strict=True))
            copy = Assign(target=Place(tile.name, tuple(place)), value=Read(variable.name, source, variable.dtype))
            tests = [
                test
                for first, size, at, extent in zip(firsts, extents, source, variable.shape, strict=True)
                for test in _tests(first, size, at, extent, ranges)
            ]
            return If(condition=_all(tests), then=(copy,)) if tests else copy

        body = map_places(nodes, place=lambda place: place, read=read)
        return (Allocate(variable=tile, body=(self._together(tile, fill), *body)),)

    def _box(
        self, found: Sequence[_Window], around: tuple[For, ...], rank: int
    ) -> tuple[tuple[Affine, ...], tuple[int, ...]] | None:
        """The first element that a visit of the loops around reads, per dimension, and how many there are; None where that is no number."""
        head, outer = parameters_text(self.function.sizes), ", ".join(f"a{k}" for k in range(len(around)))
        places = ", ".join(f"e{d}" for d in range(rank))
        touched = isl.Map(f"{head}{{ [{outer}] -> [{places}] : false }}")
        for subscripts, loops in dict.fromkeys((w.read.subscripts, w.loops) for w in found):
            every, names = loop_constraints((*around, *loops), "a")
            inner = [f"a{k}" for k in range(len(around), len(around) + len(loops))]
            equal = [
                f"e{d} = {s.substitute(names).isl_text()}" for d, s in enumerate(subscripts) if isinstance(s, Affine)
            ]
            where = " and ".join([*every, *equal]) or "true"
            bound = f"exists {', '.join(inner)} : {where}" if inner else where
            touched = touched.union(isl.Map(f"{head}{{ [{outer}] -> [{places}] : {bound} }}"))
        firsts, extents = [], []
        for d in range(rank):
            side = interval(touched, d)
            if side is None:
                return None
            firsts.append(affine_of(side[0], [loop.variable for loop in around]))
            extents.append(side[1])
        return tuple(firsts), tuple(extents)

    # -- whole arrays of a block that runs a loop -----------------------------------------------------------------------------------

    def whole(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """One block alone: arrays that a sequential loop goes over again and again, as long as there is room."""
        made: list[Node] = []
        for node in nodes:
            if not (isinstance(node, For) and node.kind == "sequential" and has_phases(node)):
                made.append(node)
                continue
            read = {u.variable for n in walk_nodes((node,)) for u in uses(n) if u.read}
            written = {u.variable for n in walk_nodes((node,)) for u in uses(n) if u.write}
            moved: tuple[Node, ...] = (node,)
            for variable in self.function.arguments:
                size = (variable.bytes or 0) if variable.shape and variable.strides is None else 0
                if variable.name in read and 0 < size <= self.room:
                    self.room -= -(-size // 16) * 16
                    moved = self._resident(moved, variable, variable.name in written)
            made += moved
        return tuple(made)

    def _resident(self, nodes: tuple[Node, ...], variable: Variable, written: bool) -> tuple[Node, ...]:
        name = fresh(f"{variable.name}_here", self.taken)
        here = Variable(name=name, dtype=variable.dtype, shape=variable.shape, scope="shared")

        def place(old: Place) -> Place:
            return replace(old, variable=name) if old.variable == variable.name else old

        def read(old: Read) -> Expr:
            return replace(old, tensor=name) if old.tensor == variable.name else old

        def copied(to: str, source: str, at: Sequence[Affine]) -> Node:
            return Assign(target=Place(to, tuple(at)), value=Read(source, tuple(at), variable.dtype))

        body = map_places(nodes, place=place, read=read)
        into = self._together(here, lambda at: copied(name, variable.name, at))
        back = (self._together(here, lambda at: copied(variable.name, name, at)),) if written else ()
        return (Allocate(variable=here, body=(into, *body, *back)),)

    # -- copies ---------------------------------------------------------------------------------------------------------------------

    def _together(self, tile: Variable, fill: Callable[[Sequence[Affine]], Node]) -> Node:
        """A node per element, by all threads: neighbouring threads have neighbouring elements, whatever the extents."""
        extents = [extent.constant for extent in tile.shape]
        total, across, down = prod(extents), self.threads["x"], self.threads.get("y", 1)
        lane, line = fresh("e", self.taken), fresh("line", self.taken)
        number = affine(lane) + (affine(line) * across if down > 1 else 0)
        place: list[Affine] = []
        for extent in reversed(extents):
            place.insert(0, number % extent if len(place) < len(extents) - 1 else number)
            number = number // extent
        upper = minimum([affine(across), affine(total) - affine(line) * across]) if down > 1 else affine(total)
        node = For(
            variable=lane, lower=affine(0), upper=upper, kind="thread", factor=across, axis="x", body=(fill(place),)
        )
        if down == 1:
            return node
        lines = affine(-(-total // across))
        return For(variable=line, lower=affine(0), upper=lines, kind="thread", factor=down, axis="y", body=(node,))


def _flat(nodes: Sequence[Node]) -> Iterator[Node]:
    """Nodes that all threads reach, without those in loops of their own."""
    for node in nodes:
        yield node
        match node:
            case Allocate() | Block():
                yield from _flat(node.body)
            case If():
                yield from _flat((*node.then, *node.otherwise))
            case _:
                pass


def _reads(nodes: Sequence[Node], name: str, inside: tuple[For, ...]) -> Iterator[_Window]:
    """The reads of an array, each with the loops around it."""
    for node in nodes:
        for expr in expressions(node):
            for read in reads_of(expr):
                if read.tensor == name:
                    yield _Window(read, inside)
        match node:
            case For():
                yield from _reads(node.body, name, (*inside, replace(node, body=())))
            case If():
                yield from _reads((*node.then, *node.otherwise), name, inside)
            case Allocate() | Block():
                yield from _reads(node.body, name, inside)
            case Assign() | UpdateArgument() | Prefetch():
                pass


def _overlap(found: Sequence[_Window]) -> bool:
    """Whether neighbouring threads' windows overlap: a subscript that moves with a thread has several constants, or moves with a loop inside, and all move along x."""
    inside = {loop.variable: loop for window in found for loop in window.loops}
    own = {name for name, loop in inside.items() if loop.kind in ("thread", "jam")}
    first = found[0].read.subscripts
    wide = False
    for d in range(len(first)):
        subscripts = [w.read.subscripts[d] for w in found]
        if not all(isinstance(s, Affine) for s in subscripts):
            return False
        names = set().union(*(s.variables() for s in subscripts if isinstance(s, Affine)))
        several = len({s.constant for s in subscripts if isinstance(s, Affine)}) > 1
        sequential = {n for n in names - own if n in inside and inside[n].kind in ("sequential", "unroll")}
        wide |= bool(names & own) and (several or bool(sequential))
    last = first[-1]
    return wide and isinstance(last, Affine) and bool(last.variables() & own)


def _count(window: _Window, ranges: Ranges) -> int | None:
    """How often the read is done in a visit, at most."""
    total, inside = 1, ranges
    for loop in window.loops:
        inside = inside.enter(loop)
        span = inside.highest(loop.upper - loop.lower)
        if span is None:
            return None
        total *= max(0, -(-span // loop.step))
    return total


def _tests(first: Affine, size: int, at: Affine, extent: Affine, ranges: Ranges) -> Iterator[Expr]:
    """Whether a place of the tile is in the array, along one dimension; nothing where all of them are."""
    value, low, high = IndexValue(at, i64), ranges.lowest(first), ranges.highest(first + (size - 1) - extent)
    if low is None or low < 0:
        yield Apply("le", (IndexValue(affine(0), i64), value), boolean)
    if high is None or high >= 0:
        yield Apply("lt", (value, IndexValue(extent, i64)), boolean)


def _all(tests: Sequence[Expr]) -> Expr:
    return functools.reduce(lambda one, other: Apply("and", (one, other), boolean), tests)
