"""Which loops of different statements may be one loop: index pairs that every dependence between two statements holds equal.

Two statements can share a loop over index a of one and b of the other when each dependence between them has the same value of a and b at both ends: then the shared
loop carries nothing and may run in parallel. Dense array programs fuse this way and no other, and it is decided per pair of statements, without an ILP.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import islpy as isl

from polyml.expressions import Expr, Read, reads_of
from polyml.records import dataclass
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["Assignment", "Matcher"]

Assignment = Mapping[str, int]
"""One shared loop: per statement the position of its index."""

_In, _Out = isl.dim_type.in_, isl.dim_type.out


@dataclass(frozen=True, slots=True)
class _Edge:
    """The dependences from one statement to another, as the index pairs they hold equal; `relaxed` ones are within a reduction."""

    source: str
    sink: str
    equal: frozenset[tuple[int, int]]


class Matcher:
    """Answers questions on one scop; the isl part is done once, when it is made."""

    def __init__(self, scop: Scop, dependences: Dependences, *, relax_reductions: bool) -> None:
        self.scop = scop
        self.maps = _by_pair(dependences.validity)
        reductions = _by_pair(dependences.reduction)
        if not relax_reductions:
            self.maps = _merged(self.maps, reductions)
            reductions = {}
        self._edges = {pair: _Edge(*pair, _equal_pairs(m)) for pair, m in self.maps.items()}
        self._updates = {pair[0]: _equal_pairs(m) for pair, m in reductions.items() if pair[0] == pair[1]}
        self._ranges = {name: _ranges(statement, scop.context) for name, statement in scop.statements.items()}
        self._accesses = {name: _accesses(statement) for name, statement in scop.statements.items()}
        self._hints: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {}

    def successors(self, group: Iterable[str], live: Mapping[tuple[str, str], isl.UnionMap]) -> dict[str, set[str]]:
        """The dependence graph on a group, from the pairs that are still live; no self-loops."""
        inside = set(group)
        graph: dict[str, set[str]] = {name: set() for name in inside}
        for source, sink in live:
            if source in inside and sink in inside and source != sink:
                graph[source].add(sink)
        return graph

    def shared_loops(
        self,
        group: tuple[str, ...],
        used: Mapping[str, frozenset[int]],
        live: Mapping[tuple[str, str], isl.UnionMap],
        *,
        relaxed: bool,
    ) -> list[Assignment]:
        """All loops that the whole group can share and that carry nothing: no dependence, and no reduction either unless `relaxed`.

        Args:
            used: index positions that outer loops have taken.
            live: the dependences that outer loops have left.
        """
        edges = [
            self._edges[pair] if m is self.maps[pair] else _Edge(*pair, _equal_pairs(m))
            for pair, m in live.items()
            if pair[0] in group and pair[1] in group
        ]
        taken = {name: set(used[name]) for name in group}
        seed = min(group, key=lambda name: len(self.scop.statements[name].indices) - len(taken[name]))
        found: list[Assignment] = []
        for position in range(len(self.scop.statements[seed].indices)):
            if position in taken[seed]:
                continue
            assignment = self._spread({seed: position}, group, edges, taken)
            if assignment is None or not self._allowed(assignment, edges, relaxed=relaxed):
                continue
            found.append(assignment)
            for name, index in assignment.items():
                taken[name].add(index)
        return found

    def carries_nothing(self, assignment: Assignment) -> bool:
        """Whether a loop shared that way has zero distance for every dependence between its statements, reductions apart."""
        return all(
            (assignment[edge.source], assignment[edge.sink]) in edge.equal
            for edge in self._edges.values()
            if edge.source in assignment and edge.sink in assignment
        )

    def is_reduction(self, name: str, position: int) -> bool:
        """Whether the statement's reduction runs along that index."""
        equal = self._updates.get(name)
        return equal is not None and (position, position) not in equal

    def extent(self, name: str, position: int) -> int | None:
        """Width of the statement's box along an index; None when it depends on sizes."""
        return self._ranges[name][position][2]

    def values(self, name: str, position: int, offset: int = 0) -> Hashable:
        """The first and last value of the statement's index plus `offset`: equal for equal ranges."""
        low, high, width = self._ranges[name][position]
        if width is not None:
            first = low.max_val().to_python() + offset
            return first, first + width - 1
        shift = isl.Val.int_from_si(isl.DEFAULT_CONTEXT, offset)
        return str(low.add_constant_val(shift)), str(high.add_constant_val(shift))

    def arrays(self, name: str) -> frozenset[str]:
        """The arrays that the statement touches."""
        return frozenset(array for array, _ in self._accesses[name])

    def aligned(self, one: str, position: int, other: str, position2: int) -> bool:
        """Whether the two indices stand in the same place of a common array."""
        return (position, position2) in self._hint(one, other)

    def related(self, one: str, other: str) -> bool:
        """Whether the two statements touch a common array with the same index in the same place."""
        return bool(self._hint(one, other))

    def _spread(
        self, assignment: dict[str, int], group: tuple[str, ...], edges: list[_Edge], taken: Mapping[str, set[int]]
    ) -> dict[str, int] | None:
        """The assignment on the whole group that follows from its start along the dependences, then along common arrays."""
        queue = list(assignment)
        while True:
            while queue:
                name = queue.pop(0)
                for edge in edges:
                    other, pairs = _across(edge, name)
                    if other is None or other in assignment:
                        continue
                    match = self._first_free(name, assignment[name], other, pairs, taken)
                    if match is None:
                        return None
                    assignment[other] = match
                    queue.append(other)
            missing = [name for name in group if name not in assignment]
            if not missing:
                return assignment
            for name in missing:
                for known in list(assignment):
                    match = self._first_free(known, assignment[known], name, self._hint(known, name), taken)
                    if match is not None:
                        assignment[name] = match
                        queue.append(name)
                        break
                if queue:
                    break
            else:
                return None

    def _first_free(
        self, name: str, position: int, other: str, pairs: Iterable[tuple[int, int]], taken: Mapping[str, set[int]]
    ) -> int | None:
        same = [b for a, b in pairs if a == position and b not in taken[other]]
        mine = self._ranges[name][position]
        for candidate in sorted(same):
            theirs = self._ranges[other][candidate]
            if mine[0].plain_is_equal(theirs[0]) and mine[1].plain_is_equal(theirs[1]):
                return candidate
        return None

    def _allowed(self, assignment: Assignment, edges: list[_Edge], *, relaxed: bool) -> bool:
        if not all((assignment[edge.source], assignment[edge.sink]) in edge.equal for edge in edges):
            return False
        return relaxed or not any(self.is_reduction(name, position) for name, position in assignment.items())

    def _hint(self, one: str, other: str) -> tuple[tuple[int, int], ...]:
        """Index pairs that stand in the same place of a common array."""
        key = (one, other)
        if key not in self._hints:
            first, second = self.scop.statements[one], self.scop.statements[other]
            found = [
                (first.indices.index(a), second.indices.index(b))
                for array, subscripts in self._accesses[one]
                for array2, subscripts2 in self._accesses[other]
                if array == array2
                for a, b in zip(subscripts, subscripts2, strict=True)
                if a is not None and b is not None and a in first.indices and b in second.indices
            ]
            self._hints[key] = tuple(dict.fromkeys(found))
        return self._hints[key]


def _across(edge: _Edge, name: str) -> tuple[str | None, Iterable[tuple[int, int]]]:
    if edge.source == name:
        return edge.sink, edge.equal
    if edge.sink == name:
        return edge.source, ((b, a) for a, b in edge.equal)
    return None, ()


def _accesses(statement: Statement) -> list[tuple[str, tuple[str | None, ...]]]:
    """Arrays and, per dimension, the index that the subscript consists of."""

    def names(subscripts: tuple[Expr | Affine, ...]) -> tuple[str | None, ...]:
        return tuple(s.name if isinstance(s, Affine) else None for s in subscripts)

    reads: list[Read] = reads_of(statement.value)
    return [(r.tensor, names(r.subscripts)) for r in reads] + [
        (statement.target.array, names(statement.target.subscripts))
    ]


def _ranges(statement: Statement, context: isl.Set) -> list[tuple[isl.PwAff, isl.PwAff, int | None]]:
    domain = statement.domain
    found: list[tuple[isl.PwAff, isl.PwAff, int | None]] = []
    for position in range(len(statement.indices)):
        low, high = domain.dim_min_val(position), domain.dim_max_val(position)
        width = (high - low).to_python() + 1 if low.is_int() and high.is_int() else None
        if width is None:
            ends = (domain.dim_min(position), domain.dim_max(position))
            first, last = (end.coalesce().gist_params(context) for end in ends)
            found.append((first, last, None))
        else:
            space = isl.Space.params_alloc(domain.get_ctx(), 0)
            found.append((isl.PwAff.from_aff(_constant(space, low)), isl.PwAff.from_aff(_constant(space, high)), width))
    return found


def _constant(space: isl.Space, value: isl.Val) -> isl.Aff:
    return isl.Aff.val_on_domain(isl.LocalSpace.from_space(space.set_from_params()), value)


def _by_pair(relation: isl.UnionMap) -> dict[tuple[str, str], isl.UnionMap]:
    maps = relation.get_map_list()
    found = {}
    for m in (maps.get_at(k) for k in range(maps.n_map())):
        found[m.get_tuple_name(_In), m.get_tuple_name(_Out)] = m.to_union_map()
    return dict(sorted(found.items()))


def _merged(
    first: dict[tuple[str, str], isl.UnionMap], second: dict[tuple[str, str], isl.UnionMap]
) -> dict[tuple[str, str], isl.UnionMap]:
    total = dict(first)
    for pair, m in second.items():
        total[pair] = total[pair].union(m) if pair in total else m
    return total


def _equal_pairs(relation: isl.UnionMap) -> frozenset[tuple[int, int]]:
    """Index positions (a, b) with source[a] == sink[b] in the whole relation, read off the equalities of its affine hull."""
    hull = relation.as_map().affine_hull()
    sources, sinks = hull.dim(_In), hull.dim(_Out)
    universe = isl.Map.universe(hull.get_space())
    return frozenset(
        (a, b)
        for a in range(sources)
        for b in range(sinks)
        if hull.to_map().is_subset(universe.equate(_In, a, _Out, b))
    )
