"""What fusing saves: bytes that need not travel between memory and cache, for a candidate region.

Ops that touch one tensor can do so slice by slice when they run along common outer loops: along classes of indices that follow the same tensor dimensions
and that no op of the region reduces over. If such a slice fits into the cache, the tensor is moved once (or never, when it lives only inside). An op with much
arithmetic per byte (a contraction) wants to tile all its own dimensions; tied to slices along some of them it reads its other operands again for each slice,
so that saving counts only if these stay in cache too, and the tensor would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from polyml.graph.ir import Equation, Tensor
from polyml.graph.traverse import equation_reads, estimated_bytes, index_extents, is_name_plus_constant

__all__ = ["Profile", "bytes_saved", "profile"]

_HEAVY = 6
"""Body evaluations per element touched from which an equation counts as a contraction."""

Dimensions = tuple[str | None, ...]
"""Per dimension of a tensor the index that runs along it, or None."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the cost model knows about one equation.

    accesses: (tensor, index per dimension), reads first, the write last; touched: their tensors; gathered: those it reads or writes at computed places.
    """

    equation: Equation
    extents: dict[str, int]
    accesses: tuple[tuple[str, Dimensions], ...]
    touched: frozenset[str]
    gathered: frozenset[str]
    heavy: bool

    @property
    def result(self) -> str:
        return self.equation.result.name


def profile(equation: Equation, tensors: dict[str, Tensor]) -> Profile:
    """Measures one equation."""
    extents = index_extents(equation)
    accesses: dict[tuple[str, Dimensions], None] = {}
    gathered = set()
    for name, subscripts in [
        *((read.tensor, read.subscripts) for read in equation_reads(equation)),
        *([(equation.base.name, equation.target)] if equation.base is not None else []),
        (equation.result.name, equation.target),
    ]:
        dimensions = tuple(is_name_plus_constant(s, equation.indices) for s in subscripts)
        accesses[name, dimensions] = None
        if any(d is None and not hasattr(s, "terms") for d, s in zip(dimensions, subscripts, strict=True)):
            gathered.add(name)
    touched = frozenset(name for name, _ in accesses)
    elements = sum(estimated_bytes(tensors[name]) // tensors[name].dtype.itemsize for name in touched)
    heavy = bool(equation.reduced) and prod(extents.values()) >= _HEAVY * elements
    return Profile(equation, extents, tuple(accesses), touched, frozenset(gathered), heavy)


def bytes_saved(
    profiles: Sequence[Profile], tensors: dict[str, Tensor], escaping: frozenset[str] | set[str], cache_bytes: int
) -> int:
    """Bytes that need not move when these equations run as one region rather than each by itself.

    Args:
        escaping: tensors that must be in memory after the region, even if it makes them.
        cache_bytes: of the cache that a slice should stay in; half of it is counted on.
    """
    outer = _outer_classes(profiles)
    made = {p.result for p in profiles}
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
        total += size * max(len(movers) - (name in escaping or name not in made), 0)
    return total


def _outer_classes(profiles: Sequence[Profile]) -> dict[tuple[str, str], tuple[str, str]]:
    """Per (equation, index) its class, for the classes that may be common outer loops: reduced nowhere, one index per equation."""
    parent = {(p.result, i): (p.result, i) for p in profiles for i in p.equation.indices}

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
    reduced = {(p.result, i) for p in profiles for i in p.equation.reduced}
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
    left = [i for i in p.equation.indices if i not in p.equation.reduced and p.extents[i] > 1]
    if all(outer.get((p.result, i)) in shared for i in left):
        return True
    if estimated_bytes(tensors[name]) <= cache_bytes // 2:
        return False  # it stays in cache anyway, and a contraction by itself is tiled better
    streamed = 0
    for operand, dimensions in dict.fromkeys(p.accesses):
        if operand not in (name, p.result):
            sliced = [p.extents[i] for i in dimensions if i is not None and outer.get((p.result, i)) in shared]
            streamed += estimated_bytes(tensors[operand]) // max(prod(sliced), 1)
    return streamed <= cache_bytes // 2
