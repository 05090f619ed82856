"""Which recurrences within loops run alike in each iteration of some of them.

Versions of one tensor (bases and carried values) fall into webs: equations, and the reads that see what these make. The value of an instance depends on the loops and indices that its body uses,
and on those that decide which instance made what it reads, and about what that depends on: the least solution. A web may be led once, over a smaller tensor, when its equations read nothing else
that the loops make, when each iteration has all its sources in itself, and when the smaller tensor holds one value per element.

Source: webs of definitions and uses, as in register allocation (Chaitin, PLDI 1982), here of instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import islpy as isl

from polyml.expressions import Const, IndexValue, Read, variables_in, walk
from polyml.graph.flow import Access, Place, flow_within, places_of, points_of
from polyml.graph.ir import Equation, Loop, Op
from polyml.graph.traverse import equation_reads, made_within
from polyml.records import dataclass
from polyml.sets.affine import Affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.spaces import parameters_text

__all__ = ["Web", "independent_webs"]

_OPERATIONS = 200_000
"""isl's operations for the questions about one tensor."""


@dataclass(frozen=True, slots=True)
class Web:
    """Equations that make what these reads see, and nothing else does. start: the value of elements that none of them makes, if such are read. kept: per equation's result the variables that its
    values depend on. dimensions: those of the tensor that are left."""

    writers: tuple[Place, ...]
    start: Equation | None
    reads: tuple[Access, ...]
    kept: dict[str, frozenset[str]]
    dimensions: tuple[int, ...]

    def keeps(self, loop: Loop) -> bool:
        """Whether something that it makes depends on the loop."""
        return any(
            loop.variable in self.kept[writer.equation.result.name]
            for writer in self.writers
            if any(outer is loop for outer in writer.loops)
        )

    def element(self, subscripts: Sequence[object]) -> tuple[Affine, ...]:
        places = [subscripts[d] for d in self.dimensions]
        return tuple(place for place in places if isinstance(place, Affine))


def independent_webs(loop: Loop, used: set[str]) -> list[Web]:
    """The webs in an outermost loop that can be led ahead of it. used: names that something behind the loop, or the caller, sees."""
    inside = made_within(loop)
    places = list(places_of(loop))
    found: list[Web] = []
    for group in _groups(loop, used):
        if _may_recur(places, group, inside):
            try:
                with operation_budget(_OPERATIONS, phase="recurrences ahead of loops"):
                    found += _webs(places, group, inside)
            except BudgetExhausted:
                continue
    return found


# -- which tensors ------------------------------------------------------------------------------------------------------------


def _groups(loop: Loop, used: set[str]) -> Iterator[set[str]]:
    """Tensors that are versions of one another, by bases and carried values, and of which nothing is seen behind the loop."""
    links: dict[str, str] = {}

    def root(name: str) -> str:
        while links.setdefault(name, name) != name:
            name = links[name]
        return name

    def join(names: Iterable[str]) -> None:
        first, *others = map(root, names)
        links.update(dict.fromkeys(others, first))

    def visit(ops: Sequence[Op], outer: Loop) -> None:
        for c in outer.carried:
            join(
                (c.inner.name, c.next.name, c.result.name)
                if outer is loop
                else (c.initial.name, c.inner.name, c.next.name, c.result.name)
            )
        for op in ops:
            if isinstance(op, Equation):
                join((op.result.name,) if op.base is None else (op.base.name, op.result.name))
            elif isinstance(op, Loop):
                visit(op.body, op)

    visit(loop.body, loop)
    groups: dict[str, set[str]] = {}
    for name in list(links):
        groups.setdefault(root(name), set()).add(name)
    inside = made_within(loop)
    yield from (group for group in groups.values() if not group & used and group <= inside)


def _may_recur(places: Sequence[Place], group: set[str], inside: set[str]) -> bool:
    """Whether some equation makes elements from others of the tensor and from nothing else that the loop makes; and whether the flow of all can be asked for."""
    candidates = False
    for place in places:
        equation = place.equation
        writes, reads = equation.result.name in group, [r for r in equation_reads(equation) if r.tensor in group]
        subscripts = [s for read in reads for s in read.subscripts] + list(equation.target if writes else ())
        if not all(isinstance(s, Affine) for s in subscripts) or (writes and equation.accumulate):
            return False
        candidates |= writes and bool(reads) and _is_closed(equation, group, inside)
    return candidates


def _is_closed(equation: Equation, group: set[str], inside: set[str]) -> bool:
    others = {read.tensor for read in equation_reads(equation)} - group
    return equation.base is not None and equation.reduce is None and not others & inside


# -- which equations ----------------------------------------------------------------------------------------------------------


def _webs(places: Sequence[Place], group: set[str], inside: set[str]) -> Iterator[Web]:
    """The parts of a tensor's life that can be led once, ahead of the loop."""
    accesses = flow_within(places, group)
    by_name = {place.equation.result.name: place for place in places}
    waiting = list(accesses)
    while waiting:
        names, reads = set(waiting[0].sources), [waiting.pop(0)]
        while more := [access for access in waiting if names & access.sources.keys()]:
            reads += more
            names.update(*(access.sources for access in more))
            waiting = [access for access in waiting if access not in more]
        writers = [by_name[name] for name in by_name if name in names]
        web = _web(writers, reads, group, inside)
        if web is not None:
            yield web


def _web(writers: Sequence[Place], reads: Sequence[Access], group: set[str], inside: set[str]) -> Web | None:
    starts = [w.equation for w in writers if w.equation.base is None and isinstance(w.equation.body, Const)]
    writers = [w for w in writers if w.equation not in starts]
    if not all(_is_closed(w.equation, group, inside) for w in writers) or len(starts) > 1:
        return None
    if not all(access.complete for access in reads):
        return None
    kept = _needed(writers, reads, starts)
    dropped = {loop.variable for w in writers for loop in w.loops if loop.variable not in kept[w.equation.result.name]}
    if not writers or not dropped or any(dropped & kept[w.equation.result.name] for w in writers):
        return None
    if not any(access.place in writers for access in reads) or not _stands_alone(writers, reads, dropped):
        return None
    dimensions = _dimensions(writers, kept)
    if dimensions is None:
        return None
    web = Web(tuple(writers), starts[0] if starts else None, tuple(reads), kept, dimensions)
    own = [s for access in reads if access.place in writers for s in web.element(access.read.subscripts)]
    if any(dropped & s.variables() for s in own):
        return None
    return web if _made_once(web) else None


def _needed(writers: Sequence[Place], reads: Sequence[Access], starts: Sequence[Equation]) -> dict[str, frozenset[str]]:
    """The variables that the values of each equation depend on: the least solution."""
    kept = {w.equation.result.name: frozenset(_mentioned(w, reads)) for w in writers}
    kept |= {start.result.name: frozenset() for start in starts}
    points = {w.equation.result.name: points_of(w) for w in writers}
    changed = True
    while changed:
        changed = False
        for access in reads:
            name = access.place.equation.result.name
            if access.place not in writers:
                continue
            for source, relation in access.sources.items():
                of = next((w for w in writers if w.equation.result.name == source), None)
                wanted = [] if of is None else [d for d, v in enumerate(of.dims) if v in kept[source]]
                found = _involved(relation, wanted, points[name], access.place.dims)
                if not found <= kept[name]:
                    kept[name] |= found
                    changed = True
    return kept


def _mentioned(writer: Place, reads: Sequence[Access]) -> set[str]:
    """The variables that the body uses other than to find an element of the tensor."""
    own = {access.read for access in reads if access.place is writer}
    found: set[str] = set()
    for node in walk(writer.equation.body):
        if isinstance(node, IndexValue):
            found |= node.affine.variables()
        elif isinstance(node, Read) and node not in own:
            found |= variables_in(node.subscripts)
    return found & set(writer.dims)


def _involved(relation: isl.Map, wanted: Sequence[int], points: isl.Set, dims: Sequence[str]) -> set[str]:
    """The reading equation's variables that decide whether it reads from there, and about the wanted dimensions of where."""
    for position in reversed(range(relation.dim(isl.dim_type.out))):
        if position not in wanted:
            relation = relation.project_out(isl.dim_type.out, position, 1)
    relation = relation.reset_tuple_id(isl.dim_type.in_).gist_domain(points.reset_tuple_id()).coalesce()
    return {name for d, name in enumerate(dims) if relation.involves_dims(isl.dim_type.in_, d, 1)}


def _stands_alone(writers: Sequence[Place], reads: Sequence[Access], dropped: set[str]) -> bool:
    """Whether the loops that are left can be told without the others, and each iteration of the others has all its sources in itself."""
    for writer in writers:
        for inner in writer.loops:
            bounds = inner.start.variables() | inner.stop.variables()
            if inner.variable not in dropped and bounds & dropped:
                return False
    for access in (access for access in reads if access.place in writers):
        variables = access.place.dims
        for source, relation in access.sources.items():
            of = next((w for w in writers if w.equation.result.name == source), None)
            shared = [] if of is None else [v for v in of.dims if v in dropped]
            if not set(shared) <= set(variables):
                return False
            for v in shared:
                assert of is not None
                same = isl.Map.universe(relation.get_space()).equate(
                    isl.dim_type.in_, variables.index(v), isl.dim_type.out, of.dims.index(v)
                )
                if not relation.is_subset(same):
                    return False
    return True


def _dimensions(writers: Sequence[Place], kept: dict[str, frozenset[str]]) -> tuple[int, ...] | None:
    """The dimensions of the tensor that no variable counts of which the values are independent; None when one counts both kinds."""
    left: list[int] = []
    for d in range(len(writers[0].equation.target)):
        free = wanted = False
        for writer in writers:
            place = writer.equation.target[d]
            used = (place.variables() if isinstance(place, Affine) else frozenset()) & set(writer.dims)
            wanted |= bool(used & kept[writer.equation.result.name])
            free |= bool(used - kept[writer.equation.result.name])
        if wanted and free:
            return None
        if not free:
            left.append(d)
    return tuple(left)


def _made_once(web: Web) -> bool:
    """Whether the smaller tensor holds one value per element, from its making on: so it can be read at its end."""
    made = isl.UnionMap("{ }")
    for writer in web.writers:
        made = made.union(_elements(writer, web, writer.equation.target, points_of(writer), web.kept))
    if not made.is_injective():
        return False
    if web.start is None:
        return True
    for access in web.reads:
        if (relation := access.sources.get(web.start.result.name)) is not None:
            reading = relation.domain().set_tuple_name("read")
            started = _elements(access.place, web, access.read.subscripts, reading, {})
            if not made.range().is_disjoint(started.range()):
                return False
    return True


def _elements(
    place: Place, web: Web, subscripts: Sequence[object], points: isl.Set, kept: dict[str, frozenset[str]]
) -> isl.UnionMap:
    """From the instances, of which the variables in `kept` are told apart (all: when there is no entry), to the smaller tensor's elements."""
    affine = web.element(subscripts)
    sizes = sorted(variables_in(affine) - set(place.dims))
    text = (
        f"{parameters_text(sizes)}{{ [{', '.join(place.dims)}] -> element[{', '.join(s.isl_text() for s in affine)}] }}"
    )
    name = points.get_tuple_name()
    relation = isl.Map(text).set_tuple_name(isl.dim_type.in_, name).intersect_domain(points)
    if (wanted := kept.get(name)) is not None:
        for d in reversed(range(len(place.dims))):
            if place.dims[d] not in wanted:
                relation = relation.project_out(isl.dim_type.in_, d, 1)
        relation = relation.set_tuple_name(isl.dim_type.in_, name)
    return isl.UnionMap.from_map(relation)
