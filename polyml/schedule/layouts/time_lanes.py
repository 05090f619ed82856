"""Stencils in place over time with lanes along the steps: lane l is a step later than lane l - 1, and some rows higher.

An element of such a stencil waits for the one before it in its row, so that lanes along rows are scans, a dozen shuffles and sums a vector; and lanes along another direction of the same step are elements of different rows and columns. Elements of
neighbouring steps wait for nothing of each other where each step is as many rows behind the one before as it reads above or below an element, and one more.

Rewrite, for lanes L, rows behind each other `lag`, strips of W columns that move by `slant` a row (the strips' order and the blocks' are those of tiles that are skewed, in which no dependence points backwards):
    for t: for i: for j: S[t, i, j]
    -> pipelined for (b in steps of L) stage for (s in strips of j + slant (i + lag t)) for (r = i + lag (t - b)) vector for (t in b .. b + L) for (j ..): S[t, i = r - lag (t - b), j]

The tree says this, and is proved like any other on the array itself. Where values are meanwhile is the business of the code (codegen/time_lanes.py): lanes that are `lag` rows apart would be gathers.

When: one statement over a box, whose rows and columns are numbers, which reads its own array alone at fixed distances (and what does not change with rows and columns), among them an element before it in its row; steps that are a few whole blocks or many, asked for at each call where they are not known. Measured with 16 vector registers alone: with AVX-512 an element takes 3.0 instructions in place of 4.2, but 1.9 reads in place of 0.7 (counted on an emulator).

Source: skewing of loops over time as in Wonnacott, "Achieving scalable locality with time skewing" (IJPP 2002); lanes over time: Henretty et al. (CC 2011) and Yount, "Vector folding" (HPCC 2015) for stencils that are not in place.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import reads_of, variables_in
from polyml.schedule.layouts.relaid import extents_of, trips_of
from polyml.schedule.levels import TimeLanes
from polyml.schedule.schedule import Product
from polyml.schedule.transforms.nodes import Loop, insert_loops, tile_loop
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine, between
from polyml.sets.spaces import parameters_text
from polyml.target import FEW_REGISTERS, Target

__all__ = ["time_lanes", "time_lanes_tree"]

_Box = tuple[Affine, Affine, Affine]

COSTS = {2: 1.0, 3: 0.9}
"""What a step of an element takes in blocks of so many vectors of lanes, over two: elements come and go once a block, and while the chain along a row waits for its multiply-add, sums of other vectors are made. Of one vector a step takes longer than by scans."""

LEAST_BLOCKS = 4
"""Blocks of steps, at least, where not all of them are whole: one of which some lanes are idle takes as long as two, and more than scans of its steps."""

LEAST_STRIP = 16
"""Columns of a strip: of fewer, its edges weigh as much as what is between them."""

LEAST_ROWS = 4
"""Rows of the array for each row that a block's last lane lags behind its first: while lanes come and go some of them are idle."""

LEAST_STRIPS = 16
"""Strips of a row where threads take blocks in turns: of fewer, they wait for each other's strips longer than scans of theirs take."""


def time_lanes(
    scop: Scop, target: Target, *, precise: bool, threads: bool = False
) -> tuple[TimeLanes, tuple[Product, ...]] | None:
    """Lanes over the steps of the scop's one statement, and what must hold at a call for them to pay; None where it is no such stencil."""
    if len(scop.statements) != 1 or target.vector_registers > FEW_REGISTERS:
        return None
    (statement,) = scop.statements.values()
    if statement.kind != "assign" or statement.reduction is not None or statement.loop_depth < 1:
        return None
    distances = _distances(scop, statement)
    if distances is None or not any(di == 0 and dj < 0 for di, dj in distances):
        return None
    box = _box(scop, statement)
    if box is None:
        return None
    first, end = box
    itemsize = scop.arrays[statement.target.array].dtype.itemsize
    width, steps = target.lanes(itemsize), end[0] - first[0]
    rows, columns = (e - f for f, e in zip(first[1:], end[1:], strict=True))
    if width < 4 or columns.constant < LEAST_STRIP:
        return None
    at_hand = steps.evaluate(scop.examples) if steps.variables() <= scop.examples.keys() else None
    strips = LEAST_STRIPS if threads else 0
    best: tuple[float, TimeLanes] | None = None
    for vectors, cost in COSTS.items():
        lanes = vectors * width
        found = _shape(statement.name, distances, first, end, lanes, target, itemsize)
        if found is None or rows.constant < LEAST_ROWS * found.lag * lanes or (at_hand is not None and at_hand < lanes):
            continue
        if columns.constant < strips * found.strip:
            continue
        if steps.is_constant and steps.constant % lanes and steps.constant < LEAST_BLOCKS * lanes:
            continue
        whole = cost if at_hand is None else (at_hand // lanes + (2 if at_hand % lanes else 0)) * lanes * cost
        if best is None or whole < best[0]:
            best = (whole, replace(found, in_order=precise))
    if best is None:
        return None
    if steps.is_constant:
        return best[1], ()
    lanes = best[1].lanes
    few = at_hand is not None and at_hand % lanes == 0 and at_hand < LEAST_BLOCKS * lanes
    return best[1], (Product((steps,), lanes, multiple=lanes) if few else Product((steps,), LEAST_BLOCKS * lanes),)


def _distances(scop: Scop, statement: Statement) -> set[tuple[int, int]] | None:
    """Rows and columns from an element to those that it is made of; None where these are at no fixed distances, or another array has rows and columns, too."""
    if len(statement.indices) != 3 or statement.argument is not None:
        return None
    _, row, column = statement.indices
    array = scop.arrays[statement.target.array]
    if statement.target.subscripts != (affine(row), affine(column)) or array.memory_strides[-1] != 1:
        return None
    if array.kind == "local" or extents_of(array) is None or array.dtype.kind not in "fiu":
        return None
    found: set[tuple[int, int]] = set()
    for read in reads_of(statement.value):
        if read.tensor != array.name:
            if variables_in(read.subscripts) & set(statement.indices):
                return None
            continue
        if not all(isinstance(s, Affine) for s in read.subscripts):
            return None
        moved = [s - affine(i) for s, i in zip(read.subscripts, (row, column), strict=True) if isinstance(s, Affine)]
        if not all(d.is_constant for d in moved):
            return None
        found.add((moved[0].constant, moved[1].constant))
    return found


def _box(scop: Scop, statement: Statement) -> tuple[_Box, _Box] | None:
    """First and end of time, rows and columns; None where the domain is no such box, or has rows or columns whose number is not known."""
    trips = trips_of(statement)
    lows = [statement.domain.dim_min_val(k) for k in range(3)]
    highs = [statement.domain.dim_max_val(k) for k in (1, 2)]
    if trips is None or not all(v.is_int() for v in (*lows, *highs)):
        return None
    time, row, column = (affine(v.to_python()) for v in lows)
    last_row, last_column = (affine(v.to_python()) for v in highs)
    first, end = (time, row, column), (time + trips, last_row + 1, last_column + 1)
    within = " and ".join(between(i, f, e) for i, f, e in zip(statement.indices, first, end, strict=True))
    text = f"{parameters_text(scop.sizes)}{{ {statement.name}[{', '.join(statement.indices)}] : {within} }}"
    domain, box = (s.intersect_params(scop.context) for s in (statement.domain, isl.Set(text)))
    return (first, end) if domain.is_equal(box) else None


def _shape(
    name: str,
    distances: set[tuple[int, int]],
    first: _Box,
    end: _Box,
    lanes: int,
    target: Target,
    itemsize: int,
) -> TimeLanes | None:
    """The lag, the slant and the strip by the distances at which values are read; None where no strip is wide enough in L1. That the order is right is proved on the tree."""
    older = {d for d in distances if d >= (0, 0)}
    # What a step reads of the one before, and what it reads of its own before a next one writes it again.
    lag = 1 + max(abs(di) for di, _ in distances)
    behind = {(lag - di, dj) for di, dj in older} | {(-di, dj) for di, dj in distances - older} | {(lag, 0)}
    slant = max(1, *(-(-dj // rows) for rows, dj in behind if rows))
    halo = max(slant * rows - dj for rows, dj in behind)
    window = 1 + max(rows for rows, _ in behind)
    reach = (
        max(0, *(-di for di, _ in distances)),
        max(0, *(di for di, _ in distances)),
        max(0, *(-dj for _, dj in distances)),
        max(0, *(dj for _, dj in distances)),
    )
    made = TimeLanes(
        statement=name, first=first, end=end, reach=reach, lanes=lanes, width=target.lanes(itemsize),
        lag=lag, slant=slant, strip=0, window=window, halo=halo,
        line=max(1, target.line_bytes // itemsize), in_order=False,
    )  # fmt: skip
    strip = (target.l1_bytes * 3 // 4 // (window * made.cell * itemsize) - halo) // 8 * 8
    return replace(made, strip=strip) if halo <= slant * lag and strip >= LEAST_STRIP else None


def time_lanes_tree(scop: Scop, made: TimeLanes) -> isl.Schedule:
    """The order as a tree on the array itself."""
    statement = scop.statements[made.statement]
    time, row, column = statement.indices
    begin = made.first[0]
    head = parameters_text(scop.sizes) + f"{{ {made.statement}[{', '.join(statement.indices)}] -> [("

    def loop(value: str, *, coincident: bool = False, mark: str | None = None) -> Loop:
        one = isl.UnionPwAff(f"{head}{value})] }}")
        return Loop(one, coincident, mark)

    steps = f"{time} - ({begin})"
    late = f"{row} + {made.lag} * ({steps})"
    # Within a block rows are counted from its first step, which moves all of them alike.
    loops = [
        tile_loop(loop(steps), made.lanes).marked("pipelined"),
        tile_loop(loop(f"{column} + {made.slant} * ({late})"), made.strip).marked("stage"),
        loop(late),
        loop(steps, coincident=True, mark="vector:1"),
        loop(column),
    ]
    tree = isl.Schedule.from_domain(scop.domain)
    return insert_loops(tree.get_root().child(0), loops).get_schedule()
