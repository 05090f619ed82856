"""What makes one legal loop better than another: named cost functions, the most important first in a list of them.

Each adds the columns and rows that it needs to the model and says what to minimize and how large that gets. `objective` makes one weighted sum of them, with weights so far
apart that an earlier function decides before a later one; a series of programs, one per function, would find the same at twice the price.

"parallelism" is in the list like the others, but no function: a loop with zero distance on every dependence (Bondhugula et al., PLDI 2008, section 3.2, where the bound
reaches 0) is looked for by a program of its own, with equations in place of bounds. It comes before all others; only "coefficients" ahead of it in the list restricts it
to loops along an index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyml.options import CostName
from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone
from polyml.schedule.ilp.model import Model

__all__ = ["COSTS", "DEFAULT_COSTS", "TILING_COSTS", "Cost", "objective"]

Weights = dict[int, float]


@dataclass(frozen=True, slots=True)
class Cost:
    """`weights . x` per column, to be minimized; `span`: how much of it is worth telling apart (it scales what comes before)."""

    weights: Weights
    span: float


def coefficients(model: Model) -> Cost:
    """Small index coefficients: a loop along one index rather than a skewed one, forwards rather than backwards.

    Source: Bondhugula et al. (PLDI 2008), section 3.2, minimize them after the bounds; isl's scheduler does as well (isl manual, "Scheduling").
    """
    weights: Weights = {}
    for name in model.names:
        weights |= dict.fromkeys(_range(model.index_columns(name)), 2.0)
        weights |= dict.fromkeys(_range(model.reversed_columns(name)), 3.0)
    return Cost(weights, 8.0 * len(model.names))


def reuse(model: Model) -> Cost:
    """Short distances between a value's write and its reads: the bound `u . n + w` on flow dependences, minimized.

    Source: Bondhugula et al., "A practical automatic polyhedral parallelizer and locality optimizer" (PLDI 2008), section 3.2.
    """
    return _bounded(model, [cone for cone in model.strict if cone.kind == "flow"])


def alignment(model: Model) -> Cost:
    """No shifts between statements: what a sequence inside the loop orders anyway needs none, and a shifted value is kept for longer.

    Source: Bondhugula et al. (PLDI 2008), section 3.2, end their lexicographic minimum with the shifts; here they count before reuse.
    """
    weights: Weights = {}
    for name in model.names:
        weights |= dict.fromkeys(_range(model.shift_columns(name)), 1.0)
    return Cost(weights, 4.0 * len(model.names))


def satisfaction(model: Model) -> Cost:
    """As many dependences as possible end at this loop, so that the loops inside are free.

    Source: Feautrier, "Some efficient solutions to the affine scheduling problem, part II" (IJPP 1992), section 3.
    """
    weights: Weights = {}
    for cone in model.strict:
        for face, distance in model.face_distances(cone):
            column = model.add_columns(1, upper=1.0, integral=False)
            vertices = (face.generators[:, 0] > 0) & ~face.lines
            block = np.concatenate([distance[vertices], -face.generators[vertices, :1]], axis=1)
            model.add_rows(np.append(model.columns_of(cone), column), block)
            weights[column] = -1.0
    return Cost(weights, 1.0 + len(weights))


def contiguity(model: Model) -> Cost:
    """The index that suits lanes best (accesses contiguous along it, or the same for all of it) is left for a loop further inside.

    Source: Consolaro et al., "PolyTOPS: Reconfigurable and flexible polyhedral scheduler" (CGO 2024), its cost function of this name.
    """
    weights: Weights = {}
    deepest = max((model.shapes[name].dimension for name in model.names), default=0)
    for name in model.names:
        shape = model.shapes[name]
        # The deepest statements do the work; with one loop left there is no choice.
        if shape.dimension == deepest and len(model.basis[name]) + 1 < deepest:
            for columns in (model.index_columns(name), model.reversed_columns(name)):
                weights |= {k: 1.0 for k in _range(columns) if k - columns.start in shape.lanes}
    return Cost(weights, 1.0 + len(model.names))


def order(model: Model) -> Cost:
    """The written order of the loops: the outermost index first.

    No source: a choice of ours where nothing else decides, since the written order is what a reader of the schedule expects.
    """
    weights: Weights = {}
    span = 1.0
    for name in model.names:
        span += model.shapes[name].dimension
        for columns in (model.index_columns(name), model.reversed_columns(name)):
            weights |= {k: float(k - columns.start) for k in _range(columns)}
    return Cost(weights, span)


COSTS: dict[str, Callable[[Model], Cost]] = {
    "coefficients": coefficients,
    "reuse": reuse,
    "alignment": alignment,
    "satisfaction": satisfaction,
    "contiguity": contiguity,
    "order": order,
}
"""By name, as `Options(costs=...)` lists them."""

DEFAULT_COSTS: tuple[CostName, ...] = (
    "coefficients", "parallelism", "contiguity", "alignment", "satisfaction", "order", "reuse"
)  # fmt: skip
"""Loops along indices, parallel ones outermost, and a sequential loop carries all it can: what lanes and register tiles want."""

TILING_COSTS: tuple[CostName, ...] = ("parallelism", "reuse", "coefficients", "order")
"""Pluto's choice: bands whose loops may all be tiled, skewed where a recurrence asks for it."""


def objective(model: Model, names: Sequence[str]) -> NDArray[np.float64]:
    """One cost per column of the model for the functions `names`, the most important first; coefficients and shifts are kept small after all of them."""
    costs = [COSTS[name](model) for name in names if name in COSTS]
    total = np.zeros(model.columns)
    for name in model.names:
        shift = model.shift_columns(name)
        total[model.offsets[name] : shift.start] = 2.0**-6
        total[shift.start : shift.stop] = 2.0**-7
        total[shift.stop - 1] = 2.0**-8
    scale = 1.0
    for cost in reversed(costs):
        for column, weight in cost.weights.items():
            total[column] += scale * weight
        scale *= max(2.0, min(cost.span, 64.0))
    return total


def _bounded(model: Model, cones: Sequence[Cone]) -> Cost:
    """Columns u, w with `distance <= u . n + w` on all the cones."""
    if not cones:
        return Cost({}, 1.0)
    # With integer coefficients the smallest bound is an integer by itself. Asking for it all the same prunes the search, unless continuous columns pull at it.
    first = model.add_columns(model.sizes + 1, priority=100, integral=not model.continuous)
    for cone in cones:
        for face, distance in model.face_distances(cone):
            sizes, constant = face.generators[:, 1 : 1 + model.sizes], face.generators[:, :1]
            columns = np.append(model.columns_of(cone), range(first, first + model.sizes + 1))
            bound = np.concatenate([-distance, sizes, constant], axis=1)
            model.add_rows(columns, bound, 0.0, np.where(face.lines, 0.0, np.inf))
    weights: Weights = {first + k: 16.0 for k in range(model.sizes)}
    return Cost({**weights, first + model.sizes: 1.0}, 64.0)


def _range(columns: slice) -> range:
    return range(columns.start, columns.stop)
