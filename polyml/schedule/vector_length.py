"""How long the vectors of a region are, on machines that execute long ones in two halves (Target.split_vectors): half as long where fewer of a contraction's lanes are idle then.

Rows of 24 elements are a vector of 16 and a half: with vectors of eight nothing is computed in vain. Otherwise the longer ones are better: half as many instructions, and loads of
whole lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.schedule.contraction_sides import Sides, sides_of
from polyml.schedule.contraction_tiles import contraction_tile
from polyml.schedule.cost import StatementModel
from polyml.target import Target

__all__ = ["suited_length"]

GAIN = 0.885
"""Cycles with half vectors for each with full ones, at most, for them to be worth it: they are twice as many instructions."""


def suited_length(models: Mapping[str, StatementModel], target: Target) -> Target:
    """The target, with vectors of half the length where a region's contractions take fewer cycles with them."""
    half = replace(target, vector_bytes=target.vector_bytes // 2, split_vectors=False)
    found = [(model, sides) for model in models.values() if (sides := sides_of(model)) is not None]
    # A single vector, long or short, waits for itself.
    contractions = [(m, sides) for m, sides in found if m.extents[sides.lanes] > target.lanes(m.itemsize)]
    full_cycles, half_cycles = (
        sum(model.instances * _cycles(model, sides, machine) for model, sides in contractions)
        for machine in (target, half)
    )
    return half if half_cycles < GAIN * full_cycles else target


def _cycles(model: StatementModel, sides: Sides, target: Target) -> float:
    """Of the best register tile, for the multiply-adds of one vector if all its lanes were in use; a split vector's are two, and so are the multiply-adds."""
    rows = [i for i in sides.rows if i in model.extents]
    return contraction_tile(model, sides.lanes, rows, len(sides.others), target, most=4, rest=0.0)[1].cost
