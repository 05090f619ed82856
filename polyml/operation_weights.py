"""What operations cost, in vector instructions."""

from __future__ import annotations

from polyml.expressions import Apply, Expr, walk

__all__ = ["BRANCHING", "COSTLY", "operations_of", "weight_of"]

COSTLY = 12.0
"""Operations of a term, those of functions, from which on its loads and the rounds of a loop over such terms are little beside them, and copies of it much to compile."""

_WEIGHTS = {
    "div": 6.0, "mod": 20.0, "floordiv": 20.0, "sqrt": 6.0, "rsqrt": 10.0, "exp": 12.0, "log": 14.0, "log1p": 22.0, "atan2": 24.0, "tanh": 16.0, "sigmoid": 16.0,
    "erf": 20.0, "gelu": 24.0, "sin": 14.0, "cos": 14.0, "pow": 60.0, "min": 2.0, "max": 2.0, "real": 0.25, "imag": 0.25, "complex": 1.0, "pair_bf16": 0.0, "popcount": 8.0,
}  # fmt: skip

BRANCHING = frozenset({"exp", "log", "log1p", "sigmoid", "sin", "cos"})
"""Functions of which rare arguments are computed elsewhere: a test ends the block of each one. Powers are mostly of a small number, and products then."""


def operations_of(value: Expr) -> float:
    """Vector instructions that computing the expression takes, reads not counted."""
    return sum(weight_of(node) for node in dict.fromkeys(node for node in walk(value) if isinstance(node, Apply)))


def weight_of(node: Apply) -> float:
    """Vector instructions of one operation."""
    return _WEIGHTS.get(node.op, 1.0)
