"""What a kernel has to do at least: its floating-point operations and the bytes of its arrays, and the time that this machine needs for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import islpy as isl
import numpy as np

from benchmarks.polybench.kernel import Kernel
from polyml.dtypes import f64
from polyml.expressions import Apply, Expr, walk
from polyml.graph.host_steps import Launch
from polyml.runtime.balance import fma_peak, read_bandwidth
from polyml.scop.scop import Statement

__all__ = ["Work", "count_points", "work_of"]

_FREE = {"select", "cast", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "abs"}


@dataclass(frozen=True, slots=True)
class Work:
    """flops: of the program as written, an operation with a result in floating point counting one. bytes: of all arguments and results, once."""

    flops: int
    bytes: int

    def limit(self, threads: int) -> float:
        """Seconds that no program can beat: arithmetic at the cores' peak or arguments and results at the memory's bandwidth."""
        return max(self.flops / fma_peak(f64), self.bytes / read_bandwidth()) / threads


def work_of(kernel: Kernel, size: str) -> Work:
    """Counted on the scops of the program as written, without fusion."""
    arguments = kernel.arguments(size)
    stages = kernel.program(scheduler="written", fusion=False, parallel=False).lower(*arguments).stages
    sizes = kernel.sizes(size)
    values = {"T": sizes.get("TSTEPS", sizes.get("TMAX", 0))}
    flops = 0
    launches = Counter(step.region for step in stages.plan.steps if isinstance(step, Launch))
    for number, region in enumerate(stages.regions):
        for statement in region.scop.statements.values():
            each = launches[number] * _operations(statement)
            flops += each * count_points(statement.domain, values) if each else 0
    buffers = (stages.plan.buffers[name] for name in dict.fromkeys((*stages.plan.inputs, *stages.plan.outputs)))
    return Work(flops, sum(buffer.size_in_bytes(values) for buffer in buffers))


def _operations(statement: Statement) -> int:
    update = statement.kind == "update" and statement.value.dtype.is_float
    return int(update) + _flops(statement.value)


def _flops(expr: Expr) -> int:
    return sum(isinstance(e, Apply) and e.dtype.is_float and e.op not in _FREE for e in walk(expr))


def count_points(domain: isl.Set, values: Mapping[str, int]) -> int:
    """How many integer points the set has with these values of its parameters."""
    for name, value in values.items():
        position = domain.find_dim_by_name(isl.dim_type.param, name)
        if position >= 0:
            domain = domain.fix_val(isl.dim_type.param, position, isl.Val(value))
            domain = domain.project_out(isl.dim_type.param, position, 1)
    total = 0
    for piece in domain.make_disjoint().get_basic_sets():
        total += _count_piece(piece.remove_redundancies())
    return total


Row = tuple[np.ndarray, int]
"""A constraint `coefficients @ point + constant >= 0`."""


def _count_piece(piece: isl.BasicSet) -> int:
    """Dimensions that no constraint ties together are counted apart, so that a loop over time costs nothing."""
    dims = piece.dim(isl.dim_type.set)
    rows = _rows(piece)
    if any(not row.any() and constant < 0 for row, constant in rows):
        return 0
    return math.prod(_count_group(piece, sorted(group)) for group in _tied(rows, dims))


def _rows(piece: isl.BasicSet) -> list[Row]:
    assert piece.dim(isl.dim_type.div) == 0, "internal: sets with divisions are not needed here"
    dims = range(piece.dim(isl.dim_type.set))
    rows: list[Row] = []
    for constraint in piece.get_constraints():
        row = np.array([constraint.get_coefficient_val(isl.dim_type.set, k).to_python() for k in dims], dtype=np.int64)
        constant = constraint.get_constant_val().to_python()
        rows.append((row, constant))
        if constraint.is_equality():
            rows.append((-row, -constant))
    return rows


def _tied(rows: list[Row], dims: int) -> list[set[int]]:
    groups = [{k} for k in range(dims)]
    for row, _ in rows:
        joined = [group for group in groups if group & set(np.flatnonzero(row).tolist())]
        if len(joined) > 1:
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return groups


def _count_group(piece: isl.BasicSet, group: list[int]) -> int:
    """All dimensions but the last one are enumerated, as arrays; the last one's bounds tell how many points there are."""
    for k in reversed([k for k in range(piece.dim(isl.dim_type.set)) if k not in group]):
        piece = piece.project_out(isl.dim_type.set, k, 1)
    points = np.zeros((1, 0), dtype=np.int64)
    for position in range(len(group)):
        outer = piece.project_out(isl.dim_type.set, position + 1, len(group) - position - 1)
        lower, upper = _bounds(points, _rows(outer))
        trips = np.maximum(upper - lower + 1, 0)
        if position == len(group) - 1:
            return int(trips.sum())
        first = np.repeat(np.cumsum(trips) - trips, trips)
        value = np.repeat(lower, trips) + (np.arange(int(trips.sum())) - first)
        points = np.concatenate([np.repeat(points, trips, axis=0), value[:, None]], axis=1)
    return 1


def _bounds(points: np.ndarray, rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Of the next dimension, for each point of the ones before it."""
    limits = np.iinfo(np.int64)
    lower, upper = np.full(len(points), limits.min), np.full(len(points), limits.max)
    for row, constant in rows:
        a = int(row[-1])
        rest = points @ row[:-1] + constant
        if a > 0:
            lower = np.maximum(lower, -(rest // a))
        elif a < 0:
            upper = np.minimum(upper, rest // -a)
    return lower, upper
