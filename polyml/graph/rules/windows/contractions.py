"""Contractions into windows, `y[c, s*p + r] += x[k, p] * w[k, c, r]`: their parts, which the rules that make convolutions of them have in common (windows/phases.py, windows/phase_by_phase.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import Apply, Read, plain_indices
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.windows.gathered import overlap
from polyml.graph.rules.windows.overlapping import Windows
from polyml.graph.rules.windows.parts import extents_and_crop
from polyml.graph.traverse import UNKNOWN_EXTENT
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["Contraction", "contraction_into_windows", "count", "substituted"]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products of two tensors into windows. moved: the factor that windows are a place of; filters: the one that has their insides. windows: along dimensions of the result, from the first to the last.
    extents: of all indices. wanted: the elements that the result has of them (None: all)."""

    equation: Equation
    moved: Read
    filters: Read
    windows: tuple[Windows, ...]
    extents: Mapping[str, Affine]
    wanted: isl.Set | None


def contraction_into_windows(equation: Equation, graph: Graph, tensors: dict[str, Tensor]) -> Contraction | None:
    """The equation's parts; None where it is something else."""
    body = equation.body
    if equation.reduce != "sum" or not isinstance(body, Apply) or body.op != "mul" or not body.dtype.is_float:
        return None
    if len(body.args) != 2 or not equation.reduced:
        return None
    known = extents_and_crop(equation, graph, tensors)
    if known is None:
        return None
    extents, wanted = known
    windows = _all_windows(equation)
    if not windows:
        return None
    places, insides = {w.place for w in windows}, {w.inside for w in windows}
    for moved, filters in (body.args, body.args[::-1]):
        if not isinstance(moved, Read) or not isinstance(filters, Read):
            return None
        used, others = (_indices_of(read) for read in (moved, filters))
        if used is None or others is None or not places <= used or places & others:
            continue
        if not insides <= others or insides & used or not set(equation.reduced) <= used & others:
            continue
        if _spans(moved, extents, tensors):
            return Contraction(equation, moved, filters, windows, extents, wanted)
    return None


def _all_windows(equation: Equation) -> tuple[Windows, ...]:
    """Along each dimension; none where another dimension is no index of its own."""
    found: list[Windows] = []
    left = set(equation.left)
    while (windows := overlap(equation, skipping={w.place for w in found})) is not None:
        found.append(windows)
    met = {w.place for w in found} | {w.inside for w in found}
    for place in equation.target:
        if not isinstance(place, Affine) or not (place.name in left or set(place.variables()) <= met):
            return ()
    return tuple(found)


def _indices_of(read: Read) -> set[str] | None:
    """The indices that a tensor is read by; None where one of its subscripts is none of them."""
    names = plain_indices(read.subscripts)
    found = {name for name in names if name is not None}
    return found if len(found) == len(names) else None


def _spans(read: Read, extents: Mapping[str, Affine], tensors: dict[str, Tensor]) -> bool:
    """Whether the indices go over all of the tensor: what is beside it are the terms that a place does not have."""
    shape = tensors[read.tensor].shape
    return all(extents[s.name or ""] == n for s, n in zip(read.subscripts, shape, strict=True) if isinstance(s, Affine))


def substituted(read: Read, values: Mapping[str, Affine]) -> Read:
    subscripts = tuple(s.substitute(values) if isinstance(s, Affine) else s for s in read.subscripts)
    return replace(read, subscripts=subscripts)


def count(names: Sequence[str], extents: Mapping[str, Affine]) -> int:
    """The values that the indices have together, those of symbolic ones taken for many."""
    return prod(extents[i].constant if extents[i].is_constant else UNKNOWN_EXTENT for i in names)
