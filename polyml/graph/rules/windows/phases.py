"""Contractions into windows as convolutions with filters for each phase: `y[c, 2*p + r] += x[k, p] * w[k, c, r]`, with r of four values, becomes

    y_phases[a, c, p] = sum[k, r](x[k, p + r - 1] * w[k, c, 2*(1 - r) + a])     for all p that have a term
    y[c, 2*p + a] = y_phases[a, c, p]

Each element is then written once, from sums in registers (rules/windows/filters.py puts lanes along filters and phases, and zeros around x), and moved to its place; where windows move by one there is one phase, and nothing is moved. The alternative, terms first
(rules/windows/terms_first.py), stores and loads a term for every product of k, but has no edges: where results are few points, as many as edges, it costs less.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (arXiv 1609.07009); phases of a filter: Vaidyanathan, "Multirate Systems and Filter Banks" (1993), section 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import Apply, Read, plain_indices
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box
from polyml.graph.rules.windows.gathered import overlap
from polyml.graph.rules.windows.overlapping import Windows
from polyml.graph.rules.windows.parts import assigned, cropped, extents_and_crop, inside, reach
from polyml.graph.traverse import UNKNOWN_EXTENT, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["convolve_phases"]

DEPTH = 32
"""Products that make an element, at least."""

TERM = 1.0
"""Cycles for a term that is stored and loaded again."""

PLACED = 1.0
"""Cycles for an element that changes its place: of the result, from lanes along filters and to its phase, and of the padded operand."""


def convolve_phases(graph: Graph, *, vector_bytes: int) -> Graph:
    """The graph whose contractions into windows are such convolutions, where that costs less than terms; those in loops stay, as sums over windows do (rules/windows/filters.py)."""
    tensors = tensors_of(graph)
    ops: list[Op] = []
    for op in graph.ops:
        ops += _convolved(op, graph, tensors, vector_bytes) if isinstance(op, Equation) else [op]
    return graph if len(ops) == len(graph.ops) else replace(graph, ops=tuple(ops))


@dataclass(frozen=True, slots=True)
class _Phases:
    """Windows along one dimension, and what each element of theirs is: the index of the phase (None: there is one), and the number of terms along it."""

    windows: Windows
    phase: str | None
    terms: int

    @property
    def beyond(self) -> int:
        """Elements before the first place with all of its terms."""
        return (self.terms - 1) * self.windows.moves


@dataclass(frozen=True, slots=True)
class _Contraction:
    """A sum of products of two tensors into windows. moved: the factor that windows are a place of; filters: the one that has their insides. wanted: the elements that the result has of them (None: all)."""

    equation: Equation
    moved: Read
    filters: Read
    phases: tuple[_Phases, ...]
    extents: Mapping[str, Affine]
    wanted: isl.Set | None

    @property
    def left(self) -> tuple[str, ...]:
        """The indices of the left side that are left, those of phases among them, in the order of the result's memory: phases ahead of all places, unless the last dimension is none of windows."""
        target = [place for place in self.equation.target if isinstance(place, Affine)]
        if self._along(target[-1]) is None:
            return tuple(name for place in target for name in self._expanded(place))
        phases = [p.phase for p in self.phases if p.phase]
        others = [name for place in target if self._along(place) is None for name in self._expanded(place)]
        return (*phases, *others, *(p.windows.place for p in self._in_order(target)))

    def _expanded(self, place: Affine) -> tuple[str, ...]:
        along = self._along(place)
        if along is None:
            return tuple(index for index in self.equation.left if index in place.variables())
        return (along.windows.place, along.phase) if along.phase else (along.windows.place,)

    def _in_order(self, target: Sequence[Affine]) -> list[_Phases]:
        return [along for place in target if (along := self._along(place)) is not None]

    def _along(self, place: Affine) -> _Phases | None:
        return next((each for each in self.phases if each.windows.place in place.variables()), None)


def _convolved(equation: Equation, graph: Graph, tensors: dict[str, Tensor], vector_bytes: int) -> list[Op]:
    found = _contraction(equation, graph, tensors)
    if found is None or not _pays(found, max(1, vector_bytes // equation.result.dtype.itemsize)):
        return [equation]
    moved = _substituted(found.moved, {p.windows.place: _place(p) for p in found.phases})
    filters = _substituted(found.filters, {p.windows.inside: _inside(p) for p in found.phases})
    left, reduced = found.left, (*equation.reduced, *(p.windows.inside for p in found.phases))
    name = fresh_name(f"{equation.result.name}_phases", tensors)
    shape = tuple(found.extents[index] for index in left)
    result = tensors[name] = Tensor(name, equation.result.dtype, shape, equation.result.label)
    indices = (*left, *reduced)
    whole = box(name, indices, found.extents, graph.sizes)
    within = inside(name, indices, moved, tensors[moved.tensor].shape, graph.sizes)
    sums = replace(
        equation,
        result=result,
        indices=indices,
        domain=whole.intersect(within),
        target=tuple(map(affine, left)),
        body=Apply("mul", (moved, filters), equation.body.dtype),
        reduced=reduced,
        accumulate=False,
        base=None,
    )
    return [sums, _placed(found, result, graph)]


def _place(phases: _Phases) -> Affine:
    """Where the terms of a place come from, the first one's farthest back."""
    windows = phases.windows
    return affine(windows.place) - phases.beyond + affine(windows.inside) * windows.moves


def _inside(phases: _Phases) -> Affine:
    """The element of the filter that a phase has for a term."""
    windows = phases.windows
    last = (phases.terms - 1) * windows.remainders
    return last - affine(windows.inside) * windows.remainders + (affine(phases.phase) if phases.phase else affine(0))


def _substituted(read: Read, values: Mapping[str, Affine]) -> Read:
    subscripts = tuple(s.substitute(values) if isinstance(s, Affine) else s for s in read.subscripts)
    return replace(read, subscripts=subscripts)


def _contraction(equation: Equation, graph: Graph, tensors: dict[str, Tensor]) -> _Contraction | None:
    """The equation's parts; None where it is something else, or phases differ in their number of terms."""
    body = equation.body
    if equation.reduce != "sum" or not isinstance(body, Apply) or body.op != "mul" or not body.dtype.is_float:
        return None
    if len(body.args) != 2 or not equation.reduced:
        return None
    known = extents_and_crop(equation, graph, tensors)
    if known is None:
        return None
    extents, wanted = known
    phases = _all_phases(equation, extents)
    if not phases:
        return None
    for moved, filters in (body.args, body.args[::-1]):
        if not isinstance(moved, Read) or not isinstance(filters, Read):
            return None
        used, others = (_indices_of(read) for read in (moved, filters))
        places, insides = {p.windows.place for p in phases}, {p.windows.inside for p in phases}
        if (
            used is None
            or others is None
            or not places <= used
            or places & others
            or not insides <= others
            or insides & used
        ):
            continue
        if not set(equation.reduced) <= used & others or not _spans(moved, extents, tensors):
            continue
        return _Contraction(equation, moved, filters, phases, extents | _new_extents(phases, extents), wanted)
    return None


def _all_phases(equation: Equation, extents: Mapping[str, Affine]) -> tuple[_Phases, ...]:
    """Of all windows; none where some have phases that differ, or another dimension is no index of its own."""
    found: list[_Phases] = []
    left = set(equation.left)
    while (windows := overlap(equation, skipping={p.windows.place for p in found})) is not None:
        if windows.remainders > 1 and not windows.even:
            return ()
        phase = fresh_name(f"{windows.inside}_phase", extents) if windows.even else None
        found.append(_Phases(windows, phase, windows.length // windows.remainders))
    met = {p.windows.place for p in found} | {p.windows.inside for p in found}
    for place in equation.target:
        if not isinstance(place, Affine) or not (place.name in left or set(place.variables()) <= met):
            return ()
    return tuple(found)


def _new_extents(phases: Sequence[_Phases], extents: Mapping[str, Affine]) -> dict[str, Affine]:
    found: dict[str, Affine] = {}
    for each in phases:
        windows = each.windows
        found[windows.place] = extents[windows.place] + each.beyond
        found[windows.inside] = affine(each.terms)
        if each.phase is not None:
            found[each.phase] = affine(windows.remainders)
    return found


def _indices_of(read: Read) -> set[str] | None:
    """The indices that a tensor is read by; None where one of its subscripts is none of them."""
    names = plain_indices(read.subscripts)
    found = {name for name in names if name is not None}
    return found if len(found) == len(names) else None


def _spans(read: Read, extents: Mapping[str, Affine], tensors: dict[str, Tensor]) -> bool:
    """Whether the indices go over all of the tensor: what is beside it are the terms that a place does not have."""
    shape = tensors[read.tensor].shape
    return all(extents[s.name or ""] == n for s, n in zip(read.subscripts, shape, strict=True) if isinstance(s, Affine))


def _pays(found: _Contraction, lanes: int) -> bool:
    """Cycles beside those of terms: of multiply-adds at the edges, of what is moved."""
    equation = found.equation

    def count(names: Sequence[str] | set[str], extents: Mapping[str, Affine]) -> int:
        return prod(extents[i].constant if extents[i].is_constant else UNKNOWN_EXTENT for i in names)

    old = dict(found.extents) | {p.windows.place: found.extents[p.windows.place] - p.beyond for p in found.phases}
    old |= {p.windows.inside: affine(p.windows.length) for p in found.phases}
    sums = count(equation.reduced, old)
    if sums * prod(p.terms for p in found.phases) < DEPTH:
        return False
    before = equation.left
    terms = count(before, old)
    results = count(found.left, found.extents)
    taps = prod(p.terms for p in found.phases)
    products = sums * (results * taps - terms) / (2 * lanes)
    last = equation.target[-1]
    turned = isinstance(last, Affine) and last.name is None
    places = results * (turned + any(p.phase for p in found.phases))
    reached = [reach(_place(p), found.extents) for p in found.phases]
    around = [s.name for s in found.moved.subscripts if isinstance(s, Affine) and s.name]
    padded = count([i for i in around if i not in {p.windows.place for p in found.phases}], old)
    padded *= prod(
        high.constant - low.constant if (high - low).is_constant else UNKNOWN_EXTENT for low, high in reached
    )
    return products + (places + padded) * PLACED < terms * TERM


def _placed(found: _Contraction, result: Tensor, graph: Graph) -> Equation:
    """What puts the elements at their places: all there are, or beside or on top of the base."""
    equation, left = found.equation, found.left
    values = {p.windows.inside: affine(p.phase) if p.phase else affine(0) for p in found.phases}
    target = tuple(place.substitute(values) for place in equation.target if isinstance(place, Affine))
    domain = box(equation.result.name, left, found.extents, graph.sizes)
    placed = replace(
        equation,
        indices=left,
        domain=domain,
        target=target,
        body=Read(result.name, tuple(map(affine, left)), result.dtype),
        reduced=(),
    )
    placed = cropped(placed, found.wanted, graph)
    return assigned(placed, graph)
