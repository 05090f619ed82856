"""Rules for index values: arithmetic that stays quasi-affine, and comparisons that constants decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.graph.rules.algebra.simplify_scalars import Rule
from polyml.ops import INDEX_DTYPE
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["INDEX_RULES"]


def _index(expr: Apply) -> Expr | None:
    """Arithmetic on index values is an index value where it is quasi-affine."""
    x, y = (_as_affine(arg) for arg in expr.args)
    if x is None or y is None or expr.dtype != INDEX_DTYPE:
        return None
    match expr.op:
        case "add":
            return IndexValue(x + y, expr.dtype)
        case "sub":
            return IndexValue(x - y, expr.dtype)
        case "mul" if y.is_constant:
            return IndexValue(x * y.constant, expr.dtype)
        case "mul" if x.is_constant:
            return IndexValue(y * x.constant, expr.dtype)
        case "floordiv" if y.is_constant and y.constant > 0:
            return IndexValue(x // y.constant, expr.dtype)
        case "mod" if y.is_constant and y.constant > 0:
            return IndexValue(x % y.constant, expr.dtype)
        case _:
            return None


def _as_affine(expr: Expr) -> Affine | None:
    match expr:
        case IndexValue(dtype=dtype) if dtype == INDEX_DTYPE:
            return expr.affine
        case Const(value=int(value), dtype=dtype) if dtype == INDEX_DTYPE:
            return affine(value)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Comparisons of integers that are decided by constants alone: `i + 1 > i`."""

    holds: Callable[[int, int], bool]

    def __call__(self, expr: Apply) -> Expr | None:
        x, y = (_as_affine(arg) for arg in expr.args)
        if x is None or y is None or not (x - y).is_constant:
            return None
        return Const(bool(self.holds((x - y).constant, 0)), expr.dtype)


INDEX_RULES: Mapping[str, Rule] = {
    "add": _index,
    "sub": _index,
    "mul": _index,
    "floordiv": _index,
    "mod": _index,
    "eq": _Comparison(lambda x, y: x == y),
    "ne": _Comparison(lambda x, y: x != y),
    "lt": _Comparison(lambda x, y: x < y),
    "le": _Comparison(lambda x, y: x <= y),
    "gt": _Comparison(lambda x, y: x > y),
    "ge": _Comparison(lambda x, y: x >= y),
}
