"""Resolved programs, printed with their sums written out, mean what the interpreter (which has its own reading of the language) makes of the original."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.printer import format_program
from polyml.einsum_frontend.resolve import resolve
from polyml.errors import DTypeError, EinsumSyntaxError, ShapeError, UnboundedDomainError
from polyml.source import Source

ATOMS = ["x[n, k]", "w[k]", "v[n]", "w[j]", "x[n, n]", "c[k, j]", "2", "k", "n", "v[p[n]]", "w[p[k]]"]


def _expressions(depth: int) -> st.SearchStrategy[str]:
    atoms = st.sampled_from(ATOMS)
    if depth == 0:
        return atoms
    inner = _expressions(depth - 1)
    return st.one_of(
        atoms,
        st.builds("{} {} {}".format, inner, st.sampled_from(["*", "*", "+", "-", "/"]), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["*", "+", "-"]), inner),
        st.builds("-{}".format, inner),
        st.builds("{}({})".format, st.sampled_from(["relu", "f64", "abs"]), inner),
        st.builds("max({}, {})".format, inner, inner),
        st.builds("where(n < 2, {}, {})".format, inner, inner),
        st.builds(
            "{}[{}]({})".format,
            st.sampled_from(["sum", "max"]),
            st.sampled_from(["k", "j", "k, j", "j < 2", "k, k <= n", "n", "k < n", "0 <= k < 2, n"]),
            inner,
        ),
    )


@given(right=_expressions(3), left=st.sampled_from(["y[n]", "y[n] +=", "y[n, k]", "y"]))
@settings(max_examples=120, deadline=None)
def test_sums_written_out_mean_the_same(right: str, left: str) -> None:
    update = left.endswith("+=")
    declaration = '    y: f64["N"] = 1\n' if update else ""
    text = (
        'def f(x: f64["3 3"], w: f64["3"], v: f64["N"], c: f64["3 3"], p: i64["N"]):\n'
        f"{declaration}    {left}{' ' if update else ' = '}{right}\n    return y\n"
    )
    rng = np.random.default_rng(3)
    arguments = [rng.random((3, 3)), rng.random(3), rng.random(3), rng.random((3, 3)), np.array([2, 0, 1])]
    original = parse(Source(text))
    try:
        resolved = resolve(original, {})
    except EinsumSyntaxError:
        event("refused")
        with pytest.raises(EinsumSyntaxError):
            interpret(original, *arguments)
        return
    explicit = parse(Source(format_program(resolved)))
    try:
        expected = interpret(original, *arguments)
    except (ShapeError, UnboundedDomainError, DTypeError) as fault:  # of ranges and types: both forms have it
        event("faulty")
        with pytest.raises(type(fault)):
            interpret(explicit, *arguments)
        return
    try:
        result = interpret(explicit, *arguments)
    except (
        UnboundedDomainError
    ):  # x[n, k] + -k * k: terms of one statement share the range of k, written sums have their own
        assert {"k", "j", "n"} & set(re.sub(r"\[[^\]]*\]", "", right)), right
        event("ranges of another term")
        return
    event("computed")
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-9)
