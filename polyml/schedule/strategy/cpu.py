"""The recipe for CPUs: marks, tiles and register tiles on an ordered tree.

1. Fused loops and bands come from `order`: zero-distance loops outermost, reductions inside.
2. A band that carries a dependence stays a sequential loop; its inside is treated on its own.
3. Parallel loops: per band, does running the lanes along one of them cost less than going to a loop further inside? (strides decide, see cost.py)
   a. Yes: this is a nest. Its lanes run along that loop; a second loop is unrolled and jammed when that saves loads; both are tiled so that what a tile
      reads stays in cache; the reduction loops inside run over a register tile.
   b. No: the loops stay outside, and each nest inside is treated on its own. When a nest inside wants to jam one of the outer loops, that loop is tiled
      and its points are distributed over the nests (attention: blocks of queries).
4. A band of reductions: lanes along the best of them, with private accumulators.
5. The outermost parallel loop with enough iterations is given to the threads, when there is enough work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod

import islpy as isl

from polyml.schedule.cost import RegisterTile, StatementModel, model_statement, register_tile
from polyml.schedule.matching import Matcher
from polyml.schedule.pack import Packed, Panel
from polyml.schedule.schedule import Note
from polyml.schedule.strategy.choices import NestChoice
from polyml.schedule.transforms import Loop, distribute_band, loops_of, merge_with_child, nest_loops, tile_loop
from polyml.schedule.tree import Kind, Member, kind_of, mark_name, members, statements_below
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["CpuStrategy", "StrategyOptions", "apply_strategy", "model_statements"]

PARALLEL_CYCLES = 20_000
"""Estimated cycles below which waking threads costs more than it saves."""

JAM_GAIN = 1.2
"""How many times cheaper a register tile must be than plain vectors before loops are distributed for it."""

CHUNK = 16_384
"""Elements of a one-dimensional loop that a thread takes at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """What the caller allows. threads: how many there may be. tile_sizes, register_tile: iterations, outermost first, instead of the model's."""

    threads: int
    vectorize: bool = True
    parallel: bool = True
    relax_reductions: bool = True
    tile_sizes: tuple[int, ...] | None = None
    register_tile: tuple[int, ...] | None = None


def model_statements(scop: Scop, matcher: Matcher) -> dict[str, StatementModel]:
    """The cost models of all statements."""
    found = {}
    for name, statement in scop.statements.items():
        extents = {index: matcher.extent(name, k) for k, index in enumerate(statement.indices)}
        found[name] = model_statement(statement, scop, extents)
    return found


def apply_strategy(
    tree: isl.Schedule,
    packed: Packed,
    matcher: Matcher,
    models: Mapping[str, StatementModel],
    target: Target,
    options: StrategyOptions,
) -> tuple[isl.Schedule, tuple[Note, ...]]:
    """The ordered tree with its loops tiled, marked and in their final order, and what was decided."""
    worker = CpuStrategy(packed.scop, packed, matcher, models, target, options)
    root = tree.get_root().child(0)
    node = worker.visit(root, _State(parallel=options.parallel and options.threads > 1, extents={}))
    return node.get_schedule(), tuple(worker.notes)


@dataclass(frozen=True, slots=True)
class _State:
    """Of the place in the tree. parallel: threads are still to be given a loop. extents: of point loops, per statement and index."""

    parallel: bool
    extents: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class _Band:
    """A band taken apart: its statements, and per member its function, its meaning and its extent."""

    node: isl.ScheduleNode
    statements: tuple[str, ...]
    loops: tuple[Loop, ...]
    members: tuple[Member, ...]
    extents: tuple[int, ...]


@dataclass(slots=True)
class CpuStrategy:
    """One run over one tree."""

    scop: Scop
    packed: Packed
    matcher: Matcher
    models: Mapping[str, StatementModel]
    target: Target
    options: StrategyOptions
    notes: list[Note] = field(default_factory=list)

    # -- the walk ---------------------------------------------------------------------------------------------------------------

    def visit(self, node: isl.ScheduleNode, state: _State) -> isl.ScheduleNode:
        """The node with everything below it decided."""
        match kind_of(node):
            case Kind.leaf:
                return node
            case Kind.sequence:
                for k in range(node.n_children()):
                    node = self.visit(node.child(k).child(0), state).parent().parent()
                return node
            case Kind.band:
                return self._band(node, state)
            case _:
                return self.visit(node.child(0), state).parent()

    def _band(self, node: isl.ScheduleNode, state: _State) -> isl.ScheduleNode:
        while _is_coincident(node) and kind_of(node.child(0)) == Kind.band and _is_coincident(node.child(0)):
            node = merge_with_child(node)
        band = self._take(node, state)
        if band is None:
            return self.visit(node.child(0), state).parent()
        if _is_coincident(node):
            lanes = self._lanes_here(band) if self.options.vectorize else None
            return self._outer(band, state) if lanes is None else self._nest(band, lanes, state)
        return self._reductions(band, state)

    def _take(self, node: isl.ScheduleNode, state: _State) -> _Band | None:
        """The band's parts; None when a member is not simply an index of every statement (a skewed or shifted loop)."""
        names = statements_below(node)
        found = members(node, self.scop)
        if any(member.index(name) is None for member in found for name in names):
            return None
        extents = tuple(max(self._extent(name, member, state) for name in names) for member in found)
        return _Band(node, names, loops_of(node), found, extents)

    def _extent(self, name: str, member: Member, state: _State) -> int:
        index = member.rows[name].name  # type: ignore[union-attr]  # _take has made sure
        assert index is not None, "internal: a loop that is no index"
        return state.extents.get((name, index), self.models[name].extents[index])

    # -- lanes ------------------------------------------------------------------------------------------------------------------

    def _lanes_here(self, band: _Band) -> int | None:
        """The member that lanes should run along, or None when loops further inside serve them better."""
        costs = [self._lane_cost(band, member) for member in band.members]
        best = min(range(len(costs)), key=lambda k: (costs[k], -k))
        inside = sum(self._cost_inside(name, band) for name in band.statements)
        return best if costs[best] <= inside else None

    def _lane_cost(self, band: _Band, member: Member) -> float:
        total = 0.0
        for name in band.statements:
            model, index = self.models[name], member.index(name)
            assert index is not None, "internal: a loop that is no index"
            total += model.instances * model.lane_cost(index, self.target)
        return total

    def _cost_inside(self, name: str, band: _Band) -> float:
        """The cost of one statement when its lanes run along the best loop below the band."""
        model = self.models[name]
        outside = {member.index(name) for member in band.members} | self._indices_above(band.node, name)
        inside = [index for index in model.extents if index not in outside and self._may_run_lanes(name, index)]
        each = min((model.lane_cost(index, self.target) for index in inside), default=model.scalar_cost())
        return model.instances * each

    def _indices_above(self, node: isl.ScheduleNode, name: str) -> set[str | None]:
        """The statement's indices that are loops above the node (tile loops are none)."""
        found: set[str | None] = set()
        while node.has_parent():
            node = node.parent()
            if kind_of(node) == Kind.band:
                found |= {member.index(name) for member in members(node, self.scop)}
        return found - {None}

    def _may_run_lanes(self, name: str, index: str) -> bool:
        """Whether the statement may have private lanes along the index: no reduction runs along it, or its elements do not depend on it."""
        statement = self.scop.statements[name]
        if not self.matcher.is_reduction(name, statement.indices.index(index)):
            return True
        targets = [statement.target] if statement.argument is None else [statement.target, statement.argument]
        strides = [s.stride(index) if hasattr(s, "stride") else None for t in targets for s in t.subscripts]
        return self.options.relax_reductions and all(stride == 0 for stride in strides)

    # -- nests ------------------------------------------------------------------------------------------------------------------

    def _nest(self, band: _Band, lanes: int, state: _State) -> isl.ScheduleNode:
        """3a: lanes along one member, perhaps another jammed, tiles around both; nothing below changes."""
        core = self._core(band)
        if core in self.packed.copies:
            return self._copy(band, lanes, self.packed.copies[core], state)
        jam, tile = self._jam(band, lanes, core)
        panel = self._panel(band, lanes, core)
        if panel is not None:
            tile = replace(tile, vectors=panel.width // self.target.lanes(self.models[core].itemsize))
        rest = [k for k in range(len(band.loops)) if k not in (lanes, jam)]
        vector_step = tile.vectors * self.target.lanes(self.models[core].itemsize)
        tiles: dict[int, int] = {}
        if jam is not None:
            tiles = self._tiles(band, jam, lanes, tile, vector_step, core)
        if panel is not None:
            tiles[lanes] = vector_step
        parallel = None
        if state.parallel and self._is_heavy(band.statements):
            parallel = self._share(band, rest, jam, lanes, tiles, tile.rows, vector_step)
        loops = self._arrange(band, rest, jam, lanes, tiles, parallel, tile)
        name_of = [member.index(core) or "?" for member in band.members]
        self._note(
            NestChoice(
                statements=band.statements,
                order=tuple(name_of[k] for k in rest),
                parallel=None if parallel is None else name_of[parallel],
                tiles=tuple((name_of[k], size) for k, size in tiles.items()),
                jam=None if jam is None else (name_of[jam], tile.rows),
                vector=(name_of[lanes], tile.vectors),
            )
        )
        return nest_loops(band.node, loops)

    def _panel(self, band: _Band, lanes: int, core: str) -> Panel | None:
        """The panels that the core reads along these lanes: then the tile along the lanes must be one panel."""
        index = band.members[lanes].index(core)
        for access in self.models[core].accesses:
            if access.array in self.packed.panels and access.stride(index or "") == 1:
                return self.packed.panels[access.array]
        return None

    def _copy(self, band: _Band, lanes: int, panel: Panel | None, state: _State) -> isl.ScheduleNode:
        """A copy into panels goes panel by panel; one into rows, row by row."""
        loops = [loop for k, loop in enumerate(band.loops) if k != lanes]
        at = 0
        if panel is not None:
            at = panel.position
            loops.insert(at, tile_loop(band.loops[lanes], panel.width))
        if state.parallel and self._is_heavy(band.statements) and loops:
            loops[at] = loops[at].marked("parallel")
        lane_loop = band.loops[lanes].marked(f"vector:{self._plain_vectors(band)}")
        return nest_loops(band.node, [*loops, lane_loop])

    def _core(self, band: _Band) -> str:
        """The statement that does most of the work."""
        return max(band.statements, key=lambda name: self.models[name].work)

    def _has_inner_loops(self, name: str, band: _Band) -> bool:
        return len(self.models[name].extents) > len(self._indices_above(band.node, name)) + len(band.members)

    def _jam(self, band: _Band, lanes: int, core: str) -> tuple[int | None, RegisterTile]:
        """The member to unroll and jam and the register tile; no member when the statement has no loop inside to keep a tile over."""
        model = self._sized(core, band)
        vector = band.members[lanes].index(core)
        assert vector is not None, "internal: a loop that is no index"
        if not self._has_inner_loops(core, band):
            return None, RegisterTile(1, self._plain_vectors(band), 0.0)
        best_member, best = None, register_tile(model, None, vector, self.target)
        for k, member in enumerate(band.members):
            index = member.index(core)
            if k == lanes or band.extents[k] < 2 or index is None:
                continue
            tile = register_tile(model, index, vector, self.target)
            if tile.rows > 1 and tile.cost < best.cost * 0.98:
                best_member, best = k, tile
        return best_member, self._asked(best, model)

    def _sized(self, name: str, band: _Band) -> StatementModel:
        """The statement's model with the band's extents (those of point loops)."""
        model = self.models[name]
        own = {member.index(name): extent for member, extent in zip(band.members, band.extents, strict=True)}
        return replace(model, extents={index: own.get(index, extent) for index, extent in model.extents.items()})

    def _asked(self, tile: RegisterTile, model: StatementModel) -> RegisterTile:
        """The caller's register tile where one was given: rows, then iterations along the lanes."""
        asked = self.options.register_tile
        if not asked:
            return tile
        lanes = self.target.lanes(model.itemsize)
        vectors = max(1, ceil(asked[-1] / lanes))
        return replace(tile, rows=min(tile.rows, asked[0]) if len(asked) > 1 else 1, vectors=vectors)

    def _plain_vectors(self, band: _Band) -> int:
        """Vectors at once in a loop without reductions inside: two hide latencies where the body is short."""
        heaviest = max(self.models[name].operations for name in band.statements)
        return 2 if heaviest < 12 and len(band.statements) < 4 else 1

    def _tiles(
        self, band: _Band, jam: int, lanes: int, tile: RegisterTile, vector_step: int, core: str
    ) -> dict[int, int]:
        """Cache tiles. Where all that the rows share fits in half of L2: blocks of a few rows, the lanes' loop whole, so that results are written row by row.
        Else one register tile along the lanes, whose operand then stays in cache, under as many rows as keep what they read in half of L2."""
        sizes = self.options.tile_sizes
        if sizes is not None:
            return {k: size for k, size in zip((jam, lanes), sizes, strict=False) if size < band.extents[k]}
        row, column = band.members[jam].index(core) or "", band.members[lanes].index(core) or ""
        model = self._sized(core, band)
        reduced = prod(e for i, e in model.extents.items() if i not in {m.index(core) for m in band.members})
        reads = [a for a in model.accesses if not a.write]
        per_row = sum(reduced * model.itemsize for a in reads if a.stride(row) != 0)
        shared = sum(
            reduced * model.itemsize * band.extents[lanes]
            for a in reads
            if a.stride(row) == 0 and a.stride(column) != 0
        )
        if shared <= self.target.l2_bytes // 2:
            return {jam: tile.rows} if tile.rows < band.extents[jam] else {}
        rows = max(1, self.target.l2_bytes // 2 // max(per_row, 1))
        rows = max(tile.rows, min(rows, 512) // tile.rows * tile.rows)
        tiles = {}
        if rows < band.extents[jam]:
            tiles[jam] = rows
        if vector_step < band.extents[lanes]:
            tiles[lanes] = vector_step
        return tiles

    def _arrange(
        self,
        band: _Band,
        rest: list[int],
        jam: int | None,
        lanes: int,
        tiles: Mapping[int, int],
        parallel: int | None,
        tile: RegisterTile,
    ) -> list[Loop]:
        """The loops of a nest, outermost first: parallel, others, tile loops, jam, lanes."""
        outer: list[tuple[int, Loop]] = [(k, band.loops[k]) for k in rest]
        outer += [(k, tile_loop(band.loops[k], size)) for k, size in tiles.items()]
        first = next((item for item in outer if item[0] == parallel), None)
        if first is not None:
            outer.remove(first)
            outer.insert(0, (first[0], first[1].marked("parallel")))
        loops = [loop for _, loop in outer]
        if jam is not None:
            loops.append(band.loops[jam].marked(f"jam:{tile.rows}"))
        loops.append(band.loops[lanes].marked(f"vector:{tile.vectors}"))
        return loops

    # -- threads ----------------------------------------------------------------------------------------------------------------

    def _is_heavy(self, names: tuple[str, ...]) -> bool:
        cycles = sum(self.models[n].work / self.target.lanes(self.models[n].itemsize) / 2 for n in names)
        return cycles >= PARALLEL_CYCLES

    def _share(
        self,
        band: _Band,
        rest: list[int],
        jam: int | None,
        lanes: int,
        tiles: dict[int, int],
        rows: int,
        vector_step: int,
    ) -> int | None:
        """The member whose iterations the threads share; it may get a tile (in `tiles`) or a smaller one, so that there are enough of them."""
        wanted = 2 * self.options.threads
        for k in rest:
            if band.extents[k] >= wanted:
                return k
        steps = [(lanes, vector_step)] if jam is None else [(jam, rows), (lanes, vector_step)]
        for k, step in steps:
            if band.extents[k] // step < wanted:
                continue
            size = min(tiles.get(k, band.extents[k]), max(step, band.extents[k] // (2 * wanted) // step * step))
            if jam is None:
                size = max(step, min(size, CHUNK) // step * step)
            tiles[k] = size
            return k
        best = max(rest, key=lambda k: band.extents[k], default=None)
        return best if best is not None and band.extents[best] > 1 else None

    # -- outer loops ------------------------------------------------------------------------------------------------------------

    def _outer(self, band: _Band, state: _State) -> isl.ScheduleNode:
        """3b: the members stay outside; nests below are treated on their own."""
        heavy = state.parallel and self._is_heavy(band.statements)
        wish = self._wish(band, state) if self.options.vectorize else None
        if wish is not None:
            return self._block(band, *wish, heavy, state)
        order = list(range(len(band.loops)))
        shared = self._threads_of(band, order) if heavy else None
        loops = [band.loops[k] for k in order if k != shared]
        if shared is not None:
            loops.insert(0, band.loops[shared].marked("parallel"))
            core = self._core(band)
            text = f"{band.members[shared].index(core)} ({band.extents[shared]} iterations)"
            self.notes.append(Note("parallel", " ".join(band.statements), text))
        node = nest_loops(band.node, loops)
        depth = len(loops) + sum(loop.mark is not None for loop in loops)
        inside = _descend(node, depth)
        inside = self.visit(inside, replace(state, parallel=state.parallel and shared is None))
        return inside.ancestor(depth)

    def _threads_of(self, band: _Band, order: list[int]) -> int | None:
        wanted = 2 * self.options.threads
        enough = [k for k in order if band.extents[k] >= wanted]
        if enough:
            return enough[0]
        best = max(order, key=lambda k: band.extents[k])
        return best if band.extents[best] > 1 else None

    def _wish(self, band: _Band, state: _State) -> tuple[int, dict[int, int]] | None:
        """The member that nests below want to jam, and per child of the sequence the rows it wants; None when none does."""
        sequence = band.node.child(0)
        if kind_of(sequence) != Kind.sequence or not _is_coincident(band.node):
            return None
        wishes: dict[int, dict[int, int]] = {}
        weight: dict[int, float] = {}
        for position in range(sequence.n_children()):
            child = sequence.child(position).child(0)
            if kind_of(child) != Kind.band or not _is_coincident(child):
                continue
            inner = self._take(child, state)
            lanes = None if inner is None else self._lanes_here(inner)
            if inner is None or lanes is None:
                continue
            core = self._core(inner)
            if not self._has_inner_loops(core, inner):
                continue
            found = self._best_outer(band, inner, lanes, core)
            if found is not None:
                wishes.setdefault(found[0], {})[position] = found[1]
                weight[found[0]] = weight.get(found[0], 0.0) + self.models[core].work
        if not wishes:
            return None
        chosen = max(wishes, key=lambda k: weight[k])
        return chosen, wishes[chosen]

    def _best_outer(self, outer: _Band, inner: _Band, lanes: int, core: str) -> tuple[int, int] | None:
        """The outer member whose jamming makes the inner nest enough cheaper, and its rows."""
        model = self.models[core]
        vector = inner.members[lanes].index(core)
        assert vector is not None, "internal: a loop that is no index"
        own = [
            register_tile(model, m.index(core), vector, self.target) for k, m in enumerate(inner.members) if k != lanes
        ]
        base = min([register_tile(model, None, vector, self.target), *own], key=lambda tile: tile.cost)
        best: tuple[int, int] | None = None
        cost = base.cost / JAM_GAIN
        for k, member in enumerate(outer.members):
            index = member.index(core)
            if index is None or outer.extents[k] < 2:
                continue
            tile = register_tile(model, index, vector, self.target)
            if tile.rows > 1 and tile.cost < cost:
                best, cost = (k, tile.rows), tile.cost
        return best

    def _block(self, band: _Band, member: int, rows: dict[int, int], heavy: bool, state: _State) -> isl.ScheduleNode:
        """The member tiled, and its points distributed over the nests that want to jam it and the runs of others between them."""
        size = self._block_size(band, member, max(rows.values()))
        outer = [(k, loop) for k, loop in enumerate(band.loops) if k != member]
        tiled = size < band.extents[member]
        if tiled:
            outer.append((member, tile_loop(band.loops[member], size)))
        wanted = 2 * self.options.threads
        counts = {k: (ceil(band.extents[k] / size) if k == member else band.extents[k]) for k, _ in outer}
        shared = None
        if heavy and outer:
            enough = [k for k, _ in outer if counts[k] >= wanted]
            shared = enough[0] if enough else max(counts, key=lambda k: counts[k])
            shared = shared if counts[shared] > 1 else None
        loops = [loop for k, loop in outer if k != shared]
        if shared is not None:
            loops.insert(0, next(loop for k, loop in outer if k == shared).marked("parallel"))
        name = band.members[member].index(self._core(band)) or "?"
        self.notes.append(
            Note(
                "tiling",
                " ".join(band.statements),
                f"blocks of {size} {name}, distributed over {len(rows)} register-tiled nests",
            )
        )
        node = nest_loops(band.node, [*loops, band.loops[member]])
        depth = len(loops) + sum(loop.mark is not None for loop in loops)
        points = distribute_band(_descend(node, depth), _groups(node, depth, rows))
        overlay = {(n, band.members[member].index(n) or ""): size for n in band.statements} if tiled else {}
        below = _State(state.parallel and shared is None, {**state.extents, **overlay})
        return self.visit(points, below).ancestor(depth)

    def _block_size(self, band: _Band, member: int, rows: int) -> int:
        """Iterations per block: what the nests hand to each other for one block should stay in half of L2."""
        per_row = 0
        for array in {self.models[name].accesses[-1].array for name in band.statements}:
            if self.scop.arrays[array].kind != "local":
                continue
            writer = next(n for n in band.statements if self.models[n].accesses[-1].array == array)
            model = self.models[writer]
            target = model.accesses[-1]
            outside = {m.index(writer) for m in band.members}
            per_row += model.itemsize * prod(
                e for i, e in model.extents.items() if i not in outside and target.stride(i)
            )
        fitting = self.target.l2_bytes // 2 // max(per_row, 1)
        return max(rows, min(64, fitting, band.extents[member]) // rows * rows)

    # -- reductions -------------------------------------------------------------------------------------------------------------

    def _reductions(self, band: _Band, state: _State) -> isl.ScheduleNode:
        """4: lanes along the reduction loop that suits them, innermost, with private accumulators; other bands stay as they are."""
        usable = [k for k in range(len(band.loops)) if self._is_relaxed(band, k)] if self.options.vectorize else []
        if not usable or _has_band_below(band.node.child(0)):
            return self.visit(band.node.child(0), state).parent()
        if self._lanes_above(band.node):
            return band.node
        lanes = min(usable, key=lambda k: (self._lane_cost(band, band.members[k]), -k))
        scalar = sum(self.models[n].instances * self.models[n].scalar_cost() for n in band.statements)
        if self._lane_cost(band, band.members[lanes]) >= scalar:
            return band.node
        heaviest = max(self.models[name].operations for name in band.statements)
        vectors = 4 if heaviest < 4 else 2 if heaviest < 20 else 1
        core = self._core(band)
        lanes_each = self.target.lanes(self.models[core].itemsize)
        vectors = max(1, min(vectors, ceil(band.extents[lanes] / lanes_each)))
        self._note(NestChoice(statements=band.statements, vector=(band.members[lanes].index(core) or "?", vectors)))
        rest = [loop for k, loop in enumerate(band.loops) if k != lanes]
        return nest_loops(band.node, [*rest, band.loops[lanes].marked(f"vector:{vectors}")])

    def _is_relaxed(self, band: _Band, k: int) -> bool:
        """Whether the member carries nothing but reductions into elements that do not depend on it."""
        assignment = {
            name: self.scop.statements[name].indices.index(band.members[k].index(name) or "")
            for name in band.statements
        }
        return self.matcher.carries_nothing(assignment) and all(
            self._may_run_lanes(name, band.members[k].index(name) or "") for name in band.statements
        )

    def _lanes_above(self, node: isl.ScheduleNode) -> bool:
        while node.has_parent():
            node = node.parent()
            if kind_of(node) == Kind.mark and mark_name(node).startswith("vector"):
                return True
        return False

    def _note(self, choice: NestChoice) -> None:
        stage = "vector" if choice.jam is None and not choice.tiles else "tiling"
        self.notes.append(Note(stage, " ".join(choice.statements), str(choice)))


def _is_coincident(band: isl.ScheduleNode) -> bool:
    return all(band.band_member_get_coincident(k) for k in range(band.band_n_member()))


def _has_band_below(node: isl.ScheduleNode) -> bool:
    if kind_of(node) == Kind.band:
        return True
    return any(_has_band_below(node.child(k)) for k in range(node.n_children()))


def _descend(node: isl.ScheduleNode, depth: int) -> isl.ScheduleNode:
    for _ in range(depth):
        node = node.child(0)
    return node


def _groups(node: isl.ScheduleNode, depth: int, alone: Mapping[int, int]) -> list[list[int]]:
    """Children of the sequence below the band: those in `alone` by themselves, runs of others together."""
    count = _descend(node, depth).child(0).n_children()
    groups: list[list[int]] = []
    for position in range(count):
        if position in alone or not groups or groups[-1][-1] in alone:
            groups.append([position])
        else:
            groups[-1].append(position)
    return groups
