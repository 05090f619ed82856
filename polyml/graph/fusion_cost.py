"""What fusing saves: bytes that need not travel between memory and cache, for a candidate region.

Ops that touch one tensor can do so slice by slice when they run along common outer loops: along classes of indices that follow the same tensor dimensions
and that no op of the region reduces over. If such a slice fits into the cache, the tensor is moved once (or never, when it lives only inside). An op with much
arithmetic per byte (a contraction) wants to tile all its own dimensions; tied to slices along some of them it reads its other operands again for each slice,
so that saving counts only if these stay in cache too, and the tensor would not.

Rows of a tensor may be a common loop even for ops that reduce over them (`_shares_rows`): those get partial sums (schedule/sweeps/row_sums.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from math import prod

from polyml.disjoint_sets import DisjointSets
from polyml.graph.ir import Tensor
from polyml.graph.profiles import HEAVY, Profile
from polyml.graph.traverse import estimated_bytes
from polyml.records import dataclass
from polyml.sets.shapes import is_known

__all__ = ["bytes_saved", "large_bytes", "swept_bytes", "tiles_worth"]

_L1_SHARE = 32
"""L2 is about so many times as large as L1."""

_STREAMED = 8
"""What a contraction fetches again for each block of slices may be so many times as large as L2: L3 delivers it while the rows of a register tile use it."""

_STRIP = 128
"""Bytes of a row that a walk down columns takes, about: four vectors, or two of 64 bytes."""

_WAY = 1 << 16
"""Bytes that lie in different places of a cache, whatever they are: L2 over the number of its ways, which is 64 KB or 128."""

_NEARER = 4
"""How many times faster the last level of caches delivers bytes than memory does."""

_IMMENSE = 1 << 30
"""Bytes of an intermediate that is not made whole wherever that can be helped."""

_MIN_SLICES = 4
"""Slices that are worth a loop around what makes one of them."""

_PANEL = 256
"""Bytes of a row of an operand that is a panel as it lies: slices need not pack it again."""

_WHOLE = 1024
"""Bytes of a row that a contraction sums up, of which a register tile's rows, eight or so, stay in L1: such sums are in no blocks."""

_TILED = 80
"""Operations of a contraction in f32 that cost as much more time in one nest with others as a byte from memory: an eighth of what a core does meanwhile."""

_TILES_SHARE = 8
"""All of a contraction's time over what tiles of its own are worth by that."""


def bytes_saved(
    profiles: Sequence[Profile],
    tensors: dict[str, Tensor],
    made: Set[str],
    escaping: Set[str],
    cache_bytes: int,
    rows_bytes: int,
) -> dict[str, int]:
    """Bytes that need not move when these equations run as one region rather than each by itself, by tensor.

    Args:
        made: memory whose first version the region makes. escaping: what must be in memory after it.
        cache_bytes: of the cache that a slice should stay in; half of it is counted on. rows_bytes: tensors as large as that are read row by row together, though some reduce over the rows.
    """
    outer = _outer_classes(profiles)
    saved: dict[str, int] = {}
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
        fits = size <= cache_bytes // 2 * max(extent, 1) and _holds_strips(
            name, shared, touching, outer, tensors, cache_bytes
        )
        most = size * sum(touched == name for p in touching for touched, _ in dict.fromkeys(p.accesses))
        slices = _Slices(name, shared, outer, tensors, cache_bytes, most)
        fits = fits and all(map(slices.suit, touching)) and all(map(slices.suit_maker, _finished(name, profiles)))
        # Sizes that stay symbolic count as large: small ones have a version of their own.
        large = size >= rows_bytes or not is_known(tensors[name].shape)
        if not fits and not (large and _shares_rows(name, profiles, tensors, cache_bytes)):
            continue
        reads = [p.read_bytes(tensors[name]) for p in movers]
        writes = [p.written_bytes(tensors[name]) for p in movers]
        saved[name] = sum(reads) - (0 if name in made else max(reads, default=0))
        saved[name] += sum(writes) - (max(writes, default=0) if name in escaping else 0)
    return saved


def tiles_worth(profiles: Iterable[Profile]) -> int:
    """Bytes that memory would have to deliver in the time that contractions gain by tiles of their own. Vectors of f64 have half as many elements."""
    return sum(
        2 * prod(p.extents.values()) * max(p.equation.result.dtype.itemsize, 4) for p in profiles if p.heavy
    ) // (4 * _TILED)


def swept_bytes(p: Profile, tensors: dict[str, Tensor], cache_bytes: int) -> int:
    """Of the one large operand, if any, that a sum of few terms an element reads from end to end, along the rows of its result: a row or a few times a matrix."""
    large = {name for name in p.touched if estimated_bytes(tensors[name]) > cache_bytes}
    reduced = p.equation.reduced
    if p.heavy or not reduced or len(large) != 1 or p.write[0] in large or not p.write[1]:
        return 0
    (name,) = large
    dimensions = list(dict.fromkeys(d for accessed, d in p.accesses if accessed == name))
    lanes = p.write[1][-1]
    along = len(dimensions) == 1 and lanes is not None and dimensions[0][-1] == lanes
    return estimated_bytes(tensors[name]) if along and set(reduced) <= set(dimensions[0]) else 0


def large_bytes(p: Profile, tensors: dict[str, Tensor], cache_bytes: int) -> int:
    """Of the largest operand or result, if any, that an elementwise equation goes through and that no cache of `cache_bytes` holds."""
    sizes = [estimated_bytes(tensors[name]) for name in p.touched]
    return 0 if p.heavy or p.equation.reduced else max((size for size in sizes if size > cache_bytes), default=0)


def _outer_classes(profiles: Sequence[Profile]) -> dict[tuple[str, str], tuple[str, str]]:
    """Per (equation, index) its class, for the classes that may be common outer loops: reduced nowhere, one index per equation."""
    found = _classes(profiles)
    members: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key, root in found.items():
        members.setdefault(root, []).append(key)
    reduced = {(p.result, i) for p in profiles for i in p.serial}
    return {
        key: root
        for root, keys in members.items()
        if not reduced.intersection(keys) and len({result for result, _ in keys}) == len(keys)
        for key in keys
    }


def _classes(profiles: Sequence[Profile]) -> dict[tuple[str, str], tuple[str, str]]:
    """Per (equation, index) its class: what follows the same dimension of a tensor in steps of one length is in one."""
    classes = DisjointSets((p.result, i) for p in profiles for i in p.extents)
    along: dict[tuple[str, int, int], tuple[str, str]] = {}
    for p in profiles:
        for (name, dimensions), steps in p.distinct:
            for d, (index, step) in enumerate(zip(dimensions, steps, strict=True)):
                if index is not None:
                    classes.join((p.result, index), along.setdefault((name, d, step), (p.result, index)))
    return classes.roots()


def _class_extent(c: tuple[str, str], p: Profile, outer: dict[tuple[str, str], tuple[str, str]]) -> int:
    return next(n for i, n in p.extents.items() if outer.get((p.result, i)) == c)


def _holds_strips(
    name: str,
    shared: Set[tuple[str, str]],
    touching: Sequence[Profile],
    outer: dict[tuple[str, str], tuple[str, str]],
    tensors: dict[str, Tensor],
    cache_bytes: int,
) -> bool:
    """Whether the cache holds a slice of the tensor where slices are columns that are summed up: of each row they have the lines of a few vectors, and lines that lie a power of two apart meet in few places of the cache. Each
    sum by itself reads rows in order (schedule/blocking/in_order.py), which recurrences and contractions do or do not by rules of their own."""
    tensor = tensors[name]
    if not is_known(tensor.shape) or len(tensor.shape) < 2 or not any(p.equation.reduced for p in touching):
        return True
    if any(p.heavy or p.serial - set(p.equation.reduced) for p in touching):
        return True
    p, dimensions = next((p, d) for p in touching for accessed, d in p.accesses if accessed == name)
    sliced = [i is not None and outer.get((p.result, i)) in shared for i in dimensions]
    extents = [extent.constant for extent in tensor.shape]
    half, size = cache_bytes // 2, tensor.dtype.itemsize
    whole = prod(extent for extent, cut in zip(extents[:-1], sliced, strict=False) if not cut)
    if not sliced[-1] or size * extents[-1] * whole <= half:
        return True
    row = size * extents[-1]
    return whole * max(_STRIP, min(row & -row, _WAY)) <= half


def _finished(name: str, profiles: Sequence[Profile]) -> list[Profile]:
    """The contractions, apart from one that makes it itself, whose sums elementwise equations finish as this tensor: with a bias, an activation, zeros around it."""
    found: list[Profile] = []
    pending, seen = [name], {name}
    while pending:
        made = pending.pop()
        for p in profiles:
            if p.write[0] == made and p.heavy and made != name:
                found.append(p)
            elif p.write[0] == made and not p.equation.reduced:
                pending += p.touched - seen
                seen |= p.touched
    return found


def _shared_classes(
    name: str, touching: Sequence[Profile], outer: dict[tuple[str, str], tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """The outer classes along which every access of the tensor moves, in the same dimension and in equal steps."""
    common: set[tuple[int, int, tuple[str, str]]] | None = None
    for p in touching:
        for (accessed, dimensions), steps in p.distinct:
            if accessed == name:
                classes = {
                    (d, step, outer[p.result, i])
                    for d, (i, step) in enumerate(zip(dimensions, steps, strict=True))
                    if i is not None and (p.result, i) in outer
                }
                common = classes if common is None else common & classes
    return frozenset(c for _, _, c in common or ())


@dataclass(frozen=True, slots=True)
class _Slices:
    """A tensor that the ops of a candidate would go along slice by slice.

    shared: the classes along which they do. outer: per (equation, index) its class. moved: bytes that need not travel then, at most.
    """

    name: str
    shared: frozenset[tuple[str, str]]
    outer: dict[tuple[str, str], tuple[str, str]]
    tensors: dict[str, Tensor]
    cache_bytes: int
    moved: int

    def suit(self, p: Profile) -> bool:
        """True unless a contraction, run slice by slice, would have to fetch its other operands again and again, and that costs more than the bytes that need not move."""
        if not p.heavy:
            return True
        left = [i for i in p.extents if i not in p.equation.reduced and p.extents[i] > 1]
        if all(self.class_of(p, i) in self.shared for i in left):
            return True
        size = estimated_bytes(self.tensors[self.name])
        if size <= self.cache_bytes // 2:
            return False  # it stays in cache anyway, and a contraction by itself is tiled better
        if self.is_heavy_inside(p):
            return self.are_products(p)
        streamed = 0
        for operand, dimensions in dict.fromkeys(p.accesses):
            if operand not in (self.name, p.result):
                cut = self.cuts(p, dimensions, self.shared)
                streamed += estimated_bytes(self.tensors[operand]) // max(cut, 1)
        if streamed <= self.cache_bytes // _L1_SHARE:
            return True
        near = streamed <= _STREAMED * self.cache_bytes or size >= _IMMENSE
        far = size > _STREAMED * self.cache_bytes
        return near and tiles_worth([p]) <= (self.moved if far else self.moved // _NEARER)

    def suit_maker(self, p: Profile) -> bool:
        """Whether the slices suit a contraction that `_finished` found. Where they leave several of its dimensions whole, rows and columns of an image, it stands alone with these as one, in tiles that do not end with each
        row, which it cannot do beside what reads windows of them: measured, it takes twice as long (docs/performance/networks.md)."""
        whole = [
            i
            for i, n in p.extents.items()
            if i not in p.equation.reduced and n > 1 and self.class_of(p, i) not in self.shared
        ]
        far = estimated_bytes(self.tensors[self.name]) > _STREAMED * self.cache_bytes
        return len(whole) < 2 or _TILES_SHARE * tiles_worth([p]) <= (self.moved if far else self.moved // _NEARER)

    def is_heavy_inside(self, p: Profile) -> bool:
        """Whether the contraction is one within each slice of rows too, of operands that no L1 holds: then it wants tiles and panels there, which only those of a region of its own get."""
        places = [i for accessed, dimensions in p.accesses if accessed == self.name for i in dimensions[:-1]]
        rows = {c for i in places if (c := self.class_of(p, i)) in self.shared}
        inside = prod(n for i, n in p.extents.items() if self.class_of(p, i) not in rows)
        touched = 0
        size = 0
        for operand, dimensions in dict.fromkeys(p.accesses):
            tensor = self.tensors[operand]
            cut = max(self.cuts(p, dimensions, rows), 1)
            touched += estimated_bytes(tensor) // tensor.dtype.itemsize // cut
            size += estimated_bytes(tensor) // cut
        return inside >= HEAVY * touched and size > self.cache_bytes // _L1_SHARE

    def are_products(self, p: Profile) -> bool:
        """Whether the contraction makes the tensor in slices along its first dimension that the cache holds, each a contraction in blocks and panels (schedule/ways/slices.py), and packing its other operands, again for
        each of them where sums are long, takes less time than the bytes that need not move. Not where rows of a slice are shared, too: blocks of rows need no panels again."""
        places = next(dimensions for accessed, dimensions in p.accesses if accessed == self.name)
        classes = [self.class_of(p, i) for i in places]
        if p.write[0] != self.name or len(classes) < 3 or not is_known(self.tensors[self.name].shape):
            return False
        if classes[0] not in self.shared or classes[1] in self.shared:
            return False
        slices = p.extents[places[0]] if places[0] is not None else 1
        others = {operand for operand, dimensions in p.accesses if operand != self.name and places[0] not in dimensions}
        again = {operand: estimated_bytes(self.tensors[operand]) for operand in others}
        size = estimated_bytes(self.tensors[self.name])
        if slices < _MIN_SLICES or size // slices > self.cache_bytes // 2:
            return False
        if sum(again.values()) > self.cache_bytes // 4:
            return False
        if prod(p.extents[i] for i in p.equation.reduced) * p.equation.result.dtype.itemsize <= _WHOLE:
            return True  # panels of all terms, which are filled once, ahead of the slices (schedule/sweeps/copies_ahead.py)
        packed = sum(again[operand] for operand in others if _row_bytes(self.tensors[operand]) > _PANEL)
        # Measured: packing a byte takes as long as moving four to and from L3, or two to and from memory, beside the sums (docs/performance/networks.md).
        return slices * packed <= self.moved // (2 if size > _STREAMED * self.cache_bytes else 4)

    def class_of(self, p: Profile, index: str | None) -> tuple[str, str] | None:
        return None if index is None else self.outer.get((p.result, index))

    def cuts(self, p: Profile, dimensions: Sequence[str | None], along: Set[tuple[str, str]]) -> int:
        """In how many slices along these classes an operand with these dimensions falls."""
        return prod(p.extents[i] for i in dimensions if i is not None and self.class_of(p, i) in along)


def _row_bytes(tensor: Tensor) -> int:
    """Of the last dimension, for a tensor of known shape."""
    return estimated_bytes(tensor) // max(prod(extent.constant for extent in tensor.shape[:-1]), 1)


def _shares_rows(name: str, profiles: Sequence[Profile], tensors: dict[str, Tensor], cache_bytes: int) -> bool:
    """Whether all that touches the tensor can go through its rows in one loop, some with sums over them of their own, combined afterwards: then nothing that follows
    the rows may need such a sum, and both some rows and a sum fit in the cache."""
    touching = [p for p in profiles if name in p.touched]
    rows = {d[0] for p in touching for accessed, d in p.accesses if accessed == name and len(d) > 1}
    in_steps = any(s[:1] != (1,) for p in touching for (a, d), s in zip(p.accesses, p.steps, strict=True) if a == name)
    if (
        not rows
        or in_steps
        or None in rows
        or any(p.heavy or name in p.gathered or set(p.extents) != set(p.equation.indices) for p in touching)
    ):
        return False
    classes = _classes(profiles)
    roots = {classes[p.result, i] for p in touching for a, d in p.accesses if a == name for i in d[:1] if i is not None}
    if len(roots) != 1:
        return False
    (root,) = roots
    index = {p.result: [i for i in p.extents if classes[p.result, i] == root] for p in profiles}
    sums = [p for p in profiles if any(i in p.serial for i in index[p.result])]
    follows = [p for p in touching if p not in sums]
    if not sums or not follows or any(len(own) > 1 for own in index.values()):
        return False
    row = estimated_bytes(tensors[name]) // max(follows[0].extents[index[follows[0].result][0]], 1)
    # Whether what is symbolic fits is asked at each call.
    known = [p for p in sums if is_known(tensors[p.write[0]].shape)]
    if is_known(tensors[name].shape) and row > cache_bytes // 8:
        return False
    if any(p.written_bytes(tensors[p.write[0]]) > cache_bytes // 4 for p in known):
        return False
    return not _needs_finished_sums(profiles, sums, index)


def _needs_finished_sums(
    profiles: Sequence[Profile], sums: Sequence[Profile], index: Mapping[str, Sequence[str]]
) -> bool:
    """Whether an equation that follows the rows needs what is there only behind the loop over them: a sum, or what is made of one.

    Args:
        index: by an equation's result its indices along the rows, none for what does not follow them.
    """
    late: list[Profile] = []
    for n, p in enumerate(profiles):
        waits = any(_touches(q, p) for q in late)
        if waits and index[p.result]:
            return True
        if waits or p in sums or (not index[p.result] and any(_touches(q, p) for q in profiles[:n] if index[q.result])):
            late.append(p)
    return False


def _touches(earlier: Profile, later: Profile) -> bool:
    """Whether the later equation has to wait for the earlier one."""
    return earlier.write[0] in later.touched or later.write[0] in earlier.touched
