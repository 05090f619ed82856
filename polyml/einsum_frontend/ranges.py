"""Ranges of variables, interval arithmetic over them, and the subscripts that ranges follow from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from polyml.einsum_frontend.quasi_affine import Names, nodes, to_affine
from polyml.einsum_frontend.syntax import (
    Call,
    Compare,
    Expression,
    IndexRef,
    Reducer,
    Subscript,
)
from polyml.einsum_frontend.walk import children, index_names
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extent, Extremum, FloorDiv

__all__ = ["Range", "Use", "bound_names", "box_range", "interval", "plain_name", "uses_of", "variable_of"]


Conditions: TypeAlias = Literal["nothing", "values", "indices"]


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one variable.

    constraint: they, as an isl constraint (over outer variables too); empty: no bound is known.
    low, high: least value and one past the greatest, over all values of the outer variables; None: not bounded by a number.
    exact: the values are low .. high - 1, whatever the outer variables.
    stop: the values are 0 .. stop - 1, for every value of the symbolic sizes in it.
    """

    name: str
    constraint: str
    low: int | None
    high: int | None
    exact: bool
    stop: Affine | None = None

    @property
    def extent(self) -> Extent | None:
        """How many values there are, where they are 0, 1, .. whatever the loop variables."""
        return self.high if self.exact and self.low == 0 else self.stop

    @property
    def may_be_empty(self) -> bool:
        return not self.exact or self.low is None or self.high is None or self.low >= self.high


@dataclass(frozen=True, slots=True)
class Use:
    """One subscript of one access: in bounds when 0 <= value < extent.

    expression, value: as written, and as index arithmetic (None: a gather). restricting: the indices that some condition on the way to the access names.
    under: what the conditions of the `where`s around it are about, those that it is a part of included.
    """

    expression: Expression
    value: Affine | None
    extent: Extent
    restricting: frozenset[str]
    under: Conditions = "nothing"


def box_range(name: str, low: int, high: Extent) -> Range:
    """low <= name < high."""
    if isinstance(high, Affine):
        return Range(name, f"{low} <= {name} < {high.isl_text()}", low, None, False, high if low == 0 else None)
    return Range(name, f"{low} <= {name} < {high}", low, high, True)


def interval(value: Affine, ranges: Mapping[str, Range]) -> tuple[int | None, int | None]:
    """The least and greatest value (inclusive) over the box of the variables' ranges; None where no number bounds it.

    An over-approximation for values in which one variable occurs twice; it is meant for non-empty ranges.
    """
    least: int | None = value.constant
    greatest: int | None = value.constant
    for atom, factor in value.terms:
        low, high = _atom_interval(atom, ranges)
        if factor < 0:
            low, high = high, low
        least = None if least is None or low is None else least + factor * low
        greatest = None if greatest is None or high is None else greatest + factor * high
    return least, greatest


def _atom_interval(atom: str | FloorDiv | Extremum, ranges: Mapping[str, Range]) -> tuple[int | None, int | None]:
    match atom:
        case str():
            found = ranges.get(atom)
            if found is None:
                return None, None
            return found.low, None if found.high is None else found.high - 1
        case FloorDiv():
            low, high = interval(atom.numerator, ranges)
            return (
                None if low is None else low // atom.denominator,
                None if high is None else high // atom.denominator,
            )
        case Extremum():
            ends = [interval(operand, ranges) for operand in atom.operands]
            lows, highs = [low for low, _ in ends if low is not None], [high for _, high in ends if high is not None]
            if atom.kind == "min":
                return (min(lows) if len(lows) == len(ends) else None), min(highs, default=None)
            return max(lows, default=None), (max(highs) if len(highs) == len(ends) else None)


def bound_names(value: Expression) -> list[tuple[Reducer, str]]:
    """The indices that reducers bind, with the reducer."""
    reducers = [n for n in nodes(value) if isinstance(n, Reducer)]
    return [(reducer, item.name) for reducer in reducers for item in reducer.items if isinstance(item, IndexRef)]


def uses_of(
    expr: Expression,
    names: Names,
    extents: Callable[[Subscript], Sequence[Extent]],
    restricting: frozenset[str] = frozenset(),
) -> list[Use]:
    """All subscripts of all accesses in an expression, in the order of the text."""
    found: list[Use] = []

    def visit(node: Expression, restricting: frozenset[str], under: Conditions) -> None:
        match node:
            case Subscript():
                for subscript, extent in zip(node.subscripts, extents(node), strict=True):
                    found.append(Use(subscript, to_affine(subscript, names), extent, restricting, under))
                    visit(subscript, restricting, under)
            case Call(function="where"):
                test, *values = node.args
                under = "indices" if under == "indices" or _restricts(test) else "values"
                visit(test, restricting, under)
                inside = restricting | index_names(test)
                for value in values:
                    visit(value, inside, under)
            case Reducer():
                conditions = [item for item in node.items if not isinstance(item, IndexRef)]
                visit(node.body, restricting.union(*map(index_names, conditions)), under)
            case _:
                for child in children(node):
                    visit(child, restricting, under)

    visit(expr, restricting, "nothing")
    return found


def _restricts(condition: Expression) -> bool:
    """Whether some comparison in it reads no tensor: it says where the accesses beside it are made, which values never do."""
    return any(isinstance(n, Compare) and not any(isinstance(m, Subscript) for m in nodes(n)) for n in nodes(condition))


def plain_name(name: str) -> str:
    """The user's name of an index that the resolver made unique."""
    return name.partition("@")[0]


def variable_of(name: str, names: Names) -> str:
    """The isl variable that an index stands for."""
    found = names.indices[name].name
    assert found is not None, "internal: an index stands for a variable"
    return found
