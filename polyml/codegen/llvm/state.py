"""What the emission of one LLVM function carries along: its builder, the loops around, the storage, and the lanes of a vector loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace

from polyml.codegen.llvm.functions_once import FunctionsOnce
from polyml.codegen.llvm.ir import Builder, Lines, Type, Value, type_of
from polyml.codegen.llvm.math.quotient import Reciprocal
from polyml.codegen.llvm.memory.addresses import Nest
from polyml.codegen.llvm.memory.phases import Phase, Rows
from polyml.codegen.llvm.reductions.hope import Hope
from polyml.codegen.loops import For, Lead, Scan, Variable
from polyml.codegen.ranges import Ranges
from polyml.expressions import Expr, Subscript
from polyml.records import dataclass
from polyml.sets.affine import Affine, weighted_sum

__all__ = ["ZERO", "Lanes", "Slot", "State", "stored_type"]

ZERO = "@polyml.zero = internal constant [64 x i8] zeroinitializer, align 64"
"""What is read where no lane wants the element, which may not be there."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The vector loop around: its variable stands for `variable + <0..width-1>`.

    mask: the lanes that act (None: all). any: whether at least one of them does (None: surely). leading: how many act, where those are the first ones: a number, or an i64 that may be larger than all (only where masks are vectors).
    """

    variable: str
    width: int
    mask: Value | None = None
    any: Value | None = None
    leading: int | Value | None = None

    @property
    def all_set(self) -> Value:
        """The mask, spelled out."""
        return Value(type_of("i1", self.width), "splat (i1 true)") if self.mask is None else self.mask


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a variable lives. strides: in elements; a name stands for a stride known at run time (Nest.strides). mask: the lanes that act where it is made."""

    variable: Variable
    pointer: Value
    strides: tuple[int | str, ...]
    mask: Value | None = None


@dataclass(slots=True)
class State:
    """One LLVM function under construction. `lanes` is None outside vector loops; `precise` forbids contraction and reassociation.
    heap: addresses from the heap, null where there was no memory; rooms: where the local arrays begin that live there; idle: those that nobody uses any more, by what they have room for; versions: conditions on sizes alone, known from the start, under which what comes now runs at all; failure: the i32 in which that is noted. streams: it has stores that bypass the caches. holding: variables in registers around. unforeseen: by what they are, constants that LLVM does not know (a mask of all lanes by its width).
    hope: of the loop that finds extrema as if there were no NaN (extrema.py); numbers: in a loop of extrema of which no candidate is a NaN. held: expressions whose values an iteration got from the one before (neighbours.py), or that were computed ahead of the loop (unchanging.py); reciprocals: of such divisors, None of those that are divided by as they are. multiplied: sums that are made by the units for products (adders.py). prepared: of recurrences in lanes, what follows from their factors alone (scan.py). functions: of the assignment that is written, those that are computed (functions_once.py).
    phases, written: of the vector loop around (phases.py), and the values of such rows that are not stored yet, by the array and the first place's subscripts.
    outside: what is known of sizes; loops: those around, the outermost first; loop_lanes: the lanes that act in the innermost of them, whatever conditions inside say.
    any_size: some size is known at run time only. pipeline: the pointer of the pipeline whose stages this function runs, and the pipelined loop's variable (pipeline.py)."""

    builder: Builder
    nest: Nest
    name: str
    precise: bool
    parallel: bool
    slots: dict[str, Slot]
    lanes: Lanes | None = None
    entry: Lines = field(default_factory=list)
    heap: list[Value] = field(default_factory=list)
    rooms: list[Value] = field(default_factory=list)
    idle: dict[tuple[str, ...], list[Value]] = field(default_factory=dict)
    versions: list[Value] = field(default_factory=list)
    outside: Ranges = field(default_factory=Ranges)
    loops: list[For] = field(default_factory=list)
    loop_lanes: Lanes | None = None
    failure: Value | None = None
    stack_bytes: int = 0
    bodies: int = 0
    leads: tuple[Lead, ...] = ()
    streams: bool = False
    holding: int = 0
    unforeseen: dict[object, Value] = field(default_factory=dict)
    hope: Hope | None = None
    numbers: bool = False
    held: dict[Expr, Value] = field(default_factory=dict)
    reciprocals: dict[Expr, Reciprocal | None] = field(default_factory=dict)
    prepared: dict[Scan, tuple[Value, ...]] = field(default_factory=dict)
    multiplied: frozenset[Expr] = frozenset()
    functions: FunctionsOnce | None = None
    pipeline: tuple[Value, str] | None = None
    any_size: bool = False
    phases: Mapping[tuple[str, tuple[Subscript, ...]], Phase] = field(default_factory=dict)
    written: Mapping[tuple[str, tuple[Subscript, ...]], Phase] = field(default_factory=dict)
    waiting: dict[tuple[str, tuple[Subscript, ...]], dict[int, Value]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Lanes of a value that differs between lanes."""
        return 1 if self.lanes is None else self.lanes.width

    def flat(self, name: str, subscripts: tuple[Subscript, ...]) -> tuple[Affine, Rows] | None:
        """The element in memory (phases.Flat); None where it is gathered, in a register or one per lane."""
        slot = self.slots.get(name)
        if slot is None or slot.variable.scope == "register" or slot.variable.lanes > 1:
            return None
        parts, rows = list[tuple[Affine, int]](), list[tuple[str, Affine]]()
        for subscript, stride in zip(subscripts, slot.strides, strict=True):
            if not isinstance(subscript, Affine):
                return None
            if isinstance(stride, int):
                parts.append((subscript, stride))
            else:
                rows.append((stride, subscript))
        return weighted_sum(parts), tuple(rows)

    @contextmanager
    def within(self, lanes: Lanes | None) -> Iterator[None]:
        """Inside other lanes, or none, for a while."""
        saved, self.lanes = self.lanes, lanes
        try:
            yield
        finally:
            self.lanes = saved

    def where(self, condition: Value) -> Lanes:
        """The lanes narrowed to those where the condition holds."""
        lanes = self.lanes
        assert lanes is not None, "internal: a mask outside a vector loop"
        mask = condition if lanes.mask is None else self.builder.binary("and", lanes.mask, condition)
        return replace(lanes, mask=mask, any=self.builder.any_lane(mask), leading=None)


def stored_type(variable: Variable, lanes: int = 1) -> Type:
    """The type of an element in memory (bool: i8); registers keep the computed type."""
    if variable.dtype.kind == "b" and variable.scope != "register":
        return type_of("i8", lanes)
    return type_of(variable.dtype, lanes)
