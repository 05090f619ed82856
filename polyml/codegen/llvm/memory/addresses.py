"""Index arithmetic: quasi-affine expressions and element addresses, computed once, in the outermost loop where they are known.

Every loop body opens with a list of lines (its *preamble*) that stays open while the body is written; a value that depends on loop variables up to some
level is appended there and remembered. So LLVM finds addresses hoisted and shared already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from math import gcd
from typing import assert_never

from polyml.codegen.llvm.ir import POINTER, Builder, Lines, Type, Value, constant, integer, type_of
from polyml.codegen.llvm.memory.remainders import Term, quotients_together, sum_of_quotients
from polyml.records import dataclass
from polyml.sets.affine import Affine, Atom, Extremum, FloorDiv, affine

__all__ = ["Level", "Nest", "Offset", "Term", "extremum", "floor_divide"]


SHORT = 1 << 15
"""Numbers below it fit into 16 bits, whose products are one instruction."""


Terms = tuple[tuple[Term, int], ...]


@dataclass(frozen=True, slots=True)
class Offset:
    """`constant + sum(coefficient * atom * stride)`, in elements."""

    terms: Terms
    constant: int


@dataclass(frozen=True, slots=True)
class Row:
    """The address of an element, known from that loop level on, whose offset has these terms in order of their loops; less `shift`."""

    pointer: Value
    level: int
    terms: Terms
    shift: int


@dataclass(slots=True)
class Level:
    """One loop body, or the function's own (level 0): where its preamble grows and what was computed there; addresses by array and terms of the offset."""

    lines: Lines
    known: dict[object, Value] = field(default_factory=dict)
    rows: dict[tuple[str, Terms], Row] = field(default_factory=dict)


class Nest:
    """The loops around the point of emission, and the integers known there: sizes (level 0) and loop variables."""

    def __init__(self, builder: Builder, lines: Lines) -> None:
        self.builder = builder
        self.levels = [Level(lines)]
        self.variables: dict[str, tuple[int, Value]] = {}
        self.grids: dict[str, tuple[Affine, int]] = {}  # a variable's every value is this plus a multiple of that
        self.strides: dict[str, Value] = {}  # strides known at run time only
        self.texts: dict[Term, str] = {}

    def multiple_of(self, expression: Affine, grid: int = 0) -> int:
        """A number that divides the expression plus any multiple of `grid`, whatever the loop variables are (0 when that is always 0)."""
        result, rest = grid, expression
        for variable, (start, step) in reversed(self.grids.items()):  # inner loops start at outer variables
            coefficient = dict(rest.terms).get(variable, 0)
            result = gcd(result, coefficient * step)
            rest = rest + (start - affine(variable)) * coefficient
        return gcd(result, rest.constant, *(coefficient for _, coefficient in rest.terms))

    # -- scalars ----------------------------------------------------------------------------------------------------------------

    def index(self, expression: Affine) -> Value:
        """The value of the expression (a vector loop's variable: of its first lane)."""
        known, rest = self._fold(expression)
        if not known:
            return integer(rest)
        total: Value | None = None
        done: list[tuple[Atom, int]] = []
        for atom, coefficient in known:
            done.append((atom, coefficient))
            total = self._sum(("index", tuple(done)), self.level_of(atom), total, atom, coefficient)
        assert total is not None
        if rest == 0:
            return total
        level = max(self.level_of(atom) for atom, _ in known)
        previous = total
        return self.once(
            level, ("index", tuple(done), rest), lambda: self.builder.binary("add", previous, integer(rest))
        )

    def _fold(self, expression: Affine) -> tuple[list[tuple[Atom, int]], int]:
        """Terms sorted outermost first, with variables of known value folded into the constant."""
        terms, rest = [], expression.constant
        for atom, coefficient in expression.terms:
            if isinstance(atom, str) and self.variables[atom][1].is_constant:
                rest += coefficient * int(self.variables[atom][1].text)
            else:
                terms.append((atom, coefficient))
        if len(terms) > 1:
            terms.sort(key=lambda term: (self.level_of(term[0]), str(term[0])))
        return terms, rest

    def _sum(self, key: object, level: int, total: Value | None, atom: Atom, coefficient: int) -> Value:
        def compute() -> Value:
            value = self.atom(atom)
            if coefficient != 1:
                value = self.builder.binary("mul", value, integer(coefficient))
            return value if total is None else self.builder.binary("add", total, value)

        return self.once(level, key, compute)

    def atom(self, atom: Atom) -> Value:
        """The value of a variable, a floor division or an extremum."""
        match atom:
            case str():
                return self.variables[atom][1]
            case FloorDiv():
                numerator = self.index(atom.numerator)
                return self.once(
                    self.level_of(atom), atom, lambda: floor_divide(self.builder, numerator, atom.denominator)
                )
            case Extremum():
                values = [self.index(operand) for operand in atom.operands]
                return self.once(self.level_of(atom), atom, lambda: extremum(self.builder, atom.kind, values))
            case _:
                assert_never(atom)

    def level_of(self, atom: Atom) -> int:
        """The outermost loop level at which the atom is known."""
        if isinstance(atom, str):
            return self.variables[atom][0]
        return max([self.variables[name][0] for name in atom.variables()], default=0)

    def level_of_affine(self, expression: Affine) -> int:
        return max([self.variables[name][0] for name in expression.variables()], default=0)

    def once(self, level: int, key: object, compute: Callable[[], Value]) -> Value:
        """The value remembered under the key, or computed now in that level's preamble."""
        place = self.levels[level]
        found = place.known.get(key)
        if found is None:
            with self.builder.into(place.lines):
                found = place.known[key] = compute()
        return found

    # -- lanes ------------------------------------------------------------------------------------------------------------------

    def lane_stride(self, expression: Affine, variable: str, lanes: int) -> int | None:
        """By how much the expression grows from lane to lane of `variable + <0..lanes-1>`; None when that is not one constant."""
        total = 0
        for atom, coefficient in expression.terms:
            match atom:
                case str():
                    stride: int | None = 1 if atom == variable else 0
                case FloorDiv():
                    stride = self.lane_stride(atom.numerator, variable, lanes)
                    if stride and self._stays_between_multiples(atom, stride * (lanes - 1)):
                        stride = 0
                case Extremum():
                    stride = 0 if all(self.lane_stride(o, variable, lanes) == 0 for o in atom.operands) else None
                case _:
                    assert_never(atom)
            if stride is None or (stride and not isinstance(atom, str)):
                return None
            total += coefficient * stride
        return total

    def _stays_between_multiples(self, division: FloorDiv, growth: int) -> bool:
        """Whether the quotient is the same when the numerator grows by `growth`: its least value is a multiple of more than that, which divides the denominator."""
        least = division.numerator + min(growth, 0)
        return abs(growth) < self.multiple_of(least, division.denominator)

    def lanes_index(self, expression: Affine, variable: str, lanes: int) -> Value:
        """The expression for each lane `variable + <0..lanes-1>`: a scalar when it does not depend on the variable."""
        stride = self.lane_stride(expression, variable, lanes)
        if stride == 0 or lanes == 1:
            return self.index(expression)
        level = self.level_of_affine(expression)
        if stride is not None:
            # Vectors side by side have the first one's variable in all lanes in common, to which constants are added.
            base = self.index(expression - expression.constant)
            lane_by_lane = partial(self._spread, base, lanes, stride, expression.constant)
            return self.once(level, ("lanes", expression, lanes), lane_by_lane)
        first = self._first_round(expression, variable)
        if first is not None:
            return self.lanes_index(expression.substitute({variable: affine(first)}), first, lanes)
        remainder = self._remainder(expression, variable, lanes)
        if remainder is not None:
            return remainder
        total: Value | None = None
        rest = Affine((), expression.constant)
        for atom, coefficient in expression.terms:
            term = Affine(((atom, coefficient),))
            if self.lane_stride(term, variable, lanes) == 0:
                rest = rest + term
                continue
            value = self._lanes_atom(atom, variable, lanes)
            with self.builder.into(self.levels[level].lines):
                value = self.builder.binary("mul", value, constant(value.type, coefficient))
                total = value if total is None else self.builder.binary("add", total, value)
        assert total is not None
        scalar = self.index(rest)
        with self.builder.into(self.levels[level].lines):
            return self.builder.binary("add", total, self.builder.splat(scalar, lanes))

    def _first_round(self, expression: Affine, variable: str) -> str | None:
        """The name of where the variable's loop begins, if the expression is the same in all of its rounds, such as a remainder of which the step is a multiple: lanes are made once then, ahead of the loop."""
        if variable not in self.grids:
            return None
        start, step = self.grids[variable]
        if not step or expression.substitute({variable: affine(variable) + step}) != expression:
            return None
        # Loops over one variable that begin elsewhere (peeled ones, remainders, other versions) have lanes of their own.
        first = f"{variable} from {start}"
        level = self.level_of_affine(start)
        self.variables[first] = (level, self.index(start))
        return first

    def _remainder(self, expression: Affine, variable: str, lanes: int) -> Value | None:
        """`n % d` plus a constant for each lane; None where the expression is nothing like it, or lanes reach far."""
        b = self.builder
        for atom, coefficient in expression.terms:
            if not isinstance(atom, FloorDiv) or coefficient != -atom.denominator:
                continue
            more = expression - affine(atom) * coefficient - atom.numerator
            stride = self.lane_stride(atom.numerator, variable, lanes)
            if not more.is_constant or stride is None or stride < 0 or stride * lanes + atom.denominator >= SHORT:
                continue
            left = self._short_remainder(atom, stride, lanes)
            with b.into(self.levels[self.level_of(atom)].lines):
                return b.binary("add", left, constant(left.type, more.constant)) if more.constant else left
        return None

    def _short_remainder(self, division: FloorDiv, stride: int, lanes: int) -> Value:
        """`(n + <0, stride, ..>) % d` as `(n % d + <0, stride, ..>) % d`: of small numbers."""
        b, d = self.builder, division.denominator
        whole, numerator = self.atom(division), self.index(division.numerator)

        def compute() -> Value:
            rest = b.binary("sub", numerator, b.binary("mul", whole, integer(d)))
            small = b.splat(b.convert("trunc", rest, "i16"), lanes)
            counting = ", ".join(f"i16 {lane * stride}" for lane in range(lanes))
            small = b.binary("add", small, Value(small.type, f"<{counting}>"))
            return b.convert("zext", b.binary("urem", small, constant(small.type, d)), "i64")

        return self.once(self.level_of(division), ("remainder", division, lanes), compute)

    def _spread(self, base: Value, lanes: int, stride: int, start: int) -> Value:
        return self.builder.binary("add", self.builder.splat(base, lanes), self.builder.iota(lanes, stride, start))

    def _lanes_atom(self, atom: Atom, variable: str, lanes: int) -> Value:
        b, level = self.builder, self.level_of(atom)
        match atom:
            case str():
                return self.lanes_index(Affine(((atom, 1),)), variable, lanes)
            case FloorDiv():
                stride = self.lane_stride(atom.numerator, variable, lanes)
                if stride is not None and stride >= 0 and stride * lanes + atom.denominator < 1 << 31:
                    return self._divide_progression(atom, stride, lanes)
                numerator = b.splat(self.lanes_index(atom.numerator, variable, lanes), lanes)
                return self.once(level, ("lanes", atom, lanes), lambda: floor_divide(b, numerator, atom.denominator))
            case Extremum():
                with b.into(self.levels[level].lines):
                    values = [b.splat(self.lanes_index(operand, variable, lanes), lanes) for operand in atom.operands]
                    return extremum(b, atom.kind, values)
            case _:
                assert_never(atom)

    def _divide_progression(self, division: FloorDiv, stride: int, lanes: int) -> Value:
        """`(n + <0, stride, ..>) // d` as `n // d + (n % d + <0, stride, ..>) // d`: the second division is of small numbers."""
        b, d = self.builder, division.denominator
        whole, numerator = self.atom(division), self.index(division.numerator)

        def compute() -> Value:
            rest = b.binary("sub", numerator, b.binary("mul", whole, integer(d)))
            steps = type_of("i32", lanes)
            small = b.splat(b.convert("trunc", rest, "i32"), lanes)
            counting = ", ".join(f"i32 {lane * stride}" for lane in range(lanes))
            small = b.binary("add", small, Value(steps, f"<{counting}>"))
            if stride * (lanes - 1) < d:
                crossed = b.compare("uge", small, constant(steps, d))
                quotient = b.convert("zext", crossed, "i64")
            else:
                quotient = b.convert("zext", b.binary("udiv", small, constant(steps, d)), "i64")
            return b.binary("add", b.splat(whole, lanes), quotient)

        return self.once(self.level_of(division), ("lanes", division, lanes), compute)

    def crossings(self, division: FloorDiv, stride: int, lanes: int, most: int) -> list[tuple[Value, Value]] | None:
        """Where the quotient of `n + <0, stride, ..>` goes up, each time: whether any lane meets that, and which lanes are beyond; None where it may go up more often than that."""
        b, d = self.builder, division.denominator
        grid = gcd(self.multiple_of(division.numerator), d)
        growth = stride * (lanes - 1)
        count = (d - grid + growth) // d
        if count > most:
            return None
        aligned = grid == d
        whole, numerator = self.atom(division), self.index(division.numerator)

        def compute(number: int) -> tuple[Value, Value]:
            rest = integer(0) if aligned else b.binary("sub", numerator, b.binary("mul", whole, integer(d)))
            meets = b.compare("sge", rest, integer(number * d - growth))
            steps = type_of("i32", lanes)
            counting = Value(steps, f"<{', '.join(f'i32 {lane * stride}' for lane in range(lanes))}>")
            place = b.binary("add", b.splat(b.convert("trunc", rest, "i32"), lanes), counting)
            return meets, b.compare("uge", place, constant(steps, number * d))

        level, key = self.level_of(division), ("crossing", division, lanes)
        place = self.levels[level]
        made: list[tuple[Value, Value]] = []
        with b.into(place.lines):
            for number in range(1, count + 1):
                keys = [(*key, number, part) for part in ("meets", "beyond")]
                if keys[0] not in place.known:
                    place.known[keys[0]], place.known[keys[1]] = compute(number)
                made.append((place.known[keys[0]], place.known[keys[1]]))
        return made

    # -- addresses --------------------------------------------------------------------------------------------------------------

    def address(self, name: str, base: Value, element: Type, offset: Offset) -> Value:
        """The address of element `offset` of the array that starts at `base`."""
        name = f"{name} at {base.text}"  # two versions of a function may each have a local array of one name
        row = self.levels[-1].rows.get((name, offset.terms)) or self._row(name, base, element, offset.terms)
        shift = row.shift + offset.constant
        if shift == 0:
            return row.pointer
        move = partial(self._move, row.pointer, element, integer(shift))
        return self.once(row.level, (name, row.terms, shift), move)

    def _row(self, name: str, base: Value, element: Type, offset: Terms) -> Row:
        """What elements of a tile, which differ in constants, have in common."""
        shift, varies = 0, True
        terms: list[tuple[Term, int]] = []
        for (atom, stride), coefficient in offset:
            value = self.variables[atom][1] if isinstance(atom, str) else None
            if value is not None and value.is_constant:
                varies = False
                if stride is None:
                    shift += coefficient * int(value.text)
                    continue
                atom, coefficient = None, coefficient * int(value.text)
            terms.append(((atom, stride), coefficient))
        terms = quotients_together(terms, self.level_of)
        if len(terms) > 1:
            terms.sort(key=lambda term: (self._term_level(term[0]), self._term_text(term[0])))
        pointer, level = base, 0
        done: list[tuple[Term, int]] = []
        for term, coefficient in terms:
            if 0 < level < self._term_level(term):
                # What loops around make of it is of no use in here, and strength reduction would weigh each access of a tile against all of their counters.
                pointer = self.once(level, (name, tuple(done), "apart"), partial(self._apart, pointer))
            done.append((term, coefficient))
            level = max(level, self._term_level(term))
            pointer = self._step(name, pointer, element, level, tuple(done))
        row = Row(pointer, level, tuple(done), shift)
        if varies:  # no variable has a known value, which it may have in one branch only
            self.levels[-1].rows[name, offset] = row
        return row

    def _step(self, name: str, pointer: Value, element: Type, level: int, done: Terms) -> Value:
        (atom, stride), coefficient = done[-1]

        def compute() -> Value:
            if isinstance(atom, Affine):
                value = sum_of_quotients(atom, self.atom, self.builder)
            else:
                value = integer(coefficient) if atom is None else self.atom(atom)
            if atom is not None and coefficient != 1:
                value = self.builder.binary("mul", value, integer(coefficient))
            if stride is not None:
                value = self.builder.binary("mul", value, self.strides[stride])
                return self._apart(self._move(pointer, element, value))
            return self._move(pointer, element, value)

        return self.once(level, (name, done), compute)

    def _apart(self, pointer: Value) -> Value:
        """The same address, which LLVM's scalar evolution takes for any: an intrinsic that is nothing in machine code, and hides nothing from alias analysis.

        Loop strength reduction would else express rows of a register tile by each other, and reading ahead of those chains spills accumulators.
        """
        name = "llvm.strip.invariant.group.p0"
        self.builder.module.declare(name, "ptr", ["ptr"])
        return self.builder.call(name, POINTER, (pointer,))

    def _term_level(self, term: Term) -> int:
        atom = term[0]
        return 0 if atom is None else self.level_of_affine(atom) if isinstance(atom, Affine) else self.level_of(atom)

    def _term_text(self, term: Term) -> str:
        """What puts terms of one level in order: written once for each, since what is within quotients has many parts."""
        found = self.texts.get(term)
        if found is None:
            found = self.texts[term] = str(term)
        return found

    def _move(self, pointer: Value, element: Type, by: Value) -> Value:
        return self.builder.emit(POINTER, f"getelementptr {element}, {pointer}, {by}")


def floor_divide(b: Builder, numerator: Value, denominator: int) -> Value:
    """`numerator // denominator` rounding down, on i64 (lanes); denominator > 0."""
    if denominator & (denominator - 1) == 0:
        return b.binary("ashr", numerator, constant(numerator.type, denominator.bit_length() - 1))
    divisor = constant(numerator.type, denominator)
    quotient = b.binary("sdiv", numerator, divisor)
    rest = b.binary("sub", numerator, b.binary("mul", quotient, divisor))
    return b.binary("add", quotient, b.binary("ashr", rest, constant(rest.type, 63)))


def extremum(b: Builder, kind: str, values: list[Value]) -> Value:
    """The smallest ("min") or largest ("max") of i64 values (lanes)."""
    total = values[0]
    for value in values[1:]:
        total = b.intrinsic("smin" if kind == "min" else "smax", total, value)
    return total
