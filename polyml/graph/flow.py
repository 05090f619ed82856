"""Which write made the element that a read sees, exactly, for tensors that are updated in pieces within loops.

In SSA an update names the whole tensor that it starts from. What a rule may need is finer: the instance of the equation that made the very element, which isl computes from the order of the
instances (value-based dependences; Feautrier, "Dataflow analysis of array and scalar references", IJPP 1991).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import islpy as isl

from polyml.expressions import Read, variables_in
from polyml.graph.ir import Equation, Loop, Op
from polyml.graph.traverse import equation_reads
from polyml.records import dataclass
from polyml.sets.affine import Affine, between
from polyml.sets.spaces import maps_of, parameters_text
from polyml.sets.unnumbered import has_numbers, numbered, unnumbered

__all__ = ["Access", "Place", "flow_within", "iterations_of", "places_of", "points_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """An equation within loops (outermost first); `path`: its position in each of their bodies, and in the last one."""

    equation: Equation
    loops: tuple[Loop, ...]
    path: tuple[int, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """What tells its instances apart: the loops' variables, then its indices."""
        return (*(loop.variable for loop in self.loops), *self.equation.indices)


@dataclass(frozen=True, slots=True)
class Access:
    """One read of a group of tensors: `sources` are, per equation by its result's name, the relation from the reading instances to those that made what is read. complete: nothing else is read."""

    place: Place
    read: Read
    sources: dict[str, isl.Map]
    complete: bool


def places_of(loop: Loop) -> Iterator[Place]:
    """All equations in a loop, in written order."""
    return _places(loop.body, (loop,), ())


def _places(ops: Sequence[Op], loops: tuple[Loop, ...], path: tuple[int, ...]) -> Iterator[Place]:
    for number, op in enumerate(ops):
        if isinstance(op, Equation):
            yield Place(op, loops, (*path, number))
        elif isinstance(op, Loop):
            yield from _places(op.body, (*loops, op), (*path, number))


def points_of(place: Place) -> isl.Set:
    """The instances of an equation, `{ result[loop variables, indices] }`: the parameters that loops stand for are dimensions."""
    points = place.equation.domain.reset_tuple_id()
    for number, loop in enumerate(place.loops):
        at = points.find_dim_by_name(isl.dim_type.param, loop.variable)
        if at < 0:
            points = points.insert_dims(isl.dim_type.set, number, 1)
        else:
            points = points.move_dims(isl.dim_type.set, number, isl.dim_type.param, at, 1)
    iterations = _iterations(place.loops, place.dims)
    return points.intersect(iterations).set_tuple_name(place.equation.result.name)


def iterations_of(loops: Sequence[Loop]) -> isl.Set:
    """The values that the variables of nested loops take, as parameters."""
    inside = _iterations(loops, [loop.variable for loop in loops])
    first = inside.dim(isl.dim_type.param)
    inside = inside.move_dims(isl.dim_type.param, first, isl.dim_type.set, 0, len(loops))
    for number, loop in enumerate(loops):
        inside = inside.set_dim_name(isl.dim_type.param, first + number, loop.variable)
    return inside.params()


def _iterations(loops: Sequence[Loop], dims: Sequence[str]) -> isl.Set:
    variables = [loop.variable for loop in loops]
    limits = []
    for loop in loops:
        low, high = (loop.start, loop.stop) if loop.step > 0 else (loop.stop + 1, loop.start + 1)
        limits.append(between(loop.variable, low, high))
        if abs(loop.step) > 1:
            limits.append(f"({loop.variable} - ({loop.start.isl_text()})) mod {abs(loop.step)} = 0")
    text = f"{{ [{', '.join(dims)}] : {' and '.join(limits)} }}"
    bounds = [affine for loop in loops for affine in (loop.start, loop.stop)]
    return isl.Set(_head(bounds, variables) + text)


def _head(places: Iterable[Affine], inside: Iterable[str]) -> str:
    sizes = sorted(variables_in(places) - set(inside))
    return parameters_text(sizes)


def flow_within(places: Sequence[Place], group: set[str]) -> list[Access]:
    """For each read of one of the tensors, which are versions of one another (bases, carried values), where its element comes from.

    The equations that make one of them must have affine targets, and reads of them affine subscripts.
    """
    depth = max(len(place.path) for place in places)
    writes = isl.UnionMap("{ }")
    order: list[isl.Map] = []
    depths: list[int] = []
    reads: list[tuple[Place, Read, isl.Map]] = []
    for place in places:
        points = points_of(place)
        if place.equation.result.name in group:
            writes = writes.union(_touched(place, place.equation.target, points))
            order.append(_time(place, points, depth, 1))
            depths.append(len(place.loops))
        for read in dict.fromkeys(equation_reads(place.equation)):
            if read.tensor in group:
                reading = points.set_tuple_name(f"read {len(reads)}")
                reads.append((place, read, _touched(place, read.subscripts, reading)))
                order.append(_time(place, reading, depth, 0))
                depths.append(len(place.loops))
    if not reads:
        return []
    every = isl.UnionMap("{ }")
    for *_, touched in reads:
        every = every.union(touched)
    times = isl.UnionMap("{ }")
    for time in unnumbered(order) if has_numbers(order, depths, outermost=0) else order:
        times = times.union(time.to_union_map())
    found = isl.UnionAccessInfo.from_sink(every).set_must_source(writes).set_schedule_map(times).compute_flow()
    return _sorted_out(reads, numbered(found.get_must_dependence()), numbered(found.get_must_no_source()))


def _sorted_out(reads: Sequence[tuple[Place, Read, isl.Map]], made: isl.UnionMap, unmade: isl.UnionMap) -> list[Access]:
    sources: list[dict[str, isl.Map]] = [{} for _ in reads]
    for part in maps_of(made):
        number = int(part.get_tuple_name(isl.dim_type.out).split()[1])
        sources[number][part.get_tuple_name(isl.dim_type.in_)] = part.reverse()
    missing = {int(part.get_tuple_name(isl.dim_type.in_).split()[1]) for part in maps_of(unmade)}
    return [Access(place, read, sources[n], n not in missing) for n, (place, read, _) in enumerate(reads)]


def _touched(place: Place, subscripts: Sequence[object], points: isl.Set) -> isl.Map:
    affine = [s for s in subscripts if isinstance(s, Affine)]
    text = f"{{ [{', '.join(place.dims)}] -> element[{', '.join(s.isl_text() for s in affine)}] }}"
    name = points.get_tuple_name()
    return isl.Map(_head(affine, place.dims) + text).set_tuple_name(isl.dim_type.in_, name).intersect_domain(points)


def _time(place: Place, points: isl.Set, depth: int, writes: int) -> isl.Map:
    """The order of instances: an equation reads all that it reads before it writes."""
    stamp: list[str] = [str(place.path[0])]
    for loop, number in zip(place.loops[1:], place.path[1:], strict=True):
        stamp += [loop.variable if loop.step > 0 else f"-{loop.variable}", str(number)]
    outer = place.loops[0]
    stamp.insert(0, outer.variable if outer.step > 0 else f"-{outer.variable}")
    stamp += ["0"] * (2 * (depth - len(place.path))) + [str(writes)]
    text = f"{{ [{', '.join(place.dims)}] -> [{', '.join(stamp)}] }}"
    moment = isl.Map(text).set_tuple_name(isl.dim_type.in_, points.get_tuple_name())
    return moment.intersect_domain(points)
