"""Graph -> Regions: which ops are compiled together, chosen by bytes moved.

Greedy: every equation starts as a region of its own, and the two regions whose union saves most (fusion_cost.py) are joined while that pays. A union must be convex
(no path leaves and comes back) and small enough for isl. A loop takes in others for large gains only. What the flag of a Check needs is kept apart and comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import combinations

from polyml.expressions import Apply, Expr, Read
from polyml.graph.builder.state import identifier
from polyml.graph.fusion_cost import bytes_saved, large_bytes, swept_bytes, tiles_worth
from polyml.graph.ir import Check, Equation, Graph, Loop, Tensor
from polyml.graph.profiles import Profile, memory_of, profiles
from polyml.graph.prologues import join_makers, move_prologues
from polyml.graph.region import Region
from polyml.graph.traverse import estimated_bytes, read_names, results_of, tensors_of
from polyml.operation_weights import weight_of

__all__ = ["fuse"]

_Group = frozenset[int]

_Moves = tuple[int, int, int, int]
"""Bytes of a tensor: read by all, by the one that reads most, written by all, by the one that writes most."""

_LOOP_GAIN = 16
"""A loop is joined with others when that saves this part of the cache's size at least: isl's work grows, and the loop may schedule less well."""

_DEEP = 40
"""Simple operations, one after the other, up to which a core has another vector's at hand in time: 256 instructions wait, three are done in a cycle, each takes four."""

_SWEPT_GAIN = 16
"""Sums that read large matrices from end to end are joined with others when that saves this part of what they read at least: each is a nest of its own (schedule/blocking/in_order.py), which a common one is not."""

_PASSED_GAIN = 8
"""Sums are joined with elementwise equations when that saves this part of the largest tensors that these go through at least: what they repeat along other indices is small, and their lanes run along rows of their own."""


def fuse(
    graph: Graph,
    *,
    cache_bytes: int = 1 << 20,
    rows_bytes: int = 1 << 21,
    max_equations: int = 12,
    prologues: bool = False,
    makes: Callable[[Region], bool] | None = None,
) -> tuple[Region, ...]:
    """The regions of the graph in executable order; every op that is not a Check is in exactly one.

    Args:
        cache_bytes: of the cache (per core) in which a slice of an intermediate should stay; the L2.
        rows_bytes: of a tensor whose rows equations may share though some reduce over them: more than L1 holds, where blocks of rows stay there (schedule/sweeps/row_sums.py).
        max_equations: most equations in one region, since isl's cost grows faster than linearly (twice as many with a loop, half as many again where all of a program's elementwise ones are together then).
        prologues: what makes a large operand of a contraction over no box, element by element, goes with the contraction, which applies it while packing (schedule/prologues.py).
        makes: whether a region, a contraction and what makes its operand, can run a block of the sum at a time (schedule/blocking/makers.py).
    """
    ops: list[Equation | Loop] = [op for op in graph.ops if not isinstance(op, Check)]
    before = _predecessors(graph, ops)
    early = _needed_by_checks(graph, ops)
    chooser = _Chooser(graph, ops, before, early, cache_bytes, rows_bytes, max_equations)
    while (pair := chooser.best()) is not None:
        chooser.join(*pair)
    groups = list(chooser.groups.values())
    if prologues and max_equations > 1:
        groups = move_prologues(ops, groups, chooser.users, chooser.kept, before, cache_bytes)
    name, uses = identifier(graph.name, ()), _Uses(graph, ops)
    if makes is not None and max_equations > 1:
        overwritten = {i.final.name: i.tensor.name for i in graph.inputs if i.final is not None}

        def suits(group: _Group) -> bool:
            region = uses.region(name, group)
            # What a result takes the place of is needed until all blocks are done.
            kept = {overwritten.get(tensor.name) for tensor in region.outputs}
            return not any(tensor.name in kept for tensor in region.inputs) and makes(region)

        groups = join_makers(ops, groups, chooser.users, chooser.kept, before, cache_bytes, suits)
    ordered = _ordered(groups, before, early)
    return tuple(uses.region(f"{name}_{n}", g) for n, g in enumerate(ordered))


class _Chooser:
    """Finds the pair of groups that gains most, the first of equals, and joins it.

    Groups have numbers, in the order in which they came about. Pairs wait in a heap with what they gain at most, until they come first and that is computed.
    """

    def __init__(
        self,
        graph: Graph,
        ops: Sequence[Equation | Loop],
        before: Sequence[set[int]],
        early: set[int],
        cache_bytes: int,
        rows_bytes: int,
        max_equations: int,
    ) -> None:
        self.ops = ops
        self.early, self.cache_bytes, self.rows_bytes, self.max_equations = (
            early,
            cache_bytes,
            rows_bytes,
            max_equations,
        )
        self.tensors = tensors_of(graph)
        self.memory = memory_of(ops)
        self.profiles: list[tuple[Profile, ...]] = [profiles(op, self.tensors, self.memory) for op in ops]
        self.apart = {k for k, op in enumerate(ops) if isinstance(op, Equation) and op.apart}
        self.loops = {k for k, op in enumerate(ops) if isinstance(op, Loop)}
        self.swept = [
            0 if k in self.loops else sum(swept_bytes(p, self.tensors, cache_bytes) for p in found)
            for k, found in enumerate(self.profiles)
        ]
        """Per op, bytes of a matrix that it reads once, in order, and waits for."""
        self.passed = [
            0 if k in self.loops else max((large_bytes(p, self.tensors, cache_bytes) for p in found), default=0)
            for k, found in enumerate(self.profiles)
        ]
        """Per op, bytes of the largest tensor that it goes through element by element and that no cache holds."""
        self.touched = [self.in_memory((*read_names(op), *(t.name for t in results_of(op)))) for op in ops]
        self.made = [self.in_memory(t.name for t in results_of(op)) - self.in_memory(read_names(op)) for op in ops]
        self.produced = set().union(*self.made)
        self.users: dict[str, set[int]] = {}
        for k, names in enumerate(self.touched):
            for name in names:
                self.users.setdefault(name, set()).add(k)
        kept = {t.name for t in graph.outputs} | {i.final.name for i in graph.inputs if i.final is not None}
        kept |= {op.flag.name for op in graph.ops if isinstance(op, Check)}
        self.kept = self.in_memory(kept)
        self.bytes = {name: estimated_bytes(tensor) for name, tensor in self.tensors.items()}
        self.names: dict[_Group, frozenset[str]] = {}
        self.saved: dict[_Group, dict[str, int]] = {}
        self.moves: dict[tuple[_Group, str], tuple[_Moves, _Moves]] = {}
        self.groups: dict[int, _Group] = {k: frozenset([k]) for k in range(len(ops))}
        self.paths = _Paths(before)
        self.waiting: list[tuple[int, int, int, bool]] = []
        """Minus the gain, the numbers of both groups, and whether that is what is gained, not a bound of it."""
        self.waiting += filter(None, (self.pair(a, b) for a, b in combinations(self.groups, 2)))
        heapify(self.waiting)

    def in_memory(self, names: Iterable[str]) -> set[str]:
        """The first versions of tensors."""
        return {self.memory.get(name, name) for name in names}

    def best(self) -> tuple[int, int] | None:
        """The pair that gains most and may be joined; the first of equals."""
        while self.waiting:
            _, a, b, exact = self.waiting[0]
            if a not in self.groups or b not in self.groups or not self.paths.convex(a, b):
                heappop(self.waiting)  # for good: joining others makes no path shorter
            elif exact:
                return a, b
            elif (gain := self.gain(self.groups[a], self.groups[b])) > 0:
                heapreplace(self.waiting, (-gain, a, b, True))
            else:
                heappop(self.waiting)
        return None

    def join(self, a: int, b: int) -> None:
        union = self.groups.pop(a) | self.groups.pop(b)
        c = self.paths.join(a, b)
        for other in self.groups:
            pair = self.pair(other, c, union)
            if pair is not None:
                heappush(self.waiting, pair)
        self.groups[c] = union

    def pair(self, a: int, b: int, group: _Group | None = None) -> tuple[int, int, int, bool] | None:
        """An entry of the heap, unless nothing is gained; group: that of the second number."""
        first, second = self.groups[a], self.groups[b] if group is None else group
        if self.touches(first).isdisjoint(self.touches(second)) or not self.paths.convex(a, b):
            return None
        bound = self.bound(first, second)
        return (-bound, a, b, False) if bound > 0 else None

    def bound(self, a: _Group, b: _Group) -> int:
        """At least what joining the groups can gain: as if all that both touch were moved once; 0 where they must stay apart."""
        union = a | b
        equations = sum(len(self.profiles[k]) for k in union)
        if equations > self.max_equations * self.room(union):
            return 0
        heavy = self.heavy(a), self.heavy(b)
        if union & self.loops and (any(heavy) or self.max_equations == 1):
            return 0
        if len({k in self.early for k in union}) > 1 or union & self.apart:
            return 0
        common = self.touches(a) & self.touches(b)
        if union & self.loops:  # which may be joined for other reasons
            return sum(self.bytes[name] * sum(name in self.touched[k] for k in union) for name in common)
        most = sum(self.moved_less(name, a, b) for name in common)
        # Two contractions are joined only for an intermediate that no cache would hold.
        return most if most >= 2 * self.cache_bytes or not all(heavy) else 0

    def moved_less(self, name: str, a: _Group, b: _Group) -> int:
        """What joining can save of moving one tensor that both groups touch: everything goes together, and now what is saved in each."""
        made = any(name in self.made[k] for k in a | b)
        which = 0 if made else 1
        mine, others = self.moves_of(a, name)[which], self.moves_of(b, name)[which]
        reads, most_read, writes, most_written = _together(mine, others)
        total = reads - (0 if made else most_read) + writes
        total -= most_written if name in self.kept or self.users[name] - a - b else 0
        return total - self.saves(a).get(name, 0) - self.saves(b).get(name, 0)

    def moves_of(self, group: _Group, name: str) -> tuple[_Moves, _Moves]:
        """What the group moves of a tensor by itself: all of its equations, and those that are no contractions."""
        found = self.moves.get((group, name))
        if found is None:
            each = [
                (p.heavy, p.read_bytes(self.tensors[name]), p.written_bytes(self.tensors[name]))
                for k in group
                for p in self.profiles[k]
                if name in p.touched
            ]
            light = [row for row in each if not row[0]]
            found = self.moves[group, name] = _moves(each), _moves(light)
        return found

    def touches(self, group: _Group) -> frozenset[str]:
        found = self.names.get(group)
        if found is None:
            found = self.names[group] = frozenset().union(*(self.touched[k] for k in group))
        return found

    def gain(self, a: _Group, b: _Group) -> int:
        """Bytes saved by joining two groups."""
        found = self.score(a | b) - self.score(a) - self.score(b)
        if self.heavy(a) and self.heavy(b):
            least = max(2 * self.cache_bytes, tiles_worth(p for k in a | b for p in self.profiles[k]))
            found = 0 if found < least else found
        elif found < self.least(a, b):
            found = 0
        if (a | b) & self.loops:
            found = max(found, self.fills(a, b), self.fills(b, a))
            found = 0 if found < self.cache_bytes // _LOOP_GAIN else found
        return found

    def fills(self, a: _Group, b: _Group) -> int:
        """Bytes that a single equation without reads writes for the other group alone: often nothing there reads them, and memory of the region's own
        can be smaller."""
        names = {name for k in a for name in self.made[k]}
        alone = len(a) == 1 and not any(read_names(self.ops[k]) for k in a)
        inside = alone and all(self.users[name] <= a | b and name not in self.kept for name in names)
        return sum(self.bytes[name] for name in names) if inside else 0

    def waits(self, group: _Group) -> int:
        """Bytes of large tensors that the group waits for."""
        return sum(max(self.swept[k], self.passed[k]) for k in group)

    def least(self, a: _Group, b: _Group) -> int:
        """Bytes that joining the groups must save where one of them waits for memory and the other would spoil its order."""
        least = min(map(self.waits, (a, b))) // _SWEPT_GAIN if any(self.swept[k] for k in a | b) else 0
        for one, other in ((a, b), (b, a)):
            if self.sums(other):
                least = max(least, sum(self.swept[k] for k in one) // _SWEPT_GAIN)
            elif self.sums(one):
                least = max(least, sum(self.passed[k] for k in other) // _PASSED_GAIN)
        return least

    def sums(self, group: _Group) -> bool:
        return any(p.equation.reduced for k in group for p in self.profiles[k])

    def room(self, group: _Group) -> float:
        """How many times the usual number of equations a group may have: more with a loop, and where short elementwise equations over one box leave no intermediate to any other."""
        if self.max_equations == 1:
            return 1
        if group & self.loops:
            return 2
        found = [p for k in sorted(group) for p in self.profiles[k]]
        if any(p.heavy or p.gathered or p.equation.reduced or p.equation.base is not None for p in found):
            return 1
        alike = len({tuple(p.extents.values()) for p in found}) == 1
        return 1.5 if alike and self.whole(group) and _depth(p.equation for p in found) <= _DEEP else 1

    def whole(self, group: _Group) -> bool:
        """Whether the group reads nothing that another one makes, and makes nothing that another one reads."""
        made = set().union(*(self.made[k] for k in group))
        return all(
            self.users[name] <= group if name in made else name not in self.produced for name in self.touches(group)
        )

    def heavy(self, group: _Group) -> bool:
        return any(p.heavy for k in group for p in self.profiles[k])

    def score(self, group: _Group) -> int:
        return sum(self.saves(group).values())

    def saves(self, group: _Group) -> dict[str, int]:
        """Bytes saved by the equations of the group being together, by tensor."""
        found = self.saved.get(group)
        if found is None:
            members = [p for k in sorted(group) for p in self.profiles[k]]
            made = {name for k in group for name in self.made[k]}
            escaping = {name for name in self.touches(group) if name in self.kept or self.users[name] - group}
            found = self.saved[group] = bytes_saved(
                members, self.tensors, made, escaping, self.cache_bytes, self.rows_bytes
            )
        return found


def _depth(equations: Iterable[Equation]) -> float:
    """The longest path from an input to a result, in simple operations, where one equation follows the other."""
    depths: dict[str, float] = {}

    def depth(expr: Expr) -> float:
        if isinstance(expr, Apply):
            return weight_of(expr) + max(map(depth, expr.args), default=0.0)
        return depths.get(expr.tensor, 0.0) if isinstance(expr, Read) else 0.0

    for equation in equations:
        depths[equation.result.name] = depth(equation.body)
    return max(depths.values(), default=0.0)


def _moves(each: Sequence[tuple[bool, int, int]]) -> _Moves:
    reads, writes = [row[1] for row in each], [row[2] for row in each]
    return sum(reads), max(reads, default=0), sum(writes), max(writes, default=0)


def _together(a: _Moves, b: _Moves) -> _Moves:
    return a[0] + b[0], max(a[1], b[1]), a[2] + b[2], max(a[3], b[3])


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


class _Paths:
    """Which groups must run before which, at any distance: sets of numbers as bits."""

    def __init__(self, before: Sequence[set[int]]) -> None:
        self.earlier: dict[int, int] = {}
        self.later = dict.fromkeys(range(len(before)), 0)
        for k, direct in enumerate(before):  # all of them have smaller numbers
            self.earlier[k] = 0
            for p in direct:
                self.earlier[k] |= self.earlier[p] | 1 << p
            for p in _numbers(self.earlier[k]):
                self.later[p] |= 1 << k
        self.next = len(before)

    def convex(self, a: int, b: int) -> bool:
        """True when no path leaves the two and comes back, the other groups being single nodes."""
        return not (self.later[a] & self.earlier[b] or self.later[b] & self.earlier[a])

    def join(self, a: int, b: int) -> int:
        """The number of the group that both become."""
        c, both = self.next, 1 << a | 1 << b
        self.next += 1
        self.earlier[c] = earlier = (self.earlier.pop(a) | self.earlier.pop(b)) & ~both
        self.later[c] = later = (self.later.pop(a) | self.later.pop(b)) & ~both
        for n in _numbers(later):
            self.earlier[n] = self.earlier[n] & ~both | earlier | 1 << c
        for n in _numbers(earlier):
            self.later[n] = self.later[n] & ~both | later | 1 << c
        return c


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


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


class _Uses:
    """Who reads what, from which regions take their inputs and outputs."""

    def __init__(self, graph: Graph, ops: Sequence[Equation | Loop]) -> None:
        self.ops = ops
        self.tensors = tensors_of(graph)
        self.read = [read_names(op) for op in ops]
        self.readers: dict[str, set[int]] = {}
        for k, names in enumerate(self.read):
            for name in names:
                self.readers.setdefault(name, set()).add(k)
        self.kept = {t.name for t in graph.outputs} | {i.final.name for i in graph.inputs if i.final is not None}
        self.kept |= {op.flag.name for op in graph.ops if isinstance(op, Check)}

    def region(self, name: str, group: _Group) -> Region:
        members = sorted(group)
        made: dict[str, Tensor] = {t.name: t for k in members for t in results_of(self.ops[k])}
        used = dict.fromkeys(n for k in members for n in self.read[k] if n not in made)
        results = [t for k in members for t in results_of(self.ops[k])]
        return Region(
            name=name,
            ops=tuple(self.ops[k] for k in members),
            inputs=tuple(self.tensors[n] for n in used),
            outputs=tuple(t for t in results if t.name in self.kept or self.readers.get(t.name, set()) - group),
        )
