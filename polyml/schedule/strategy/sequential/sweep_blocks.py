"""Tiles of a recurrence over rows and, within a row, over columns, where every element that is finished goes into sums of all columns behind.

Optimal parenthesizations and foldings, M[i, j] (+)= T[i, k] (x) T[k + 1, j] over i < k < j, finish T[i, j] from M[i, j] row by row upwards and from left to right. Each row by itself
reads all rows below it. In tiles of rows and columns, what a tile needs of tiles before it, in its rows and in its columns, is finished once it begins: a product of blocks, in register tiles. In a tile, blocks
of rows and columns finish one after the other: of the steps that need rows of the tile the same goes for a block as for the tile, and what is left, sums over elements of the block itself, stays with the
elements that need it. Threads take rows of tiles in turns, and each tile waits for the one before it in the row before (a pipelined loop).

Which tile or block an instance belongs to, and so the order of each sum, does not depend on that.

Rewrite: band[i] (band[j] (others; U: k = j)) -> band[i_tile + j_tile] (parallel band[j_tile] (band[j_block] (
    band[k_chunk] (band[i] (band[j] (band[k] (U from rows and columns before the tile))));
    band[i_block] (
        band[i] (band[j] (band[k] (U from rows before the block)));
        band[j] (band[i] (U where it needs other elements of the block of rows; others); U into columns of the block, k = j)))))

Source: Palkowski and Bielecki, "Parallel tiled Nussinov RNA folding loop nest generated using both dependence graph transitive closure and loop skewing" (BMC Bioinformatics 2017), for
tiles of this recurrence; the split by what an instance needs is the one of schedule/pivots/plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.schedule import Product
from polyml.schedule.strategy.bands import Band
from polyml.schedule.strategy.facts import Facts
from polyml.schedule.transforms import Loop, around, insert_loops, insert_sequence, tile_loop
from polyml.schedule.tree import Kind, kind_of, members, statements_below
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine
from polyml.sets.shapes import element_count, is_known
from polyml.sets.spaces import maps_of

__all__ = ["SweepPlan", "build_sweep_blocks", "plan_sweep_blocks"]

TILE, LEAST_TILE = 64, 16
"""Rows and columns of a tile, as many as keep what it reads of others from deciding; of small matrices, which stay in cache."""

CHUNK = 64
"""Steps of the product that stay in L1 for all rows of the tile."""

ROWS, COLUMNS = 8, 16
"""Rows and columns of a block: those of a register tile, and few, so that what is left over is little."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """core: the sum. rows: per statement the index of the outer loop. columns: of the inner loop, of the core the one it sums over; lanes: the core's index where its result is.
    others: the instances of the other statements, in the order in which they run. tile: rows and columns of one. before, late: the core's instances that need rows before their own tile, or their own block,
    only. jam, vectors: the register tile. worth: what must hold at a call for it to pay."""

    core: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    lanes: str
    others: tuple[isl.UnionSet, ...]
    tile: int
    before: isl.Set
    late: isl.Set
    jam: int
    vectors: int
    worth: tuple[Product, ...]

    def __str__(self) -> str:
        size, row, column = self.tile, self.rows[self.core], self.lanes
        return f"tiles of {size} {row} and {size} {column}, {self.core} from before them in register tiles of {self.jam} x {self.vectors} vectors"


def plan_sweep_blocks(band: Band, facts: Facts) -> SweepPlan | None:
    """The blocks for a sequential loop over rows; None when what is below it is something else, or stays in cache."""
    if len(band.loops) != 1 or not facts.options.relax_reductions or any(band.above.values()):
        return None
    if facts.scop.sizes and not facts.options.large:
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
    worth = _worth(band, facts)
    if worth is None or not any(a.write and a.stride(rest[0]) == 1 for a in model.accesses):
        return None
    size = TILE if model.extents[rows[core]] >= 4 * TILE else LEAST_TILE
    before, late = (_late(facts, core, rows, columns, height) for height in (size, ROWS))
    if before.is_empty():
        return None
    vectors = max(1, min(2, COLUMNS // facts.target.lanes(model.itemsize)))
    # Accumulators, the vectors that all rows share, and two on their way: whatever the matrix's extents, blocks are of one size.
    room = facts.target.vector_registers - vectors - 2
    jam = max(height for height in (1, 2, 4, ROWS) if height == 1 or height * vectors <= room)
    return SweepPlan(core, dict(rows), columns, rest[0], others, size, before, late, jam, vectors, worth)


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


def _worth(band: Band, facts: Facts) -> tuple[Product, ...] | None:
    """That the largest array which the core reads does not stay in L2, and a sweep has tiles, as far as that is not known; None where it is not so."""
    scop, model = facts.scop, facts.models[band.core]
    room = facts.target.l2_bytes // model.itemsize
    shapes = [scop.arrays[access.array].shape for access in model.accesses if not access.write]
    symbolic = [shape for shape in shapes if not is_known(shape)]
    if not symbolic:
        return () if max(element_count(shape) for shape in shapes) > room else None
    large = max(symbolic, key=len)
    lengths = (Product((extent,), 4 * TILE) for extent in large if not extent.is_constant)
    return tuple(dict.fromkeys((Product(large, room + 1), *lengths)))


def _late(facts: Facts, core: str, rows: Mapping[str, str], columns: Mapping[str, str], height: int) -> isl.Set:
    """The core's instances that need no element of their own block of so many rows in a later column than the one they stand at, of steps that all rows of the block take: so rows may be jammed."""
    statements = facts.scop.statements
    domain, indices = statements[core].domain, statements[core].indices
    early = isl.Set.empty(domain.get_space())
    for m in maps_of(facts.packed.dependences.flow):
        name = m.get_tuple_name(isl.dim_type.in_)
        if m.get_tuple_name(isl.dim_type.out) != core or name == core or name not in rows:
            continue
        source = [f"s{d}" for d in range(len(statements[name].indices))]
        sink = [f"t{d}" for d in range(len(indices))]
        at = [own[names.index(index[n])] for own, names, index, n in (
            (source, statements[name].indices, rows, name), (sink, indices, rows, core),
            (source, statements[name].indices, columns, name), (sink, indices, columns, core),
        )]  # fmt: skip
        text = f"floor({at[0]}/{height}) = floor({at[1]}/{height}) and {at[2]} > {at[3]}"
        same = isl.Map(f"{{ {name}[{', '.join(source)}] -> {core}[{', '.join(sink)}] : {text} }}")
        # By where elements are, not by whether they are computed: those that are given are no exception, which would be a loop of its own.
        pieces = m.get_basic_map_list()
        for piece in (pieces.get_at(k) for k in range(pieces.n_basic_map())):
            early = early.union(piece.affine_hull().to_map().intersect(same).range())
    head = f"{core}[{', '.join(indices)}]"
    pairs = domain.subtract(early).apply(isl.Map(f"{{ {head} -> [{rows[core]}, {columns[core]}] }}"))
    if pairs.is_empty():
        return domain.subtract(domain)
    each = [pairs.project_out(isl.dim_type.set, 1 - d, 1).simple_hull().to_set() for d in (0, 1)]
    box = each[0].flat_product(each[1])
    blocks = isl.Map(f"{{ [r, c] -> [floor(r/{height}), c] }}")
    whole = box.apply(blocks).subtract(box.subtract(pairs).apply(blocks)).coalesce()
    return whole.apply(isl.Map(f"{{ {head} -> [floor({rows[core]}/{height}), {columns[core]}] }}").reverse()).intersect(
        domain
    )


def build_sweep_blocks(band: Band, plan: SweepPlan, facts: Facts, *, parallel: bool) -> isl.ScheduleNode:
    """The loops over tiles and blocks in the band's place, and all that is below. *Returns* the outermost."""
    scop, core = facts.scop, plan.core
    statement = scop.statements[core]
    domain, k, j = statement.domain, plan.columns[core], plan.lanes
    head, block = f"{core}[{', '.join(statement.indices)}]", f"{COLUMNS} * floor({j}/{COLUMNS})"
    elsewhere = isl.Set(f"{{ {head} : {k} < {block} }}")
    far = plan.before.intersect(elsewhere)
    middle = plan.late.intersect(elsewhere).subtract(far).coalesce()
    within = plan.late.intersect(isl.Set(f"{{ {head} : {k} >= {block} }}"))
    first = domain.subtract(plan.late).coalesce()
    elements = first.to_union_set()
    for part in plan.others:
        elements = elements.union(part)
    own_block = elements.union(within.to_union_set())
    names = [name for name in band.statements if name != core]
    others = _function(scop, [(name, scop.statements[name].domain, plan.columns[name]) for name in names])
    columns = Loop(others.union_add(_function(scop, [(core, domain, j)])))
    times = Loop(others.union_add(_function(scop, [(core, first, j), (core, within, k)])))
    rows = Loop(_function(scop, [(name, scop.statements[name].domain, plan.rows[name]) for name in band.statements]))
    steps = Loop(_function(scop, [(core, domain, k)]))
    lanes = Loop(_function(scop, [(core, domain, j)]), True)
    own = Loop(_function(scop, [(core, domain, plan.rows[core])]), True)
    tiles = [tile_loop(rows, plan.tile), tile_loop(columns, COLUMNS)]
    if (
        parallel
    ):  # tiles as wide as high, which are worth a visit of another thread; one alone goes on along the rows that it has
        tiles[:1] = [tiles[0].marked("pipelined"), tile_loop(columns, plan.tile).marked("stage")]
    vectors = lanes.marked(f"vector:{plan.vectors}")

    def tile(leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        node = insert_sequence(leaf, [far.to_union_set(), own_block.union(middle.to_union_set())])
        product = [tile_loop(steps, CHUNK), own.marked(f"jam:{plan.jam}"), vectors, steps]
        node = insert_loops(node.child(0).child(0), product).ancestor(2)
        return around(node.child(1).child(0), [tile_loop(rows, ROWS)], block_of_tile).ancestor(2)

    def block_of_tile(leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        node = insert_sequence(leaf, [middle.to_union_set(), own_block])
        node = insert_loops(node.child(0).child(0), [own, vectors, steps]).ancestor(2)
        return around(node.child(1).child(0), [times], column).ancestor(2)

    def column(leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        node = insert_sequence(leaf, [elements, within.to_union_set()])
        node = around(node.child(0).child(0), [rows], element).ancestor(2)
        return insert_loops(node.child(1).child(0), [own, lanes.marked("vector:1")]).ancestor(2)

    def element(leaf: isl.ScheduleNode) -> isl.ScheduleNode:
        node = insert_sequence(leaf, [first.to_union_set(), *plan.others])
        return insert_loops(node.child(0).child(0), [steps]).ancestor(2)

    return around(band.node.cut(), tiles, tile)


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
