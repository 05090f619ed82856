"""A call as sums of products over strided operands: every label once per operand, none of size 1, and labels that always go together are one.

This is where repeated subscripts, broadcasting, transposes and reshapes end: what is left are sizes and strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyml.dtypes import DType
from polyml.einsum_numpy.layout import Array
from polyml.einsum_numpy.subscripts import Labels
from polyml.records import dataclass

__all__ = ["Contraction", "Term", "contraction_of"]


@dataclass(frozen=True, slots=True)
class Term:
    """An operand. strides: in elements by label, the farthest apart first."""

    dtype: DType
    strides: Mapping[str, int]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.strides)


@dataclass(frozen=True, slots=True)
class Contraction:
    """`result[labels] = sum of the product of the terms`, computed in `dtype`. result: in the order of memory, outermost first."""

    terms: tuple[Term, ...]
    sizes: Mapping[str, int]
    result: tuple[str, ...]
    dtype: DType


def contraction_of(
    labels: Labels,
    arrays: Sequence[Array],
    dtypes: Sequence[DType],
    sizes: Mapping[str, int],
    result_strides: Sequence[int],
    dtype: DType,
) -> Contraction:
    """The contraction of a call whose strides are multiples of the element sizes.

    Args:
        result_strides: of the result's dimensions, without gaps.
    """
    real = {label: size for label, size in sizes.items() if size != 1}
    terms = []
    for operand, array, kind in zip(labels.operands, arrays, dtypes, strict=True):
        strides: dict[str, int] = {}
        for label, extent, stride in zip(operand, array.shape, array.strides, strict=True):
            if extent != 1:
                strides[label] = strides.get(label, 0) + stride // array.itemsize
        terms.append(Term(kind, _outermost_first(strides)))
    result = _outermost_first(
        {label: s for label, s in zip(labels.result, result_strides, strict=True) if label in real}
    )
    return _merge(Contraction(tuple(terms), real, tuple(result), dtype))


def _outermost_first(strides: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(strides.items(), key=lambda item: -abs(item[1])))


def _merge(given: Contraction) -> Contraction:
    """Replaces a pair of labels by one, wherever the outer one's stride is that of a whole run of the inner one in every place that has either."""
    found = True
    while found:
        found = False
        for outer in given.sizes:
            inner = _partner(given, outer)
            if inner is not None:
                given, found = _without(given, outer, inner), True
                break
    return given


def _partner(given: Contraction, outer: str) -> str | None:
    first = next((term for term in given.terms if outer in term.strides), None)
    if first is None:
        return None
    for inner in first.strides:
        if inner != outer and all(_nested(t, outer, inner, given.sizes) for t in given.terms):
            places = [label in given.result for label in (outer, inner)]
            if not any(places):
                return inner
            if all(places) and given.result.index(inner) == given.result.index(outer) + 1:
                return inner
    return None


def _nested(term: Term, outer: str, inner: str, sizes: Mapping[str, int]) -> bool:
    if outer not in term.strides or inner not in term.strides:
        return outer not in term.strides and inner not in term.strides
    return term.strides[outer] == term.strides[inner] * sizes[inner]


def _without(given: Contraction, outer: str, inner: str) -> Contraction:
    def drop(strides: Mapping[str, int]) -> dict[str, int]:
        return {label: stride for label, stride in strides.items() if label != outer}

    sizes = drop(given.sizes)
    sizes[inner] *= given.sizes[outer]
    terms = tuple(replace(term, strides=drop(term.strides)) for term in given.terms)
    return replace(given, terms=terms, sizes=sizes, result=tuple(label for label in given.result if label != outer))
