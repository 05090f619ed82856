"""The interpreter's own index ranges, by trying values (docs/language.md, "Index ranges").

At concrete sizes the rule "the values of u for which the subscript is in bounds for every value of the others" can be executed as it is
written; no set algebra is shared with the compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from polyml.einsum_frontend.interpreter.affine import affine_value, has_reads
from polyml.einsum_frontend.interpreter.conditioned import by_conditions, check_first_values, conditions_of
from polyml.einsum_frontend.interpreter.names import children, free_indices
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    LoopRef,
    Number,
    Pad,
    Reducer,
    SizeRef,
    Subscript,
)
from polyml.errors import ShapeError, UnboundedDomainError
from polyml.records import dataclass
from polyml.source import Span

__all__ = ["infer_ranges"]

Extents = Callable[[str | Pad], tuple[int, ...]]


@dataclass(frozen=True)
class _Use:
    """One subscript of one access: in bounds when 0 <= subscript < extent.

    restricting: the indices that some condition on the way to the access names. nested: how it stands to the `where`s around it.
    """

    subscript: Expression
    extent: int
    restricting: frozenset[str]
    nested: Literal["outside", "by values", "by indices"]


def infer_ranges(
    value: Expression,
    left: tuple[Expression, ...],
    left_extents: tuple[int, ...] | None,
    guards: tuple[Expression, ...],
    extents: Extents,
    values: Mapping[str, int],
    span: Span,
) -> dict[str, range]:
    """The range of every index of one statement `target[left] = value` (resolved, implied sums explicit).

    Args:
        left_extents: shape of the target when it exists already, else None.
        guards: the conditions of the enclosing `if`s. extents: the shape of a tensor, or of a padded one.
        values: loop variables and sizes.

    Raises:
        ShapeError: extents of one index differ, or no value fits, whatever the loop variables. UnboundedDomainError: a range follows from nothing.
    """
    restricted = frozenset[str]().union(*(free_indices(g) for g in guards))
    uses = list(_uses(value, extents, restricted))
    for subscript in left:
        uses += _uses(subscript, extents, restricted)
    own = [_Use(s, d, restricted, "outside") for s, d in zip(left, left_extents or (), strict=left_extents is not None)]
    everything = frozenset(_all_indices(value)).union(*(_all_indices(s) for s in left))
    ranges = _stated(value, values)
    for use in own:
        if isinstance(use.subscript, IndexRef):
            ranges.setdefault(use.subscript.name, range(use.extent))
    _plain(ranges, [*own, *uses], restricted, span)
    varying = any(_has_loop(bound) for bound in _conditions(value))
    plain = {use.subscript.name for use in (*own, *uses) if isinstance(use.subscript, IndexRef)}
    check_first_values(value, guards, plain, values)
    conditions = conditions_of(value, guards)
    while missing := everything - set(ranges):
        certain = [use for use in (*own, *uses) if use.nested == "outside"]
        found = by_conditions(conditions, missing, ranges, values)
        found = found or _round(certain, ranges, missing, values, varying, restricted)
        found = found or _under_ifs(guards, missing, values) or _around(uses, missing, values)
        if not found:
            among = [use for use in (*own, *uses) if use.nested != "by indices"]
            found = _round(among, ranges, missing, values, varying, restricted)
        if not found:
            names = ", ".join(sorted(name.partition("@")[0] for name in missing))
            hint = "declare the left side, or state a condition in a reducer"
            raise UnboundedDomainError(f"the range of {names} follows from nothing", span=span, hint=hint)
        ranges.update(found)
    return ranges


def _all_indices(expr: Expression) -> Iterator[str]:
    if isinstance(expr, IndexRef):
        yield expr.name
    for e in children(expr):
        yield from _all_indices(e)


def _uses(
    expr: Expression,
    extents: Extents,
    restricting: frozenset[str],
    nested: Literal["outside", "by values", "by indices"] = "outside",
) -> Iterator[_Use]:
    match expr:
        case Subscript():
            for subscript, extent in zip(expr.subscripts, extents(expr.tensor), strict=True):
                yield _Use(subscript, extent, restricting, nested)
                yield from _uses(subscript, extents, restricting, nested)
        case Call(function="where"):
            test, *values = expr.args
            if nested != "by indices":
                nested = "by indices" if _compares_places(test) else "by values"
            yield from _uses(test, extents, restricting, nested)
            for e in values:
                yield from _uses(e, extents, restricting | free_indices(test), nested)
        case Reducer():
            conditions = [e for e in expr.items if not isinstance(e, IndexRef)]
            named = frozenset[str]().union(*(free_indices(c) for c in conditions))
            yield from _uses(expr.body, extents, restricting | named, nested)
        case _:
            for e in children(expr):
                yield from _uses(e, extents, restricting, nested)


def _compares_places(test: Expression) -> bool:
    """Whether it has a comparison of indices, loop variables and sizes alone."""
    if isinstance(test, Compare) and not has_reads(test):
        return True
    return any(map(_compares_places, children(test)))


def _stated(expr: Expression, values: Mapping[str, int]) -> dict[str, range]:
    """Ranges from `r < e`, `r <= e`, `0 <= r < e` in the reducer that binds r, where e has numbers, sizes and loop variables only."""
    found: dict[str, range] = {}
    for e in children(expr):
        found.update(_stated(e, values))
    if not isinstance(expr, Reducer) or expr.implied:
        return found
    own = {e.name for e in expr.items if isinstance(e, IndexRef)}
    for item in expr.items:
        _state(found, item, own, values)
    return found


def _state(found: dict[str, range], condition: Expression, indices: Collection[str], values: Mapping[str, int]) -> None:
    match condition:
        case (
            Compare(operands=(IndexRef(name=r), bound), ops=("<" | "<=" as op,))
            | Compare(operands=(Number(value=0), IndexRef(name=r), bound), ops=("<=", "<" | "<=" as op))
        ) if r in indices and _is_known(bound):
            stop = max(0, affine_value(bound, values) + (op == "<="))
            found[r] = range(min(stop, found[r].stop) if r in found else stop)
        case _:
            pass


def _under_ifs(guards: Iterable[Expression], missing: Collection[str], values: Mapping[str, int]) -> dict[str, range]:
    """What the enclosing `if`s state of indices whose ranges nothing else gives: r < e, lower bounds apart."""
    found: dict[str, range] = {}
    for guard in guards:
        for e in guard.operands if isinstance(guard, Boolean) and guard.op == "and" else (guard,):
            match e:
                case Compare(operands=(_, IndexRef() as index, bound), ops=("<" | "<=", "<" | "<=" as op)):
                    e = Compare((index, bound), (op,), e.span)
                case _:
                    pass
            _state(found, e, missing, values)
    return found


def _around(uses: Iterable[_Use], missing: Collection[str], values: Mapping[str, int]) -> dict[str, range]:
    """What `(i + 1) % N`, around a whole dimension of N, says of i, whose range nothing else gives."""
    found: dict[str, set[int]] = {}
    for use in uses:
        match use.subscript:
            case Binary(op="%", left=place, right=bound) if _has_size(bound) and not has_reads(use.subscript):
                within = free_indices(place) & frozenset(missing)
                if len(within) == 1 and affine_value(bound, values) == use.extent:
                    (name,) = within
                    others = dict.fromkeys(free_indices(place) - within, 0)
                    steps = [affine_value(place, {**values, **others, name: i}) for i in range(use.extent + 8)]
                    if {abs(b - a) for a, b in itertools.pairwise(steps)} == {1}:
                        found.setdefault(name, set()).add(use.extent)
            case _:
                pass
    return {name: range(min(extents)) for name, extents in found.items() if len(extents) == 1}


def _has_size(expr: Expression) -> bool:
    return isinstance(expr, SizeRef) or any(map(_has_size, children(expr)))


def _is_known(expr: Expression) -> bool:
    """Whether only numbers, sizes and loop variables occur."""
    if isinstance(expr, Number | SizeRef | LoopRef):
        return True
    below = children(expr)
    return bool(below) and not isinstance(expr, Subscript) and all(_is_known(e) for e in below)


def _plain(ranges: dict[str, range], uses: Iterable[_Use], guarded: frozenset[str], span: Span) -> None:
    """Rule 2: adds the ranges of indices that stand plainly in a subscript, and compares all their extents; an index that an `if` restricts runs over the longest."""
    free: dict[str, set[int]] = {}
    restricted: dict[str, set[int]] = {}
    for use in uses:
        if isinstance(use.subscript, IndexRef):
            name = use.subscript.name
            (restricted if name in use.restricting else free).setdefault(name, set()).add(use.extent)
    for name in sorted({*free, *restricted}):
        unequal = free.get(name, set()) if len(free.get(name, ())) > 1 else set()
        if name not in ranges and name not in free and name not in guarded and len(restricted[name]) > 1:
            unequal = restricted[name]
        if unequal:
            sizes = " and ".join(map(str, sorted(unequal)))
            raise ShapeError(f"the index {name.partition('@')[0]} runs over dimensions of {sizes}", span=span)
        if name not in ranges:
            ranges[name] = range(max(free.get(name) or restricted[name]))


def _has_loop(expr: Expression) -> bool:
    return isinstance(expr, LoopRef) or any(map(_has_loop, children(expr)))


def _conditions(expr: Expression) -> Iterator[Expression]:
    """The conditions of all reducers."""
    if isinstance(expr, Reducer):
        yield from (item for item in expr.items if not isinstance(item, IndexRef))
    for e in children(expr):
        yield from _conditions(e)


def _round(
    uses: Sequence[_Use],
    ranges: Mapping[str, range],
    missing: frozenset[str],
    values: Mapping[str, int],
    varying: bool,
    guarded: frozenset[str],
) -> dict[str, range]:
    """Rule 3, one round: for each unbounded index the values that keep every subscript with it alone unbounded in bounds.

    Args:
        varying: ranges may depend on loop variables: none may be left of them in some iterations. guarded: indices that an `if` restricts, of which none may be left either.
    """
    found: dict[str, range] = {}
    for name in sorted(missing):
        good: set[int] | None = None
        among: list[_Use] = []
        for use in uses:
            names = free_indices(use.subscript)
            if (
                name not in names
                or names & missing != {name}
                or has_reads(use.subscript)
                or _stays_inside(use.subscript)
            ):
                continue
            fitting = _fitting(name, use, sorted(names - {name}), ranges, values)
            if fitting is not None:
                good = fitting if good is None else good & fitting
                among.append(use)
        if good is None:
            continue
        if (
            not good
            and not varying
            and name not in guarded
            and all(use.extent and not _has_loop(use.subscript) for use in among)
        ):
            span = among[0].subscript.span
            raise ShapeError(f"no value of {name.partition('@')[0]} keeps every subscript in bounds", span=span)
        if good != set(range(min(good, default=0), max(good, default=-1) + 1)):
            raise UnboundedDomainError(f"the values of {name.partition('@')[0]} that stay in bounds have gaps")
        found[name] = range(min(good, default=0), max(good, default=-1) + 1)
    return found


def _fitting(
    name: str, use: _Use, others: Sequence[str], ranges: Mapping[str, range], values: Mapping[str, int]
) -> set[int] | None:
    """The values >= 0 of one index for which the subscript is in bounds for all values of the others; None when there is no bound."""
    if use.extent == 0:
        return set()
    spread = sum(abs(r.start) + abs(r.stop) for o in others for r in (ranges[o],)) + sum(map(abs, values.values()))
    scale = 1
    for number in _numbers(use.subscript):
        scale *= 1 + abs(number)
    limit = 1 + (use.extent + spread + 2) * scale
    points = list(itertools.product(*(ranges[o] or range(1) for o in others)))  # sizes count as >= 1 here
    good = set()
    for candidate in range(limit):
        at = dict(values)
        at[name] = candidate
        for point in points:
            at.update(zip(others, point, strict=True))
            if not 0 <= affine_value(use.subscript, at) < use.extent:
                break
        else:
            good.add(candidate)
    return None if limit - 1 in good else good


def _stays_inside(expr: Expression) -> bool:
    """Whether `min` or `max` keeps it there: it gives no range."""
    return isinstance(expr, Call) or any(map(_stays_inside, children(expr)))


def _numbers(expr: Expression) -> Iterator[int]:
    if isinstance(expr, Number):
        yield int(expr.value)
    for e in children(expr):
        yield from _numbers(e)
