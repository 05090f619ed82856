"""Which statements of a group share their outer loops: strongly connected components first, then pairwise joins.

Every part brings the loops that it can have; a join keeps those of them that line up, which is decided on the generators (both sides are frozen but for a shift), so that
the price of fusion is that of matrix products and a chain of statements costs no large program.

Policies: "none": components stay apart. "smart": parts join while they keep a loop in common and lose no parallelism or register tile by it. "maximal": whenever it is
legal, serially or shifted if need be.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field

from polyml.graph.traverse import followed_index
from polyml.options import FusionPolicy
from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone
from polyml.schedule.ilp.hyperplanes import Hyperplane, Row, distances
from polyml.schedule.ilp.problem import Basis, Problem, extended, within
from polyml.schedule.ilp.solve import SolverLimit
from polyml.schedule.ilp.topology import Edges, components, is_between, topological
from polyml.schedule.matching import Matcher

__all__ = ["Machine", "Part", "parts_of"]

MIN_SHARED_ITERATIONS = 64
"""A fusion that leaves fewer parallel iterations than this, where there were more, is refused, unless it keeps in cache what it passes on."""

ITERATIONS = 2
"""Parallel iterations for each thread, at least, that such a fusion leaves."""

LITTLE = 4
"""Times that L2 holds what it passes on in one of them, at least: beside it come the other operands, and results go."""

LINE = 64
"""Bytes of a cache line."""

LONG_ROW = 256
"""Elements of a row from which on a strip of columns is a small part of it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """threads: that share parallel loops. l2_bytes: of one core's second-level cache; 0: not known."""

    threads: int = 1
    l2_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Statements that run together, and the loops that they can share next: those that carry nothing or only reductions; or else one that carries more
    (only where "maximal" has joined them)."""

    names: tuple[str, ...]
    loops: tuple[Hyperplane, ...]

    @property
    def parallel(self) -> tuple[Hyperplane, ...]:
        return tuple(loop for loop in self.loops if loop.parallel)

    @property
    def free(self) -> tuple[Hyperplane, ...]:
        return tuple(loop for loop in self.loops if loop.free)


def parts_of(
    group: tuple[str, ...],
    cones: Sequence[Cone],
    basis: Basis,
    problem: Problem,
    matcher: Matcher,
    policy: FusionPolicy,
    machine: Machine,
) -> list[Part]:
    """The group in parts to run one after the other, in order."""
    edges: dict[str, set[str]] = {name: set() for name in group}
    inside: dict[tuple[str, str], list[Cone]] = {}
    for cone in cones:
        inside.setdefault((cone.source, cone.sink), []).append(cone)
        if cone.source != cone.sink:
            edges[cone.source].add(cone.sink)
    parts = []
    for names in components(group, edges):
        own = inside.get((names[0], names[0]), []) if len(names) == 1 else within(cones, names)
        parts.append(Part(names, problem.zero_loops(names, own, basis)))
    if len(parts) == 1 or policy == "none":
        return parts
    fuser = _Fuser(
        problem, matcher, basis, cones, edges, {n: k for k, n in enumerate(group)}, policy == "maximal", machine
    )
    return fuser.fuse(parts)


@dataclass(slots=True)
class _Fuser:
    problem: Problem
    matcher: Matcher
    basis: Basis
    cones: Sequence[Cone]
    edges: Edges
    position: Mapping[str, int]
    maximal: bool
    machine: Machine
    joins: dict[tuple[tuple[str, ...], tuple[str, ...]], Part | None] = field(default_factory=dict)
    at: dict[str, list[Cone]] = field(default_factory=dict)
    ranges: dict[tuple[str, int, int], Hashable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cone in self.cones:
            for name in {cone.source, cone.sink}:
                self.at.setdefault(name, []).append(cone)

    def fuse(self, parts: list[Part]) -> list[Part]:
        """Connected parts joined, all at once where that is worth it, else pairwise."""
        found: list[Part] = []
        for connected in self._connected(parts):
            whole = self._whole(connected)
            found += [whole] if whole is not None else self._pairwise(connected)
        return self._topological(found)

    def _connected(self, parts: list[Part]) -> list[list[Part]]:
        """The parts in groups that share dependences or data, each in an order in which every part touches an earlier one."""
        owner = {name: k for k, part in enumerate(parts) for name in part.names}
        by_array: dict[str, set[int]] = {}
        for name, k in owner.items():
            for array in self.matcher.arrays(name):
                by_array.setdefault(array, set()).add(k)
        rest = dict.fromkeys(range(len(parts)))
        groups: list[list[Part]] = []
        while rest:
            group = [next(iter(rest))]
            del rest[group[0]]
            for k in group:
                part = parts[k]
                near = {j for name in part.names for array in self.matcher.arrays(name) for j in by_array[array]}
                near |= {owner[n] for name in part.names for c in self.at.get(name, ()) for n in (c.source, c.sink)}
                found = [j for j in sorted(near) if j in rest and self._touch(part, parts[j])]
                group += found
                for j in found:
                    del rest[j]
            groups.append([parts[k] for k in group])
        return groups

    def _whole(self, parts: list[Part]) -> Part | None:
        """All the parts in one, or None when that is not worth it."""
        joined = parts[0]
        for part in parts[1:]:
            larger = self._joined(joined, part)
            if larger is None:
                return None
            joined = larger
        return joined if len(parts) == 1 or self._is_worth(joined, parts) else None

    def _pairwise(self, parts: list[Part]) -> list[Part]:
        """Pairs joined, first those that keep all loops of one of the two: what such a pair passes on is in registers, and a join with another part that keeps fewer would come between."""
        parts = self._topological(parts)
        for whole in (True, False):
            position = 1
            while position < len(parts):
                # Producers first, nearest first.
                for earlier in range(position - 1, -1, -1):
                    joined = self._pair(parts, earlier, position, whole)
                    if joined is not None:
                        parts[earlier] = joined
                        del parts[position]
                        parts = self._topological(parts)
                        position = max(earlier - 1, 0)
                        break
                position += 1
        return parts

    def _pair(self, parts: list[Part], earlier: int, later: int, whole: bool) -> Part | None:
        """Two of the parts in one, or None when that is illegal or not worth it. whole: nor where both lose a loop."""
        one, other = parts[earlier], parts[later]
        key = (one.names, other.names)
        if key not in self.joins:
            self.joins[key] = self._join(one, other)
        joined = self.joins[key]
        if joined is None or (whole and len(joined.free) < min(len(one.free), len(other.free))):
            return None
        return None if is_between([part.names for part in parts], earlier, later, self.edges) else joined

    def _join(self, one: Part, other: Part) -> Part | None:
        if not (self.maximal or (one.loops and other.loops)) or not self._touch(one, other):
            return None
        joined = self._joined(one, other)
        if joined is not None and self._is_worth(joined, [one, other]):
            return joined
        return self._serially(one, other) if self.maximal else None

    # -- one join ---------------------------------------------------------------------------------------------------------------

    def _touch(self, one: Part, other: Part) -> bool:
        return any(
            b in self.edges[a] or a in self.edges[b] or self.matcher.related(a, b)
            for a in one.names
            for b in other.names
        )

    def _joined(self, one: Part, other: Part) -> Part | None:
        """Both with the loops that line up; None when none does."""
        cross = self._cross(one, other)
        common: list[Hyperplane] = []
        left = list(other.free)
        for loop in one.free:
            for candidate in left:
                shift = self._shift(loop, candidate, cross)
                if shift is not None:
                    left.remove(candidate)
                    rows = {**loop.rows, **candidate.shifted(shift).rows}
                    parallel = loop.parallel and candidate.parallel
                    common.append(Hyperplane(rows, parallel=parallel, free=True, joined=not self.maximal))
                    break
        return Part(self._in_order(one, other), tuple(common)) if common else None

    def _cross(self, one: Part, other: Part) -> list[Cone]:
        small, large = sorted((one, other), key=lambda part: len(part.names))
        inside = frozenset(large.names)
        return [
            cone
            for name in small.names
            for cone in self.at.get(name, ())
            if (cone.sink if cone.source == name else cone.source) in inside
        ]

    def _shift(self, one: Hyperplane, other: Hyperplane, cross: Sequence[Cone]) -> int | None:
        """What to add to the other loop so that the two have zero distance on the dependences between them (their common data, without any)."""
        shift: int | None = None
        rows = {**one.rows, **other.rows}
        # Updates that commute may run in any order, but not at once.
        at_once = one.parallel and other.parallel
        for cone in cross:
            if cone.kind == "reduction" and not at_once:
                continue
            found, homogeneous = distances(cone, rows), cone.hull[:, 0]
            sign = 1 if cone.sink in other.rows else -1
            if shift is None:
                vertex = int((homogeneous > 0).argmax())
                shift, remainder = divmod(-sign * int(found[vertex]), int(homogeneous[vertex]))
                if remainder:
                    return None
            if (found + sign * shift * homogeneous).any():
                return None
        if shift is None:
            shift = 0 if self._same_data(one, other) else None
        if shift is None or not (self.maximal or self._same_range(one, other, shift)):
            return None
        return shift

    def _same_data(self, one: Hyperplane, other: Hyperplane) -> bool:
        return any(
            self.matcher.aligned(a, row.index, b, row2.index)
            for a, row in one.rows.items()
            for b, row2 in other.rows.items()
            if row.index is not None and row2.index is not None
        )

    def _same_range(self, one: Hyperplane, other: Hyperplane, shift: int) -> bool:
        """Whether the statements of both run through the same values."""
        mine, theirs = self._range(one, 0), self._range(other, shift)
        return mine is not None and mine == theirs

    def _range(self, loop: Hyperplane, shift: int) -> Hashable:
        """First and last value of all the loop's statements; None when they differ or no loop along an index."""
        if len(loop.rows) > 1 and loop.joined:
            name, row = next(iter(loop.rows.items()))
            return self._row_range(name, row, shift)
        found = {self._row_range(name, row, shift) for name, row in loop.rows.items()}
        return found.pop() if len(found) == 1 else None

    def _row_range(self, name: str, row: Row, shift: int) -> Hashable:
        if row.index is None:
            return None
        key = (name, row.index, row.constant + shift)
        if key not in self.ranges:
            self.ranges[key] = self.matcher.values(*key)
        return self.ranges[key]

    def _serially(self, one: Part, other: Part) -> Part | None:
        """Both under the best legal loop that they can share, whatever it carries; None also when it is hard to tell."""
        names = self._in_order(one, other)
        try:
            loops = self.problem.band(names, within(self.cones, names), self.basis, backwards=other.names)
        except SolverLimit:
            if self.problem.solver.nodes <= 0:
                raise
            return None
        return Part(names, loops[:1]) if loops else None

    # -- what is worth it -------------------------------------------------------------------------------------------------------

    def _is_worth(self, joined: Part, parts: Sequence[Part]) -> bool:
        """Whether the parts keep a loop in common, and lose nothing that matters by it."""
        if self.maximal:
            return True
        if joined.parallel:
            if any(self._spoils_rows(name, part, joined, parts) for part in parts for name in part.names):
                return False
            if self._walks_columns(joined, parts):
                return False
            alone = (self._iterations(part.parallel) for part in parts)
            kept = self._iterations(joined.parallel)
            return kept >= min(MIN_SHARED_ITERATIONS, *alone) or self._stays_near(kept, parts)
        # A reduction along the shared loop beside a statement with loops of its own inside would cost the latter its register tile.
        left = extended(self.basis, joined.free)
        return all(self.problem.is_complete(name, left) for name in joined.names)

    def _stays_near(self, kept: int, parts: Sequence[Part]) -> bool:
        """Whether what one part computes element by element and passes on to another would leave L2 before it is read, and a piece of it, one for each of the iterations that they keep in common, is small beside L2 (blocks of an image's rows, copied with their padding).
        These are enough for the threads."""
        if kept < ITERATIONS * self.machine.threads:
            return False
        scop, passed = self.problem.scop, 0
        for part in parts:
            others = [name for other in parts if other is not part for name in other.names]
            read = frozenset[str]().union(*map(self.matcher.arrays, others))
            made = {s.target.array for name in part.names if (s := scop.statements[name]).kind == "assign"}
            passed += sum(scop.arrays[a].bytes or 0 for a in made & read if scop.arrays[a].kind == "local")
        return 2 * passed > self.machine.l2_bytes >= LITTLE * passed // kept

    def _spoils_rows(self, name: str, part: Part, joined: Part, parts: Sequence[Part]) -> bool:
        """Whether the statement would walk down columns, its parallel loop along rows being the one it keeps, for others of fewer dimensions only, alone or beside others that would, too: what
        they share with it is small, and rows are how memory is read best."""
        if not self._keeps_columns(name, part, joined):
            return False
        others = [(other, group) for group in parts if group is not part for other in group.names]
        dimensions = len(self.problem.scop.statements[name].indices)
        fewer = [self.problem.dimension(other) < dimensions for other, _ in others]
        return any(fewer) and all(
            small or self._keeps_columns(other, group, joined)
            for small, (other, group) in zip(fewer, others, strict=True)
        )

    def _keeps_columns(self, name: str, part: Part, joined: Part) -> bool:
        """Whether the statement has parallel loops across its result's rows, and keeps the one along them only."""
        own = {loop.rows[name].index for loop in part.parallel}
        kept = {loop.rows[name].index for loop in joined.parallel if name in loop.rows}
        along = self._along_rows(name)
        return along is not None and None not in own and bool(own - kept) and along in kept

    def _along_rows(self, name: str) -> int | None:
        """The position of the index that goes along the rows of the result, in steps within a line."""
        statement = self.problem.scop.statements[name]
        last = statement.target.subscripts[-1] if statement.target.subscripts else None
        followed = followed_index(last, statement.indices)
        size = self.problem.scop.arrays[statement.target.array].dtype.itemsize
        return statement.indices.index(followed[0]) if followed is not None and followed[1] * size < LINE else None

    def _walks_columns(self, joined: Part, parts: Sequence[Part]) -> bool:
        """Whether all parts would walk down columns which each of them can go through row by row, and keep nothing else in common: what they pass on stays in cache for that, and all else comes a piece of each row
        at a time. It does not pay where rows are long, nor where a strip of what they have in common, a line of each row wide, is more than stays in L2. In a loop over steps tiles decide."""
        if len(joined.parallel) != 1:
            return False
        length = self._iterations(joined.parallel)
        if length < LONG_ROW and not self._leaves_l2(length, parts):
            return False
        return all(self._leaves_rows(name, part, joined) for part in parts for name in part.names)

    def _leaves_l2(self, length: int, parts: Sequence[Part]) -> bool:
        """Whether a strip of the arrays that several parts read or write, a line of each of their rows of that length wide, is too much for L2."""
        arrays = [frozenset[str]().union(*map(self.matcher.arrays, part.names)) for part in parts]
        common = {name for k, names in enumerate(arrays) for other in arrays[:k] for name in names & other}
        found = [self.problem.scop.arrays[name] for name in sorted(common)]
        strips = ((array.bytes or 0) // length * (LINE // array.dtype.itemsize) for array in found)
        return LITTLE * sum(strips) > self.machine.l2_bytes > 0

    def _leaves_rows(self, name: str, part: Part, joined: Part) -> bool:
        """Whether the statement has parallel loops along and across its result's rows, and keeps the one along them only."""
        own = {loop.rows[name].index for loop in part.parallel if name in loop.rows}
        (kept,) = (loop.rows[name].index for loop in joined.parallel)
        if self.problem.scop.statements[name].loop_depth or kept is None or None in own or len(own) < 2:
            return False
        return kept in own and kept == self._along_rows(name)

    def _iterations(self, loops: Sequence[Hyperplane]) -> int:
        total = 1
        for loop in loops:
            name, row = next(iter(loop.rows.items()))
            total *= (None if row.index is None else self.matcher.extent(name, row.index)) or 1_000
        return total

    def _topological(self, parts: list[Part]) -> list[Part]:
        order = topological([part.names for part in parts], self.edges, [self._rank(part) for part in parts])
        return [parts[k] for k in order]

    def _rank(self, part: Part) -> int:
        return min(self.position[name] for name in part.names)

    def _in_order(self, one: Part, other: Part) -> tuple[str, ...]:
        return tuple(sorted((*one.names, *other.names), key=self.position.__getitem__))
