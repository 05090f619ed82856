"""Semirings: what takes the places of sum and product in a contraction, as text of the language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyml.dtypes import DType
from polyml.errors import ArgumentError
from polyml.records import dataclass

__all__ = ["SEMIRINGS", "Semiring", "semiring_of"]

_IDENTITIES = {"sum": "0", "prod": "1", "any": "0 > 1", "all": "0 < 1"}
_RINGS = {("sum", "a*b"), ("sum", "b*a")}
_TROPICAL = {(reducer, product) for reducer in ("max", "min") for product in ("a+b", "b+a")}
_LATTICES = {
    *((outer, f"{inner}({pair})") for outer, inner in (("max", "min"), ("min", "max")) for pair in ("a,b", "b,a")),
    *(pair for both in ("a{}b", "b{}a") for pair in (("any", both.format("and")), ("all", both.format("or")))),
}
_REDUCERS = ("sum", "prod", "max", "min", "any", "all")


@dataclass(frozen=True, slots=True)
class Semiring:
    """reducer: of the language. product: an expression in `a` and `b`. kind: the elements that it is over: any numbers, floats or bools.

    stable: the sum is log(sum(exp(..))), taken relative to the largest term.
    """

    reducer: str
    product: str
    kind: str = ""
    stable: bool = False

    def combine(self, factors: Sequence[str]) -> str:
        """The product of all factors, from the left."""
        total = factors[0]
        for factor in factors[1:]:
            total = "(" + "".join({"a": total, "b": factor}.get(word, word) for word in _words(self.product)) + ")"
        return total

    def distributes(self, dtype: DType) -> bool:
        """Whether a contraction of several operands may go in steps: the product is associative and commutative and distributes over the reduction, on all values of the
        type but infinities of both signs at once, or of products (0 * inf): (a + b) + c and a + (b + c) are told apart only by rounding.

        Sums of products: in any ring, so also of integers that wrap. Max and min of sums: rounding is monotone, so fl(max(a, b) + c) = max(fl(a + c), fl(b + c)); of
        integers it is not true once they wrap. Max and min of each other: a lattice. Max of products does not: a negative factor turns the order round.
        """
        pair = (self.reducer, self.product.replace(" ", ""))
        if pair in _RINGS:
            return not (dtype.kind == "b" and self.reducer == "sum")
        if pair in _TROPICAL or (self.stable and pair == ("sum", "a+b")):
            return dtype.is_float
        return pair in _LATTICES

    def identity(self, dtype: DType) -> str:
        """What adds nothing to the reduction: a number of the element type."""
        if self.reducer in _IDENTITIES:
            return _IDENTITIES[self.reducer]
        low = self.reducer == "max"
        if dtype.is_float:
            return "-inf" if low else "inf"
        if dtype.kind == "b":
            return "0 > 1" if low else "0 < 1"
        info = np.iinfo(f"{dtype.kind}{dtype.itemsize}")
        return str(info.min if low else info.max)


SEMIRINGS: dict[str, Semiring] = {
    "plus_times": Semiring("sum", "a * b"),
    "max_plus": Semiring("max", "a + b"),
    "min_plus": Semiring("min", "a + b"),
    "max_times": Semiring("max", "a * b"),
    "min_times": Semiring("min", "a * b"),
    "max_min": Semiring("max", "min(a, b)"),
    "min_max": Semiring("min", "max(a, b)"),
    "or_and": Semiring("any", "a and b", kind="bool"),
    "log_sum_exp": Semiring("sum", "a + b", kind="float", stable=True),
}


def semiring_of(given: object) -> Semiring:
    """A named semiring, or a pair of a reducer and an expression in `a` and `b`: ("max", "min(a, b)").

    Raises:
        ArgumentError: neither.
    """
    if isinstance(given, str) and given in SEMIRINGS:
        return SEMIRINGS[given]
    match given:
        case (str() as reducer, str() as product) if reducer in _REDUCERS and {"a", "b"} <= set(_words(product)):
            return Semiring(reducer, product, kind="bool" if reducer in ("any", "all") else "")
    raise ArgumentError(
        f"semiring={given!r} is neither a known name nor a pair of a reducer and an expression in a and b",
        hint=f'one of {", ".join(SEMIRINGS)}, or one of the reducers {", ".join(_REDUCERS)} and an expression, such as ("max", "a + b")',
    )


def _words(text: str) -> list[str]:
    """Names, and what is between them."""
    words, word = [], ""
    for character in text:
        if word and (word[-1].isalnum() or word[-1] == "_") != (character.isalnum() or character == "_"):
            words.append(word)
            word = ""
        word += character
    return [*words, word] if word else words
