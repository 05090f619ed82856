"""Products whose lanes run along the reduction (both operands contiguous along it): several elements of the result side by side, each with a register of its own.

One element at a time loads two vectors for each operation, and reads an operand anew for every row of the other. A tile of r x c elements loads r + c vectors for r * c
operations, and reads each operand once per tile of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod

from polyml.expressions import Apply, Expr, reads_of, walk
from polyml.operation_weights import weight_of
from polyml.records import dataclass
from polyml.schedule.cost import SHUFFLED, StatementModel
from polyml.schedule.strategy.bands import Band, Place, has_inner_loops, take_band
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.strategy.lanes import carries_only_reductions, lane_cost
from polyml.schedule.tree import Kind, kind_of
from polyml.sets.affine import Affine

__all__ = ["SideBySide", "plan_side_by_side"]

MOST = 8
"""Elements along one index, at most: streams of memory that prefetchers follow."""

CHEAP = 2
"""Operations of an element, at most: the sum's own, and a product with a weight. More of them hide what is loaded."""

GAIN = 0.83
"""Cost per operation, relative to that of single elements, below which tiles are worth their code."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """factors: elements side by side, per member of the band. order: the members as loops, outermost first: the one that moves along the larger operand is outside, so that memory is read once. rows: what lies side by side are rows of several sweeps (short_rows.py)."""

    factors: Mapping[int, int]
    order: tuple[int, ...]
    rows: bool = False


def plan_side_by_side(band: Band, facts: Facts, place: Place) -> SideBySide | None:
    """The tile for a band of parallel loops around one cheap reduction with lanes along it; None where there is something else inside, or nothing to gain."""
    model = facts.models[band.core]
    inside = [name for name in band.statements if has_inner_loops(name, band, facts)]
    if not facts.scop.statements[band.core].domain.is_box():
        return None
    if inside != [band.core] or not model.is_update or facts.scop.sizes or not facts.options.relax_reductions:
        return None
    inner = _reduction(band, facts, place)
    if inner is None:
        return None
    usable = [k for k in range(len(inner.loops)) if carries_only_reductions(inner, k, facts)]
    if not usable:
        return None
    lanes = inner.indices[min(usable, key=lambda k: (lane_cost(inner, k, facts), -k))][band.core]
    reads = [a for a in model.accesses if not a.write]
    if any(a.lane_stride(lanes, facts.lanes(band.core)) is None for a in reads):
        return None
    moving = {
        k: own[band.core] for k, own in enumerate(band.indices) if any(a.stride(own[band.core]) == 0 for a in reads)
    }
    shared = _shared(facts.scop.statements[band.core].value, moving)
    if model.operations - sum(weight for weight, _ in shared) > CHEAP:
        return None
    factors = _best(moving, shared, band, lanes, facts)
    if factors is None:
        return None
    size = {
        k: max((_bytes(model, a.strides) for a in reads if a.stride(own[band.core]) != 0), default=0)
        for k, own in enumerate(band.indices)
    }
    return SideBySide(factors, tuple(sorted(range(len(band.loops)), key=lambda k: (k in factors, -size[k]))))


def _reduction(band: Band, facts: Facts, place: Place) -> Band | None:
    """The core's own band, right inside."""
    node = band.node.child(0)
    if kind_of(node) == Kind.sequence:
        own = [node.child(k).child(0) for k in range(node.n_children())]
        found = [child for child in own if kind_of(child) == Kind.band]
        if len(found) != 1:
            return None
        (node,) = found
    inner = take_band(node, facts, place) if kind_of(node) == Kind.band else None
    return inner if inner is not None and kind_of(inner.node.child(0)) == Kind.leaf else None


def _shared(value: Expr, moving: Mapping[int, str]) -> list[tuple[float, frozenset[int]]]:
    """The operations whose operands some member does not move: their weights, and the members that do. A weight times its scale, say, is one number for all rows of what it is multiplied by."""
    found: list[tuple[float, frozenset[int]]] = []
    for node in dict.fromkeys(node for node in walk(value) if isinstance(node, Apply)):
        places = [s for read in reads_of(node) for s in read.subscripts if isinstance(s, Affine)]
        met = frozenset[str]().union(*(place.variables() for place in places))
        members = frozenset(k for k, index in moving.items() if index in met)
        if len(members) < len(moving):
            found.append((weight_of(node), members))
    return found


def _best(
    moving: Mapping[int, str],
    shared: Sequence[tuple[float, frozenset[int]]],
    band: Band,
    lanes: str,
    facts: Facts,
) -> dict[int, int] | None:
    """Elements per member with the fewest cycles per operation. shared: operations that some of them have in common."""
    model = facts.models[band.core]
    reads = [a for a in model.accesses if not a.write and a.stride(lanes) != 0]
    if not reads:
        return None  # the same value in all lanes: there is no load to share
    loads = [_loads(a.stride(lanes), facts.lanes(band.core)) for a in reads]
    members = [k for k in moving if band.extents[k] > 1]
    best, least = None, GAIN * _cycles(model.operations, 1, sum(loads))
    for counts in _counts([min(MOST, band.extents[k]) for k in members], facts.target.vector_registers - 3):
        rows = prod(counts)
        chosen = dict(zip(members, counts, strict=True))
        vectors = [prod(c for k, c in chosen.items() if a.stride(moving[k]) != 0) for a in reads]
        if rows == 1 or rows + min(vectors) + 2 > facts.target.vector_registers:
            continue
        waste = prod(ceil(band.extents[k] / c) * c / band.extents[k] for k, c in chosen.items())
        saved = sum(weight * (1 - prod(chosen.get(k, 1) for k in own) / rows) for weight, own in shared)
        loaded = sum(count * each for count, each in zip(vectors, loads, strict=True))
        cost = waste * _cycles(model.operations - saved, rows, loaded)
        if cost < 0.98 * least:
            best, least = {k: c for k, c in chosen.items() if c > 1}, cost
    return best


def _counts(limits: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Counts from 1 to each of the limits, whose product is `most` at most; in lexicographic order."""
    if not limits:
        yield ()
        return
    for count in range(1, min(limits[0], most) + 1):
        for others in _counts(limits[1:], most // count):
            yield (count, *others)


def _loads(stride: int | None, lanes: int) -> float:
    """Of one vector whose neighbours are so many elements apart: what a few vectors are shuffled out of, or an element at a time."""
    gap = abs(stride or lanes)
    return 1.0 if gap == 1 else min(2.0 * gap - 1 if gap <= SHUFFLED else lanes, float(lanes))


def _cycles(operations: float, rows: int, loads: float) -> float:
    """Per element, of so many operations: two of them and two loads a cycle; vectors that hide cost something, too, since they come from L2 or from memory."""
    return (max(rows * max(operations, 1.0) / 2, loads / 2) + 0.5 * loads) / rows


def _bytes(model: StatementModel, strides: Mapping[str, int | None]) -> int:
    return prod(extent for index, extent in model.extents.items() if strides.get(index, 0) != 0)
