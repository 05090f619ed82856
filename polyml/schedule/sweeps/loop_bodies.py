"""One iteration of the sequential loops around all statements, as a scop of its own, and back.

What runs one after the other in an iteration, and in which blocks, is the same question as without loops around: their variables are sizes there, of which nothing is known but that they are in range. What is made of the
iteration gets its loops back; dependences from one iteration to the next are the loops' own, since these stay outermost.

Rewrite: S[t, i] -> [t] -> { S[i] }, and the other way round
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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


@dataclass(frozen=True, slots=True)
class Body:
    """scop: of one iteration, of whose sizes those are left that it asks for. loops: the variables, the outermost first. whole: the scop with the loops. range: of the loops, a set of parameters."""

    scop: Scop
    loops: tuple[str, ...]
    whole: Scop
    range: isl.Set

    def scop_in_loops(self, scop: Scop) -> Scop:
        """What is made of the iteration, its statements one after the other, with the loops around."""
        statements = {name: self._inside(s) for name, s in scop.statements.items()}
        arrays = {name: self.whole.arrays.get(name, array) for name, array in scop.arrays.items()}
        return with_statements(self.whole, statements, arrays, loops=self.loops)

    def tree_in_loops(
        self, tree: isl.Schedule, scop: Scop, *, apart: bool = False, mark: str | None = None
    ) -> isl.Schedule:
        """A tree of the iteration with the loops around. scop: with the loops. apart: their iterations are independent; mark: above each of them."""
        leaf = isl.Schedule.from_domain(scop.domain).get_root().child(0)
        for position in range(len(self.loops)):
            row = isl.UnionPwAff.empty_space(scop.context.get_space())
            for s in scop.statements.values():
                row = row.union_add(
                    isl.PwAff.var_on_domain(
                        isl.LocalSpace.from_space(s.domain.get_space()), _SET, position
                    ).to_union_pw_aff()
                )
            leaf = leaf if mark is None else insert_mark(leaf, mark).child(0)
            leaf = insert_band(leaf, [Loop(row, apart)], permutable=True).child(0)
        return self._grafted(leaf, tree.get_root().child(0), scop.domain).get_schedule()

    def storage_in_loops(self, storage: Storage) -> Storage:
        """Room of the iteration, the same in each."""
        offsets = {name: self._map_inside(offset) for name, offset in storage.offsets.items()}
        return replace(storage, offsets=offsets)

    def _map_inside(self, offset: isl.MultiAff) -> isl.MultiAff:
        name = offset.get_tuple_name(_IN)
        for position, loop in enumerate(self.loops):
            at = offset.find_dim_by_name(_PARAM, loop)
            offset = offset.insert_dims(_IN, position, 1) if at < 0 else offset.move_dims(_IN, position, _PARAM, at, 1)
        return offset.set_tuple_name(_IN, name)

    def _grafted(self, leaf: isl.ScheduleNode, subtree: isl.ScheduleNode, domain: isl.UnionSet) -> isl.ScheduleNode:
        """A copy of the subtree, of the iteration, in the leaf's place."""
        match kind_of(subtree):
            case Kind.leaf:
                return leaf
            case Kind.band:
                loops = [
                    Loop(self._row_inside(row), bool(subtree.band_member_get_coincident(k)))
                    for k, row in enumerate(band_rows(subtree))
                ]
                node = insert_band(leaf, loops, permutable=bool(subtree.band_get_permutable()))
                return self._grafted(node.child(0), subtree.child(0), domain).parent()
            case Kind.mark:
                node = insert_mark(leaf, mark_name(subtree))
                return self._grafted(node.child(0), subtree.child(0), domain).parent()
            case Kind.sequence | Kind.set:
                parts = [subtree.child(k) for k in range(subtree.n_children())]
                node = insert_sequence(
                    leaf, [self._points_inside(part.filter_get_filter()).intersect(domain) for part in parts]
                )
                for k, part in enumerate(parts):
                    node = self._grafted(node.child(k).child(0), part.child(0), domain).parent().parent()
                return node
            case other:
                raise AssertionError(f"internal: a schedule tree has a {other} where none is made")

    def _row_inside(self, row: isl.UnionPwAff) -> isl.UnionPwAff:
        found: isl.UnionPwAff | None = None
        pieces = row.get_pw_aff_list()
        for k in range(pieces.n_pw_aff()):
            piece = pieces.get_at(k)
            name = piece.get_tuple_id(_IN)
            for position, loop in enumerate(self.loops):
                at = piece.find_dim_by_name(_PARAM, loop)
                piece = piece.insert_dims(_IN, position, 1) if at < 0 else piece.move_dims(_IN, position, _PARAM, at, 1)
            made = piece.set_tuple_id(_IN, name).to_union_pw_aff()
            found = made if found is None else found.union_add(made)
        assert found is not None, "internal: a loop of nothing"
        return found

    def _points_inside(self, points: isl.UnionSet) -> isl.UnionSet:
        total: isl.UnionSet | None = None
        for part in sets_of(points):
            name = part.get_tuple_name()
            for position, loop in enumerate(self.loops):
                at = part.find_dim_by_name(_PARAM, loop)
                part = part.insert_dims(_SET, position, 1) if at < 0 else part.move_dims(_SET, position, _PARAM, at, 1)
            made = part.set_tuple_name(name).to_union_set()
            total = made if total is None else total.union(made)
        assert total is not None, "internal: a filter of nothing"
        return total

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
