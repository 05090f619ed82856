"""Polyhedra as generators: vertices, rays and lines, all of them or, where a product of polyhedra has too many, those of a larger polyhedron around it.

A box of n indices of two values each is a product of n segments, and has 2^n vertices. It lies in the simplex with one of its vertices v and, for every other vertex w of a
segment, v + n (w - v): each point is v plus one convex combination of steps (w - v) per segment, n of them in all. So does any product of polyhedra, rays and lines going
along as they are. What must hold on a dependence then holds on a few more pairs of instances than there are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from math import prod

import islpy as isl
import numpy as np
from numpy.typing import NDArray

from polyml.disjoint_sets import DisjointSets
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.tables import constraints_text, table_of

__all__ = ["MANY_GENERATORS", "MOST_GENERATORS", "Generators", "generators_around", "generators_of"]

Integers = NDArray[np.int64]
Generators = tuple[Integers, NDArray[np.bool_]]
"""A row for each: the homogeneous coordinate (0 for a ray, > 0 for a vertex), the sizes, then the dimensions; and which rows are lines."""

MOST_GENERATORS = 5000
"""Of one cone. A polyhedron in many symbolic sizes can have exponentially many: stencils and factorizations have at most a hundred, windows along three dimensions of any size millions, which no memory holds as rows of an integer program."""

MANY_GENERATORS = 128
"""Of one product: with more, a simplex takes the place of its vertices."""

_FEWEST_CONSTRAINTS = 14
"""Of a product with more than `MANY_GENERATORS` vertices, which has no fewer than seven factors or factors with many constraints; others are not looked at."""

OPERATIONS = 5000
"""Of isl, for the generators of one factor with many constraints: boxes take less than 1000, and what is still at it after 5000, some tenths of a second, may be for hours."""

_SET, _PARAM = isl.dim_type.set, isl.dim_type.param


def generators_of(points: isl.BasicSet) -> Generators:
    """The generators of a polyhedron without divisions.

    Raises:
        BudgetExhausted: there are more than `MOST_GENERATORS`.
    """
    return _once(points, _KNOWN, _generators_of)


_MOST_KNOWN = 4096

_KNOWN: dict[str, Generators] = {}
_KNOWN_AROUND: dict[str, Generators] = {}
"""By the constraints; compiling is done under one lock."""


def _once(points: isl.BasicSet, known: dict[str, Generators], find: Callable[[isl.BasicSet], Generators]) -> Generators:
    """What was found before for these constraints: statements of equal domains depend on each other alike, and scops that are made of one another have most dependences in common."""
    key = constraints_text(points)
    if key not in known:
        if len(known) >= _MOST_KNOWN:
            del known[next(iter(known))]
        known[key] = find(points)
    return known[key]


def _generators_of(points: isl.BasicSet) -> Generators:
    coefficients = points.coefficients()
    count = coefficients.dim(_SET)
    table = table_of(coefficients, MOST_GENERATORS, "finding the dependences' generators")
    found, lines = np.ascontiguousarray(table[:, 1 : 1 + count]), table[:, 0] == 0
    found.flags.writeable = lines.flags.writeable = False
    return found, lines


def generators_around(points: isl.BasicSet) -> Generators:
    """The generators of a polyhedron without divisions; those of one around it where it is a product that has more than `MANY_GENERATORS`, or finding a factor's takes more than
    `OPERATIONS`.

    Raises:
        BudgetExhausted: there are more than `MOST_GENERATORS`.
    """
    if points.n_constraint() < _FEWEST_CONSTRAINTS:
        return generators_of(points)
    return _once(points, _KNOWN_AROUND, _generators_around)


def _generators_around(points: isl.BasicSet) -> Generators:
    columns, factors = _factors(points)
    found = [_generators_of_rows(rows.tobytes(), rows.shape) for rows in factors]
    parts = [part for part, _ in found]
    vertices = [part[(part[:, 1] > 0) & (part[:, 0] != 0)] for part in parts]
    others = sum(len(part) for part in parts) - sum(len(part) for part in vertices)
    few = not all(map(len, vertices)) or prod(map(len, vertices)) + others <= MANY_GENERATORS
    if few and all(exact for _, exact in found):
        return _generators_of(points)
    width = 1 + points.dim(_PARAM) + points.dim(_SET)
    several = sum(len(part) > 1 for part in vertices)
    corner = _corner(vertices, columns, width)
    steps = [corner[None]]
    rest = []
    for part, own_vertices, own in zip(parts, vertices, columns, strict=True):
        first = own_vertices[0]
        for vertex in own_vertices[1:]:
            # In homogeneous coordinates: corner + several * (vertex / its coordinate - first / its coordinate).
            row = corner * (vertex[1] * first[1])
            row[own] += several * corner[0] * (vertex[2:] * first[1] - first[2:] * vertex[1])
            steps.append((row // np.gcd.reduce(row))[None])
        kept = part[(part[:, 1] == 0) | (part[:, 0] == 0)]
        rows = np.zeros((len(kept), width), np.int64)
        rows[:, own] = kept[:, 2:]
        rest.append((rows, kept[:, 0] == 0))
    rays = np.concatenate([rows for rows, _ in rest])
    lines = np.concatenate([np.zeros(len(steps), bool), *(line for _, line in rest)])
    if len(lines) > MOST_GENERATORS:
        raise BudgetExhausted("finding the dependences' generators", MOST_GENERATORS)
    return np.concatenate([*steps, rays]), lines


def _corner(vertices: list[Integers], columns: list[list[int]], width: int) -> Integers:
    """The vertex that has all factors' first ones."""
    scale = int(np.lcm.reduce([part[0, 1] for part in vertices]))
    corner = np.zeros(width, np.int64)
    corner[0] = scale
    for part, own in zip(vertices, columns, strict=True):
        corner[own] = part[0, 2:] * (scale // part[0, 1])
    return corner


def _factors(points: isl.BasicSet) -> tuple[list[list[int]], list[Integers]]:
    """The polyhedra that it is a product of: the columns of each among generators, and its constraints as rows: 0 for an equality, a factor for each column, the constant."""
    dimensions, sizes = points.dim(_SET), points.dim(_PARAM)
    # isl prints dimensions first, then sizes; generators have them the other way round.
    order = [0, *range(1 + dimensions, 1 + dimensions + sizes), *range(1, 1 + dimensions), 1 + dimensions + sizes]
    table = table_of(points)[:, order].tolist()
    together = DisjointSets(range(1, 1 + sizes + dimensions))
    firsts = []
    for row in table:  # lists: rows are short, and an operation of NumPy takes longer than going through one
        used = [column for column, factor in enumerate(row[1:-1], 1) if factor]
        firsts.append(used[0] if used else 0)
        for other in used[1:]:
            together.join(used[0], other)
    groups, roots = together.groups(), together.roots()
    own: dict[int, list[list[int]]] = {roots[group[0]]: [] for group in groups}
    for row, first in zip(table, firsts, strict=True):
        if first:
            own[roots[first]].append(row)
    rows = [
        np.array(
            [[row[0], *(row[column] for column in group), row[-1]] for row in own[roots[group[0]]]], np.int64
        ).reshape(-1, 2 + len(group))
        for group in groups
    ]
    return groups, rows


@lru_cache(maxsize=4096)
def _generators_of_rows(rows: bytes, shape: tuple[int, int]) -> tuple[Integers, bool]:
    """The generators of a factor, the least vertex first, each behind a 0 if it is a line, and whether they are its own: where these take too long, of its equalities and bounds
    of single indices alone. Factors of one program are few: most indices have the same range."""
    table = np.frombuffer(rows, np.int64).reshape(shape)
    exact = True
    try:
        small = len(table) < _FEWEST_CONSTRAINTS
        with nullcontext() if small else operation_budget(OPERATIONS, phase="generators"):
            found, lines = generators_of(_polyhedron(table))
    except BudgetExhausted as error:
        if error.phase != "generators":
            raise
        exact = False
        single = (table[:, 1:-1] != 0).sum(axis=1) == 1
        found, lines = generators_around(_polyhedron(table[(table[:, 0] == 0) | single]))
    part = np.column_stack([(~lines).astype(np.int64), found])
    keys = [(~line, row[0] == 0, tuple(row[1:] / max(row[0], 1))) for row, line in zip(found, lines, strict=True)]
    part = part[sorted(range(len(part)), key=keys.__getitem__)]
    part.flags.writeable = False
    return part, exact


def _polyhedron(table: Integers) -> isl.BasicSet:
    """What has these constraints."""
    names = [f"x{k}" for k in range(table.shape[1] - 2)]
    texts = []
    for row in table.tolist():
        terms = [f"{factor} {name}" for factor, name in zip(row[1:-1], names, strict=True) if factor]
        texts.append(f"{' + '.join([*terms, str(row[-1])])} {'>=' if row[0] else '='} 0")
    condition = f" : {' and '.join(texts)}" if texts else ""
    return isl.BasicSet(f"{{ [{', '.join(names)}]{condition} }}")
