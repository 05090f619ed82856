"""Contractions into windows as a convolution for each phase: `y[c, 2*p + r] += x[k, p] * w[k, c, r]`, with r of three values, becomes

    t[0, c, p] = sum[k, r](x_padded[k, p + r] * w[k, c, 2*(1 - r)])
    t[1, c, p] = sum[k](x[k, p] * w[k, c, 1])
    y[c, i] = t[i % 2, c, i // 2]

Each has the points and the terms that its phase has: where the result is cropped, or phases differ in their number of terms, one convolution of all of them (windows/phases.py) makes products that nobody needs. They read one copy of x with the padding around it.
Lanes are along the filters of one phase then, so that these must be some vectors; what is fetched comes from rows in turn (codegen/llvm/memory/zipped.py).

Source: Vaidyanathan, "Multirate Systems and Filter Banks" (1993), section 4.3 (polyphase interpolation).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

import islpy as isl

from polyml.expressions import Apply, Const, Read, substitute, variables_in
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.windows.contractions import Contraction, substituted
from polyml.graph.rules.windows.guarded import guarded, with_zeros
from polyml.graph.rules.windows.overlapping import Windows
from polyml.graph.rules.windows.parts import is_zero, meets_all, padded
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.turns import MOST_ROWS

__all__ = ["Series", "convolve_each"]

MOST = 8
"""Convolutions, at most: each is a loop nest of its own."""

EACH = 2000.0
"""Cycles that a convolution costs beside its products: what is packed, and rows that are no whole tiles."""

PLACED, PLACED_FAR = 0.5, 1.0
"""Cycles for an element that changes its place, of the result, from lanes along filters and to its phase, and of the padded operand: where the result takes up to twice what L2 holds, and where it takes more."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One phase along one dimension. rest: which one. terms: of each element. first, number: the elements that are wanted, counted in steps of the stride."""

    windows: Windows
    rest: int
    terms: int
    first: int
    number: int


@dataclass(frozen=True, slots=True)
class Series:
    """A contraction as so many convolutions. extents: of its indices. wanted: by windows' places the first element of the result that is wanted, and the last. parts: the phases along each of the windows."""

    contraction: Contraction
    extents: Mapping[str, int]
    wanted: Mapping[str, tuple[int, int]]
    parts: tuple[tuple[_Part, ...], ...]

    @staticmethod
    def of(found: Contraction, graph: Graph) -> Series | None:
        """None where there are too many phases, sizes are not known, elements are added to something, or those that are wanted are no box."""
        equation, windows = found.equation, found.windows
        if any(w.step != 1 or w.stride > MOST_ROWS for w in windows) or prod(w.stride for w in windows) > MOST:
            return None
        if equation.base is None or equation.only_if is not None or not is_zero(equation.base, graph):
            return None
        if not all(extent.is_constant for extent in found.extents.values()):
            return None
        extents = {index: extent.constant for index, extent in found.extents.items()}
        wanted = _wanted(found, extents)
        if wanted is None:
            return None
        parts = tuple(tuple(_part(w, rest, *wanted[w.place]) for rest in range(w.stride)) for w in windows)
        if any(part.number < 1 for each in parts for part in each):
            return None
        return Series(found, extents, wanted, parts)

    def cycles(self, lanes: int, l2_bytes: int) -> float:
        """Of multiply-adds, and of what is moved."""
        equation, windows = self.contraction.equation, self.contraction.windows
        along = {name for w in windows for name in (w.place, w.inside)}
        met = variables_in(self.contraction.moved.subscripts)
        outer = [index for index in equation.left if index not in along]
        filters = prod(self.extents[index] for index in outer if index not in met)
        waste = ceil(filters / lanes) * lanes / filters
        others, sums = (prod(self.extents[index] for index in part) for part in (outer, equation.reduced))
        last = equation.target[-1]
        moved = 2 if isinstance(last, Affine) and last.name is None else 1
        results = others * prod(high - low + 1 for low, high in self.wanted.values())
        placed = PLACED if results * equation.result.dtype.itemsize <= 2 * l2_bytes else PLACED_FAR
        total = prod(self.extents[index] for index in met) * placed
        for parts in itertools.product(*self.parts):
            points, terms = others * prod(p.number for p in parts), sums * prod(p.terms for p in parts)
            total += points * (terms / (2 * lanes) * waste + moved * placed) + EACH
        return total

    @property
    def starts(self) -> dict[str, int]:
        """By windows' places the first element that some phase has, in steps of the stride."""
        return {w.place: self.wanted[w.place][0] // w.stride for w in self.contraction.windows}


def _wanted(found: Contraction, extents: Mapping[str, int]) -> dict[str, tuple[int, int]] | None:
    """The first and the last element that is wanted along each of the windows' dimensions, by their places; None where they are no box."""
    if found.wanted is not None and not found.wanted.is_box():
        return None
    limits: dict[str, tuple[int, int]] = {}
    for dimension, place in enumerate(found.equation.target):
        assert isinstance(place, Affine), "internal: a window with a computed subscript"
        windows = next((w for w in found.windows if w.place in place.variables()), None)
        index = windows.place if windows is not None else place.name or ""
        most = extents[index] - 1 if windows is None else (extents[index] - 1) * windows.stride + windows.length - 1
        limit = (0, most)
        if found.wanted is not None:
            low, high = found.wanted.dim_min_val(dimension), found.wanted.dim_max_val(dimension)
            limit = low.to_python() - place.constant, high.to_python() - place.constant
        if windows is not None:
            limits[index] = limit
        elif limit != (0, most):
            return None
    return limits


def _part(windows: Windows, rest: int, low: int, high: int) -> _Part:
    first = -((rest - low) // windows.stride)
    return _Part(
        windows, rest, -((rest - windows.length) // windows.stride), first, (high - rest) // windows.stride - first + 1
    )


def convolve_each(series: Series, graph: Graph, tensors: dict[str, Tensor]) -> list[Op]:
    """The convolutions, one after the other into one tensor, and what fetches the elements from it."""
    found, starts = series.contraction, series.starts
    equation = found.equation
    moved, padding = _padded(series, graph, tensors)
    order = [_index_of(place, found.windows) for place in equation.target if isinstance(place, Affine)]
    ends = {w.place: series.wanted[w.place][1] // w.stride for w in found.windows}
    extents = (ends[i] - starts[i] + 1 if i in starts else series.extents[i] for i in order)
    shape = (*(w.stride for w in found.windows if w.stride > 1), *extents)
    name = fresh_name(f"{equation.result.name}_phases", tensors)
    zeros = _tensor(name, equation.result, shape, tensors)
    made = [fill(zeros, Const(0.0, equation.body.dtype), equation.span)]
    for parts in itertools.product(*series.parts):
        result = _tensor(fresh_name(name, tensors), equation.result, shape, tensors)
        made.append(replace(_convolution(series, parts, moved, result, order), base=made[-1].result))
    fetched = _fetched(series, made[-1].result, order, graph)
    if not padding:
        return [*made, fetched]
    # Apart, so that convolutions of equal phases are one region (graph/equal_regions.py); what follows it waits for the flag anyway.
    allowed = replace(with_zeros(fetched, tensors), apart=True)
    alone = _element_by_element(series, order)
    return [*padding, *made, allowed, *guarded(alone, allowed.result, found.filters, graph, tensors)]


def _tensor(name: str, like: Tensor, shape: Sequence[int], tensors: dict[str, Tensor]) -> Tensor:
    made = tensors[name] = Tensor(name, like.dtype, tuple(map(affine, shape)), like.label)
    return made


def _index_of(place: Affine, windows: Sequence[Windows]) -> str:
    """The index that goes along a dimension of the phases: that of places, or the dimension's own."""
    along = next((w.place for w in windows if w.place in place.variables()), place.name)
    assert along is not None, "internal: a dimension without an index of its own"
    return along


def _padded(series: Series, graph: Graph, tensors: dict[str, Tensor]) -> tuple[Read, list[Equation]]:
    """The factor that places are in, and what makes a copy of it with the padding around it, where some phase reaches beyond."""
    found = series.contraction
    source = tensors[found.moved.tensor]
    reaches: dict[str, tuple[int, int]] = {}
    for parts in series.parts:
        low = min(part.first - (part.terms - 1) for part in parts)
        reaches[parts[0].windows.place] = low, max(part.first + part.number for part in parts)
    names = [s.name or "" for s in found.moved.subscripts if isinstance(s, Affine)]
    along = [reaches.get(index, (0, series.extents[index])) for index in names]
    if all(low >= 0 and high <= series.extents[index] for (low, high), index in zip(along, names, strict=True)):
        return found.moved, []
    name = fresh_name(f"{source.name}_padded", tensors)
    tensor = _tensor(name, replace(source, label=name), [high - low for low, high in along], tensors)
    inner = tuple(affine(f"i{d}") + low for d, (low, _) in enumerate(along))
    limits = [(affine(low), affine(high)) for low, high in along]
    value = padded(Read(source.name, inner, source.dtype), source.shape, limits, graph)
    places = tuple(affine(index) - low for index, (low, _) in zip(names, along, strict=True))
    return Read(name, places, source.dtype), [replace(fill(tensor, value, found.equation.span), apart=True)]


def _convolution(series: Series, parts: Sequence[_Part], moved: Read, result: Tensor, order: Sequence[str]) -> Equation:
    """One phase, at its place in the result; the terms of an element in the order of the factor that is read by places."""
    equation = series.contraction.equation
    places: dict[str, Affine] = {}
    insides: dict[str, Affine] = {}
    at = {index: affine(index) for index in order}
    extents = dict(series.extents)
    reduced = list(equation.reduced)
    for part in parts:
        place, inside, stride = part.windows.place, part.windows.inside, part.windows.stride
        at[place] += part.first - series.starts[place]
        extents[place], extents[inside] = part.number, part.terms
        term = affine(inside) if part.terms > 1 else affine(0)
        reduced += [inside] if part.terms > 1 else []
        places[place] = affine(place) + term + (part.first - (part.terms - 1))
        insides[inside] = (part.terms - 1 - term) * stride + part.rest
    indices = (*order, *reduced)
    filters = substituted(series.contraction.filters, insides)
    which = [affine(part.rest) for part in parts if part.windows.stride > 1]
    return replace(
        equation,
        result=result,
        indices=indices,
        domain=box(result.name, indices, extents),
        target=(*which, *(at[index] for index in order)),
        body=Apply("mul", (substituted(moved, places), filters), equation.body.dtype),
        reduced=tuple(reduced),
        accumulate=False,
    )


def _element_by_element(series: Series, order: Sequence[str]) -> Equation:
    """The result as sums of the terms that there are, without any zeros."""
    found = series.contraction
    equation = found.equation
    along = {w.place: w for w in found.windows}
    values: dict[str, Affine] = {}
    limits: list[str] = []
    for d, (index, place) in enumerate(zip(order, equation.target, strict=True)):
        assert isinstance(place, Affine), "internal: a window with a computed subscript"
        values[index], extent = affine(f"i{d}"), series.extents[index]
        if index in along:
            stride, begin = along[index].stride, affine(f"i{d}") - affine(along[index].inside) - place.constant
            values[index] = begin // stride
            limits.append(f"({begin.isl_text()}) mod {stride} = 0 and 0 <= {begin.isl_text()} < {extent * stride}")
    left = tuple(f"i{d}" for d in range(len(order)))
    reduced = (*equation.reduced, *(w.inside for w in found.windows))
    extents = dict(zip(left, equation.result.shape, strict=True))
    extents |= {index: affine(series.extents[index]) for index in reduced}
    domain = box(equation.result.name, (*left, *reduced), extents)
    inside = isl.Set(f"{{ {equation.result.name}[{', '.join((*left, *reduced))}] : {' and '.join(limits)} }}")
    return replace(
        equation,
        indices=(*left, *reduced),
        domain=domain.intersect(inside),
        target=tuple(map(affine, left)),
        body=substitute(equation.body, values),
        reduced=reduced,
        accumulate=False,
        base=None,
    )


def _fetched(series: Series, phases: Tensor, order: Sequence[str], graph: Graph) -> Equation:
    """Each element of the result from its phase; what is beside the wanted ones stays as it was."""
    equation, starts = series.contraction.equation, series.starts
    strides = {w.place: w.stride for w in series.contraction.windows}
    limits: dict[str, tuple[int, int]] = {}
    which: list[Affine] = []
    where: list[Affine] = []
    for d, (index, place) in enumerate(zip(order, equation.target, strict=True)):
        assert isinstance(place, Affine), "internal: a window with a computed subscript"
        at, stride = affine(f"i{d}"), strides.get(index, 1)
        if index in strides:
            low, high = series.wanted[index]
            limits[f"i{d}"] = low + place.constant, high + place.constant
            at -= place.constant
        where.append(at // stride - starts.get(index, 0))
        which += [at % stride] if stride > 1 else []
    made = fill(equation.result, Read(phases.name, (*which, *where), phases.dtype), equation.span)
    within = " and ".join(f"{low} <= {index} <= {high}" for index, (low, high) in limits.items())
    hit = isl.Set(f"{{ {equation.result.name}[{', '.join(made.indices)}] : {within} }}")
    made = replace(made, domain=made.domain.intersect(hit))
    return made if meets_all(made, graph) else replace(made, base=equation.base)
