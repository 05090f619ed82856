"""Statements and arrays of a region in tiles, as they are made one by one: arrays of a thread's own elements and of a block, copies to shared memory, the written order, storage maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import islpy as isl

from polyml.dtypes import DType
from polyml.expressions import Expr, Subscript, reads_of
from polyml.new_names import array_name, underscored
from polyml.records import dataclass
from polyml.schedule.gpu.rescaled import Weighted
from polyml.schedule.schedule import Storage
from polyml.schedule.strategy.cuda.rescaled_tiles import Operand, RescaledPlan, tile_shape
from polyml.schedule.strategy.cuda.tile_plan import Side
from polyml.scop.scop import Access, Array, Scop, Statement, StatementKind
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["Names", "TiledStatements"]


@dataclass(frozen=True, slots=True)
class Names:
    """Indices beside those of the structure: number of a block's rows, thread of a row, another one, tile of keys."""

    block: str
    thread: str
    other: str
    tile: str


@dataclass(slots=True)
class _Local:
    """An array of the nest: the extents of its storage, whether each thread has one, and a dimension whose elements take turns."""

    name: str
    shape: tuple[int, ...]
    private: bool = False
    window: int | None = None


@dataclass(slots=True)
class TiledStatements:
    """What has been made so far. phase: 0 before the tiles, 1 in them, 2 behind."""

    scop: Scop
    plan: RescaledPlan
    statements: dict[str, Statement] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    locals: dict[str, _Local] = field(default_factory=dict)
    times: dict[str, tuple[str, ...]] = field(default_factory=dict)
    phase: int = 0
    place: int = 0

    @property
    def found(self) -> Weighted:
        return self.plan.found

    @property
    def names(self) -> Names:
        """Of indices that the structure does not have."""
        taken = {*self.found.rows, *self.found.extents, *self.scop.sizes}
        made = []
        for name in ("u", "x", "z", "t"):
            made.append(underscored(name, taken))
            taken.add(made[-1])
        return Names(*made)

    def fresh(self, name: str) -> str:
        """A name for an array, and with S_ for a statement, that nobody has."""
        taken = {*self.arrays, *self.statements, *self.scop.arrays, *self.scop.statements}
        return array_name(name, taken)

    def own(self, name: str, dtype: DType, sides: Sequence[Side], *, thread: bool = False, tiles: bool = False) -> str:
        """An array of a thread's own elements: of rows (which each of the threads of a row has), or of rows and another side; `tiles`: for each tile."""
        name = self.fresh(name)
        outer = [self.found.extents[i] for i in self.plan.outer]
        shape = [affine(e) for s in sides for e in (0, s.groups, s.threads, s.vector)]
        for k, side in enumerate(sides):
            shape[4 * k] = self.plan.count(side)
        across = [affine(self.plan.keys.threads)] if thread else []
        across += [self.plan.count(self.plan.keys)] if tiles else []
        self.arrays[name] = Array(name=name, dtype=dtype, shape=(*outer, *shape, *across), kind="local")
        room = [e for s in sides for e in (1, s.groups, 1, s.vector)]
        self.locals[name] = _Local(name, (*(1 for _ in outer), *room, *(1 for _ in across)), private=True)
        return name

    def at(self, sides: Sequence[Side], *more: Affine) -> tuple[Affine, ...]:
        """The subscripts of an element of a thread's own; more: the thread, the tile."""
        digits = [d for s in sides for d in s.digits(s.index)]
        return (*map(affine, self.plan.outer), *digits, *more)

    def rows_at(self, *more: Affine) -> tuple[Affine, ...]:
        return self.at((self.plan.rows,), *more)

    def add(
        self, name: str, kind: StatementKind, indices: Sequence[str], limits: Mapping[str, Affine], target: Access,
        value: Expr, *, tile: str | None = None, reduction: str | None = None,
    ) -> str:  # fmt: skip
        """A statement behind those that are there. limits: extents of its indices. tile: the number of its tile."""
        name = underscored(f"S_{name}", self.statements, self.scop.statements)
        texts = [f"0 <= {i} < {limits[i].isl_text()}" for i in indices]
        space = f"{name}[{', '.join(indices)}]"
        domain = isl.Set(f"{parameters_text(self.scop.sizes)}{{ {space} : {' and '.join(texts)} }}")
        self.statements[name] = Statement(
            name=name, indices=tuple(indices), domain=domain.intersect_params(self.scop.context), kind=kind, target=target, value=value, reduction=reduction
        )  # fmt: skip
        self.times[name] = (str(self.phase), tile or "0", str(self.place), *indices)
        self.place += 1
        return name

    def initial(self) -> isl.UnionMap:
        depth = max(map(len, self.times.values()))
        total = isl.UnionMap.empty(self.scop.context.get_space())
        for name, time in self.times.items():
            s = self.statements[name]
            padded = (*time, *("0" for _ in range(depth - len(time))))
            text = f"{parameters_text(self.scop.sizes)}{{ {name}[{', '.join(s.indices)}] -> [{', '.join(padded)}] }}"
            total = total.union(isl.Map(text).intersect_domain(s.domain).to_union_map())
        return total

    def storage(self) -> dict[str, Storage]:
        made = {}
        for local in self.locals.values():
            offsets = {}
            for name, s in self.statements.items():
                seen = [Access(r.tensor, r.subscripts) for r in reads_of(s.value)] + [s.target]
                found = next((a.subscripts for a in seen if a.array == local.name), None)
                if found is None:
                    continue
                firsts = [self.first(local, d, x) for d, x in enumerate(found)]
                text = ", ".join(f"({f.isl_text()})" for f in firsts)
                offsets[name] = isl.MultiAff(
                    f"{parameters_text(self.scop.sizes)}{{ {name}[{', '.join(s.indices)}] -> [{text}] }}"
                )
            wraps = tuple(d == local.window for d in range(len(local.shape))) if local.window is not None else ()
            made[local.name] = Storage(
                array=local.name, place=f"allocate:{local.name}", shape=local.shape, offsets=offsets, wraps=wraps, private=local.private
            )  # fmt: skip
        return made

    def first(self, local: _Local, dimension: int, subscript: Subscript) -> Affine:
        """The first element along a dimension that a statement's block, tile or thread has a place for."""
        assert isinstance(subscript, Affine), "internal: a computed subscript of a tile"
        if dimension == local.window:
            return affine(0)
        if local.private:
            return affine(0) if local.shape[dimension] > 1 else subscript
        for side in (self.plan.rows, self.plan.keys):
            if subscript == affine(side.index):
                return subscript // side.size * side.size
        within = {self.plan.columns.index, self.found.depth, self.names.thread, self.names.other}
        return affine(0) if subscript.name is not None and subscript.name in within else subscript

    def tile_array(
        self, operand: Operand, whole: Mapping[str, Affine], *, window: bool
    ) -> tuple[str, tuple[Affine, ...]]:
        """An operand's tiles, and the subscripts of an element: those of the block, of rows or of the tile of keys, and the operand's own. window: whether tiles take turns, each copied before the last one ends."""
        plan, found, names = self.plan, self.found, self.names
        array = self.scop.arrays[operand.read.tensor]
        name = self.fresh(f"{operand.read.tensor}_tile")
        fixed = [] if plan.rows.index in operand.indices else [names.block]
        turn = [affine(plan.keys.index) // plan.keys.size] if plan.keys.index in operand.indices else []
        subscripts = (*map(affine, plan.outer), *map(affine, fixed), *turn, *map(affine, operand.indices))
        extents = [
            *(found.extents[i] for i in plan.outer),
            *(whole[i] for i in fixed),
            *(plan.count(plan.keys) for _ in turn),
        ]
        self.arrays[name] = Array(
            name=name, dtype=array.dtype, shape=(*extents, *(whole[i] for i in operand.indices)), kind="local"
        )
        ones = len(extents)
        self.locals[name] = _Local(
            name,
            (*(1 for _ in range(ones)), *tile_shape(plan, operand, array.dtype.itemsize)),
            window=ones - 1 if window else None,
        )
        return name, subscripts

    def copy(
        self, operand: Operand, tile: tuple[str, tuple[Affine, ...]], extents: Mapping[str, Affine], number: str | None
    ) -> str:
        """x_tile[..] = x[..] for the elements that are there."""
        fixed = () if self.plan.rows.index in operand.indices else (self.names.block,)
        indices = (*self.plan.outer, *fixed, *operand.indices)
        return self.add(tile[0], "copy", indices, extents, Access(*tile), operand.read, tile=number)

    def exchange(self, name: str, dtype: DType, whole: Mapping[str, Affine], *, tiles: bool = True) -> str:
        """An array where threads of a row leave something for each other, for each tile."""
        plan = self.plan
        count = (plan.count(plan.keys),) if tiles else ()
        return self._shared(
            name,
            dtype,
            (*count, whole[plan.rows.index], affine(plan.keys.threads)),
            (plan.rows.size, plan.keys.threads),
        )

    def cells(self, name: str, dtype: DType, whole: Mapping[str, Affine]) -> str:
        """An array in shared memory of a tile's rows and keys, padded so that rows begin in other banks."""
        rows, keys = self.plan.rows, self.plan.keys
        pad = max(1, 16 // dtype.itemsize)
        return self._shared(name, dtype, (whole[rows.index], whole[keys.index]), (rows.size, keys.size + pad))

    def _shared(self, name: str, dtype: DType, extents: tuple[Affine, ...], room: tuple[int, ...]) -> str:
        name = self.fresh(name)
        outer = tuple(self.found.extents[i] for i in self.plan.outer)
        self.arrays[name] = Array(name=name, dtype=dtype, shape=(*outer, *extents), kind="local")
        ones = len(outer) + len(extents) - len(room)
        self.locals[name] = _Local(name, (*(1 for _ in range(ones)), *room))
        return name

    def shared_at(self, thread: Affine, tile: Affine | None = None) -> tuple[Affine, ...]:
        outer = map(affine, self.plan.outer)
        return (*outer, *(() if tile is None else (tile,)), affine(self.plan.rows.index), thread)
