"""A block of rows, one per lane, and columns: rows are read or written whole, and the block is transposed in registers by log2(lanes) rounds of exchanges
(Eklundh, "A fast computer method for matrix transposing", IEEE Trans. Computers, 1972).

Where all lanes and columns act, the round that exchanges halves of registers costs no shuffle: halves of rows are loaded and stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyml.codegen.llvm.ir import POINTER, Builder, Type, Value, integer, type_of
from polyml.codegen.llvm.memory.access import Access, Evaluate, access
from polyml.codegen.llvm.memory.known_elements import forget
from polyml.codegen.llvm.state import Lanes, State, stored_type
from polyml.codegen.loops import Assign, For
from polyml.expressions import Read, Subscript, substitute
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["transpose_block", "transposed"]


def transpose_block(state: State, loop: For, upper: Value, evaluate: Evaluate) -> None:
    """The iterations of a loop of kind "transpose" at once, the nest's variable being at the first one. upper: its upper bound."""
    (move,) = loop.body
    assert isinstance(move, Assign), "internal: a transpose loop that does not copy"
    if not isinstance(move.value, Read):
        _make(state, loop, move, upper, evaluate)
        return
    target, source = move.target, move.value
    to, of = (target.variable, target.subscripts), (source.tensor, source.subscripts)
    written, read = access(state, *to, evaluate), access(state, *of, evaluate)
    loads = written.stride == 1
    (far, rows), (near, columns) = ((of, read), (to, written)) if loads else ((to, written), (of, read))
    assert columns.stride == 1, "internal: a transpose loop without lanes side by side"
    extent = loop.upper - loop.lower
    count = extent.constant if extent.is_constant else state.width
    step: int | Value | list[Value]
    along, across = (None if side.flat is None else side.flat.stride(loop.variable) for side in (columns, rows))
    if along is not None:
        step = along
    elif any(isinstance(s, Affine) and s.stride(loop.variable) is None for s in near[1]):
        step = _apart(state, *near, loop.variable, count, evaluate)
    else:
        step = _step(state, *near, loop.variable)
    reverse = across == -1 if across is not None else _is_reversed(far[1], loop.variable)
    active = _active(state, loop, upper)
    block = _Block(state, rows, columns, step, count, reverse, active, move.streaming and move.aligned)
    if loads:
        block.load()
    else:
        block.store()
    forget(state, target.variable)


def _make(state: State, loop: For, move: Assign, upper: Value, evaluate: Evaluate) -> None:
    """Columns of what is made of rows: each row's value with lanes along it, then the block of them."""
    b, width, lanes = state.builder, state.width, state.lanes
    assert lanes is not None, "internal: a transpose loop outside a vector loop"
    to = (move.target.variable, move.target.subscripts)
    columns = access(state, *to, evaluate)
    extent = loop.upper - loop.lower
    count = extent.constant if extent.is_constant else width
    block = _Block(
        state, columns, columns, _step(state, *to, loop.variable), count, False, _active(state, loop, upper), False
    )
    made: list[Value] = []
    for row in range(width):
        value = substitute(move.value, {lanes.variable: affine(lanes.variable) + row})
        with state.within(Lanes(loop.variable, width, block.mask(row))):
            made.append(b.splat(evaluate(state, value), width))
    for column, one in enumerate(transposed(b, made, range(width.bit_length() - 1))[:count]):
        _write(state, block.column(column), one, block.side_by_side)
    forget(state, move.target.variable)


def _step(state: State, name: str, subscripts: Sequence[Subscript], variable: str) -> int | Value:
    """Elements between columns where the lanes are side by side."""
    known, total, b = 0, None, state.builder
    for subscript, stride in zip(subscripts, state.slots[name].strides, strict=True):
        along = subscript.stride(variable) if isinstance(subscript, Affine) else 0
        assert along is not None, "internal: columns at irregular distances"
        if isinstance(stride, int):
            known += along * stride
        elif along:
            part = b.binary("mul", state.nest.strides[stride], integer(along))
            total = part if total is None else b.binary("add", total, part)
    return known if total is None else b.binary("add", total, integer(known))


def _apart(
    state: State, name: str, subscripts: Sequence[Subscript], variable: str, count: int, evaluate: Evaluate
) -> list[Value]:
    """The addresses of columns at irregular distances."""
    places = [{variable: affine(variable) + k} for k in range(count)]
    moved = [tuple(s.substitute(place) for s in subscripts if isinstance(s, Affine)) for place in places]
    return [access(state, name, column, evaluate).pointer for column in moved]


def _is_reversed(subscripts: Sequence[Subscript], variable: str) -> bool:
    strides = {s.stride(variable) for s in subscripts if isinstance(s, Affine)} - {0}
    assert strides in ({1}, {-1}), "internal: the columns of a transpose loop are not neighbours"
    return strides == {-1}


def _active(state: State, loop: For, upper: Value) -> Value | None:
    """The columns that act, as lanes of a mask; None: as many as there are lanes."""
    b, width = state.builder, state.width
    extent = loop.upper - loop.lower
    if extent.is_constant:
        assert 0 < extent.constant <= width, "internal: more columns than lanes in a transpose loop"
        if extent.constant == width:
            return None
        bits = ", ".join(f"i1 {'true' if k < extent.constant else 'false'}" for k in range(width))
        return Value(type_of("i1", width), f"<{bits}>")
    left = b.binary("sub", upper, state.nest.index(affine(loop.variable)))
    return b.compare("slt", b.iota(width), b.splat(left, width))


@dataclass(frozen=True, slots=True)
class _Block:
    """rows: the first column's element of each lane's row. columns: where the first column's lanes are side by side; the next are `step` elements further, `count` in all (or where each of them is). reversed: rows run towards smaller addresses.
    active: the columns that act (None: all). streaming: whole rows or columns are written past the caches, to aligned addresses."""

    state: State
    rows: Access
    columns: Access
    step: int | Value | list[Value]
    count: int
    reversed: bool
    active: Value | None
    streaming: bool

    @property
    def builder(self) -> Builder:
        return self.state.builder

    @property
    def width(self) -> int:
        return self.state.width

    @property
    def type(self) -> Type:
        return stored_type(self.rows.slot.variable, self.width)

    @property
    def align(self) -> int:
        return self.rows.slot.variable.dtype.alignment

    @property
    def whole(self) -> bool:
        """Whether all lanes and columns act."""
        lanes = self.state.lanes
        return self.active is None and lanes is not None and lanes.mask is None

    def load(self) -> None:
        width, half = self.width, self.width // 2
        if self.whole and width > 2:
            registers: list[Value] = []
            for part in range(2):
                for row in range(half):
                    pair = [self.part(r, part) for r in (row, row + half)]
                    registers.append(self.builder.shuffle(pair[0], range(width), pair[1]))
            # Register k < half has the first halves of rows k and k + half, register k + half the second ones.
            made = transposed(self.builder, registers, range(half.bit_length() - 1))
        else:
            made = transposed(self.builder, [self.row(r) for r in range(width)], range(width.bit_length() - 1))
        past = self.streaming and self.whole
        self.state.streams |= past
        for column, value in enumerate((made[::-1] if self.reversed else made)[: self.count]):
            if past:
                how = f"align {self.rows.slot.variable.dtype.itemsize * width}, !nontemporal !{{i32 1}}"
                self.builder.write(f"store {value}, {self.column(column)}, {how}")
            else:
                _write(self.state, self.column(column), value, self.side_by_side)

    def store(self) -> None:
        width, half = self.width, self.width // 2
        columns = [_read(self.state, self.column(k), self.type, self.side_by_side) for k in range(self.count)]
        columns += [Value(self.type, "poison")] * (width - self.count)
        columns = columns[::-1] if self.reversed else columns
        if self.whole and width > 2:
            made = transposed(self.builder, columns, range(half.bit_length() - 1))
            how = f"align {self.align}"
            if self.streaming:
                # Both halves of a line follow each other, so that it leaves the core in one piece.
                how = f"align {self.rows.slot.variable.dtype.itemsize * half}, !nontemporal !{{i32 1}}"
                self.state.streams = True
            for row in range(width):
                for part in range(2):
                    # The last exchange: row r's second half is the same half of the register half a block further on.
                    value = self.builder.shuffle(
                        made[row % half + part * half], range(row // half * half, row // half * half + half)
                    )
                    self.builder.write(f"store {value}, {self.half_of(row, part)}, {how}")
            return
        for row, value in enumerate(transposed(self.builder, columns, range(width.bit_length() - 1))):
            self.write_row(row, value)

    # -- memory -----------------------------------------------------------------------------------------------------------------

    def column(self, number: int) -> Value:
        """The address of a column's lanes."""
        if isinstance(self.step, list):
            return self.step[number]
        if isinstance(self.step, int):
            return self.moved(self.columns.pointer, number * self.step)
        return self.moved(self.columns.pointer, self.builder.binary("mul", self.step, integer(number)))

    def moved(self, pointer: Value, elements: int | Value) -> Value:
        if elements == 0:
            return pointer
        elements = integer(elements) if isinstance(elements, int) else elements
        return self.builder.emit(POINTER, f"getelementptr {self.type.of(1)}, {pointer}, {elements}")

    def start(self, row: int) -> Value:
        """The address of the least of a row's elements in the block."""
        back = 1 - self.width if self.reversed else 0
        if self.rows.stride is None:
            return self.moved(self.builder.extract(self.rows.pointer, row), back)
        return self.moved(self.rows.pointer, row * self.rows.stride + back)

    def half_of(self, row: int, part: int) -> Value:
        return self.moved(self.start(row), part * self.width // 2)

    def part(self, row: int, part: int) -> Value:
        """Half a row."""
        half = self.type.of(self.width // 2)
        return self.builder.emit(half, f"load {half}, {self.half_of(row, part)}, align {self.align}")

    def mask(self, row: int) -> Value | None:
        """The elements of a row that act; None: all of them."""
        b, lanes = self.builder, self.state.lanes
        columns = self.active
        if columns is not None and self.reversed:
            columns = b.shuffle(columns, range(self.width - 1, -1, -1))
        if lanes is None or lanes.mask is None:
            return columns
        mine = b.splat(b.extract(lanes.mask, row), self.width)
        return mine if columns is None else b.binary("and", mine, columns)

    @property
    def side_by_side(self) -> Value | None:
        """The mask of a column's lanes; scratch memory has room for all of them."""
        lanes = self.state.lanes
        return None if lanes is None or self.columns.slot.variable.lanes > 1 else lanes.mask

    def row(self, row: int) -> Value:
        return _read(self.state, self.start(row), self.type, self.mask(row))

    def write_row(self, row: int, value: Value) -> None:
        _write(self.state, self.start(row), value, self.mask(row))


def _read(state: State, pointer: Value, type_: Type, mask: Value | None) -> Value:
    b, align = state.builder, (type_.part if type_.is_pair else type_).bits // 8
    if mask is None:
        return b.emit(type_, f"load {type_}, {pointer}, align {align}")
    mask = b.twice(mask) if type_.is_pair else mask
    name = f"llvm.masked.load.{type_.mangled}.p0"
    b.module.declare(name, str(type_), ["ptr", str(mask.type), str(type_)])
    return b.emit(type_, f"call {type_} @{name}(ptr align {align} {pointer.text}, {mask}, {type_} zeroinitializer)")


def _write(state: State, pointer: Value, value: Value, mask: Value | None) -> None:
    b, type_ = state.builder, value.type
    align = (type_.part if type_.is_pair else type_).bits // 8
    if mask is None:
        b.write(f"store {value}, {pointer}, align {align}")
        return
    mask = b.twice(mask) if type_.is_pair else mask
    name = f"llvm.masked.store.{value.type.mangled}.p0"
    b.module.declare(name, "void", [str(value.type), "ptr", str(mask.type)])
    b.write(f"call void @{name}({value}, ptr align {align} {pointer.text}, {mask})")


def transposed(b: Builder, registers: Sequence[Value], bits: Sequence[int]) -> list[Value]:
    """The registers after exchanging, for each of the bits from the highest, that bit of the register's number with that of the lane's.

    The low bits, of lanes within 16 bytes, go all at once where they are among them: registers half of them apart are interleaved, as often as there are such bits. Those are single
    instructions on all machines, where exchanges of neighbouring lanes are two. There may be fewer registers than lanes, as many as the bits number: then each part of so many lanes is a block of its own.
    """
    made, width = list(registers), registers[0].lanes
    near = _near(registers[0].type)
    low = near if set(range(near)) <= set(bits) else 0
    for bit in (bit for bit in reversed(bits) if bit >= low):
        step = 1 << bit
        for at in range(len(made)):
            if at & step:
                continue
            one, other = made[at], made[at + step]
            made[at] = b.shuffle(one, [k if not k & step else width + k - step for k in range(width)], other)
            made[at + step] = b.shuffle(one, [k + step if not k & step else width + k for k in range(width)], other)
    for _ in range(low):
        made = [value for at in range(0, len(made), 1 << low) for value in _interleaved(b, made[at : at + (1 << low)])]
    return made


def _near(type_: Type) -> int:
    """Bits of the number of a lane within its 16 bytes."""
    size = max(type_.bits // 8, 1)
    return (16 // size).bit_length() - 1 if size * type_.lanes >= 16 else 0


def _interleaved(b: Builder, registers: Sequence[Value]) -> list[Value]:
    """Registers half of all apart, interleaved within each 16 bytes: of as many registers as these hold elements, the number's highest bit becomes the lane's lowest, and the lane's highest the number's lowest."""
    group, half, width = len(registers), len(registers) // 2, registers[0].lanes
    made: list[Value] = []
    for one, other in zip(registers[:half], registers[half:], strict=True):
        for start in (0, half):
            lanes = [
                at + start + k + apart for at in range(0, width, group) for k in range(half) for apart in (0, width)
            ]
            made.append(b.shuffle(one, lanes, other))
    return made
