"""How far rounding may move each element of a program: a bound that is carried beside every value while the interpreter runs.

The value is computed in a wider type; its bound is what evaluation in the program's own types may be off by, in any order of its sums, with or without
fused multiply-adds: u * (|a| + |b|) for a sum of two, n * u * sum |t| for n terms, and for other functions what the bounds of the arguments do at the corners of
their intervals, and some units in the last place of its own. Source: Higham, Accuracy and Stability of Numerical Algorithms, sections 3.3 (running error analysis) and 4.2.

A bound is infinite where nothing can be said: a condition, an index or an overflow hangs on the rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from polyml.dtypes import DTYPES, DType, bf16, boolean, f32
from polyml.einsum_frontend.interpreter.names import children
from polyml.einsum_frontend.interpreter.real_factors import meaning_of
from polyml.einsum_frontend.interpreter.types import BINARY_OPS, COMPARE_OPS
from polyml.einsum_frontend.interpreter.values import Evaluator
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    LoopRef,
    Name,
    Number,
    Reducer,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.errors import ShapeError
from polyml.ops import OPS
from polyml.records import dataclass

__all__ = ["BoundedEvaluator", "Bounds", "Part", "least_step", "unit"]

Bounds = dict[int, npt.NDArray[np.float64]]
"""Per tensor, by the identity of its values: the bound of each element."""

_EXACT = frozenset({"neg", "abs", "min", "max", "relu", "floor", "ceil", "round", "real", "imag", "conj", "complex"})
_FUNCTION_UNITS = 8.0
"""What a vector function may be off by: 4 units in the last place (docs/performance/types.md, Vector math: at most 2.6)."""
_LARGEST_MULTIPLIED_EXPONENT = 16.0
"""Up to here powers may be products (docs/numerics.md)."""


@functools.cache
def _limits(dtype: DType) -> tuple[float, float, float]:
    """Unit roundoff, the largest and the smallest normal number of a float type (complex: of the parts)."""
    if dtype == bf16:  # which NumPy does not know: the exponents of f32
        return 2.0**-8, float(np.finfo(np.float32).max), 2.0**-126
    info: Any = np.finfo(dtype.part.numpy if dtype.is_complex else dtype.numpy)
    return float(info.eps) / 2, float(info.max), float(info.tiny)


def unit(dtype: DType) -> float:
    """The unit roundoff of a float type, twice that of the parts of a complex one; 0 for others."""
    if dtype.is_complex:
        return 2 * _limits(dtype)[0]
    return _limits(dtype)[0] if dtype.is_float else 0.0


def least_step(dtype: DType) -> float:
    """The smallest number of a float type: below its normal numbers roundings are that large. 0 for other types."""
    if not (dtype.is_float or dtype.is_complex):
        return 0.0
    eps, _, normal = _limits(dtype)
    return 2 * eps * normal


@dataclass(frozen=True, slots=True)
class Part:
    """An operand as it was evaluated. value: a NumPy scalar."""

    expr: Expression
    value: Any
    bound: float


@dataclass
class BoundedEvaluator(Evaluator):
    """Values as the interpreter has them, and a bound for each.

    bounds: of the tensors. below: the operands evaluated so far of the expression at hand; after `value`, its last is that expression.
    most: evaluations that are left. Raises ShapeError when there are none.
    """

    bounds: Bounds
    below: list[Part] = field(default_factory=list)
    most: list[int] = field(default_factory=lambda: [2**62])
    _place: tuple[str, tuple[int, ...]] | None = None

    def require(self, count: int) -> None:
        """Raises ShapeError unless so many evaluations are left; then none is."""
        if self.most[0] < count:
            self.most[0] = -1
            message = "the interpreter evaluates one instance after the other, and these arguments have too many"
            raise ShapeError(message, hint="verify the program at smaller sizes, or with most=")

    def least(self, expr: Expression) -> int:
        """Evaluations that one instance of the expression takes at least: what conditions leave of a reduction is not known."""
        match expr:
            case Reducer() if any(not isinstance(item, IndexRef) for item in expr.items):
                return 1
            case Reducer():
                own = (len(self.ranges[item.name]) for item in expr.items if isinstance(item, IndexRef))
                return 1 + math.prod(own) * self.least(expr.body)
            case Call(function="where"):
                return 1
            case _:
                return 1 + sum(map(self.least, children(expr)))

    def value(self, expr: Expression, env: Mapping[str, int]) -> np.generic:
        if self.most[0] < 1:
            self.require(1)
        self.most[0] -= 1
        outer, self.below = self.below, []
        found = super().value(expr, env)
        parts, self.below = self.below, outer
        dtype = self.types[id(expr)].dtype
        if dtype.kind in "fc":
            bound = self._float_bound(expr, found, parts, dtype)
            if _size(found) > _limits(dtype)[1]:
                bound = math.inf  # it overflows, or does not, by the order of evaluation
        else:
            bound = self._exact_bound(expr, parts)
        outer.append(Part(expr, found, bound))
        return found

    def check_written(self, expr: Subscript, name: str, position: tuple[int, ...]) -> None:
        super().check_written(expr, name, position)
        self._place = (name, position)

    def _float_bound(self, expr: Expression, found: np.generic, parts: Sequence[Part], dtype: DType) -> float:
        match expr:
            case Number() | IndexRef() | LoopRef() | SizeRef() | Name():
                return 0.0
            case Subscript():
                return self._read_bound(parts)
            case Call(function="where"):
                test, chosen = parts
                return math.inf if test.bound else chosen.bound + unit(dtype) * _size(found)
            case Call(function=name) if name in DTYPES:
                return parts[0].bound + unit(dtype) * _size(found) + (least_step(dtype) if found else 0.0)
            case Call(function=name):
                return applied(name, parts, dtype)
            case Unary():
                return parts[0].bound
            case Binary(op="*"):
                return applied("mul", [self._perhaps_flushed(part) for part in parts], dtype)
            case Binary(op=op):
                return applied(BINARY_OPS[op], parts, dtype)
            case Reducer():
                return _reduced(expr.kind, parts, dtype)
            case Compare() | Boolean():
                raise AssertionError("internal: a comparison is a bool")

    def _perhaps_flushed(self, part: Part) -> Part:
        """A factor of bf16: machines that multiply this type take subnormal numbers for zero."""
        inner = part.expr.args[0] if isinstance(part.expr, Call) and part.expr.function in DTYPES else part.expr
        if self.types[id(inner)].dtype != bf16 or not 0 < _size(part.value) < _limits(bf16)[2]:
            return part
        return replace(part, bound=part.bound + _size(part.value))

    def _read_bound(self, subscripts: Sequence[Part]) -> float:
        """The bound of the element that was read last (a padded zero has none)."""
        place, self._place = self._place, None
        if any(part.bound for part in subscripts):
            return math.inf
        if place is None:
            return 0.0
        known = self.bounds.get(id(self.cells[place[0]].values))
        return 0.0 if known is None else float(known[place[1]])

    def _exact_bound(self, expr: Expression, parts: Sequence[Part]) -> float:
        """0 for an integer or a bool that rounding cannot change, else infinity."""
        match expr:
            case Subscript():
                return self._read_bound(parts)
            case Compare() if any(part.bound for part in parts):
                sides = zip(expr.ops, itertools.pairwise(parts), strict=True)
                return math.inf if any(_undecided(COMPARE_OPS[op], pair) for op, pair in sides) else 0.0
            case Call(function=name) if DTYPES.get(name, boolean).is_integer and _leaves(parts[0], DTYPES[name]):
                return math.inf  # which value it becomes is the machine's
            case Call(function=name) if name in DTYPES and parts[0].bound:
                ends = {int(end) for end in _ends(parts[0]) if np.isfinite(end)}
                return 0.0 if len(ends) == 1 else math.inf
            case Reducer(kind="argmax" | "argmin"):
                return _undecided_winner(expr.kind, parts)
            case _:
                return math.inf if any(part.bound for part in parts) else 0.0


def _leaves(part: Part, dtype: DType) -> bool:
    """Whether a float may be none of an integer type's."""
    if not isinstance(part.value, np.floating):
        return False
    limits: Any = np.iinfo(dtype.numpy)
    return not all(np.isfinite(end) and limits.min <= int(end) <= limits.max for end in _ends(part))


def _size(value: Any) -> float:
    """The absolute value of what is finite of it."""
    size = float(abs(value))
    if size < math.inf or np.isfinite(value):
        return size
    return float(abs(_finite(value))) if isinstance(value, np.complexfloating) else 0.0


def _is_moderate(part: Part, dtype: DType) -> bool:
    """Whether neither an infinite part nor the inverse of a tiny number meets a product in the formula of a complex quotient or power (docs/language.md), which others do not have."""
    return bool(np.isfinite(part.value)) and not 0 < _size(part.value) < 1 / _limits(dtype)[1]


def _finite(value: Any) -> complex:
    """A complex number without its infinite parts."""
    real, imag = float(value.real), float(value.imag)
    return complex(real if math.isfinite(real) else 0.0, imag if math.isfinite(imag) else 0.0)


def _endless(value: complex) -> tuple[str, str]:
    """Which parts are infinite or no number."""
    kinds = ("" if math.isfinite(part) else str(part) for part in (value.real, value.imag))
    real, imag = kinds
    return real, imag


def _ends(part: Part) -> tuple[Any, ...]:
    """The value, and the ends of its interval."""
    if not part.bound:
        return (part.value,)
    ends = (part.value, part.value - part.bound, part.value + part.bound)
    if isinstance(part.value, np.complexfloating):
        return (*ends, part.value - 1j * part.bound, part.value + 1j * part.bound)
    return ends


@functools.cache
def _wide(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """What holds values of all of these, and at least f64."""
    return np.result_type(*dtypes, np.float64)


def applied(op: str, parts: Sequence[Part], dtype: DType) -> float:
    """The bound of `op` on these operands, in `dtype`."""
    if any(math.isinf(part.bound) for part in parts):
        return math.inf
    if op in ("min", "max"):
        return max(part.bound for part in parts)
    if op in ("add", "sub"):
        return sum(part.bound + unit(dtype) * _size(part.value) for part in parts)
    wide = _wide(*(part.value.dtype for part in parts))
    are_complex = [part.value.dtype.kind == "c" for part in parts]
    meaning: Any = np.conjugate if op == "conj" else meaning_of(op, are_complex)
    corners = [complex(meaning(*map(wide.type, ends))) for ends in itertools.product(*map(_ends, parts))]
    center = corners[0]
    of_parts = wide.kind == "c"
    by_formula = of_parts and op in ("pow", "div")
    if by_formula and not (np.isfinite(center) and all(_is_moderate(part, dtype) for part in parts)):
        return math.inf
    if len(corners) > 1 and any(_endless(corner) != _endless(center) for corner in corners):
        return math.inf
    if not np.isfinite(center):
        if not of_parts:
            return 0.0
        corners = [_finite(corner) for corner in corners]
        center = corners[0]
    if of_parts and op == "mul" and all(are_complex):
        first, second = (_size(part.value) for part in parts)
        if first * second > _limits(dtype)[1]:
            return math.inf  # some product of parts may overflow
    moved = max(abs(corner - center) for corner in corners)
    if op in ("sin", "cos") and not of_parts:  # whose corners may have waves between them
        moved = min(parts[0].bound, 2.0)
    if op in _EXACT and not (of_parts and op == "abs"):
        return moved
    if of_parts:  # the corners of an interval stand for a disc
        moved *= math.sqrt(2)
    if op == "gelu":  # x P(x), and P is off by units of 1 (docs/numerics.md, Functions)
        return moved + _FUNCTION_UNITS * unit(dtype) * _size(parts[0].value) + _limits(dtype)[2]
    units = 1.0 if op in ("mul", "div") and not of_parts else _FUNCTION_UNITS
    if op == "pow" and not of_parts:  # by products, each of them rounded
        units = max(units, min(abs(float(parts[1].value)), _LARGEST_MULTIPLIED_EXPONENT))
    if of_parts and op == "pow" and center:  # exp(w log z): the exponent's own rounding is what counts
        units += 2 * _FUNCTION_UNITS * abs(complex(parts[1].value)) * abs(complex(np.log(complex(parts[0].value))))
    return moved + units * unit(dtype) * abs(center) + _limits(dtype)[2]


def _reduced(kind: str, parts: Sequence[Part], dtype: DType) -> float:
    """The bound of a reduction, in any order of its terms."""
    match kind:
        case "sum":
            size = sum(_size(p.value) for p in parts)
            if size > _limits(f32 if dtype.is_half else dtype)[1]:
                return math.inf  # a partial sum may overflow
            return sum(part.bound for part in parts) + len(parts) * unit(dtype) * size
        case "prod":
            if any(math.isinf(part.bound) for part in parts):
                return math.inf
            growing = math.prod(max(1.0, _size(part.value) + part.bound) for part in parts)
            if growing > _limits(f32 if dtype.is_half else dtype)[1]:
                return math.inf  # a partial product may overflow, whatever the factors after it
            # By how much the product of the largest factors is larger, without the difference of both: a unit in the last place of f64 is lost in that.
            size, bound = 1.0, 0.0
            for part in parts:
                own = _size(part.value)
                moved = own * unit(dtype) + part.bound
                size, bound = size * own, bound * (own + moved) + size * moved
            return bound
        case _:
            return max((part.bound for part in parts), default=0.0)


def _undecided(op: str, pair: Sequence[Part]) -> bool:
    meaning = OPS[op].meaning
    return len({bool(meaning(*ends)) for ends in itertools.product(*map(_ends, pair))}) > 1


def _undecided_winner(kind: str, parts: Sequence[Part]) -> float:
    """Infinity when rounding may make another one the first winner."""
    if not any(part.bound for part in parts):
        return 0.0
    values = np.array([part.value for part in parts])
    if np.isnan(values).any():
        return math.inf
    best = int(np.argmax(values) if kind == "argmax" else np.argmin(values))
    margin = (abs(values[best] - part.value) - part.bound - parts[best].bound for part in parts)
    return math.inf if any(m <= 0 for k, m in enumerate(margin) if k != best) else 0.0
