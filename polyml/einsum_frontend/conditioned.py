"""Ranges that conditions give: those of reducers and of the `if`s around a statement."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import islpy as isl

from polyml.einsum_frontend.proofs import Avoid
from polyml.einsum_frontend.quasi_affine import Names, constraint_of, nodes, to_affine
from polyml.einsum_frontend.ranges import Range, bound_names, box_range, interval, plain_name, variable_of
from polyml.einsum_frontend.syntax import (
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    LoopRef,
    Number,
    Reducer,
    Subscript,
)
from polyml.einsum_frontend.walk import index_names
from polyml.errors import ShapeError
from polyml.records import replace
from polyml.sets.affine import Affine
from polyml.sets.spaces import parameters_text

__all__ = ["Conditions", "check_first_values", "conditions_of", "range_of", "stated", "under_ifs", "up_to_the_last"]

Conditions = Mapping[str, Sequence[Expression]]
"""By index that a sum or another reducer goes over, the conditions that name it."""


def stated(value: Expression, names: Names, outer: Mapping[str, Range]) -> dict[str, Range]:
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
            stated = _below(variable_of(r, names), stop + (1 if op == "<=" else 0), outer)
            before = found.get(r)
            if before is None or not (before.exact and stated.exact) or (stated.high or 0) < (before.high or 0):
                found[r] = stated
        case _:
            pass


def _below(variable: str, stop: Affine, outer: Mapping[str, Range]) -> Range:
    if stop.is_constant:
        return box_range(variable, 0, max(0, stop.constant))
    _, greatest = interval(stop, outer)
    return Range(
        variable, f"0 <= {variable} < {stop.isl_text()}", 0, None if greatest is None else max(0, greatest), False
    )


def under_ifs(
    guards: Sequence[Expression], missing: Collection[str], names: Names, outer: Mapping[str, Range]
) -> dict[str, Range]:
    """The ranges that the enclosing `if`s state, for indices whose ranges nothing else gives."""
    found: dict[str, Range] = {}
    for condition in (part for guard in guards for part in _conjuncts(guard)):
        match condition:
            case Compare(operands=(_, IndexRef() as index, bound), ops=("<" | "<=", "<" | "<=" as op)):
                condition = replace(condition, operands=(index, bound), ops=(op,))
            case _:
                pass
        _state(found, condition, missing, names, outer)
    return found


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Boolean) and condition.op == "and":
        for operand in condition.operands:
            yield from _conjuncts(operand)
    else:
        yield condition


def conditions_of(value: Expression, guards: Sequence[Expression]) -> Conditions:
    """Those of the reducer that binds the index; of an implied sum those of the enclosing `if`s."""
    found: dict[str, list[Expression]] = {}
    for reducer, name in bound_names(value):
        conditions = guards if reducer.implied else [e for e in reducer.items if not isinstance(e, IndexRef)]
        naming = [e for e in conditions if name in index_names(e)]
        if naming:
            found[name] = naming
    return found


def up_to_the_last(
    name: str, conditions: Conditions, ranges: Mapping[str, Range], names: Names, outer: Mapping[str, Range]
) -> Range | None:
    """The values of an index from 0 on up to the last that its conditions leave, of which those with other indices that have no range yet say nothing; None where there is no last one."""
    usable = [e for e in conditions[name] if index_names(e) <= {name, *ranges}]
    found = [constraint for e in usable if (constraint := constraint_of(e, names)) is not None]
    if not found:
        return None
    others = sorted(frozenset[str]().union(*map(index_names, usable)) - {name})
    variables = [variable_of(n, names) for n in (name, *others)]
    limits = [ranges[n].constraint or "true" for n in others]
    context = [outer[n].constraint or "true" for n in sorted(outer)]
    parts = [f"{variables[0]} >= 0", *context, *limits, *(constraint.text for constraint in found)]
    head = parameters_text(sorted(outer))
    text = f"{head}{{ [{', '.join(variables)}] : {' and '.join(f'({part})' for part in parts)} }}"
    left = isl.Set(text).project_out(isl.dim_type.set, 1, len(others))
    if not left.is_bounded():
        return None
    below = isl.Map(f"{{ [last'] -> [{variables[0]}] : 0 <= {variables[0]} <= last' }}")
    return range_of(variables[0], left.apply(below).coalesce(), head, context)


def check_first_values(
    value: Expression,
    guards: Sequence[Expression],
    plain: Collection[str],
    names: Names,
    avoid: Avoid,
) -> None:
    """Refuses a condition that lets an index begin below 0 (`-1 <= r <= 1`), of one that stands in no subscript by itself: no instance has r = -1.

    Raises:
        ShapeError: with the way out.
    """
    items = [e for n in nodes(value) if isinstance(n, Reducer) for e in n.items if not isinstance(e, IndexRef)]
    for condition in (part for e in (*guards, *items) for part in _conjuncts(e)):
        for index, bound, strict in _lower_bounds(condition):
            first = None if index.name in plain else to_affine(bound, names)
            if first is None or _never_negative(first + strict, avoid):
                continue
            name, least = plain_name(index.name), first + strict
            raise ShapeError(
                f"indices begin at 0, and this one of {name} would begin at {least}",
                span=condition.span,
                hint=f"count {name} from 0, and write {name} - {-least} in its place"
                if least.is_constant
                else f"count {name} from 0, and shift the subscripts: x[i + {name} - ..]",
            )


def _never_negative(value: Affine, avoid: Avoid) -> bool:
    if value.is_constant:
        return value.constant >= 0
    return avoid(isl.Set(f"{parameters_text(sorted(value.variables()))}{{ : {value.isl_text()} < 0 }}"))


def _lower_bounds(condition: Expression) -> Iterator[tuple[IndexRef, Expression, int]]:
    """(r, e, 1 where it is strict) for each `e <= r`, `e < r`, `r >= e`, `r > e` in it, where e has numbers and sizes only."""
    if not isinstance(condition, Compare):
        return
    for left, op, right in zip(condition.operands, condition.ops, condition.operands[1:], strict=False):
        index, bound = (right, left) if op in ("<", "<=") else (left, right)
        varies = any(isinstance(n, IndexRef | LoopRef | Subscript | Reducer | Call) for n in nodes(bound))
        if isinstance(index, IndexRef) and op in ("<", "<=", ">", ">=") and not varies:
            yield index, bound, int(op in ("<", ">"))


def range_of(variable: str, good: isl.Set, head: str, context: Sequence[str]) -> Range:
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
