"""Constant folding and algebra on expressions: a table of rules per op, applied from the leaves up.

Only what holds for every float is here: NaN and infinities keep their meaning, and so does the sign of zero (`x + 0.0` turns -0.0 into 0.0, so it stays; `x - 0.0`
goes). `x * 0` and `x - x` go for integers only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from polyml.dtypes import DType
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript, walk
from polyml.graph.edit import map_equations, map_expressions
from polyml.graph.ir import Equation, Graph
from polyml.ops import INDEX_DTYPE, OPS
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["RULES", "simplify", "simplify_expression"]

Rule = Callable[[Apply], Expr | None]
"""An equal expression, or None when the rule does not apply."""


def simplify(graph: Graph) -> Graph:
    """Every expression in its simplest form; the same object when all are."""

    def change(equation: Equation) -> Equation:
        return map_expressions(equation, simplify_expression)

    ops = map_equations(graph.ops, change)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def simplify_expression(expr: Expr) -> Expr:
    """The expression with all rules of the table applied, innermost first; the same object when none applies."""
    match expr:
        case Const():
            return expr
        case IndexValue():
            return Const(expr.affine.constant, expr.dtype) if expr.affine.is_constant else expr
        case Read():
            subscripts = tuple(map(_simplify_subscript, expr.subscripts))
            same = all(new is old for new, old in zip(subscripts, expr.subscripts, strict=True))
            return expr if same else Read(expr.tensor, subscripts, expr.dtype)
        case Apply():
            args = tuple(map(simplify_expression, expr.args))
            same = all(new is old for new, old in zip(args, expr.args, strict=True))
            applied = expr if same else Apply(expr.op, args, expr.dtype)
            for rule in (_fold, *RULES.get(expr.op, ())):
                simpler = rule(applied)
                if simpler is not None and simpler.dtype == expr.dtype:
                    return simplify_expression(simpler)
            return applied


def _simplify_subscript(subscript: Subscript) -> Subscript:
    """A gathered subscript whose value is affine after all becomes an affine one."""
    if isinstance(subscript, Affine):
        return subscript
    simpler = simplify_expression(subscript)
    match simpler:
        case IndexValue():
            return simpler.affine
        case Const(value=int(value)):
            return affine(value)
        case _:
            return simpler


# -- constants ----------------------------------------------------------------------------------------------------------------


def _fold(expr: Apply) -> Expr | None:
    """An op on constants is a constant, computed as NumPy does."""
    values = [arg.value for arg in expr.args if isinstance(arg, Const)]
    if len(values) < len(expr.args) or expr.dtype.is_complex:
        return None
    if expr.op in ("floordiv", "mod", "pow") and expr.dtype.is_integer and values[1] <= 0:
        return None
    dtype = expr.dtype.numpy
    with np.errstate(all="ignore"):
        numbers = [np.asarray(value, arg.dtype.numpy) for value, arg in zip(values, expr.args, strict=True)]
        if (
            expr.op == "cast"
            and expr.dtype.kind in "iu"
            and expr.args[0].dtype.is_float
            and not np.isfinite(numbers[0])
        ):
            return None
        if OPS[expr.op].rule in ("float", "true_divide"):
            numbers = [number.astype(dtype) for number in numbers]
        result = np.asarray(OPS[expr.op].meaning(*numbers)).astype(dtype)
    return Const(result.item(), expr.dtype)


def _is(expr: Expr, value: float) -> bool:
    """True for this constant; zeros are told apart by their sign."""
    return (
        isinstance(expr, Const)
        and expr.value == value
        and math.copysign(1, float(expr.value)) == math.copysign(1, float(value))
    )


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _same(x: Expr, y: Expr) -> bool:
    """Equality that tells 0.0 and -0.0, and 1 and True, apart."""
    return x == y and repr(x) == repr(y)


def _zero(dtype: DType) -> Const:
    return Const(0.0 if dtype.is_float else 0, dtype)


# -- sums and products --------------------------------------------------------------------------------------------------------


def _add(expr: Apply) -> Expr | None:
    x, y = expr.args
    exact = expr.dtype.is_integer
    for one, other in ((x, y), (y, x)):
        if (exact and _is_zero(one)) or (expr.dtype.is_float and _is(one, -0.0)):
            return other
    if isinstance(y, Apply) and y.op == "neg":
        return Apply("sub", (x, y.args[0]), expr.dtype)
    if isinstance(x, Apply) and x.op == "neg":
        return Apply("sub", (y, x.args[0]), expr.dtype)
    return None


def _sub(expr: Apply) -> Expr | None:
    x, y = expr.args
    if (expr.dtype.is_integer and _is_zero(y)) or (expr.dtype.is_float and _is(y, 0.0)):
        return x
    if expr.dtype.is_integer and _same(x, y):
        return _zero(expr.dtype)
    if isinstance(y, Apply) and y.op == "neg":
        return Apply("add", (x, y.args[0]), expr.dtype)
    return None


def _mul(expr: Apply) -> Expr | None:
    for one, other in (expr.args, expr.args[::-1]):
        if _is(one, 1):
            return other
        if expr.dtype.is_integer and _is_zero(one):
            return _zero(expr.dtype)
        if _is(one, -1):
            return Apply("neg", (other,), expr.dtype)
    return None


def _div(expr: Apply) -> Expr | None:
    x, y = expr.args
    if _is(y, 1):
        return x
    if isinstance(y, Const) and expr.dtype.is_float and y.value and math.isfinite(y.value):
        mantissa, exponent = math.frexp(float(y.value))
        if abs(mantissa) == 0.5 and abs(exponent) < 100:  # a power of two: its reciprocal is exact
            return Apply("mul", (x, Const(1 / float(y.value), expr.dtype)), expr.dtype)
    return None


def _floordiv(expr: Apply) -> Expr | None:
    return expr.args[0] if expr.dtype.is_integer and _is(expr.args[1], 1) else None


def _mod(expr: Apply) -> Expr | None:
    return _zero(expr.dtype) if expr.dtype.is_integer and _is(expr.args[1], 1) else None


def _pow(expr: Apply) -> Expr | None:
    x, y = expr.args
    if _is(y, 1):
        return x
    if _is(y, 2) and sum(1 for _ in walk(x)) <= 16:
        return Apply("mul", (x, x), expr.dtype)
    return None


# -- one argument -------------------------------------------------------------------------------------------------------------


def _neg(expr: Apply) -> Expr | None:
    match expr.args[0]:
        case Apply(op="neg", args=(x,)):
            return x
        case Apply(op="sub", args=(x, y), dtype=dtype) if dtype.is_integer:
            return Apply("sub", (y, x), dtype)
        case _:
            return None


def _abs(expr: Apply) -> Expr | None:
    match expr.args[0]:
        case Apply(op="neg", args=(x,)):
            return Apply("abs", (x,), expr.dtype)
        case Apply(op="abs") as inner:
            return inner
        case _:
            return None


def _idempotent(expr: Apply) -> Expr | None:
    """f(f(x)) is f(x)."""
    inner = expr.args[0]
    return inner if isinstance(inner, Apply) and inner.op == expr.op else None


def _cast(expr: Apply) -> Expr | None:
    inner = expr.args[0]
    if inner.dtype == expr.dtype:
        return inner
    match inner:
        case Apply(op="cast", args=(x,)) if _contains(inner.dtype, x.dtype) and (
            not inner.dtype.is_float or expr.dtype.is_float or x.dtype == expr.dtype
        ):
            return Apply("cast", (x,), expr.dtype)  # the first cast lost nothing
        case _:
            return None


def _part(expr: Apply) -> Expr | None:
    """A part of a complex number that is made of parts."""
    match expr.args[0]:
        case Apply(op="complex", args=(real, imag)):
            return real if expr.op == "real" else imag
        case _:
            return None


def _complex(expr: Apply) -> Expr | None:
    """A complex number that is taken apart and put together again."""
    match expr.args:
        case (Apply(op="real", args=(x,)), Apply(op="imag", args=(y,))) if _same(x, y):
            return x
        case _:
            return None


def _contains(wide: DType, narrow: DType) -> bool:
    """True when each value of `narrow` is one of `wide`."""
    if narrow.is_half:
        return wide.is_float and not wide.is_half
    if wide.is_half:
        return False
    return bool(np.can_cast(narrow.numpy, wide.numpy, "safe")) and not (wide.is_float and narrow.bits >= wide.bits)


# -- logic --------------------------------------------------------------------------------------------------------------------


def _select(expr: Apply) -> Expr | None:
    condition, yes, no = expr.args
    if isinstance(condition, Const):
        return yes if condition.value else no
    if _same(yes, no):
        return yes
    if isinstance(condition, Apply) and condition.op == "not":
        return Apply("select", (condition.args[0], no, yes), expr.dtype)
    return None


def _and(expr: Apply) -> Expr | None:
    for one, other in (expr.args, expr.args[::-1]):
        if isinstance(one, Const):
            return other if one.value else one
    return expr.args[0] if _same(*expr.args) else None


def _or(expr: Apply) -> Expr | None:
    for one, other in (expr.args, expr.args[::-1]):
        if isinstance(one, Const):
            return one if one.value else other
    return expr.args[0] if _same(*expr.args) else None


def _not(expr: Apply) -> Expr | None:
    inner = expr.args[0]
    return inner.args[0] if isinstance(inner, Apply) and inner.op == "not" else None


def _same_twice(expr: Apply) -> Expr | None:
    """min(x, x) and max(x, x)."""
    return expr.args[0] if _same(*expr.args) else None


# -- index values -------------------------------------------------------------------------------------------------------------


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


RULES: Mapping[str, tuple[Rule, ...]] = {
    "add": (_index, _add),
    "sub": (_index, _sub),
    "mul": (_index, _mul),
    "div": (_div,),
    "floordiv": (_index, _floordiv),
    "mod": (_index, _mod),
    "pow": (_pow,),
    "neg": (_neg,),
    "abs": (_abs,),
    "relu": (_idempotent,),
    "floor": (_idempotent,),
    "ceil": (_idempotent,),
    "round": (_idempotent,),
    "cast": (_cast,),
    "real": (_part,),
    "imag": (_part,),
    "complex": (_complex,),
    "select": (_select,),
    "and": (_and,),
    "or": (_or,),
    "not": (_not,),
    "min": (_same_twice,),
    "max": (_same_twice,),
    "eq": (_Comparison(lambda x, y: x == y),),
    "ne": (_Comparison(lambda x, y: x != y),),
    "lt": (_Comparison(lambda x, y: x < y),),
    "le": (_Comparison(lambda x, y: x <= y),),
    "gt": (_Comparison(lambda x, y: x > y),),
    "ge": (_Comparison(lambda x, y: x >= y),),
}
