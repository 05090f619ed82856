"""numpy.einsum's subscripts: the program's text, and NumPy's own judgement of which subscripts are valid and what shape results."""

from __future__ import annotations

import numpy as np
import pytest

from polyml.dtypes import f32, i64
from polyml.einsum_frontend.numpy_form import program_from_subscripts
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.signature import result_ranks
from polyml.errors import EinsumSyntaxError, PolymlError, ShapeError

CASES = [
    ("ik,kj->ij", (2, 2), "out[i, j] = sum[k](x0[i, k] * x1[k, j])"),
    ("ik,kj", (2, 2), "out[i, j] = sum[k](x0[i, k] * x1[k, j])"),
    (" i k , k j -> j i ", (2, 2), "out[j, i] = sum[k](x0[i, k] * x1[k, j])"),
    ("ba", (2,), "out[a, b] = x0[b, a]"),
    ("aB", (2,), "out[b_capital, a] = x0[a, b_capital]"),
    ("ii", (2,), "out = sum[i](x0[i, i])"),
    ("ii->i", (2,), "out[i] = x0[i, i]"),
    ("i->", (1,), "out = sum[i](x0[i])"),
    ("i,i", (1, 1), "out = sum[i](x0[i] * x1[i])"),
    ("i,j", (1, 1), "out[i, j] = x0[i] * x1[j]"),
    (",ij->ij", (0, 2), "out[i, j] = x0 * x1[i, j]"),
    ("", (0,), "out = x0"),
    ("...ij,...jk", (4, 3), "out[d1, d0, i, k] = sum[j](x0[d1, d0, i, j] * x1[d0, j, k])"),
    ("i...->...i", (3,), "out[d1, d0, i] = x0[i, d1, d0]"),
    ("...,...", (1, 0), "out[d0] = x0[d0] * x1"),
    ("a...a", (3,), "out[d0] = sum[a](x0[a, d0, a])"),
    ("ij,jk,kl->il", (2, 2, 2), "out[i, l] = sum[j, k](x0[i, j] * x1[j, k] * x2[k, l])"),
]


@pytest.mark.parametrize(("subscripts", "ranks", "statement"), CASES, ids=[row[0] for row in CASES])
def test_subscripts_as_a_program(subscripts: str, ranks: tuple[int, ...], statement: str) -> None:
    program = program_from_subscripts(subscripts, [(f32, rank) for rank in ranks])
    assert format_program(program).splitlines()[1].strip() == statement
    result = np.einsum(subscripts, *(np.ones((2,) * rank) for rank in ranks))
    assert result_ranks(program) == (result.ndim,)


def test_parameters_carry_dtypes_and_shapes() -> None:
    program = program_from_subscripts("iJ,Ji,->", [(f32, 2), (i64, 2), (f32, 0)])
    assert format_program(program).startswith('def einsum(x0: f32["I J_CAPITAL"], x1: i64["J_CAPITAL I"], x2: f32):')


REFUSED = [
    ("ik«;»kj", (2,), EinsumSyntaxError, "';' is no subscript"),
    ("i«1»", (2,), EinsumSyntaxError, "'1' is no subscript"),
    ("ij->i«->»j", (2,), EinsumSyntaxError, "more than one '->'"),
    ("ij->«k»", (2,), EinsumSyntaxError, "'k', which no operand has"),
    ("ij->i«i»", (2,), EinsumSyntaxError, "'i' twice"),
    ("«ij»", (3,), ShapeError, "3 dimensions, but 2 subscripts"),
    ("i,«ijk...»", (1, 2), ShapeError, "2 dimensions, but at least 3"),
    ("«ij»", (2, 2), ShapeError, "name 1 operands, but 2"),
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
        program_from_subscripts(subscripts, [(f32, rank) for rank in ranks])
    span = caught.value.span
    assert span is not None
    assert (span.column, span.end_column) == (marked.index("«"), marked.index("»") - 1)
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy's many messages
        np.einsum(subscripts, *(np.ones((2,) * rank) for rank in ranks))
