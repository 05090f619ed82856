"""Hyperplanes: one schedule row per statement of a group, and what they do to dependences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import islpy as isl
import numpy as np
from numpy.typing import NDArray

from polyml.records import dataclass
from polyml.schedule.ilp.cones import Cone, Face
from polyml.scop.scop import Scop

__all__ = ["Hyperplane", "Row", "distances", "row_function", "satisfied", "unit"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Row:
    """An affine function of a statement's instances: `indices . i + sizes . n + constant`."""

    indices: tuple[int, ...]
    sizes: tuple[int, ...]
    constant: int = 0

    def shifted(self, by: int) -> Row:
        """The row plus a number."""
        return Row(self.indices, self.sizes, self.constant + by)

    @property
    def index(self) -> int | None:
        """The position of the one index that the row follows with coefficient 1 (a constant may be added), or None."""
        used = [k for k, c in enumerate(self.indices) if c]
        return used[0] if len(used) == 1 and self.indices[used[0]] == 1 and not any(self.sizes) else None


@dataclass(frozen=True, slots=True)
class Hyperplane:
    """One loop: a row per statement.

    parallel: it has zero distance on every dependence within the group, reductions included. free: on every dependence but reductions.
    joined: it was put together from loops with the same range of values.
    """

    rows: Mapping[str, Row]
    parallel: bool
    free: bool
    joined: bool = False

    def shifted(self, by: int) -> Hyperplane:
        """All rows plus a number: distances within stay as they are."""
        return Hyperplane(
            {name: row.shifted(by) for name, row in self.rows.items()}, self.parallel, self.free, self.joined
        )


def unit(dimension: int, position: int, sizes: int) -> Row:
    """The row that is one index."""
    return Row(tuple(int(k == position) for k in range(dimension)), (0,) * sizes)


def distances(cone: Cone, rows: Mapping[str, Row], face: Face | None = None) -> Integers:
    """`row(sink) - row(source)` on each generator of the affine hull, or of the face (times the generator's homogeneous coordinate)."""
    source, sink = rows[cone.source], rows[cone.sink]
    generators = cone.hull if face is None else face.generators
    sizes = len(source.sizes)
    if cone.source == cone.sink:
        return np.asarray(generators[:, 1 + sizes :] @ np.array(sink.indices, np.int64), np.int64)
    coefficients = np.array(
        [
            sink.constant - source.constant,
            *(b - a for a, b in zip(source.sizes, sink.sizes, strict=True)),
            *(-c for c in source.indices),
            *sink.indices,
        ],
        np.int64,
    )
    return np.asarray(generators @ coefficients, np.int64)


def satisfied(cones: Iterable[Cone], rows: Sequence[Mapping[str, Row]]) -> list[Cone]:
    """What the hyperplanes leave of the cones: the faces with zero distance on all of them that still have an instance."""
    left: list[Cone] = []
    for cone in cones:
        if not any(distances(cone, row).any() for row in rows):
            left.append(cone)
            continue
        faces: list[Face] = []
        for face in cone.faces:
            keep = np.ones(len(face.generators), bool)
            for row in rows:
                keep &= distances(cone, row, face) == 0
            part = face.part(keep)
            if not part.is_empty:
                faces.append(part)
        if faces:
            left.append(cone.restricted(tuple(faces)))
    return left


def row_function(row: Row, scop: Scop, statement: str) -> isl.UnionPwAff:
    """The row as isl's function of the statement's instances. It may have sizes that these do not know: those of statements that they are placed beside."""
    space = scop.statements[statement].domain.get_space().align_params(scop.context.get_space())
    function = isl.Aff.zero_on_domain(isl.LocalSpace.from_space(space))
    for position, coefficient in enumerate(row.indices):
        if coefficient:
            function = function.set_coefficient_val(isl.dim_type.in_, position, coefficient)
    for name, coefficient in zip(scop.sizes, row.sizes, strict=True):
        if coefficient:
            position = space.find_dim_by_name(isl.dim_type.param, name)
            function = function.set_coefficient_val(isl.dim_type.param, position, coefficient)
    function = function.set_constant_val(row.constant)
    return isl.UnionPwAff.from_pw_aff(isl.PwAff.from_aff(function))
