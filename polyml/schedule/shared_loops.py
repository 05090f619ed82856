"""One loop for many statements, an index of each, that no dependence runs against: so that it may be tiled, and its tiles go above whatever order there is."""

from __future__ import annotations

from collections.abc import Mapping

import islpy as isl

from polyml.expressions import variables_in
from polyml.records import dataclass
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.spaces import maps_of

__all__ = ["Order", "assign"]


@dataclass(frozen=True, slots=True)
class _Edge:
    """Dependences between two statements."""

    relation: isl.Map
    source: str
    sink: str


class Order:
    """Asks isl which way dependences point along pairs of indices, each pair once."""

    def __init__(self, scop: Scop, dependences: Dependences) -> None:
        maps = maps_of(dependences.validity.union(dependences.reduction))
        ends = (isl.dim_type.in_, isl.dim_type.out)
        self.edges = [_Edge(m, *(str(m.get_tuple_name(end)) for end in ends)) for m in maps]
        self.positions = {name: {index: d for d, index in enumerate(s.indices)} for name, s in scop.statements.items()}
        self.known: dict[tuple[int, str, str], bool] = {}

    def forwards(self, chosen: Mapping[str, str], newest: str) -> bool:
        """Whether no dependence between the newest statement and those chosen goes to a smaller value."""
        for number, edge in enumerate(self.edges):
            if newest in (edge.source, edge.sink) and edge.source in chosen and edge.sink in chosen:
                key = (number, chosen[edge.source], chosen[edge.sink])
                if key not in self.known:
                    source, sink = self._positions(edge, chosen)
                    backwards = edge.relation.order_gt(isl.dim_type.in_, source, isl.dim_type.out, sink)
                    self.known[key] = backwards.is_empty()
                if not self.known[key]:
                    return False
        return True

    def stays(self, chosen: Mapping[str, str]) -> bool:
        """Whether no dependence between those chosen goes to a larger value."""
        for edge in self.edges:
            if edge.source in chosen and edge.sink in chosen:
                source, sink = self._positions(edge, chosen)
                if not edge.relation.order_lt(isl.dim_type.in_, source, isl.dim_type.out, sink).is_empty():
                    return False
        return True

    def _positions(self, edge: _Edge, chosen: Mapping[str, str]) -> tuple[int, int]:
        return self.positions[edge.source][chosen[edge.source]], self.positions[edge.sink][chosen[edge.sink]]


def assign(scop: Scop, order: Order, core: str, index: str, *, summed: bool = False) -> dict[str, str] | None:
    """An index per statement, of the core the given one, such that no dependence goes to a smaller value; None when there are none.

    Args:
        summed: the core sums over the index, and others rather stand at what they sum over than at what they write.
    """
    if not order.forwards({core: index}, core):
        return None
    return _complete(scop, order, {core: index}, core, summed)


def _complete(scop: Scop, order: Order, chosen: dict[str, str], core: str, summed: bool) -> dict[str, str] | None:
    """The statements that are left get the first of their indices that fits, backtracking."""
    statement = next((s for name, s in scop.statements.items() if name not in chosen), None)
    if statement is None:
        return chosen
    for index in _candidates(scop, statement, core, chosen[core], summed):
        trial = {**chosen, statement.name: index}
        if order.forwards(trial, statement.name):
            complete = _complete(scop, order, trial, core, summed)
            if complete is not None:
                return complete
    return None


def _candidates(scop: Scop, statement: Statement, core: str, wanted: str, summed: bool) -> list[str]:
    """The statement's indices, the likeliest first: what it sums over, or what stands where the core has its index in what both write."""
    target = scop.statements[core].target
    written = variables_in(statement.target.subscripts)
    likely: list[str] = []
    if summed:
        likely = [index for index in statement.indices if index not in written]
    elif statement.target.array == target.array:
        for a, b in zip(target.subscripts, statement.target.subscripts, strict=True):
            if isinstance(a, Affine) and isinstance(b, Affine) and a.name == wanted and b.name in statement.indices:
                likely.append(b.name or "")
    return list(dict.fromkeys([*likely, *statement.indices]))
