"""Phases that gathered windows have are made apart and then put between each other: `y[2*p] += ..` and `y[2*p + 1] += ..` on zeros become

    t[0, p] = sum[r](x[p - r] * w[2*r])
    t[1, p] = sum[r](x[p - r] * w[2*r + 1])
    y[h] = t[h % 2, h // 2]

An element of a phase is stored once, by lanes without gaps, and what is known of sums over windows (rules/windows/rows.py) is known of it; those of the result are fetched from rows in turn (codegen/llvm/memory/zipped.py). In their places, the lanes of each phase load, add to and store
every other element of zeros. Contractions of many products have phases of their own kind (rules/windows/phases.py), or their terms first.

Source: Vaidyanathan, "Multirate Systems and Filter Banks" (1993), section 4.3 (polyphase interpolation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.expressions import Const, Read
from polyml.graph.builder.parts import fill
from polyml.graph.edit import with_name
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.windows.overlapping import Windows
from polyml.graph.rules.windows.parts import extents_and_crop, is_zero, target_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.turns import MOST_ROWS

__all__ = ["Piece", "put_between"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A gathered equation. phases: which one it is, a number or an index of its own, of all windows in turn."""

    equation: Equation
    phases: tuple[Affine, ...] = ()


def put_between(
    equation: Equation,
    pieces: Sequence[Piece],
    windows: Sequence[Windows],
    graph: Graph,
    tensors: dict[str, Tensor],
    cache: int,
) -> list[Equation] | None:
    """What makes the sum that the pieces are of. cache: bytes that phases may take together (0: not known). None where lanes have no gaps, or elements with terms are no box."""
    last = equation.target[-1]
    if not isinstance(last, Affine) or not any(w.remainders > 1 and w.place in last.variables() for w in windows):
        return None
    if any(w.step != 1 or w.remainders != w.stride or w.stride > MOST_ROWS for w in windows):
        return None
    if equation.reduce != "sum" or equation.only_if is not None or equation.base is None:
        return None
    fetched = _fetched(equation, pieces[0], windows)
    known = extents_and_crop(equation, graph, tensors)
    if fetched is None or known is None or not is_zero(equation.base, graph):
        return None
    extents = known[0] | {w.place: known[0][w.place] + w.beyond for w in windows}
    if 0 < cache < _bytes(equation, extents, windows):
        return None
    result = _between(equation, pieces, graph)
    if result is None:
        return None
    apart = [w for w in windows if w.remainders > 1]
    shape = (*(affine(w.remainders) for w in apart), *(extents[index] for index in fetched))
    name = fresh_name(f"{equation.result.name}_apart", tensors)
    made = [fill(_tensor(name, equation.result, shape, tensors), Const(0.0, equation.body.dtype), equation.span)]
    for piece in pieces:
        phase = _tensor(fresh_name(name, tensors), equation.result, shape, tensors)
        which = [phase for w, phase in zip(windows, piece.phases, strict=True) if w.remainders > 1]
        target = (*which, *map(affine, fetched))
        made.append(replace(with_name(piece.equation, phase), target=target, base=made[-1].result, accumulate=False))
    counts = {w.place: w.remainders for w in windows}
    places = [fetched[w.place] % w.remainders for w in apart]
    places += [place // counts.get(index, 1) for index, place in fetched.items()]
    return [*made, replace(result, body=Read(made[-1].result.name, tuple(places), equation.body.dtype))]


def _bytes(equation: Equation, extents: Mapping[str, Affine], windows: Sequence[Windows]) -> int:
    """Of the elements that windows go over, for one value of all other indices; 0 where sizes are not known."""
    counts = [extents[w.place] * w.remainders for w in windows]
    return (
        prod(n.constant for n in counts) * equation.result.dtype.itemsize if all(n.is_constant for n in counts) else 0
    )


def _tensor(name: str, like: Tensor, shape: tuple[Affine, ...], tensors: dict[str, Tensor]) -> Tensor:
    made = tensors[name] = Tensor(name, like.dtype, shape, like.label)
    return made


def _fetched(equation: Equation, piece: Piece, windows: Sequence[Windows]) -> dict[str, Affine] | None:
    """By index, in the order of the target, how far an element is from the first that the index meets; None where a dimension is not moved along by one index."""
    found: dict[str, Affine] = {}
    phases = dict(zip((w.place for w in windows), piece.phases, strict=True))
    strides = {w.place: w.stride for w in windows}
    for dimension, place in enumerate(piece.equation.target):
        if not isinstance(place, Affine):
            return None
        met = [index for index in phases if index in place.variables()]
        index = met[0] if met else next(iter(place.variables()), "")
        rest = place - affine(index) * strides.get(index, 1) - phases.get(index, affine(0)) if index else place
        if not index or index in found or index not in equation.left or not rest.is_constant:
            return None
        found[index] = affine(f"i{dimension}") - rest.constant
    return found


def _between(equation: Equation, pieces: Sequence[Piece], graph: Graph) -> Equation | None:
    """What gives each element that some piece adds to a value, and leaves the others zero; None where these elements are no box."""
    made = fill(equation.result, Const(0.0, equation.body.dtype), equation.span)
    hit = made.domain.subtract(made.domain)
    for piece in pieces:
        met: isl.Set = piece.equation.domain.apply(target_of(piece.equation, graph.sizes))
        hit = hit.union(met.set_tuple_name(equation.result.name))
    if made.domain.intersect_params(graph.context).is_subset(hit):
        return made
    hit = hit.coalesce()
    return replace(made, domain=hit, base=equation.base) if hit.is_box() else None
