"""What passes have in common that ask, from inside register tiles, for lines of large inputs that come next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace

from polyml.codegen.loops import For, Function, Place, Variable
from polyml.codegen.prefetch.caches import Caches
from polyml.codegen.prefetch.tile_sums import LEAST, fetching, map_tiles
from polyml.records import dataclass
from polyml.schedule.schedule import Note

__all__ = ["TileFetches"]


@dataclass(frozen=True, slots=True)
class TileFetches(ABC):
    """arguments: large inputs, by name. notes: of what is asked for, as they are found."""

    arguments: Mapping[str, Variable]
    caches: Caches
    notes: list[Note]

    @abstractmethod
    def lines(self, lanes: For, sums: For, loops: tuple[For, ...]) -> Iterable[Place]:
        """What an iteration of the sums asks for. lanes: the tile's vector loop. sums: the loop inside it. loops: those around it."""

    def within(
        self, function: Function, *, least: int = LEAST, beside: bool = False
    ) -> tuple[Function, tuple[Note, ...]]:
        """The function with prefetches of these lines in its register tiles (see `fetching`)."""
        if not self.arguments:
            return function, ()
        body = map_tiles(function.body, fetching(self.lines, least=least, beside=beside))
        return (function if body is function.body else replace(function, body=body)), tuple(dict.fromkeys(self.notes))
