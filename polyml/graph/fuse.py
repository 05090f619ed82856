"""Graph -> Regions: which ops are compiled together, chosen by bytes moved.

Greedy: every equation starts as a region of its own, and the two regions whose union saves most (fusion_cost.py) are joined while that pays. A union must be convex
(no path leaves and comes back) and small enough for isl. A loop takes in others for large gains only. What the flag of a Check needs is kept apart and comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from polyml.graph.builder.state import identifier
from polyml.graph.fusion_cost import bytes_saved, tiles_worth
from polyml.graph.ir import Check, Equation, Graph, Loop
from polyml.graph.profiles import Profile, memory_of, profiles
from polyml.graph.prologues import join_makers, move_prologues
from polyml.graph.region import Region
from polyml.graph.traverse import estimated_bytes, read_names, results_of, tensors_of

__all__ = ["fuse"]

_Group = frozenset[int]

_LOOP_GAIN = 16
"""A loop is joined with others when that saves this part of the cache's size at least: isl's work grows, and the loop may schedule less well."""


def fuse(
    graph: Graph,
    *,
    cache_bytes: int = 1 << 20,
    max_equations: int = 12,
    prologues: bool = False,
    makes: Callable[[Region], bool] | None = None,
) -> tuple[Region, ...]:
    """The regions of the graph in executable order; every op that is not a Check is in exactly one.

    Args:
        cache_bytes: of the cache (per core) in which a slice of an intermediate should stay; the L2.
        max_equations: most equations in one region, since isl's cost grows faster than linearly.
        prologues: what makes a large operand of a contraction over no box, element by element, goes with the contraction, which applies it while packing (schedule/prologues.py).
        makes: whether a region, a contraction and what makes its operand, can run a block of the sum at a time (schedule/blocking/makers.py).
    """
    ops: list[Equation | Loop] = [op for op in graph.ops if not isinstance(op, Check)]
    before = _predecessors(graph, ops)
    early = _needed_by_checks(graph, ops)
    groups: list[_Group] = [frozenset([k]) for k in range(len(ops))]
    chooser = _Chooser(graph, ops, before, early, cache_bytes, max_equations)
    while (pair := chooser.best(groups)) is not None:
        groups = [g for g in groups if g not in pair] + [pair[0] | pair[1]]
    if prologues and max_equations > 1:
        groups = move_prologues(ops, groups, chooser.users, chooser.kept, before, cache_bytes)
    name = identifier(graph.name, ())
    if makes is not None and max_equations > 1:

        def suits(group: _Group) -> bool:
            return makes(_region(graph, name, [ops[k] for k in sorted(group)], ops))

        groups = join_makers(ops, groups, chooser.users, chooser.kept, before, cache_bytes, suits)
    ordered = _ordered(groups, before, early)
    return tuple(_region(graph, f"{name}_{n}", [ops[k] for k in sorted(g)], ops) for n, g in enumerate(ordered))


class _Chooser:
    """Finds the pair of groups that gains most, remembering what was computed."""

    def __init__(
        self,
        graph: Graph,
        ops: Sequence[Equation | Loop],
        before: Sequence[set[int]],
        early: set[int],
        cache_bytes: int,
        max_equations: int,
    ) -> None:
        self.ops = ops
        self.before, self.early, self.cache_bytes, self.max_equations = before, early, cache_bytes, max_equations
        self.tensors = tensors_of(graph)
        self.memory = memory_of(ops)
        self.profiles: list[tuple[Profile, ...]] = [profiles(op, self.tensors, self.memory) for op in ops]
        self.apart = {k for k, op in enumerate(ops) if isinstance(op, Equation) and op.apart}
        self.loops = {k for k, op in enumerate(ops) if isinstance(op, Loop)}
        self.touched = [self.in_memory((*read_names(op), *(t.name for t in results_of(op)))) for op in ops]
        self.made = [self.in_memory(t.name for t in results_of(op)) - self.in_memory(read_names(op)) for op in ops]
        self.users: dict[str, set[int]] = {}
        for k, names in enumerate(self.touched):
            for name in names:
                self.users.setdefault(name, set()).add(k)
        kept = {t.name for t in graph.outputs} | {i.final.name for i in graph.inputs if i.final is not None}
        kept |= {op.flag.name for op in graph.ops if isinstance(op, Check)}
        self.kept = self.in_memory(kept)
        self.bytes = {name: estimated_bytes(tensor) for name, tensor in self.tensors.items()}
        self.names: dict[_Group, frozenset[str]] = {}
        self.saved: dict[_Group, int] = {}
        self.bounds: dict[tuple[_Group, _Group], int] = {}
        self.gains: dict[tuple[_Group, _Group], int] = {}

    def in_memory(self, names: Iterable[str]) -> set[str]:
        """The first versions of tensors."""
        return {self.memory.get(name, name) for name in names}

    def best(self, groups: Sequence[_Group]) -> tuple[_Group, _Group] | None:
        """The pair that gains most and may be joined; the first of equals."""
        bounded = [(self.bound(a, b), -n, a, b) for n, (a, b) in enumerate(combinations(groups, 2))]
        bounded = sorted((c for c in bounded if c[0] > 0), key=lambda c: c[:2], reverse=True)
        chosen: tuple[_Group, _Group] | None = None
        most, order = 0, 0
        for bound, position, a, b in bounded:
            if bound < most:
                break
            gain = self.gain(a, b)
            better = gain > most or (gain == most > 0 and position > order)
            if better and _is_convex(a | b, groups, self.before):
                chosen, most, order = (a, b), gain, position
        return chosen

    def bound(self, a: _Group, b: _Group) -> int:
        """At least what joining the groups can gain: every use of what both touch; 0 where they must stay apart."""
        found = self.bounds.get((a, b))
        if found is None:
            found = self.bounds[a, b] = self._bound(a, b)
        return found

    def _bound(self, a: _Group, b: _Group) -> int:
        union = a | b
        equations = sum(len(self.profiles[k]) for k in union)
        if equations > self.max_equations * (2 if union & self.loops and self.max_equations > 1 else 1):
            return 0
        if union & self.loops and (self.heavy(a) or self.heavy(b) or self.max_equations == 1):
            return 0
        if len({k in self.early for k in union}) > 1 or union & self.apart:
            return 0
        common = self.touches(a) & self.touches(b)
        most = sum(self.bytes[name] * sum(name in self.touched[k] for k in union) for name in common)
        # Two contractions are joined only for an intermediate that no cache would hold.
        return most if most >= 2 * self.cache_bytes or not (self.heavy(a) and self.heavy(b)) else 0

    def touches(self, group: _Group) -> frozenset[str]:
        found = self.names.get(group)
        if found is None:
            found = self.names[group] = frozenset().union(*(self.touched[k] for k in group))
        return found

    def gain(self, a: _Group, b: _Group) -> int:
        """Bytes saved by joining two groups."""
        found = self.gains.get((a, b))
        if found is None:
            found = self.score(a | b) - self.score(a) - self.score(b)
            if self.heavy(a) and self.heavy(b):
                least = max(2 * self.cache_bytes, tiles_worth(p for k in a | b for p in self.profiles[k]))
                found = 0 if found < least else found
            if (a | b) & self.loops:
                found = max(found, self.fills(a, b), self.fills(b, a))
                found = 0 if found < self.cache_bytes // _LOOP_GAIN else found
            self.gains[a, b] = found
        return found

    def fills(self, a: _Group, b: _Group) -> int:
        """Bytes that a single equation without reads writes for the other group alone: often nothing there reads them, and memory of the region's own
        can be smaller."""
        names = {name for k in a for name in self.made[k]}
        alone = len(a) == 1 and not any(read_names(self.ops[k]) for k in a)
        inside = alone and all(self.users[name] <= a | b and name not in self.kept for name in names)
        return sum(self.bytes[name] for name in names) if inside else 0

    def heavy(self, group: _Group) -> bool:
        return any(p.heavy for k in group for p in self.profiles[k])

    def score(self, group: _Group) -> int:
        found = self.saved.get(group)
        if found is None:
            members = [p for k in sorted(group) for p in self.profiles[k]]
            made = {name for k in group for name in self.made[k]}
            escaping = {name for name in self.touches(group) if name in self.kept or self.users[name] - group}
            found = self.saved[group] = bytes_saved(members, self.tensors, made, escaping, self.cache_bytes)
        return found


# -- order ------------------------------------------------------------------------------------------------------------------------


def _predecessors(graph: Graph, ops: Sequence[Equation | Loop]) -> list[set[int]]:
    """Per op, the ops that must run before it: makers of what it reads, and earlier readers of what it may overwrite in place."""
    maker: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    overwrites = {i.final.name: i.tensor.name for i in graph.inputs if i.final is not None}
    before: list[set[int]] = []
    for k, op in enumerate(ops):
        names = read_names(op)
        needed = {maker[name] for name in names if name in maker}
        if isinstance(op, Equation):
            replaced = [op.base.name] if op.base is not None else []
        else:
            replaced = [carried.initial.name for carried in op.carried]
        replaced += [overwrites[t.name] for t in results_of(op) if t.name in overwrites]
        for name in replaced:
            needed |= readers.get(name, set())
        before.append(needed - {k})
        for name in names:
            readers.setdefault(name, set()).add(k)
        for tensor in results_of(op):
            maker[tensor.name] = k
    return before


def _needed_by_checks(graph: Graph, ops: Sequence[Equation | Loop]) -> set[int]:
    """The ops from which a Check's flag follows."""
    maker = {tensor.name: k for k, op in enumerate(ops) for tensor in results_of(op)}
    pending = [maker[op.flag.name] for op in graph.ops if isinstance(op, Check) and op.flag.name in maker]
    found: set[int] = set()
    while pending:
        k = pending.pop()
        if k not in found:
            found.add(k)
            pending += [maker[name] for name in read_names(ops[k]) if name in maker]
    return found


def _is_convex(union: _Group, groups: Sequence[_Group], before: Sequence[set[int]]) -> bool:
    """True when no path leaves the union and comes back, the other groups being single nodes."""
    others = [g for g in groups if not g <= union]
    group_of = {k: n for n, g in enumerate(others) for k in g}
    # Walk backwards from the union: reaching it again from outside is a path that left it.
    pending = list({group_of[p] for k in union for p in before[k] if p not in union})
    seen: set[int] = set()
    while pending:
        n = pending.pop()
        if n in seen:
            continue
        seen.add(n)
        for k in others[n]:
            for p in before[k]:
                if p in union:
                    return False
                if group_of[p] != n:
                    pending.append(group_of[p])
    return True


def _ordered(groups: Iterable[_Group], before: Sequence[set[int]], early: set[int]) -> list[_Group]:
    """Topological order: what checks need first, then as written."""
    waiting = sorted(groups, key=lambda g: (not g <= early, min(g)))
    done: set[int] = set()
    ordered: list[_Group] = []
    while waiting:
        ready = next((g for g in waiting if all(p in done or p in g for k in g for p in before[k])), None)
        assert ready is not None, "internal: regions in a cycle"
        waiting.remove(ready)
        ordered.append(ready)
        done |= ready
    return ordered


def _region(graph: Graph, name: str, members: Sequence[Equation | Loop], ops: Sequence[Equation | Loop]) -> Region:
    tensors: Mapping[str, object] = {t.name: t for op in members for t in results_of(op)}
    everything = tensors_of(graph)
    used = dict.fromkeys(n for op in members for n in read_names(op) if n not in tensors)
    later = {n for op in ops if not any(op is m for m in members) for n in read_names(op)}
    later |= {t.name for t in graph.outputs} | {i.final.name for i in graph.inputs if i.final is not None}
    later |= {op.flag.name for op in graph.ops if isinstance(op, Check)}
    outputs = tuple(t for op in members for t in results_of(op) if t.name in later)
    return Region(
        name=name,
        ops=tuple(members),
        inputs=tuple(everything[n] for n in used),
        outputs=outputs,
    )
