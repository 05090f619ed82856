"""How long the vectors of a region are, on machines that execute long ones in two halves (Target.split_vectors): half as long where fewer lanes are idle then.

Rows of 24 elements are a vector of 16 and a half: with vectors of eight nothing is computed in vain. Otherwise the longer ones are better: half as many instructions, and loads of
whole lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from polyml.schedule.blocking.register_tile import contraction_tile, tile_across, tile_and_rest
from polyml.schedule.blocking.sides import Sides, sides_of
from polyml.schedule.cost import StatementModel
from polyml.target import SHORTEST, Target

__all__ = ["suited_length"]

GAIN = 0.885
"""Cycles with half vectors for each with full ones, at most, for them to be worth it: they are twice as many instructions."""


def suited_length(models: Mapping[str, StatementModel], target: Target, *, precise: bool = False) -> Target:
    """The target, with vectors of half the length where the region takes fewer cycles with them. precise: sums have no lanes along them."""
    if target.vector_bytes == SHORTEST:
        return target
    half = replace(target, vector_bytes=target.vector_bytes // 2, split_vectors=False)
    full_cycles = half_cycles = 0.0
    # Beside other sums a contraction is no nest of its own.
    single = not precise and sum(model.is_update for model in models.values()) == 1
    # Sums over windows decide alone: what is copied for them has ends of its own.
    windows = [model for model in models.values() if _lanes(model, target) in model.overlapping]
    for model in windows or models.values():
        sides = sides_of(model)
        lanes = sides.lanes if sides is not None else _lanes(model, target)
        # Two short vectors in place of a long one that is all there is gain nothing, but in windows, where they overlap and the long one has a mask in each load.
        alone = lanes is not None and half.lanes(model.itemsize) < model.extents[lanes] <= target.lanes(model.itemsize)
        if lanes is None or (alone and lanes not in model.overlapping):
            continue
        full_cycles += model.instances * _cycles(model, sides, lanes, target, alone=single)
        half_cycles += model.instances * _cycles(model, sides, lanes, half, alone=single)
    return half if half_cycles < GAIN * full_cycles else target


def _lanes(model: StatementModel, target: Target) -> str | None:
    """The index that lanes are likely to run along."""
    usable = [index for index in model.extents if index not in model.recurrences]
    return min(usable, key=lambda index: model.lane_cost(index, target), default=None)


def _cycles(model: StatementModel, sides: Sides | None, lanes: str, target: Target, *, alone: bool) -> float:
    """For what one vector computes if all its lanes are in use; a split vector's cycles are two, and so is what it computes. Of a contraction: with its best register tile."""
    if sides is not None and not alone:
        return contraction_tile(model, lanes, sides.rows, len(sides.others), target, most=4, rest=0.0)[1].cost
    across = None if sides is None else tile_across(model, sides, target)
    if across is not None:
        return across[1].cost
    if sides is not None:
        return tile_and_rest(model, sides, sides.rows, target, most=4)[1].cost
    extent, width = model.extents[lanes], target.lanes(model.itemsize)
    return (model.operations + 1) / 2 * ceil(extent / width) * width / extent
