"""Pictures of schedules with matplotlib (the extra `viz`): iteration domains, dependence arrows, tiles, wavefronts, and the order of execution.

Each point is an instance of a statement, in two of its indices. Meant for small sizes: every instance is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import islpy as isl

from polyml.errors import PolymlError
from polyml.interrupts import signals_wait
from polyml.records import dataclass
from polyml.runtime.dispatch import COMPILE_LOCK
from polyml.schedule.transforms.loops import LoopNode, find_part, loops_around
from polyml.scop.scop import Scop
from polyml.sets.spaces import maps_of, parameters_text, sets_of
from polyml.user_schedule import UserSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MAX_POINTS", "draw"]

MAX_POINTS = 4_000
"""Instances in one picture."""

_Point = tuple[int, ...]


def draw(
    schedule: UserSchedule,
    statement: str,
    *,
    axes: tuple[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    dependences: bool = False,
    order: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """The statement's instances, coloured by front where the schedule has a wavefront, else by tile where it has tile loops, else all alike.

    Args:
        statement: its name, or a part of it (`S@1`).
        axes: the indices drawn upwards and to the right; the first two when absent (one index: a row of points).
        sizes: values of symbolic sizes.
        dependences: arrows from each instance to those of the same statement that need its value.
        order: a line through the points in the order in which they run.

    Raises:
        PolymlError: matplotlib is missing, no such statement or index, or too many instances.
    """
    try:
        from matplotlib import pyplot
    except ImportError as missing:
        raise PolymlError("pictures need matplotlib", hint="pip install 'polyml-compiler[viz]'") from missing
    with COMPILE_LOCK:
        picture = _picture(schedule, statement, axes, dict(sizes or {}))
        arrows = _arrows(schedule, picture) if dependences else []
    if ax is None:
        _, ax = pyplot.subplots(figsize=(6, 4), layout="constrained")
    up, right = picture.axes
    xs, ys = [p[right] for p in picture.points], [p[up] for p in picture.points]
    if order:
        ax.plot(xs, ys, color="0.6", linewidth=0.8, zorder=1)
    if arrows:
        _draw_arrows(ax, [((a[right], a[up]), (b[right], b[up])) for a, b in arrows])
    if picture.colours is None:
        ax.scatter(xs, ys, s=18, color="tab:blue", zorder=3)
    else:
        ax.scatter(xs, ys, s=18, c=picture.colours, cmap=picture.palette, zorder=3)
    indices = schedule.schedule.scop.statements[statement.partition("@")[0]].indices
    ax.set_xlabel(indices[right])
    ax.set_ylabel(indices[up])
    ax.set_title(picture.title)
    ax.set_aspect("equal")
    return ax


_SPACE = 0.15
"""Between an arrow and the points that it joins."""


def _draw_arrows(ax: Axes, arrows: Sequence[tuple[_Point, _Point]]) -> None:
    """All as one artist: matplotlib takes a millisecond or two for each."""
    parts = []
    for start, end in arrows:
        along = tuple(b - a for a, b in zip(start, end, strict=True))
        share = min(_SPACE / max(math.hypot(*along), _SPACE), 0.4)
        parts.append(
            (*(a + share * d for a, d in zip(start, along, strict=True)), *((1 - 2 * share) * d for d in along))
        )
    ax.quiver(
        *zip(*parts, strict=True), angles="xy", scale_units="xy", scale=1, units="dots", width=0.9, headwidth=6, headlength=6,
        headaxislength=5, color="0.35", zorder=2,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Picture:
    """points: in order of execution. axes: positions of the indices drawn upwards and to the right. colours: a number per point."""

    name: str
    points: list[_Point]
    axes: tuple[int, int]
    colours: list[int] | None
    palette: str
    title: str
    sizes: dict[str, int]


def _picture(schedule: UserSchedule, statement: str, axes: tuple[str, str] | None, sizes: dict[str, int]) -> _Picture:
    name, scop = statement.partition("@")[0], schedule.schedule.scop
    loops = loops_around(schedule.schedule, statement)
    sizes = scop.with_products(sizes)
    indices = scop.statements[name].indices
    if len(indices) < 1:
        raise PolymlError(f"{name} has no index to draw")
    wanted = axes or (indices[0], indices[min(1, len(indices) - 1)])
    for index in wanted:
        if index not in indices:
            raise PolymlError(f"{name} has no index {index}", hint=f"its indices: {', '.join(indices)}")
    reached = find_part(schedule.schedule, statement).get_domain()
    points = _points(_with_sizes(reached, scop, sizes), name)
    times = {p: _times(loops, indices, p, sizes) for p in points}
    points.sort(key=lambda p: times[p])
    waves = [k for k, l in enumerate(loops) if l.name.startswith("wave")]
    tiles = [k for k, l in enumerate(loops) if "_tile" in l.name]
    colours: list[int] | None = None
    palette, title = "viridis", name
    if waves:
        colours = [times[p][waves[0]] for p in points]
        title = f"{name}: coloured by front"
    elif tiles:
        found: dict[_Point, int] = {}
        colours = [found.setdefault(tuple(times[p][k] for k in tiles), len(found)) * 7 % 20 for p in points]
        palette, title = "tab20", f"{name}: coloured by tile"
    return _Picture(name, points, (indices.index(wanted[0]), indices.index(wanted[1])), colours, palette, title, sizes)


def _times(loops: tuple[LoopNode, ...], indices: tuple[str, ...], point: _Point, sizes: Mapping[str, int]) -> _Point:
    values = {**sizes, **dict(zip(indices, point, strict=True))}
    return tuple(0 if loop.row is None else loop.row.evaluate(values) for loop in loops)


def _with_sizes(instances: isl.UnionSet, scop: Scop, sizes: Mapping[str, int]) -> isl.UnionSet:
    missing = [size for size in scop.sizes if size not in sizes]
    if missing:
        raise PolymlError(f"the size {missing[0]} is symbolic", hint=f"draw(..., sizes={{'{missing[0]}': 8}})")
    if not scop.sizes:
        return instances
    values = " and ".join(f"{size} = {sizes[size]}" for size in scop.sizes)
    return instances.intersect_params(isl.Set(f"{parameters_text(scop.sizes)}{{ : {values} }}"))


def _points(instances: isl.UnionSet, name: str) -> list[_Point]:
    found: list[_Point] = []
    for s in sets_of(instances):
        if s.get_tuple_name() != name:
            continue
        count = s.count_val()
        if not count.is_int() or count.to_python() > MAX_POINTS:
            raise PolymlError(
                f"{name} has {count} instances, too many for a picture",
                hint=f"at most {MAX_POINTS}: lower() smaller arguments",
            )
        found += _coordinates(s)
    return found


def _coordinates(points: isl.Set) -> list[_Point]:
    found: list[_Point] = []
    rank = points.dim(isl.dim_type.set)

    def add(point: isl.Point) -> None:
        found.append(tuple(point.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(rank)))

    with signals_wait():
        points.foreach_point(add)
    return found


def _arrows(schedule: UserSchedule, picture: _Picture) -> list[tuple[_Point, _Point]]:
    """Flow between instances of the statement, as far as both ends are in the picture."""
    scop, dependences = schedule.schedule.scop, schedule.schedule.dependences
    rank = len(scop.statements[picture.name].indices)
    inside, found = set(picture.points), []
    for m in maps_of(dependences.flow):
        if {m.get_tuple_name(isl.dim_type.in_), m.get_tuple_name(isl.dim_type.out)} != {picture.name}:
            continue
        pairs = _with_sizes(m.wrap().to_union_set(), scop, picture.sizes)
        for s in sets_of(pairs):
            ends = ((p[:rank], p[rank:]) for p in _coordinates(s))
            found += [(source, sink) for source, sink in ends if source in inside and sink in inside]
    return sorted(set(found))
