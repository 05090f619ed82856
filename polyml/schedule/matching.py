"""What the indices of statements are to each other: which ones dependences hold equal, which ones reduce, how far they run, which data they share.

Dense array programs fuse along equal indices and no other; nothing here needs an integer program.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

import islpy as isl

from polyml.expressions import Expr, reads_of
from polyml.schedule.ilp.cones import Cone, cones_of
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.equalities import solved_for
from polyml.sets.from_isl import integer
from polyml.sets.spaces import maps_of
from polyml.sets.tables import table_of

__all__ = ["Assignment", "Matcher"]

Assignment = Mapping[str, int]
"""One shared loop: per statement the position of its index."""

Pair = tuple[str, str]
Positions = frozenset[tuple[int, int]]

_Place = tuple[str, int, int]
"""An index, how many elements it goes at a step, and how many steps ahead."""

_In, _Out = isl.dim_type.in_, isl.dim_type.out


class Matcher:
    """Answers questions on one scop; what isl has to say is asked once, when it is needed."""

    def __init__(self, scop: Scop, dependences: Dependences, *, relax_reductions: bool) -> None:
        self.scop = scop
        self._dependences = dependences
        self._relax_reductions = relax_reductions
        self._cones: list[Cone] | None = None
        self._maps = _by_pair(dependences.validity)
        self._reductions = _by_pair(dependences.reduction)
        # Of two statements that update one array, loops may have another order, but nothing here treats them as one reduction.
        ordered = {pair: m for pair, m in self._reductions.items() if pair[0] != pair[1] or not relax_reductions}
        self._maps = _merged(self._maps, ordered)
        self._reductions = {pair: m for pair, m in self._reductions.items() if pair not in ordered}
        self._equal: dict[Pair, Positions] = {}
        self._reduced: dict[str, Positions] = {}
        self._ranges = {name: _ranges(statement, scop.context) for name, statement in scop.statements.items()}
        self._accesses = {name: _accesses(statement) for name, statement in scop.statements.items()}
        self._hints: dict[Pair, tuple[tuple[int, int], ...]] = {}

    @property
    def cones(self) -> list[Cone]:
        """The dependences as generators."""
        if self._cones is None:
            self._cones = cones_of(self.scop, self._dependences, relax_reductions=self._relax_reductions)
        return self._cones

    @property
    def edges(self) -> frozenset[Pair]:
        """Which statements depend on which: source and sink."""
        return frozenset(self._maps)

    def carries_nothing(self, assignment: Assignment) -> bool:
        """Whether a loop shared that way has zero distance for every dependence between its statements, reductions apart."""
        return next(self.moving(assignment), None) is None

    def moving(self, assignment: Assignment) -> Iterator[isl.UnionMap]:
        """The dependences between its statements, by pairs of these, that may have other distances; without reductions, unless they have an order."""
        for pair, dependence in self._maps.items():
            if pair[0] not in assignment or pair[1] not in assignment:
                continue
            if (assignment[pair[0]], assignment[pair[1]]) not in self._equal_indices(pair):
                yield dependence

    def commutes(self, dependence: isl.UnionMap) -> bool:
        """Whether the dependence of a pair is one statement's on itself, or goes between updates that may change places."""
        own = all(m.get_tuple_name(_In) == m.get_tuple_name(_Out) for m in maps_of(dependence))
        return own or bool(dependence.is_subset(self._dependences.reduction))

    def _equal_indices(self, pair: Pair) -> Positions:
        if pair not in self._equal:
            self._equal[pair] = _equal_pairs(self._maps[pair])
        return self._equal[pair]

    def is_reduction(self, name: str, position: int) -> bool:
        """Whether the statement's reduction runs along that index."""
        if (name, name) not in self._reductions:
            return False
        if name not in self._reduced:
            self._reduced[name] = _equal_pairs(self._reductions[name, name])
        return (position, position) not in self._reduced[name]

    def is_recurrence(self, name: str, position: int) -> bool:
        """Whether the statement depends on itself along that index, other than as a reduction."""
        return (name, name) in self._maps and (position, position) not in self._equal_indices((name, name))

    def extent(self, name: str, position: int) -> int | None:
        """Width of the statement's box along an index; None when it depends on sizes."""
        return self._ranges[name][position][2]

    def values(self, name: str, position: int, offset: int = 0) -> Hashable:
        """The first and last value of the statement's index plus `offset`: equal for equal ranges."""
        low, high, width = self._ranges[name][position]
        if width is not None:
            first = integer(low.max_val()) + offset
            return first, first + width - 1
        shift = isl.Val.int_from_si(isl.DEFAULT_CONTEXT, offset)
        ends = (low.add_constant_val(shift), high.add_constant_val(shift))
        return tuple(str(end).partition("->")[2] for end in ends)  # without the sizes, whose order is no matter

    def arrays(self, name: str) -> frozenset[str]:
        """The arrays that the statement touches."""
        return frozenset(array for array, _ in self._accesses[name])

    def aligned(self, one: str, position: int, other: str, position2: int) -> bool:
        """Whether the two indices stand in the same place of a common array."""
        return (position, position2) in self._hint(one, other)

    def related(self, one: str, other: str) -> bool:
        """Whether the two statements touch a common array with the same index in the same place."""
        return bool(self._hint(one, other))

    def _hint(self, one: str, other: str) -> tuple[tuple[int, int], ...]:
        """Index pairs that stand in the same place of a common array."""
        key = (one, other)
        if key not in self._hints:
            first, second = self.scop.statements[one], self.scop.statements[other]
            found = [
                (first.indices.index(a[0]), second.indices.index(b[0]))
                for array, subscripts in self._accesses[one]
                for array2, subscripts2 in self._accesses[other]
                if array == array2
                for a, b in zip(subscripts, subscripts2, strict=True)
                if a is not None and b is not None and a[1:] == b[1:]
                if a[0] in first.indices and b[0] in second.indices
            ]
            self._hints[key] = tuple(dict.fromkeys(found))
        return self._hints[key]


def _accesses(statement: Statement) -> list[tuple[str, tuple[_Place | None, ...]]]:
    """Arrays and, per dimension, where the subscript's index goes."""
    target = statement.target
    computed = [s for s in target.subscripts if not isinstance(s, Affine)]
    reads = [r for expr in (statement.value, *computed) for r in reads_of(expr)]
    elements = [*((r.tensor, r.subscripts) for r in reads), (target.array, target.subscripts)]
    return [(array, tuple(map(_place, subscripts))) for array, subscripts in elements]


def _place(subscript: Expr | Affine) -> _Place | None:
    """The index that a subscript consists of, or that goes in steps of several elements (`y[2*i]` and `y[2*i + 1]` are in the same step); else None."""
    if not isinstance(subscript, Affine) or len(subscript.terms) != 1:
        return None
    ((atom, step),) = subscript.terms
    if not isinstance(atom, str) or step < 1 or (step == 1 and subscript.constant):
        return None
    return atom, step, subscript.constant // step


def _ranges(statement: Statement, context: isl.Set) -> list[tuple[isl.PwAff, isl.PwAff, int | None]]:
    domain = statement.domain
    found: list[tuple[isl.PwAff, isl.PwAff, int | None]] = []
    for position in range(len(statement.indices)):
        low, high = domain.dim_min_val(position), domain.dim_max_val(position)
        width = integer(high - low) + 1 if low.is_int() and high.is_int() else None
        if width is None:
            ends = (domain.dim_min(position), domain.dim_max(position))
            known = context.intersect(domain.params())  # an empty loop runs through any values
            first, last = (end.coalesce().gist_params(known) for end in ends)
            found.append((first, last, None))
        else:
            space = isl.Space.params_alloc(domain.get_ctx(), 0)
            found.append((isl.PwAff.from_aff(_constant(space, low)), isl.PwAff.from_aff(_constant(space, high)), width))
    return found


def _constant(space: isl.Space, value: isl.Val) -> isl.Aff:
    return isl.Aff.val_on_domain(isl.LocalSpace.from_space(space.set_from_params()), value)


def _by_pair(relation: isl.UnionMap) -> dict[tuple[str, str], isl.UnionMap]:
    found = {}
    for m in maps_of(relation):
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
    if hull.is_empty():
        return frozenset((a, b) for a in range(sources) for b in range(sinks))
    solved = solved_for(table_of(hull.wrap().flatten()).tolist(), sources + sinks)
    return frozenset((a, b) for a in range(sources) for b in range(sinks) if solved[a] == solved[sources + b])
