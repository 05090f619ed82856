"""Register tiles whose rows are no whole vectors: what they write is collected in L1 and goes past the caches in one piece.

Rows of 24 elements that lie one after the other in a large result begin anywhere in a vector, but all of them together are a contiguous run of whole cache lines. So the
tiles of such a run write to scratch memory, and a loop behind them copies it, vector by vector, aligned where the result is.

Source: Springer and Bientinesi, "Design of a High-Performance GEMM-like Tensor-Tensor Multiplication" (TOMS 2018), for the order; the scratch memory is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard

from polyml.codegen.loops import Allocate, Assign, For, Function, Node, Place, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import walk_nodes, with_body
from polyml.expressions import Read
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import is_known

__all__ = ["stage_tiles"]

LEAST = 4
"""Vectors of a run, at least."""

TOGETHER = 8
"""Vectors that the copy moves in one iteration, at most."""


def stage_tiles(function: Function, *, vector_bytes: int, l1_bytes: int) -> Function:
    """The function with runs of streaming stores that are no whole vectors collected in scratch memory, an eighth of L1 at most.

    Rewrite:
        for (b = 0; b < 20; b += 10) { vector(16) for (a = 0; a < 16; ..) { .. z[c, b, a] = r0; z[c, b + 1, a] = r1; .. }  vector(8) for (a = 16; a < 24; ..) ..  }
        -> local s[480];
           for (b = 0; b < 20; b += 10) { vector(16) for (a ..) { .. s[24*b + a] = r0; s[24*b + a + 24] = r1; .. } .. }
           vector(16) for (e = 0; e < 480; ..) z[c, e//24, e%24] = s[e];
    """
    taken = names_in(function)
    rows = frozenset(lead.array for lead in function.leads)
    arguments = {v.name: v for v in function.arguments if v.name not in rows}
    stages = _Stages(arguments, vector_bytes, l1_bytes // 8, taken)
    return map_loops(function, stages.stage)


@dataclass(frozen=True, slots=True)
class _Run:
    """What one loop writes of one result: `size` elements from subscripts `start` on, whose last dimension has `row` elements. flat: the first one, counted from the array's start."""

    variable: Variable
    start: tuple[Affine, ...]
    flat: Affine
    size: int
    row: int


@dataclass(frozen=True, slots=True)
class _Stages:
    arguments: Mapping[str, Variable]
    vector_bytes: int
    budget: int
    taken: set[str]

    def stage(self, loop: For, ranges: Ranges, _: For | None) -> Node | None:
        run = self.run(loop, ranges) if loop.kind == "sequential" else None
        return None if run is None else self.staged(loop, run)

    def run(self, loop: For, ranges: Ranges) -> _Run | None:
        """The run that the loop over register tiles writes; None when it writes anything else, or whole vectors anyway."""
        tiles = [node for node in loop.body if isinstance(node, For) and node.kind == "vector"]
        if len(tiles) != len(loop.body) or not loop.lower.is_constant or not loop.upper.is_constant:
            return None
        stores = [(tile, node) for tile in tiles for node in walk_nodes(tile.body) if _is_streaming(node)]
        names = {node.target.variable for _, node in stores}
        variable = self.arguments.get(next(iter(names))) if len(names) == 1 else None
        if variable is None or len(variable.shape) < 2 or not is_known(variable.shape):
            return None
        return self.contiguous(loop, stores, variable, ranges)

    def contiguous(
        self, loop: For, stores: list[tuple[For, Assign]], variable: Variable, ranges: Ranges
    ) -> _Run | None:
        lanes = self.vector_bytes // variable.dtype.itemsize
        tile, first = stores[0]
        origin = {loop.variable: loop.lower, tile.variable: tile.lower}
        start = tuple(s.substitute(origin) for s in first.target.subscripts if isinstance(s, Affine))
        flat = flat_element(variable, start)
        if flat is None or len(start) != len(variable.shape) or start[-1] != affine(0):
            return None
        row = variable.shape[-1].constant
        if row % lanes == 0 or ranges.multiple(flat) % lanes:
            return None
        covered: list[tuple[int, int]] = []
        for node, store in stores:
            where = flat_element(variable, store.target.subscripts)
            if where is None:
                return None
            for piece in _pieces(loop, node, where - flat):
                if piece is None or piece[1] * variable.dtype.itemsize > self.budget:
                    return None
                covered.append(piece)
        end = 0
        for low, high in sorted(covered):
            if low > end:
                return None
            end = max(end, high)
        whole = end % lanes == 0 and end >= LEAST * lanes
        return _Run(variable, start, flat, end, row) if whole else None

    def staged(self, loop: For, run: _Run) -> Node:
        name = fresh(f"{run.variable.name}_stage", self.taken)
        room = Variable(
            name=name, dtype=run.variable.dtype, shape=(affine(run.size),), scope="local", alignment=self.vector_bytes
        )

        def redirect(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
            return tuple(visit(node) for node in nodes)

        def visit(node: Node) -> Node:
            if not _is_streaming(node):
                return with_body(node, redirect)
            where = flat_element(run.variable, node.target.subscripts)
            assert where is not None, "internal: a staged element without an address"
            return replace(node, target=Place(name, (where - run.flat,)), streaming=False)

        return Allocate(variable=room, body=(replace(loop, body=redirect(loop.body)), self.copy(run, name)))

    def copy(self, run: _Run, stage: str) -> For:
        width = self.vector_bytes // run.variable.dtype.itemsize
        count = max(k for k in range(1, TOGETHER + 1) if run.size // width % k == 0)
        element = fresh(f"{run.variable.name}_element", self.taken)
        moves: list[Node] = []
        for k in range(count):
            at = affine(element) + k * width
            outer, inner = at // run.row, at % run.row
            place = Place(run.variable.name, (*run.start[:-2], run.start[-2] + outer, inner))
            moves.append(Assign(target=place, value=Read(stage, (at,), run.variable.dtype), streaming=True))
        return For(
            variable=element, lower=affine(0), upper=affine(run.size), step=count * width, kind="vector", width=width,
            body=tuple(moves),
        )  # fmt: skip


def _is_streaming(node: Node) -> TypeGuard[Assign]:
    return isinstance(node, Assign) and node.streaming and bool(node.target.subscripts)


def _pieces(loop: For, tile: For, offset: Affine) -> Iterator[tuple[int, int] | None]:
    """The elements that one store writes in all iterations, as ranges; None where that is not known."""
    lower, upper = tile.lower, tile.upper
    if not lower.is_constant or not upper.is_constant or offset.stride(tile.variable) != 1:
        yield None
        return
    for outer in range(loop.lower.constant, loop.upper.constant, loop.step):
        for at in range(lower.constant, upper.constant, tile.step):
            value = offset.substitute({loop.variable: outer, tile.variable: at})
            if not value.is_constant:
                yield None
                return
            count = min(tile.width, upper.constant - at) if tile.masked else tile.width
            yield value.constant, value.constant + count
