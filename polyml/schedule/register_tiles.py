"""Which register tile of accumulators keeps a machine's arithmetic busy: a model of the cycles of one step of the loop inside it."""

from __future__ import annotations

from math import ceil

from polyml.records import dataclass
from polyml.schedule.cost import SHUFFLED, AccessModel, StatementModel
from polyml.target import Target

__all__ = ["FEW_ROWS", "MOST_TERMS", "TALLEST", "RegisterTile", "again", "register_tile"]

TALLEST = 14
"""Rows of a register tile, at most."""

FEW_ROWS = 4
"""Rows at most where a number that is not known is small in most calls: what is left of them takes tiles of half as many, and so on."""

REST_OF_WINDOWS = 1.1
"""Factor on the cost of a tile over windows where its height does not divide the rows: those that are left go one by one, and share no loads."""

MOST_TERMS = 192
"""Terms of a register tile over windows that are written out, at most: more take longer to compile than they gain."""

IN_FLIGHT = 2
"""Registers of vectors that have been loaded, beside those that stay."""

_OF_A_WINNER = 4
"""More of them where rows share steps of argmax or argmin: the candidate, whether it is better, the step's index in all lanes, and whether all were numbers."""

_PIECE = 1.0
"""Cost of going on elsewhere in what is read once: rows of few vectors each are lines far apart, which no prefetcher of the hardware follows."""

_APART_BY_SIZES = 1.2
"""Times as long where rows of windows lie a size apart: each has an address of its own, and there are more of these than registers (1.35 times for sums of 3 x 3, 1.2 for four filters of 5 x 5)."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """`rows` copies of the jammed index times `vectors` vectors of the vector index; cost: cycles per vector operation."""

    rows: int
    vectors: int
    cost: float


def register_tile(
    model: StatementModel,
    jam: str | None,
    vector: str,
    target: Target,
    *,
    max_rows: int = TALLEST,
    wide: int = 0,
    sums: int = 1,
) -> RegisterTile:
    """The tile of accumulators that keeps the arithmetic busy: few loads per operation, no spills, little waste at the edges. wide: its vectors, where panels of an operand say how many (0: any number).
    sums: how many like this one run side by side.

    Model: two arithmetic and two load instructions a cycle, latency 4. Registers: the accumulators, one per vector that several rows share,
    and those in flight.
    """
    lanes = target.lanes(model.itemsize)
    reads = [a for a in model.accesses if not a.write]
    rows_limit = 1 if jam is None else max(1, min(max_rows, model.extents[jam]))
    sizes_apart = jam is not None and any(
        a.stride(jam) is None and _shares(model, a, jam, tap) for a in reads for tap in model.taps
    )
    in_flight = IN_FLIGHT + (_OF_A_WINNER if model.registers > 1 and jam is not None else 0)
    best: RegisterTile | None = None
    for vectors in (wide,) if wide else range(1, min(4, ceil(model.extents[vector] / lanes)) + 1):
        waste = _waste(model.extents[vector], vectors * lanes)
        single = _tile_cycles(model, reads, None, vector, 1, vectors, target, sums) * waste / vectors
        for rows in range(1, rows_limit + 1):
            shared = sum(vectors for a in reads if a.stride(vector) != 0 and (jam is None or a.stride(jam) == 0))
            taken = sums * (rows * vectors * model.registers + shared) + in_flight
            if taken > target.vector_registers and (rows, vectors) != (1, wide or 1):
                continue
            cost = single
            if jam is not None:
                cost = _tile_cycles(model, reads, jam, vector, rows, vectors, target, sums) * waste / (rows * vectors)
                if sizes_apart:
                    cost *= _APART_BY_SIZES
                rest = model.extents[jam] % rows / model.extents[jam]
                cost = ((1 - rest) * cost + rest * single) * (
                    1.0 if not rest else REST_OF_WINDOWS if model.taps else 1.02
                )
            if best is None or cost < best.cost * 0.99:
                best = RegisterTile(rows, vectors, cost)
    assert best is not None, "internal: no register tile at all"
    return best


def again(coefficients: int, sums: int, registers: int) -> float:
    """The part of a window's coefficients, each in all lanes of a register, for which there is no register beside the sums of a tile and two vectors in flight: each sum of the tile loads them for itself."""
    left = coefficients - max(0, registers - sums - IN_FLIGHT)
    return max(0, left) / coefficients


def _tile_cycles(
    model: StatementModel,
    reads: list[AccessModel],
    jam: str | None,
    vector: str,
    rows: int,
    vectors: int,
    target: Target,
    sums: int,
) -> float:
    """Cycles of one step of the loop inside a tile, for each of so many sums."""
    loads, lanes = 0.0, target.lanes(model.itemsize)
    written = _written_taps(model, jam, vector, rows, vectors, target.vector_registers)
    for access in reads:
        along = access.stride(vector)
        few = along is not None and 1 < along <= SHUFFLED
        each = 1.0 if along in (0, 1) else min(2.0 * (along or 0) - 1, float(lanes)) if few else float(lanes)
        if along == 1 and vector in model.overlapping:
            # Taps begin anywhere in a line: so many vectors are two loads.
            each += lanes * model.itemsize / target.line_bytes
        if along == 0 and any(access.stride(tap) != 0 for tap in model.taps):
            each += written.again * (rows * vectors - 1)
        loads += each * _copies(model, access, jam, written, rows) * (vectors if along != 0 else 1)
    arithmetic = max(model.operations, 1.0) * rows * vectors / 2
    # Loads that hide under arithmetic still cost: broadcasts little, vectors more, which stream from L2, and from memory in pieces where each element is read once.
    streamed = pieces = 0.0
    for access in reads:
        if access.stride(vector) != 0:
            copies = _copies(model, access, jam, written, rows)
            streamed += vectors * copies
            pieces += copies if all(access.stride(i) != 0 for i in model.extents) and not model.taps else 0
    return max(arithmetic, loads / 2, 4.0 / sums) + 0.1 * loads + 0.2 * streamed + _PIECE * pieces


@dataclass(frozen=True, slots=True)
class _Written:
    """taps: those that are written out. again: the part of their coefficients that are loaded again."""

    taps: frozenset[str] = frozenset()
    again: float = 0.0


def _written_taps(
    model: StatementModel, jam: str | None, vector: str, rows: int, vectors: int, registers: int
) -> _Written:
    """Which taps of a small window are written out around a tile (codegen/passes/sums/window_taps.py): all of them where their coefficients stay in registers, else those along the rows alone."""
    if jam is None or not {jam, vector} <= model.overlapping:
        return _Written()
    sums = rows * vectors
    along = {tap for a in model.accesses if a.stride(vector) == 1 for tap in model.taps if _shares(model, a, jam, tap)}
    choices = [(model.taps, model.terms), *((frozenset({tap}), model.extents[tap]) for tap in sorted(along))]
    found = [_Written(taps, again(n, sums, registers)) for taps, n in choices if n * sums <= MOST_TERMS]
    return min(found, key=lambda written: written.again, default=_Written())


def _copies(model: StatementModel, access: AccessModel, jam: str | None, written: _Written, rows: int) -> float:
    """Rows of the tile that load the access for themselves; rows of small windows share what they have in common."""
    if jam is None or access.stride(jam) == 0:
        return 1.0
    for tap in sorted(written.taps):
        if _shares(model, access, jam, tap):
            return (rows - 1) * (access.steps(jam, tap) or 0) / model.extents[tap] + 1.0
    return float(rows)


def _shares(model: StatementModel, access: AccessModel, jam: str, tap: str) -> bool:
    """Whether a row of the tile reads at other taps what the one before it reads."""
    steps = access.steps(jam, tap)
    return steps is not None and steps < model.extents[tap]


def _waste(extent: int, step: int) -> float:
    return ceil(extent / step) * step / extent
