"""Bounds of index expressions from the loops around them: cheap interval reasoning that keeps sums symbolic, so that `n - n_tile` is bounded by a tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from math import gcd
from typing import Literal, assert_never

from polyml.codegen.loops import Bounds, For, Function, Multiples
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.records import dataclass, replace
from polyml.sets.affine import Affine, Extremum, FloorDiv, affine, maximum, minimum

__all__ = ["Ranges", "outside", "remembered"]

_Sense = Literal[1, -1]

_shared: ContextVar[dict[tuple[Bounds, Multiples], Ranges]] = ContextVar("_shared")

PATIENCE = 100
"""Steps that one question may take: extrema within extrema have exponentially many cases, and those that are left say "unknown"."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """What the enclosing loops say about their variables, outermost first: `lower <= variable < upper`.

    All answers hold inside the innermost of these loops (so that none of them is empty). They are safe, not exact: None means unknown.
    bounds: of sizes and leads, as a Function has them; multiples: of what numbers sizes are multiples.
    """

    loops: tuple[For, ...] = ()
    bounds: Bounds = ()
    multiples: Multiples = ()
    _around: Ranges | None = field(default=None, compare=False, repr=False)
    _known: dict[tuple[Affine, int], int | None] = field(default_factory=dict, compare=False, repr=False)
    _simple: dict[Affine, Affine] = field(default_factory=dict, compare=False, repr=False)
    _ends: dict[str, tuple[Affine, bool]] = field(default_factory=dict, compare=False, repr=False)
    _inside: dict[tuple[object, ...], Ranges] = field(default_factory=dict, compare=False, repr=False)
    _left: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def enter(self, loop: For) -> Ranges:
        """The ranges inside `loop`: the same ones for equal loops, whatever their bodies are, with what they have found out."""
        head = (
            loop.variable, loop.lower, loop.upper, loop.step, loop.kind, loop.factor, loop.width, loop.masked, loop.axis,
        )  # fmt: skip
        found = self._inside.get(head)
        if found is None:
            loops = (*self.loops, replace(loop, body=()))
            found = self._inside[head] = Ranges(loops, self.bounds, self.multiples, self, _left=self._left)
        return found

    def lowest(self, value: Affine) -> int | None:
        """A number that `value` is never below."""
        self._left[0] = PATIENCE
        return self._bound(value, -1)

    def highest(self, value: Affine) -> int | None:
        """A number that `value` is never above."""
        self._left[0] = PATIENCE
        return self._bound(value, 1)

    def is_positive(self, value: Affine) -> bool:
        """Whether `value > 0` is certain."""
        low = self.lowest(value)
        return low is not None and low > 0

    def is_element(self, shape: tuple[Affine, ...], subscripts: tuple[Subscript, ...]) -> bool:
        """Whether an array of that shape surely has such an element."""
        return all(
            isinstance(subscript, Affine) and self.is_positive(subscript + 1) and self.is_positive(extent - subscript)
            for subscript, extent in zip(subscripts, shape, strict=True)
        )

    def constant(self, value: Affine) -> int | None:
        """The only value that is possible."""
        if value.is_constant:
            return value.constant
        low = self.lowest(value)
        return low if low is not None and low == self.highest(value) else None

    def never_zero(self, value: Affine) -> bool:
        """Whether `value != 0` is certain."""
        low, high = self.lowest(value), self.highest(value)
        return (low is not None and low > 0) or (high is not None and high < 0)

    def multiple(self, value: Affine) -> int:
        """A number that divides `value`, whatever the loop variables are, those of vector loops in the first lane (0 when that is always 0)."""
        rest, divisor = value, 0
        for loop in reversed(self.loops):
            coefficient = dict(rest.terms).get(loop.variable, 0)
            if coefficient:
                trips = self.constant(loop.upper - loop.lower)
                once = trips is not None and trips <= loop.step
                divisor = divisor if once else gcd(divisor, coefficient * loop.step)
                rest = rest.replace(loop.variable, loop.lower)
        for atom, coefficient in rest.terms:
            match atom:
                case str():
                    inside = [next((number for size, number in self.multiples if size == atom), 1)]
                case Extremum():
                    inside = [self.multiple(operand) for operand in atom.operands]
                case FloorDiv():
                    inside = [1]
            divisor = gcd(divisor, *(coefficient * number for number in inside))
        return gcd(divisor, rest.constant)

    def decide(self, condition: Expr) -> bool | None:
        """The value of a bool expression over indices, where it is certain."""
        match condition:
            case Const():
                return bool(condition.value)
            case IndexValue() | Read():
                return None
            case Apply(op="and" | "or", args=(left, right)):
                ends = condition.op == "or"
                found = (self.decide(left), self.decide(right))
                return ends if ends in found else (None if None in found else not ends)
            case Apply(op="not", args=(inner,)):
                known = self.decide(inner)
                return None if known is None else not known
            case Apply(op="lt" | "le" | "gt" | "ge" | "eq" | "ne", args=(left, right)):
                difference = _difference(left, right)
                return None if difference is None else self._compare(condition.op, difference)
            case Apply():
                return None
            case _:
                assert_never(condition)

    def simplify(self, value: Affine) -> Affine:
        """An equal expression: extrema without operands that never win, divisions with only one possible quotient as that number."""
        if value.is_linear:
            return value
        found = self._simple.get(value)
        if found is None:
            found = self._simple[value] = self._simplified(value)
        return found

    def _simplified(self, value: Affine) -> Affine:
        total = Affine((), value.constant)
        for atom, coefficient in value.terms:
            match atom:
                case str():
                    term = affine(atom)
                case FloorDiv() if coefficient % atom.denominator == 0 and self._divides(atom):
                    term, coefficient = self.simplify(atom.numerator), coefficient // atom.denominator
                case FloorDiv():
                    term = self.simplify(atom.numerator) // atom.denominator
                    low, high = self.lowest(atom.numerator), self.highest(atom.numerator)
                    if low is not None and high is not None and low // atom.denominator == high // atom.denominator:
                        term = affine(low // atom.denominator)
                case Extremum():
                    term = self._winners(atom)
            total = total + term * coefficient
        return value if total == value else total

    def _divides(self, quotient: FloorDiv) -> bool:
        """Whether there is never a remainder: in no lane of a vector either, of which `multiple` knows the first."""
        if not self.multiples or any(loop.width > 1 and loop.variable in quotient.variables() for loop in self.loops):
            return False
        return self.multiple(quotient.numerator) % quotient.denominator == 0

    def _winners(self, atom: Extremum) -> Affine:
        operands = [self.simplify(operand) for operand in atom.operands]
        kept: list[Affine] = []
        for position, one in enumerate(operands):
            others = kept + operands[position + 1 :]
            if not any(self._beats(other, one, atom.kind) for other in others):
                kept.append(one)
        return (minimum if atom.kind == "min" else maximum)(kept)

    def _beats(self, one: Affine, other: Affine, kind: Literal["min", "max"]) -> bool:
        """Whether `one` is certainly the extremum of the two."""
        low = self.lowest(other - one if kind == "min" else one - other)
        return low is not None and low >= 0

    def _compare(self, op: str, difference: Affine) -> bool | None:
        """`difference op 0`."""
        low, high = self.lowest(difference), self.highest(difference)
        below, above = high is not None and high < 0, low is not None and low > 0
        at_most, at_least = high is not None and high <= 0, low is not None and low >= 0
        certain: dict[str, tuple[bool, bool]] = {
            "lt": (below, at_least),
            "le": (at_most, above),
            "gt": (above, at_most),
            "ge": (at_least, below),
            "eq": (at_most and at_least, below or above),
            "ne": (below or above, at_most and at_least),
        }
        yes, no = certain[op]
        return True if yes else (False if no else None)

    # -- bounds ---------------------------------------------------------------------------------------------------------

    def _bound(self, value: Affine, sense: _Sense) -> int | None:
        if value.is_constant:
            return value.constant
        key = (value, sense)
        if key not in self._known:
            self._known[key] = None  # no answer through itself
            if self._around is not None and self.loops[-1].variable not in value.variables():
                self._known[key] = self._around._bound(value, sense)  # asked there by others, too
                return self._known[key]
            if self._left[0] <= 0:
                return None
            self._left[0] -= 1
            self._known[key] = self._eliminate(value, sense)
        return self._known[key]

    def _eliminate(self, value: Affine, sense: _Sense) -> int | None:
        """One atom is replaced by its own bounds: extrema first, then the innermost variable, then divisions."""
        for atom, coefficient in value.terms:
            if isinstance(atom, Extremum):
                return self._extremum(value, atom, coefficient, sense)
        for atom, coefficient in value.terms:
            if isinstance(atom, FloorDiv):
                found = self._remainder(value, atom, coefficient, sense)
                if found is not None:
                    return found
        linear = {atom: coefficient for atom, coefficient in value.terms if isinstance(atom, str)}
        for loop in reversed(self.loops):
            coefficient = linear.get(loop.variable, 0)
            if coefficient:
                end = self._last(loop) if coefficient * sense > 0 else loop.lower
                return self._bound(value.replace(loop.variable, end), sense)
        for atom, coefficient in value.terms:
            if isinstance(atom, FloorDiv):
                end_value = self._bound(atom.numerator, sense if coefficient > 0 else _opposite(sense))
                if end_value is None:
                    return None
                return self._bound(value.replace(atom, end_value // atom.denominator), sense)
        for size, least, most in self.bounds:
            coefficient = linear.get(size, 0)
            number = least if coefficient * sense < 0 else most
            if coefficient and number is not None:
                return self._bound(value.replace(size, number), sense)
        return None

    def _last(self, loop: For) -> Affine:
        """A value that the variable is never above, the last lane's included: asked for each extremum's operands, where bounds are extrema within extrema."""
        found = self._ends.get(loop.variable)
        if found is None:
            left, self._left[0] = self._left[0], -1
            end = self._end(loop)
            asks = self._left[0] != -1
            self._left[0] = self._left[0] if asks else left
            self._ends[loop.variable] = end, asks
            return end
        if found[1]:
            self._left[0] = PATIENCE  # questions within this one, which are answered by now, begin anew
        return found[0]

    def _end(self, loop: For) -> Affine:
        span = loop.upper - loop.lower
        if loop.masked or loop.step == 1:
            return loop.upper - 1
        if span.is_constant:
            return loop.lower + (span.constant - 1) // loop.step * loop.step + (loop.width - 1)
        if self.multiple(span) % loop.step == 0:
            return loop.upper - loop.step + (loop.width - 1)
        return loop.upper - 1

    def _extremum(self, value: Affine, atom: Extremum, coefficient: int, sense: _Sense) -> int | None:
        found = [self._bound(value.replace(atom, operand), sense) for operand in atom.operands]
        best: Callable[[list[int]], int] = max if sense > 0 else min
        tightest: Callable[[list[int]], int] = min if sense > 0 else max
        numbers = [number for number in found if number is not None]
        if (atom.kind == "min") == (coefficient * sense > 0):
            return tightest(numbers) if numbers else None  # it is bounded by each operand
        return best(numbers) if len(numbers) == len(found) else None

    def _remainder(self, value: Affine, atom: FloorDiv, coefficient: int, sense: _Sense) -> int | None:
        """`c * (x - d * (x // d)) + rest` is between `rest` and `rest + c * (d - 1)`."""
        if coefficient % atom.denominator:
            return None
        factor = -coefficient // atom.denominator
        beside = dict(value.terms)
        if all(beside.get(inner) != inside * factor for inner, inside in atom.numerator.terms):
            return None  # nothing would drop out
        rest = value - affine(atom) * coefficient - atom.numerator * factor
        if len(rest.terms) >= len(value.terms) - 1:
            return None
        return self._bound(rest + (factor * (atom.denominator - 1) if factor * sense > 0 else 0), sense)


def outside(function: Function) -> Ranges:
    """What is known where no loop has begun."""
    itemsizes = {v.name: v.dtype.itemsize for v in function.arguments}
    leads = ((lead.name, 0, lead.elements(itemsizes[lead.array]) - 1) for lead in function.leads)
    bounds = (*function.bounds, *leads)
    made = Ranges(bounds=bounds, multiples=function.multiples)
    return _shared.get({}).setdefault((bounds, function.multiples), made)


@contextmanager
def remembered() -> Iterator[None]:
    """What is found out within lasts that long: passes that follow one another ask the same of the same loops."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def _opposite(sense: _Sense) -> _Sense:
    return -1 if sense == 1 else 1


def _difference(left: Expr, right: Expr) -> Affine | None:
    sides = [_index(left), _index(right)]
    return None if sides[0] is None or sides[1] is None else sides[0] - sides[1]


def _index(expr: Expr) -> Affine | None:
    match expr:
        case IndexValue():
            return expr.affine
        case Const(value=bool() | float()) | Read() | Apply():
            return None
        case Const():
            return affine(int(expr.value)) if expr.dtype.is_integer else None
        case _:
            assert_never(expr)
