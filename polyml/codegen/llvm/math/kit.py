"""The notation of the recipes: numbers with operators that write instructions.

Operators are exact IEEE operations without fast-math flags: a recipe says itself what is fused (`fma`), so that its error bound holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from polyml.codegen.llvm.functions.helpers import define
from polyml.codegen.llvm.ir import I32, Builder, Module, Type, Value, constant, type_of
from polyml.codegen.llvm.math.operands import operand

__all__ = ["Number", "Recipe", "by_lane", "call", "call_both", "fma", "horner", "in_pairs", "rarely", "where"]


class Number:
    """A value (in every lane) of floats, integers or truth; a Python number beside it means a constant of its type."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> Type:
        return self.value.type

    def like(self, other: Number | float) -> Number:
        """The operand as a number of this type."""
        return other if isinstance(other, Number) else Number(self.builder, constant(self.type, other))

    def operand(self, other: Number | float) -> Number:
        """The same, as an operand of floats that are added or multiplied."""
        if isinstance(other, Number) or not self.type.is_float:
            return self.like(other)
        return Number(self.builder, operand(self.builder, self.type, other))

    def _binary(self, op: str, other: Number | float) -> Number:
        return Number(self.builder, self.builder.binary(op, self.value, self.operand(other).value))

    def _compare(self, predicate: str, other: Number | float) -> Number:
        return Number(self.builder, self.builder.compare(predicate, self.value, self.like(other).value))

    def _named(self, op: str) -> str:
        return f"f{op}" if self.type.is_float else op

    def __add__(self, other: Number | float) -> Number:
        return self._binary(self._named("add"), other)

    def __sub__(self, other: Number | float) -> Number:
        return self._binary(self._named("sub"), other)

    def __rsub__(self, other: float) -> Number:
        return self.operand(other) - self

    def __mul__(self, other: Number | float) -> Number:
        return self._binary(self._named("mul"), other)

    def __truediv__(self, other: Number | float) -> Number:
        return self._binary("fdiv", other)

    def __rtruediv__(self, other: float) -> Number:
        return self.like(other) / self

    def __neg__(self) -> Number:
        return Number(self.builder, self.builder.emit(self.type, f"fneg {self.value}"))

    def __and__(self, other: Number | int) -> Number:
        return self._binary("and", other)

    def __or__(self, other: Number | int) -> Number:
        return self._binary("or", other)

    def __xor__(self, other: Number | int) -> Number:
        return self._binary("xor", other)

    def __invert__(self) -> Number:
        return self._binary("xor", True if self.type.element == "i1" else -1)

    def __lshift__(self, other: Number | int) -> Number:
        return self._binary("shl", other)

    def __rshift__(self, other: Number | int) -> Number:
        """Keeps the sign."""
        return self._binary("ashr", other)

    # Comparisons with NaN are false.

    def __lt__(self, other: Number | float) -> Number:
        return self._compare("olt" if self.type.is_float else "slt", other)

    def __gt__(self, other: Number | float) -> Number:
        return self._compare("ogt" if self.type.is_float else "sgt", other)

    def equals(self, other: Number | float) -> Number:
        return self._compare("oeq" if self.type.is_float else "eq", other)

    def differs(self, other: Number | float) -> Number:
        """True for NaN."""
        return self._compare("une" if self.type.is_float else "ne", other)

    def at_least_unsigned(self, other: int) -> Number:
        return self._compare("uge", other)

    def at_most(self, other: Number | float) -> Number:
        """False for NaN."""
        return self._compare("ole" if self.type.is_float else "sle", other)

    def at_least(self, other: Number | float) -> Number:
        """False for NaN."""
        return self._compare("oge" if self.type.is_float else "sge", other)

    def is_nan(self) -> Number:
        return self._compare("uno", self)

    # Other forms of the same lanes.

    def bits(self) -> Number:
        """A float's bits as an integer."""
        return Number(self.builder, self.builder.convert("bitcast", self.value, self.type.integers().element))

    def floats(self) -> Number:
        """Bits as a float."""
        element = "float" if self.type.bits == 32 else "double"
        return Number(self.builder, self.builder.convert("bitcast", self.value, element))

    def to(self, op: str, element: str) -> Number:
        """fpext, fptrunc, sitofp, ..."""
        return Number(self.builder, self.builder.convert(op, self.value, element))

    def intrinsic(self, name: str) -> Number:
        return Number(self.builder, self.builder.intrinsic(name, self.value))

    def __abs__(self) -> Number:
        return self.intrinsic("fabs")

    def with_sign_of(self, other: Number) -> Number:
        return Number(self.builder, self.builder.intrinsic("copysign", self.value, other.value))


def where(condition: Number, a: Number | float, b: Number | float) -> Number:
    """a where the condition holds, else b; at least one of them is a Number."""
    first = a if isinstance(a, Number) else b
    assert isinstance(first, Number), "internal: two plain numbers have no type"
    builder = condition.builder
    return Number(builder, builder.select(condition.value, first.like(a).value, first.like(b).value))


def fma(a: Number, b: Number | float, c: Number | float) -> Number:
    """`a * b + c`, rounded once."""
    return Number(a.builder, a.builder.intrinsic("fma", a.value, a.operand(b).value, a.operand(c).value))


def horner(coefficients: Sequence[float], x: Number) -> Number:
    """`c0 + c1 x + c2 x^2 + ...`, fused; at least two coefficients.

    Of many, every second one or every fourth are a polynomial of x^2 or x^4 by themselves: steps that wait for each other are what long ones take, since a core's schedulers hold those of a few vectors only.
    Source: Estrin, "Organization of computer systems: the fixed plus variable structure computer" (Western Joint Computer Conference 1960).
    """
    if len(coefficients) < LONG:
        return _in_order(coefficients, x)
    square = x * x
    if len(coefficients) < 2 * LONG:
        even, odd = (_in_order(coefficients[k::2], square) for k in range(2))
        return fma(odd, x, even)
    fourth = square * square
    a, b, c, d = (_in_order(coefficients[k::4], fourth) for k in range(4))
    return fma(fma(d, x, c), square, fma(b, x, a))


def in_pairs(coefficients: Sequence[float], x: Number) -> Number:
    """The same of an even number of coefficients, `c0 + c1 x` and so on first, which are a polynomial of x^2: of eight a step of four cycles less until the value is there than by `horner`, and two moves of constants more."""
    square = x * x
    terms = [fma(x, odd, even) for even, odd in zip(coefficients[::2], coefficients[1::2], strict=True)]
    total = terms.pop()
    for term in reversed(terms):
        total = fma(total, square, term)
    return total


LONG = 8
"""Coefficients of a polynomial that is made of two, and half as many as those of one that is made of four."""


def _in_order(coefficients: Sequence[float], x: Number) -> Number:
    """One step after the other (Horner)."""
    total = fma(x, coefficients[-1], coefficients[-2])
    for c in reversed(coefficients[:-2]):
        total = fma(total, x, c)
    return total


KEPT = range(256, 512 + 1)
"""Bits of results with which a function out of line keeps all registers of its callers (x86; elsewhere LLVM does not know the attribute). Else whatever is in vector registers there, the sums of
a register tile that are divided one by one, would have to survive in memory, and LLVM's allocator was seen to leave it there for the loops before. Not for smaller results: LLVM clears
upper halves (vzeroupper) behind the place where it restores them, unless the result needs them. Nor for larger ones and for lanes that are no power of two, which are returned in memory: their address comes
back in rax, which LLVM takes for kept."""

Recipe = Callable[..., Number]
"""Numbers to a Number of the first one's type."""


def call(module: Module, builder: Builder, recipe: Recipe, args: tuple[Value, ...], *, rare: bool = False) -> Value:
    """Calls the recipe as a function of this module, which is defined when it is first called; inlined unless it is rare."""
    type_ = args[0].type
    name = f"polyml.{recipe.__name__.strip('_')}.{type_.mangled}"
    attributes = "noinline cold" if rare else "alwaysinline"
    if rare and type_.lanes * type_.bits in KEPT and type_.lanes.bit_count() == 1:
        attributes += ' "no_caller_saved_registers"'

    def body(inner: Builder, given: Mapping[str, Value]) -> str:
        return f"ret {recipe(*(Number(inner, parameter) for parameter in given.values())).value}"

    define(module, name, type_, {f"x{k}": type_ for k in range(len(args))}, attributes, body)
    return builder.call(name, type_, args)


def call_both(
    module: Module, builder: Builder, recipe: Callable[[Number], tuple[Number, Number]], x: Value
) -> tuple[Value, Value]:
    """Two functions of one number that have much in common, inlined."""
    type_ = x.type
    name, result = f"polyml.{recipe.__name__}.{type_.mangled}", f"{{ {type_}, {type_} }}"

    def body(inner: Builder, given: Mapping[str, Value]) -> str:
        first, second = recipe(Number(inner, given["x"]))
        one = inner.emit(type_, f"insertvalue {result} poison, {first.value}, 0")
        both = inner.emit(type_, f"insertvalue {result} {one.text}, {second.value}, 1")
        return f"ret {result} {both.text}"

    define(module, name, result, {"x": type_}, "alwaysinline", body)
    both = builder.emit(type_, f"call {result} @{name}({x})")
    return builder.emit(type_, f"extractvalue {result} {both.text}, 0"), builder.emit(
        type_, f"extractvalue {result} {both.text}, 1"
    )


def rarely(
    condition: Number,
    usual: Number,
    recipe: Recipe,
    *args: Number,
    settled: tuple[Number, Number | float] | None = None,
) -> Number:
    """`usual`, but in lanes where the condition holds what the recipe gives, out of line. So a lane's result does not depend on its neighbours.

    settled: lanes among those, and what their result is known to be: when there are no others, nothing is called.
    """
    b = condition.builder
    before, cold, after = b.block, b.fresh("cold"), b.fresh("warm")
    b.branch(_any_lane(condition, usual.type), cold, after, rare=True)
    b.start(cold)
    incoming = [f"[{usual.value.text}, %{before}]"]
    result = usual
    if settled is not None:
        known, value = settled
        result, condition = where(known, value, usual), condition & ~known
        incoming.append(f"[{result.value.text}, %{cold}]")
        colder = b.fresh("cold")
        b.branch(b.any_lane(condition.value), colder, after)
        b.start(colder)
    exact = call(b.module, b, recipe, tuple(a.value for a in args), rare=True)
    chosen = b.select(condition.value, exact, result.value)
    incoming.append(f"[{chosen.text}, %{b.block}]")
    b.jump(after)
    b.start(after)
    return Number(b, b.emit(usual.type, f"phi {usual.type} {', '.join(incoming)}"))


def _any_lane(condition: Number, like: Type) -> Value:
    """Whether the condition, of numbers of such a type, holds in any lane. In AVX2's registers masks are numbers, of which one instruction collects the signs; vtestps, which LLVM takes, are two."""
    b, lanes = condition.builder, _REGISTER // like.bits
    if not b.module.instructions.avx2 or like.lanes % lanes:
        return b.any_lane(condition.value)
    element, suffix = ("float", "ps") if like.bits == 32 else ("double", "pd")
    mask = b.convert("sext", condition.value, f"i{like.bits}")
    parts = [b.shuffle(mask, range(k, k + lanes)) if lanes < like.lanes else mask for k in range(0, like.lanes, lanes)]
    signs = b.convert("bitcast", reduce(lambda one, other: b.binary("or", one, other), parts), element)
    name = f"llvm.x86.avx.movmsk.{suffix}.256"
    b.module.declare(name, str(I32), [str(signs.type)])
    # LLVM, which would make vtestps of a comparison with nought, does not know where the number is from.
    number = b.emit(I32, f'call i32 asm "", "=r,0"({b.call(name, I32, (signs,))})')
    return b.compare("ne", number, constant(I32, 0))


_REGISTER = 256
"""Bits of AVX2's."""


def by_lane(function: str, *args: Number) -> Number:
    """The C library's function of doubles, lane after lane."""
    b, type_ = args[0].builder, args[0].type
    double = type_of("double")
    b.module.declare(function, "double", ["double"] * len(args), "nounwind memory(none)")
    result = Value(type_, "poison")
    for lane in range(type_.lanes):
        picked = [b.convert("fpext", b.extract(a.value, lane), "double") for a in args]
        y = b.convert("fptrunc", b.call(function, double, tuple(picked)), type_.element)
        if type_.lanes == 1:
            return Number(b, y)
        result = b.emit(type_, f"insertelement {result}, {y}, i64 {lane}")
    return Number(b, result)
