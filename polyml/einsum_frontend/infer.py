"""Index ranges (docs/language.md, "Index ranges"): stated, else plain, else by rounds (last over what stands under conditions on values); exact, by integer sets where arithmetic does not do.

Sizes are numbers here; loop variables and `int` parameters that stay symbolic are variables with a range of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import islpy as isl

from polyml.einsum_frontend.conditioned import (
    Conditions,
    check_first_values,
    conditions_of,
    range_of,
    stated,
    under_ifs,
    up_to_the_last,
)
from polyml.einsum_frontend.proofs import Avoid, nothing
from polyml.einsum_frontend.quasi_affine import Names, nodes, to_affine
from polyml.einsum_frontend.ranges import Range, Use, box_range, interval, plain_name, variable_of
from polyml.einsum_frontend.syntax import (
    Binary,
    Expression,
    IndexRef,
    Reducer,
    SizeRef,
)
from polyml.einsum_frontend.walk import index_names
from polyml.errors import ShapeError, UnboundedDomainError
from polyml.records import dataclass
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
    ranges = stated(value, names, outer)
    guarded = frozenset[str]().union(*map(index_names, guards))
    for use in own:
        if isinstance(use.expression, IndexRef):
            variable = variable_of(use.expression.name, names)
            ranges.setdefault(use.expression.name, box_range(variable, 0, use.extent))
    assumed = _plain(ranges, [*own, *uses], names, guarded)
    plain = {use.expression.name for use in (*own, *uses) if isinstance(use.expression, IndexRef)}
    check_first_values(value, guards, plain, names, avoid)
    conditions = conditions_of(value, guards)
    warnings: list[str] = []
    certain = [use for use in (*own, *uses) if use.under == "nothing"]
    by_values = [use for use in (*own, *uses) if use.under != "indices"]
    while missing := [name for name in indices if name not in ranges]:
        known = (ranges, frozenset(missing), names, outer, span, assumed, symbolic, avoid, guarded)
        found = _by_conditions(conditions, missing, ranges, names, outer)
        found = (
            found
            or _round(certain, *known)
            or under_ifs(guards, missing, names, outer)
            or _around(uses, missing, names)
        )
        found = found or _round(by_values, *known)
        if not found:
            first = next((n for n in nodes(value) if isinstance(n, IndexRef) and n.name in missing), None)
            raise UnboundedDomainError(
                f"the range of {' and '.join(map(plain_name, missing))} follows from nothing",
                span=span if first is None else first.span,
                hint=_rebound(value, missing) or _declared(missing, guarded),
            )
        for name, fitting in found.items():
            if fitting.exact and fitting.low is not None and fitting.high == fitting.low + 1:
                warnings.append(f"{span}: the inferred range of {plain_name(name)} is the single value {fitting.low}")
        ranges.update(found)
    return Inferred(ranges, tuple(warnings), tuple(assumed))


def _by_conditions(
    conditions: Conditions,
    missing: Collection[str],
    ranges: Mapping[str, Range],
    names: Names,
    outer: Mapping[str, Range],
) -> dict[str, Range]:
    """Of indices that a sum or another reducer goes over: up to the last value that the conditions leave."""
    found = {n: up_to_the_last(n, conditions, ranges, names, outer) for n in missing if n in conditions}
    return {name: values for name, values in found.items() if values is not None}


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
                    if value.stride(variable_of(name, names)) in (1, -1):
                        found.setdefault(name, {})[use.extent] = None
            case _:
                pass
    return {n: box_range(variable_of(n, names), 0, next(iter(e))) for n, e in found.items() if len(e) == 1}


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
            ranges[name] = box_range(variable_of(name, names), 0, next(iter(found)))
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
        variable = variable_of(name, names)
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
    return range_of(variable, good, head, context)


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
