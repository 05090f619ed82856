"""What fusing saves: bytes that need not travel between memory and cache, for a candidate region.

Ops that touch one tensor can do so slice by slice when they run along common outer loops: along classes of indices that follow the same tensor dimensions
and that no op of the region reduces over. If such a slice fits into the cache, the tensor is moved once (or never, when it lives only inside). An op with much
arithmetic per byte (a contraction) wants to tile all its own dimensions; tied to slices along some of them it reads its other operands again for each slice,
so that saving counts only if these stay in cache too, and the tensor would not.

A loop counts as its equations, whose indices its variable joins: as one of those that may be a common outer loop where all accesses of what the loop carries
follow it step by step, at the same distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from math import prod
from typing import assert_never

from polyml.expressions import Subscript
from polyml.graph.ir import Check, Equation, Loop, Op, Tensor
from polyml.graph.traverse import (
    UNKNOWN_EXTENT,
    all_ops,
    equation_reads,
    estimated_bytes,
    index_extents,
    is_name_plus_constant,
)
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Profile", "bytes_saved", "memory_of", "profiles"]

_HEAVY = 6
"""Body evaluations per element touched from which an equation counts as a contraction."""

_L1_SHARE = 32
"""L2 is about so many times as large as L1."""

Dimensions = tuple[str | None, ...]
"""Per dimension of a tensor the index that runs along it, or None."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the cost model knows about one equation.

    accesses: (memory, index per dimension), write: the last of them; touched: the memory; gathered: what it reads or writes at computed places.
    serial: indices that cannot be a common outer loop.
    """

    equation: Equation
    extents: dict[str, int]
    accesses: tuple[tuple[str, Dimensions], ...]
    write: tuple[str, Dimensions]
    touched: frozenset[str]
    gathered: frozenset[str]
    heavy: bool
    serial: frozenset[str]

    @property
    def result(self) -> str:
        return self.equation.result.name

    def read_bytes(self, tensor: Tensor) -> int:
        """Of the tensor; what an update keeps counts."""
        return max((self._bytes(tensor, d) for name, d in self.accesses[:-1] if name == tensor.name), default=0)

    def written_bytes(self, tensor: Tensor) -> int:
        return self._bytes(tensor, self.write[1]) if self.write[0] == tensor.name else 0

    def _bytes(self, tensor: Tensor, dimensions: Dimensions) -> int:
        size = estimated_bytes(tensor)
        if tensor.name in self.gathered:
            return size
        return min(prod(self.extents[i] for i in dimensions if i is not None) * tensor.dtype.itemsize, size)


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
    gathered = set()
    for name, subscripts in _accesses(equation, memory):
        dimensions = tuple(is_name_plus_constant(s, tuple(extents)) for s in subscripts)
        accesses.append((name, dimensions))
        if any(d is None and not hasattr(s, "terms") for d, s in zip(dimensions, subscripts, strict=True)):
            gathered.add(name)
    touched = frozenset(name for name, _ in accesses)
    elements = sum(estimated_bytes(tensors[name]) // tensors[name].dtype.itemsize for name in touched)
    heavy = bool(equation.reduced) and prod(extents.values()) >= _HEAVY * elements
    serial = serial | frozenset(equation.reduced)
    return Profile(equation, extents, tuple(accesses), accesses[-1], touched, frozenset(gathered), heavy, serial)


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


def bytes_saved(
    profiles: Sequence[Profile], tensors: dict[str, Tensor], made: Set[str], escaping: Set[str], cache_bytes: int
) -> int:
    """Bytes that need not move when these equations run as one region rather than each by itself.

    Args:
        made: memory whose first version the region makes. escaping: what must be in memory after it.
        cache_bytes: of the cache that a slice should stay in; half of it is counted on.
    """
    outer = _outer_classes(profiles)
    total = 0
    for name in frozenset().union(*(p.touched for p in profiles)):
        touching = [p for p in profiles if name in p.touched]
        if len(touching) < 2 or (name not in made and not tensors[name].shape):
            continue
        # A contraction reads its operands from cache for most of its time: sharing such an input saves little.
        movers = touching if name in made else [p for p in touching if not p.heavy]
        gathered = any(name in p.gathered for p in touching)
        shared = frozenset() if gathered else _shared_classes(name, touching, outer)
        extent = prod(_class_extent(c, touching[0], outer) for c in shared)
        size = estimated_bytes(tensors[name])
        if size > cache_bytes // 2 * max(extent, 1):
            continue
        if not all(_keeps_reuse(p, name, shared, outer, tensors, cache_bytes) for p in touching):
            continue
        reads = [p.read_bytes(tensors[name]) for p in movers]
        writes = [p.written_bytes(tensors[name]) for p in movers]
        total += sum(reads) - (0 if name in made else max(reads, default=0))
        total += sum(writes) - (max(writes, default=0) if name in escaping else 0)
    return total


def _outer_classes(profiles: Sequence[Profile]) -> dict[tuple[str, str], tuple[str, str]]:
    """Per (equation, index) its class, for the classes that may be common outer loops: reduced nowhere, one index per equation."""
    parent = {(p.result, i): (p.result, i) for p in profiles for i in p.extents}

    def find(key: tuple[str, str]) -> tuple[str, str]:
        while parent[key] != key:
            parent[key] = key = parent[parent[key]]
        return key

    along: dict[tuple[str, int], tuple[str, str]] = {}
    for p in profiles:
        for name, dimensions in p.accesses:
            for d, index in enumerate(dimensions):
                if index is not None:
                    first = along.setdefault((name, d), (p.result, index))
                    parent[find((p.result, index))] = find(first)
    members: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key in parent:
        members.setdefault(find(key), []).append(key)
    reduced = {(p.result, i) for p in profiles for i in p.serial}
    return {
        key: root
        for root, keys in members.items()
        if not reduced.intersection(keys) and len({result for result, _ in keys}) == len(keys)
        for key in keys
    }


def _class_extent(c: tuple[str, str], p: Profile, outer: dict[tuple[str, str], tuple[str, str]]) -> int:
    return next(n for i, n in p.extents.items() if outer.get((p.result, i)) == c)


def _shared_classes(
    name: str, touching: Sequence[Profile], outer: dict[tuple[str, str], tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """The outer classes along which every access of the tensor moves, in the same dimension."""
    common: set[tuple[int, tuple[str, str]]] | None = None
    for p in touching:
        for accessed, dimensions in p.accesses:
            if accessed == name:
                classes = {
                    (d, outer[p.result, i])
                    for d, i in enumerate(dimensions)
                    if i is not None and (p.result, i) in outer
                }
                common = classes if common is None else common & classes
    return frozenset(c for _, c in common or ())


def _keeps_reuse(
    p: Profile,
    name: str,
    shared: frozenset[tuple[str, str]],
    outer: dict[tuple[str, str], tuple[str, str]],
    tensors: dict[str, Tensor],
    cache_bytes: int,
) -> bool:
    """True unless a contraction, run slice by slice along `shared`, would have to fetch its other operands again and again."""
    if not p.heavy:
        return True
    left = [i for i in p.extents if i not in p.equation.reduced and p.extents[i] > 1]
    if all(outer.get((p.result, i)) in shared for i in left):
        return True
    if estimated_bytes(tensors[name]) <= cache_bytes // 2:
        return False  # it stays in cache anyway, and a contraction by itself is tiled better
    rows = frozenset(
        c
        for accessed, places in p.accesses
        if accessed == name
        for i in places[:-1]
        if i is not None and (c := outer.get((p.result, i))) in shared
    )
    if _is_heavy_inside(p, rows, outer, tensors, cache_bytes):
        return False
    streamed = 0
    for operand, dimensions in dict.fromkeys(p.accesses):
        if operand not in (name, p.result):
            sliced = [p.extents[i] for i in dimensions if i is not None and outer.get((p.result, i)) in shared]
            streamed += estimated_bytes(tensors[operand]) // max(prod(sliced), 1)
    return streamed <= cache_bytes // 2


def _is_heavy_inside(
    p: Profile,
    shared: frozenset[tuple[str, str]],
    outer: dict[tuple[str, str], tuple[str, str]],
    tensors: dict[str, Tensor],
    cache_bytes: int,
) -> bool:
    """Whether the contraction is one within each slice too, of operands that no L1 holds: then it wants tiles and panels there, which only those of a region of its own get."""
    inside = prod(n for i, n in p.extents.items() if outer.get((p.result, i)) not in shared)
    touched = 0
    size = 0
    for operand, dimensions in dict.fromkeys(p.accesses):
        sliced = prod(p.extents[i] for i in dimensions if i is not None and outer.get((p.result, i)) in shared)
        touched += estimated_bytes(tensors[operand]) // tensors[operand].dtype.itemsize // max(sliced, 1)
        size += estimated_bytes(tensors[operand]) // max(sliced, 1)
    return inside >= _HEAVY * touched and size > cache_bytes // _L1_SHARE
