"""A contraction along a path as the text of a program: one statement per step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from polyml.dtypes import DType
from polyml.einsum_numpy.contraction import Contraction
from polyml.einsum_numpy.path import Path
from polyml.records import dataclass

__all__ = ["WIDE", "program_text"]

WIDE = {"i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32", "f16": "f32", "bf16": "f32"}
"""Where sums are formed: the low bits of integers are those of sums that wrap, as NumPy's do; halves round once."""


_LONG, _BLOCK, _MOST_PARTIAL = 16384, 4096, 65536
"""Float sums of more terms than `_LONG` are sums of the sums of `_BLOCK`s, for accuracy and so that blocks may run in parallel, where that makes at most so
many partial sums. Source: Higham, Accuracy and Stability of Numerical Algorithms, section 4.3 (blocked summation)."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the program. labels: of its dimensions (none: it has one element)."""

    name: str
    labels: tuple[str, ...]
    dtype: DType

    def read(self, indices: Mapping[str, str]) -> str:
        """Its element at these indices."""
        if not self.labels:
            return f"{self.name}[0]" if self.name.startswith("x") else self.name
        return f"{self.name}[{', '.join(indices[label] for label in self.labels)}]"


@dataclass(slots=True)
class _Writer:
    """Collects statements (mutable while the text is made)."""

    given: Contraction
    names: dict[str, str]
    blocked: bool
    statements: list[str] = field(default_factory=list)

    def statement(self, target: str, labels: Sequence[str], values: Sequence[_Value]) -> _Value:
        """`target[labels] = the sum of the product of values` over all other labels."""
        dtype = self.given.dtype
        if dtype.is_half and target != "out":
            dtype = dtype.part
        made = _Value(target, tuple(labels), dtype)
        summed = list(dict.fromkeys(label for value in values for label in value.labels if label not in labels))
        if not summed:
            text = _product(values, self.names, dtype.name)
        elif (long := self._long(labels, summed)) is not None:
            text = self._in_blocks(long, summed, values, dtype.part if dtype.is_half else dtype)
            text = f"{dtype}({text})" if dtype.is_half else text
        else:
            wide = WIDE.get(dtype.name, dtype.name)
            items = ", ".join(self.names[label] for label in summed)
            text = f"{'any' if dtype.kind == 'b' else 'sum'}[{items}]({_product(values, self.names, wide)})"
            if wide != dtype.name:
                text = f"{dtype.name}({text})"
        self.statements.append(f"    {made.read(self.names)} = {text}\n")
        return made

    def _long(self, labels: Sequence[str], summed: Sequence[str]) -> str | None:
        """The label whose sum is formed in blocks."""
        inexact = self.given.dtype.is_float or self.given.dtype.is_complex
        if not self.blocked or not inexact:
            return None
        sizes = self.given.sizes
        longest = max(summed, key=lambda label: sizes[label])
        partial = math.prod(sizes[label] for label in labels) * (sizes[longest] // _BLOCK)
        return longest if sizes[longest] > _LONG and partial <= _MOST_PARTIAL else None

    def _in_blocks(self, long: str, summed: Sequence[str], values: Sequence[_Value], form: DType) -> str:
        """The sum over full blocks, and that of the rest."""
        index, dtype = self.names[long], form.name
        blocks, rest = divmod(self.given.sizes[long], _BLOCK)
        others = "".join(f", {self.names[label]}" for label in summed if label != long)

        def inner(extent: int, place: str) -> str:
            return f"sum[{index} < {extent}{others}]({_product(values, {**self.names, long: place}, dtype)})"

        text = f"sum[block < {blocks}]({inner(_BLOCK, f'{_BLOCK} * block + {index}')})"
        return f"{text} + {inner(rest, f'{index} + {blocks * _BLOCK}')}" if rest else text


def _product(values: Sequence[_Value], indices: Mapping[str, str], form: str) -> str:
    """The product, in the element type `form`."""
    factors = (v.read(indices) if v.dtype.name == form else f"{form}({v.read(indices)})" for v in values)
    return " * ".join(factors)


def program_text(given: Contraction, path: Path, *, blocked: bool = True) -> str:
    """`def einsum(x0, x1, ...)`, which takes the terms as tensors (one of shape [1] where a term has no label) and returns `out`.

    Labels that only one of several terms has are summed ahead.

    Args:
        blocked: long sums may be formed in blocks.
    """
    writer = _Writer(given, {label: f"n{k}" for k, label in enumerate(given.sizes)}, blocked)
    parameters = []
    values: list[_Value] = []
    for number, term in enumerate(given.terms):
        shape = ", ".join(str(given.sizes[label]) for label in term.labels) or "1"
        parameters.append(f'x{number}: {term.dtype}["{shape}"]')
        values.append(_Value(f"x{number}", term.labels, term.dtype))
    if len(values) > 1:
        values = [_sum_ahead(writer, k, values) for k in range(len(values))]
    for number, step in enumerate(path):
        taken = [values[position] for position in sorted(step)]
        values = [value for position, value in enumerate(values) if position not in step]
        if number == len(path) - 1:
            target, labels = "out", given.result
        else:
            needed = {*given.result, *(label for value in values for label in value.labels)}
            every = dict.fromkeys(label for value in taken for label in value.labels)
            target, labels = f"t{number}", tuple(label for label in every if label in needed)
        values.append(writer.statement(target, labels, taken))
    assert len(values) == 1, "internal: a path that leaves terms"
    return f"def einsum({', '.join(parameters)}):\n{''.join(writer.statements)}    return out\n"


def _sum_ahead(writer: _Writer, position: int, values: Sequence[_Value]) -> _Value:
    own = values[position]
    others = {label for k, value in enumerate(values) if k != position for label in value.labels}
    kept = tuple(label for label in own.labels if label in others or label in writer.given.result)
    return own if kept == own.labels else writer.statement(f"s{position}", kept, [own])
