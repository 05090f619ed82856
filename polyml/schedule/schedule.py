"""A Schedule: an isl schedule tree (never copied into a second tree), its marks, and a storage decision per local array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import prod

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.levels import TimeLanes
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, Extent
from polyml.shown import Shown

__all__ = ["Note", "Product", "Schedule", "Storage"]


@dataclass(frozen=True, slots=True)
class Note:
    """Something a stage decided or refused, for explain(): `stage` ("fusion", "tiling", "vector", "parallel", "storage", "fallback", ...),
    `subject` (statement, array or loop), `text` (the decision and its reason)."""

    stage: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where a local array lives and how its elements map to storage.

    place: the name of the mark node `allocate:<array>` below which all its accesses lie; the empty string: the region's own scope.
    shape: extent of the storage per dimension of the array. offsets: per statement that accesses the array, `{ S[i] -> [o0, ...] }`: the storage
    element of array element e is `e - offset`. An offset map that is absent is zero.
    wraps: per dimension whether it is a sliding window, where the place is `(e - offset) mod extent`; empty: none is.
    private: (GPU) it stands around loops of threads, and each thread has one of its own: no element is touched by two.
    """

    array: str
    place: str
    shape: tuple[Extent, ...]
    offsets: dict[str, isl.MultiAff]
    wraps: tuple[bool, ...] = ()
    private: bool = False

    @property
    def elements(self) -> int | None:
        """How many there is room for; None when that is symbolic."""
        return (
            prod(e for e in self.shape if isinstance(e, int)) if all(isinstance(e, int) for e in self.shape) else None
        )


@dataclass(frozen=True, slots=True)
class Product:
    """A product of extents, what it must at least and at most be, of what a multiple, and of what not (0: nothing is asked)."""

    extents: tuple[Affine, ...]
    least: int = 0
    most: int | None = None
    multiple: int = 1
    no_multiple: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Shown):
    """What the strategy decided for one scop.

    tree: domain node first. Mark nodes stand directly above single-member bands and say how the loop is to be run, one mark per band:
        "parallel"; "parallel:2" (inside of a parallel band: threads share both together, where nothing else is in that one's loop); "pipelined" (threads take its iterations in turns, and wait for each other at those of the band right inside, which has the mark "stage"); "vector:U" (lanes run along it, jammed over U vectors); "jam:F" (unroll-and-jam by F); "neighbours:F" (the same of what one thread does, in order; sums of it may go to one element, with "neighbours:F:digit" to any); "unroll:F".
        "allocate:<array>" stands above the subtree that an array lives in.
    storage: for local arrays; one that is absent lives in the region's scope in full.
    worth: what must hold for it to be better than a schedule without packed operands, or on a GPU without parts of reductions (`schedule(pack=False)`).
    small: where it is better than a schedule with packed operands although what that one is worth holds (`schedule_small`).
    apart: arrays, two of which must begin at different places of a cache line for it to be better than that; none: wherever they lie.
    atomic: (GPU) updates that several threads may do to one element at once.
    streamed: arrays whose stores should bypass the caches; streamed_when_large: those of symbolic size, where that is more than so many bytes.
    vector_bytes: of one vector (vector_length.py); 0: of the target's.
    time_lanes: where values are while lanes run over steps, as the tree says they do; None: in the arrays.
    any_call: what is known of the sizes wherever it is called, where the scop's context has what it is worth as well.
    """

    scop: Scop
    dependences: Dependences
    tree: isl.Schedule
    storage: dict[str, Storage]
    notes: tuple[Note, ...] = ()
    worth: tuple[Product, ...] = ()
    small: tuple[Product, ...] = ()
    apart: tuple[str, ...] = ()
    atomic: frozenset[str] = frozenset()
    streamed: frozenset[str] = frozenset()
    streamed_when_large: Mapping[str, int] = field(default_factory=dict)
    vector_bytes: int = 0
    time_lanes: TimeLanes | None = None
    any_call: isl.Set | None = None

    def noted(self, stage: str, subject: str, text: str) -> Schedule:
        """The same schedule with one more note."""
        return replace(self, notes=(*self.notes, Note(stage, subject, text)))
