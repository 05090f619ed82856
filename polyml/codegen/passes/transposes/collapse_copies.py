"""Panels copied along several loops that are one in memory: inside of the lanes these loops become one.

A panel of filters is copied from w[o, c, r, s], whose terms follow each other in both arrays: one row for each filter, of which blocks are transposed in registers (passes/transposes/transpose_copies.py). The loop over the three taps of a window's row
alone is no block, and each of its elements would be moved by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from polyml.codegen.loops import Assign, For, Function, Place, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.passes.vectors.streams import flat_element
from polyml.codegen.rewrite import variables_by_name
from polyml.expressions import Read, Subscript
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["collapse_copies"]


def collapse_copies(function: Function) -> Function:
    """The function with such loops as one.

    Rewrite:
        vector(16) for (o ..) for (c = 0; c < 512; c++) for (r = 0; r < 3; r++) for (s = 0; s < 3; s++) p[c, r, s, o] = w[o, c, r, s];
        -> vector(16) for (o ..) for (k = 0; k < 4608; k++) p[k//9, k//3 % 3, k % 3, o] = w[o, k//9, k//3 % 3, k % 3];
    """
    collapse = _Collapse(variables_by_name(function), names_in(function))
    return map_loops(function, lambda loop, *_: collapse.collapsed(loop) if loop.kind == "vector" else None)


@dataclass(frozen=True, slots=True)
class _Collapse:
    variables: Mapping[str, Variable]
    taken: set[str]

    def collapsed(self, lanes: For) -> For | None:
        """The vector loop with its innermost loops as one, as far as they are one in memory; None where there are no such."""
        nest = [lanes]
        while len(nest[-1].body) == 1 and isinstance(inner := nest[-1].body[0], For):
            nest.append(inner)
        move = nest[-1].body[0]
        if len(nest) < 3 or len(nest[-1].body) > 1 or not isinstance(move, Assign) or not isinstance(move.value, Read):
            return None
        target = self.variables.get(move.target.variable)
        if target is None or target.scope != "local" or move.reduction or move.scan:
            return None
        to, of = (
            self.flat(*place)
            for place in ((target.name, move.target.subscripts), (move.value.tensor, move.value.subscripts))
        )
        if to is None or of is None or target.name == move.value.tensor:
            return None
        first = len(nest) - 1
        while first > 1 and self.follows(nest[first - 1], nest[first], (to, of)):
            first -= 1
        return self.rebuilt(nest[:first], nest[first:], move) if first < len(nest) - 1 else None

    def flat(self, name: str, subscripts: tuple[Subscript, ...]) -> Affine | None:
        variable = self.variables.get(name)
        if variable is None or variable.scope == "register" or variable.lanes != 1:
            return None
        return flat_element(variable, subscripts)

    def follows(self, outer: For, inner: For, sides: Sequence[Affine]) -> bool:
        """Whether an iteration of the outer loop goes on where the inner loop ends, in both arrays."""
        trips = _trips(inner)
        plain = all(loop.kind == "sequential" and loop.step == 1 for loop in (outer, inner)) and trips > 0
        plain = plain and outer.variable not in inner.lower.variables()  # nor in the upper bound, trips being a number
        steps = [(side.stride(outer.variable), side.stride(inner.variable)) for side in sides]
        return plain and all(a is not None and b and a == b * trips for a, b in steps)

    def rebuilt(self, around: Sequence[For], one: Sequence[For], move: Assign) -> For:
        name = fresh("term", self.taken)
        self.taken.add(name)
        trips = [_trips(loop) for loop in one[1:]]
        moved: dict[str, Affine] = {}
        for k, loop in enumerate(one):
            value = affine(name) // prod(trips[k:])
            if k:
                value = value - trips[k - 1] * (affine(name) // prod(trips[k - 1 :]))
            moved[loop.variable] = loop.lower + value
        assert isinstance(move.value, Read), "internal: a copy without a read"
        target = Place(move.target.variable, _substituted(move.target.subscripts, moved))
        source = replace(move.value, subscripts=_substituted(move.value.subscripts, moved))
        span = (one[0].upper - one[0].lower) * prod(trips)
        made = For(variable=name, lower=affine(0), upper=span, body=(replace(move, target=target, value=source),))
        for outer in reversed(around):
            made = replace(outer, body=(made,))
        return made


def _trips(loop: For) -> int:
    """0 where they are not known."""
    span = loop.upper - loop.lower
    return span.constant if span.is_constant else 0


def _substituted(subscripts: tuple[Subscript, ...], moved: Mapping[str, Affine]) -> tuple[Subscript, ...]:
    return tuple(s.substitute(moved) if isinstance(s, Affine) else s for s in subscripts)
