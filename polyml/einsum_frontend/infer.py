"""Index ranges (docs/language.md, "Index ranges"): stated, else plain, else by rounds (last over what stands under conditions on values); exact, by integer sets where arithmetic does not do.

Sizes are numbers here; loop variables and `int` parameters that stay symbolic are variables with a range of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import islpy as isl

from polyml.einsum_frontend.proofs import Avoid, nothing
from polyml.einsum_frontend.quasi_affine import Names, nodes, to_affine
from polyml.einsum_frontend.ranges import Range, Use, box_range, interval, plain_name
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    Number,
    Reducer,
    SizeRef,
    Subscript,
)
from polyml.einsum_frontend.walk import index_names
from polyml.errors import ShapeError, UnboundedDomainError
from polyml.records import dataclass, replace
from polyml.sets.affine import Affine, Extent, affine, extent_of
from polyml.sets.spaces import parameters_text
from polyml.source import Span

__all__ = ["Inferred", "infer_ranges"]


@dataclass(frozen=True, slots=True)
class Inferred:
    """assumed: expressions in symbolic sizes that are at least 0 where the ranges hold."""

    ranges: Mapping[str, Range]
    warnings: tuple[str, ...]
    assumed: tuple[Affine, ...] = ()


def infer_ranges(
    value: Expression,
    indices: Sequence[str],
    own: Sequence[Use],
    uses: Sequence[Use],
    names: Names,
    outer: Mapping[str, Range],
    span: Span,
    symbolic: Collection[str] = (),
    avoid: Avoid = nothing,
    guards: Sequence[Expression] = (),
) -> Inferred:
    """The range of every index of one statement.

    Args:
        indices: all of them, as in the text. own: the subscripts of the left side where the tensor exists already.
        uses: all other subscripts, those inside gathered left ones included. outer: loop variables and symbolic sizes.
        symbolic: those of them that are sizes. avoid: takes for granted that some of their values do not occur.
        guards: the conditions of the enclosing `if`s.

    Raises:
        ShapeError: extents of one index differ, or no value fits. UnboundedDomainError: a range follows from nothing, or has gaps.
    """
    ranges = _stated(value, names, outer)
    guarded = frozenset[str]().union(*map(index_names, guards))
    for use in own:
        if isinstance(use.expression, IndexRef):
            variable = _variable(use.expression.name, names)
            ranges.setdefault(use.expression.name, box_range(variable, 0, use.extent))
    assumed = _plain(ranges, [*own, *uses], names, guarded)
    warnings: list[str] = []
    certain = [use for use in (*own, *uses) if use.under == "nothing"]
    by_values = [use for use in (*own, *uses) if use.under != "indices"]
    while missing := [name for name in indices if name not in ranges]:
        known = (ranges, frozenset(missing), names, outer, span, assumed, symbolic, avoid, guarded)
        found = _round(certain, *known) or _under_ifs(guards, missing, names, outer) or _around(uses, missing, names)
        found = found or _round(by_values, *known)
        if not found:
            raise UnboundedDomainError(
                f"the range of {' and '.join(map(plain_name, missing))} follows from nothing",
                span=span,
                hint=_rebound(value, missing) or _declared(missing, guarded),
            )
        for name, fitting in found.items():
            if fitting.exact and fitting.low is not None and fitting.high == fitting.low + 1:
                warnings.append(f"{span}: the inferred range of {plain_name(name)} is the single value {fitting.low}")
        ranges.update(found)
    return Inferred(ranges, tuple(warnings), tuple(assumed))


def _around(uses: Sequence[Use], missing: Collection[str], names: Names) -> dict[str, Range]:
    """`x[(i + 1) % N]` goes round a whole dimension: i has its range, where nothing else gives one."""
    found: dict[str, dict[Extent, None]] = {}
    for use in uses:
        match use.expression:
            case Binary(op="%", left=place, right=bound) if any(isinstance(n, SizeRef) for n in nodes(bound)):
                within = index_names(place) & frozenset(missing)
                value, stop = to_affine(place, names), to_affine(bound, names)
                if len(within) == 1 and value is not None and stop is not None and stop == affine(use.extent):
                    (name,) = within
                    if value.stride(_variable(name, names)) in (1, -1):
                        found.setdefault(name, {})[use.extent] = None
            case _:
                pass
    return {n: box_range(_variable(n, names), 0, next(iter(e))) for n, e in found.items() if len(e) == 1}


def _declared(missing: Sequence[str], guarded: Collection[str]) -> str:
    """What gives these indices ranges."""
    restricted = [plain_name(name) for name in missing if name in guarded]
    if restricted:
        first = restricted[0]
        return f"an `if` gives {' and '.join(restricted)} no upper bound that is known (`if {first} < 4:`): state one, or declare the left side with its shape"
    return "declare the left side with its shape, or state a condition in a reducer, e.g. sum[k, k < 3](..)"


def _rebound(value: Expression, missing: Collection[str]) -> str | None:
    """A hint where a reducer binds an index that is written like one of these."""
    for reducer in (n for n in nodes(value) if isinstance(n, Reducer)):
        for item in reducer.items:
            if isinstance(item, IndexRef) and item.name not in missing:
                at = item.span
                written = at.source.line(at.line)[at.column : at.end_column]
                if written in map(plain_name, missing):
                    return f"the {written} of {reducer.kind}[{written}](..) is another one and ends with it: leave {written} out on the left side, or rename one of the two"
    return None


def _variable(name: str, names: Names) -> str:
    found = names.indices[name].name
    assert found is not None, "internal: an index stands for a variable"
    return found


def _stated(value: Expression, names: Names, outer: Mapping[str, Range]) -> dict[str, Range]:
    """Ranges from `r < e`, `r <= e`, `0 <= r < e` in the reducer that binds r, where e has numbers, sizes and loop variables only."""
    found: dict[str, Range] = {}
    for reducer in (n for n in nodes(value) if isinstance(n, Reducer) and not n.implied):
        own = {item.name for item in reducer.items if isinstance(item, IndexRef)}
        for item in reducer.items:
            _state(found, item, own, names, outer)
    return found


def _state(
    found: dict[str, Range], condition: Expression, indices: Collection[str], names: Names, outer: Mapping[str, Range]
) -> None:
    """Adds the range that a condition states, where it is smaller than the one before."""
    match condition:
        case (
            Compare(operands=(IndexRef(name=r), bound), ops=("<" | "<=" as op,))
            | Compare(operands=(Number(value=0), IndexRef(name=r), bound), ops=("<=", "<" | "<=" as op))
        ) if r in indices and all(not isinstance(n, IndexRef | Subscript | Reducer | Call) for n in nodes(bound)):
            stop = to_affine(bound, names)
            if stop is None:
                return
            stated = _below(_variable(r, names), stop + (1 if op == "<=" else 0), outer)
            before = found.get(r)
            if before is None or not (before.exact and stated.exact) or (stated.high or 0) < (before.high or 0):
                found[r] = stated
        case _:
            pass


def _under_ifs(
    guards: Sequence[Expression], missing: Collection[str], names: Names, outer: Mapping[str, Range]
) -> dict[str, Range]:
    """The ranges that the enclosing `if`s state, for indices whose ranges nothing else gives."""
    found: dict[str, Range] = {}
    for guard in guards:
        for condition in guard.operands if isinstance(guard, Boolean) and guard.op == "and" else (guard,):
            match condition:
                case Compare(operands=(_, IndexRef() as index, bound), ops=("<" | "<=", "<" | "<=" as op)):
                    condition = replace(condition, operands=(index, bound), ops=(op,))
                case _:
                    pass
            _state(found, condition, missing, names, outer)
    return found


def _below(variable: str, stop: Affine, outer: Mapping[str, Range]) -> Range:
    if stop.is_constant:
        return box_range(variable, 0, max(0, stop.constant))
    _, greatest = interval(stop, outer)
    return Range(
        variable, f"0 <= {variable} < {stop.isl_text()}", 0, None if greatest is None else max(0, greatest), False
    )


def _plain(ranges: dict[str, Range], uses: Sequence[Use], names: Names, guarded: Collection[str]) -> list[Affine]:
    """Rule 2: adds the ranges of indices that stand plainly in a subscript, and compares all their extents; those in symbolic sizes are assumed to be
    equal, which it returns. An index that an `if` restricts runs over the longest dimension: what the `if` leaves of it is proved to be in the others."""
    free: dict[str, dict[Extent, Use]] = {}
    restricted: dict[str, dict[Extent, Use]] = {}
    assumed: list[Affine] = []
    for use in uses:
        if isinstance(use.expression, IndexRef):
            name = use.expression.name
            group = restricted if name in use.restricting else free
            group.setdefault(name, {}).setdefault(use.extent, use)
    for name in sorted({*free, *restricted}):
        found = free.get(name) or restricted[name]
        extents = list(found.values())
        differences = [affine(use.extent) - affine(extents[0].extent) for use in extents[1:]]
        compared = name in free or name not in ranges
        longest = _longest(found) if name in guarded and name not in free else None
        if longest is not None:
            compared = False
            found = {longest: found[longest]}
        if compared and not any(difference.is_constant for difference in differences):
            assumed += [value for difference in differences for value in (difference, -difference)]
        elif compared and differences:
            raise ShapeError(
                f"the index {plain_name(name)} runs over dimensions of different extents: "
                + " and ".join(map(str, found)),
                span=extents[-1].expression.span,
                hint=f"the first of them is {extents[0].expression.span}{_part_of(plain_name(name), found)}",
            )
        if name not in ranges:
            ranges[name] = box_range(_variable(name, names), 0, next(iter(found)))
    return assumed


def _part_of(name: str, extents: Collection[Extent]) -> str:
    """What to write where the index is to run over a part of the longer dimension, unless that part is empty; the dots stand for one that depends on sizes."""
    if 0 in extents:
        return ""
    shortest = str(min(e for e in extents if isinstance(e, int))) if not _symbolic(extents) else ".."
    return f"; where {name} is to run over a part of the longer one, put the statement under `if {name} < {shortest}:`, or the size that is so large"


def _longest(extents: Collection[Extent]) -> Extent | None:
    """The extent that is no shorter than any other whatever the sizes; None where that depends on them."""

    def is_never_negative(value: Affine) -> bool:
        return value.is_linear and value.constant >= 0 and all(coefficient > 0 for _, coefficient in value.terms)

    return next(
        (e for e in extents if all(is_never_negative(affine(e) - affine(other)) for other in extents)),
        None,
    )


def _symbolic(extents: Iterable[Extent]) -> bool:
    return any(isinstance(extent, Affine) for extent in extents)


def _round(
    uses: Sequence[Use],
    ranges: Mapping[str, Range],
    missing: frozenset[str],
    names: Names,
    outer: Mapping[str, Range],
    span: Span,
    assumed: list[Affine],
    symbolic: Collection[str],
    avoid: Avoid,
    guarded: Collection[str],
) -> dict[str, Range]:
    """Rule 3, one round: for each unbounded index the values that keep every subscript with it alone unbounded in bounds; only an index that an `if` restricts may have none."""
    fitting: dict[str, list[Use]] = {}
    for use in uses:
        if use.value is None:
            continue
        here = index_names(use.expression) & missing
        if len(here) == 1:
            fitting.setdefault(next(iter(here)), []).append(use)
    inner = {r.name: r for r in ranges.values()}
    found: dict[str, Range] = {}
    for name in sorted(fitting):
        variable = _variable(name, names)
        adopted = _by_arithmetic(variable, fitting[name], inner)
        if adopted is None and _symbolic(use.extent for use in fitting[name]):
            adopted = _by_symbols(variable, fitting[name], inner, assumed)
        adopted = adopted or _by_sets(
            variable, fitting[name], inner, outer, span, symbolic, avoid, may_be_empty=name in guarded
        )
        if adopted is None:
            continue
        empty = adopted.exact and adopted.may_be_empty and all(use.extent != 0 for use in fitting[name])
        if empty and name not in guarded and not _never(outer):
            raise ShapeError(
                f"no value of {plain_name(name)} keeps every subscript in bounds",
                span=fitting[name][0].expression.span,
                hint="the tensors are too small for each other, or a subscript needs another offset",
            )
        found[name] = adopted
    return found


def _by_arithmetic(variable: str, uses: Sequence[Use], known: Mapping[str, Range]) -> Range | None:
    """The common case, linear subscripts in indices whose ranges are numbers; None when it is not that (loop variables are parameters)."""
    low, high = 0, None
    for use in uses:
        assert use.value is not None, "internal: a gather bounds no index"
        if isinstance(use.extent, Affine):
            return None
        factor = use.value.stride(variable)
        others = use.value - affine(variable) * (factor or 0)
        if not factor or any(name not in known or known[name].may_be_empty for name in others.variables()):
            return None
        if any(not isinstance(atom, str) for atom, _ in others.terms):
            return None
        least, greatest = interval(others, known)
        assert least is not None, "internal: exact ranges have numbers"
        assert greatest is not None, "internal: exact ranges have numbers"
        if factor < 0:
            factor, least, greatest = -factor, use.extent - 1 - greatest, use.extent - 1 - least
            # extent - 1 - s is in bounds exactly when s is.
        low = max(low, -(least // factor))
        top = (use.extent - 1 - greatest) // factor
        high = top if high is None else min(high, top)
    return None if high is None else box_range(variable, low, max(low, high + 1))


def _by_symbols(variable: str, uses: Sequence[Use], inner: Mapping[str, Range], assumed: list[Affine]) -> Range | None:
    """Extents in symbolic sizes: one subscript `factor * variable + others`, factor > 0, whose others start at 0. Every range is assumed not to be empty.

    None when it is not that.
    """
    tops: dict[Affine, list[Affine]] = {}
    for use in uses:
        assert use.value is not None, "internal: a gather bounds no index"
        factor = use.value.stride(variable)
        if not factor or factor < 0:
            return None
        greatest, needs = affine(use.extent) - 1, [affine(use.extent) - 1]
        for atom, stride in (use.value - affine(variable) * factor).terms:
            found = inner.get(atom) if isinstance(atom, str) else None
            if found is None or found.extent is None or stride < 0:
                return None
            greatest -= (affine(found.extent) - 1) * stride
            needs.append(affine(found.extent) - 1)
        if use.value.constant:
            return None
        tops[greatest // factor] = [*needs, greatest]
    if len(tops) > 1:
        return None
    ((top, needs),) = tops.items()
    if any(value.is_constant and value.constant < 0 for value in needs):
        return None  # some range is empty
    assumed += [value for value in needs if not value.is_constant]
    return box_range(variable, 0, extent_of(top + 1))


def _never(outer: Mapping[str, Range]) -> bool:
    """Whether a loop around has no iteration, so that nothing has to fit."""
    names = sorted(outer)
    context = " and ".join(outer[name].constraint or "true" for name in names) or "true"
    return bool(isl.Set(f"{parameters_text(names)}{{ : {context} }}").is_empty())


def _or_zero(values: Range, head: str, position: int, rank: int) -> isl.Set:
    """The values as dimension `position` of `rank` ones; 0 where there are none: sizes count as 1 at least."""
    own = isl.Set(f"{head}{{ [{values.name}] : {values.constraint or 'true'} }}")
    own = own.union(isl.Set(f"{head}{{ [0] }}").intersect_params(own.params().complement()))
    return own.insert_dims(isl.dim_type.set, 0, position).add_dims(isl.dim_type.set, rank - position - 1)


def _by_sets(
    variable: str,
    uses: Sequence[Use],
    inner: Mapping[str, Range],
    outer_ranges: Mapping[str, Range],
    span: Span,
    symbolic: Collection[str],
    avoid: Avoid,
    *,
    may_be_empty: bool,
) -> Range | None:
    """The general case, by integer sets; None when the values are not bounded. Symbolic sizes for which an inner range is empty, or this one where it must not be, are avoided.

    Raises:
        UnboundedDomainError: the values have gaps.
    """
    known = {**inner, **outer_ranges}
    head = parameters_text(sorted(outer_ranges))
    context = [known[name].constraint or "true" for name in sorted(outer_ranges)]
    others = _others(variable, uses, inner)
    good = _in_bounds(variable, uses, others, known, head, context)
    if symbolic:
        possible = _possible([n for n in others if not known[n].exact], known, head, context, avoid)
        good = good.intersect_params(possible)
        loops = [k for k, name in enumerate(sorted(outer_ranges)) if name not in symbolic]
        varies = any(good.involves_dims(isl.dim_type.param, k, 1) for k in loops)
        must = not varies and not may_be_empty and all(use.extent != 0 for use in uses)
        if must and not avoid(possible.subtract(good.params())):
            return box_range(variable, 0, 0)
    good = good.coalesce()
    if not good.is_bounded():
        return None
    between = isl.Map(f"{head}{{ [[a'] -> [b']] -> [c'] : a' < c' < b' }}")
    if not good.product(good).apply(between).subtract(good).is_empty():
        raise UnboundedDomainError(
            f"the values of {variable} that keep every subscript in bounds have gaps",
            span=span,
            hint="declare the left side, or state the range as a condition",
        )
    return _range_of(variable, good, head, context)


def _others(variable: str, uses: Sequence[Use], inner: Mapping[str, Range]) -> list[str]:
    """The inner indices that stand beside it in subscripts."""
    involved = frozenset().union(*(use.value.variables() for use in uses if use.value is not None)) - {variable}
    return sorted(involved & inner.keys())


def _in_bounds(
    variable: str,
    uses: Sequence[Use],
    others: Sequence[str],
    known: Mapping[str, Range],
    head: str,
    context: Sequence[str],
) -> isl.Set:
    """The values from 0 on that keep every subscript in bounds, whatever the other indices are."""
    good = isl.Set(f"{head}{{ [{variable}] : {' and '.join([f'{variable} >= 0', *context])} }}")
    for use in uses:
        assert use.value is not None, "internal: a gather bounds no index"
        text = use.value.isl_text()
        outside = f"{text} < 0 or {text} >= {affine(use.extent).isl_text()}"
        bad = isl.Set(f"{head}{{ [{', '.join([variable, *others])}] : {outside} }}")
        for position, name in enumerate(others, 1):
            bad = bad.intersect(_or_zero(known[name], head, position, len(others) + 1))
        good = good.subtract(bad.project_out(isl.dim_type.set, 1, len(others)))
    return good


def _possible(
    names: Sequence[str], known: Mapping[str, Range], head: str, context: Sequence[str], avoid: Avoid
) -> isl.Set:
    """The symbolic sizes for which none of these ranges is empty, as far as the others can be avoided."""
    possible = isl.Set(f"{head}{{ : {' and '.join(context)} }}")
    for name in names:
        lacking = possible.subtract(isl.Set(f"{head}{{ [{name}] : {known[name].constraint} }}").params())
        possible = possible.subtract(lacking) if avoid(lacking) else possible
    return possible


def _range_of(variable: str, good: isl.Set, head: str, context: Sequence[str]) -> Range:
    """The range of bounded values without gaps: a box where it is the same for all sizes and outer indices."""
    pieces = [str(piece).partition(":")[2].rpartition("}")[0].strip() for piece in good.get_basic_sets()]
    flat = good.project_out(isl.dim_type.param, 0, good.dim(isl.dim_type.param))
    if flat.is_empty():
        return box_range(variable, 0, 0)
    low, most = flat.dim_min_val(0).to_python(), flat.dim_max_val(0)
    if not most.is_int():  # it grows with a symbolic size
        return Range(variable, " or ".join(f"({piece})" for piece in pieces), low, None, False)
    high = most.to_python() + 1
    full = isl.Set(f"{head}{{ [{variable}] : {' and '.join([f'{low} <= {variable} < {high}', *context])} }}")
    if full.is_subset(good):
        return box_range(variable, low, high)
    return Range(variable, " or ".join(f"({piece})" for piece in pieces) if pieces else "false", low, high, False)
