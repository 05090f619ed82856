"""The order of a scop's statements: which loops they share, level by level, as a schedule tree of bands and sequences.

1. A group of statements is cut into clusters: strongly connected ones together, others when they can share a parallel loop.
2. Several clusters: a sequence, and each cluster on its own.
3. One cluster: a band of all loops that it can share and that carry nothing; then one of the loops along which only reductions run; then deeper.
4. A cluster with a cycle of dependences and no such loop: its outermost written loop, sequentially; then deeper. Where that leaves nothing parallel,
   isl's scheduler is asked for a parallel outermost loop (a skewed one, say).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import islpy as isl

from polyml.schedule.isl_scheduler import schedule_by_isl
from polyml.schedule.matching import Assignment, Matcher
from polyml.schedule.schedule import Note
from polyml.schedule.transforms import graft, insert_sequence
from polyml.schedule.tree import Kind, kind_of
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted

__all__ = ["order_statements"]

_Live = Mapping[tuple[str, str], isl.UnionMap]
_Used = Mapping[str, frozenset[int]]

MIN_SHARED_ITERATIONS = 64
"""A fusion that leaves fewer parallel iterations than this, where there were more, is refused."""


def order_statements(
    scop: Scop,
    dependences: Dependences,
    matcher: Matcher,
    *,
    ahead: tuple[str, ...] = (),
    ask_isl: bool = True,
    budget: int = 150_000,
) -> tuple[isl.Schedule, tuple[Note, ...]]:
    """A tree that respects the dependences (proved later by legality), and what was decided.

    Args:
        ahead: statements that run before all others, on their own (copies of inputs).
        ask_isl: whether isl's scheduler may be asked about recurrences, within `budget` of its operations.
    """
    worker = _Orderer(scop, dependences, matcher, ask_isl, budget)
    active = [name for name, statement in scop.statements.items() if not statement.domain.is_empty()]
    groups = [(name,) for name in active if name in ahead] + [tuple(name for name in active if name not in ahead)]
    used: _Used = {name: frozenset() for name in active}
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    if not active:
        return node.get_schedule(), ()
    if len(groups) == 1:
        node, _ = worker.place(node, groups[0], used, matcher.maps)
    else:
        node, _ = worker.sequence(node, groups, used, matcher.maps)
    return node.get_schedule(), tuple(worker.notes)


@dataclass(slots=True)
class _Orderer:
    scop: Scop
    dependences: Dependences
    matcher: Matcher
    ask_isl: bool
    budget: int
    notes: list[Note] = field(default_factory=list)
    positions: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = {name: position for position, name in enumerate(self.scop.statements)}

    def place(
        self, leaf: isl.ScheduleNode, group: tuple[str, ...], used: _Used, live: _Live
    ) -> tuple[isl.ScheduleNode, bool]:
        """The leaf replaced by the group's loops; whether any of them is parallel."""
        clusters = self._clusters(group, used, live)
        if len(clusters) > 1:
            return self.sequence(leaf, clusters, used, live)
        for relaxed in (False, True):
            loops = self.matcher.shared_loops(group, used, live, relaxed=relaxed)
            if loops:
                node = self._band(leaf, group, loops, coincident=not relaxed)
                below, parallel = self.place(node.child(0), group, _after(used, loops), live)
                return below.parent(), parallel or not relaxed
        if all(len(used[name]) == len(self.scop.statements[name].indices) for name in group):
            return leaf, False
        return self._recurrence(leaf, group, used, live)

    def sequence(
        self, leaf: isl.ScheduleNode, clusters: list[tuple[str, ...]], used: _Used, live: _Live
    ) -> tuple[isl.ScheduleNode, bool]:
        node = insert_sequence(leaf, [self._domain(cluster) for cluster in clusters])
        any_parallel = False
        for position, cluster in enumerate(clusters):
            below, parallel = self.place(node.child(position).child(0), cluster, used, live)
            node = below.parent().parent()
            any_parallel = any_parallel or parallel
        return node, any_parallel

    def _band(
        self, leaf: isl.ScheduleNode, group: tuple[str, ...], loops: list[Assignment], *, coincident: bool
    ) -> isl.ScheduleNode:
        rows = isl.UnionPwAffList.alloc(leaf.get_ctx(), len(loops))
        for loop in loops:
            rows = rows.add(self._row(group, loop))
        space = isl.Space.set_alloc(leaf.get_ctx(), 0, len(loops)).align_params(self.scop.context.get_space())
        node = leaf.insert_partial_schedule(isl.MultiUnionPwAff.from_union_pw_aff_list(space, rows))
        node = node.band_set_permutable(1)
        for position in range(len(loops)):
            node = node.band_member_set_coincident(position, int(coincident))
        return node

    def _row(self, group: tuple[str, ...], loop: Assignment) -> isl.UnionPwAff:
        total = isl.UnionPwAff.empty_space(self.scop.context.get_space())
        for name in group:
            space = isl.LocalSpace.from_space(self.scop.statements[name].domain.get_space())
            row = isl.PwAff.from_aff(isl.Aff.var_on_domain(space, isl.dim_type.set, loop[name]))
            total = total.union_add(isl.UnionPwAff.from_pw_aff(row))
        return total

    def _domain(self, group: tuple[str, ...]) -> isl.UnionSet:
        total = isl.UnionSet.empty(self.scop.context.get_space())
        for name in group:
            total = total.union(self.scop.statements[name].domain.to_union_set())
        return total

    # -- recurrences ------------------------------------------------------------------------------------------------------------

    def _recurrence(
        self, leaf: isl.ScheduleNode, group: tuple[str, ...], used: _Used, live: _Live
    ) -> tuple[isl.ScheduleNode, bool]:
        """The outermost written loop of a cycle of statements carries what it carries: every value of the cycle passes through it."""
        loop = {}
        for name in group:
            free = [p for p in range(len(self.scop.statements[name].indices)) if p not in used[name]]
            if not free:
                return self._isl(leaf, group, live), False
            loop[name] = free[0]
        node = self._band(leaf, group, [loop], coincident=False)
        schedule = node.band_get_partial_schedule()
        inside = {pair: m for pair, m in live.items() if pair[0] in group and pair[1] in group}
        if not all(m.lex_gt_at_multi_union_pw_aff(schedule).is_empty() for m in inside.values()):
            return self._isl(leaf, group, live), False
        left = {
            pair: equal for pair, m in inside.items() if not (equal := m.eq_at_multi_union_pw_aff(schedule)).is_empty()
        }
        below, parallel = self.place(node.child(0), group, _after(used, [loop]), left)
        # Deeper, isl would call the outer loops parallel, which stand still there.
        if not parallel and self.ask_isl and not any(used[name] for name in group):
            skewed = self._parallel_by_isl(leaf, group, live)
            if skewed is not None:
                return skewed, True
        return below.parent(), parallel

    def _isl(self, leaf: isl.ScheduleNode, group: tuple[str, ...], live: _Live) -> isl.ScheduleNode:
        found = schedule_by_isl(
            self._domain(group),
            self._union(group, live),
            self.dependences,
            context=self.scop.context,
            budget=self.budget,
        )
        return graft(leaf, found.get_root().child(0))

    def _parallel_by_isl(self, leaf: isl.ScheduleNode, group: tuple[str, ...], live: _Live) -> isl.ScheduleNode | None:
        """isl's schedule of the group when its outermost loop is parallel."""
        subject = " ".join(group)
        try:
            node = self._isl(leaf, group, live)
        except BudgetExhausted as exhausted:
            self.notes.append(Note("scheduling", subject, f"written order kept: {exhausted}"))
            return None
        if kind_of(node) == Kind.band and node.band_member_get_coincident(0):
            self.notes.append(Note("scheduling", subject, "isl's scheduler found a parallel outermost loop"))
            return node
        return None

    def _union(self, group: tuple[str, ...], live: _Live) -> isl.UnionMap:
        total = isl.UnionMap.empty(self.scop.context.get_space())
        for pair, m in live.items():
            if pair[0] in group and pair[1] in group:
                total = total.union(m)
        return total

    # -- clusters ---------------------------------------------------------------------------------------------------------------

    def _clusters(self, group: tuple[str, ...], used: _Used, live: _Live) -> list[tuple[str, ...]]:
        """The group in pieces that run one after the other: strongly connected components, joined pairwise as long as it is worth it."""
        graph = self.matcher.successors(group, live)
        clusters = _components(group, graph)
        if len(clusters) > 1 and self._worth_joining(tuple((c,) for c in group), used, live):
            return [group]
        position = 1
        while position < len(clusters):
            # Producers first, nearest first.
            for earlier in range(position - 1, -1, -1):
                joined = self._in_order((*clusters[earlier], *clusters[position]))
                if (
                    self._touch(clusters[earlier], clusters[position])
                    and not _between(clusters, earlier, position, graph)
                    and self._worth_joining((clusters[earlier], clusters[position]), used, live)
                ):
                    clusters[earlier] = joined
                    del clusters[position]
                    clusters = _topological(clusters, graph, self._rank)
                    position = max(earlier - 1, 0)
                    break
            position += 1
        return clusters

    def _touch(self, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
        return any(self.matcher.related(a, b) for a in one for b in other)

    def _rank(self, cluster: tuple[str, ...]) -> int:
        return min(self.positions[name] for name in cluster)

    def _worth_joining(self, parts: tuple[tuple[str, ...], ...], used: _Used, live: _Live) -> bool:
        """Whether the parts keep a loop in common, and lose nothing that matters by it."""
        joined = self._in_order(tuple(name for part in parts for name in part))
        common = self.matcher.shared_loops(joined, used, live, relaxed=False)
        if common:
            alone = (self._iterations(self.matcher.shared_loops(part, used, live, relaxed=False)) for part in parts)
            return self._iterations(common) >= min(MIN_SHARED_ITERATIONS, *alone)
        common = self.matcher.shared_loops(joined, used, live, relaxed=True)
        if not common:
            return False
        # A reduction along the shared loop beside a statement with loops of its own inside would cost the latter its register tile.
        left = _after(used, common)
        return not any(len(left[n]) < len(self.scop.statements[n].indices) for n in joined)

    def _iterations(self, loops: list[Assignment]) -> int:
        total = 1
        for loop in loops:
            name, position = next(iter(loop.items()))
            total *= self.matcher.extent(name, position) or 1_000
        return total

    def _in_order(self, names: tuple[str, ...]) -> tuple[str, ...]:
        inside = set(names)
        return tuple(name for name in self.scop.statements if name in inside)


def _after(used: _Used, loops: list[Assignment]) -> dict[str, frozenset[int]]:
    total = dict(used)
    for loop in loops:
        for name, position in loop.items():
            total[name] = total[name] | {position}
    return total


def _components(group: tuple[str, ...], graph: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Strongly connected components in topological order, nearest to the order of `group`."""
    reach = {name: _reachable(name, graph) for name in group}
    component_of: dict[str, tuple[str, ...]] = {}
    for name in group:
        if name not in component_of:
            cycle = tuple(n for n in group if n == name or (n in reach[name] and name in reach[n]))
            component_of.update(dict.fromkeys(cycle, cycle))
    found = list(dict.fromkeys(component_of[name] for name in group))
    rank = {component: position for position, component in enumerate(found)}
    return _topological(found, graph, rank.__getitem__)


def _topological(
    clusters: list[tuple[str, ...]], graph: Mapping[str, set[str]], rank: Callable[[tuple[str, ...]], int]
) -> list[tuple[str, ...]]:
    """The clusters with every edge of the graph pointing forward, those of the lowest rank first."""
    after = {c: {d for d in clusters if d is not c and _edge(c, d, graph)} for c in clusters}
    waiting = {c: sum(c in later for later in after.values()) for c in clusters}
    ready = sorted((c for c in clusters if not waiting[c]), key=rank)
    ordered: list[tuple[str, ...]] = []
    while ready:
        cluster = ready.pop(0)
        ordered.append(cluster)
        for later in after[cluster]:
            waiting[later] -= 1
            if not waiting[later]:
                ready = sorted((*ready, later), key=rank)
    assert len(ordered) == len(clusters), "internal: clusters of statements depend on each other in a cycle"
    return ordered


def _edge(one: tuple[str, ...], other: tuple[str, ...], graph: Mapping[str, set[str]]) -> bool:
    return any(not graph[name].isdisjoint(other) for name in one)


def _between(clusters: list[tuple[str, ...]], first: int, last: int, graph: Mapping[str, set[str]]) -> bool:
    """Whether a cluster lies on a path from one cluster to the other, so that joining the two would close a cycle."""
    reached: list[tuple[str, ...]] = []
    for cluster in clusters[first + 1 : last]:
        if _edge(clusters[first], cluster, graph) or any(_edge(r, cluster, graph) for r in reached):
            reached.append(cluster)
    return any(_edge(cluster, clusters[last], graph) for cluster in reached)


def _reachable(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    stack = list(graph[start])
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(graph[name])
    return seen
