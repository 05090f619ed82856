"""Which loop the vector lanes should run along, by the strides of the accesses."""

from __future__ import annotations

from collections.abc import Iterable
from math import log2

import islpy as isl

from polyml.expressions import Subscript, reads_of
from polyml.schedule.scan_rows import row_scan
from polyml.schedule.strategy.bands import Band, jammed_above
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.tree import Kind, kind_of, mark_name, nodes, statements_below
from polyml.sets.affine import Affine

__all__ = [
    "carries_only_reductions",
    "cost_inside",
    "lane_cost",
    "lanes_after_all",
    "lanes_here",
    "plain_vectors",
    "reduction_vectors",
    "scalar_cost",
]

_SCAN_START = 32
"""Instructions ahead of a row's first whole vector, and behind its last."""


def lanes_here(band: Band, facts: Facts) -> int | None:
    """The member that lanes should run along, or None when loops further inside serve them better."""
    costs = [lane_cost(band, k, facts) for k in range(len(band.loops))]
    # The innermost of equals.
    best = min(range(len(costs)), key=lambda k: (costs[k], -k))
    inside = sum(cost_inside(name, band, facts) for name in band.statements)
    return best if costs[best] <= inside else None


def lanes_after_all(band: Band, decided: isl.ScheduleNode, facts: Facts) -> int | None:
    """The member of a parallel band for lanes, where below it, as decided, nothing gave lanes to the statement that does most of the work, and that costs more.

    lanes_here counts the best loop inside for each statement alone; a loop that several statements share, and that only some of them could run lanes along, may have none in the end.
    """
    if any(_scan_cost(name, band, facts) is not None for name in band.statements):
        return None
    marks = (node for node in nodes(decided) if kind_of(node) == Kind.mark and mark_name(node).startswith("vector"))
    if any(band.core in statements_below(mark) for mark in marks):
        return None
    best = min(range(len(band.loops)), key=lambda k: (lane_cost(band, k, facts), -k))
    return best if lane_cost(band, best, facts) < scalar_cost(band, facts) else None


def lane_cost(band: Band, k: int, facts: Facts) -> float:
    """Vector instructions of all statements when their lanes run along member k."""
    models = (facts.models[name] for name in band.statements)
    return sum(model.instances * model.lane_cost(band.indices[k][model.name], facts.target) for model in models)


def scalar_cost(band: Band, facts: Facts) -> float:
    """Instructions of all statements without lanes."""
    models = (facts.models[name] for name in band.statements)
    return sum(model.instances * model.scalar_cost() for model in models)


def cost_inside(name: str, band: Band, facts: Facts) -> float:
    """The cost of one statement when its lanes run along the best loop below the band."""
    model = facts.models[name]
    outside = band.own(name) | band.above[name]
    inside = [index for index in model.extents if index not in outside and _may_run_lanes(name, index, facts)]
    costs = [model.lane_cost(index, facts.target) for index in inside]
    scan = _scan_cost(name, band, facts)
    return model.instances * min([*costs, *([scan] if scan is not None else [])], default=model.scalar_cost())


def _scan_cost(name: str, band: Band, facts: Facts) -> float | None:
    """Vector instructions per element where the one loop below the band is a scan (codegen/passes/sums/scans.py): a shuffle and an operation for each time that the lanes halve, and the start of
    each row. It beats rows that are transposed (16 lanes: four shuffles for each vector that is read or written) in cache, and twofold in memory, where these are 32 streams a page apart."""
    model, scan = facts.models[name], row_scan(facts.scop.statements[name], facts.scop)
    if scan is None or not (scan.exact or facts.options.relax_reductions):
        return None
    if set(model.extents) - band.own(name) - band.above[name] != {scan.index}:
        return None
    for node in nodes(band.node.child(0)):
        if kind_of(node) == Kind.band and name in (below := statements_below(node)) and len(below) > 1:
            return None
    lanes = facts.target.lanes(model.itemsize)
    start = _SCAN_START / model.extents[scan.index]
    return model.lane_cost(scan.index, facts.target) + (log2(lanes) + 2) / lanes + start


def carries_only_reductions(band: Band, k: int, facts: Facts) -> bool:
    """Whether member k carries nothing but reductions into elements that do not depend on it, so that lanes can be private."""
    own = band.indices[k]
    positions = {name: facts.scop.statements[name].indices.index(index) for name, index in own.items()}
    if facts.matcher.carries_nothing(positions):
        return all(_may_run_lanes(n, i, facts) for n, i in own.items())
    if not all(_may_be_private(n, i, facts) for n, i in own.items()):
        return False
    return _is_carried_outside(band, k, facts.matcher.moving(positions))


def _is_carried_outside(band: Band, k: int, dependences: Iterable[isl.UnionMap]) -> bool:
    """Whether all that crosses iterations of member k, but for reductions, does so from one iteration of the loops around the band to another. dependences: those that may cross."""
    instances = band.node.get_domain()
    around = band.node.get_prefix_schedule_multi_union_pw_aff()
    row = isl.MultiUnionPwAff.from_union_pw_aff(band.loops[k].row)
    for dependence in dependences:
        inside = dependence.intersect_domain(instances).intersect_range(instances).eq_at_multi_union_pw_aff(around)
        for crossing in (isl.UnionMap.lex_lt_at_multi_union_pw_aff, isl.UnionMap.lex_gt_at_multi_union_pw_aff):
            if not crossing(inside, row).is_empty():
                return False
    return True


def _may_run_lanes(name: str, index: str, facts: Facts) -> bool:
    position = facts.scop.statements[name].indices.index(index)
    return not facts.matcher.is_recurrence(name, position) and _may_be_private(name, index, facts)


def _may_be_private(name: str, index: str, facts: Facts) -> bool:
    """Whether a reduction along the index, if there is one, is into one element for all of it."""
    statement = facts.scop.statements[name]
    if not facts.matcher.is_reduction(name, statement.indices.index(index)):
        return True
    targets = [statement.target] if statement.argument is None else [statement.target, statement.argument]
    strides = [s.stride(index) if isinstance(s, Affine) else None for t in targets for s in t.subscripts]
    return facts.options.relax_reductions and all(stride == 0 for stride in strides)


def plain_vectors(band: Band, facts: Facts) -> int:
    """Vectors at once in a loop without reductions: two hide latencies where the body is short. One where neighbours in L1 are shifted out of loaded vectors (codegen/llvm/memory/neighbours.py)."""
    if any(_shifts_neighbours(name, facts) for name in band.statements):
        return 1
    return 2 if _heaviest(band, facts) < 12 and len(band.statements) < 4 else 1


def _shifts_neighbours(name: str, facts: Facts) -> bool:
    """Whether the statement reads a short array at places less than a vector apart, in vectors as long as lines."""
    if facts.target.vector_bytes < facts.target.line_bytes:
        return False
    places: dict[tuple[str, tuple[Subscript, ...]], set[int]] = {}
    for read in reads_of(facts.scop.statements[name].value):
        shape = facts.scop.arrays[read.tensor].shape
        if len(shape) != 1 or not shape[0].is_constant:
            continue
        (place,) = read.subscripts
        if isinstance(place, Affine) and shape[0].constant * read.dtype.itemsize <= facts.target.l1_bytes // 3:
            places.setdefault((read.tensor, (place - place.constant,)), set()).add(place.constant)
    return any(len(found) > 1 and max(found) - min(found) < facts.lanes(name) for found in places.values())


def reduction_vectors(band: Band, k: int, facts: Facts) -> int:
    """Vectors of private accumulators: enough to hide the latency of the operation, fewer where the body hides it, or what runs side by side."""
    heaviest = _heaviest(band, facts)
    wanted = 4 if heaviest < 4 else 2 if heaviest < 20 else 1
    wanted = min(wanted, max(1, 2 * wanted // jammed_above(band.node)))
    return max(1, min(wanted, -(-band.extents[k] // facts.lanes(band.core))))


def _heaviest(band: Band, facts: Facts) -> float:
    return max(facts.models[name].operations for name in band.statements)
