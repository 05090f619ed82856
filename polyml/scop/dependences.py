"""Exact dependences of a Scop: flow, anti and output, reductions apart."""

from __future__ import annotations

from dataclasses import dataclass

import islpy as isl

__all__ = ["Dependences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependences:
    """Dependence relations `{ source instance -> sink instance }`.

    flow, anti, output: value-based where the accesses are exact, memory-based where they are indirect; those between updates of one
    reduction are left out. reduction: the left-out ones, which an order may break as long as each element's updates do not run at once
    (or are privatized). live_in: `{ S[i] -> A[e] }` reads of values from before the region; live_out: `{ S[i] -> A[e] }` last writes that are seen after it.
    """

    flow: isl.UnionMap
    anti: isl.UnionMap
    output: isl.UnionMap
    reduction: isl.UnionMap
    live_in: isl.UnionMap
    live_out: isl.UnionMap

    @property
    def validity(self) -> isl.UnionMap:
        """What every schedule must respect: flow, anti and output."""
        return self.flow.union(self.anti).union(self.output)
