"""Nests of an ordered tree that are to be contractions in tiles (cuda/tiles.py), and the tree with marks in their place (cuda/paths.py) and copies in its domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from math import prod

import islpy as isl

from polyml.expressions import reads_of
from polyml.gpu_core import L2_RATE, LAUNCH, MEMORY_RATE
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.gpu.staged import StagedNest, stage_operands
from polyml.schedule.schedule import Note, Storage
from polyml.schedule.strategy.cuda.paths import Insertion, apart, path_to, rebuilt, steps_outside
from polyml.schedule.strategy.cuda.tile_plan import TilePlan
from polyml.schedule.strategy.cuda.tiles import plan_tiles
from polyml.schedule.transforms import distribute_band, merge_with_child
from polyml.schedule.tree import Kind, is_coincident, kind_of, members, node_at, set_names, statements_below
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.target import Target

__all__ = ["MARK", "Staged", "stage_contractions"]

MARK = "staged:"
"""The mark `staged:<statement>` above a leaf stands for the whole nest of that contraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A scop, its dependences and ordered tree, where nests have become marks. storage: of their tiles and accumulators."""

    scop: Scop
    dependences: Dependences
    tree: isl.Schedule
    nests: tuple[StagedNest, ...] = ()
    storage: tuple[tuple[str, Storage], ...] = ()
    notes: tuple[Note, ...] = ()


MOST_KEPT = 1 << 30
"""Bytes of device memory that a program may take beyond what it needs, so that a contraction has tiles."""

TRIPS = 3
"""How often what one kernel leaves for the next goes through device memory: written, and read by one or two."""


def stage_contractions(found: Staged, models: Mapping[str, StatementModel], target: Target) -> Staged:
    """The same with every contraction at the top of the tree, or in loops of launches, that is worth it in tiles."""
    updates = [model for model in models.values() if model.is_update]
    plans = [plan for model in updates if (plan := plan_tiles(found.scop, model, target)) is not None]
    for plan in plans:
        # Blocks that stay with their rows in all steps read an operand from L2 for each multiply-add of a row; tiles in a launch hardly do.
        model = models[plan.statement]
        work = prod(model.extents[i] for i in (*plan.free, *plan.reduced)) * model.itemsize / (L2_RATE * target.cores)
        found = _staged(found, plan, {p.statement for p in plans}, work * target.cores, target.cores)
    return found


def _staged(found: Staged, plan: TilePlan, planned: Set[str], work: float, cores: int) -> Staged:
    """With the nest of one plan in tiles; unchanged where it has no nest of its own that all blocks can run.

    Args:
        work: cycles that reading an operand from L2 for each multiply-add takes one core.
    """
    worth_launches = work >= LAUNCH * cores
    tree = steps_outside(found.tree.get_root().child(0), plan, found.scop) if worth_launches else found.tree
    root = tree.get_root().child(0)
    path = path_to(root, plan, found.scop)
    if path is None:
        return found
    node = node_at(root, path)
    several = planned & set(statements_below(node))
    if len(several) > 1 and is_coincident(node):
        root = apart(node, several, found.scop).get_schedule().get_root().child(0)
        path = path_to(root, plan, found.scop)
    nest = None if path is None else _nest(node_at(root, path), plan, found.scop)
    if nest is None:
        parted = _by_itself(node, plan, found.scop, work)
        root = root if parted is None else parted.get_schedule().get_root().child(0)
        path = path_to(root, plan, found.scop)
        nest = None if parted is None or path is None else _nest(node_at(root, path), plan, found.scop)
    staged = None if nest is None else stage_operands(found.scop, plan, *nest)
    if path is None or staged is None:
        return found
    scop, dependences, made, storage = staged
    leaf = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    new = [name for name in made.statements if name not in found.scop.statements or name in made.padded]
    node = rebuilt(leaf, root, path, Insertion(scop, tuple(new), MARK + plan.statement))
    return Staged(
        scop=scop,
        dependences=dependences,
        tree=node.get_schedule(),
        nests=(*found.nests, made),
        storage=(*found.storage, *storage.items()),
        notes=(*found.notes, Note("tiles", plan.statement, str(plan))),
    )


def _by_itself(node: isl.ScheduleNode, plan: TilePlan, scop: Scop, work: float) -> isl.ScheduleNode | None:
    """The nest of parallel loops in up to three: what comes before the contraction, that one, and what comes behind; None where that does not pay, or something else is around it.

    Rewrite: band[n](sequence(a, b, c)) -> sequence(band[n](a), band[n](b), band[n](c)). No dependence crosses n. What these exchange lives in device memory then: tiles have to save more than that.
    """
    if plan.steps or kind_of(node) != Kind.band or not is_coincident(node):
        return None
    while kind_of(node.child(0)) == Kind.band and is_coincident(node.child(0)):
        node = merge_with_child(node)
    inside = node.child(0)
    if kind_of(inside) != Kind.sequence:
        return None
    parts = [statements_below(inside.child(k).child(0)) for k in range(inside.n_children())]
    at = next(k for k, part in enumerate(parts) if plan.statement in part)
    groups = [list(group) for group in (range(at), (at,), range(at + 1, len(parts))) if group]
    mine, others = (
        _arrays(names, scop) for names in (parts[at], [n for k in range(len(parts)) if k != at for n in parts[k]])
    )
    moved = 0
    for array in (scop.arrays[name] for name in sorted(mine & others)):
        if array.kind == "local":
            if array.bytes is None:
                return None
            moved += array.bytes
    if len(groups) < 2 or moved > MOST_KEPT or TRIPS * moved / MEMORY_RATE > work:
        return None
    return distribute_band(node, groups)


def _arrays(names: Iterable[str], scop: Scop) -> set[str]:
    """What the statements touch."""
    statements = [scop.statements[name] for name in names]
    return {s.target.array for s in statements} | {read.tensor for s in statements for read in reads_of(s.value)}


def _nest(
    node: isl.ScheduleNode, plan: TilePlan, scop: Scop
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, dict[str, str]]] | None:
    """The statements before and after the contraction and their names for the result's indices and the steps, where the nest is one band of these with single statements inside.
    One of them may set the sums; else these go on from what is there."""
    if kind_of(node) != Kind.band or not is_coincident(node):
        return None
    while kind_of(node.child(0)) == Kind.band and is_coincident(node.child(0)):
        node = merge_with_child(node)
    inside, found = node.child(0), members(node, scop)
    if kind_of(inside) == Kind.sequence:
        parts = [set_names(inside.child(k).filter_get_filter()) for k in range(inside.n_children())]
    else:
        parts = [statements_below(node)]
    order = [part[0] for part in parts]
    along = [member.index(plan.statement) for member in found]
    if any(len(part) != 1 for part in parts) or len(set(order)) != len(order) or set(along) != set(plan.free):
        return None
    indices: dict[str, dict[str, str]] = {}
    for name in order:
        own = [member.index(name) for member in found]
        names = {a: b for a, b in zip(along, own, strict=True) if a is not None and b is not None}
        steps = scop.statements[name].indices[: len(plan.steps)]
        whole = name == plan.statement or len(scop.statements[name].indices) == len(steps) + len(names)
        if len(names) != len(along) or scop.statements[name].loop_depth != len(plan.steps) or not whole:
            return None
        indices[name] = {**dict(zip(plan.steps, steps, strict=True)), **names}
    at = order.index(plan.statement)
    update = scop.statements[plan.statement]
    sets = [n for n in order[:at] if scop.statements[n].target.array == update.target.array]
    if len(sets) > 1 or any(scop.statements[name].kind != "init" for name in sets):
        return None
    return tuple(order[:at]), tuple(order[at + 1 :]), indices
