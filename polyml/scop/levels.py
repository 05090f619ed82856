"""Sequential loops as leading dimensions: from parameters of an equation's domain to indices of a statement's."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.sets.affine import Affine, affine, between, minimum, operands
from polyml.sets.spaces import parameters_text

__all__ = ["LoopLevel", "enter_loops"]


@dataclass(frozen=True, slots=True)
class LoopLevel:
    """An enclosing sequential loop: its index counts iterations from 0 when the step is not 1."""

    variable: str
    start: Affine
    stop: Affine
    step: int

    @property
    def value(self) -> Affine:
        """The source variable in terms of the index."""
        return affine(self.variable) if self.step == 1 else self.start + affine(self.variable) * self.step

    @property
    def bounds(self) -> str:
        if self.step == 1:
            return between(self.variable, self.start, self.stop)
        ends = operands(self.stop, "min" if self.step > 0 else "max")
        spans = [end - self.start if self.step > 0 else self.start - end for end in ends]
        count = minimum((span + (abs(self.step) - 1)) // abs(self.step) for span in spans)
        return between(self.variable, affine(0), count)


def enter_loops(domain: isl.Set, loops: Sequence[LoopLevel]) -> isl.Set:
    """Loop variables turned from parameters into leading dimensions (unnamed tuple), within the loops' bounds."""
    domain = domain.reset_tuple_id() if domain.has_tuple_id() else domain
    for position, level in enumerate(loops):
        found = domain.find_dim_by_name(isl.dim_type.param, level.variable)
        if found < 0:
            domain = domain.insert_dims(isl.dim_type.set, position, 1)
        else:
            domain = domain.move_dims(isl.dim_type.set, position, isl.dim_type.param, found, 1)
    if not loops:
        return domain
    count = domain.dim(isl.dim_type.set)
    dims = [level.variable for level in loops] + [f"x{d}'" for d in range(count - len(loops))]
    sizes = [domain.get_dim_name(isl.dim_type.param, d) for d in range(domain.dim(isl.dim_type.param))]
    known = sorted({v for level in loops for bound in (level.start, level.stop) for v in bound.variables()} - set(dims))
    head = parameters_text([*(s for s in sizes if s), *(k for k in known if k not in sizes)])
    if any(level.step != 1 for level in loops):
        values = [level.value.isl_text() for level in loops] + dims[len(loops) :]
        domain = domain.preimage_multi_aff(isl.MultiAff(f"{head}{{ [{', '.join(dims)}] -> [{', '.join(values)}] }}"))
    bounds = " and ".join(level.bounds for level in loops)
    return domain.intersect(isl.Set(f"{head}{{ [{', '.join(dims)}] : {bounds} }}"))
