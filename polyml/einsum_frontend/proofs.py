"""Proofs over index sets: subscripts in bounds, injective left sides, covered boxes, reducers with something to reduce.

Interval arithmetic settles the plain cases; isl decides the others exactly, and its sample point is the witness in the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.einsum_frontend.quasi_affine import Constraint
from polyml.einsum_frontend.ranges import Range, interval
from polyml.errors import BoundsError, ShapeError
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extent, affine
from polyml.sets.from_text import map_of, set_of
from polyml.sets.spaces import parameters_text
from polyml.source import Span

__all__ = [
    "Avoid",
    "Scope",
    "find_collision",
    "nothing",
    "parameters",
    "points_without_items",
    "prove_in_bounds",
    "prove_injective",
    "prove_not_empty",
    "witness",
]


Avoid = Callable[[isl.Set], bool]
"""Takes for granted that no point of a set occurs, if it can; the set's dimensions have the variables' names."""


def nothing(points: isl.Set) -> bool:
    """Takes nothing for granted."""
    return False


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that variables take where an expression stands: `outer` are loop variables and symbolic sizes (parameters of isl sets),
    `indices` the indices bound so far, `conditions` those of the enclosing `if`s, reducers and `where` branches."""

    outer: tuple[Range, ...]
    indices: tuple[Range, ...] = ()
    conditions: tuple[Constraint, ...] = ()

    def bind(self, ranges: Iterable[Range]) -> Scope:
        return replace(self, indices=(*self.indices, *ranges))

    def within(self, *conditions: Constraint | None) -> Scope:
        new = tuple(c for c in conditions if c is not None)
        return replace(self, conditions=(*self.conditions, *new)) if new else self

    @property
    def known(self) -> dict[str, Range]:
        """The range of every variable, by name."""
        return {r.name: r for r in (*self.outer, *self.indices)}

    def points(self, *constraints: str) -> isl.Set:
        """`{ [outer variables, indices] : ... }`, all variables as dimensions."""
        ranges = (*self.outer, *self.indices)
        return set_of(f"{{ [{', '.join(r.name for r in ranges)}]{self._where(ranges, constraints)} }}")

    def domain(self, name: str, indices: Sequence[str], *constraints: str) -> isl.Set:
        """`[outer] -> { name[indices] : ... }`: loop variables stay parameters without bounds; indices that are left out are projected out."""
        kept = [r for r in self.indices if r.name in indices]
        conditions = self._where(kept, constraints)
        used = set[str]().union(
            *(c.names for c in self.conditions), *map(_names, (*constraints, *(r.constraint for r in kept)))
        )
        hidden: list[Range] = []
        # Innermost first: what a range mentions is bound around it.
        for r in reversed(self.indices):
            if r not in kept and (r.name in used or r.may_be_empty):
                hidden.insert(0, r)
                used |= _names(r.constraint)
        if hidden:
            inside = " and ".join(["true", *(r.constraint for r in hidden if r.constraint)])
            conditions = f" : exists ({', '.join(r.name for r in hidden)} : {inside} and ({conditions[3:] or 'true'}))"
        return set_of(f"{parameters(self.outer)}{{ {name}[{', '.join(indices)}]{conditions} }}")

    def image(self, elements: Sequence[str], limits: Sequence[str]) -> isl.Set:
        """`[outer] -> { [elements] : limits at some point }`, within the outer variables' bounds."""
        body = " and ".join(["true", *limits]) + self._where((*self.outer, *self.indices), ()).replace(
            " : ", " and ", 1
        )
        names = [r.name for r in self.indices]
        inside = f"exists ({', '.join(names)} : {body})" if names else body
        return set_of(f"{parameters(self.outer)}{{ [{', '.join(elements)}] : {inside} }}")

    def _where(self, ranges: Iterable[Range], constraints: Iterable[str]) -> str:
        parts = [f"({r.constraint})" if not r.exact else r.constraint for r in ranges if r.constraint]
        parts += [f"({c.text})" for c in self.conditions]
        parts += [f"({c})" for c in constraints]
        return f" : {' and '.join(parts)}" if parts else ""

    @property
    def is_box(self) -> bool:
        """True when the indices run over a box of numbers that is not empty, without conditions."""
        return not self.conditions and not any(r.may_be_empty for r in self.indices)


def _names(constraint: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", constraint))


def parameters(ranges: Sequence[Range]) -> str:
    """`[t, T] -> `, the head of a set's text."""
    return parameters_text(r.name for r in ranges)


def prove_in_bounds(
    subscript: Affine,
    extent: Extent,
    scope: Scope,
    *,
    access: str,
    position: int,
    span: Span,
    known: Mapping[str, Range],
    avoid: Avoid = nothing,
) -> None:
    """0 <= subscript < extent for every point of the scope, or all that `avoid` leaves of it.

    Raises:
        BoundsError: with a witness instance.
    """
    low, high = interval(subscript, known)
    if low is not None and low >= 0 and high is not None and isinstance(extent, int) and high < extent:
        return
    text = subscript.isl_text()
    outside = scope.points(f"{text} < 0 or {text} >= {affine(extent).isl_text()}")
    if outside.is_empty() or avoid(outside):
        return
    values = witness(outside, scope)
    value = subscript.evaluate(values)
    where = _instance({name: v for name, v in values.items() if name in _relevant(subscript, scope)})
    raise BoundsError(
        f"subscript {position} of {access} leaves its dimension of {extent}: it is {value}{where}",
        span=span,
        hint=_inside(extent)
        if subscript.is_constant
        else "restrict the index by a condition in a reducer, an `if` or a `where`, or use pad(..)",
    )


def _inside(extent: Extent) -> str:
    """What to write in the place of a number that is no subscript of the dimension."""
    last = affine(extent) - 1
    return f"subscripts count from 0 to {last}, and none from the end: the last element is at {last}"


def prove_injective(target: Sequence[Affine], scope: Scope, *, name: str, span: Span, avoid: Avoid = nothing) -> None:
    """No two points of the scope (with equal outer variables) have one target element, or none of those that `avoid` leaves.

    Raises:
        ShapeError: with a witness pair.
    """
    pairs = _collisions(target, scope)
    if pairs is None or avoid(pairs.domain()):
        return
    first, second = _a_pair(pairs, scope)
    element = ", ".join(str(s.evaluate(first)) for s in target)
    raise ShapeError(
        f"`=` would write {name}[{element}] twice: for {_values(first)} and for {_values(second)}",
        span=span,
        hint="use `+=` to accumulate, or give each instance an element of its own",
    )


def find_collision(target: Sequence[Affine], scope: Scope) -> tuple[dict[str, int], dict[str, int]] | None:
    """Two points of the scope with equal outer variables and one target element, or None when there are none."""
    pairs = _collisions(target, scope)
    return None if pairs is None else _a_pair(pairs, scope)


def _collisions(target: Sequence[Affine], scope: Scope) -> isl.Map | None:
    """All such pairs; None when there are none."""
    if {r.name for r in scope.indices} <= {s.name for s in target}:
        return None
    names = [r.name for r in (*scope.outer, *scope.indices)]
    primed = {name: f"{name}'" for name in names}
    renamed = [s.substitute({old: affine(new) for old, new in primed.items()}) for s in target]
    same = [f"{a.isl_text()} = {b.isl_text()}" for a, b in zip(target, renamed, strict=True)]
    same += [f"{r.name} = {primed[r.name]}" for r in scope.outer]
    differ = " or ".join(f"{r.name} != {primed[r.name]}" for r in scope.indices)
    text = f"{{ [{', '.join(names)}] -> [{', '.join(primed.values())}] : {' and '.join([*same, f'({differ})'])} }}"
    points = scope.points()
    pairs = map_of(text).intersect_domain(points).intersect_range(points)
    return None if pairs.is_empty() else pairs


def _a_pair(pairs: isl.Map, scope: Scope) -> tuple[dict[str, int], dict[str, int]]:
    names = [r.name for r in (*scope.outer, *scope.indices)]
    pair = pairs.wrap().flatten().sample_point()
    numbers = [pair.get_coordinate_val(isl.dim_type.set, k).to_python() for k in range(2 * len(names))]
    return dict(zip(names, numbers, strict=False)), dict(zip(names, numbers[len(names) :], strict=True))


def prove_not_empty(outer: Scope, inner: Scope, *, kind: str, span: Span, avoid: Avoid = nothing) -> None:
    """Every point of `outer`, or that `avoid` leaves of it, has an item in `inner`, which binds more indices.

    Raises:
        ShapeError: with a witness instance.
    """
    lacking = points_without_items(outer, inner)
    if lacking is None or lacking.is_empty() or avoid(lacking):
        return
    where = _instance(witness(lacking, outer))
    raise ShapeError(
        f"{kind} has nothing to reduce{where}",
        span=span,
        hint="restrict the instances (`if`, `where`), or make sure that every one of them has an item",
    )


def points_without_items(outer: Scope, inner: Scope) -> isl.Set | None:
    """The points of `outer` over which `inner`, which binds more indices, has none; None when there are certainly no such points."""
    new = inner.indices[len(outer.indices) :]
    if len(inner.conditions) == len(outer.conditions) and not any(r.may_be_empty for r in new):
        return None
    points = inner.points()
    kept = len(outer.outer) + len(outer.indices)
    return outer.points().subtract(points.project_out(isl.dim_type.set, kept, len(new)))


def witness(points: isl.Set, scope: Scope) -> dict[str, int]:
    """One point of a non-empty set of `scope.points`, by variable."""
    point = points.sample_point()
    names = [r.name for r in (*scope.outer, *scope.indices)]
    return {n: point.get_coordinate_val(isl.dim_type.set, k).to_python() for k, n in enumerate(names)}


def _relevant(subscript: Affine, scope: Scope) -> set[str]:
    """The variables of a subscript, and those that conditions tie to them."""
    found = set(subscript.variables())
    for condition in scope.conditions:
        if condition.names & found:
            found |= condition.names
    return found


def _instance(values: Mapping[str, int]) -> str:
    return f" for {_values(values)}" if values else ""


def _values(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
