"""One iteration of the sequential loops around all statements, as a scop of its own, and back.

What runs one after the other in an iteration, and in which blocks, is the same question as without loops around: their variables are sizes there, of which nothing is known but that they are in range. What is made of the
iteration gets its loops back; dependences from one iteration to the next are the loops' own, since these stay outermost.

Rewrite: S[t, i] -> [t] -> { S[i] }, and the other way round
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from functools import reduce
from typing import TypeVar

import islpy as isl

from polyml.expressions import substitute
from polyml.records import dataclass
from polyml.schedule.schedule import Storage
from polyml.schedule.transforms import Loop, insert_band, insert_mark, insert_sequence
from polyml.schedule.tree import Kind, band_rows, kind_of, mark_name
from polyml.schedule.written import with_statements
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import sets_of

__all__ = ["Body", "body_of"]

_PARAM, _SET, _IN, _OUT = isl.dim_type.param, isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out

_Mapped = TypeVar("_Mapped", isl.PwAff, isl.MultiAff)


@dataclass(frozen=True, slots=True)
class Body:
    """scop: of one iteration, of whose sizes those are left that it asks for. loops: the variables, the outermost first. whole: the scop with the loops. range: of the loops, a set of parameters."""

    scop: Scop
    loops: tuple[str, ...]
    whole: Scop
    range: isl.Set

    def asks_for_loops(self, s: Statement) -> bool:
        """Whether a statement of the iteration is another one in another iteration."""
        return any(_asks(s, loop) for loop in self.loops)

    def scop_in_loops(self, scop: Scop, ahead: Set[str] = frozenset()) -> Scop:
        """What is made of the iteration, its statements one after the other, with the loops around. ahead: statements that run once, ahead of the loops (copies_ahead.py)."""
        statements = {
            name: replace(s, domain=self._outside(s.domain)) if name in ahead else self._inside(s)
            for name, s in scop.statements.items()
        }
        arrays = {name: self.whole.arrays.get(name, array) for name, array in scop.arrays.items()}
        return with_statements(self.whole, statements, arrays, loops=self.loops, ahead=ahead)

    def tree_in_loops(
        self,
        tree: isl.Schedule,
        scop: Scop,
        *,
        apart: bool = False,
        mark: str | None = None,
        ahead: isl.Schedule | None = None,
    ) -> isl.Schedule:
        """A tree of the iteration with the loops around. scop: with the loops. apart: their iterations are independent; mark: above each of them. ahead: the tree of what runs ahead of the loops."""
        leaf = isl.Schedule.from_domain(scop.domain).get_root().child(0)
        once = set[str]() if ahead is None else {part.get_tuple_name() for part in sets_of(ahead.get_domain())}
        if ahead is not None:
            parts = sets_of(scop.domain)
            first, then = (
                reduce(isl.UnionSet.union, (p.to_union_set() for p in parts if (p.get_tuple_name() in once) is own))
                for own in (True, False)
            )
            leaf = insert_sequence(leaf, [first, then]).child(0).child(0)
            leaf = self._grafted(leaf, ahead.get_root().child(0), scop.domain, once).parent().next_sibling().child(0)
        for position in range(len(self.loops)):
            row = isl.UnionPwAff.empty_space(scop.context.get_space())
            for s in scop.statements.values():
                if s.name in once:
                    continue
                row = row.union_add(
                    isl.PwAff.var_on_domain(
                        isl.LocalSpace.from_space(s.domain.get_space()), _SET, position
                    ).to_union_pw_aff()
                )
            leaf = leaf if mark is None else insert_mark(leaf, mark).child(0)
            leaf = insert_band(leaf, [Loop(row, apart)], permutable=True).child(0)
        return self._grafted(leaf, tree.get_root().child(0), scop.domain, once).get_schedule()

    def storage_in_loops(self, storage: Storage, ahead: Set[str] = frozenset()) -> Storage:
        """Room of the iteration, the same in each; or of what statements `ahead` of the loops fill."""
        offsets = {name: self._moved(offset, name in ahead) for name, offset in storage.offsets.items()}
        return replace(storage, offsets=offsets, place=storage.place if ahead.isdisjoint(offsets) else "")

    def _grafted(
        self, leaf: isl.ScheduleNode, subtree: isl.ScheduleNode, domain: isl.UnionSet, once: Set[str]
    ) -> isl.ScheduleNode:
        """A copy of the subtree, of the iteration, in the leaf's place. once: statements outside of the loops."""
        match kind_of(subtree):
            case Kind.leaf:
                return leaf
            case Kind.band:
                loops = [
                    Loop(self._row_moved(row, once), bool(subtree.band_member_get_coincident(k)))
                    for k, row in enumerate(band_rows(subtree))
                ]
                node = insert_band(leaf, loops, permutable=bool(subtree.band_get_permutable()))
                return self._grafted(node.child(0), subtree.child(0), domain, once).parent()
            case Kind.mark:
                node = insert_mark(leaf, mark_name(subtree))
                return self._grafted(node.child(0), subtree.child(0), domain, once).parent()
            case Kind.sequence | Kind.set:
                parts = [subtree.child(k) for k in range(subtree.n_children())]
                node = insert_sequence(
                    leaf, [self._points_moved(part.filter_get_filter(), once).intersect(domain) for part in parts]
                )
                for k, part in enumerate(parts):
                    node = self._grafted(node.child(k).child(0), part.child(0), domain, once).parent().parent()
                return node
            case other:
                raise AssertionError(f"internal: a schedule tree has a {other} where none is made")

    def _moved(self, own: _Mapped, outside: bool) -> _Mapped:
        """The function of a statement's instances with the loops among their indices; or without them, where it is `outside` of the loops."""
        name = own.get_tuple_id(_IN)
        for position, loop in enumerate(self.loops):
            at = own.find_dim_by_name(_PARAM, loop)
            if outside:
                own = own if at < 0 else own.drop_dims(_PARAM, at, 1)
            else:
                own = own.insert_dims(_IN, position, 1) if at < 0 else own.move_dims(_IN, position, _PARAM, at, 1)
        return own.set_tuple_id(_IN, name)

    def _row_moved(self, row: isl.UnionPwAff, once: Set[str]) -> isl.UnionPwAff:
        pieces = row.get_pw_aff_list()
        moved = (
            self._moved(piece, piece.get_tuple_id(_IN).get_name() in once).to_union_pw_aff()
            for piece in (pieces.get_at(k) for k in range(pieces.n_pw_aff()))
        )
        return reduce(isl.UnionPwAff.union_add, moved)

    def _points_moved(self, points: isl.UnionSet, once: Set[str]) -> isl.UnionSet:
        moved = (
            self._outside(part) if part.get_tuple_name() in once else self._points_inside(part)
            for part in sets_of(points)
        )
        return reduce(isl.UnionSet.union, (part.to_union_set() for part in moved))

    def _points_inside(self, points: isl.Set) -> isl.Set:
        name = points.get_tuple_name()
        for position, loop in enumerate(self.loops):
            at = points.find_dim_by_name(_PARAM, loop)
            points = (
                points.insert_dims(_SET, position, 1) if at < 0 else points.move_dims(_SET, position, _PARAM, at, 1)
            )
        return points.set_tuple_name(name)

    def _outside(self, points: isl.Set) -> isl.Set:
        """The points without the loops' variables, which they do not depend on."""
        for loop in self.loops:
            at = points.find_dim_by_name(_PARAM, loop)
            points = points if at < 0 else points.project_out(_PARAM, at, 1)
        return points

    def _inside(self, s: Statement) -> Statement:
        depth = len(self.loops)
        domain = s.domain.intersect_params(self.range)
        for position, loop in enumerate(self.loops):
            domain = domain.move_dims(_SET, position, _PARAM, domain.find_dim_by_name(_PARAM, loop), 1)
        return _named(replace(s, indices=(*self.loops, *s.indices), loop_depth=depth), domain)


def body_of(scop: Scop) -> Body | None:
    """One iteration of the loops around all statements, which run one after the other in it; None where some are in other loops, or there is no iteration."""
    first = next(iter(scop.statements.values()))
    depth = first.loop_depth
    loops = first.indices[:depth]
    if any(s.loop_depth != depth or s.indices[:depth] != loops for s in scop.statements.values()):
        return None
    if not depth:
        return Body(scop, (), scop, scop.context)
    if not _one_after_the_other(scop, depth):
        return None
    statements = {name: _alone(s, depth) for name, s in scop.statements.items()}
    inside = statements[first.name].domain.params()
    if not all(s.domain.params().is_equal(inside) for s in statements.values()):
        return None
    context = scop.context.intersect(inside)
    if context.is_empty():
        return None
    statements = {name: replace(s, domain=s.domain.gist_params(context)) for name, s in statements.items()}
    sizes = tuple(name for name in (*scop.sizes, *loops) if _is_used(name, scop, statements))
    statements = {name: _named(s, _only(s.domain, sizes)) for name, s in statements.items()}
    inner = replace(scop, sizes=sizes, context=_only(context, sizes), statements=statements)
    return Body(with_statements(inner, statements, scop.arrays), loops, scop, inside)


def _is_used(name: str, scop: Scop, statements: Mapping[str, Statement]) -> bool:
    """Whether anything but the range of the loops asks for the size."""
    if any(name in extent.variables() for array in scop.arrays.values() for extent in array.shape):
        return True
    return name in scop.products or any(_asks(s, name) for s in statements.values())


def _asks(s: Statement, name: str) -> bool:
    at = s.domain.find_dim_by_name(_PARAM, name)
    if at >= 0 and s.domain.involves_dims(_PARAM, at, 1):
        return True
    other = {name: affine(f"{name}_")}
    places = [*s.target.subscripts, *(() if s.argument is None else s.argument.subscripts)]
    values = [*places, s.value, *(() if s.argument_value is None else (s.argument_value,))]
    return any((v.substitute(other) if isinstance(v, Affine) else substitute(v, other)) != v for v in values)


def _only(points: isl.Set, sizes: tuple[str, ...]) -> isl.Set:
    """The set without other parameters than these."""
    for at in reversed(range(points.dim(_PARAM))):
        if points.get_dim_name(_PARAM, at) not in sizes:
            points = points.project_out(_PARAM, at, 1)
    return points


def _alone(s: Statement, depth: int) -> Statement:
    domain = s.domain.move_dims(_PARAM, s.domain.dim(_PARAM), _SET, 0, depth)
    for loop in s.indices[:depth]:
        domain = domain.set_dim_name(_PARAM, domain.dim(_PARAM) - depth + s.indices.index(loop), loop)
    return _named(replace(s, indices=s.indices[depth:], loop_depth=0), domain)


def _named(s: Statement, domain: isl.Set) -> Statement:
    domain = domain.set_tuple_name(s.name)
    for position, name in enumerate(s.indices):
        domain = domain.set_dim_name(_SET, position, name)
    return replace(s, domain=domain)


def _one_after_the_other(scop: Scop, depth: int) -> bool:
    """Whether in each iteration all instances of a statement were written before those of the next: times are a position and a loop's value by turns, then a position."""
    ahead: int | None = None
    around: tuple[int, ...] | None = None
    for s in scop.statements.values():
        time = scop.initial.intersect_domain(s.domain.to_union_set())
        if time.is_empty():
            return False
        own = time.as_map()
        if own.dim(_OUT) <= 2 * depth:
            return False
        places = [own.plain_get_val_if_fixed(_OUT, 2 * d) for d in range(depth + 1)]
        if not all(place.is_int() for place in places):
            return False
        if not all(own.is_subset(own.equate(_IN, d, _OUT, 2 * d + 1)) for d in range(depth)):
            return False
        *outer, position = (place.to_python() for place in places)
        if (around is not None and tuple(outer) != around) or (ahead is not None and position <= ahead):
            return False
        around, ahead = tuple(outer), position
    return True
