"""Scop and dependences in, a schedule tree of bands out: fusion, then loops, level by level.

1. A group of statements is cut into parts that run one after the other (fusion.py).
2. A part that shares parallel loops: a band of them; then loops that carry only reductions; then deeper.
3. A cycle of dependences: the best legal loop by the cost functions; what it satisfies is gone for the loops inside. Where that leaves nothing parallel, a
   parallel outermost loop of any direction.

The tree is proved legal afterwards, like every other (legality.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from polyml.errors import SchedulerFailed
from polyml.options import FusionPolicy
from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone
from polyml.schedule.ilp.costs import DEFAULT_COSTS
from polyml.schedule.ilp.fusion import Machine, Part, parts_of
from polyml.schedule.ilp.hyperplanes import Hyperplane, row_function, satisfied, unit
from polyml.schedule.ilp.problem import Basis, Problem, extended, within
from polyml.schedule.ilp.solve import Solver
from polyml.schedule.matching import Matcher
from polyml.schedule.transforms import Loop, insert_band, insert_sequence
from polyml.scop.scop import Scop

__all__ = ["NODES", "Around", "Outline", "Statistics", "schedule_by_ilp"]

NODES = 3_000
"""Linear programs that the scheduling of one region may take before its fallback."""


@dataclass(frozen=True, slots=True)
class Around:
    """A loop that is given: along an index of each statement, none of which carries anything but reductions along it (nothing at all: parallel), unless `carries` says so."""

    indices: Mapping[str, str]
    parallel: bool
    inside: Outline
    carries: bool = False


Outline = tuple["Around | tuple[str, ...]", ...]
"""What runs one after the other: loops that are given, and groups of statements."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the solver did for one region, for POLYML_DEBUG=6."""

    cones: int
    programs: int
    solved: int
    seconds: float
    rows: int
    columns: int

    def __str__(self) -> str:
        return (
            f"{self.cones} pieces of dependences, {self.programs} integer programs of up to {self.rows} x {self.columns}, "
            f"{self.solved} linear programs, {1e3 * self.seconds:.2f} ms"
        )


def schedule_by_ilp(
    scop: Scop,
    matcher: Matcher,
    *,
    costs: Sequence[str] = DEFAULT_COSTS,
    fusion: FusionPolicy = "smart",
    ahead: tuple[str, ...] = (),
    outline: Outline | None = None,
    nodes: int = NODES,
    machine: Machine | None = None,
) -> tuple[isl.Schedule, Statistics]:
    """A tree of bands that respects the dependences of the matcher, reductions among them unless they are relaxed.

    Args:
        costs: names of polyml.schedule.ilp.costs.COSTS, the most important first.
        ahead: statements that run before all others, on their own (copies of inputs).
        outline: which of the others run together, where that is decided.
        nodes: linear programs that may be solved.
        machine: what it has of threads and caches; None: one thread, and no caches to keep anything in.

    Raises:
        SolverLimit: those did not suffice. SchedulerFailed: no loop for a cycle of statements.
    """
    cones = matcher.cones
    worker = _Scheduler(Problem(scop, tuple(costs), Solver(nodes)), matcher, fusion, machine or Machine())
    # A statement without instances has no place in the tree.
    alive = [name for name, statement in scop.statements.items() if not statement.domain.is_empty()]
    groups: list[Around | tuple[str, ...]] = [(name,) for name in ahead if name in alive]
    if outline is not None:
        groups += outline
    elif rest := tuple(name for name in alive if name not in ahead):
        groups.append(rest)
    basis: Basis = dict.fromkeys(scop.statements, ())
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    if groups:
        node = worker.outline(node, groups, cones, basis)
    solver = worker.problem.solver
    made = Statistics(len(cones), solver.programs, solver.solved, solver.seconds, solver.rows, solver.columns)
    return node.get_schedule(), made


@dataclass(slots=True)
class _Scheduler:
    problem: Problem
    matcher: Matcher
    fusion: FusionPolicy
    machine: Machine

    def outline(
        self, leaf: isl.ScheduleNode, groups: Sequence[Around | tuple[str, ...]], cones: Sequence[Cone], basis: Basis
    ) -> isl.ScheduleNode:
        """The leaf replaced by what is given, one after the other, and the loops of each group inside."""
        names = [group if isinstance(group, tuple) else tuple(group.indices) for group in groups]
        if len(groups) == 1:
            return self._outlined(leaf, groups[0], within(cones, names[0]), basis)
        node = insert_sequence(leaf, [self._domain(group) for group in names])
        for position, group in enumerate(groups):
            below = self._outlined(node.child(position).child(0), group, within(cones, names[position]), basis)
            node = below.parent().parent()
        return node

    def _outlined(
        self, leaf: isl.ScheduleNode, group: Around | tuple[str, ...], cones: Sequence[Cone], basis: Basis
    ) -> isl.ScheduleNode:
        if isinstance(group, tuple):
            return self.place(leaf, group, cones, basis)[0]
        statements, sizes = self.problem.scop.statements, len(self.problem.scop.sizes)
        places = {name: statements[name].indices for name in group.indices}
        rows = {name: unit(len(own), own.index(group.indices[name]), sizes) for name, own in places.items()}
        loop = Hyperplane(rows, parallel=group.parallel, free=True)
        node = insert_band(leaf, [self._loop(tuple(rows), loop)], permutable=True)
        if group.carries:
            cones = _left(cones, [loop])
        return self.outline(node.child(0), group.inside, cones, extended(basis, [loop])).parent()

    def place(
        self, leaf: isl.ScheduleNode, group: tuple[str, ...], cones: Sequence[Cone], basis: Basis
    ) -> tuple[isl.ScheduleNode, bool]:
        """The leaf replaced by the group's loops; whether any of them is parallel."""
        parts = parts_of(group, cones, basis, self.problem, self.matcher, self.fusion, self.machine)
        if len(parts) > 1:
            return self.sequence(leaf, [part.names for part in parts], cones, basis, parts)
        return self._part(leaf, parts[0], cones, basis)

    def sequence(
        self,
        leaf: isl.ScheduleNode,
        groups: Sequence[tuple[str, ...]],
        cones: Sequence[Cone],
        basis: Basis,
        parts: Sequence[Part] | None = None,
    ) -> tuple[isl.ScheduleNode, bool]:
        """Groups one after the other."""
        node = insert_sequence(leaf, [self._domain(names) for names in groups])
        owner = {name: position for position, names in enumerate(groups) for name in names}
        inside: list[list[Cone]] = [[] for _ in groups]
        for cone in cones:
            if owner.get(cone.source, -1) == owner.get(cone.sink, -2):
                inside[owner[cone.source]].append(cone)
        any_parallel = False
        for position, names in enumerate(groups):
            below = node.child(position).child(0)
            if parts is None:
                below, parallel = self.place(below, names, inside[position], basis)
            else:
                below, parallel = self._part(below, parts[position], inside[position], basis)
            node = below.parent().parent()
            any_parallel = any_parallel or parallel
        return node, any_parallel

    def _part(
        self, leaf: isl.ScheduleNode, part: Part, cones: Sequence[Cone], basis: Basis
    ) -> tuple[isl.ScheduleNode, bool]:
        loops = part.parallel or part.free or part.loops
        if loops:
            return self._nest(leaf, part.names, loops, cones, basis)
        if all(self.problem.is_complete(name, basis) for name in part.names):
            if cones and any(cone.kind != "reduction" for cone in cones):
                raise SchedulerFailed(f"no loop is left to order {', '.join(part.names)}")
            return leaf, False
        return self._recurrence(leaf, part.names, cones, basis)

    def _recurrence(
        self, leaf: isl.ScheduleNode, names: tuple[str, ...], cones: Sequence[Cone], basis: Basis
    ) -> tuple[isl.ScheduleNode, bool]:
        loops = self.problem.band(names, cones, basis)
        if not loops:
            raise SchedulerFailed(f"no loop respects the dependences between {', '.join(names)}")
        node, parallel = self._nest(leaf, names, loops, cones, basis)
        if not parallel and "parallelism" in self.problem.costs:
            skewed = self.problem.skewed_parallel_loops(names, cones, basis)
            if skewed:
                return self._nest(leaf, names, skewed, cones, basis)
        return node, parallel

    def _nest(
        self,
        leaf: isl.ScheduleNode,
        names: tuple[str, ...],
        loops: Sequence[Hyperplane],
        cones: Sequence[Cone],
        basis: Basis,
    ) -> tuple[isl.ScheduleNode, bool]:
        """A band of the loops, and the group's other loops inside."""
        node = insert_band(leaf, [self._loop(names, loop) for loop in loops], permutable=True)
        if not all(loop.parallel for loop in loops):
            cones = _left(cones, loops)
        below, parallel = self.place(node.child(0), names, within(cones, names), extended(basis, loops))
        return below.parent(), parallel or any(loop.parallel for loop in loops)

    def _loop(self, names: tuple[str, ...], loop: Hyperplane) -> Loop:
        scop = self.problem.scop
        total = isl.UnionPwAff.empty_space(scop.context.get_space())
        for name in names:
            total = total.union_add(row_function(loop.rows[name], scop, name))
        return Loop(total, loop.parallel)

    def _domain(self, names: tuple[str, ...]) -> isl.UnionSet:
        total = isl.UnionSet.empty(self.problem.scop.context.get_space())
        for name in names:
            total = total.union(self.problem.scop.statements[name].domain.to_union_set())
        return total


def _left(cones: Sequence[Cone], loops: Sequence[Hyperplane]) -> list[Cone]:
    """What the loops leave to those inside them; reductions stay."""
    strict = [cone for cone in cones if cone.kind != "reduction"]
    return [cone for cone in cones if cone.kind == "reduction"] + satisfied(strict, [p.rows for p in loops])
