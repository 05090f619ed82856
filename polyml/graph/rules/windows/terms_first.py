"""Contractions into windows, their terms first: `y[c, 2*p + r] += sum[k](x[k, p] * w[k, c, r])` becomes

    t[c, r, p] = sum[k](x[k, p] * w[k, c, r])
    y[c, 2*p + r] += t[c, r, p]

The first is a matrix product without edges, whatever the stride; what is left is a few additions for each element (rules/windows/gathered.py). As one, elements have ragged sums, and neighbours in
memory belong to different places: no lanes without gaps, no register tile without partial ones. The terms cost a store and a load for each sum over k, which is why that has to be long.

Source: the matrix product and `col2im` of Caffe's deconvolution (Jia et al., arXiv 1408.5093); here any contraction, any layout, and any reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import Read, reads_of, substitute, variables_in
from polyml.graph.edit import replace_equations, with_name
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.windows.gathered import overlap
from polyml.graph.rules.windows.parts import assigned, cropped, extents_and_crop
from polyml.graph.traverse import UNKNOWN_EXTENT, all_ops, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box

__all__ = ["compute_terms_first"]

DEPTH, RAGGED_DEPTH = 32, 4
"""Products that make a term, at least; and where the windows' sums would be ragged otherwise."""

MOST_BYTES = 256 << 20
"""Most memory that terms may take; where all of them take more, they are made for one value of the first index after the other."""


def compute_terms_first(graph: Graph) -> Graph:
    """The graph whose contractions have targets of one index per dimension."""
    tensors = tensors_of(graph)
    ops = replace_equations(graph.ops, lambda equation: _split(equation, graph, tensors))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _split(equation: Equation, graph: Graph, tensors: dict[str, Tensor]) -> list[Op]:
    """The terms and what is done with them; the equation itself where it is no contraction into windows, or terms do not pay."""
    places = [place for place in equation.target if isinstance(place, Affine)]
    left = equation.left
    if any(not any(index in place.variables() for place in places) for index in left):
        return [equation]
    if len(places) < len(equation.target) or not any(len(place.variables() & set(left)) > 1 for place in places):
        return [equation]
    if not equation.reduced or not _is_contraction(equation, left) or equation.instances is not None:
        return [equation]
    # Terms in half precision would be rounded once more.
    if equation.result.dtype.is_float and equation.result.dtype.bits < 32:
        return [equation]
    known, windows = extents_and_crop(equation, graph, tensors), overlap(equation)
    least = RAGGED_DEPTH if windows is not None and windows.is_ragged else DEPTH
    if known is None or prod(_count(known[0][index]) for index in equation.reduced) < least:
        return [equation]
    if known[1] is not None and not _is_plain(equation):
        return [equation]
    around = _Around(graph, tensors, *known)
    order = _order(places, left, around)
    if _bytes(equation, order, around) <= MOST_BYTES:
        made, placed = _pair(equation, order, around)
        return [made, assigned(placed, graph)]
    if equation.base is None or around.wanted is not None or order[0] != places[0].name:
        return [equation]
    if _bytes(equation, order[1:], around) > MOST_BYTES:
        return [equation]
    return [_one_by_one(equation, equation.base, order, around)]


@dataclass(frozen=True, slots=True)
class _Around:
    """What is around an equation: the graph, its tensors by name, with those that are made, the extents of the equation's indices, and the elements of the result that are wanted (None: all that indices give)."""

    graph: Graph
    tensors: dict[str, Tensor]
    extents: Mapping[str, Affine]
    wanted: isl.Set | None

    def likely(self, index: str) -> int:
        """How many values the index has in the call that the graph is made for."""
        known = dict.fromkeys(self.graph.sizes, UNKNOWN_EXTENT) | dict(self.graph.examples)
        return self.extents[index].evaluate(known)


def _bytes(equation: Equation, order: tuple[str, ...], around: _Around) -> int:
    """Of the terms, in the call that the graph is made for."""
    return prod(map(around.likely, order)) * equation.result.dtype.itemsize


def _one_by_one(equation: Equation, base: Tensor, order: tuple[str, ...], around: _Around) -> Loop:
    """A loop over the first of the indices, which counts elements of the result's first dimension."""
    first, graph, tensors = order[0], around.graph, around.tensors
    loops = (op.variable for op in all_ops(graph.ops) if isinstance(op, Loop))
    variable = fresh_name(f"{first}_", [*equation.indices, *graph.sizes, *loops])
    at = {first: affine(variable)}
    inner, after = (_like(equation.result, suffix, tensors) for suffix in ("_so_far", "_after"))
    inside = with_name(
        replace(
            equation,
            indices=tuple(index for index in equation.indices if index != first),
            target=tuple(place.substitute(at) for place in equation.target if isinstance(place, Affine)),
            body=substitute(equation.body, at),
            base=inner,
        ),
        after,
    )
    return Loop(
        variable=variable,
        start=affine(0),
        stop=around.extents[first],
        step=1,
        body=_pair(inside, order[1:], around),
        carried=(Carried(base, inner, after, equation.result),),
        span=equation.span,
    )


def _like(tensor: Tensor, suffix: str, tensors: dict[str, Tensor]) -> Tensor:
    made = replace(tensor, name=fresh_name(tensor.name + suffix, tensors))
    tensors[made.name] = made
    return made


def _is_contraction(equation: Equation, left: tuple[str, ...]) -> bool:
    """Whether there is more than one operand, and each is used by several elements: they are not what terms would be."""
    used = [variables_in(read.subscripts) for read in reads_of(equation.body)]
    return len(used) > 1 and all(not set(left) <= names for names in used)


def _is_plain(equation: Equation) -> bool:
    """Whether operands are read by single indices, so that terms that are not wanted find elements, too."""
    return all(
        isinstance(s, Affine) and len(s.variables()) <= 1 for read in reads_of(equation.body) for s in read.subscripts
    )


def _count(extent: Affine) -> int:
    return extent.constant if extent.is_constant else UNKNOWN_EXTENT


def _order(places: list[Affine], left: tuple[str, ...], around: _Around) -> tuple[str, ...]:
    """The indices in the order of the target's dimensions, those of windows in one place, so that what is next to each other in an operand stays so; last of all what is contiguous in the result."""
    windows = [place for place in places if len(place.variables()) > 1]
    first, is_last = places.index(windows[0]), windows[-1] is places[-1]

    def key(index: str) -> tuple[int, bool, int]:
        at = next(d for d, place in enumerate(places) if index in place.variables())
        if places[at] not in windows:
            return at, False, at
        # Windows begin at steps of the larger stride, or, with one stride, along the longer index.
        both = [i for i in left if i in places[at].variables()]
        begins = max(both, key=lambda i: (places[at].stride(i) or 0, around.likely(i)))
        return first, (index == begins) == is_last, at

    return tuple(sorted(left, key=key))


def _pair(equation: Equation, order: tuple[str, ...], around: _Around) -> tuple[Equation, Equation]:
    """The terms, and what is done with them."""
    tensors, extents, sizes = around.tensors, around.extents, around.graph.sizes
    name = fresh_name(f"{equation.result.name}_terms", tensors)
    shape = tuple(extents[index] for index in order)
    terms = tensors[name] = Tensor(name, equation.result.dtype, shape, equation.result.label)
    indices, plain = (*order, *equation.reduced), tuple(map(affine, order))
    made = replace(
        equation,
        result=terms,
        indices=indices,
        domain=box(name, indices, extents, sizes),
        target=plain,
        accumulate=False,
        base=None,
        apart=True,
    )
    placed = replace(
        equation,
        indices=order,
        domain=box(equation.result.name, order, extents, sizes),
        body=Read(name, plain, terms.dtype),
        reduce=equation.reduce if equation.accumulate else None,
        reduced=(),
        padded=False,
    )
    return made, cropped(placed, around.wanted, around.graph)
