"""Complex arithmetic as real arithmetic: an operator's row takes the parts of its arguments and gives those of its result.

A tensor of a complex type is read part by part (the ops `real` and `imag` of an access) and written by the op `complex`, so that everything between is real and
nothing below the graph knows complex numbers but as elements of memory. A real factor stays real: `r * z` is two products.

Formulas: the plain ones for products, as in NumPy; quotients by R. L. Smith, Algorithm 116: Complex division (CACM 5, 1962), again as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

from polyml.dtypes import DType, boolean
from polyml.expressions import Apply, Const, Expr, walk
from polyml.records import dataclass

__all__ = ["ROWS", "Parts", "Row", "apply", "joined", "parts_of", "power", "product", "quotient", "select", "size_of"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Two expressions of one float type; imag: None for a real number."""

    real: Expr
    imag: Expr | None

    @property
    def dtype(self) -> DType:
        return self.real.dtype


Row = Callable[[tuple[Parts, ...]], "Parts | Expr"]
"""The parts of the arguments, all of one float type -> those of the result; an expression: the result is no complex number."""


def parts_of(expr: Expr) -> Parts:
    """The parts of an expression of any float or complex type."""
    if not expr.dtype.is_complex:
        return Parts(expr, None)
    if isinstance(expr, Apply) and expr.op == "complex":
        return Parts(expr.args[0], expr.args[1])
    return Parts(Apply("real", (expr,), expr.dtype.part), Apply("imag", (expr,), expr.dtype.part))


def joined(parts: Parts, dtype: DType) -> Expr:
    """The complex number of these parts."""
    imag = Const(0.0, dtype.part) if parts.imag is None else parts.imag
    return Apply("complex", (parts.real, imag), dtype)


def size_of(expr: Expr) -> int:
    """Nodes of the expression, all copies counted."""
    return sum(1 for _ in walk(expr))


def apply(op: str, *args: Expr) -> Expr:
    return Apply(op, args, args[0].dtype)


def _sum(op: str) -> Row:
    def row(args: tuple[Parts, ...]) -> Parts:
        x, y = args
        real = apply(op, x.real, y.real)
        if y.imag is None:
            return Parts(real, x.imag)
        if x.imag is None:
            return Parts(real, y.imag if op == "add" else apply("neg", y.imag))
        return Parts(real, apply(op, x.imag, y.imag))

    return row


def product(args: tuple[Parts, ...]) -> Parts:
    """Of two numbers."""
    x, y = args
    if x.imag is None or y.imag is None:
        factor, other = (x, y) if x.imag is None else (y, x)
        imag = None if other.imag is None else apply("mul", factor.real, other.imag)
        return Parts(apply("mul", factor.real, other.real), imag)
    real = apply("sub", apply("mul", x.real, y.real), apply("mul", x.imag, y.imag))
    return Parts(real, apply("add", apply("mul", x.real, y.imag), apply("mul", x.imag, y.real)))


def quotient(args: tuple[Parts, ...]) -> Parts:
    """By the larger part of the divisor. Only parts of the divisor stand in branches, which their comparison has read already."""
    x, y = args
    if y.imag is None:
        return Parts(apply("div", x.real, y.real), None if x.imag is None else apply("div", x.imag, y.real))
    one, zero = Const(1.0, y.dtype), Const(0.0, y.dtype)
    big = Apply("ge", (apply("abs", y.real), apply("abs", y.imag)), boolean)
    larger, smaller = select(big, y.real, y.imag), select(big, y.imag, y.real)
    is_zero = Apply("eq", (larger, zero), boolean)
    ratio = select(is_zero, zero, apply("div", smaller, larger))
    along, across = select(big, one, ratio), select(big, ratio, one)
    scale = apply("div", one, apply("add", larger, apply("mul", smaller, ratio)))
    imag = zero if x.imag is None else x.imag
    real = apply("add", apply("mul", x.real, along), apply("mul", imag, across))
    other = apply("sub", apply("mul", imag, along), apply("mul", x.real, across))
    return Parts(apply("mul", real, scale), apply("mul", other, scale))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return Apply("select", (condition, yes, no), yes.dtype)


def _neg(args: tuple[Parts, ...]) -> Parts:
    (x,) = args
    return Parts(apply("neg", x.real), None if x.imag is None else apply("neg", x.imag))


def _conj(args: tuple[Parts, ...]) -> Parts:
    (x,) = args
    return Parts(x.real, None if x.imag is None else apply("neg", x.imag))


def _real(args: tuple[Parts, ...]) -> Expr:
    return args[0].real


def _imag(args: tuple[Parts, ...]) -> Expr:
    return Const(0.0, args[0].dtype) if args[0].imag is None else args[0].imag


def _complex(args: tuple[Parts, ...]) -> Parts:
    """Of two real numbers."""
    return Parts(args[0].real, args[1].real)


def _equal(op: str) -> Row:
    def row(args: tuple[Parts, ...]) -> Expr:
        x, y = args
        zero = Const(0.0, x.dtype)
        same = [
            Apply(op, (a, b), boolean)
            for a, b in ((x.real, y.real), (zero if x.imag is None else x.imag, zero if y.imag is None else y.imag))
        ]
        return Apply("and" if op == "eq" else "or", tuple(same), boolean)

    return row


def power(x: Parts, exponent: int) -> Parts:
    """x ** exponent for 1 <= exponent, by repeated squaring of x itself."""
    result: Parts | None = None
    square = x
    while True:
        if exponent & 1:
            result = square if result is None else product((result, square))
        exponent >>= 1
        if not exponent:
            assert result is not None, "internal: a power of at least one"
            return result
        square = product((square, square))


ROWS: dict[str, Row] = {
    "add": _sum("add"), "sub": _sum("sub"), "mul": product, "div": quotient, "neg": _neg, "conj": _conj, "real": _real, "imag": _imag,
    "complex": _complex, "eq": _equal("eq"), "ne": _equal("ne"),
}  # fmt: skip
