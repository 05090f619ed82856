"""Dependences as generators: what a linear distance must satisfy on a whole dependence is a row per vertex and ray.

A schedule row has on a dependence the distance `row(sink) - row(source)`, an affine form. By Farkas' lemma it is non-negative on a polyhedron exactly when its
coefficients lie in the polyhedron's coefficient set, whose constraints are the polyhedron's generators. isl computes that set once per convex piece; after that
legality, bounds and "which part is still unsatisfied" are products of integer matrices, without isl.

Source: Feautrier, "Some efficient solutions to the affine scheduling problem" (IJPP 1992); isl manual, `isl_basic_set_coefficients`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import islpy as isl
import numpy as np
from numpy.typing import NDArray

from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop

__all__ = ["Cone", "ConeKind", "cones_of"]

ConeKind = Literal["flow", "order", "reduction"]
Integers = NDArray[np.int64]

_SET, _IN, _OUT, _DIV = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out, isl.dim_type.div


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cone:
    """One convex piece of a dependence.

    generators: a row each: the homogeneous coordinate (0 for a ray, > 0 for a vertex), the sizes, then the source's indices and the sink's; within one
        statement (`source == sink`) the differences of its indices instead. lines: which rows are generators in both directions.
    kind: "flow"; "order" (anti and output, which must hold but carry no value); "reduction" (between updates that commute).
    """

    source: str
    sink: str
    kind: ConeKind
    generators: Integers
    lines: NDArray[np.bool_]

    @property
    def is_empty(self) -> bool:
        """Whether no instance is left: a polyhedron without a vertex."""
        return not bool(((self.generators[:, 0] > 0) & ~self.lines).any())

    def face(self, keep: NDArray[np.bool_]) -> Cone:
        """The part spanned by some of the generators."""
        if keep.all():
            return self
        return replace(self, generators=self.generators[keep], lines=self.lines[keep])


def cones_of(scop: Scop, dependences: Dependences, *, relax_reductions: bool) -> list[Cone]:
    """All dependences as cones; pieces with the same generators once per kind. Existentially quantified variables are projected out (a superset).

    Args:
        relax_reductions: otherwise the order within reductions is an "order" like another.
    """
    relations: tuple[tuple[ConeKind, isl.UnionMap], ...] = (
        ("flow", dependences.flow),
        ("order", dependences.anti),
        ("order", dependences.output),
        ("reduction" if relax_reductions else "order", dependences.reduction),
    )
    found: list[Cone] = []
    seen: set[tuple[str, str, ConeKind, bytes, bytes]] = set()
    for kind, relation in relations:
        for piece in _pieces(relation):
            source, sink = str(piece.get_tuple_name(_IN)), str(piece.get_tuple_name(_OUT))
            if source == sink and not scop.statements[source].indices:
                continue
            generators, lines = _generators(piece, within=source == sink, parameters=scop.context.get_space())
            key = (source, sink, kind, generators.tobytes(), lines.tobytes())
            if key not in seen:
                seen.add(key)
                found.append(Cone(source=source, sink=sink, kind=kind, generators=generators, lines=lines))
    return found


def _pieces(relation: isl.UnionMap) -> Iterator[isl.BasicMap]:
    # Never coalesced: one merged polyhedron can have exponentially many generators.
    maps: list[isl.Map] = []
    relation.foreach_map(maps.append)
    maps.sort(key=lambda m: (str(m.get_tuple_name(_IN)), str(m.get_tuple_name(_OUT))))
    for m in maps:
        pieces: list[isl.BasicMap] = []
        m.foreach_basic_map(pieces.append)
        yield from pieces


def _generators(piece: isl.BasicMap, *, within: bool, parameters: isl.Space) -> tuple[Integers, NDArray[np.bool_]]:
    piece = piece.align_params(parameters)
    points = piece.deltas().detect_equalities() if within else piece.wrap()
    if points.dim(_DIV):
        points = points.remove_divs()
    coefficients = points.coefficients()
    count = coefficients.dim(_SET)
    # Text is the fast way out of islpy: one call where the matrix takes one per entry.
    printer = isl.Printer.to_str(coefficients.get_ctx()).set_output_format(isl.format.EXT_POLYLIB)
    lines = printer.print_set(coefficients.to_set()).get_str().split("\n")
    start = next(k for k, line in enumerate(lines) if len(line.split()) == 6)
    rows, columns = (int(n) for n in lines[start].split()[:2])
    flat = np.array(" ".join(lines[start + 1 : start + 1 + rows]).split(), dtype=np.int64)
    table = flat.reshape(rows, columns)
    return np.ascontiguousarray(table[:, 1 : 1 + count]), table[:, 0] == 0
