"""What passes that fetch ahead know of the caches, and how far ahead they ask."""

from __future__ import annotations

from polyml.records import dataclass

__all__ = ["AHEAD", "SOME_SIZE", "Caches"]

AHEAD = 16_384
"""Bytes that should be on their way: what memory delivers within a few times its latency."""

SOME_SIZE = 1024
"""What stands for a symbolic size where lengths of rows are compared."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of one core's caches and of a line; 0: unknown. ahead: of coming rows that are asked for (Target.rows_ahead). near: whether short rows that come next are (Target.asks_near). beside: whether rows that are read side by side are asked for further along (Target.fills_l2). near_l3, streams_apart: Target's."""

    l1: int
    l2: int
    line: int
    ahead: int = AHEAD
    near: bool = True
    beside: bool = True
    near_l3: bool = True
    streams_apart: bool = False
