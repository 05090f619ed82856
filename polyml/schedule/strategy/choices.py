"""What the strategy decides for a nest, as data: it prints, and a tuner above the compiler can search it."""

from __future__ import annotations

from polyml.records import dataclass
from polyml.shown import counted

__all__ = ["NestChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NestChoice:
    """The loops of one nest, by the names of the indices that its largest statement gives them.

    order: of the loops that are neither tiled nor lanes, outermost first. parallel: the loop that threads share (its tile loop where it is tiled).
    tiles: iterations per tile. jam: index and unroll-and-jam factor. vector: index and vectors per iteration.
    edges: the jammed loop's first and last iterations, whose windows are cut, are a loop of their own.
    """

    statements: tuple[str, ...]
    order: tuple[str, ...] = ()
    parallel: str | None = None
    tiles: tuple[tuple[str, int], ...] = ()
    jam: tuple[str, int] | None = None
    vector: tuple[str, int] | None = None
    edges: bool = False

    def __str__(self) -> str:
        parts = []
        if self.order:
            parts.append(f"loops {', '.join(self.order)}")
        if self.parallel is not None:
            parts.append(f"parallel {self.parallel}")
        parts += [f"tile {index} by {size}" for index, size in self.tiles]
        if self.jam is not None:
            parts.append(f"jam {self.jam[0]} by {self.jam[1]}{' where windows are whole' if self.edges else ''}")
        if self.vector is not None:
            parts.append(f"lanes along {self.vector[0]}, {counted(self.vector[1], 'vector')} at once")
        return "; ".join(parts) or "sequential"
