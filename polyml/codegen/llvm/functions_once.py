"""Functions that one assignment asks for several times, each computed once: products and functions of complex numbers have every part of a factor twice, and exponentials and sines more often than that; so are places that floats become.

LLVM's few passes (machine.py) look for no common subexpressions. Sine and cosine of one number have all but the last steps in common.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.codegen.llvm.ir import Builder, Value
from polyml.codegen.llvm.math import MATH
from polyml.expressions import Apply, Expr, Numbered, ops_in, walk

__all__ = ["FunctionsOnce", "functions_once", "is_place"]

_TURNS = frozenset({"sin", "cos"})


class FunctionsOnce:
    """The values of functions within what is assigned, by the numbers of their expressions, the lanes that act, and the block that they are computed in."""

    __slots__ = ("_builder", "_number", "_root", "_turns", "_values")

    def __init__(self, builder: Builder, root: Expr) -> None:
        self._builder = builder
        self._root = root
        self._number = Numbered(exactly=True)
        self._values: dict[tuple[int, object, str], Value] = {}
        self._turns: frozenset[int] | None = None

    def find(self, expr: Apply, lanes: object) -> Value | None:
        """The function's value, where it is there."""
        return self._values.get((self._number(expr), lanes, self._builder.block))

    def keep(self, expr: Apply, lanes: object, value: Value) -> Value:
        """The value, for whoever asks again."""
        self._values[self._number(expr), lanes, self._builder.block] = value
        return value

    def keep_both(self, expr: Apply, lanes: object, sine: Value, cosine: Value) -> Value:
        """Of a sine or a cosine its value, and the other one for whoever asks."""
        self.keep(replace(expr, op="sin"), lanes, sine)
        self.keep(replace(expr, op="cos"), lanes, cosine)
        return sine if expr.op == "sin" else cosine

    def is_one_of_both(self, expr: Apply) -> bool:
        """Whether it is a sine or a cosine of a number of which the other one is wanted, too."""
        if expr.op not in _TURNS or not ops_in(self._root) >= _TURNS:
            return False
        if self._turns is None:
            found: dict[str, set[int]] = {op: set() for op in _TURNS}
            for node in walk(self._root):
                if isinstance(node, Apply) and node.op in _TURNS:
                    found[node.op].add(self._number(node.args[0]))
            self._turns = frozenset(found["sin"] & found["cos"])
        return self._number(expr.args[0]) in self._turns


def is_place(expr: Expr) -> bool:
    """Whether it makes an integer of a float, which vectors of 64 bits may do by a comparison and a jump (wide_casts.py): a place is compared with both ends of a dimension."""
    return isinstance(expr, Apply) and expr.op == "cast" and expr.dtype.is_integer and expr.args[0].dtype.is_float


def functions_once(builder: Builder, value: Expr) -> FunctionsOnce | None:
    """For what is assigned; None where it has no functions."""
    ops = ops_in(value)
    asked = not ops.isdisjoint(MATH) or ("cast" in ops and any(map(is_place, walk(value))))
    return FunctionsOnce(builder, value) if asked else None
