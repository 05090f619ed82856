"""A little writer of LLVM IR text: numbered values, labelled blocks, and affine index arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import assert_never

from polyml.records import dataclass
from polyml.sets.affine import Affine, Extremum, FloorDiv

__all__ = ["IrWriter"]


@dataclass(slots=True)
class IrWriter:
    """Collects the lines of one function body (mutable while it is written)."""

    lines: list[str] = field(default_factory=list)
    count: int = 0

    def fresh(self, hint: str = "v") -> str:
        """A new value or label name, without its `%`."""
        self.count += 1
        return f"{hint}.{self.count}"

    def value(self, operation: str, hint: str = "v") -> str:
        """Writes `%name = operation`; gives `%name`."""
        name = f"%{self.fresh(hint)}"
        self.lines.append(f"  {name} = {operation}")
        return name

    def do(self, operation: str) -> None:
        """Writes an operation without a value."""
        self.lines.append(f"  {operation}")

    def label(self, name: str) -> None:
        """Starts the block `name`."""
        self.lines.append(f"{name}:")

    def offset(self, pointer: str, amount: int | str) -> str:
        """`pointer + amount` bytes."""
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {amount}", "p")

    def load(self, kind: str, pointer: str, offset: int = 0, hint: str = "v") -> str:
        """The value of LLVM type `kind` at `pointer + offset` bytes, naturally aligned."""
        return self.value(f"load {kind}, ptr {self.offset(pointer, offset) if offset else pointer}", hint)

    def go_on_if(self, condition: str) -> None:
        """Branches to the block `slow` unless the i1 `condition` holds; the text goes on where it does."""
        onward = self.fresh("on")
        self.do(f"br i1 {condition}, label %{onward}, label %slow")
        self.label(onward)

    def all_of(self, conditions: list[str]) -> str:
        """The conjunction of i1 values."""
        total = conditions[0] if conditions else "true"
        for condition in conditions[1:]:
            total = self.value(f"and i1 {total}, {condition}")
        return total

    def affine(self, expression: Affine, values: Mapping[str, str]) -> str:
        """The i64 value of `expression`; `values` are the IR values of its variables."""
        total = str(expression.constant)
        for atom, coefficient in expression.terms:
            match atom:
                case str():
                    term = values[atom]
                case FloorDiv():
                    term = self._floor_div(self.affine(atom.numerator, values), atom.denominator)
                case Extremum():
                    operands = [self.affine(operand, values) for operand in atom.operands]
                    term = operands[0]
                    for operand in operands[1:]:
                        smaller = self.value(f"icmp slt i64 {term}, {operand}")
                        first, second = (term, operand) if atom.kind == "min" else (operand, term)
                        term = self.value(f"select i1 {smaller}, i64 {first}, i64 {second}")
                case _:
                    assert_never(atom)
            if coefficient != 1:
                term = self.value(f"mul i64 {term}, {coefficient}")
            total = term if total == "0" else self.value(f"add i64 {total}, {term}")
        return total

    def _floor_div(self, numerator: str, denominator: int) -> str:
        quotient = self.value(f"sdiv i64 {numerator}, {denominator}")
        rest = self.value(f"srem i64 {numerator}, {denominator}")
        below = self.value(f"ashr i64 {rest}, 63")  # -1 when the remainder is negative
        return self.value(f"add i64 {quotient}, {below}")
