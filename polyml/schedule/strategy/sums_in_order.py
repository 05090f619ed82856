"""Sums over a large operand that is read in the order of memory, and added to sums in a nearer cache.

`y[d, a] = sum[b, c](x[b, c, d, a] * w[d, b])` with a few d and a at a time in registers reads pieces of x that lie a row apart, which no hardware prefetcher follows. Here a few terms of a whole row of sums go together:

    d, a: y[d, a] = 0;  b, blocks of c: d, a: c: y[d, a] += x[b, c, d, a] * w[d, b]

Each block is read from end to end. schedule/blocking/in_order.py does so for sums with one index, whose terms and sums are matrices.

Measured (Zen 4, 13 to 21 MB of f32, rows of 0.5 to 4 thousand sums): strips of 4 to 11 lines 7 to 36 GB/s, in order 44, a plain sum of all elements 45 to 70.
"""

from __future__ import annotations

from math import prod

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.choices import NestChoice
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms import Loop, distribute_band, loops_of, merge_with_child, nest_loops, tile_loop
from polyml.schedule.tree import Kind, kind_of, members, statements_below

__all__ = ["SumsInOrder", "build_sums_in_order", "plan_sums_in_order", "rows_in_order"]

TERMS = 8
"""Terms that are added to a sum while it is in a register."""

VECTORS = 4
"""Sums that are in registers together: as many rows of the operand, each a few lines long, are read side by side."""

SHARED_BYTES = 1024
"""Of a row that a thread takes, at least: memory delivers shorter pieces to two threads no faster than whole rows to one."""

FAR = 2
"""Operands so many times as large as L2 wait for what is further away: smaller ones are read in pieces as fast."""

LAST_LEVEL = 16
"""The last level of caches holds so many times what a core keeps close."""

MANY = 2
"""Rows of so many register tiles are too long to stay in registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsInOrder:
    """Indices of the sum, in the order of the operand's memory: those outside of all terms of a block, the one that terms are blocks of (`size`), and those of a row of sums, along the last of which lanes run (`vectors` at once; `jam` of the one before). shared: the index that threads share, in pieces of so many iterations."""

    outer: tuple[str, ...]
    term: str
    size: int
    row: tuple[str, ...]
    vectors: int
    jam: int
    shared: tuple[str, int] | None = None


def plan_sums_in_order(band: Band, lanes: int, facts: Facts, *, parallel: bool) -> SumsInOrder | None:
    """The order of such sums; None where the band is none, or what is at hand stays in registers."""
    model, target = facts.models[band.core], facts.target
    index = band.indices[lanes][band.core]
    if facts.scop.sizes or not facts.options.relax_reductions or not _is_plain_sum(band, facts):
        return None
    found = _operand(model, facts)
    if found is None:
        return None
    operand, order = found
    out = next(a for a in model.accesses if a.write)
    terms = [i for i in order if out.stride(i) == 0]
    if not terms or order[-1] != index or operand.stride(index) != 1 or out.stride(index) != 1:
        return None
    at = order.index(terms[-1])
    row = order[at + 1 :]
    if not _is_far(model, operand, facts) and _is_shared(model, index, [i for i in order[:at] if out.stride(i) != 0]):
        return None
    step = facts.lanes(band.core)
    elements = prod(model.extents[i] for i in row)
    between = [i for i in order[order.index(terms[0]) : at] if out.stride(i) != 0]
    sums = elements * prod(model.extents[i] for i in between)
    if elements < MANY * VECTORS * step:
        return None
    if sums * model.itemsize > target.l2_bytes // 2 or prod(model.extents[i] for i in terms) < 2 * TERMS:
        return None
    # Lanes that read panels go along one at a time.
    vectors = facts.panel_vectors(band.core, index) or min(VECTORS, -(-model.extents[index] // step))
    shared = _shared(order, at, model, out, vectors * step, facts) if parallel else None
    if parallel and shared is None:
        return None
    beside = model.extents[row[-2]] if len(row) > 1 else 1
    count = -(-beside // (1 if vectors >= VECTORS else VECTORS))
    extent = model.extents[terms[-1]]
    return SumsInOrder(
        outer=tuple(order[:at]),
        term=terms[-1],
        size=extent if extent < 2 * TERMS - TERMS // 2 else TERMS,
        row=tuple(row),
        vectors=vectors,
        jam=-(-beside // count),
        shared=shared,
    )


def rows_in_order(band: Band, facts: Facts) -> list[int]:
    """The members of a band around sums along rows of such an operand, as the rows follow each other in its memory; of other bands, as they are."""
    all_members = list(range(len(band.loops)))
    model = facts.models[band.core]
    if facts.scop.sizes or not model.is_update or len(model.extents) == len(band.own(band.core)):
        return all_members
    found = _operand(model, facts)
    if found is None:
        return all_members
    _, order = found
    inside = [i for i in order if i not in band.own(band.core)]
    if (
        order[-len(inside) :] != inside
        or prod(model.extents[i] for i in inside) * model.itemsize < facts.target.line_bytes
    ):
        return all_members
    return sorted(all_members, key=lambda k: order.index(band.indices[k][band.core]))


def _shared(
    order: list[str], at: int, model: StatementModel, out: AccessModel, width: int, facts: Facts
) -> tuple[str, int] | None:
    """The outermost index if sums have it, else a row's outermost one, each thread having pieces of rows; None where they are too short for that. width: of the lanes' loop."""
    threads = facts.options.threads
    first, row = order[0], order[at + 1 :]
    if at and out.stride(first) != 0 and model.extents[first] >= threads:
        return first, 1
    piece = -(-model.extents[row[0]] // threads)
    if len(row) == 1:
        piece = -(-piece // width) * width
    long = piece * prod(model.extents[i] for i in row[1:]) * model.itemsize >= SHARED_BYTES
    return (row[0], piece) if long and piece < model.extents[row[0]] else None


def _is_far(model: StatementModel, operand: AccessModel, facts: Facts) -> bool:
    """Whether the last level of caches does not keep the operand from call to call."""
    return model.instances * facts.scop.arrays[operand.array].dtype.itemsize > LAST_LEVEL * facts.target.l2_bytes


def _is_shared(model: StatementModel, lanes: str, outer: list[str]) -> bool:
    """Whether sums for several values of an outer index would read the same vectors of a smaller operand, which a register tile loads once: from a cache, that is what loads cost."""
    others = [a for a in model.accesses if not a.write and a.stride(lanes) != 0]
    return any(a.stride(i) == 0 and model.extents[i] > 1 for a in others for i in outer)


def _is_plain_sum(band: Band, facts: Facts) -> bool:
    """Whether there is but a sum, into one register each, and what begins it, with loops of its own inside."""
    model = facts.models[band.core]
    inside = band.node.child(0)
    if not model.is_update or model.registers > 1 or model.recurrences or model.overlapping or any(band.above.values()):
        return False
    if kind_of(inside) != Kind.sequence or inside.n_children() != 2 or len(band.statements) != 2:
        return False
    begin = statements_below(inside.child(0).child(0))
    return len(begin) == 1 and facts.scop.statements[begin[0]].kind == "init" and begin[0] != band.core


def _operand(model: StatementModel, facts: Facts) -> tuple[AccessModel, list[str]] | None:
    """The operand that no private cache holds, of which each element is read once, and its indices in the order of its memory; None where there is none, or others are large and lie in another order."""
    reads = [a for a in model.accesses if not a.write]
    strides = [[access.stride(i) for i in model.extents] for access in reads]
    large = [access for access, found in zip(reads, strides, strict=True) if 0 not in found]
    if any(None in found for found in strides) or not large:
        return None

    def order(access: AccessModel) -> list[str]:
        return sorted(model.extents, key=lambda i: -abs(access.stride(i) or 0))

    def size(access: AccessModel) -> int:
        count = prod(n for i, n in model.extents.items() if access.stride(i) != 0)
        return count * facts.scop.arrays[access.array].dtype.itemsize

    others = [access for access, found in zip(reads, strides, strict=True) if 0 in found]
    l2 = facts.target.l2_bytes
    if any(size(a) <= FAR * l2 for a in large) or any(2 * size(a) > l2 for a in others):
        return None
    first = order(large[0])
    return (large[0], first) if all(order(a) == first for a in large) else None


def build_sums_in_order(band: Band, plan: SumsInOrder, facts: Facts) -> tuple[isl.ScheduleNode, NestChoice]:
    """The nest in the band's place, and what was decided."""
    begin = {own: member for member, own in enumerate(own[band.core] for own in band.indices)}
    sequence = distribute_band(band.node, ((0,), (1,)))
    first = sequence.child(0).child(0)
    loops = loops_of(first)
    free = [begin[i] for i in (*plan.outer, *plan.row) if i in begin]
    ordered = [loops[k] for k in free]
    ordered[-1] = ordered[-1].marked(f"vector:{plan.vectors}")
    sequence = nest_loops(first, ordered).parent().parent()
    node = sequence.child(1).child(0)
    while kind_of(node.child(0)) == Kind.band:
        node = merge_with_child(node)
    own: dict[str, Loop] = {}
    for member, loop in zip(members(node, facts.scop), loops_of(node), strict=True):
        index = member.index(band.core)
        assert index is not None, "internal: a loop of a sum that is no index of it"
        own[index] = loop
    made = [own[i] for i in plan.outer]
    if plan.shared is not None:
        index, piece = plan.shared
        shared = tile_loop(own[index], piece) if piece > 1 else made.pop(0)
        made.insert(0, shared.marked("parallel"))
    if plan.size < facts.models[band.core].extents[plan.term]:
        made.append(tile_loop(own[plan.term], plan.size))
    made += [own[i] for i in plan.row[:-1]]
    if plan.jam > 1:
        made[-1] = made[-1].marked(f"jam:{plan.jam}")
    made += [own[plan.row[-1]].marked(f"vector:{plan.vectors}"), own[plan.term]]
    node = nest_loops(node, made).parent().parent()
    choice = NestChoice(
        statements=band.statements,
        order=(*plan.outer, *plan.row[:-1]),
        parallel=plan.shared[0] if plan.shared is not None else None,
        tiles=((plan.term, plan.size),),
        jam=(plan.row[-2], plan.jam) if plan.jam > 1 else None,
        vector=(plan.row[-1], plan.vectors),
    )
    return node, choice
