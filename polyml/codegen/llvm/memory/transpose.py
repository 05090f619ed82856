"""A block of rows, one per lane, and columns: rows are read or written whole, and the block is transposed in registers by log2(lanes) rounds of exchanges
(Eklundh, "A fast computer method for matrix transposing", IEEE Trans. Computers, 1972).

Where all lanes and columns act, the round that exchanges halves of registers costs no shuffle: halves of rows are loaded and stored.

A block of 16 lanes is a hundred instructions and more, four hundred with masks. A function of MANY blocks calls one function for all blocks of a kind; what differs between these, addresses, distances and masks, are its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from polyml.codegen.llvm.functions.helpers import define
from polyml.codegen.llvm.ir import POINTER, Builder, Type, Value, integer, type_of
from polyml.codegen.llvm.memory.access import Evaluate, access
from polyml.codegen.llvm.memory.known_elements import forget
from polyml.codegen.llvm.memory.leading import in_pieces, store_leading
from polyml.codegen.llvm.memory.masked import masked_load, masked_store, zeros
from polyml.codegen.llvm.state import Lanes, State, stored_type
from polyml.codegen.loops import Assign, For, Function
from polyml.codegen.rewrite import nodes_of
from polyml.expressions import Read, Subscript, substitute
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["has_many_blocks", "transpose_block", "transposed"]

MANY = 24
"""Blocks of 16 lanes of a function; with more of them they are called. A call costs a few cycles of some fifty, and registers around it are saved."""


def has_many_blocks(function: Function) -> bool:
    """Whether the function's blocks are called. One of 64 lanes counts as four: it is as many instructions and more, which take LLVM seconds."""
    loops = [n for n in nodes_of(function) if isinstance(n, For)]
    lanes = max((n.width for n in loops if n.kind == "vector"), default=0)
    return sum(n.kind == "transpose" for n in loops) * max(lanes // 16, 1) > MANY


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
    reverse = (across if across is not None else _step(state, *far, loop.variable)) == -1
    active = _active(state, loop, upper)
    assert state.lanes is not None, "internal: a transpose loop outside a vector loop"
    first, stride = (rows.pointer, rows.stride) if rows.evenly is None else rows.evenly
    block = _Block(
        state.builder,
        stored_type(rows.slot.variable, state.width),
        first,
        stride,
        columns.pointer,
        step,
        count,
        reverse,
        active,
        state.lanes.mask,
        columns.slot.variable.lanes > 1,
        move.streaming and move.aligned,
        _leading(state.lanes),
    )
    state.streams |= block.streaming and (block.lanes is None if loads else block.whole and block.width > 2)
    with _unless_empty(state, loop, upper):
        if state.builder.module.calls_blocks and not isinstance(step, list):
            _call(block, loads=loads)
        else:
            block.move(loads=loads)
    forget(state, target.variable)


@contextmanager
def _unless_empty(state: State, loop: For, upper: Value) -> Iterator[None]:
    """Skips a block that may have no column, as the rest of a strip has none: with masks it takes as long as a whole one."""
    b = state.builder
    if (loop.upper - loop.lower).is_constant:
        yield
        return
    some, after = b.fresh("some"), b.fresh("after")
    b.branch(b.compare("slt", state.nest.index(affine(loop.variable)), upper), some, after)
    b.start(some)
    yield
    b.jump(after)
    b.start(after)


def _make(state: State, loop: For, move: Assign, upper: Value, evaluate: Evaluate) -> None:
    """Columns of what is made of rows: each row's value with lanes along it, then the block of them."""
    b, width, lanes = state.builder, state.width, state.lanes
    assert lanes is not None, "internal: a transpose loop outside a vector loop"
    to = (move.target.variable, move.target.subscripts)
    columns = access(state, *to, evaluate)
    extent = loop.upper - loop.lower
    count = extent.constant if extent.is_constant else width
    step, active = _step(state, *to, loop.variable), _active(state, loop, upper)
    variable, pointer = columns.slot.variable, columns.pointer
    type_, roomy = stored_type(variable, width), variable.lanes > 1
    block = _Block(b, type_, pointer, 0, pointer, step, count, False, active, lanes.mask, roomy, False, _leading(lanes))
    made: list[Value] = []
    for row in range(width):
        value = substitute(move.value, {lanes.variable: affine(lanes.variable) + row})
        with state.within(Lanes(loop.variable, width, block.mask(row))):
            made.append(b.splat(evaluate(state, value), width))
    for column, one in enumerate(transposed(b, made, range(width.bit_length() - 1))[:count]):
        block.write_column(column, one)
    forget(state, move.target.variable)


def _call(block: _Block, *, loads: bool) -> None:
    """The block by the function of its kind, which is written when the first of them comes."""
    b, module = block.builder, block.builder.module
    values = {f.name: getattr(block, f.name) for f in fields(block) if f.name != "builder"}
    arguments = {name: v for name, v in values.items() if isinstance(v, Value) and not v.is_constant}
    kind = (loads, *((name, v) for name, v in values.items() if name not in arguments), *arguments)
    name = module.blocks.setdefault(kind, f"transpose.{len(module.blocks)}")

    def body(inner: Builder, given: Mapping[str, Any]) -> str:
        replace(block, builder=inner, **given).move(loads=loads)
        return "ret void"

    define(module, name, "void", {n: v.type for n, v in arguments.items()}, "noinline", body)
    b.write(f"call void @{name}({', '.join(map(str, arguments.values()))})")


def _step(state: State, name: str, subscripts: Sequence[Subscript], variable: str) -> int | Value:
    """Elements from column to column, which are at regular distances."""
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


def _leading(lanes: Lanes) -> int | None:
    """How many lanes act, where those are the first ones and their number is known."""
    return lanes.leading if isinstance(lanes.leading, int) else None


@dataclass(frozen=True, slots=True)
class _Block:
    """type: of a row or column. rows: the first column's element of each lane's row, elements `stride` apart (None: one address per lane). columns: where the first column's lanes are side by side; the next are `step` elements further, `count` in all (or where each of them is).
    reversed: rows run towards smaller addresses. active: the columns that act (None: all); lanes: the lanes that do; roomy: columns are scratch memory, which has room for all lanes. streaming: whole rows or columns are written past the caches, to aligned addresses. leading: how many lanes act, where those are the first ones and their number is known."""

    builder: Builder
    type: Type
    rows: Value
    stride: int | Value | None
    columns: Value
    step: int | Value | list[Value]
    count: int
    reversed: bool
    active: Value | None
    lanes: Value | None
    roomy: bool
    streaming: bool
    leading: int | None

    @property
    def width(self) -> int:
        return self.type.lanes

    @property
    def align(self) -> int:
        return _bytes(self.type)

    @property
    def whole(self) -> bool:
        """Whether all lanes and columns act."""
        return self.active is None and self.lanes is None

    def move(self, *, loads: bool) -> None:
        """Rows to columns (loads), or columns to rows."""
        if loads:
            self.load()
        else:
            self.store()

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
            rows = [_read(self.builder, at, self.type, self.mask(r)) for r, at in enumerate(self.starts())]
            made = transposed(self.builder, rows, range(width.bit_length() - 1))
        past = self.streaming and self.lanes is None
        for column, value in enumerate((made[::-1] if self.reversed else made)[: self.count]):
            if past:
                how = f"align {self.type.bits // 8 * width}, !nontemporal !{{i32 1}}"
                self.builder.write(f"store {value}, {self.column(column)}, {how}")
            else:
                self.write_column(column, value)

    def store(self) -> None:
        width, half = self.width, self.width // 2
        columns = [_read(self.builder, self.column(k), self.type, self.side_by_side) for k in range(self.count)]
        columns += [Value(self.type, "poison")] * (width - self.count)
        columns = columns[::-1] if self.reversed else columns
        if self.whole and width > 2:
            made = transposed(self.builder, columns, range(half.bit_length() - 1))
            how = f"align {self.align}"
            if self.streaming:
                # Both halves of a line follow each other, so that it leaves the core in one piece.
                how = f"align {self.type.bits // 8 * half}, !nontemporal !{{i32 1}}"
            for row in range(width):
                for part in range(2):
                    # The last exchange: row r's second half is the same half of the register half a block further on.
                    value = self.builder.shuffle(
                        made[row % half + part * half], range(row // half * half, row // half * half + half)
                    )
                    self.builder.write(f"store {value}, {self.half_of(row, part)}, {how}")
            return
        made, starts = transposed(self.builder, columns, range(width.bit_length() - 1)), self.starts()
        for row, value in enumerate(made):
            _write(self.builder, starts[row], value, self.mask(row))

    def write_column(self, number: int, value: Value) -> None:
        """Writes a column's lanes that act."""
        if self.leading is not None and not self.roomy and in_pieces(self.type):
            store_leading(self.builder, self.column(number), value, self.leading, self.align)
        else:
            _write(self.builder, self.column(number), value, self.side_by_side)

    # -- memory -----------------------------------------------------------------------------------------------------------------

    def column(self, number: int) -> Value:
        """The address of a column's lanes."""
        if isinstance(self.step, list):
            return self.step[number]
        if isinstance(self.step, int):
            return self.moved(self.columns, number * self.step)
        return self.moved(self.columns, self.builder.binary("mul", self.step, integer(number)))

    def moved(self, pointer: Value, elements: int | Value) -> Value:
        if elements == 0:
            return pointer
        elements = integer(elements) if isinstance(elements, int) else elements
        return self.builder.emit(POINTER, f"getelementptr {self.type.of(1)}, {pointer}, {elements}")

    def start(self, row: int | Value) -> Value:
        """The address of the least of a row's elements in the block."""
        b, back = self.builder, 1 - self.width if self.reversed else 0
        if self.stride is None:
            element = (
                b.extract(self.rows, row)
                if isinstance(row, int)
                else b.emit(POINTER, f"extractelement {self.rows}, {row}")
            )
            return self.moved(element, back)
        if isinstance(row, int) and isinstance(self.stride, int):
            return self.moved(self.rows, row * self.stride + back)
        number = integer(row) if isinstance(row, int) else row
        stride = integer(self.stride) if isinstance(self.stride, int) else self.stride
        elements = b.binary("mul", number, stride)
        return self.moved(self.rows, b.binary("add", elements, integer(back)) if back else elements)

    def starts(self) -> list[Value]:
        """The rows' addresses; of lanes that do not act the address of one that does. Nothing of theirs is touched, but processors take hundreds of cycles for a masked access to a page that is not there, to find that out."""
        b, addresses = self.builder, [self.start(row) for row in range(self.width)]
        if self.lanes is None:
            return addresses
        bits = type_of(f"i{self.width}")
        mask = b.emit(bits, f"bitcast {self.lanes} to {bits}")
        b.module.declare(f"llvm.cttz.{bits}", str(bits), [str(bits), "i1"])
        first = b.emit(bits, f"call {bits} @llvm.cttz.{bits}({mask}, i1 true)")
        acting = self.start(b.convert("zext", first, "i64"))
        return [b.select(b.extract(self.lanes, row), at, acting) for row, at in enumerate(addresses)]

    def half_of(self, row: int, part: int) -> Value:
        return self.moved(self.start(row), part * self.width // 2)

    def part(self, row: int, part: int) -> Value:
        """Half a row."""
        half = self.type.of(self.width // 2)
        return self.builder.emit(half, f"load {half}, {self.half_of(row, part)}, align {self.align}")

    def mask(self, row: int) -> Value | None:
        """The elements of a row that act; None: all of them."""
        b, columns = self.builder, self.active
        if columns is not None and self.reversed:
            columns = b.shuffle(columns, range(self.width - 1, -1, -1))
        if self.lanes is None:
            return columns
        mine = b.splat(b.extract(self.lanes, row), self.width)
        return mine if columns is None else b.binary("and", mine, columns)

    @property
    def side_by_side(self) -> Value | None:
        """The mask of a column's lanes."""
        return None if self.roomy else self.lanes


def _bytes(type_: Type) -> int:
    """Of an element; of a pair, of one of the two."""
    return (type_.part if type_.is_pair else type_).bits // 8


def _read(b: Builder, pointer: Value, type_: Type, mask: Value | None) -> Value:
    align = _bytes(type_)
    if mask is None:
        return b.emit(type_, f"load {type_}, {pointer}, align {align}")
    mask = b.twice(mask) if type_.is_pair else mask
    return masked_load(b, pointer, align, mask, zeros(type_))


def _write(b: Builder, pointer: Value, value: Value, mask: Value | None) -> None:
    align = _bytes(value.type)
    if mask is None:
        b.write(f"store {value}, {pointer}, align {align}")
        return
    mask = b.twice(mask) if value.type.is_pair else mask
    masked_store(b, value, pointer, align, mask)


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
