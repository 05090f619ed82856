"""Instances of a scop's statements under names of their own, some of them one iteration of a loop later, with the dependences that they had.

Where parts of a statement run at different places (the first step ahead of a loop, what is left behind a sweep), each is a statement to the scheduler. Between the updates of one reduction nothing
becomes stricter by that, as it would if dependences were computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import substitute
from polyml.new_names import derived
from polyml.scop.dependences import Dependences
from polyml.scop.relations import rebuilt
from polyml.scop.scop import Access, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["Pieces"]


class Pieces:
    """Collects them. statements: by name."""

    def __init__(self, scop: Scop) -> None:
        self._scop = scop
        self._into = isl.UnionMap.empty(scop.context.get_space())
        self.statements: dict[str, Statement] = {}

    def add(self, s: Statement, instances: isl.Set, *, ending: str = "", late: str | None = None) -> list[str]:
        """Instances of the statement under its name with the ending. late: an index of which they are one later. *Returns* that name; none where there are no instances."""
        if instances.is_empty():
            return []
        name = derived(s.name, ending) if ending else s.name
        there = [f"{i} + 1" if i == late else i for i in s.indices]
        head = f"{parameters_text(self._scop.sizes)}{{ {s.name}[{', '.join(s.indices)}]"
        into = isl.Map(f"{head} -> {name}[{', '.join(there)}] }}").intersect_domain(instances)
        domain = into.range().coalesce()
        for position, i in enumerate(s.indices):
            domain = domain.set_dim_name(isl.dim_type.set, position, i)
        made = replace(s, name=name, domain=domain)
        self.statements[name] = made if late is None else _earlier(made, late)
        self._into = self._into.union(into.to_union_map())
        return [name]

    def dependences(self, old: Dependences) -> Dependences:
        """Theirs, from those of the scop."""

        def both(relation: isl.UnionMap) -> isl.UnionMap:
            return relation.apply_domain(self._into).apply_range(self._into)

        return Dependences(
            flow=both(old.flow), anti=both(old.anti), output=both(old.output), reduction=both(old.reduction),
            live_in=old.live_in.apply_domain(self._into), live_out=old.live_out.apply_domain(self._into),
        )  # fmt: skip

    def scop(self, order: Sequence[str]) -> Scop:
        """The scop of all pieces; their written order is that of the instances."""
        ordered = replace(self._scop, initial=self._scop.initial.apply_domain(self._into))
        return rebuilt(ordered, {name: self.statements[name] for name in order}, self._scop.arrays)


def _earlier(s: Statement, index: str) -> Statement:
    """The statement with the iteration before in place of each one."""
    before = {index: affine(index) - 1}

    def moved(access: Access) -> Access:
        subscripts = (
            e.substitute(before) if isinstance(e, Affine) else substitute(e, before) for e in access.subscripts
        )
        return Access(access.array, tuple(subscripts))

    argument = None if s.argument is None else moved(s.argument)
    return replace(s, target=moved(s.target), argument=argument, value=substitute(s.value, before))
