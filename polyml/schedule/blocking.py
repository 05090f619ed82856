"""The model of a blocked contraction: which operand the lanes run over, register tile, blocks of the reduction and of the vector side, and what is packed.

Goto's scheme for any contraction: C[n.., m..] (+)= f(R[n.., k..], V[m.., k..]). A block of V, at most KC x NC, is packed into panels as wide as the register tile and
stays in L2; a register tile's rows of R stay in L1 (packed too where they are not contiguous along the reduction) while the tile goes over the panels of V.
All sizes follow from the target's caches and registers.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008); Low et al., "Analytical Modeling Is Enough for High-Performance
BLIS" (TOMS 2016), with the roles of the operands swapped: the broadcast operand in L1, the vector operand in L2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

import islpy as isl

from polyml.expressions import Subscript, reads_of
from polyml.records import dataclass
from polyml.schedule.block_sizes import by_stride, depths, even, is_short, rows_fit, streamed_sizes, whole_sizes, widths
from polyml.schedule.cost import AccessModel, RegisterTile, StatementModel, model_statement
from polyml.schedule.schedule import Product
from polyml.scop.accesses import parameters_text
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["Blocking", "plan_blocking"]

MIN_REUSE = 16
"""Times that an element of the vector operand must be read for packing to pay."""

UNBOUNDED = 1 << 20
"""What stands for a symbolic extent: more than any block."""

MIN_DEPTH = 16
"""Length of the reduction below which the tile of C is all that matters."""


APART = 0.9
"""Cost of a register tile, relative to one whose rows are neighbours in C, at which rows that are further apart are worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Indices of one update statement by role, outermost first, and the sizes of the blocks.

    lanes, rows: of the register tile. vector_side, row_side: the other indices of C that only one operand has; batch: those that both have. reduced: the
    reduction's. sizes: iterations per block, for `lanes`, `vector_side` and `reduced`. vector_operand: the array that is packed into panels of `width` (when `packed`);
    row_operand: the other one where its rows are packed too, else None; `sizes` then has a block of `rows`. source_order: the loops that pack
    a block of the vector operand. result_order: not empty where the reduction is so short that a panel of the vector operand stays in L1 and writing C is what costs: the
    indices of both sides, in the order of C's memory, that loops around the register tile follow. rows_ahead: all rows are packed once per block of the reduction, whose
    blocks are then the outer ones. ends: the symbolic extents, for which `extents` has a large number. worth: how large they must be for this to pay.
    """

    statement: str
    lanes: str
    rows: str
    tile: RegisterTile
    width: int
    batch: tuple[str, ...]
    vector_side: tuple[str, ...]
    row_side: tuple[str, ...]
    reduced: tuple[str, ...]
    extents: Mapping[str, int]
    sizes: Mapping[str, int]
    vector_operand: str
    packed: bool
    row_operand: str | None
    source_order: tuple[str, ...]
    result_order: tuple[str, ...] = ()
    rows_ahead: bool = False
    ends: Mapping[str, Affine] = field(default_factory=dict)
    worth: tuple[Product, ...] = ()

    def end(self, index: str) -> str:
        """One past the index's last value, as isl text."""
        known = self.ends.get(index)
        return str(self.extents[index]) if known is None else f"({known.isl_text()})"

    def blocked(self, index: str) -> bool:
        """Whether the index has a loop over blocks."""
        return self.sizes.get(index, self.extents[index]) < self.extents[index]

    @property
    def writes_once(self) -> bool:
        """Whether a sum is finished when it leaves its register."""
        return self.packed and not any(self.blocked(index) for index in self.reduced)

    def __str__(self) -> str:
        blocks = ", ".join(
            f"{index} by {size}"
            for index, size in self.sizes.items()
            if self.blocked(index) and (index != self.rows or self.row_operand)
        )
        tile = f"register tile {self.tile.rows} {self.rows} x {self.tile.vectors} vectors of {self.lanes}"
        packed = f"{self.vector_operand} " + (
            f"packed in panels of {self.width}" if self.packed else "read once, in order"
        )
        packed += f", {self.row_operand} in panels of {self.tile.rows}" if self.row_operand is not None else ""
        packed += ", tiles in the order of the result" if self.result_order else ""
        packed += " ahead of all columns" if self.rows_ahead else ""
        return f"{tile}; {packed}" + (f"; blocks of {blocks}" if blocks else "")


def plan_blocking(scop: Scop, model: StatementModel, target: Target) -> Blocking | None:
    """The blocks of one update; None where it is no contraction of two or more operands, or packing would cost more than it saves."""
    statement = scop.statements[model.name]
    ends = _ends(scop, statement, model)
    if ends is None:
        return None
    if ends:
        model = _at_large(scop, statement, model, ends)
    out = next(a for a in model.accesses if a.write)
    free = [index for index in model.extents if out.stride(index) != 0]
    reduced = [index for index in model.extents if out.stride(index) == 0]
    if not free or not reduced:
        return None
    lanes = min(free, key=lambda index: abs(out.stride(index) or 0))
    reads = [a for a in model.accesses if not a.write]
    vector = [a for a in reads if a.stride(lanes) != 0]
    others = [a for a in reads if a.stride(lanes) == 0]
    if len(vector) != 1 or not others or abs(out.stride(lanes) or 0) != 1:
        return None
    operand = vector[0]
    row_side = [i for i in free if operand.stride(i) == 0]
    both = [i for i in free if operand.stride(i) != 0 and any(a.stride(i) != 0 for a in others)]
    vector_side = [i for i in free if i not in row_side and i not in both and i != lanes]
    if not row_side or any(operand.stride(i) == 0 for i in reduced):
        return None
    rows, tile = _register_tile(model, lanes, by_stride(row_side, out)[::-1], len(others), target)
    reduced = _reduction_order(reduced, others, operand)
    packed = _pays(model, operand, row_side, reduced, target)
    if not packed and not _streams(model, operand, lanes, reduced, target):
        return None
    width = tile.vectors * target.lanes(model.itemsize)
    depth = depths(scop, statement, model, reduced, tile.rows, target)
    inner = min((*vector_side, *reduced, lanes), key=lambda i: abs(operand.stride(i) or 0))
    sizes = depth | widths(model, lanes, vector_side, out, width, prod(depth.values()), target, first=inner)
    sizes[rows] = even(model.extents[rows], target.l2_bytes // 8 // (prod(depth.values()) * model.itemsize), tile.rows)
    if not packed:
        if vector_side or any(
            s.name != statement.name and _reads(s, statement.target.array) for s in scop.statements.values()
        ):
            return None
        sizes = streamed_sizes(model, lanes, rows, reduced[-1], tile, width, target)
    ordered: tuple[str, ...] = ()
    if packed and is_short(model, out, depth, width, target):
        ordered = tuple(by_stride([i for i in (*vector_side, *row_side) if i != rows], out))
        sizes = depth | whole_sizes(model, lanes, vector_side, out, width, prod(depth.values()), target, first=inner)
        sizes |= {index: model.extents[index] for index in row_side}
    row_operand = _packed_rows(model, others, rows, reduced, target) if packed else None
    held = [i for i in model.extents if operand.stride(i) != 0 and i not in both]
    held += [i for i in (rows, *reduced) if row_operand is not None]
    if any(i in ends and sizes.get(i, 1) >= model.extents[i] for i in held):
        return None
    several = any(sizes[index] < model.extents[index] for index in (*vector_side, lanes))
    ahead = several and not ordered and row_operand is not None and rows_fit(model, out, others[0], depth, target)
    if ahead:
        sizes |= {index: model.extents[index] for index in row_side}
    order = by_stride([*vector_side, *reduced, lanes], operand)
    if inner != lanes:
        # Rows of the operand along its own contiguous index, a vector of them at a time, are transposed in registers.
        order = [*(i for i in order if i not in (lanes, inner)), lanes, inner]
    return Blocking(
        statement=model.name,
        lanes=lanes,
        rows=rows,
        tile=tile,
        width=width,
        batch=tuple(both),
        vector_side=tuple(by_stride(vector_side, out)),
        row_side=tuple(i for i in by_stride(row_side, out) if i != rows),
        reduced=tuple(reduced),
        extents=dict(model.extents),
        sizes=sizes,
        vector_operand=operand.array,
        packed=packed,
        row_operand=row_operand,
        source_order=tuple(order),
        result_order=ordered,
        rows_ahead=ahead,
        ends=ends,
        worth=_worth(scop, operand, held, row_side, reduced, ends, target) if ends else (),
    )


def _worth(
    scop: Scop,
    operand: AccessModel,
    held: list[str],
    row_side: list[str],
    reduced: list[str],
    ends: Mapping[str, Affine],
    target: Target,
) -> tuple[Product, ...]:
    """What `_pays` asks of numbers, of symbolic extents at a call."""
    array = scop.arrays[operand.array]
    found = [Product(array.shape, target.l1_bytes // 2 // array.dtype.itemsize + 1)]
    for indices, least in ((row_side, MIN_REUSE), (reduced, MIN_DEPTH)):
        if all(i in ends for i in indices):
            found.append(Product(tuple(ends[i] for i in indices), least))
    return tuple(found)


def _ends(scop: Scop, statement: Statement, model: StatementModel) -> dict[str, Affine] | None:
    """The symbolic extents of an update whose operands are inputs, each read once, by plain indices that start at 0; None for any other statement."""
    if statement.kind != "update" or statement.argument is not None or statement.loop_depth:
        return None
    reads = list(dict.fromkeys(reads_of(statement.value)))
    arrays = [read.tensor for read in reads]
    if len(set(arrays)) != len(arrays) or any(scop.arrays[a].kind != "input" for a in arrays):
        return None
    accesses = [*(read.subscripts for read in reads), statement.target.subscripts]
    for subscripts in accesses:
        names = [s.name if isinstance(s, Affine) else None for s in subscripts]
        if None in names or len(set(names)) != len(names):
            return None
    if any(scop.arrays[a].dtype.itemsize != model.itemsize for a in (*arrays, statement.target.array)):
        return None
    if scop.sizes:
        return _symbolic_box(
            scop, statement, [*zip(arrays, accesses, strict=False), (statement.target.array, accesses[-1])]
        )
    bounded = all(
        statement.domain.dim_min_val(k).is_zero() and statement.domain.dim_max_val(k).is_int()
        for k in range(len(statement.indices))
    )
    return {} if bounded else None


def _at_large(scop: Scop, statement: Statement, model: StatementModel, ends: Mapping[str, Affine]) -> StatementModel:
    """The model with a large number for each size, in strides, too."""
    sizes = dict.fromkeys(scop.sizes, UNBOUNDED)
    arrays = {
        name: replace(array, shape=tuple(affine(extent.evaluate(sizes)) for extent in array.shape))
        for name, array in scop.arrays.items()
    }
    extents = {**model.extents, **{index: end.evaluate(sizes) for index, end in ends.items()}}
    return model_statement(statement, replace(scop, arrays=arrays), extents)


def _symbolic_box(
    scop: Scop, statement: Statement, accesses: Sequence[tuple[str, Sequence[Subscript]]]
) -> dict[str, Affine] | None:
    """The symbolic ones among the extents of the arrays that the statement's indices run along, when its domain is that box; else None."""
    ends: dict[str, Affine] = {}
    for array, subscripts in accesses:
        for subscript, extent in zip(subscripts, scop.arrays[array].shape, strict=True):
            if isinstance(subscript, Affine) and subscript.name is not None:
                ends.setdefault(subscript.name, extent)
    if set(ends) != set(statement.indices):
        return None
    limits = " and ".join(f"0 <= {i} < {ends[i].isl_text()}" for i in statement.indices)
    box = isl.Set(f"{parameters_text(scop.sizes)}{{ {statement.name}[{', '.join(statement.indices)}] : {limits} }}")
    known = scop.context
    if not box.intersect_params(known).is_equal(statement.domain.intersect_params(known)):
        return None
    return {index: end for index, end in ends.items() if not end.is_constant}


def _reduction_order(reduced: list[str], others: list[AccessModel], operand: AccessModel) -> list[str]:
    """Innermost the index along which the broadcast operand is contiguous, so that its rows need no packing."""
    return sorted(
        reduced, key=lambda i: (-min(abs(a.stride(i) or 1 << 40) for a in others), -abs(operand.stride(i) or 0))
    )


def _pays(model: StatementModel, operand: AccessModel, row_side: list[str], reduced: list[str], target: Target) -> bool:
    reuse = prod(model.extents[i] for i in row_side)
    depth = prod(model.extents[i] for i in reduced)
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0)
    return reuse >= MIN_REUSE and depth >= MIN_DEPTH and size > target.l1_bytes // 2


def _streams(model: StatementModel, operand: AccessModel, lanes: str, reduced: list[str], target: Target) -> bool:
    """Whether memory is what it waits for: a contiguous operand that no private cache holds, each element read a few times at once."""
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0)
    few = model.instances * model.itemsize < MIN_REUSE * size
    return few and size > target.l2_bytes and operand.stride(lanes) == 1 and len(reduced) == 1


def _reads(statement: Statement, array: str) -> bool:
    return any(read.tensor == array for read in reads_of(statement.value))


def _register_tile(
    model: StatementModel, lanes: str, row_side: list[str], operands: int, target: Target
) -> tuple[str, RegisterTile]:
    """The rows' index and the tile with the fewest cycles for the whole product, its edges included. row_side: innermost in C first."""
    width = target.lanes(model.itemsize)
    best: tuple[str, RegisterTile] | None = None
    for rows_index in row_side:
        for vectors in range(1, 5):
            for rows in range(1, 15):
                # Accumulators, the vectors that rows share, a broadcast; and two more where there are plenty, for masks' sake.
                if rows * vectors + vectors + 1 > target.vector_registers - (target.vector_registers > 16) * 2:
                    continue
                if rows > model.extents[rows_index] or (vectors - 1) * width >= model.extents[lanes]:
                    continue
                cost = 0.0
                for count, r in _parts(model.extents[rows_index], rows):
                    for panels, v in _vector_parts(model.extents[lanes], vectors, width):
                        cost += count * panels * _step_cycles(model, r, v, operands)
                cost /= model.extents[rows_index] * model.extents[lanes] / width
                # An index further out in C must gain more: the tile's rows are then far apart.
                gain = 0.995 if best is None or best[0] == rows_index else APART
                if best is None or cost < best[1].cost * gain:
                    best = rows_index, RegisterTile(rows, vectors, cost)
    assert best is not None, "internal: no register tile at all"
    return best


def _parts(extent: int, step: int) -> list[tuple[int, int]]:
    """(how many, of which size)."""
    parts = [(extent // step, step), (1, extent % step)]
    return [(count, size) for count, size in parts if count and size]


def _vector_parts(extent: int, vectors: int, width: int) -> list[tuple[int, int]]:
    full, rest = divmod(extent, vectors * width)
    parts = [(full, vectors), (1, rest // width), (1, 1 if rest % width else 0)]
    return [(count, size) for count, size in parts if count and size]


def _step_cycles(model: StatementModel, rows: int, vectors: int, operands: int) -> float:
    """Two arithmetic and two load instructions a cycle, latency 4; loads that hide cost a little, vectors more: they stream from L2."""
    loads = vectors + rows * operands
    return max(max(model.operations, 1.0) * rows * vectors / 2, loads / 2, 4.0) + 0.2 * rows * operands + 0.5 * vectors


def _packed_rows(
    model: StatementModel, others: list[AccessModel], rows: str, reduced: list[str], target: Target
) -> str | None:
    """The broadcast operand, when its elements along the reduction are apart and it does not stay in L1 anyway."""
    operand = others[0]
    size = model.itemsize * prod(e for i, e in model.extents.items() if operand.stride(i) != 0)
    apart = abs(operand.stride(reduced[-1]) or 0) != 1
    needed = len(others) == 1 and apart and size > target.l1_bytes // 2 and operand.stride(rows) != 0
    return operand.array if needed and all(operand.stride(i) != 0 for i in reduced) else None
