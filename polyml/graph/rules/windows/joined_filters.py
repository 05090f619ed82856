"""Filters that are told apart by several indices, of which some say between which elements the result goes: one index, and the elements are moved afterwards. `y[c, 2*h + a] = sum[i, r](x[i, h + r] * w[2*c + a, i, r])` becomes

    t[k, h] = sum[i, r](x[i, h + r] * w[k, i, r])
    y[c, 2*h + a] = t[2*c + a, h]

A convolution with as many filters then, whose lanes are not two (sub-pixel convolutions).

Source: Shi et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network" (CVPR 2016), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import IndexValue, Read, map_reads, reads_of, walk
from polyml.graph.edit import replace_equations, with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import hull
from polyml.graph.rules.windows.parts import meets_all
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.digits import indices_of_digits
from polyml.sets.independence import is_independent
from polyml.sets.spaces import parameters_of

__all__ = ["join_filters"]


def join_filters(graph: Graph) -> Graph:
    """The graph whose sums have such filters as one index."""
    tensors = tensors_of(graph)
    return with_ops(graph, replace_equations(graph.ops, lambda equation: _joined(equation, graph, tensors)))


def _joined(equation: Equation, graph: Graph, tensors: dict[str, Tensor]) -> Sequence[Op]:
    """The equation, or the sum and what moves its elements."""
    place = _place_of_filters(equation)
    extents = None if place is None else hull(equation)
    parts = None if place is None or extents is None else indices_of_digits(place, extents)
    if place is None or extents is None or parts is None:
        return (equation,)
    if not all(is_independent(equation.domain, equation.indices.index(index)) for index in parts):
        return (equation,)
    filters = fresh_name("_".join(parts), {*equation.indices, *parameters_of(equation.domain)})
    points = tuple(index for index in equation.left if index not in parts)
    name = fresh_name(f"{equation.result.name}_filtered", tensors)
    shape = tuple(map(affine, (prod(extents[i] for i in parts), *(extents[i] for i in points))))
    tensor = Tensor(name, equation.result.dtype, shape, equation.result.label)
    indices = (filters, *points, *equation.reduced)
    before = f"{equation.result.name}[{', '.join(equation.indices)}]"
    order = isl.Map(f"{{ {before} -> {name}[{', '.join(indices)}] : {filters} = {place.isl_text()} }}")

    def joined(read: Read) -> Read:
        return read.at(affine(filters) if s == place else s for s in read.subscripts)

    made = replace(
        equation,
        result=tensor,
        indices=indices,
        domain=equation.domain.apply(order),
        target=tuple(map(affine, (filters, *points))),
        body=map_reads(equation.body, joined),
    )
    moved = Equation(
        result=equation.result,
        indices=equation.left,
        domain=box(equation.result.name, equation.left, extents),
        target=equation.target,
        body=Read(name, (place, *map(affine, points)), tensor.dtype),
        span=equation.span,
    )
    # Each element is one of the box: those without terms, whose sum is empty, as well.
    if affine(prod(extents[i] for i in equation.left)) != _size(equation.result) or not meets_all(moved, graph):
        return (equation,)
    tensors[name] = tensor
    return (made, moved)


def _size(tensor: Tensor) -> Affine | None:
    """The number of its elements, where that is one."""
    known = all(extent.is_constant for extent in tensor.shape)
    return affine(prod(extent.constant for extent in tensor.shape)) if known else None


def _place_of_filters(equation: Equation) -> Affine | None:
    """The place by which alone one operand, and nothing else, knows some indices of the left side, where these say with others to which element a sum goes."""
    if equation.reduce is None or not equation.reduced or equation.is_plain or equation.base is not None:
        return None
    if equation.instances is not None or equation.only_if is not None:
        return None
    left = frozenset(equation.left)
    places = [s for read in reads_of(equation.body) for s in read.subscripts if isinstance(s, Affine)]
    places += [node.affine for node in walk(equation.body) if isinstance(node, IndexValue)]
    targets = [s.variables() & left for s in equation.target if isinstance(s, Affine)]
    if len(targets) < len(equation.target):
        return None
    for place in places:
        own = place.variables()
        alone = own <= left and sum(not own.isdisjoint(other.variables()) for other in places) == 1
        between = any(own & target and target - own for target in targets)
        if len(own) > 1 and alone and between:
            return place
    return None
