"""Quasi-affine integer expressions: the one index arithmetic of programs, graphs, scops and loops.

An `Affine` is a canonical sum `constant + coefficient * atom + ...`, so that equal expressions compare equal and strides can be read off. An atom is a
variable name, a floor division by a positive constant, or a minimum or maximum (which only loop bounds use). `x % d` is `x - d * (x // d)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from math import gcd
from typing import Literal

from polyml.records import dataclass

__all__ = [
    "Affine", "Atom", "Extent", "Extremum", "FloorDiv", "affine", "between", "extent_of", "maximum", "minimum", "operands", "weighted_sum",
]  # fmt: skip


@dataclass(slots=True, eq=False)
class _Memo:
    """Text, hash and variables of a deep atom, which sums sort and look up by again and again."""

    text: str | None = None
    hash: int | None = None
    variables: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """`numerator // denominator`, rounding down; denominator > 0."""

    numerator: Affine
    denominator: int
    _memo: _Memo = field(default_factory=lambda: _Memo(), init=False, compare=False, repr=False)

    def __str__(self) -> str:
        if self._memo.text is None:
            self._memo.text = f"({self.numerator})//{self.denominator}"
        return self._memo.text

    def __hash__(self) -> int:
        if self._memo.hash is None:
            self._memo.hash = hash((self.numerator, self.denominator))
        return self._memo.hash

    def variables(self) -> frozenset[str]:
        """All variable names."""
        if self._memo.variables is None:
            self._memo.variables = self.numerator.variables()
        return self._memo.variables


@dataclass(frozen=True, slots=True)
class Extremum:
    """The smallest or largest of two or more operands."""

    kind: Literal["min", "max"]
    operands: tuple[Affine, ...]
    _memo: _Memo = field(default_factory=lambda: _Memo(), init=False, compare=False, repr=False)

    def __str__(self) -> str:
        if self._memo.text is None:
            self._memo.text = f"{self.kind}({', '.join(map(str, self.operands))})"
        return self._memo.text

    def __hash__(self) -> int:
        if self._memo.hash is None:
            self._memo.hash = hash((self.kind, self.operands))
        return self._memo.hash

    def variables(self) -> frozenset[str]:
        """All variable names."""
        if self._memo.variables is None:
            self._memo.variables = frozenset().union(*(operand.variables() for operand in self.operands))
        return self._memo.variables


Atom = str | FloorDiv | Extremum


class _Kept:
    """Places for a hash and a set of variables, which are asked for again and again, and which no copy and no pickle takes along."""

    __slots__ = ("_hash", "_variables")
    _hash: int
    _variables: frozenset[str]


_set_hash, _set_variables = (vars(_Kept)[name].__set__ for name in _Kept.__slots__)  # the class is frozen


@dataclass(frozen=True, slots=True)
class Affine(_Kept):
    """`constant + sum(coefficient * atom)`: `terms` are sorted by the atoms' text and have no zero coefficient."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash((self.terms, self.constant))
            _set_hash(self, found)
            return found

    # -- arithmetic -------------------------------------------------------------------------------------------------------------

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        if not other.terms:
            return Affine(self.terms, self.constant + other.constant)
        if not self.terms:
            return Affine(other.terms, self.constant + other.constant)
        sums = dict(self.terms)
        for atom, coefficient in other.terms:
            sums[atom] = sums.get(atom, 0) + coefficient
        return _from_terms(sums, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant - other)
        if not other.terms:
            return Affine(self.terms, self.constant - other.constant)
        if self.terms == other.terms:
            return Affine((), self.constant - other.constant)
        sums = dict(self.terms)
        for atom, coefficient in other.terms:
            sums[atom] = sums.get(atom, 0) - coefficient
        return _from_terms(sums, self.constant - other.constant)

    def __rsub__(self, other: int) -> Affine:
        return -self + other

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(tuple((atom, c * factor) for atom, c in self.terms), self.constant * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Affine:
        """Floor division by a positive constant; the part that `divisor` divides is taken out."""
        assert divisor > 0, "internal: floor division by a constant that is not positive"
        if divisor == 1:
            return self
        whole = Affine(tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0), self.constant // divisor)
        rest = Affine(tuple((a, c) for a, c in self.terms if c % divisor), self.constant % divisor)
        if not rest.terms:
            return whole
        # (4*k + 3)//6 is (2*k + 1)//3: what is below a common factor never carries.
        common = gcd(divisor, *(c for _, c in rest.terms))
        if common > 1:
            return whole + Affine(tuple((a, c // common) for a, c in rest.terms), rest.constant // common) // (
                divisor // common
            )
        return whole + Affine(((FloorDiv(rest, divisor), 1),))

    def __mod__(self, divisor: int) -> Affine:
        return self - (self // divisor) * divisor

    # -- questions --------------------------------------------------------------------------------------------------------------

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def is_linear(self) -> bool:
        """Whether it is a sum of variables alone, without divisions and extrema."""
        for atom, _ in self.terms:  # noqa: SIM110 (a generator takes three times as long)
            if not isinstance(atom, str):
                return False
        return True

    @property
    def name(self) -> str | None:
        """The variable's name when the expression is one variable, else None."""
        if self.constant == 0 and len(self.terms) == 1 and self.terms[0][1] == 1 and isinstance(self.terms[0][0], str):
            return self.terms[0][0]
        return None

    @property
    def of_one(self) -> tuple[str, int, int] | None:
        """(P, c, d) when the expression is `c*P + d` of one variable with c >= 1, so that its value gives the variable's; else None."""
        if len(self.terms) != 1:
            return None
        ((atom, coefficient),) = self.terms
        return (atom, coefficient, self.constant) if isinstance(atom, str) and coefficient >= 1 else None

    def is_multiple(self, size: int) -> bool:
        """Whether the constant and all coefficients are multiples of the size, and so every value is."""
        return self.constant % size == 0 and all(coefficient % size == 0 for _, coefficient in self.terms)

    def variables(self) -> frozenset[str]:
        """All variable names, also inside divisions and extrema."""
        try:
            return self._variables
        except AttributeError:
            found: set[str] = set()
            for atom, _ in self.terms:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    found |= atom.variables()
            _set_variables(self, frozenset(found))
            return self._variables

    def stride(self, variable: str) -> int | None:
        """By how much the value grows when `variable` grows by one; None when that is not one constant (a division by it)."""
        total = 0
        for atom, coefficient in self.terms:
            if isinstance(atom, str):
                total += coefficient if atom == variable else 0
            elif variable in atom.variables():
                return None
        return total

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value with every variable given."""
        total = self.constant
        for atom, coefficient in self.terms:
            match atom:
                case str():
                    value = values[atom]
                case FloorDiv():
                    value = atom.numerator.evaluate(values) // atom.denominator
                case Extremum():
                    value = (min if atom.kind == "min" else max)(operand.evaluate(values) for operand in atom.operands)
            total += coefficient * value
        return total

    # -- rewriting --------------------------------------------------------------------------------------------------------------

    def substitute(self, values: Mapping[str, Affine | int]) -> Affine:
        """The expression with variables replaced, all at once."""
        if self.variables().isdisjoint(values):
            return self
        return self._moved(values) or self._substituted(values)

    def _moved(self, values: Mapping[str, Affine | int]) -> Affine | None:
        """The expression where variables only grow by numbers, as in the copies of a loop's body, so that nothing is to be sorted; else None."""
        constant = self.constant
        for atom, coefficient in self.terms:
            if isinstance(atom, str):
                value = values.get(atom)
                if value is None:
                    continue
                if isinstance(value, int) or value.terms != ((atom, 1),):
                    return None
                constant += coefficient * value.constant
            elif not atom.variables().isdisjoint(values):
                return None
        made = Affine(self.terms, constant)
        _set_variables(made, self.variables())
        return made

    def _substituted(self, values: Mapping[str, Affine | int]) -> Affine:
        sums: dict[Atom, int] = {}
        constant = self.constant
        for atom, coefficient in self.terms:
            match atom:
                case str():
                    replaced = values.get(atom)
                    if replaced is None:
                        sums[atom] = sums.get(atom, 0) + coefficient
                        continue
                    term = affine(replaced)
                case FloorDiv():
                    term = atom.numerator.substitute(values) // atom.denominator
                case Extremum():
                    term = _extremum(atom.kind, [operand.substitute(values) for operand in atom.operands])
            constant += term.constant * coefficient
            for inner, factor in term.terms:
                sums[inner] = sums.get(inner, 0) + factor * coefficient
        return _from_terms(sums, constant)

    def replace(self, atom: Atom, value: Affine | int) -> Affine:
        """The expression with one of its own atoms replaced, where it stands in the sum (not inside of others)."""
        sums = dict(self.terms)
        coefficient = sums.pop(atom)
        if isinstance(value, int):
            return Affine(tuple(sums.items()), self.constant + coefficient * value)
        for inner, factor in value.terms:
            sums[inner] = sums.get(inner, 0) + factor * coefficient
        return _from_terms(sums, self.constant + coefficient * value.constant)

    # -- text -------------------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self._text(str)

    def nonnegative_text(self) -> str:
        """That it is at least 0, for people: `t <= 6`, `a + b >= 9`."""
        more = Affine(tuple((atom, c) for atom, c in self.terms if c > 0))
        less = Affine(tuple((atom, -c) for atom, c in self.terms if c < 0))
        return f"{more} >= {less - self.constant}" if more.terms else f"{less} <= {self.constant}"

    def isl_text(self) -> str:
        """The expression in isl's syntax: `floor((i + 3)/4)`. Extrema split a set into pieces: `between` says what bounds mean without them."""

        def atom_text(atom: Atom) -> str:
            match atom:
                case str():
                    return atom
                case FloorDiv():
                    return f"floor(({atom.numerator.isl_text()})/{atom.denominator})"
                case Extremum():
                    return f"{atom.kind}({', '.join(operand.isl_text() for operand in atom.operands)})"

        return self._text(atom_text)

    def _text(self, atom_text: object) -> str:
        assert callable(atom_text)
        parts: list[str] = []
        # Positive terms first: `N - i` reads better than `-i + N`.
        for atom, coefficient in sorted(self.terms, key=lambda term: term[1] < 0):
            magnitude = "" if abs(coefficient) == 1 else f"{abs(coefficient)}*"
            sign = "-" if coefficient < 0 else "+"
            text = atom_text(atom)
            if magnitude and text.startswith("(") and isinstance(atom, FloorDiv):
                text = f"({text})"  # 3*(i + 2)//3 would read as (3*(i + 2))//3
            parts.append((f" {sign} " if parts else ("-" if coefficient < 0 else "")) + magnitude + text)
        if self.constant or not parts:
            sign = "-" if self.constant < 0 else "+"
            parts.append(f" {sign} {abs(self.constant)}" if parts else str(self.constant))
        return "".join(parts)


def affine(value: str | int | Affine | FloorDiv | Extremum) -> Affine:
    """An `Affine` from a variable name, an integer, an atom, or itself."""
    if isinstance(value, Affine):
        return value
    if isinstance(value, int):
        return Affine((), value)
    return Affine(((value, 1),))


Extent = int | Affine
"""Of a dimension: a number, or an expression in symbolic sizes (which is never a constant one)."""


def extent_of(value: Extent) -> Extent:
    """The number, where it is one."""
    return value.constant if isinstance(value, Affine) and value.is_constant else value


def combine(op: str, left: Affine, right: Affine) -> Affine | None:
    """`left op right` for one of `+ - * // % **`; None when that is not quasi-affine (a product of variables, a divisor that is not a positive number, a power of one)."""
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*" if right.is_constant:
            return left * right.constant
        case "*" if left.is_constant:
            return right * left.constant
        case "//" if right.is_constant and right.constant > 0:
            return left // right.constant
        case "%" if right.is_constant and right.constant > 0:
            return left % right.constant
        case "**" if left.is_constant and right.is_constant and 0 <= right.constant < 64:  # beyond, no 64 bits hold it
            return affine(left.constant**right.constant)
        case _:
            return None


def weighted_sum(parts: Iterable[tuple[Affine, int]]) -> Affine:
    """The sum of expressions, each times a number: a place from subscripts and strides."""
    sums: dict[Atom, int] = {}
    constant = 0
    for value, factor in parts:
        constant += value.constant * factor
        for atom, coefficient in value.terms:
            sums[atom] = sums.get(atom, 0) + coefficient * factor
    return _from_terms(sums, constant)


def minimum(operands: Iterable[Affine]) -> Affine:
    """The smallest of one or more expressions, simplified where constants decide."""
    return _extremum("min", list(operands))


def maximum(operands: Iterable[Affine]) -> Affine:
    """The largest of one or more expressions, simplified where constants decide."""
    return _extremum("max", list(operands))


def operands(value: Affine, kind: str) -> tuple[Affine, ...]:
    """The operands of an extremum that the value is (with a constant added, it is added to each), or the value."""
    if len(value.terms) == 1 and value.terms[0][1] == 1:
        atom = value.terms[0][0]
        if isinstance(atom, Extremum) and atom.kind == kind:
            return tuple(operand + value.constant for operand in atom.operands)
    return (value,)


def between(variable: str, first: Affine, end: Affine) -> str:
    """`first <= variable < end` in isl's syntax: what is the largest of several, or less than the smallest, is bounded by each, so that the set is one convex piece."""
    low = [f"{bound.isl_text()} <= {variable}" for bound in operands(first, "max")]
    return " and ".join([*low, *(f"{variable} < {bound.isl_text()}" for bound in operands(end, "min"))])


def _extremum(kind: Literal["min", "max"], operands: list[Affine]) -> Affine:
    choose = min if kind == "min" else max
    by_terms: dict[tuple[tuple[Atom, int], ...], int] = {}
    for operand in operands:
        known = by_terms.get(operand.terms)
        by_terms[operand.terms] = operand.constant if known is None else choose(known, operand.constant)
    distinct = sorted((Affine(terms, constant) for terms, constant in by_terms.items()), key=str)
    return distinct[0] if len(distinct) == 1 else affine(Extremum(kind, tuple(distinct)))


def _from_terms(sums: Mapping[Atom, int], constant: int) -> Affine:
    terms = [term for term in sums.items() if term[1]]
    if len(terms) > 1:
        try:
            terms.sort()  # by name, where all atoms are variables: several times as fast
        except TypeError:
            terms.sort(key=lambda term: str(term[0]))
    return Affine(tuple(terms), constant)
