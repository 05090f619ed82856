"""Blocks of a recurrence over rows and, within a row, over columns, where every element that is finished goes into sums of all columns behind.

Optimal parenthesizations and foldings, M[i, j] (+)= T[i, k] (x) T[k + 1, j] over i < k < j, finish T[i, j] from M[i, j] row by row upwards and from left to right. Each row by itself
reads all rows below it. Of a block of rows and a block of columns k, what goes into columns behind the block needs nothing that is not finished once these are: it is a product of blocks, in
register tiles. What is left, sums over elements of the block itself, stays with the elements that need it.

Rewrite: band[i] (band[j] (others; U: k = j)) -> band[i_tile] (band[j_tile] (
    band[j] (band[i] (U where it needs other elements of the block of rows; others); U into columns of the block, k = j);
    band[i] (band[j] (band[k] (U into the columns behind)))))

Source: Palkowski and Bielecki, "Parallel tiled Nussinov RNA folding loop nest generated using both dependence graph transitive closure and loop skewing" (BMC Bioinformatics 2017), for
tiles of this recurrence; the split by what an instance needs is the one of schedule/pivots.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.cost import register_tile
from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms import Loop, insert_loops, insert_sequence, tile_loop
from polyml.schedule.tree import Kind, kind_of, members, statements_below
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine

__all__ = ["SweepPlan", "build_sweep_blocks", "plan_sweep_blocks"]

ROWS, COLUMNS = 16, 16
"""Rows and columns of a block: as many as keep memory (rows) and the sums' loads and stores (columns) from deciding, few enough for what is left over to be little."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """core: the sum. rows: per statement the index of the outer loop. columns: of the inner loop, of the core the one it sums over; lanes: the core's index where its result is.
    others: the instances of the other statements, in the order in which they run. early: the core's instances that need elements of their own block of rows. jam, vectors: the register tile."""

    core: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    lanes: str
    others: tuple[isl.UnionSet, ...]
    early: isl.Set
    jam: int
    vectors: int

    def __str__(self) -> str:
        return f"blocks of {ROWS} {self.rows[self.core]} and {COLUMNS} {self.columns[self.core]}, {self.core} behind them in tiles of {self.jam} x {self.vectors} vectors"


def plan_sweep_blocks(band: Band, facts: Facts) -> SweepPlan | None:
    """The blocks for a sequential loop over rows; None when what is below it is something else, or stays in cache."""
    if len(band.loops) != 1 or facts.scop.sizes or not facts.options.relax_reductions or any(band.above.values()):
        return None
    inner = band.node.child(0)
    if kind_of(inner) != Kind.band or inner.band_n_member() != 1 or kind_of(inner.child(0)) != Kind.sequence:
        return None
    (member,) = members(inner, facts.scop)
    columns = {name: index for name in band.statements if (index := member.index(name)) is not None}
    core, (rows,) = band.core, band.indices
    if len(columns) < len(band.statements) or facts.scop.statements[core].kind != "update":
        return None
    rest = [i for i in facts.scop.statements[core].indices if i not in (rows[core], columns[core])]
    target = [t.variables() if isinstance(t, Affine) else set() for t in facts.scop.statements[core].target.subscripts]
    others = _others(inner.child(0), core)
    if len(rest) != 1 or others is None or any(columns[core] in t for t in target):
        return None
    model = facts.models[core]
    if (
        not any(a.write and a.stride(rest[0]) == 1 for a in model.accesses)
        or _touched(band, facts) <= facts.target.l2_bytes
    ):
        return None
    early = _early(facts, core, rows, columns)
    tile = register_tile(model, rows[core], rest[0], facts.target, max_rows=ROWS // 2)
    jam = max(size for size in (1, 2, 4, 8) if size <= tile.rows)
    return SweepPlan(core, dict(rows), columns, rest[0], others, early, jam, min(tile.vectors, 2))


def _others(sequence: isl.ScheduleNode, core: str) -> tuple[isl.UnionSet, ...] | None:
    """The instances of each child of the sequence; None unless all are single statements, without loops but for the core, which is the last and has one."""
    found: list[isl.UnionSet] = []
    for k in range(sequence.n_children()):
        child = sequence.child(k)
        names = statements_below(child.child(0))
        below = child.child(0)
        if len(names) != 1 or (names == (core,)) != (k == sequence.n_children() - 1):
            return None
        if names == (core,):
            return tuple(found) if kind_of(below) == Kind.band and found else None
        if kind_of(below) != Kind.leaf:
            return None
        found.append(child.filter_get_filter())
    return None


def _touched(band: Band, facts: Facts) -> int:
    """Bytes of the largest array that the core reads."""
    scop = facts.scop
    names = {access.array for access in facts.models[band.core].accesses if not access.write}
    return max(
        facts.models[band.core].itemsize * prod(e.constant for e in scop.arrays[n].shape if e.is_constant)
        for n in names
    )


def _early(facts: Facts, core: str, rows: Mapping[str, str], columns: Mapping[str, str]) -> isl.Set:
    """The core's instances that need an element of their own block of rows, of a later column than the one they stand at."""
    statements = facts.scop.statements
    total = facts.packed.dependences.flow.get_map_list()
    found = isl.Set.empty(statements[core].domain.get_space())
    for m in (total.get_at(k) for k in range(total.n_map())):
        name = m.get_tuple_name(isl.dim_type.in_)
        if m.get_tuple_name(isl.dim_type.out) != core or name == core or name not in rows:
            continue
        source = [f"s{d}" for d in range(len(statements[name].indices))]
        sink = [f"t{d}" for d in range(len(statements[core].indices))]
        at = [own[names.index(index[n])] for own, names, index, n in (
            (source, statements[name].indices, rows, name), (sink, statements[core].indices, rows, core),
            (source, statements[name].indices, columns, name), (sink, statements[core].indices, columns, core),
        )]  # fmt: skip
        text = f"floor({at[0]}/{ROWS}) = floor({at[1]}/{ROWS}) and {at[2]} > {at[3]}"
        same = isl.Map(f"{{ {name}[{', '.join(source)}] -> {core}[{', '.join(sink)}] : {text} }}")
        found = found.union(m.intersect(same).range())
    return found.coalesce()


def build_sweep_blocks(band: Band, plan: SweepPlan, facts: Facts) -> isl.ScheduleNode:
    """The loops over blocks in the band's place, and all that is below. *Returns* the outermost."""
    scop, core = facts.scop, plan.core
    domain = scop.statements[core].domain
    head = f"{core}[{', '.join(scop.statements[core].indices)}]"
    k, j = plan.columns[core], plan.lanes
    late = domain.subtract(plan.early)
    behind = late.intersect(isl.Set(f"{{ {head} : floor({j}/{COLUMNS}) > floor({k}/{COLUMNS}) }}"))
    behind = _whole(behind, scop.statements[core].indices, plan.rows[core], k)
    within = late.subtract(behind)
    elements = plan.others[0]
    for part in plan.others[1:]:
        elements = elements.union(part)
    first = plan.early.to_union_set()
    names = [name for name in band.statements if name != core]
    times = _function(scop, [(name, scop.statements[name].domain, plan.columns[name]) for name in names])
    times = times.union_add(_function(scop, [(core, plan.early, j)])).union_add(_function(scop, [(core, late, k)]))
    node = band.node.cut()
    rows = Loop(_function(scop, [(name, scop.statements[name].domain, plan.rows[name]) for name in band.statements]))
    node = insert_loops(node, [tile_loop(rows, ROWS), tile_loop(Loop(times), COLUMNS)])
    block = insert_sequence(
        node.child(0).child(0), [elements.union(first).union(within.to_union_set()), behind.to_union_set()]
    )
    points = insert_loops(block.child(0).child(0), [Loop(times)])
    points = insert_sequence(points.child(0), [elements.union(first), within.to_union_set()])
    near = insert_loops(points.child(0).child(0), [rows])
    near = insert_sequence(near.child(0), [first, *plan.others])
    steps = Loop(_function(scop, [(core, domain, k)]))
    near = insert_loops(near.child(0).child(0), [steps]).ancestor(3)
    lanes = Loop(_function(scop, [(core, domain, j)]), True)
    own = Loop(_function(scop, [(core, domain, plan.rows[core])]), True)
    pushed = insert_loops(near.ancestor(2).child(1).child(0), [own, lanes.marked("vector:1")])
    block = pushed.ancestor(4).parent()
    far = [own.marked(f"jam:{plan.jam}"), lanes.marked(f"vector:{plan.vectors}"), steps]
    return insert_loops(block.child(1).child(0), far).ancestor(4)


def _whole(instances: isl.Set, indices: Sequence[str], rows: str, columns: str) -> isl.Set:
    """Those in blocks of rows and columns without holes: there each row goes as far as the others, so that rows may be jammed."""
    head = f"S[{', '.join(indices)}]"
    named = instances.set_tuple_name("S")
    pairs = named.apply(isl.Map(f"{{ {head} -> [{rows}, {columns}] }}"))
    ends = [(pairs.dim_min_val(d).to_python(), pairs.dim_max_val(d).to_python()) for d in (0, 1)]
    box = isl.Set(f"{{ [r, c] : {ends[0][0]} <= r <= {ends[0][1]} and {ends[1][0]} <= c <= {ends[1][1]} }}")
    blocks = isl.Map(f"{{ [r, c] -> [floor(r/{ROWS}), floor(c/{COLUMNS})] }}")
    holes = box.subtract(pairs).apply(blocks)
    own = isl.Map(f"{{ {head} -> [floor({rows}/{ROWS}), floor({columns}/{COLUMNS})] }}")
    kept = named.subtract(holes.apply(own.reverse()))
    return kept.set_tuple_name(instances.get_tuple_name()).coalesce()


def _function(scop: Scop, pieces: Sequence[tuple[str, isl.Set, str]]) -> isl.UnionPwAff:
    """One function of the statements' instances in the given sets: an index of each."""
    total: isl.UnionPwAff | None = None
    for name, instances, index in pieces:
        indices = scop.statements[name].indices
        piece = isl.UnionPwAff(f"{{ {name}[{', '.join(indices)}] -> [({index})] }}")
        piece = piece.intersect_domain(instances.to_union_set())
        total = piece if total is None else total.union_add(piece)
    assert total is not None, "internal: a loop over nothing"
    return total
