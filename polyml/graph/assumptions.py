"""What stays symbolic in a build, and what is assumed of it: proofs that fail for some values of an `int` parameter, or for some sizes, make them conditions of the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import islpy as isl

from polyml.einsum_frontend.proofs import parameters
from polyml.einsum_frontend.ranges import Range
from polyml.errors import ShapeError
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.half_spaces import half_spaces, onto_parameters

__all__ = ["Assumptions"]


@dataclass(slots=True)
class Assumptions:
    """`sizes`: what stays symbolic; `extents`: those of them that are extents of arguments, each at least 1; the others are `int` parameters.
    `examples`: values of sizes in the call that the build is for. `assumed`: expressions in sizes that are at least 0 wherever the graph is used."""

    sizes: tuple[str, ...]
    extents: frozenset[str] = frozenset()
    examples: Mapping[str, int] = field(default_factory=dict)
    assumed: list[Affine] = field(default_factory=list)

    @property
    def size_ranges(self) -> tuple[Range, ...]:
        """The symbolic sizes; what is assumed stands with the last of them."""
        sizes = [self._size(name) for name in self.sizes]
        if self.assumed:
            known = [sizes[-1].constraint, *(f"{value.isl_text()} >= 0" for value in self.assumed)]
            sizes[-1] = replace(sizes[-1], constraint=" and ".join(filter(None, known)))
        return tuple(sizes)

    def _size(self, name: str) -> Range:
        """A symbolic size, between the numbers that assumptions name."""
        low, high = (1 if name in self.extents else None), None
        for value in self.assumed:
            factor = value.stride(name)
            if factor in (1, -1) and value == affine(name) * factor + value.constant:
                if factor == 1:
                    low = max(-value.constant, -value.constant if low is None else low)
                else:
                    high = min(value.constant + 1, value.constant + 1 if high is None else high)
        return Range(name, f"{name} >= 1" if name in self.extents else "", low, high, False)

    @property
    def ints(self) -> frozenset[str]:
        """The `int` parameters that stay symbolic."""
        return frozenset(self.sizes) - self.extents

    @property
    def known(self) -> isl.Set:
        """What holds of the symbolic sizes, as a set of parameters."""
        sizes = self.size_ranges
        return isl.Set(f"{parameters(sizes)}{{ : {' and '.join(r.constraint for r in sizes if r.constraint)} }}")

    def assume(self, values: Sequence[Affine]) -> None:
        """From here on each of the values, in symbolic sizes, is at least 0; who uses the graph checks it.

        Raises:
            ShapeError: it is not so for the `int` arguments of the call.
        """
        new = [value for value in dict.fromkeys(values) if value not in self.assumed]
        for value in new:
            names = value.variables()
            if names & self.ints and names <= self.examples.keys() and value.evaluate(self.examples) < 0:
                raise ShapeError(f"{value} is negative in this call, and is at least 0 in others")
        self.assumed += new

    def required(self) -> tuple[Affine, ...]:
        """What is assumed, without what another assumption says already."""
        least = {value.terms: min(v.constant for v in self.assumed if v.terms == value.terms) for value in self.assumed}
        return tuple(Affine(terms, constant) for terms, constant in least.items())

    def agree(self, difference: Affine) -> bool:
        """Assumes that the expression is 0, if it has an `int` parameter."""
        if difference.variables().isdisjoint(self.ints):
            return False
        self.assume([difference, -difference])
        return True

    def avoid(self, points: isl.Set) -> bool:
        """Assumes of `int` parameters, or of sizes where there are none, what leaves nothing of `points`, whose dimensions and parameters are named after sizes, loop variables and indices.

        *Returns* whether that is possible.
        """
        if points.is_empty():
            return True
        found = half_spaces(onto_parameters(points, self.sizes), self.ints or self.extents, self.examples, self.known)
        if found is None:
            return False
        self.assume(found)
        return True

    def single_values(self) -> tuple[str, ...]:
        """The `int` parameters for which assumptions leave one number."""
        if not any(-value in self.assumed or value.variables() & self.ints for value in self.assumed):
            return ()
        known = self.known.detect_equalities()
        fixed = (known.plain_get_val_if_fixed(isl.dim_type.param, d).is_int() for d in range(len(self.sizes)))
        return tuple(name for name, single in zip(self.sizes, fixed, strict=True) if single and name in self.ints)
