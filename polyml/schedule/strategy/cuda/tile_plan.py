"""What was decided of a contraction in tiles on a GPU (cuda/tiles.py decides): a block's rows and columns, who owns which, which operands are staged, and what follows from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from polyml.expressions import Read, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Side", "TilePlan", "moves"]


@dataclass(frozen=True, slots=True)
class Side:
    """An index of the result in a block: `groups` per thread, `threads * vector` apart, of `vector` neighbours."""

    index: str
    threads: int
    groups: int
    vector: int

    @property
    def size(self) -> int:
        return self.threads * self.groups * self.vector

    @property
    def own(self) -> int:
        """Iterations of a thread."""
        return self.groups * self.vector

    def digits(self, name: str) -> tuple[Affine, Affine, Affine, Affine]:
        """Number of the tile, group, thread, neighbour; of the index under another name."""
        value = affine(name)
        step = self.threads * self.vector
        return value // self.size, value // step % self.groups, value // self.vector % self.threads, value % self.vector


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """One update statement's tiles. steps: sequential loops around it, each iteration a launch; outer: other indices of the result, one iteration per block, or `several`; reduced: indices of the
    reduction, outermost first; depth: of those, iterations per tile. extents: of all but the steps, numbers or in sizes. operands: the reads that are staged; crossed: of those, what
    neighbouring threads read along a column."""

    statement: str
    rows: Side
    columns: Side
    steps: tuple[str, ...]
    outer: tuple[str, ...]
    reduced: tuple[str, ...]
    depth: Mapping[str, int]
    extents: Mapping[str, Affine]
    operands: tuple[Read, ...]
    crossed: frozenset[Read]
    several: tuple[tuple[str, int], ...] = ()

    def each(self, index: str) -> int:
        """Iterations of one of the outer indices that a thread does side by side."""
        return dict(self.several).get(index, 1)

    def own(self, side: Side) -> int:
        """Elements of a thread along a side, with those of the outer indices that move with it."""
        moving = [read for read in self.operands if moves(read, side.index)]
        return side.own * prod(count for i, count in self.several if any(moves(read, i) for read in moving))

    @property
    def free(self) -> tuple[str, ...]:
        """The result's indices."""
        return (*self.outer, self.rows.index, self.columns.index)

    @property
    def visit(self) -> tuple[tuple[str, int], ...]:
        """The indices whose tile numbers tell visits apart, with the tiles' sizes; those of the reduction last."""
        blocks = ((i, self.each(i)) for i in self.outer)
        sides = ((side.index, side.size) for side in (self.rows, self.columns))
        return (
            *blocks,
            *sides,
            *((i, self.depth[i]) for i in self.reduced if self.extents[i] != affine(self.depth[i])),
        )

    @property
    def stages(self) -> int:
        """Tiles of each operand at a time: while one is read the next is on its way."""
        last = self.visit[-1][0]
        return 2 if last in self.reduced and self.count(last) != affine(1) else 1

    def size(self, index: str) -> int:
        """Iterations of an index in one visit: a number also where the extent is none, which is never one tile."""
        tiled = dict(self.visit).get(index, 1 if index in self.steps else None)
        return self.extents[index].constant if tiled is None else tiled

    def count(self, index: str) -> Affine:
        """Tiles along an index."""
        return (self.extents[index] + (self.size(index) - 1)) // self.size(index)

    def footprint(
        self, subscripts: Sequence[Subscript], visit: Sequence[str]
    ) -> tuple[tuple[Affine, ...], tuple[int, ...]]:
        """The box of elements that linear subscripts reach in a visit: its first element in the visit's numbers and the steps, and its extents."""
        firsts = {index: affine(name) * size for (index, size), name in zip(self.visit, visit, strict=True)}
        known = {index: firsts.get(index, affine(0)) for index in self.extents}
        first, box = [], []
        for subscript in subscripts:
            assert isinstance(subscript, Affine), "internal: a staged operand has computed subscripts"
            first.append(subscript.substitute(known))
            moving = subscript.variables() & self.extents.keys()
            box.append(1 + sum((subscript.stride(index) or 0) * (self.size(index) - 1) for index in moving))
        return tuple(first), tuple(box)

    def shape(self, read: Read, box: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """Of an operand's tile in shared memory: rows are padded where neighbouring threads read along a column, since 16 bytes bring them to other banks. box: as of `footprint`."""
        row = max((d for d, extent in enumerate(box) if extent > 1), default=len(box) - 1)
        unit = max(1, 16 // itemsize)
        pad = unit if read in self.crossed else 0
        made = [extent + pad * (d == row) for d, extent in enumerate(box)]
        threads = {self.rows.index, self.columns.index}
        along = [d for d, s in enumerate(read.subscripts) if isinstance(s, Affine) and s.variables() & threads]
        below = [d for d in range(along[-1] + 1, row) if box[d] > 1] if pad and along and self.several else []
        if below and (below[0] != row and prod(made[along[-1] + 1 :]) % (2 * unit) != unit):
            # The elements of neighbouring threads an odd number of 16 bytes apart, now that they are several rows apart.
            for more in range(1, unit + 1):
                for tried in (box, made):
                    padded = [extent + more * (d == below[0]) for d, extent in enumerate(tried)]
                    if prod(padded[along[-1] + 1 :]) % (2 * unit) == unit:
                        return tuple(padded)
        return tuple(made)

    def __str__(self) -> str:
        tile = f"tiles of {self.rows.size} {self.rows.index} x {self.columns.size} {self.columns.index}"
        depth = " x ".join(f"{self.depth[i]} {i}" for i in self.reduced if self.depth[i] > 1)
        own = f"{self.own(self.rows)} x {self.own(self.columns)} per thread"
        if self.several:
            own += f", with {' and '.join(f'{count} {i}' for i, count in self.several)}"
        return f"{tile} x {depth}, {own}; {' and '.join(read.tensor for read in self.operands)} staged through shared memory{', twice' * (self.stages > 1)}"


def moves(read: Read, index: str) -> bool:
    """Whether another element is read where the index is another."""
    return any(isinstance(s, Affine) and index in s.variables() for s in read.subscripts)
