"""What a loop of minima and maxima keeps while it hopes for no NaN (extrema.py)."""

from __future__ import annotations

from dataclasses import field

from polyml.codegen.llvm.ir import POINTER, Builder, Lines, Type, Value, type_of
from polyml.codegen.loops import Place
from polyml.records import dataclass

__all__ = ["Hope"]

MASKS = 4
"""Masks that take turns for each type: each waits six cycles for its last one, in which a core finds a dozen minima, or two dozen beside additions on other units (x86 has seven mask registers)."""

IN_VECTORS = 1
"""The same where masks are vectors (AVX2): one takes a cycle, and registers are few."""


@dataclass(slots=True)
class Hope:
    """Extrema without regard to NaN, and where there was one. masks: by their type, the addresses of those that take turns, and how often that was; bits of one lane are all ones as long as no NaN came along. waiting: a candidate without a partner yet, by its type.
    arguments: of argmin and argmax, what holds their indices."""

    builder: Builder
    entry: Lines
    masks: dict[Type, list[Value]] = field(default_factory=dict)
    turns: dict[Type, int] = field(default_factory=dict)
    waiting: dict[Type, Value] = field(default_factory=dict)
    arguments: dict[Place, None] = field(default_factory=dict)

    def extremum(self, candidate: Value, best: Value, order: str) -> Value:
        """The candidate where it is "ogt" or "olt" the best so far, else that; it is noted where the candidate is a NaN."""
        b = self.builder
        return b.select(self.beats(candidate, best, order), candidate, best)

    def beats(self, candidate: Value, best: Value, order: str) -> Value:
        """Where the candidate is "ogt" or "olt" the best so far."""
        other = self.waiting.pop(candidate.type, None)
        if other is None:
            self.waiting[candidate.type] = candidate
        else:
            self._note(candidate, other)
        return self.builder.compare(order, candidate, best)

    def end_round(self) -> None:
        """The body ends: candidates of different iterations make no pairs."""
        for candidate in self.waiting.values():
            self._note(candidate, candidate)
        self.waiting.clear()

    def _note(self, one: Value, other: Value) -> None:
        b, type_ = self.builder, type_of("i1", one.lanes)
        in_vectors = b.module.instructions.avx2 and one.lanes > 1
        if in_vectors:
            type_ = one.type.integers()
        masks = self.masks.setdefault(type_, [])
        turn = self.turns[type_] = self.turns.get(type_, -1) + 1
        most = IN_VECTORS if in_vectors else MASKS
        if len(masks) < most:
            with b.into(self.entry):
                masks.append(b.emit(POINTER, f"alloca {type_}"))
        place = masks[turn % most]
        whole = b.emit(type_, f"load {type_}, {place}")
        ordered = b.compare("ord", one, other)
        ordered = b.convert("sext", ordered, type_.element) if in_vectors else ordered
        b.write(f"store {b.binary('and', whole, ordered)}, {place}")
