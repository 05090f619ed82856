"""LLVM IR as text: types, values, and a builder that writes one function.

Text is what llvmlite parses anyway, and an f-string is several times cheaper to make than an instruction object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING

from polyml.dtypes import DType
from polyml.records import dataclass
from polyml.target import Target

if TYPE_CHECKING:
    from polyml.codegen.llvm.extremum_trees import Extremum

__all__ = [
    "BIT",
    "ENTRY",
    "I32",
    "INDEX",
    "POINTER",
    "Builder",
    "Instructions",
    "Lines",
    "Module",
    "Type",
    "Value",
    "constant",
    "flat",
    "integer",
    "type_of",
]


@dataclass(frozen=True, slots=True)
class Type:
    """A first-class type: `lanes` elements of `element` ("float", "i32", "ptr", ...); one lane is a scalar. Elements "c64" and "c128" are pairs of floats, one
    behind the other in one vector."""

    element: str
    lanes: int = 1
    text: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        whole = self.element if self.lanes == 1 else f"<{self.lanes} x {self.element}>"
        if self.is_pair:
            whole = f"<{2 * self.lanes} x {self.part.element}>"
        object.__setattr__(self, "text", whole)

    def __str__(self) -> str:
        return self.text

    @property
    def is_float(self) -> bool:
        return self.element in ("float", "double")

    @property
    def is_pair(self) -> bool:
        return self.element in ("c64", "c128")

    @property
    def part(self) -> Type:
        """Of a pair: one of the two, per lane."""
        return type_of("float" if self.element == "c64" else "double", self.lanes)

    @property
    def bits(self) -> int:
        """Of one element."""
        return {"half": 16, "float": 32, "double": 64, "ptr": 64}.get(self.element) or int(self.element[1:])

    @property
    def mangled(self) -> str:
        """As in the names of intrinsics: v16f32."""
        if self.is_pair:
            return self.part.of(2 * self.lanes).mangled
        element = {"float": "f32", "double": "f64", "ptr": "p0"}.get(self.element, self.element)
        return element if self.lanes == 1 else f"v{self.lanes}{element}"

    def of(self, lanes: int) -> Type:
        """The same element with that many lanes."""
        return type_of(self.element, lanes)

    def integers(self) -> Type:
        """Integers of the same size and lanes."""
        return type_of(f"i{self.bits}", self.lanes)


_SHUFFLED = 128
"""Bits within which a shuffle of two registers picks lanes by one instruction, on x86 and ARM."""

_ELEMENTS = {"f32": "float", "f64": "double", "bool": "i1", "c64": "c64", "c128": "c128"}


@cache
def type_of(element: str | DType, lanes: int = 1) -> Type:
    """The type that values of a dtype are computed in (bool: i1; it is stored as i8); of half precision, which is not computed in, its bits."""
    if isinstance(element, DType):
        element = _ELEMENTS.get(element.name) or f"i{element.bits}"
    return Type(element, lanes)


INDEX, POINTER, BIT, I32 = type_of("i64"), type_of("ptr"), type_of("i1"), type_of("i32")


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: a constant or a name, with its type."""

    type: Type
    text: str

    def __str__(self) -> str:
        return f"{self.type.text} {self.text}"

    @property
    def lanes(self) -> int:
        return self.type.lanes

    @property
    def is_constant(self) -> bool:
        return self.text[0] not in "%@"


def constant(type_: Type, value: int | float | bool) -> Value:
    """A number as a constant of the type (in every lane). Integers wrap; floats are rounded to the type."""
    if type_.is_float:
        number = float(value)
        if type_.element == "float":
            number = _round_to_single(number)
        text = f"0x{struct.unpack('>Q', struct.pack('>d', number))[0]:016X}"
    elif type_.element == "i1":
        text = "true" if value else "false"
    else:
        bits = type_.bits
        wrapped = int(value) & ((1 << bits) - 1)
        text = str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
    return Value(type_, text if type_.lanes == 1 else f"splat ({type_.element} {text})")


def integer(value: int) -> Value:
    """An i64 constant."""
    return Value(INDEX, str(value))


def _round_to_single(number: float) -> float:
    if number != number:
        return float("nan")
    try:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return rounded


ENTRY = "entry.0"
"""The label of a function's first block."""

Lines = list["str | Lines"]
"""Text under construction: a nested list can still grow after what follows it was written."""


def flat(lines: Lines) -> Iterator[str]:
    """The lines, nested ones in their places."""
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from flat(line)


@dataclass(frozen=True, slots=True)
class Instructions:
    """What the emitter has to know of a machine's instructions; as it is, the text serves every target that converts f16 itself.

    scalef: AVX-512's instructions may be named (polyml.codegen.llvm.math.scaling). valign: and written as text, which a processor of another kind cannot read. adds_apart: additions have units of their own (Target.adds_apart). division: multiply-adds of a vector that take as long as a division of one (Target.division). assists: zeros by underflow are dear (Target.assists).
    half: the target converts f16 itself (Target.converts_half). dot_bf16: it adds up products of pairs of bf16 itself (Target.multiplies_bf16); dot_i16: of pairs of i16 (Target.multiplies_i16); dot_i8: of four
    numbers of 8 bits (Target.multiplies_i8). avx2: there are AVX2's registers and masks (Target.avx2). least_masked: bits of the smallest elements whose vectors are read and written under a mask by one instruction (Target.least_masked). masks_by_sign: that is AVX's (Target.masks_by_sign). gathers: vectors are gathered by an instruction that is as fast as loads (Target.gathers). register_bytes: of the longest vector that one instruction stores (Target.vector_bytes).
    """

    scalef: bool = False
    valign: bool = False
    adds_apart: bool = False
    division: float = 20.0
    assists: bool = True
    half: bool = True
    dot_bf16: bool = False
    dot_i16: bool = False
    dot_i8: bool = False
    avx2: bool = False
    least_masked: int = 8
    masks_by_sign: bool = False
    gathers: bool = True
    register_bytes: int = 64

    @property
    def nan_is_dear(self) -> bool:
        """Whether a minimum or maximum that hands NaN on takes three instructions, and one that does not takes one."""
        return self.scalef or self.avx2

    @staticmethod
    def of(target: Target) -> Instructions:
        return Instructions(
            scalef=target.scalef,
            valign=target.scalef and Target.host().architecture == target.architecture,
            adds_apart=target.adds_apart,
            division=target.division,
            assists=target.assists,
            half=target.converts_half,
            dot_bf16=target.multiplies_bf16,
            dot_i16=target.multiplies_i16 != "",
            dot_i8=target.multiplies_i8,
            avx2=target.avx2,
            least_masked=target.least_masked,
            masks_by_sign=target.masks_by_sign,
            gathers=target.gathers,
            register_bytes=target.vector_bytes,
        )


@dataclass(slots=True)
class Module:
    """What functions of one module share: declarations and helper definitions, each written once.

    calls_blocks: blocks of rows are transposed by functions, whose names are in `blocks`, by what such blocks have in common (transpose.py).
    """

    instructions: Instructions = field(default_factory=Instructions)
    declarations: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    calls_blocks: bool = False
    blocks: dict[object, str] = field(default_factory=dict)

    def declare(self, name: str, result: str, parameters: Iterable[str], attributes: str = "") -> None:
        """An external function or intrinsic."""
        if name not in self.declarations:
            self.declarations[name] = (
                f"declare {result} @{name}({', '.join(parameters)}){attributes and ' ' + attributes}"
            )

    def text(self) -> str:
        """The whole module."""
        return "\n\n".join(["\n".join(self.declarations.values()), *self.definitions.values(), ""])


class Builder:
    """Writes the instructions of one function, in order; every method that computes returns the Value.

    flags: the fast-math flags of additions and multiplications ("contract " or "").
    known: values computed in the current block that may be used again there, by what they are (loads, splats).
    in_place: lanes of parts of complex numbers stand in the order in which shuffles within 16 bytes bring them (memory/parts_in_place.py).
    extrema: how minima and maxima of floats were made in the current block, by their names (extremum_trees.py).
    depth: of the deepest nest of loops written so far at the current level. keeps: whether registers keep their values across one of these loops.
    """

    __slots__ = ("_counter", "block", "depth", "extrema", "flags", "in_place", "keeps", "known", "lines", "module")

    def __init__(self, module: Module, lines: Lines, *, flags: str = "", block: str = ENTRY) -> None:
        self.module = module
        self.lines = lines
        self.flags = flags
        self.block = block
        self.known: dict[object, Value] = {}
        self.extrema: dict[str, Extremum] = {}
        self.in_place = False
        self.depth = 0
        self.keeps = False
        self._counter = 0

    # -- text and blocks --------------------------------------------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        """A name that was not used in this function; the dot keeps it apart from names of variables."""
        self._counter += 1
        return f"{prefix}.{self._counter}"

    def write(self, instruction: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {instruction}")

    def emit(self, type_: Type, instruction: str) -> Value:
        """An instruction with a result."""
        self._counter += 1
        name = f"%t.{self._counter}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(type_, name)

    def start(self, label: str) -> None:
        """Begins a block; what was written before must have ended with a jump."""
        self.lines.append(f"{label}:")
        self.block = label
        self.known, self.extrema = {}, {}

    def jump(self, label: str) -> None:
        self.write(f"br label %{label}")

    def branch(self, condition: Value, then: str, otherwise: str, *, rare: bool = False) -> None:
        """rare: the condition is hardly ever true."""
        hint = ', !prof !{!"branch_weights", i32 1, i32 100000}' if rare else ""
        self.write(f"br i1 {condition.text}, label %{then}, label %{otherwise}{hint}")

    @contextmanager
    def into(self, lines: Lines) -> Iterator[None]:
        """Writes elsewhere for a while."""
        saved, self.lines = self.lines, lines
        known, self.known = self.known, {}
        extrema, self.extrema = self.extrema, {}
        try:
            yield
        finally:
            self.lines, self.known, self.extrema = saved, known, extrema

    # -- computing --------------------------------------------------------------------------------------------------------------

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """`op` with its own flags: "add", "fsub contract", "ashr"."""
        return self.emit(a.type, f"{op} {a}, {b.text}")

    def arithmetic(self, op: str, a: Value, b: Value) -> Value:
        """add, sub, mul on floats or wrapping integers; floats may be contracted."""
        return self.binary(f"f{op} {self.flags}" if a.type.is_float else op, a, b)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """icmp or fcmp by the type."""
        return self.emit(type_of("i1", a.lanes), f"{'fcmp' if a.type.is_float else 'icmp'} {predicate} {a}, {b.text}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if a.type.is_pair:
            condition = self.twice(condition)
        return self.emit(a.type, f"select {condition}, {a}, {b}")

    def convert(self, op: str, a: Value, element: str) -> Value:
        """trunc, sext, sitofp, bitcast, ... to another element with the same lanes."""
        to = type_of(element, a.lanes)
        return a if to == a.type else self.emit(to, f"{op} {a} to {to}")

    def negate(self, condition: Value) -> Value:
        """Logical not."""
        return self.binary("xor", condition, constant(condition.type, True))

    def call(self, name: str, result: Type, args: tuple[Value, ...], *, flags: str = "") -> Value:
        """Of a function that is defined or declared already."""
        return self.emit(result, f"call {flags}{result} @{name}({', '.join(map(str, args))})")

    def intrinsic(self, name: str, *args: Value, result: Type | None = None, flags: str = "") -> Value:
        """An LLVM intrinsic overloaded on the type of its first argument, which is also the result's unless given."""
        full = f"llvm.{name}.{args[0].type.mangled}"
        to = args[0].type if result is None else result
        self.module.declare(full, str(to), [str(a.type) for a in args])
        return self.call(full, to, args, flags=flags)

    # -- lanes ------------------------------------------------------------------------------------------------------------------

    def slides(self, type_: Type) -> bool:
        """Whether `slide` has an instruction for it, in whose place LLVM takes a permutation with a register for the order, which overwrites an operand."""
        return self.module.instructions.valign and type_.lanes * type_.bits == 512 and type_.bits in (32, 64)

    def slide(self, low: Value, high: Value, by: int) -> Value:
        """The lanes of one vector from `by` on, and then as many of another one as are missing."""
        name = "valignq" if low.type.bits == 64 else "valignd"
        return self.emit(low.type, f'call {low.type} asm "{name} $${by}, $2, $1, $0", "=v,v,v"({high}, {low})')

    def splat(self, a: Value, lanes: int) -> Value:
        """The scalar in every lane; a vector as it is."""
        if a.lanes == lanes:
            return a
        assert a.lanes == 1, f"internal: {a.lanes} lanes where {lanes} are expected"
        to = a.type.of(lanes)
        if a.type.is_pair:
            return self.shuffle(a, [0] * lanes)
        if a.is_constant:
            return Value(to, a.text if a.text in ("poison", "zeroinitializer") else f"splat ({a})")
        found = self.known.get((a.text, lanes))
        if found is None:
            first = self.emit(to, f"insertelement {to} poison, {a}, i64 0")
            found = self.emit(to, f"shufflevector {first}, {to} poison, <{lanes} x i32> zeroinitializer")
            self.known[a.text, lanes] = found
        return found

    def shuffle(self, a: Value, order: Iterable[int], b: Value | None = None) -> Value:
        """The lanes of a (and b behind them) in that order."""
        picks = list(order)
        if len(picks) == 1 and picks[0] < a.lanes:
            return self.extract(a, picks[0])
        return self._shuffle(a, picks, b, a.type.of(len(picks)))

    def side_by_side(self, parts: Sequence[Value]) -> Value:
        """The lanes of values of one type, a power of two of them, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        first, second = (self.side_by_side(half) for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]))
        return self.shuffle(first, range(2 * first.lanes), second)

    def _shuffle(self, a: Value, picks: list[int], b: Value | None, to: Type) -> Value:
        if a.type.is_pair and to.is_pair:
            picks = [2 * k + part for k in picks for part in (0, 1)]
        mask = ", ".join(f"i32 {k}" for k in picks)
        second = f"{a.type} poison" if b is None else str(b)
        return self.emit(to, f"shufflevector {a}, {second}, <{len(picks)} x i32> <{mask}>")

    def extract(self, a: Value, lane: int) -> Value:
        if a.lanes == 1:
            return a
        if a.type.is_pair:
            return self._shuffle(a, [lane], None, a.type.of(1))
        return self.emit(a.type.of(1), f"extractelement {a}, i64 {lane}")

    def part_of(self, a: Value, part: int) -> Value:
        """The first (0) or second (1) of each lane's pair."""
        if a.lanes == 1:
            return self.emit(a.type.part, f"extractelement {a}, i64 {part}")
        return self._shuffle(a, [2 * lane + part for lane in self._lanes_of_parts(a.type.part)], None, a.type.part)

    def paired(self, first: Value, second: Value, element: str) -> Value:
        """The pairs of two values with the same lanes."""
        to = type_of(element, first.lanes)
        if first.lanes == 1:
            begun = self.emit(to, f"insertelement {to} poison, {first}, i64 0")
            return self.emit(to, f"insertelement {begun}, {second}, i64 1")
        places = self._lanes_of_parts(first.type)
        order = [place + part * first.lanes for place in sorted(places, key=places.__getitem__) for part in (0, 1)]
        return self._shuffle(first, order, second, to)

    def _lanes_of_parts(self, type_: Type) -> Sequence[int]:
        """Of each lane of a value of parts, which pair it is part of."""
        size = min(type_.lanes, 8 * self.module.instructions.register_bytes // type_.bits)
        share = _SHUFFLED // type_.bits // 2
        if not self.in_place or size * type_.bits <= _SHUFFLED:
            return range(type_.lanes)
        firsts = (start + half for start in range(0, size // 2, share) for half in (0, size // 2))
        order = [first + k for first in firsts for k in range(share)]
        return [first + k for first in range(0, type_.lanes, size) for k in order]

    def twice(self, mask: Value) -> Value:
        """A mask of lanes as one of the elements of pairs; one bit for all lanes as it is."""
        if mask.lanes == 1:
            return mask
        order = [lane for lane in range(mask.lanes) for _ in (0, 1)]
        return self._shuffle(mask, order, None, type_of("i1", 2 * mask.lanes))

    def any_lane(self, mask: Value) -> Value:
        """Whether any lane of an i1 vector is true."""
        return mask if mask.lanes == 1 else self.intrinsic("vector.reduce.or", mask, result=BIT)

    def iota(self, lanes: int, stride: int = 1, start: int = 0) -> Value:
        """<0, stride, 2 stride, ...> from the start on, as i64."""
        if lanes == 1:
            return integer(start)
        numbers = (f"i64 {start + k * stride}" for k in range(lanes))
        return Value(type_of("i64", lanes), "<" + ", ".join(numbers) + ">")
