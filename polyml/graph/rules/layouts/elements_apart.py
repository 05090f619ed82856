"""Equations over short rows as one for each element of a row, and how far apart the rows are that lanes across them are shuffled out of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product

import islpy as isl

from polyml.expressions import Expr, Read
from polyml.graph.ir import Equation, Tensor
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine
from polyml.sets.turns import MOST_GAP

__all__ = ["element_parts", "every", "row_gaps", "spot"]


def every(extents: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """All values of the indices, the last one's fastest."""
    for values in product(*map(range, extents.values())):
        yield dict(zip(extents, values, strict=True))


def element_parts(
    equation: Equation,
    inner: Mapping[str, int],
    tensors: dict[str, Tensor],
    at: Callable[[Expr, Mapping[str, int]], Expr],
) -> list[Equation]:
    """An equation without sums, with an equation for each value of its last indices, `inner`; each goes on from the one before. `at` is the body at such values. `tensors` gets what is new."""
    assert tuple(inner) == equation.indices[-len(inner) :], "internal: parts of other indices than the last ones"
    left, result = equation.left[: -len(inner)], equation.result
    domain = equation.domain.project_out(isl.dim_type.set, len(left), len(inner))
    places = list(every(inner))
    made: list[Equation] = []
    base: Tensor | None = None
    for number, place in enumerate(places):
        last = number == len(places) - 1
        part = result if last else replace(result, name=fresh_name(result.name, tensors))
        tensors[part.name] = part
        one = replace(
            equation,
            result=part,
            indices=left,
            domain=domain.set_tuple_name(part.name),
            target=(*equation.target[: len(left)], *map(affine, place.values())),
            body=at(equation.body, place),
            base=base,
        )
        made.append(one)
        base = part
    return made


def row_gaps(
    reads: Iterable[Read], along: str, inner: Mapping[str, int], tensors: Mapping[str, Tensor]
) -> list[int] | None:
    """How far apart the elements of neighbours along an index are in each row that vectors are shuffled out of, with all values of the inner indices; None where lanes along it would gather."""
    places: dict[tuple[str, tuple[Affine, ...], Affine], set[int]] = {}
    for read in reads:
        found_at = spot(read, tensors[read.tensor])
        if found_at is None or any(subscript.stride(along) != 0 for subscript in found_at[0]):
            return None
        outer, place = found_at
        if place.stride(along) is None or any(part.stride(i) is None for part in (*outer, place) for i in inner):
            return None
        for values in every(inner):
            at = place.substitute(values)
            row = tuple(subscript.substitute(values) for subscript in outer)
            places.setdefault((read.tensor, row, at - at.constant), set()).add(at.constant)
    found: list[int] = []
    for (*_, base), touched in places.items():
        gap = base.stride(along) or 0
        if gap not in (-1, 0, 1):
            if not 1 < gap <= MOST_GAP or any(not _in_whole(at, gap, touched) for at in touched):
                return None
            found += [gap] * (len(touched) // gap)
    return found


def _in_whole(place: int, gap: int, touched: set[int]) -> bool:
    return any(touched.issuperset(range(first, first + gap)) for first in range(place - gap + 1, place + 1))


def spot(read: Read, tensor: Tensor) -> tuple[tuple[Affine, ...], Affine] | None:
    """The subscripts of dimensions whose strides are no numbers, and the element counted from the beginning of the row that they say; None where it is gathered."""
    if not all(isinstance(subscript, Affine) for subscript in read.subscripts):
        return None
    subscripts = [subscript for subscript in read.subscripts if isinstance(subscript, Affine)]
    place, step = Affine(), 1
    while subscripts:
        place = place + subscripts.pop() * step
        extent = tensor.shape[len(subscripts)]
        if not extent.is_constant:
            break
        step *= extent.constant
    return tuple(subscripts), place
