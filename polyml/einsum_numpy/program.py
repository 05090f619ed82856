"""A contraction along a path as the text of a program: one statement per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyml.dtypes import DType
from polyml.einsum_numpy.contraction import Contraction
from polyml.einsum_numpy.path import Path

__all__ = ["program_text"]

_WIDE = {"i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}
"""Where sums are formed: their low bits are those of sums that wrap, as NumPy's do."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the program: how it is read, and the element type of that."""

    labels: tuple[str, ...]
    access: str
    dtype: DType


@dataclass(slots=True)
class _Writer:
    """Collects statements (mutable while the text is made)."""

    given: Contraction
    names: dict[str, str]
    statements: list[str] = field(default_factory=list)

    def statement(self, target: str, labels: Sequence[str], values: Sequence[_Value]) -> _Value:
        """`target[labels] = the sum of the product of values` over all other labels."""
        dtype = self.given.dtype
        summed = list(dict.fromkeys(label for value in values for label in value.labels if label not in labels))
        form = _WIDE.get(dtype.name, dtype.name) if summed else dtype.name
        factors = [v.access if v.dtype.name == form else f"{form}({v.access})" for v in values]
        text = " * ".join(factors)
        if summed:
            reducer = "any" if dtype.name == "bool" else "sum"
            text = f"{reducer}[{', '.join(self.names[label] for label in summed)}]({text})"
            if form != dtype.name:
                text = f"{dtype.name}({text})"
        place = self.access(target, labels)
        self.statements.append(f"    {place} = {text}\n")
        return _Value(tuple(labels), place, dtype)

    def access(self, name: str, labels: Sequence[str]) -> str:
        return f"{name}[{', '.join(self.names[label] for label in labels)}]" if labels else name


def program_text(given: Contraction, path: Path) -> str:
    """`def einsum(x0, x1, ...)`, which takes the terms as tensors (one of shape [1] where a term has no label) and returns `out`.

    Labels that only one of several terms has are summed ahead.
    """
    writer = _Writer(given, {label: f"i{k}" for k, label in enumerate(given.sizes)})
    parameters = []
    values: list[_Value] = []
    for number, term in enumerate(given.terms):
        shape = ", ".join(str(given.sizes[label]) for label in term.labels) or "1"
        parameters.append(f'x{number}: {term.dtype}["{shape}"]')
        access = writer.access(f"x{number}", term.labels) if term.labels else f"x{number}[0]"
        values.append(_Value(term.labels, access, term.dtype))
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
