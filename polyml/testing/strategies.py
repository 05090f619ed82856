"""Hypothesis strategies for einsum programs (needs the `test` extra).

from hypothesis import given
from polyml.testing.strategies import programs

@given(programs())
def test_my_backend(case):
    ...  # case.text, case.fresh_arguments()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from polyml.testing.cases import Case
from polyml.testing.einsum_calls import Call, generate_call
from polyml.testing.generate import generate
from polyml.testing.retype import OTHER_TYPES, retyped

__all__ = ["Drawn", "einsum_calls", "programs", "programs_in_other_types"]

T = TypeVar("T")


class Drawn:
    """A Chooser that draws from Hypothesis, so that cases shrink towards first options and small integers."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def flag(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent


@st.composite
def programs(draw: st.DrawFn, max_statements: int = 4, *, large: bool = False) -> Case:
    """Well-formed programs with arguments: several statements, affine subscripts, guards, all reductions, `where` and `pad`, sequential loops,
    in-place updates, gathers and scatters, symbolic sizes, all dtypes, any memory layout, empty and odd sizes.

    Sizes are small enough for the interpreter (large: some are 16 to 65, to reach tiles and tails; compare with another oracle). Element values keep sums exact as long as only `+ - * / 2`, min and max are applied.
    """
    return generate(Drawn(draw), max_statements, large=large)


@st.composite
def programs_in_other_types(draw: st.DrawFn, max_statements: int = 3) -> Case:
    """The same in half precision or complex numbers. Compare with `polyml.testing.verify`, which knows what rounding explains; some are refused."""
    return retyped(generate(Drawn(draw), max_statements, large=False), draw(st.sampled_from(OTHER_TYPES)))


@st.composite
def einsum_calls(draw: st.DrawFn, *, malformed: int = 10) -> Call:
    """Calls in numpy.einsum's form: implicit and explicit results, ellipses, repeated letters, sublists, size 1 and 0, every element type and layout, all keywords.

    malformed: percent of them that something is done to.
    """
    return generate_call(Drawn(draw), malformed=malformed)
