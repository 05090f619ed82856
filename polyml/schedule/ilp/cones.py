"""Dependences as generators: what a linear distance must satisfy on a whole dependence is a row per vertex and ray.

A schedule row has on a dependence the distance `row(sink) - row(source)`, an affine form. By Farkas' lemma it is non-negative on a polyhedron exactly when its
coefficients lie in the polyhedron's coefficient set, whose constraints are the polyhedron's generators. isl computes that set once per convex piece; after that
legality, bounds and "which part is still unsatisfied" are products of integer matrices, without isl.

Whether a distance is zero everywhere is decided on the affine hull, whose generators are few and cheap: programs without recurrences need nothing else.

Source: Feautrier, "Some efficient solutions to the affine scheduling problem" (IJPP 1992); isl manual, `isl_basic_set_coefficients`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal

import islpy as isl
import numpy as np
from numpy.typing import NDArray

from polyml.records import dataclass
from polyml.schedule.ilp.generators import MOST_GENERATORS, generators_around, generators_of
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted
from polyml.sets.spaces import maps_of

__all__ = ["Cone", "ConeKind", "Face", "cones_of"]

ConeKind = Literal["flow", "order", "reduction"]
Integers = NDArray[np.int64]

_IN, _OUT, _DIV = isl.dim_type.in_, isl.dim_type.out, isl.dim_type.div


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """A convex piece of a dependence, or a face of one.

    generators: a row each: the homogeneous coordinate (0 for a ray, > 0 for a vertex), the sizes, then the source's indices and the sink's; within one
        statement (`source == sink`) the differences of its indices instead. lines: which rows are generators in both directions.
    """

    generators: Integers
    lines: NDArray[np.bool_]

    @property
    def is_empty(self) -> bool:
        """Whether no instance is left: a polyhedron without a vertex."""
        return not bool(((self.generators[:, 0] > 0) & ~self.lines).any())

    def part(self, keep: NDArray[np.bool_]) -> Face:
        """The face spanned by some of the generators."""
        return self if keep.all() else Face(self.generators[keep], self.lines[keep])


@dataclass(slots=True, eq=False)
class Cone:
    """The dependences of one kind from one statement to another.

    kind: "flow"; "order" (anti and output, which must hold but carry no value); "reduction" (between updates that commute).
    hull: generators of the affine hull: a distance is zero on them exactly when it is zero everywhere.
    """

    source: str
    sink: str
    kind: ConeKind
    hull: Integers
    _pieces: tuple[isl.BasicMap, ...] = ()
    _faces: tuple[Face, ...] | None = field(default=None, repr=False)

    @property
    def faces(self) -> tuple[Face, ...]:
        """The convex pieces, those with the same generators once.

        Raises:
            BudgetExhausted: there are more than `MOST_GENERATORS` of them.
        """
        if self._faces is None:
            found: dict[tuple[bytes, bytes], Face] = {}
            for piece in self._pieces:
                face = _generators(piece, within=self.source == self.sink)
                found[face.generators.tobytes(), face.lines.tobytes()] = face
                if sum(len(face.generators) for face in found.values()) > MOST_GENERATORS:
                    raise BudgetExhausted("finding the dependences' generators", MOST_GENERATORS)
            self._faces = tuple(found.values())
        return self._faces

    def restricted(self, faces: tuple[Face, ...]) -> Cone:
        """The cone with faces of its faces."""
        return Cone(self.source, self.sink, self.kind, np.concatenate([face.generators for face in faces]), (), faces)


def cones_of(scop: Scop, dependences: Dependences, *, relax_reductions: bool) -> list[Cone]:
    """All dependences as cones. Existentially quantified variables are projected out (a superset).

    Args:
        relax_reductions: otherwise the order within reductions is an "order" like another.
    """
    order = dependences.anti.union(dependences.output)
    relations: tuple[tuple[ConeKind, isl.UnionMap], ...] = (
        ("flow", dependences.flow),
        ("order", order if relax_reductions else order.union(dependences.reduction)),
        ("reduction", dependences.reduction),
    )
    parameters = scop.context.get_space()
    found: list[Cone] = []
    for kind, relation in relations[: 3 if relax_reductions else 2]:
        for m in _by_name(relation):
            source, sink = str(m.get_tuple_name(_IN)), str(m.get_tuple_name(_OUT))
            if source == sink and not scop.statements[source].indices:
                continue
            m = m.align_params(parameters)
            # Never coalesced: one merged polyhedron can have exponentially many generators.
            pieces: list[isl.BasicMap] = []
            m.foreach_basic_map(pieces.append)
            hull, _ = generators_of(_points(m.affine_hull(), within=source == sink))
            found.append(Cone(source, sink, kind, hull, tuple(pieces)))
    return found


def _by_name(relation: isl.UnionMap) -> Iterator[isl.Map]:
    yield from sorted(maps_of(relation), key=lambda m: (str(m.get_tuple_name(_IN)), str(m.get_tuple_name(_OUT))))


def _generators(piece: isl.BasicMap, *, within: bool) -> Face:
    return Face(*generators_around(_points(piece, within=within)))


def _points(piece: isl.BasicMap, *, within: bool) -> isl.BasicSet:
    points = piece.deltas().detect_equalities() if within else piece.wrap()
    return points.remove_divs() if points.dim(_DIV) else points
