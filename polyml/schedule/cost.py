"""The cost model of the CPU strategy: what a statement costs per lane when it runs along an index, and which register tile fits.

Costs are in vector instructions, the strides of the accesses decide them: 0 is a broadcast that the loop hoists, 1 a contiguous vector, anything else one
element at a time. Nothing is measured here; a tuner above may replace the choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import ceil, prod

from polyml.expressions import Apply, Expr, Read, Subscript, neighbours, reads_of, walk
from polyml.records import dataclass
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.shapes import row_major_strides
from polyml.sets.turns import MOST_GAP, MOST_ROWS, rows_in_turn
from polyml.target import Target

__all__ = [
    "FEW_ROWS",
    "LEAST_COLUMNS",
    "MOST_TERMS",
    "TALLEST",
    "AccessModel",
    "RegisterTile",
    "StatementModel",
    "memory_strides",
    "model_statement",
    "operations_of",
    "register_tile",
]

UNKNOWN_EXTENT = 1_024
"""What a loop whose length depends on sizes is taken for."""

UNKNOWN_WINDOW = 8
"""The same for a sum over the places of a window: an index that moves what is read together with one of the result's (`x[i + r]`). Windows are short, and lanes along a long one are no better than lanes along the result."""

TALLEST = 14
"""Rows of a register tile, at most."""

FEW_ROWS = 4
"""The same where most calls have fewer rows, of a number that is not known: what is left of them takes tiles of half as many, and so on."""

REST_OF_WINDOWS = 1.1
"""What tiles cost beside which rows are left: these go one by one, each with all that it reads."""

FEW_STEPS = 4
"""Of a loop beside those over the places of a window."""

MOST_TERMS = 192
"""Terms of a register tile over windows that are written out, at most: more take longer to compile than they gain."""

LEAST_COLUMNS = 4
"""Elements of a row below which a block that is transposed in registers is not worth its shuffles."""

_BROADCAST, _CONTIGUOUS, _REVERSED, _TRANSPOSED = 0.25, 1.0, 2.0, 4.0
_REDUCTION_PENALTY = 1.1
_FAR = 1.5
"""What an element costs that lanes reach one at a time, in an array that L2 does not hold: each is in a line, and soon in a page, of its own."""
_PIECE = 1.0
"""Cost of going on elsewhere in what is read once: rows of few vectors each are lines far apart, which no prefetcher of the hardware follows."""
_SHUFFLED = 4
"""Up to this stride a vector is as many contiguous loads, and shuffles between them."""
_WEIGHTS = {
    "div": 6.0, "mod": 20.0, "floordiv": 20.0, "sqrt": 6.0, "rsqrt": 10.0, "exp": 12.0, "log": 14.0, "log1p": 22.0, "atan2": 24.0, "tanh": 16.0, "sigmoid": 16.0,
    "erf": 20.0, "gelu": 24.0, "sin": 14.0, "cos": 14.0, "pow": 60.0, "min": 2.0, "max": 2.0, "real": 0.25, "imag": 0.25, "complex": 1.0, "pair_bf16": 0.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AccessModel:
    """One access. strides: elements per index that it moves by (an index that is absent: 0); None: irregular. `write`: also for updates. turns: of irregular indices that go through rows in turn, the number of rows.
    near: how far from it statements access the array likewise, for the same values of the indices."""

    array: str
    strides: Mapping[str, int | None]
    write: bool
    turns: Mapping[str, int] = field(default_factory=dict)
    near: frozenset[int] = frozenset()

    def touches_row(self, gap: int) -> bool:
        """Whether all elements between those that are so far apart are accessed, too (codegen/llvm/phases.py)."""
        starts = (range(first, first + gap) for first in range(1 - gap, 1))
        return gap <= MOST_GAP and any(self.near.issuperset(row) for row in starts)

    def stride(self, index: str) -> int | None:
        """Elements between neighbours along the index; None when that is not one number."""
        return self.strides.get(index, 0)


@dataclass(frozen=True, slots=True)
class StatementModel:
    """What the model knows of a statement. operations: vector instructions of its arithmetic. itemsize: bytes of the widest number
    that is computed with. recurrences: indices whose loop must stay a sequential one. overlapping: indices along which neighbours read mostly the same elements (rows of windows); taps: the places of such windows.
    likely: of indices whose extents are not known, how many values they have in large calls like the one at hand. copies: it moves elements, and computes nothing. elementwise: it is
    no sum, and its numbers are plain ones."""

    name: str
    extents: Mapping[str, int]
    accesses: tuple[AccessModel, ...]
    operations: float
    itemsize: int
    is_update: bool
    recurrences: frozenset[str] = frozenset()
    overlapping: frozenset[str] = frozenset()
    taps: frozenset[str] = frozenset()
    likely: Mapping[str, int] = field(default_factory=dict)
    copies: bool = False
    elementwise: bool = False

    @property
    def instances(self) -> int:
        return prod(self.extents.values())

    @property
    def terms(self) -> int:
        """Of a sum, those that windows and loops of a few steps among them (the phases of a row) have."""
        summed = {i: n for i, n in self.extents.items() if self._target.stride(i) == 0}
        return prod(n for i, n in summed.items() if i in self.taps or n <= FEW_STEPS)

    @property
    def work(self) -> float:
        """Scalar operations of all instances."""
        return self.instances * (self.operations + 1)

    def lane_cost(self, index: str, target: Target, *, packed: frozenset[str] = frozenset()) -> float:
        """Vector instructions per element when the lanes run along `index`; arrays in `packed` count as contiguous."""
        lanes = target.lanes(self.itemsize)
        extent = self.extents[index]
        cost = self.operations
        for access in self.accesses:
            cost += self._access_cost(access, index, target, contiguous=access.array in packed)
        if self.is_update and self._target.stride(index) == 0:
            # Lanes are added up once per element, after so many vectors; along a short index each of these is the whole of it.
            vectors = self._updates_per_element / (extent if extent < lanes else 1)
            cost = cost * _REDUCTION_PENALTY + lanes / max(vectors, 1)
        return cost / (lanes * extent / (ceil(extent / lanes) * lanes))

    def scalar_cost(self) -> float:
        """Instructions per element without lanes."""
        return self.operations + len(self.accesses)

    @property
    def _target(self) -> AccessModel:
        return next(a for a in self.accesses if a.write)

    @property
    def _updates_per_element(self) -> int:
        return prod(extent for index, extent in self.extents.items() if self._target.stride(index) == 0)

    def row_across(self, access: AccessModel, index: str) -> str | None:
        """The index along which an elementwise statement's operand has rows, across lanes along `index`: blocks of both are transposed in registers. None where rows are too short for that."""
        if not self.elementwise or access.write or self.recurrences:
            return None
        rows = (i for i, n in self.extents.items() if i != index and n >= LEAST_COLUMNS and access.stride(i) == 1)
        return next(rows, None)

    def _is_far(self, access: AccessModel, target: Target) -> bool:
        """Whether what a sum reads or writes with gaps is in no cache of a core."""
        size = prod(n for i, n in self.extents.items() if access.stride(i) != 0) * self.itemsize
        return self.is_update and size > target.l2_bytes

    def _access_cost(self, access: AccessModel, index: str, target: Target, *, contiguous: bool) -> float:
        lanes = target.lanes(self.itemsize)
        match access.stride(index):
            case 0:
                cost = _BROADCAST
            case 1:
                cost = _CONTIGUOUS
            case -1:
                cost = _REVERSED
            case _ if contiguous:
                cost = _CONTIGUOUS
            case int(stride) if stride > 1 and access.touches_row(stride):
                cost = float(stride)
            case int(stride) if 1 < stride <= _SHUFFLED and not access.write:
                cost = min(2.0 * stride - 1, float(lanes))
            case None if access.turns.get(index, lanes) < lanes and not access.write:
                cost = 2.0 * access.turns[index] - 1
            case _ if self.row_across(access, index) is not None:
                cost = min(_TRANSPOSED, float(lanes))  # by blocks, too (codegen/passes/transpose_copies.py)
            case _ if any(access.stride(walked) in (1, -1) for walked in self.recurrences - {index}):
                cost = min(_TRANSPOSED, float(lanes))  # rows, by blocks (codegen/passes/transposes.py)
            case _:
                cost = float(lanes)
                if self._is_far(access, target):
                    cost *= _FAR
        if access.write:
            # An accumulator is read and written once for all updates of its element.
            cost = 2 * cost / (self._updates_per_element if self.is_update else 1)
        return cost


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """`rows` copies of the jammed index times `vectors` vectors of the vector index; cost: cycles per vector operation."""

    rows: int
    vectors: int
    cost: float


def register_tile(
    model: StatementModel, jam: str | None, vector: str, target: Target, *, max_rows: int = TALLEST
) -> RegisterTile:
    """The tile of accumulators that keeps the arithmetic busy: few loads per operation, no spills, little waste at the edges.

    Model: two arithmetic and two load instructions a cycle, latency 4. Registers: the accumulators, one per vector that several rows share,
    and two in flight.
    """
    lanes = target.lanes(model.itemsize)
    reads = [a for a in model.accesses if not a.write]
    rows_limit = 1 if jam is None else max(1, min(max_rows, model.extents[jam]))
    best: RegisterTile | None = None
    for vectors in range(1, min(4, ceil(model.extents[vector] / lanes)) + 1):
        waste = _waste(model.extents[vector], vectors * lanes)
        single = _tile_cycles(model, reads, None, vector, 1, vectors, target) * waste / vectors
        for rows in range(1, rows_limit + 1):
            shared = sum(vectors for a in reads if a.stride(vector) != 0 and (jam is None or a.stride(jam) == 0))
            if rows * vectors + shared + 2 > target.vector_registers and (rows, vectors) != (1, 1):
                continue
            cost = single
            if jam is not None:
                cost = _tile_cycles(model, reads, jam, vector, rows, vectors, target) * waste / (rows * vectors)
                rest = model.extents[jam] % rows / model.extents[jam]
                cost = ((1 - rest) * cost + rest * single) * (
                    1.0 if not rest else REST_OF_WINDOWS if model.taps else 1.02
                )
            if best is None or cost < best.cost * 0.99:
                best = RegisterTile(rows, vectors, cost)
    assert best is not None, "internal: no register tile at all"
    return best


def _tile_cycles(
    model: StatementModel,
    reads: list[AccessModel],
    jam: str | None,
    vector: str,
    rows: int,
    vectors: int,
    target: Target,
) -> float:
    """Cycles of one step of the loop inside a tile."""
    loads, lanes = 0.0, target.lanes(model.itemsize)
    for access in reads:
        along = access.stride(vector)
        few = along is not None and 1 < along <= _SHUFFLED
        each = 1.0 if along in (0, 1) else min(2.0 * (along or 0) - 1, float(lanes)) if few else float(lanes)
        if along == 1 and vector in model.overlapping:
            # Taps begin anywhere in a line: so many vectors are two loads.
            each += lanes * model.itemsize / target.line_bytes
        loads += each * _copies(model, access, jam, vector, rows, vectors) * (vectors if along != 0 else 1)
    arithmetic = max(model.operations, 1.0) * rows * vectors / 2
    # Loads that hide under arithmetic still cost: broadcasts little, vectors more, which stream from L2, and from memory in pieces where each element is read once.
    streamed = pieces = 0.0
    for access in reads:
        if access.stride(vector) != 0:
            copies = _copies(model, access, jam, vector, rows, vectors)
            streamed += vectors * copies
            pieces += copies if all(access.stride(i) != 0 for i in model.extents) and not model.taps else 0
    return max(arithmetic, loads / 2, 4.0) + 0.1 * loads + 0.2 * streamed + _PIECE * pieces


def _copies(model: StatementModel, access: AccessModel, jam: str | None, vector: str, rows: int, vectors: int) -> float:
    """Rows of the tile that load the access for themselves; rows of small windows share what they have in common (codegen/passes/window_taps.py)."""
    step = 0 if jam is None else access.stride(jam)
    if step == 0:
        return 1.0
    contiguous = {jam, vector} <= model.overlapping and access.stride(vector) == 1
    shared = contiguous and model.terms * rows * vectors <= MOST_TERMS
    for tap in model.taps if shared else ():
        along = access.stride(tap)
        if step and along and step % along == 0 and step // along < model.extents[tap]:
            return (rows - 1) * (step // along) / model.extents[tap] + 1.0
    return float(rows)


def _waste(extent: int, step: int) -> float:
    return ceil(extent / step) * step / extent


def model_statement(statement: Statement, scop: Scop, extents: Mapping[str, int | None]) -> StatementModel:
    """The model of one statement. extents: width of its box per index, None where it depends on sizes."""
    accesses = [_model_read(scop, expr, statement.indices) for expr in dict.fromkeys(_elements(statement.value))]
    accesses.append(
        _model_access(scop.arrays[statement.target.array], statement.target.subscripts, statement.indices, write=True)
    )
    accesses = _with_neighbours(statement, scop, accesses)
    sizes = [scop.arrays[a.array].dtype.part.itemsize for a in accesses]
    combine = 1.0 if statement.kind == "update" else 0.0
    taps, overlapping = _windows(statement)
    return StatementModel(
        name=statement.name,
        extents={i: extents[i] or (UNKNOWN_WINDOW if i in taps else UNKNOWN_EXTENT) for i in statement.indices},
        accesses=tuple(accesses),
        operations=_fused(operations_of(statement.value), combine),
        itemsize=max(sizes),
        is_update=statement.kind == "update",
        overlapping=overlapping,
        taps=taps,
        copies=isinstance(statement.value, Read),
        elementwise=_is_elementwise(scop, statement, accesses),
    )


def _with_neighbours(statement: Statement, scop: Scop, accesses: list[AccessModel]) -> list[AccessModel]:
    """The accesses of an elementwise statement with what is accessed near them."""
    if statement.kind != "assign" or not any(
        step is not None and step > 1 for access in accesses for step in access.strides.values()
    ):
        return accesses
    places: dict[tuple[str, bool, Affine], set[int]] = {}
    own: list[tuple[str, bool, Affine] | None] = []
    constants: list[int] = []
    for other in (statement, *(s for s in scop.statements.values() if s is not statement and s.kind == "assign")):
        elements: list[tuple[str, tuple[Subscript, ...], bool]] = [
            (expr.tensor, expr.subscripts, False) if isinstance(expr, Read) else ("", (), False)
            for expr in dict.fromkeys(_elements(other.value))
        ]
        for name, subscripts, write in (*elements, (other.target.array, other.target.subscripts, True)):
            place = _flat(scop.arrays[name], subscripts) if name else None
            key = None if place is None else (name, write, place - place.constant)
            if key is not None and place is not None:
                places.setdefault(key, set()).add(place.constant)
            if other is statement:
                own.append(key)
                constants.append(0 if place is None else place.constant)
    return [
        access if key is None else replace(access, near=frozenset(at - here for at in places[key]))
        for access, key, here in zip(accesses, own, constants, strict=True)
    ]


def _flat(array: Array, subscripts: tuple[Subscript, ...]) -> Affine | None:
    """The element in memory, counted from the array's start; None where that is not known."""
    place = Affine()
    for subscript, step in zip(subscripts, memory_strides(array), strict=True):
        if not isinstance(subscript, Affine) or step is None:
            return None
        place = place + subscript * step
    return place


def _is_elementwise(scop: Scop, statement: Statement, accesses: list[AccessModel]) -> bool:
    """Whether it is no sum, and its elements are numbers of one part each and of one size."""
    types = [scop.arrays[access.array].dtype for access in accesses]
    same = len({dtype.itemsize for dtype in types}) == 1 and all(dtype.kind not in "bc" for dtype in types)
    return same and statement.kind == "assign"


def _windows(statement: Statement) -> tuple[frozenset[str], frozenset[str]]:
    """Indices of an update's sum that share a subscript with indices of its result, so that neighbouring results read what they read; and those of the result."""
    if statement.kind != "update":
        return frozenset(), frozenset()
    kept = frozenset(i for s in statement.target.subscripts if isinstance(s, Affine) for i in s.variables())
    own = frozenset(statement.indices)
    shared: frozenset[str] = frozenset()
    for read in reads_of(statement.value):
        for subscript in read.subscripts:
            together = subscript.variables() & own if isinstance(subscript, Affine) else frozenset()
            if together & kept and together - kept:
                shared |= together
    return shared - kept, shared & kept


def _elements(expr: Expr) -> Iterator[Read | Apply]:
    """What is read, gathered subscripts included: elements, and neighbours that are read at once (an Apply)."""
    match expr:
        case Apply(op="pair_bf16") if neighbours(expr) is not None:
            yield expr
        case Apply(args=args):
            for arg in args:
                yield from _elements(arg)
        case Read():
            yield expr
            for subscript in expr.subscripts:
                if not isinstance(subscript, Affine):
                    yield from _elements(subscript)


def _model_read(scop: Scop, expr: Read | Apply, indices: tuple[str, ...]) -> AccessModel:
    read = expr if isinstance(expr, Read) else neighbours(expr)
    assert read is not None, "internal: a pair of elements that are no neighbours"
    model = _model_access(scop.arrays[read.tensor], read.subscripts, indices, write=False)
    if expr is read:
        return model
    strides = {i: step if step is None or step % 2 else step // 2 for i, step in model.strides.items()}
    return replace(model, strides=strides)


def _fused(operations: float, combine: float) -> float:
    """A product that is added up is one instruction."""
    return max(operations, combine) if operations <= 1 else operations - 1 + combine


def operations_of(value: Expr) -> float:
    """Vector instructions that computing the expression takes, reads not counted."""
    distinct = dict.fromkeys(node for node in walk(value) if isinstance(node, Apply))
    return sum(_WEIGHTS.get(node.op, 1.0) for node in distinct)


def _model_access(
    array: Array, subscripts: tuple[Subscript, ...], indices: tuple[str, ...], *, write: bool
) -> AccessModel:
    steps = memory_strides(array)
    strides: dict[str, int | None] = {}
    for index in indices:
        total: int | None = 0
        for subscript, step in zip(subscripts, steps, strict=True):
            along = subscript.stride(index) if isinstance(subscript, Affine) else _indirect(subscript, index)
            total = None if along is None or total is None or (along and step is None) else total + along * (step or 0)
        if total != 0:
            strides[index] = total
    turns = {
        index: rows for index in indices if strides.get(index, 0) is None and (rows := _turns(subscripts, steps, index))
    }
    return AccessModel(array.name, strides, write, turns)


def _turns(subscripts: tuple[Subscript, ...], steps: Sequence[int | None], index: str) -> int | None:
    """The number of rows that the index goes through in turn, if that is few."""
    place = Affine()
    for subscript, step in zip(subscripts, steps, strict=True):
        if not isinstance(subscript, Affine) or (step is None and index in subscript.variables()):
            return None
        place = place + subscript * (step or 0)
    found = rows_in_turn(place, index)
    return found[0] if found is not None and found[0] <= MOST_ROWS else None


def _indirect(subscript: Expr, index: str) -> int | None:
    """0 when a gathered subscript does not depend on the index, else None."""
    for node in walk(subscript):
        for read in reads_of(node):
            if any(isinstance(s, Affine) and index in s.variables() for s in read.subscripts):
                return None
        affine = getattr(node, "affine", None)
        if isinstance(affine, Affine) and index in affine.variables():
            return None
    return 0


def memory_strides(array: Array) -> tuple[int | None, ...]:
    """Elements between neighbours per dimension; None where that depends on sizes."""
    return row_major_strides(array.shape) if array.strides is None else array.strides
