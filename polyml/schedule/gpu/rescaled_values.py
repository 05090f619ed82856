"""Indices, kinds of statements and values of a region of weighted sums in tiles (gpu/rescaled_tiles.py): what a thread knows of a row, a key, an element of the result."""

from __future__ import annotations

from dataclasses import field, replace

from polyml.dtypes import DType, boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, map_reads
from polyml.records import dataclass
from polyml.schedule.gpu.rescaled_parts import TiledStatements
from polyml.schedule.strategy.cuda.rescaled_tiles import Operand
from polyml.scop.scop import Access, Statement, StatementKind
from polyml.sets.affine import Affine, affine

__all__ = ["TiledValues", "scaled"]


@dataclass(slots=True)
class TiledValues(TiledStatements):
    """own: arrays of a thread's own elements in place of the scop's; totals, growing, finals: of sums, before, within and behind a tile; tiles: operands in shared memory, and the subscripts of
    an element."""

    copies: dict[str, Operand] = field(default_factory=dict)
    tiles: dict[Read, tuple[str, tuple[Affine, ...]]] = field(default_factory=dict)
    own_of: dict[str, str] = field(default_factory=dict)
    totals: dict[str, str] = field(default_factory=dict)
    growing: dict[str, str] = field(default_factory=dict)
    finals: dict[str, str] = field(default_factory=dict)
    maximum: str = ""
    sums: str = ""
    valid: str = ""

    # -- indices, and what has them -----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> DType:
        return self.scop.arrays[self.found.maximum.target.array].dtype

    @property
    def x(self) -> Affine:
        return affine(self.names.thread)

    @property
    def now(self) -> Affine:
        """The tile, where that is an index."""
        return affine(self.names.tile)

    @property
    def turn(self) -> Affine:
        """The tile of a key."""
        return affine(self.plan.keys.index) // self.plan.keys.size

    @property
    def by_key(self) -> Affine:
        """The thread that has a key's scores."""
        return self.plan.keys.digits(self.plan.keys.index)[2]

    @property
    def by_column(self) -> Affine:
        return self.plan.columns.digits(self.plan.columns.index)[2]

    @property
    def extents(self) -> dict[str, Affine]:
        names, plan = self.names, self.plan
        threads = affine(plan.keys.threads)
        beside = {
            names.block: plan.count(plan.rows),
            names.tile: plan.count(plan.keys),
            names.thread: threads,
            names.other: threads,
        }
        return {**self.found.extents, **beside}

    @property
    def whole(self) -> dict[str, Affine]:
        """The extents of whole tiles."""
        return {
            **self.extents,
            **{side.index: self.plan.padded(side) for side in (self.plan.rows, self.plan.keys, self.plan.columns)},
        }

    def mine(self, array: str, *more: Affine) -> Read:
        """What a thread knows of a row; more: the thread, the tile."""
        return Read(array, self.rows_at(*more), self.arrays[array].dtype)

    def scored(self, array: str) -> Read:
        return Read(array, self.at((self.plan.rows, self.plan.keys)), self.arrays[array].dtype)

    # -- kinds of statements ------------------------------------------------------------------------------------------------------

    def row(
        self, name: str, kind: StatementKind, target: Access, value: Expr, *, each: bool = False, reduction: str | None = None
    ) -> str:  # fmt: skip
        """Of a row and each of its threads, in each tile where these are. each: for what each other thread has."""
        tile = (self.names.tile,) if self.phase == 1 else ()
        indices = (*self.found.rows, self.names.thread, *tile, *((self.names.other,) if each else ()))
        return self.add(
            name, kind, indices, self.whole, target, value, tile=self.names.tile if tile else None, reduction=reduction
        )

    def cell(self, name: str, kind: StatementKind, target: Access, value: Expr, reduction: str | None = None) -> str:
        """Of a row and a key."""
        indices = (*self.found.rows, self.plan.keys.index)
        return self.add(name, kind, indices, self.whole, target, value, tile=self.turn.isl_text(), reduction=reduction)

    def to(self, array: str, *more: Affine) -> Access:
        return Access(array, self.rows_at(*(more or (self.x,))))

    def scores_of(self, s: Statement, value: Expr) -> str:
        """The statement of elements that stay with the thread that makes them."""
        array = s.target.array
        self.own_of[array] = self.own(f"{array}_own", self.scop.arrays[array].dtype, (self.plan.rows, self.plan.keys))
        target = Access(self.own_of[array], self.at((self.plan.rows, self.plan.keys)))
        return self.cell(array, "assign", target, value)

    # -- values -------------------------------------------------------------------------------------------------------------------

    def known(self, value: Expr, thread: Affine) -> Expr:
        """A value behind the tiles, of what the thread knows."""
        match value:
            case Read() if value.tensor in self.finals:
                return self.mine(self.finals[value.tensor], thread)
            case Read() if value.tensor == self.found.maximum.target.array:
                return self.mine(self.maximum, thread)
            case Read() if value.tensor == self.found.result.target.array:
                sums = Read(self.sums, self.at((self.plan.rows, self.plan.columns)), value.dtype)
                made = scaled(sums, self.mine(self.valid, thread))
                if self.found.scale is None:
                    return made
                op, other = self.found.scale
                return Apply(op, (made, self.known(other, thread)), value.dtype)
            case Apply():
                return replace(value, args=tuple(self.known(a, thread) for a in value.args))
            case _:
                return value

    def rewritten(self, value: Expr, score: str | None = None, maximum: str | None = None) -> Expr:
        """A value of a row and a key, of the thread's own elements. score: what the maximum is taken of, once that is known."""
        if score is not None and value == self.found.maximum.value:
            return self.scored(score)
        match value:
            case Read() if value.tensor in self.own_of:
                return self.scored(self.own_of[value.tensor])
            case Read() if maximum is not None and value.tensor == self.found.maximum.target.array:
                return self.mine(maximum, self.by_key, self.turn)
            case Apply():
                return replace(value, args=tuple(self.rewritten(a, score, maximum) for a in value.args))
            case _:
                return value

    def weighing(self, value: Expr, score: str, maximum: str) -> Expr:
        """A weight, 0 where there is none."""
        return self.inside(self.rewritten(value, score, maximum), 0)

    def tiled(self, value: Expr) -> Expr:
        """The value with its operands read from shared memory."""
        block = {self.names.block: affine(self.plan.rows.index) // self.plan.rows.size}

        def change(read: Read) -> Read:
            tile = self.tiles.get(read)
            return read if tile is None else Read(tile[0], tuple(s.substitute(block) for s in tile[1]), read.dtype)

        return map_reads(value, change)

    def exponential(self, one: Expr, other: Expr) -> Expr:
        """exp(c * (one - other))."""
        difference = Apply("sub", (one, other), self.kind)
        if self.found.slope != 1:
            difference = Apply("mul", (difference, Const(self.found.slope, self.kind)), self.kind)
        return Apply("exp", (difference,), self.kind)

    def inside(self, value: Expr, otherwise: float) -> Expr:
        """The value where there are such a row and such a key, where tiles are not all whole."""
        made = value
        for side in (self.plan.rows, self.plan.keys):
            extent = self.found.extents[side.index]
            if extent % side.size != affine(0):
                there = Apply("lt", (IndexValue(affine(side.index), i64), IndexValue(extent, i64)), boolean)
                made = Apply("select", (there, made, Const(otherwise, value.dtype)), value.dtype)
        return made


def scaled(one: Expr, other: Expr) -> Expr:
    """Their product, of the first one's type."""
    factor = other if other.dtype == one.dtype else Apply("cast", (other,), one.dtype)
    return Apply("mul", (one, factor), one.dtype)
