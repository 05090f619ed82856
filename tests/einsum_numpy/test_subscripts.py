"""numpy.einsum's subscripts: the labels, and NumPy's own judgement of which subscripts are valid and what shape results."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.einsum_numpy.subscripts import labels_of, subscripts_of_sublists
from polyml.errors import EinsumSyntaxError, PolymlError, ShapeError

CASES = [
    ("ik,kj->ij", (2, 2), "i k, k j -> i j"),
    ("ik,kj", (2, 2), "i k, k j -> i j"),
    (" i k , k j -> j i ", (2, 2), "i k, k j -> j i"),
    ("ba", (2,), "b a -> a b"),
    ("aB", (2,), "a B -> B a"),
    ("ii", (2,), "i i -> "),
    ("ii->i", (2,), "i i -> i"),
    ("i->", (1,), "i -> "),
    ("i,j", (1, 1), "i, j -> i j"),
    (",ij->ij", (0, 2), ", i j -> i j"),
    ("", (0,), " -> "),
    ("...ij,...jk", (4, 3), "d1 d0 i j, d0 j k -> d1 d0 i k"),
    ("i...->...i", (3,), "i d1 d0 -> d1 d0 i"),
    ("...,...", (1, 0), "d0,  -> d0"),
    ("a...a", (3,), "a d0 a -> d0"),
    ("ij,jk,kl->il", (2, 2, 2), "i j, j k, k l -> i l"),
]


@pytest.mark.parametrize(("subscripts", "ranks", "expected"), CASES, ids=[row[0] for row in CASES])
def test_labels(subscripts: str, ranks: tuple[int, ...], expected: str) -> None:
    labels = labels_of(subscripts, ranks)
    assert f"{', '.join(map(' '.join, labels.operands))} -> {' '.join(labels.result)}" == expected
    result = np.einsum(subscripts, *(np.ones((2,) * rank) for rank in ranks))
    assert len(labels.result) == np.ndim(result)


REFUSED = [
    ("ik«;»kj", (2,), EinsumSyntaxError, "';' is no subscript"),
    ("i«1»", (2,), EinsumSyntaxError, "'1' is no subscript"),
    ("i«\t»j", (2,), EinsumSyntaxError, "is no subscript"),
    ("ij->i«->»j", (2,), EinsumSyntaxError, "more than one '->'"),
    ("ij->«k»", (2,), EinsumSyntaxError, "'k', which no operand has"),
    ("ij->i«i»", (2,), EinsumSyntaxError, "'i' twice"),
    ("«ij»", (3,), ShapeError, "operand 0 has 3 dimensions, but 2 subscripts"),
    ("i,«ijk...»", (1, 2), ShapeError, "operand 1 has 2 dimensions, but at least 3"),
    ("«ij»", (2, 2), ShapeError, "name 1 operand, but 2 are given"),
    ("«i,j»", (1,), ShapeError, "name 2 operands, but 1 is given"),
    ("...«...»", (2,), EinsumSyntaxError, "`...` twice"),
    ("i...->«i»", (2,), EinsumSyntaxError, "lacks `...`"),
    ("i«.»j", (2,), EinsumSyntaxError, "'.' is no subscript"),
]


@pytest.mark.parametrize(("marked", "ranks", "error", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_numpy_refuses_is_refused(
    marked: str, ranks: tuple[int, ...], error: type[PolymlError], message: str
) -> None:
    subscripts = marked.replace("«", "").replace("»", "")
    with pytest.raises(error, match=message) as caught:
        labels_of(subscripts, ranks)
    assert isinstance(caught.value, ValueError)
    span = caught.value.span
    assert span is not None
    assert (span.column, span.end_column) == (marked.index("«"), marked.index("»") - 1)
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy's many messages
        np.einsum(subscripts, *(np.ones((2,) * rank) for rank in ranks))


def test_sublists() -> None:
    assert subscripts_of_sublists((7, [0, 26], 8, [26, Ellipsis], [Ellipsis, 0])) == ("Aa,a...->...A", (7, 8))
    assert subscripts_of_sublists((7, np.array([51, 1]))) == ("zB", (7,))
    with pytest.raises(ValueError, match="52"):
        subscripts_of_sublists((7, [52]))
    with pytest.raises(TypeError):
        subscripts_of_sublists((7, [0.5]))
    with pytest.raises(TypeError, match="True"):
        subscripts_of_sublists((7, [0, True]))
    with pytest.raises(TypeError):
        subscripts_of_sublists((7, 3))
