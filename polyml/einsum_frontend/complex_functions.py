"""Elementary functions of complex numbers in real ones, with the branch cuts, signed zeros and infinities of C99's annex G, which are NumPy's.

Square roots and hyperbolic tangents: W. Kahan, Branch cuts for complex elementary functions, or: much ado about nothing's sign bit (1987).
Nothing here overflows, or loses digits to cancellation, unless the result does: sizes are divided by the larger part, and sinh is tanh times cosh.
"""

from __future__ import annotations

from polyml.dtypes import boolean, f32
from polyml.einsum_frontend.complex_parts import Parts, Row, apply, product, quotient, select
from polyml.expressions import Apply, Const, Expr

__all__ = ["FUNCTIONS", "power_of"]


def _test(op: str, x: Expr, value: float) -> Expr:
    return Apply(op, (x, _number(value, x)), boolean)


def _number(value: float, like: Expr) -> Const:
    return Const(value, like.dtype)


def _imag(x: Parts) -> Expr:
    assert x.imag is not None, "internal: a function of complex numbers"
    return x.imag


def _sizes(x: Parts) -> tuple[Expr, Expr]:
    """The larger of the parts' sizes, and the smaller over the larger (0 where both are 0 or one is infinite)."""
    a, b = apply("abs", x.real), apply("abs", _imag(x))
    larger, smaller = apply("max", a, b), apply("min", a, b)
    plain = _and(_test("gt", larger, 0.0), _test("lt", larger, float("inf")))
    return larger, select(plain, apply("div", smaller, larger), _number(0.0, larger))


def _either_infinite(x: Parts) -> Expr:
    return _or(_infinite(x.real), _infinite(_imag(x)))


def _infinite(x: Expr) -> Expr:
    return _test("eq", apply("abs", x), float("inf"))


def _nan(x: Expr) -> Expr:
    return Apply("ne", (x, x), boolean)


def _and(x: Expr, y: Expr) -> Expr:
    return Apply("and", (x, y), boolean)


def _or(x: Expr, y: Expr) -> Expr:
    return Apply("or", (x, y), boolean)


def _abs(args: tuple[Parts, ...]) -> Expr:
    """The root of the sum of squares, by the larger part, so that nothing overflows."""
    (x,) = args
    if x.imag is None:
        return apply("abs", x.real)
    larger, ratio = _sizes(x)
    one = _number(1.0, larger)
    size = apply("mul", larger, apply("sqrt", apply("add", one, apply("mul", ratio, ratio))))
    return select(_either_infinite(x), _number(float("inf"), larger), size)


def _log(args: tuple[Parts, ...]) -> Parts:
    """The larger part's logarithm and log1p of the ratio's square: right near the unit circle, too."""
    (x,) = args
    larger, ratio = _sizes(x)
    rest = apply("mul", _number(0.5, larger), apply("log1p", apply("mul", ratio, ratio)))
    size = apply("add", apply("log", larger), rest)
    real = select(_either_infinite(x), _number(float("inf"), larger), size)
    return Parts(real, apply("atan2", _imag(x), x.real))


def _log1p(args: tuple[Parts, ...]) -> Parts:
    """Of the rounded sum, as in NumPy."""
    (x,) = args
    return _log((Parts(apply("add", _number(1.0, x.real), x.real), x.imag),))


def _sqrt(args: tuple[Parts, ...]) -> Parts:
    """sqrt((|x| + |z|)/2) is the larger part; the other is the imaginary part over twice that."""
    (x,) = args
    a, b = x.real, _imag(x)
    larger, ratio = _sizes(x)
    one, half, infinity = (_number(value, a) for value in (1.0, 0.5, float("inf")))
    steep = Apply("lt", (apply("abs", a), apply("abs", b)), boolean)
    size = apply("sqrt", apply("add", one, apply("mul", ratio, ratio)))
    mean = apply("mul", half, apply("add", select(steep, ratio, one), size))
    major = apply("mul", apply("sqrt", larger), apply("sqrt", mean))
    some = _test("gt", major, 0.0)
    # Halved last: half of the smallest number is zero.
    minor = select(some, apply("mul", half, apply("div", apply("abs", b), major)), apply("abs", b))
    positive, endless = _test("ge", a, 0.0), _infinite(b)
    left = _test("lt", a, 0.0)
    real = select(_or(endless, _test("eq", a, float("inf"))), infinity, select(left, minor, major))
    imag = select(_or(endless, _test("eq", a, -float("inf"))), infinity, select(positive, minor, major))
    return Parts(real, apply("copysign", imag, b))


def _rsqrt(args: tuple[Parts, ...]) -> Parts:
    root = _sqrt(args)
    return quotient((Parts(_number(1.0, root.real), None), root))


def _far(x: Expr) -> Expr:
    """Where exp(x), or soon cosh(x), overflows."""
    return _test("gt", x, 80.0 if x.dtype == f32 else 700.0)


def _scaled_exp(x: Expr) -> tuple[Expr, Expr]:
    """Two factors of exp(x) that do not overflow before their product with a small number does; the second is mostly 1."""
    root = apply("exp", select(_far(x), apply("mul", _number(0.5, x), x), x))
    return root, select(_far(x), root, _number(1.0, x))


def _is_turn(real: Expr, imag: Expr) -> bool:
    """Whether the real part is zero wherever the imaginary one is finite, since that is what they are made of: `1j * x` is `x * 0 + x * 1 i`, and so are its products with real numbers, its quotients and sums.

    A factor that makes NaN of zero, or a divisor, makes no finite number of anything else.
    """
    real, imag = _without_sign(real), _without_sign(imag)
    if isinstance(real, Const):
        return real.value == 0
    if not (isinstance(real, Apply) and isinstance(imag, Apply) and real.op == imag.op):
        return False
    match real.op:
        case "add" | "sub":
            return all(map(_is_turn, real.args, imag.args))
        case "mul":
            (a, b), (c, d) = real.args, imag.args
            return (a == c and _is_turn(b, d)) or (b == d and _is_turn(a, c))
        case "div":
            return real.args[1] == imag.args[1] and _is_turn(real.args[0], imag.args[0])
    return False


def _without_sign(x: Expr) -> Expr:
    return _without_sign(x.args[0]) if isinstance(x, Apply) and x.op == "neg" else x


def _exp(args: tuple[Parts, ...]) -> Parts:
    """exp(a) (cos b + i sin b); of purely imaginary numbers the turn alone."""
    (x,) = args
    a, b = x.real, _imag(x)
    if _is_turn(a, b):
        return Parts(apply("cos", b), apply("sin", b))
    exp, rest = _scaled_exp(a)
    zero = _number(0.0, a)
    sine, cosine = apply("sin", b), apply("cos", b)
    real, imag = (apply("mul", apply("mul", exp, turn), rest) for turn in (cosine, sine))
    flat = _test("eq", b, 0.0)  # an infinite size times no angle is not NaN
    lost, none = _nan(cosine), _test("eq", a, -float("inf"))
    known = _and(lost, _infinite(a))
    real = select(_or(flat, known), apply("mul", exp, rest), real)
    return Parts(real, select(flat, b, select(_and(lost, none), zero, imag)))


def _hyperbolic(x: Expr, factor: Expr, *, odd: bool) -> Expr:
    """factor * sinh(x) or factor * cosh(x), by halves of the exponent where cosh would overflow."""
    size = apply("abs", x)
    exp, rest = _scaled_exp(size)
    whole = apply("mul", _number(0.5, x), exp)
    cosh = apply("add", whole, apply("div", _number(0.5, x), exp))
    far = _far(size)
    even = apply("mul", apply("mul", factor, select(far, whole, cosh)), rest)
    return apply("mul", apply("tanh", x), even) if odd else even


def _zero_of_signs(x: Expr, y: Expr) -> Expr:
    """0 with the sign of the product."""
    one = _number(1.0, x)
    return apply("mul", apply("copysign", _number(0.0, x), x), apply("copysign", one, y))


def _sin(args: tuple[Parts, ...]) -> Parts:
    """sin a cosh b + i cos a sinh b."""
    (x,) = args
    a, b = x.real, _imag(x)
    cosine = apply("cos", a)
    real = select(_test("eq", a, 0.0), a, _hyperbolic(b, apply("sin", a), odd=False))
    imag = select(_test("eq", b, 0.0), _zero_of_signs(b, cosine), _hyperbolic(b, cosine, odd=True))
    return Parts(real, select(_and(_infinite(b), _nan(cosine)), _number(float("inf"), a), imag))


def _cos(args: tuple[Parts, ...]) -> Parts:
    """cos a cosh b - i sin a sinh b."""
    (x,) = args
    a, b = x.real, _imag(x)
    sine, cosine = apply("sin", a), apply("cos", a)
    flat = _or(_test("eq", a, 0.0), _test("eq", b, 0.0))
    imag = select(flat, _zero_of_signs(sine, b), _hyperbolic(b, sine, odd=True))
    real = _hyperbolic(b, cosine, odd=False)
    return Parts(select(_and(_infinite(b), _nan(cosine)), _number(float("inf"), a), real), apply("neg", imag))


def _tanh(args: tuple[Parts, ...]) -> Parts:
    """(sinh a cosh a + i sin b cos b) / (sinh(a)^2 + cos(b)^2); for large a its limit."""
    (x,) = args
    a, b = x.real, _imag(x)
    one = _number(1.0, a)
    sine, cosine = apply("sin", b), apply("cos", b)
    turn = apply("mul", sine, cosine)
    sinh, cosh = (_hyperbolic(a, one, odd=odd) for odd in (True, False))
    below = apply("add", apply("mul", sinh, sinh), apply("mul", cosine, cosine))
    size = apply("abs", a)
    decay = apply("exp", apply("mul", _number(-2.0, a), size))
    far = _test("gt", size, 10.0 if a.dtype == f32 else 20.0)
    limit = apply("mul", _number(4.0, a), apply("mul", turn, decay))
    endless = _test("eq", size, float("inf"))
    limit = select(endless, apply("copysign", _number(0.0, a), turn), limit)
    whole = select(_or(endless, Apply("eq", (turn, turn), boolean)), one, turn)
    real = select(far, apply("copysign", whole, a), apply("div", apply("mul", sinh, cosh), below))
    real = select(_test("eq", a, 0.0), a, real)
    imag = select(_test("eq", b, 0.0), b, select(far, limit, apply("div", turn, below)))
    return Parts(real, imag)


def _round(args: tuple[Parts, ...]) -> Parts:
    """Part by part."""
    (x,) = args
    return Parts(apply("round", x.real), apply("round", _imag(x)))


def _power(args: tuple[Parts, ...]) -> Parts:
    base, exponent = args
    z = base if base.imag is not None else Parts(base.real, _number(0.0, base.real))
    return power_of(z, exponent, _exp((product((exponent, _log((z,)))),)))


def power_of(base: Parts, exponent: Parts, made: Parts) -> Parts:
    """made = exp(exponent log base), but `z ** 0` is 1, and `0 ** w` is 0 where w has a positive real part, else NaN: NumPy's rules."""
    zero, one, nan = (_number(value, made.real) for value in (0.0, 1.0, float("nan")))
    nothing = _and(_test("eq", base.real, 0.0), _test("eq", _imag(base), 0.0))
    unit = _test("eq", exponent.real, 0.0)
    if exponent.imag is not None:
        unit = _and(unit, _test("eq", exponent.imag, 0.0))
    of_zero = select(_test("gt", exponent.real, 0.0), zero, nan)
    real = select(unit, one, select(nothing, of_zero, made.real))
    return Parts(real, select(unit, zero, select(nothing, of_zero, _imag(made))))


FUNCTIONS: dict[str, Row] = {
    "abs": _abs, "exp": _exp, "log": _log, "log1p": _log1p, "sqrt": _sqrt, "rsqrt": _rsqrt, "sin": _sin, "cos": _cos, "tanh": _tanh, "round": _round, "pow": _power,
}  # fmt: skip
"""Rows like those of complex_parts.ROWS."""
