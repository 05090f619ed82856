"""What the fusion of equations into regions looks at: how far their indices run, and which dimensions of which memory they follow.

A loop counts as its equations, whose indices its variable joins: as one of those that may be a common outer loop where all accesses of what the loop carries
follow it step by step, at the same distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import assert_never

from polyml.expressions import Subscript
from polyml.graph.ir import Check, Equation, Loop, Op, Tensor
from polyml.graph.traverse import (
    UNKNOWN_EXTENT,
    all_ops,
    equation_reads,
    estimated_bytes,
    followed_index,
    index_extents,
)
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["HEAVY", "Dimensions", "Profile", "memory_of", "profiles"]

HEAVY = 6
"""Body evaluations per element touched from which an equation counts as a contraction."""

Dimensions = tuple[str | None, ...]
"""Per dimension of a tensor the index that runs along it, or None."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the cost model knows about one equation.

    accesses: (memory, index per dimension), write: the last of them; steps: of each access, how many places of each dimension its index goes at a time; elements: of each access, how many it goes through, at most; touched: the memory; gathered: what it reads or writes at computed places.
    distinct: accesses with their steps, each once; read: of what memory it reads how many elements an access goes through, at most. serial: indices that cannot be a common outer loop.
    """

    equation: Equation
    result: str
    extents: dict[str, int]
    accesses: tuple[tuple[str, Dimensions], ...]
    steps: tuple[tuple[int, ...], ...]
    elements: tuple[int, ...]
    distinct: tuple[tuple[tuple[str, Dimensions], tuple[int, ...]], ...]
    read: Mapping[str, int]
    write: tuple[str, Dimensions]
    touched: frozenset[str]
    gathered: frozenset[str]
    heavy: bool
    serial: frozenset[str]

    def read_bytes(self, tensor: Tensor) -> int:
        """Of the tensor; what an update keeps counts."""
        return self._bytes(tensor, self.read[tensor.name]) if tensor.name in self.read else 0

    def written_bytes(self, tensor: Tensor) -> int:
        return self._bytes(tensor, self.elements[-1]) if self.write[0] == tensor.name else 0

    def _bytes(self, tensor: Tensor, elements: int) -> int:
        size = estimated_bytes(tensor)
        return size if tensor.name in self.gathered else min(elements * tensor.dtype.itemsize, size)


def memory_of(ops: Iterable[Op], first: dict[str, str] | None = None) -> dict[str, str]:
    """Per tensor that is a later version of another (an update of it, or what a loop carries) the first version; added to `first`."""
    first = {} if first is None else first
    for op in ops:
        match op:
            case Equation():
                if op.base is not None:
                    first[op.result.name] = first.get(op.base.name, op.base.name)
            case Loop():
                for carried in op.carried:
                    origin = first.get(carried.initial.name, carried.initial.name)
                    first[carried.inner.name] = first[carried.result.name] = origin
                memory_of(op.body, first)
            case Check():
                pass
            case _:
                assert_never(op)
    return first


def profiles(op: Equation | Loop, tensors: dict[str, Tensor], memory: Mapping[str, str]) -> tuple[Profile, ...]:
    """Measures an equation, or those of a loop. memory: of `memory_of`."""
    return tuple(_profiles(op, tensors, memory, {}, frozenset()))


def _profiles(
    op: Op, tensors: dict[str, Tensor], memory: Mapping[str, str], around: dict[str, int], serial: frozenset[str]
) -> Iterator[Profile]:
    """around: the variables of the loops outside with their numbers of iterations; serial: those that carry something."""
    match op:
        case Equation():
            yield _profile(op, tensors, memory, around, serial)
        case Loop():
            trips = op.stop - op.start
            extent = max(-(-trips.constant // op.step), 0) if trips.is_constant else UNKNOWN_EXTENT
            inside = serial if _is_parallel(op, memory) else serial | {op.variable}
            for inner in op.body:
                yield from _profiles(inner, tensors, memory, {**around, op.variable: extent}, inside)
        case Check():
            pass


def _profile(
    equation: Equation,
    tensors: dict[str, Tensor],
    memory: Mapping[str, str],
    around: dict[str, int],
    serial: frozenset[str],
) -> Profile:
    extents = around | index_extents(equation)
    accesses: list[tuple[str, Dimensions]] = []
    steps: list[tuple[int, ...]] = []
    elements: list[int] = []
    gathered = set()
    for name, subscripts in _accesses(equation, memory):
        followed = [followed_index(s, tuple(extents)) for s in subscripts]
        dimensions = tuple(None if found is None else found[0] for found in followed)
        accesses.append((name, dimensions))
        steps.append(tuple(1 if found is None else found[1] for found in followed))
        elements.append(prod(_places(s, extents) for s in subscripts))
        if any(d is None and not hasattr(s, "terms") for d, s in zip(dimensions, subscripts, strict=True)):
            gathered.add(name)
    touched = frozenset(name for name, _ in accesses)
    held = sum(estimated_bytes(tensors[name]) // tensors[name].dtype.itemsize for name in touched)
    heavy = bool(equation.reduced) and prod(extents.values()) >= HEAVY * held
    serial = serial | frozenset(equation.reduced)
    read: dict[str, int] = {}
    for (name, _), count in zip(accesses[:-1], elements, strict=False):
        read[name] = max(read.get(name, 0), count)
    return Profile(
        equation,
        equation.result.name,
        extents,
        tuple(accesses),
        tuple(steps),
        tuple(elements),
        tuple(dict.fromkeys(zip(accesses, steps, strict=True))),
        read,
        accesses[-1],
        touched,
        frozenset(gathered),
        heavy,
        serial,
    )


def _places(subscript: Subscript, extents: Mapping[str, int]) -> int:
    """How many places of its dimension a subscript is at, at most: `2*h + r` at all from its least to its greatest."""
    if not isinstance(subscript, Affine):
        return 1
    used = [(abs(subscript.stride(i) or 1), extent) for i, extent in extents.items() if i in subscript.variables()]
    if len(used) == 1:
        return used[0][1]
    return 1 + sum(step * (extent - 1) for step, extent in used)


def _accesses(equation: Equation, memory: Mapping[str, str]) -> list[tuple[str, tuple[Subscript, ...]]]:
    """Reads, the base and the result, as memory and subscripts."""
    named = [(read.tensor, read.subscripts) for read in equation_reads(equation)]
    named += [] if equation.base is None else [(equation.base.name, equation.target)]
    named.append((equation.result.name, equation.target))
    return [(memory.get(name, name), subscripts) for name, subscripts in named]


def _is_parallel(loop: Loop, memory: Mapping[str, str]) -> bool:
    """Whether all accesses of what the loop carries are in one dimension at one distance from the loop's variable."""
    carried = {memory[c.inner.name] for c in loop.carried}
    places: dict[str, set[tuple[int, Affine]]] = {}
    for op in all_ops(loop.body):
        for name, subscripts in _accesses(op, memory) if isinstance(op, Equation) else ():
            if name in carried:
                distances = {(d, s - affine(loop.variable)) for d, s in enumerate(subscripts) if isinstance(s, Affine)}
                along = {(d, distance) for d, distance in distances if distance.is_constant}
                places[name] = places[name] & along if name in places else along
    return all(places.values())
