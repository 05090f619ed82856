"""Contractions into windows as convolutions with filters for each phase: `y[c, 2*p + r] += x[k, p] * w[k, c, r]`, with r of four values, becomes

    y_phases[a, c, p] = sum[k, r](x[k, p + r - 1] * w[k, c, 2*(1 - r) + a])     for all p that have a term
    y[c, 2*p + a] = y_phases[a, c, p]

Each element is then written once, from sums in registers (rules/windows/filters.py puts lanes along filters and phases, and zeros around x), and moved to its place; where windows move by one there is one phase, and nothing is moved. The alternative, terms first
(rules/windows/terms_first.py), stores and loads a term for every product of k, but has no edges: where results are few points, as many as edges, it costs less. Where there are enough filters each phase is a convolution of its own
(rules/windows/phase_by_phase.py), without the points and the terms that it does not have.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (arXiv 1609.07009); phases of a filter: Vaidyanathan, "Multirate Systems and Filter Banks" (1993), section 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from polyml.expressions import Apply, Read
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.windows.contractions import Contraction, contraction_into_windows, count, substituted
from polyml.graph.rules.windows.overlapping import Windows
from polyml.graph.rules.windows.parts import assigned, cropped, inside, reach
from polyml.graph.rules.windows.phase_by_phase import Series, convolve_each
from polyml.graph.traverse import UNKNOWN_EXTENT, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box

__all__ = ["convolve_phases"]

DEPTH = 32
"""Products that make an element, at least."""

TERM = 1.15
"""Cycles for a term that is stored and loaded again."""

FEW_POINTS, FEW = 256, 1.3
"""Points up to which products take so many times as long with terms first: a register tile has a vector of them."""

PLACED = 1.0
"""Cycles for an element that changes its place: of the result, from lanes along filters and to its phase, and of the padded operand."""


SERIES = 1.05
"""What several convolutions count, each of which is compiled, beside one."""


def convolve_phases(graph: Graph, *, vector_bytes: int, l2_bytes: int = 0) -> Graph:
    """The graph whose contractions into windows are such convolutions, where that costs less than terms; those in loops stay, as sums over windows do (rules/windows/filters.py)."""
    tensors = tensors_of(graph)
    ops: list[Op] = []
    for op in graph.ops:
        ops += _convolved(op, graph, tensors, vector_bytes, l2_bytes) if isinstance(op, Equation) else [op]
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
class _Joined:
    """A contraction as one convolution: what its windows are, and the extents of the indices that it has then."""

    contraction: Contraction
    phases: tuple[_Phases, ...]
    extents: Mapping[str, Affine]

    @property
    def left(self) -> tuple[str, ...]:
        """The indices of the left side that are left, those of phases among them, in the order of the result's memory: phases ahead of all places, unless the last dimension is none of windows."""
        target = [place for place in self.contraction.equation.target if isinstance(place, Affine)]
        if self._along(target[-1]) is None:
            return tuple(name for place in target for name in self._expanded(place))
        phases = [p.phase for p in self.phases if p.phase]
        others = [name for place in target if self._along(place) is None for name in self._expanded(place)]
        return (*phases, *others, *(p.windows.place for p in self._in_order(target)))

    def _expanded(self, place: Affine) -> tuple[str, ...]:
        along = self._along(place)
        if along is None:
            return tuple(index for index in self.contraction.equation.left if index in place.variables())
        return (along.windows.place, along.phase) if along.phase else (along.windows.place,)

    def _in_order(self, target: Sequence[Affine]) -> list[_Phases]:
        return [along for place in target if (along := self._along(place)) is not None]

    def _along(self, place: Affine) -> _Phases | None:
        return next((each for each in self.phases if each.windows.place in place.variables()), None)


def _convolved(
    equation: Equation, graph: Graph, tensors: dict[str, Tensor], vector_bytes: int, l2_bytes: int
) -> list[Op]:
    """What the equation becomes in the cheapest of the ways; itself where its terms come first or it is something else."""
    found = contraction_into_windows(equation, graph, tensors)
    if found is None:
        return [equation]
    lanes = max(1, vector_bytes // equation.result.dtype.itemsize)
    sums = count(equation.reduced, found.extents)
    if sums * prod(max(1, w.length // w.remainders) for w in found.windows) < DEPTH:
        return [equation]
    ways: list[tuple[float, _Joined | Series | None]] = [(_terms(found, lanes), None)]
    joined = _joined(found)
    if joined is not None:
        ways.append((_joined_cycles(joined, lanes), joined))
    series = Series.of(found, graph)
    if series is not None:
        ways.append((series.cycles(lanes, l2_bytes) * SERIES, series))
    best = min(ways, key=lambda way: way[0])[1]
    match best:
        case _Joined():
            return _convolution(best, graph, tensors)
        case Series():
            return convolve_each(best, graph, tensors)
        case None:
            return [equation]


def _joined(found: Contraction) -> _Joined | None:
    """As one convolution; None where phases differ in their number of terms."""
    phases: list[_Phases] = []
    extents = dict(found.extents)
    for windows in found.windows:
        if windows.remainders > 1 and not windows.even:
            return None
        phase = fresh_name(f"{windows.inside}_phase", extents) if windows.even else None
        each = _Phases(windows, phase, windows.length // windows.remainders)
        phases.append(each)
        extents[windows.place] += each.beyond
        extents[windows.inside] = affine(each.terms)
        if phase is not None:
            extents[phase] = affine(windows.remainders)
    return _Joined(found, tuple(phases), extents)


def _convolution(joined: _Joined, graph: Graph, tensors: dict[str, Tensor]) -> list[Op]:
    found = joined.contraction
    equation = found.equation
    moved = substituted(found.moved, {p.windows.place: _place(p) for p in joined.phases})
    filters = substituted(found.filters, {p.windows.inside: _inside(p) for p in joined.phases})
    left, reduced = joined.left, (*equation.reduced, *(p.windows.inside for p in joined.phases))
    name = fresh_name(f"{equation.result.name}_phases", tensors)
    shape = tuple(joined.extents[index] for index in left)
    result = tensors[name] = Tensor(name, equation.result.dtype, shape, equation.result.label)
    indices = (*left, *reduced)
    whole = box(name, indices, joined.extents, graph.sizes)
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
    return [sums, _placed(joined, result, graph)]


def _place(phases: _Phases) -> Affine:
    """Where the terms of a place come from, the first one's farthest back."""
    windows = phases.windows
    return affine(windows.place) - phases.beyond + affine(windows.inside) * windows.moves


def _inside(phases: _Phases) -> Affine:
    """The element of the filter that a phase has for a term."""
    windows = phases.windows
    last = (phases.terms - 1) * windows.remainders
    return last - affine(windows.inside) * windows.remainders + (affine(phases.phase) if phases.phase else affine(0))


def _terms(found: Contraction, lanes: int) -> float:
    """Cycles with terms first."""
    equation = found.equation
    products = count(equation.reduced, found.extents) / (2 * lanes)
    points = count([w.place for w in found.windows], found.extents)
    return count(equation.left, found.extents) * (products * (FEW if points <= FEW_POINTS else 1.0) + TERM)


def _joined_cycles(joined: _Joined, lanes: int) -> float:
    """Cycles of one convolution: of multiply-adds, those at edges among them, and of what is moved."""
    found = joined.contraction
    results = count(joined.left, joined.extents)
    taps = prod(p.terms for p in joined.phases)
    last = found.equation.target[-1]
    turned = isinstance(last, Affine) and last.name is None
    places = results * (turned + any(p.phase for p in joined.phases))
    reached = [reach(_place(p), joined.extents) for p in joined.phases]
    around = [s.name for s in found.moved.subscripts if isinstance(s, Affine) and s.name]
    padded = count([i for i in around if i not in {p.windows.place for p in joined.phases}], found.extents)
    padded *= prod(
        high.constant - low.constant if (high - low).is_constant else UNKNOWN_EXTENT for low, high in reached
    )
    return results * taps * count(found.equation.reduced, found.extents) / (2 * lanes) + (places + padded) * PLACED


def _placed(joined: _Joined, result: Tensor, graph: Graph) -> Equation:
    """What puts the elements at their places: all there are, or beside or on top of the base."""
    equation, left = joined.contraction.equation, joined.left
    values = {p.windows.inside: affine(p.phase) if p.phase else affine(0) for p in joined.phases}
    target = tuple(place.substitute(values) for place in equation.target if isinstance(place, Affine))
    domain = box(equation.result.name, left, joined.extents, graph.sizes)
    placed = replace(
        equation,
        indices=left,
        domain=domain,
        target=target,
        body=Read(result.name, tuple(map(affine, left)), result.dtype),
        reduced=(),
    )
    placed = cropped(placed, joined.contraction.wanted, graph)
    return assigned(placed, graph)
