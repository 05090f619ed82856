"""The interpreter, watched: how far each element may be off, and which instances of which statement computed it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from polyml.einsum_frontend.interpreter.ready import ReadyAssign, ReadyDeclare, ReadyProgram
from polyml.einsum_frontend.interpreter.run import UPDATES, Run
from polyml.einsum_frontend.interpreter.types import Type
from polyml.einsum_frontend.interpreter.values import Cell, Evaluator
from polyml.einsum_frontend.ranges import plain_name
from polyml.records import dataclass
from polyml.source import Span
from polyml.testing.rounding import BoundedEvaluator, Bounds, Part, applied, unit

__all__ = ["Instance", "Record", "Watch"]

_KEPT = 3
"""Instances that are told of an element: the first, and the last ones."""

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Instance:
    """One execution of a statement. indices: its index and loop variables with their values; reduced: the range of each index that it reduces over."""

    span: Span
    indices: Mapping[str, int]
    reduced: Mapping[str, range]

    def __str__(self) -> str:
        places = [f"{name} = {value}" for name, value in self.indices.items()]
        places += [f"{name} in {r.start} .. {r.stop - 1}" for name, r in self.reduced.items() if r]
        return ", ".join(places) or "its only instance"


@dataclass(slots=True)
class _Writers:
    """Who computed an element: how many instances since it was last overwritten, and some of them."""

    count: int = 0
    some: list[Instance] = field(default_factory=list)

    def add(self, instance: Instance) -> None:
        self.count += 1
        self.some.append(instance)
        if len(self.some) > _KEPT:
            del self.some[1]


@dataclass(slots=True)
class Record:
    """What was seen. tensors: by the identity of their values, which are kept alive. cells: the tensors of the program itself at its end, by name."""

    most: list[int]
    bounds: Bounds = field(default_factory=dict)
    tensors: dict[int, Array] = field(default_factory=dict)
    writers: dict[int, dict[tuple[int, ...], _Writers]] = field(default_factory=dict)
    fills: dict[int, Span] = field(default_factory=dict)
    cells: Mapping[str, Cell] = field(default_factory=dict)
    returned: tuple[tuple[str, Cell], ...] = ()

    def enter(self, values: Array) -> int:
        """The key of a tensor's values."""
        key = id(values)
        if key not in self.tensors:
            self.tensors[key] = values
            self.bounds[key] = np.zeros(values.shape)
            self.writers[key] = {}
        return key

    def assigned(self, name: str) -> bool:
        """Whether some instance wrote to this tensor of the program."""
        return bool(self.writers.get(id(self.cells[name].values)))

    def copy(self, source: Array, target: Array) -> None:
        """`target` takes over the elements of `source`."""
        old, new = self.enter(source), self.enter(target)
        self.bounds[new][...] = self.bounds[old]
        self.writers[new] = dict(self.writers[old])


class Watch(Run):
    """An execution that fills a record."""

    def __init__(
        self, record: Record, ready: ReadyProgram, cells: dict[str, Cell], sizes: Mapping[str, int], wide: bool
    ) -> None:
        super().__init__(ready, cells, sizes, wide)
        self.record = record
        self.sizes = frozenset(sizes)
        self.seen: list[tuple[Part, Instance]] = []
        self.begun = False

    def run(self) -> tuple[tuple[str, Cell], ...] | None:
        found = super().run()
        self.record.cells, self.record.returned = self.cells, found or ()  # the outermost run ends last
        return found

    def inner(self, callee: ReadyProgram, cells: dict[str, Cell], sizes: Mapping[str, int]) -> Run:
        return Watch(self.record, callee, cells, sizes, self.wide)

    def receive(self, target: str, cell: Cell, *, creates: bool) -> None:
        super().receive(target, cell, creates=creates)
        self.record.copy(cell.values, self.cells[target].values)

    def declare(self, statement: ReadyDeclare) -> None:
        super().declare(statement)
        key = self.record.enter(self.cells[statement.source.name].values)
        self.record.fills[key] = statement.source.span

    def evaluator(self, types: Mapping[int, Type], ranges: Mapping[str, range]) -> Evaluator:
        return BoundedEvaluator(self.cells, types, ranges, self.wide, self.record.bounds, most=self.record.most)

    def assign(self, statement: ReadyAssign) -> None:
        self.begun = statement.guards != ()  # how many instances these leave is not known
        super().assign(statement)

    def evaluate(
        self, statement: ReadyAssign, evaluator: Evaluator, position: tuple[int, ...], env: Mapping[str, int]
    ) -> np.generic:
        assert isinstance(evaluator, BoundedEvaluator), "internal: made by this run"
        if not self.begun:  # refuse what is too large before, not after, all that there is time for
            self.begun = True
            instances = math.prod(len(evaluator.ranges[index]) for index in statement.indices)
            evaluator.require(instances * evaluator.least(statement.value))
        evaluator.below.clear()
        value = super().evaluate(statement, evaluator, position, env)
        named = {plain_name(name): at for name, at in env.items() if name not in self.sizes}
        reduced = {plain_name(n): r for n, r in evaluator.ranges.items() if n not in statement.indices}
        self.seen.append((evaluator.below.pop(), Instance(statement.source.span, named, reduced)))
        return value

    def store(self, statement: ReadyAssign, found: Sequence[tuple[tuple[int, ...], np.generic]]) -> None:
        seen, self.seen = self.seen, []
        values = self.cells[statement.source.target].values
        key = self.record.enter(values)
        before = {position: values[position] for position, _ in found}
        super().store(statement, found)
        bounds, writers = self.record.bounds[key], self.record.writers[key]
        target = unit(self.cells[statement.source.target].type.dtype)
        by_position: dict[tuple[int, ...], list[tuple[Part, Instance]]] = {}
        for (position, _), pair in zip(found, seen, strict=True):
            by_position.setdefault(position, []).append(pair)
        for position, pairs in by_position.items():
            if statement.source.op == "=":
                writers[position] = _Writers()
                bound = pairs[-1][0].bound
            else:
                old = Part(statement.value, before[position], float(bounds[position]))
                bound = self._updated(statement, old, [part for part, _ in pairs])
            bounds[position] = bound + target * _finite(values[position])
            _tell(writers, position, (instance for _, instance in pairs))

    def _updated(self, statement: ReadyAssign, old: Part, parts: Sequence[Part]) -> float:
        """The bound of an element after updates with these values, in any order."""
        dtype = self.cells[statement.source.target].type.dtype
        if not (dtype.is_float or dtype.is_complex):
            return math.inf if any(part.bound for part in (old, *parts)) else 0.0
        op = UPDATES[statement.source.op]
        if op in ("add", "sub"):
            everything = (old, *parts)
            magnitude = sum(_finite(part.value) for part in everything)
            return sum(part.bound for part in everything) + len(parts) * unit(dtype) * magnitude
        for part in parts:
            with np.errstate(all="ignore"):
                value = old.value * part.value if op == "mul" else old.value / part.value
            old = Part(statement.value, value, applied(op, (old, part), dtype))
        return old.bound


def _tell(writers: dict[tuple[int, ...], _Writers], position: tuple[int, ...], instances: Iterable[Instance]) -> None:
    mine = writers.setdefault(position, _Writers())
    for instance in instances:
        mine.add(instance)


def _finite(value: Any) -> float:
    return float(abs(value)) if np.isfinite(value) else 0.0
