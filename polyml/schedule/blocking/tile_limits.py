"""Which register tile a blocked contraction has: what bounds its rows and vectors where results are turned, sizes are unknown, or panels go over the whole reduction."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from polyml.records import dataclass
from polyml.schedule.blocking.operands import pages_apart, waits_in_l1
from polyml.schedule.blocking.register_tile import contraction_tile
from polyml.schedule.blocking.shares import sharing_threads
from polyml.schedule.blocking.sides import Sides
from polyml.schedule.blocking.sizes import by_stride
from polyml.schedule.blocking.strips import WAY
from polyml.schedule.blocking.sums import sums_in_blocks
from polyml.schedule.blocking.symbolic import Contraction
from polyml.schedule.cost import StatementModel
from polyml.schedule.register_tiles import TALLEST, RegisterTile
from polyml.sets.affine import Affine
from polyml.target import Target

__all__ = ["REST_AT_HAND", "UNKNOWN_ROWS", "UNKNOWN_VECTORS", "TileLimits", "chosen_tile", "tile_limits"]

UNKNOWN_VECTORS = 2
"""Of a panel over a reduction of symbolic length: 512 channels of 3 x 3 fit in 1 MiB so. Of a register tile whose columns are of unknown number, too: the fewer it has, the fewer are left at the end, and two
keep the units as busy as three."""

TALLEST_TURNED = 28
"""Rows of a register tile at most, where they are points of windows, whose addresses are one and constants."""

FEW_POINTS = 4
"""Rows of a turned result that are neighbours, below which a register tile may have others: a filter's gradient has three places in a row, and as many rows of each channel as there are channels."""

LEAST_TALL = 4
"""Rows of a register tile, at most, however few the call at hand has."""

UNKNOWN_ROWS = 8
"""Of a register tile whose rows are of unknown number: rests have four, then one."""

REST = 0.02
"""Cost of one more kind of register tile at the edges of a turned result: code that is compiled, and a row that is laid out in more pieces."""

REST_AT_HAND = 0.06
"""The same for numbers of one call, which others need not share: rests of any length are loops over smaller and smaller tiles, each compiled, and their rows and columns are finished by the slowest."""


@dataclass(frozen=True, slots=True)
class TileLimits:
    """rows: the indices that the tile's rows may run along, innermost in the result first; tallest: rows at most; widest: vectors at most. rest: what another kind of tile, at an edge, costs beside its cycles, as a part of all."""

    rows: list[str]
    tallest: int
    widest: int
    rest: float


def tile_limits(given: Contraction, target: Target, *, turned: bool, at_hand: bool) -> TileLimits:
    """What bounds the register tile. turned: another statement lays the result out; at_hand: numbers are those of one call."""
    model, sides, ends = given.model, given.sides, given.ends
    inner = by_stride(sides.rows, sides.out)[::-1]
    widest = _vectors_in_l2(model, sides.reduced, ends, target) if turned else _vectors(model, sides, ends, target)
    few = {i for i in inner if turned and _values(given, i) < FEW_POINTS}
    rows = inner[:1] if turned and not few.issuperset(inner[:1]) else inner
    if ends:  # whose numbers do not tell
        rows = [i for i in rows if i not in few] or rows
    if at_hand:  # a panel that is not whole would be one of unknown width
        widest = max(1, min(widest, model.extents[sides.lanes] // target.lanes(model.itemsize)))
    unknown = any(i in ends for i in rows)
    tallest = TALLEST_TURNED if turned and not unknown else UNKNOWN_ROWS if unknown and not turned else TALLEST
    if ends and few:
        tallest = min(tallest, max(LEAST_TALL, *(_values(given, i) for i in rows)))
    return TileLimits(rows, tallest, widest, REST if turned else REST_AT_HAND if at_hand else 0.0)


def _values(given: Contraction, index: str) -> int:
    """How many the index has, of symbolic extents in the call at hand."""
    end, known = given.ends.get(index), given.scop.examples
    return end.evaluate(known) if end is not None and end.variables() <= known.keys() else given.model.extents[index]


def chosen_tile(
    given: Contraction, limits: TileLimits, target: Target, *, turned: bool
) -> tuple[str, RegisterTile, dict[str, int]]:
    """The rows' index, the tile, and the sizes of blocks that go with it and no other."""
    model, sides = given.model, given.sides
    if turned and not given.ends:
        tallest, widest = limits.tallest, limits.widest
        parted = sums_in_blocks(
            given.scop, model, sides, limits.rows, target, tallest=tallest, widest=widest, rest=limits.rest
        )
        if parted is not None:
            return parted

    threads = 1 if given.ends or turned else sharing_threads(model, sides, target)

    def best(among: list[str], tallest: int) -> tuple[str, RegisterTile]:
        operands = len(sides.others)
        return contraction_tile(
            model,
            sides.lanes,
            among,
            operands,
            target,
            most=limits.widest,
            rest=limits.rest,
            tallest=tallest,
            threads=threads,
        )

    rows, tile = best(limits.rows, limits.tallest)
    ways = max(1, target.l1_bytes // WAY)
    if tile.rows > ways and not (given.ends or turned) and waits_in_l1(model, sides, rows, tile, target):
        rows, tile = best([rows], ways)
    for closer in () if given.ends or turned else _closer(model, sides, rows, tile, limits.rows, target):
        at, other = best([closer], limits.tallest)
        if other.cost <= tile.cost:
            return at, other, {}
    return rows, tile, {}


def _closer(
    model: StatementModel, sides: Sides, rows: str, tile: RegisterTile, among: list[str], target: Target
) -> list[str]:
    """Other indices whose rows do not meet in L1, where those of the tile do and its rows of C lie in a page each anyway, in long sums: in short ones C decides. Zen 3, f64, `fbea,cedf->dcba` of 72 values each, whose rows along c lie 729 pages apart:
    packed 988 ms for nine values of b, rows along d, 576 bytes apart, read where they lie 845. Of 64 values of c, d and f, 32 of e and 16 of b, f32 229, 198."""
    size = model.itemsize
    if shared := _with_shared_lines(model, sides, rows, among, target):
        return shared
    panel = prod(model.extents[i] for i in sides.reduced) * tile.vectors * target.vector_bytes
    if len(sides.others) != 1 or not pages_apart(model, sides, rows) or 2 * panel <= target.l1_bytes:
        return []
    if abs(sides.out.stride(rows) or 0) * size < WAY:
        return []
    return [i for i in among if i != rows and sides.others[0].stride(i) and not pages_apart(model, sides, i)]


def _with_shared_lines(model: StatementModel, sides: Sides, rows: str, among: list[str], target: Target) -> list[str]:
    """Indices along which a tile's rows share the lines that they are read from, where the sum goes along pieces shorter than a line, and the tile's own rows lie further apart. Zen 3, `fbea,cedf->dcba` with seven values of f,
    15 of c, whose rows took 660 lines beside a panel of 21 KB, and 29 of d: 2.4 -> 1.7 ms, f64 4.2 -> 3.5."""
    if len(sides.others) != 1 or len(sides.reduced) < 2:
        return []
    (other,), last = sides.others, sides.reduced[-1]
    piece = model.extents[last] * model.itemsize
    if other.stride(last) != 1 or piece >= target.line_bytes:
        return []
    apart = abs(other.stride(rows) or 0)
    return [i for i in among if i != rows and other.stride(i) == model.extents[last] and apart > model.extents[last]]


def _vectors_in_l2(model: StatementModel, reduced: list[str], ends: Mapping[str, Affine], target: Target) -> int:
    """Vectors of a panel over the whole reduction, of which L2 should hold two, the one in use and the next, beside the other operand."""
    if any(i in ends for i in reduced):
        return UNKNOWN_VECTORS
    one = prod(model.extents[i] for i in reduced) * target.vector_bytes
    return max(1, min(4, 3 * target.l2_bytes // 8 // one))


def _vectors(model: StatementModel, sides: Sides, ends: Mapping[str, Affine], target: Target) -> int:
    """Vectors of a register tile at most. Of columns of unknown number: UNKNOWN_VECTORS, or one more where the call at hand has so few that less is left of these."""
    if sides.lanes not in ends:
        return 4
    likely, lanes = model.likely.get(sides.lanes), target.lanes(model.itemsize)

    def tiles(vectors: int) -> float:
        """How many vectors' time they take: the last vectors of a tile overlap, a single one is bound by its loads."""
        full, rest = divmod(likely or 0, vectors * lanes)
        return vectors * full + (vectors if rest > lanes else 1.25 if rest else 0)

    more = UNKNOWN_VECTORS + 1
    return more if likely is not None and tiles(more) < 0.95 * tiles(UNKNOWN_VECTORS) else UNKNOWN_VECTORS
