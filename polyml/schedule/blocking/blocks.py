"""What a blocked contraction is made of: the roles of its indices, the register tile and the sizes of its blocks (blocking/plan.py decides them, strategy/contractions/blocked.py carries them out)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from polyml.records import dataclass
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import by_stride
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import RegisterTile
from polyml.schedule.schedule import Product
from polyml.sets.affine import Affine
from polyml.shown import counted

__all__ = ["Blocking", "blocks_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Indices of one update statement by role, outermost first, and the sizes of the blocks.

    lanes, rows: of the register tile (rows: "" where C has none). vector_side, row_side: the other indices of C that only one operand has; batch: those that both have. reduced: the
    reduction's. sizes: iterations per block, for `lanes`, `vector_side` and `reduced`. vector_operand: the array that is packed into panels of `width` (when `packed`);
    row_operand: the other one where its rows are packed too, else None; `sizes` then has a block of `rows`. source_order: the loops that pack
    a block of the vector operand. turned: the result is read again, row by row, by a statement that lays it out with `rows` innermost; lines_first: a vector of columns at a time (blocking/laid_out.py); across: or with that column of its, once `together` of them are finished. result_order: not empty where the reduction is so short that a panel of the vector operand stays in L1 and writing C is what costs: the
    indices of both sides, that loops around the register tile follow, in the order of C's memory as far as L1 has room for what they share (blocking/order.py). rows_ahead: all rows, or a block of them where their number is not known, are packed once per block of the reduction, whose
    blocks are then the outer ones. rows_along: rows that are packed are contiguous along the reduction. row_lines: what a register tile has of each of their terms is a cache line, or a half. in_place: a block of the vector operand is as good as a panel where it lies. rows_in_l2: so many packed rows go along one panel after the other, which stays in L1; 0: panels follow each other along a tile's rows.
    last: vectors of the last register tiles along the lanes, where other ones than whole tiles and what is left are better. strips: it is read where it lies, a strip as wide as the register tile at a time, by all rows. parts_first: strips that are packed, all of them for one part of the sum before the next. beside: of the lanes, how many are finished one packed strip after the other before they are laid out (0: those of a block). rest: columns beside those of `extents`, with lanes along `rest_lanes`, the sum's index or the rows' (blocking/rest_columns.py); side_by_side: how many of their sums are in registers at a time, at most. one_kind: whole register tiles along the lanes have no loop of their own, their last vectors overlap like those of the others. ends: the symbolic extents, for which `extents` has a large number. worth: how large they must be for this to pay.
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
    turned: bool = False
    lines_first: bool = False
    across: str | None = None
    together: int = 1
    result_order: tuple[str, ...] = ()
    rows_ahead: bool = False
    rows_along: bool = False
    row_lines: bool = False
    in_place: bool = False
    rows_in_l2: int = 0
    last: tuple[int, ...] = ()
    strips: bool = False
    parts_first: bool = False
    beside: int = 0
    rest: int = 0
    rest_lanes: str = ""
    side_by_side: int = 0
    one_kind: bool = False
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
    def in_parts(self) -> bool:
        """Whether the sums of all rows are too many to wait for the blocks of the reduction, so that a part of the outermost rows has all of them before the next."""
        return not self.rows_ahead and any(self.blocked(index) for index in self.row_side)

    @property
    def streams(self) -> bool:
        """Whether a few rows of the vector operand at a time are read from end to end, and added to sums that are finished at the end only."""
        return not self.packed and not self.strips

    @property
    def writes_once(self) -> bool:
        """Whether a sum is finished when it leaves its register."""
        return (self.packed or self.strips) and not any(self.blocked(index) for index in self.reduced)

    def __str__(self) -> str:
        blocks = ", ".join(
            f"{index} by {size}"
            for index, size in self.sizes.items()
            if self.blocked(index) and (index != self.rows or self.row_operand)
        )
        tile = f"{counted(self.tile.vectors, 'vector')} of {self.lanes}"
        tile = f"register tile {self.tile.rows} {self.rows} x {tile}" if self.rows else tile
        how = "read once, in order" if not self.packed else f"packed in panels of {self.width}"
        packed = f"{self.vector_operand} " + ("read where it lies" if self.in_place or self.strips else how)
        if self.strips or self.beside:
            packed += f", in strips of {self.width}" if self.strips else ", one after the other"
        packed += f", {self.row_operand} in panels of {self.tile.rows}" if self.row_operand is not None else ""
        packed += ", tiles in the order of the result" if self.result_order else ""
        packed += " ahead of all columns" if self.rows_ahead else ""
        packed += f", {self.rows_in_l2} rows along each panel" if self.rows_in_l2 else ""
        packed += f", the last ones of {' and '.join(map(str, self.last))} vectors" if self.last else ""
        packed += f"; {self.rest} more {self.lanes} with lanes along {self.rest_lanes}" if self.rest else ""
        return f"{tile}; {packed}" + (f"; blocks of {blocks}" if blocks else "")


def blocks_of(
    model: StatementModel,
    sides: Sides,
    rows: str,
    tile: RegisterTile,
    width: int,
    sizes: dict[str, int],
    *,
    packed: bool,
) -> Blocking:
    """Blocks of these sizes, of which nothing but the vector operand may be packed."""
    return Blocking(
        statement=model.name,
        lanes=sides.lanes,
        rows=rows,
        tile=tile,
        width=width,
        batch=tuple(sides.batch),
        vector_side=tuple(by_stride(sides.columns, sides.out)),
        row_side=tuple(i for i in by_stride(sides.rows, sides.out) if i != rows),
        reduced=tuple(sides.reduced),
        extents=dict(model.extents),
        sizes=sizes,
        vector_operand=sides.operand.array,
        packed=packed,
        row_operand=None,
        source_order=tuple(_source_order(sides, model, width // tile.vectors)),
    )


def _source_order(sides: Sides, model: StatementModel, vector: int) -> list[str]:
    """The loops that pack a block of the vector operand. vector: elements of one."""
    order = by_stride([*sides.columns, *sides.reduced, sides.lanes], sides.operand)
    if sides.first == sides.lanes:
        return order
    # Rows of the operand along its own contiguous index, a vector of them at a time, are transposed in registers; short ones with those that follow in memory (codegen/passes/transposes/collapse_copies.py).
    rows = [sides.first]
    before = [i for i in sides.reduced if i != sides.first]
    while sides.reduced[-1] == sides.first and before and model.extents[sides.first] < vector:
        if sides.operand.stride(before[-1]) != model.extents[rows[0]] * (sides.operand.stride(rows[0]) or 0):
            break
        rows.insert(0, before.pop())
    return [*(i for i in order if i != sides.lanes and i not in rows), sides.lanes, *rows]
