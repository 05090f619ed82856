"""The interpreter's own ranges that conditions give, by trying values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from polyml.einsum_frontend.interpreter.affine import affine_value, condition_value
from polyml.einsum_frontend.interpreter.names import children, free_indices
from polyml.einsum_frontend.syntax import Binary, Boolean, Compare, Expression, IndexRef, Number, Reducer, SizeRef
from polyml.errors import ShapeError

__all__ = ["by_conditions", "check_first_values", "conditions_of"]

Conditions = Mapping[str, Sequence[Expression]]


def conditions_of(value: Expression, guards: Sequence[Expression]) -> Conditions:
    """The conditions that name an index which a reducer binds: its own, or the `if`s' where the sum is implied."""
    found: dict[str, list[Expression]] = {}
    for reducer in _reducers(value):
        conditions = guards if reducer.implied else [e for e in reducer.items if not isinstance(e, IndexRef)]
        for name in (item.name for item in reducer.items if isinstance(item, IndexRef)):
            if naming := [e for e in conditions if name in free_indices(e)]:
                found[name] = naming
    return found


def by_conditions(
    conditions: Conditions, missing: Collection[str], ranges: Mapping[str, range], values: Mapping[str, int]
) -> dict[str, range]:
    """The ranges up to the last value that conditions leave, where there is a last one."""
    found: dict[str, range] = {}
    for name in sorted(conditions.keys() & missing):
        usable = [e for e in conditions[name] if free_indices(e) <= {name, *ranges}]
        others = sorted(frozenset[str]().union(*map(free_indices, usable)) - {name})
        period = math.prod(_divisors(usable, values))
        limit = 1 + period * (2 + max((_farthest(e, {**values, name: 0}, ranges) for e in usable), default=0))
        spaces = [ranges[other] for other in others]
        left = [
            each
            for each in range(limit + period)
            if any(_hold(usable, {**values, name: each, **dict(zip(others, p, strict=True))}) for p in _points(spaces))
        ]
        if usable and not (left and left[-1] >= limit):
            found[name] = range(max(left, default=-1) + 1)
    return found


def _points(spaces: Sequence[range]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*spaces)


def _hold(conditions: Sequence[Expression], values: Mapping[str, int]) -> bool:
    return all(condition_value(e, values) for e in conditions)


def _farthest(condition: Expression, values: Mapping[str, int], ranges: Mapping[str, range]) -> int:
    """How far apart the sides of its comparisons are at most."""
    if not isinstance(condition, Compare):
        return max((_farthest(e, values, ranges) for e in children(condition)), default=0)
    names = sorted(free_indices(condition) - values.keys())
    spaces = [ranges.get(name) or range(1) for name in names]
    apart = 0
    for point in _points([range(s.start, s.stop, max(1, len(s) - 1)) for s in spaces]):  # affine: the ends are enough
        at = {**values, **dict(zip(names, point, strict=True))}
        sides = [affine_value(e, at) for e in condition.operands]
        apart = max(apart, *(abs(a - b) for a, b in itertools.pairwise(sides)))
    return apart


def _divisors(exprs: Sequence[Expression], values: Mapping[str, int]) -> Iterator[int]:
    for e in exprs:
        if isinstance(e, Binary) and e.op in ("//", "%"):
            yield abs(affine_value(e.right, values))
        yield from _divisors(children(e), values)


def check_first_values(
    value: Expression, guards: Sequence[Expression], plain: Collection[str], values: Mapping[str, int]
) -> None:
    """Refuses a condition that lets an index which stands in no subscript by itself begin below 0.

    Raises:
        ShapeError: `-1 <= r <= 1`.
    """
    items = [e for reducer in _reducers(value) for e in reducer.items if not isinstance(e, IndexRef)]
    for condition in (part for e in (*guards, *items) for part in _conjuncts(e)):
        if not isinstance(condition, Compare):
            continue
        for (a, b), op in zip(itertools.pairwise(condition.operands), condition.ops, strict=True):
            index, bound = (b, a) if op in ("<", "<=") else (a, b)
            if isinstance(index, IndexRef) and index.name not in plain and op[0] in "<>" and _is_fixed(bound):
                least = affine_value(bound, values) + (op in ("<", ">"))
                if least < 0:
                    raise ShapeError(f"{index.name} would begin at {least}", span=condition.span)


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Boolean) and condition.op == "and":
        for operand in condition.operands:
            yield from _conjuncts(operand)
    else:
        yield condition


def _is_fixed(expr: Expression) -> bool:
    """Whether only numbers and sizes occur."""
    return isinstance(expr, Number | SizeRef) or (bool(children(expr)) and all(map(_is_fixed, children(expr))))


def _reducers(expr: Expression) -> Iterator[Reducer]:
    if isinstance(expr, Reducer):
        yield expr
    for e in children(expr):
        yield from _reducers(e)
