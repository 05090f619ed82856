"""Sums over windows of repeated elements: `y[c, h] = sum[k, r](x[k, (h + r - 1) // 2] * w[k, c, r])`, a convolution of what an upsampling makes, is one into windows:

    v[k, c, t] = sum[r](w[k, c, r])     for all r with 0 <= t + r - 2 < 2
    z[c, 2*p + t] += x[k, p] * v[k, c, t]
    y[c, h] = z[c, h + 1]

Windows of three elements meet two different ones at most, so that half of the products are of elements that are equal: filters that are added up first make 4 of 9 in two dimensions, 16 of 25 for five. Which filters is a matter of
the phase; the rules for contractions into windows know (windows/phases.py). Quotients would keep lanes from loading contiguous vectors.

Source: Odena et al., "Deconvolution and Checkerboard Artifacts" (Distill, 2016), on resizing and convolving as a transposed convolution; noble identities: Vaidyanathan, "Multirate Systems and Filter Banks" (1993), section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Const, Read
from polyml.graph.builder.parts import fill
from polyml.graph.edit import replace_equations
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.boxes import holds
from polyml.graph.rules.windows.gathered import LONGEST
from polyml.graph.rules.windows.parts import inside
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, FloorDiv, affine
from polyml.sets.boxes import box

__all__ = ["spread_filters"]


def spread_filters(graph: Graph) -> Graph:
    """The graph whose sums over windows of repeated elements are contractions into windows; those of half precision, whose filters would be rounded once more, stay."""
    tensors = tensors_of(graph)
    ops = replace_equations(graph.ops, lambda equation: _spread(equation, graph, tensors))
    return graph if ops is graph.ops else replace(graph, ops=ops)


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A subscript `(index + step*inside + first) // times + last` of the factor that is repeated: each of its elements so many times."""

    dimension: int
    index: str
    inside: str
    step: int
    first: int
    times: int
    last: int
    length: int

    @property
    def reach(self) -> int:
        """Elements of the result that one element is a term of."""
        return abs(self.step) * (self.length - 1) + self.times

    @property
    def start(self) -> int:
        """The first of these, for the element at 0."""
        return -max(0, self.step * (self.length - 1)) - self.first - self.last * self.times

    def matches(self, tap: str) -> str:
        """Which of the windows' elements are added up for one that an element has."""
        begin = max(0, self.step * (self.length - 1))
        return f"0 <= {tap} - {begin} + {self.step}*{self.inside} < {self.times}"


def _spread(equation: Equation, graph: Graph, tensors: dict[str, Tensor]) -> list[Equation]:
    """What the equation becomes; itself where it is something else."""
    body = equation.body
    if equation.reduce != "sum" or not isinstance(body, Apply) or body.op != "mul" or len(body.args) != 2:
        return [equation]
    whole = equation.is_plain and equation.base is None and equation.instances is None and equation.only_if is None
    if not whole or not body.dtype.is_float or equation.result.dtype.is_half:
        return [equation]
    for repeated, filters in (body.args, body.args[::-1]):
        if not isinstance(repeated, Read) or not isinstance(filters, Read):
            continue
        extents = _extents(equation, repeated, filters, tensors)
        windows = None if extents is None else _windows(equation, repeated, filters, extents)
        if extents is None or not windows:
            continue
        source = tensors[repeated.tensor]
        beside = {each.index: _beside(equation, each, source, graph) for each in windows}
        around = {index: found for index, found in beside.items() if found is not None}
        if len(around) < len(beside):
            continue
        name = equation.result.name
        domain = box(name, equation.indices, extents, graph.sizes)
        read = inside(name, equation.indices, repeated, source.shape, graph.sizes)
        if (
            domain.intersect(read)
            .intersect_params(graph.context)
            .is_equal(equation.domain.intersect_params(graph.context))
        ):
            return _into_windows(equation, repeated, filters, windows, around, extents, graph, tensors)
    return [equation]


def _extents(equation: Equation, repeated: Read, filters: Read, tensors: dict[str, Tensor]) -> dict[str, Affine] | None:
    """How far each index runs, along the result and the factors' dimensions; None where one of the filters' subscripts is no index."""
    found = dict(zip(equation.left, equation.result.shape, strict=True))
    for read in (filters, repeated):
        for subscript, extent in zip(read.subscripts, tensors[read.tensor].shape, strict=True):
            if isinstance(subscript, Affine) and subscript.name is not None:
                found.setdefault(subscript.name, extent)
            elif read is filters:
                return None
    return found if found.keys() == set(equation.indices) else None


def _windows(equation: Equation, repeated: Read, filters: Read, extents: Mapping[str, Affine]) -> list[_Repeated]:
    """The dimensions that are windows; none where nothing is repeated, or an index has another part as well."""
    found: list[_Repeated] = []
    used = [s.variables() for read in (repeated, filters) for s in read.subscripts if isinstance(s, Affine)]
    for dimension, subscript in enumerate(repeated.subscripts):
        if not isinstance(subscript, Affine):
            return []
        if subscript.name is not None:
            continue
        each = _repeated(dimension, subscript, equation, extents)
        if each is None or sum(each.index in names for names in used) > 1:
            return []
        if sum(each.inside in names for names in used) != 2 or each.reach > LONGEST:
            return []
        found.append(each)
    return found if any(each.times > 1 for each in found) else []


def _repeated(dimension: int, subscript: Affine, equation: Equation, extents: Mapping[str, Affine]) -> _Repeated | None:
    inner, times, last = subscript - subscript.constant, 1, subscript.constant
    if len(inner.terms) == 1:
        ((atom, coefficient),) = inner.terms
        if isinstance(atom, FloorDiv) and coefficient == 1:
            inner, times = atom.numerator, atom.denominator
    moved = [index for index in equation.left if index in inner.variables()]
    taps = [index for index in equation.reduced if index in inner.variables()]
    if len(moved) != 1 or len(taps) != 1 or inner.stride(moved[0]) != 1 or len(inner.terms) != 2:
        return None
    step, length = inner.stride(taps[0]), extents[taps[0]]
    if not step or not length.is_constant or length.constant < 2:
        return None
    return _Repeated(dimension, moved[0], taps[0], step, inner.constant, times, last, length.constant)


def _beside(equation: Equation, each: _Repeated, source: Tensor, graph: Graph) -> tuple[int, int] | None:
    """How many elements of the result, before the first and behind the last that the factor has a term for, are wanted as well; None where these are more than a window has."""
    wanted = equation.result.shape[equation.left.index(each.index)]
    ends = (source.shape[each.dimension] - 1) * each.times + each.reach + each.start
    behind = next((n for n in (0, each.reach) if holds(ends + n - wanted, graph)), None)
    return None if behind is None else (max(0, each.start), behind)


def _into_windows(
    equation: Equation,
    repeated: Read,
    filters: Read,
    windows: list[_Repeated],
    around: Mapping[str, tuple[int, int]],
    extents: Mapping[str, Affine],
    graph: Graph,
    tensors: dict[str, Tensor],
) -> list[Equation]:
    """The filters that are added up, zeros, what is added to them, and the part of it that is the result."""
    result, dtype = equation.result, equation.body.dtype
    taps = {each.inside: fresh_name(f"{each.inside}_tap", extents) for each in windows}
    every = dict(extents) | {taps[each.inside]: affine(each.reach) for each in windows}

    def tensor(name: str, shape: tuple[Affine, ...]) -> Tensor:
        name = fresh_name(name, tensors)
        tensors[name] = Tensor(name, dtype, shape, name)
        return tensors[name]

    used = [s.name or "" for s in filters.subscripts if isinstance(s, Affine)]
    names = [taps.get(index, index) for index in used]
    added = tensor(f"{filters.tensor}_added", tuple(every[index] for index in names))
    terms = (*names, *taps)
    matches = " and ".join(each.matches(taps[each.inside]) for each in windows)
    domain = box(added.name, terms, every, graph.sizes)
    adding = replace(
        equation,
        result=added,
        indices=terms,
        domain=domain.intersect(isl.Set(f"{{ {added.name}[{', '.join(terms)}] : {matches} }}")),
        target=tuple(map(affine, names)),
        body=filters,
        reduced=tuple(taps),
        padded=False,
    )
    by_index = {each.index: each for each in windows}
    places = {index: affine(index) for index in equation.left}
    shape = dict(zip(equation.left, equation.result.shape, strict=True))
    starts = dict.fromkeys(equation.left, 0)
    for index, each in by_index.items():
        before, behind = around[index]
        every[index] = tensors[repeated.tensor].shape[each.dimension]
        places[index] = affine(index) * each.times + affine(taps[each.inside]) + before
        shape[index] = (every[index] - 1) * each.times + each.reach + before + behind
        starts[index] = each.start - before
    zeros, sums = (tensor(f"{result.name}_whole", tuple(shape.values())) for _ in range(2))
    left, reduced = (*equation.left, *taps.values()), tuple(i for i in equation.reduced if i not in taps)
    at = {each.dimension: affine(each.index) for each in windows}
    moved = Read(repeated.tensor, tuple(at.get(d, s) for d, s in enumerate(repeated.subscripts)), repeated.dtype)
    spread = Read(added.name, tuple(map(affine, names)), dtype)
    adding_up = replace(
        equation,
        result=sums,
        indices=(*left, *reduced),
        domain=box(sums.name, (*left, *reduced), every, graph.sizes),
        target=tuple(places[index] for index in equation.left),
        body=Apply("mul", (moved, spread), dtype),
        reduced=reduced,
        accumulate=True,
        base=zeros,
        padded=False,
    )
    part = Read(sums.name, tuple(affine(f"i{d}") - starts[index] for d, index in enumerate(equation.left)), dtype)
    return [adding, fill(zeros, Const(0.0, dtype), equation.span), adding_up, fill(result, part, equation.span)]
