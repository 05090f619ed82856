"""Sums scattered into overlapping windows, gathered: `y[h + r] += x[h] * w[r]` becomes `y[h] += sum[r](x[h - r] * w[r])`.

Scattered, an element is loaded, added to and stored once per term, and neighbours that write one element cannot run side by side. Gathered, it is stored once, and the lanes run along `h`. Where
the windows move by more than one, `y[s*h + e*r]`, the terms of an element have every `s/gcd(s, e)`-th r (a strided convolution's gradient, a transposed convolution: s*s dense ones). What remains of r
is an index of the result; where some remainders have more terms than others, sums would be ragged along it, and each gets an equation of its own, as long as these are few.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (arXiv 1609.07009), on transposed convolutions as dense ones over sub-pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import inf

import islpy as isl

from polyml.expressions import substitute
from polyml.graph.edit import replace_equations, with_name
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.windows.overlapping import MOST, Windows
from polyml.graph.rules.windows.phases_apart import Piece, put_between
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_of, parameters_text

__all__ = ["gather_windows", "overlap"]

LONGEST = 32
"""Elements of a window along one dimension, at most."""


def gather_windows(graph: Graph, *, cache: int | None = None) -> Graph:
    """The graph whose sums into windows are sums over windows. No element's terms change, only their order. cache: bytes of phases that may lie apart (0: not known; None: there are no lanes that gaps would cost anything)."""
    tensors = tensors_of(graph)
    at_the_top = {id(op) for op in graph.ops}

    def gathered(equation: Equation) -> list[Equation]:
        pieces, windows = _pieces(equation)
        if cache is not None and windows and id(equation) in at_the_top:
            made = put_between(equation, pieces, windows, graph, tensors, cache)
            if made is not None:
                return made
        return _chained([piece.equation for piece in pieces], tensors)

    ops = replace_equations(graph.ops, gathered)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _pieces(equation: Equation) -> tuple[list[Piece], list[Windows]]:
    """What the equation becomes, in order, and the windows that were gathered, from the first dimension to the last."""
    found, met = [Piece(equation)], list[Windows]()
    while (windows := overlap(found[0].equation, backwards=True)) is not None:
        met.append(windows)
        if windows.even or windows.remainders * len(found) > MOST:
            rests = [affine(fresh_name(f"{windows.inside}_rest", found[0].equation.indices))]
        else:
            rests = list(map(affine, range(windows.remainders)))
        found = [Piece(_gather(each.equation, windows, rest), (*each.phases, rest)) for each in found for rest in rests]
    return found, met


def overlap(equation: Equation, skipping: Set[str] = frozenset(), *, backwards: bool = False) -> Windows | None:
    """Windows that the equation accumulates into, if two of them share elements; none of those whose places are to be skipped. backwards: also such as have their elements in the other order, `place - inside`."""
    if equation.reduce is None or not equation.accumulate or equation.instances is not None or equation.padded:
        return None
    places = [place for place in equation.target if isinstance(place, Affine)]
    if len(places) < len(equation.target):
        return None
    left = equation.left
    for place in places:
        others = {name for other in places if other is not place for name in other.variables()}
        strides = {index: place.stride(index) for index in left if index in place.variables()}
        if len(strides) != 2 or others & strides.keys() or skipping & strides.keys():
            continue
        extents = {index: _extent(equation, index) for index in strides}
        first, last = strides
        inside = min((last, first), key=lambda index: extents[index])
        around = first if inside == last else last
        stride, step = strides[around], strides[inside]
        if stride is None or step is None or stride <= 0 or extents[inside] > LONGEST:
            continue
        if step == 0 or (step < 0 and not backwards):
            continue
        found = Windows(around, inside, stride, step, int(extents[inside]))
        if extents[inside] > found.remainders and extents[around] > abs(found.moves):
            return found
    return None


def _extent(equation: Equation, index: str) -> float:
    """From its least to its largest value; infinite where that is no number."""
    position = equation.indices.index(index)
    low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
    return high.to_python() - low.to_python() + 1 if low.is_int() and high.is_int() else inf


def _gather(equation: Equation, windows: Windows, rest: Affine) -> Equation:
    """The terms whose `inside` leaves the remainder, a number or a new index of the left side, summed over it; `place` counts from the first of the windows that an element is in."""
    every = affine(windows.inside) * windows.remainders + rest
    values = {windows.place: affine(windows.place) - affine(windows.inside) * windows.moves, windows.inside: every}
    left = [i for i in equation.indices if i not in equation.reduced and i != windows.inside]
    left += [] if rest.is_constant else sorted(rest.variables())
    indices = (*left, *equation.reduced, windows.inside)
    return replace(
        equation,
        indices=indices,
        domain=_moved(equation, indices, values, f"0 <= {rest} < {windows.remainders}"),
        target=tuple(place.substitute(values) for place in equation.target if isinstance(place, Affine)),
        body=substitute(equation.body, values),
        reduced=(*equation.reduced, windows.inside),
    )


def _moved(equation: Equation, indices: Sequence[str], values: Mapping[str, Affine], where: str) -> isl.Set:
    """The points over the new indices with the condition for which the old ones, by their values, are in the domain."""
    domain = equation.domain
    head = parameters_text(parameters_of(domain))
    old = ", ".join(values.get(index, affine(index)).isl_text() for index in equation.indices)
    new = f"{equation.result.name}[{', '.join(indices)}]"
    moved = domain.preimage_multi_aff(isl.MultiAff(f"{head}{{ {new} -> {equation.result.name}[{old}] }}"))
    return moved.intersect(isl.Set(f"{head}{{ {new} : {where} }}"))


def _chained(pieces: list[Equation], tensors: dict[str, Tensor]) -> list[Equation]:
    """The equations one after the other: each adds to what the one ahead of it made."""
    chain: list[Equation] = []
    base = pieces[0].base
    for position, piece in enumerate(pieces):
        result = piece.result
        if position < len(pieces) - 1:
            name = fresh_name(f"{result.name}_{position}", tensors)
            result = tensors[name] = Tensor(name, result.dtype, result.shape, result.label)
        chain.append(piece if len(pieces) == 1 else replace(with_name(piece, result), base=base))
        base = result
    return chain
