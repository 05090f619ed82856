"""The proof that a schedule may run: decided by isl on the tree itself, for every schedule that is emitted.

The tree is walked from the root with the dependences that nothing above has satisfied: a band must not order a sink before its source, and drops the
pairs that it separates; a sequence must not have a sink in an earlier child than its source; at a leaf nothing may be left. What is left of reductions, whose order is free,
is computed where a mark asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache

import islpy as isl

from polyml.errors import IllegalScheduleError, Violation
from polyml.expressions import Subscript
from polyml.records import dataclass
from polyml.schedule.schedule import Schedule
from polyml.schedule.tree import Kind, Member, kind_of, loop_word, mark_name, members, set_names
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import maps_of, sets_of

__all__ = ["check", "check_tree", "instance_text"]


def check(schedule: Schedule, *, relax_reductions: bool = True) -> None:
    """Prove that the schedule runs every instance once and respects every dependence, marks included.

    A `parallel` or `jam` band must carry neither a dependence nor a reduction (of different iterations at once), a `vector` band may carry reductions
    into elements that do not depend on it (its lanes are privatized). What a `pipelined` band carries must not go to a smaller value of the `stage` band right inside, nor be a reduction. `block` is held to the rule of `parallel`, `thread` to that of `vector`. Without `relax_reductions` the order within a reduction is kept as well.
    Updates that are atomic may meet in any of both.

    Raises:
        IllegalScheduleError: with one violated pair of instances.
    """
    found = schedule.dependences
    kinds = {"flow": found.flow, "anti": found.anti, "output": found.output, "reduction": found.reduction}
    check_tree(
        schedule.tree, schedule.scop, found.validity, found.reduction,
        relax_reductions=relax_reductions, kinds=kinds, atomic=schedule.atomic,
    )  # fmt: skip


def check_tree(
    tree: isl.Schedule,
    scop: Scop,
    validity: isl.UnionMap,
    reduction: isl.UnionMap,
    *,
    relax_reductions: bool = True,
    kinds: Mapping[str, isl.UnionMap] | None = None,
    atomic: Set[str] = frozenset(),
) -> None:
    """`check` on a tree of its own. kinds: the dependences by kind, to name the one that is violated. atomic: statements."""
    if not tree.get_domain().is_equal(scop.domain):
        raise IllegalScheduleError("the schedule's instances are not those of the region")
    strict = validity if relax_reductions else validity.union(reduction)
    relaxed = reduction if relax_reductions else isl.UnionMap.empty(reduction.get_space())
    updates = {
        (str(m.get_tuple_name(isl.dim_type.in_)), str(m.get_tuple_name(isl.dim_type.out))) for m in maps_of(relaxed)
    }
    _Walk(scop, kinds or {"reduction": reduction}, atomic, tuple(sorted(updates))).visit(
        tree.get_root().child(0), strict, None if relaxed.plain_is_empty() else lambda: relaxed, None
    )


_Later = Callable[[], isl.UnionMap] | None
"""Dependences that are computed once somebody asks for them; None: there are none."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """updates: the statements of reductions, source and sink."""

    scop: Scop
    kinds: Mapping[str, isl.UnionMap]
    atomic: Set[str]
    updates: tuple[tuple[str, str], ...]

    def visit(self, node: isl.ScheduleNode, strict: isl.UnionMap, relaxed: _Later, mark: str | None) -> None:
        """`strict`, `relaxed`: dependences between instances below the node that the path to it has left unordered. mark: of loops, the one right above."""
        if mark is not None and kind_of(node) not in (Kind.band, Kind.mark):
            raise IllegalScheduleError(f"the mark {mark} does not stand above a loop")
        match kind_of(node):
            case Kind.leaf:
                self._refuse_unless_empty(strict, "are not ordered")
            case Kind.mark:
                self.visit(node.child(0), strict, relaxed, _asked(node, mark))
            case Kind.band:
                strict, relaxed = self._band(node, strict, relaxed, mark)
                self.visit(node.child(0), strict, relaxed, None)
            case Kind.sequence:
                self._sequence(node, strict, relaxed)
            case Kind.set:
                self._set(node, strict, relaxed)
            case other:
                name = str(other).rsplit(".", 1)[-1]
                raise IllegalScheduleError(f"there is no rule for a node of kind {name} in a schedule tree")

    def _band(
        self, node: isl.ScheduleNode, strict: isl.UnionMap, relaxed: _Later, mark: str | None
    ) -> tuple[isl.UnionMap, _Later]:
        partial = self._everywhere(node.band_get_partial_schedule())
        kind = None if mark is None else loop_word(mark)
        runs_together = kind in ("parallel", "vector", "jam", "neighbours", "block", "thread")
        if not strict.plain_is_empty():
            equal = strict.eq_at_multi_union_pw_aff(partial)
            if runs_together:
                self._refuse_unless_empty(strict.subtract(equal), f"run at once in a {kind} loop")
            else:
                self._refuse_unless_empty(strict.lex_gt_at_multi_union_pw_aff(partial), "run in the opposite order")
            if kind == "pipelined":
                stages = self._everywhere(self._stages(node).band_get_partial_schedule())
                late = strict.subtract(equal).lex_gt_at_multi_union_pw_aff(stages)
                self._refuse_unless_empty(late, "run at once in a pipelined loop")
            strict = equal
        if relaxed is None:
            return strict, None
        keeps = cache(lambda: self._follows_elements(members(node, self.scop)))
        left = cache(lambda: relaxed() if keeps() else relaxed().eq_at_multi_union_pw_aff(partial))
        if kind in ("parallel", "pipelined", "jam", "block", "vector", "thread", "neighbours") and not keeps():
            carried = cache(lambda: self._carried(relaxed(), left(), kind))
            if kind in ("parallel", "pipelined", "jam", "block"):
                self._refuse_unless_empty(carried(), f"update one element at once in a {kind} loop")
            elif kind in ("vector", "thread") or (mark is not None and "digit" not in mark):
                # Digits of what one thread owns: it does its copies in order, and has nothing to combine with others.
                self._require_private(node, carried)
        return strict, left

    @staticmethod
    def _stages(node: isl.ScheduleNode) -> isl.ScheduleNode:
        """The band right below a pipelined one, where arrays of one iteration may stand between them."""
        mark = node.child(0)
        while kind_of(mark) == Kind.mark and mark_name(mark).startswith("allocate:"):
            mark = mark.child(0)
        if kind_of(mark) != Kind.mark or mark_name(mark) != "stage" or kind_of(mark.child(0)) != Kind.band:
            raise IllegalScheduleError(
                "a pipelined loop has no stages", hint="the loop right inside has the mark stage"
            )
        return mark.child(0)

    def _everywhere(self, partial: isl.MultiUnionPwAff) -> isl.MultiUnionPwAff:
        """The same functions of the region's instances, without conditions that hold for all of those: isl would drag them through every comparison."""
        return (
            partial
            if all(part.plain_is_universe() for part in sets_of(partial.domain()))
            else partial.gist(self.scop.domain)
        )

    def _carried(self, relaxed: isl.UnionMap, left: isl.UnionMap, kind: str) -> isl.UnionMap:
        """The updates of one element that a band's values tell apart."""
        carried = relaxed.subtract(left)
        return self._without_atomic(carried) if kind in ("block", "thread") and self.atomic else carried

    def _without_atomic(self, carried: isl.UnionMap) -> isl.UnionMap:
        """The pairs of updates that are not both atomic."""
        together = isl.UnionSet.empty(carried.get_space())
        for name in self.atomic:
            together = together.union(self.scop.statements[name].domain.to_union_set())
        return carried.subtract(carried.intersect_domain(together).intersect_range(together))

    def _follows_elements(self, loops: Sequence[Member]) -> bool:
        """Whether the band's values say which element an update goes to, and nothing more: updates of one element, which are all that a reduction relates, have the same ones."""
        for loop in loops:
            for source, sink in self.updates:
                if source in loop.rows and sink in loop.rows:
                    value = self._by_element(source, loop.rows[source])
                    if value is None or value != self._by_element(sink, loop.rows[sink]):
                        return False
        return True

    def _by_element(self, name: str, row: Affine | None) -> Affine | None:
        """A row as a function of the element that an update goes to (`e0` for its first subscript); None where it is none."""
        statement = self.scop.statements[name]
        argument = statement.argument
        if row is None or (argument is not None and argument.subscripts != statement.target.subscripts):
            return None
        subscripts = enumerate(statement.target.subscripts)
        places = {s.name: affine(f"e{d}") for d, s in subscripts if isinstance(s, Affine) and s.name is not None}
        known = places.keys() | set(self.scop.sizes)
        return row.substitute(places) if row.variables() <= known else None

    def _require_private(self, band: isl.ScheduleNode, carried: Callable[[], isl.UnionMap]) -> None:
        """The reductions that a vector loop carries must go to elements that do not depend on it."""
        loop = members(band, self.scop)[0]
        names = {name for pair in self.updates for name in pair if name in loop.rows}
        if all(self._keeps_element(name, loop) for name in names):
            return
        pairs = carried()
        if not all(self._keeps_element(name, loop) for name in set_names(pairs.domain())):
            self._refuse_unless_empty(pairs, "update one element from different lanes")

    def _keeps_element(self, name: str, loop: Member) -> bool:
        """Whether a statement goes to the same element in all iterations of a loop."""
        statement = self.scop.statements[name]
        row = loop.rows.get(name)
        moving = set(statement.indices) if row is None else row.variables()
        targets = [statement.target] if statement.argument is None else [statement.target, statement.argument]
        return all(_fixed(s, index) for t in targets for s in t.subscripts for index in moving)

    def _sequence(self, node: isl.ScheduleNode, strict: isl.UnionMap, relaxed: _Later) -> None:
        filters = [node.child(k).filter_get_filter() for k in range(node.n_children())]
        self._require_partition(node, filters)
        earlier: isl.UnionSet | None = None
        for position, inside in enumerate(filters):
            mine = strict.intersect_domain(inside)
            if earlier is not None:
                self._refuse_unless_empty(mine.intersect_range(earlier), "run in the opposite order")
            earlier = inside if earlier is None else earlier.union(inside)
            child = node.child(position).child(0)
            self.visit(child, mine.intersect_range(inside), _within(relaxed, inside), None)

    def _set(self, node: isl.ScheduleNode, strict: isl.UnionMap, relaxed: _Later) -> None:
        """Children in any order: no dependence may go from one to another."""
        filters = [node.child(k).filter_get_filter() for k in range(node.n_children())]
        self._require_partition(node, filters)
        for position, inside in enumerate(filters):
            mine = strict.intersect_domain(inside)
            self._refuse_unless_empty(mine.subtract_range(inside), "are not ordered")
            child = node.child(position).child(0)
            self.visit(child, mine, _within(relaxed, inside), None)

    def _require_partition(self, node: isl.ScheduleNode, filters: list[isl.UnionSet]) -> None:
        """Every instance is in exactly one child; whole statements are told by name."""
        counts: dict[str, int] = {}
        for inside in filters:
            for name in set_names(inside):
                counts[name] = counts.get(name, 0) + 1
        reach = node.get_domain()
        reaching = set(set_names(reach))
        split = {name for name, count in counts.items() if count > 1 and name in reaching}
        total = isl.UnionSet.empty(reach.get_space())
        for inside in filters:
            part = inside.intersect(reach)
            if split and not part.is_disjoint(total):
                raise IllegalScheduleError("a schedule runs an instance twice", hint=f"in {', '.join(sorted(split))}")
            total = total.union(part)
        if not reach.is_subset(total):
            raise IllegalScheduleError("a schedule leaves out an instance")

    def _refuse_unless_empty(self, violations: isl.UnionMap, what: str) -> None:
        if violations.is_empty():
            return
        pair = violations.sample()
        source, sink = pair.domain().sample_point(), pair.range().sample_point()
        edge = source.to_set().to_union_set(), sink.to_set().to_union_set()
        kind = next(
            (k for k, m in self.kinds.items() if not m.intersect_domain(edge[0]).intersect_range(edge[1]).is_empty()),
            "flow, anti or output",
        )
        found = Violation(kind, instance_text(source, self.scop), instance_text(sink, self.scop), what)
        sizes = _sizes_text(source)
        raise IllegalScheduleError(
            f"the schedule breaks a {kind} dependence: {found.source} and {found.sink} {what}{sizes}", violation=found
        )


def _asked(node: isl.ScheduleNode, outer: str | None) -> str | None:
    """What the mark, or else one above it, asks of the loop below: marks that ask nothing (the place of an array) may stand between."""
    mark = mark_name(node)
    if loop_word(mark) is None:
        return outer
    if outer is not None:
        raise IllegalScheduleError(f"the marks {outer} and {mark} stand above one loop")
    return mark


def _within(found: _Later, inside: isl.UnionSet) -> _Later:
    """The pairs of instances of a child."""
    return None if found is None else cache(lambda: found().intersect_domain(inside).intersect_range(inside))


def instance_text(point: isl.Point, scop: Scop) -> str:
    """`S[i = 0, j = 1]`."""
    name = point.to_set().get_tuple_name()
    assert name is not None, "internal: an instance of no statement"
    values = (point.get_coordinate_val(isl.dim_type.set, d) for d in range(len(scop.statements[name].indices)))
    return f"{name}[{', '.join(f'{i} = {v.to_str()}' for i, v in zip(scop.statements[name].indices, values, strict=True))}]"


def _sizes_text(point: isl.Point) -> str:
    space = point.get_space()
    count = space.dim(isl.dim_type.param)
    sizes = (
        f"{space.get_dim_name(isl.dim_type.param, d)} = {point.get_coordinate_val(isl.dim_type.param, d).to_str()}"
        for d in range(count)
    )
    return f" (for {', '.join(sizes)})" if count else ""


def _fixed(subscript: Subscript, index: str) -> bool:
    return isinstance(subscript, Affine) and index not in subscript.variables()
