"""Elements that a mask of indices makes zero are neither made nor multiplied: scores of linear attention, decayed or within a window, which a tensor holds.

    s[i, j] = where(c, x[i, j], 0)                             s[i, j] = x[i, j]  where c
    y[i, d] = sum_j s[i, j] * v[j, d]                  =>      y[i, d] = sum_{j: c} s[i, j] * v[j, d]

Where the condition stands in the sum itself restrict.py does this. Only for masks that are no box, such as half of a square or a band of it: zeros around an image stay, so that windows are alike everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyml.expressions import Apply, Expr, IndexValue, Read, factors_of, plain_indices, substitute, walk
from polyml.graph.edit import protected_names
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.algebra.restrict import exact_condition, kept_where, restricted_to
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.traverse import all_ops, equation_reads, index_extents, read_names
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["skip_zeros"]

_LONG = 64
"""Rows of fewer elements are multiplied whole: their tiles are square rather than half of a square."""


def skip_zeros(graph: Graph) -> Graph:
    """The graph with such elements left out, where nothing but products in sums over their rows reads them."""
    kept = protected_names(graph)
    found = [_source(op) for op in graph.ops if isinstance(op, Equation) and op.result.name not in kept]
    sources = {source.equation.result.name: source for source in found if source is not None}
    if not sources:
        return graph
    outer = {id(op) for op in graph.ops}
    for op in all_ops(graph.ops):
        for name in sources.keys() & read_names(op).keys():
            is_sum = isinstance(op, Equation) and id(op) in outer and op.reduce == "sum"
            if not (is_sum and isinstance(op, Equation) and sources[name].is_factor(op)):
                del sources[name]
    changed = {id(source.equation): source.kept() for source in sources.values()}
    for op in graph.ops:
        names = sources.keys() & read_names(op).keys()
        if names and isinstance(op, Equation):
            conditions = [text for name in sorted(names) for text in sources[name].conditions(op)]
            changed[id(op)] = restricted_to(op, list(dict.fromkeys(conditions)))
    return replace(graph, ops=tuple(changed.get(id(op), op) for op in graph.ops)) if changed else graph


@dataclass(frozen=True, slots=True)
class _Source:
    """An equation of elements that are zero where the condition does not hold, and what they are where it does."""

    equation: Equation
    condition: Expr
    value: Expr

    def kept(self) -> Equation:
        """The elements that the mask leaves."""
        return restricted_to(replace(self.equation, body=self.value), [_text(self.condition)])

    def is_factor(self, total: Equation) -> bool:
        """Whether a sum reads the elements as factors of its terms alone, whole rows of some of them."""
        if total.base is not None or total.accumulate or not total.is_plain or total.instances is not None:
            return False
        name = self.equation.result.name
        reads = [read for read in equation_reads(total) if read.tensor == name]
        factors = list(self.factors(total))
        if len(factors) < len(reads):
            return False
        names = [set(plain_indices(read.subscripts)) for read in factors]
        return all(None not in n and len(n) == len(self.equation.indices) and n & {*total.reduced} for n in names)

    def factors(self, total: Equation) -> Iterator[Read]:
        """The reads of the elements that are factors of the sum's terms."""
        for factor in factors_of(total.body):
            while isinstance(factor, Apply) and factor.op == "cast" and factor.dtype.is_float:
                (factor,) = factor.args
            if isinstance(factor, Read) and factor.tensor == self.equation.result.name:
                yield factor

    def conditions(self, total: Equation) -> Iterator[str]:
        """The masks of these factors, over the sum's indices."""
        for read in self.factors(total):
            places = zip(self.equation.indices, plain_indices(read.subscripts), strict=True)
            values: Mapping[str, Affine | int] = {i: affine(place) for i, place in places if place is not None}
            yield _text(substitute(self.condition, values))


def _source(equation: Equation) -> _Source | None:
    if not is_elementwise(equation) or tuple(plain_indices(equation.target)) != equation.indices:
        return None
    masked = _masked(equation.body)
    if masked is None or exact_condition(masked[0]) is None:
        return None
    source = _Source(equation, *masked)
    names = {i for node in walk(masked[0]) if isinstance(node, IndexValue) for i in node.affine.variables()}
    extents = index_extents(equation)
    if not names <= extents.keys() or any(extents[i] < _LONG for i in names):
        return None
    points = source.kept().domain
    return source if points.n_basic_set() == 1 and not points.is_box() else None


def _masked(expr: Expr) -> tuple[Expr, Expr] | None:
    """The condition without which the expression is zero, and the expression where it holds."""
    match expr:
        case Apply(op="cast", args=(x,)) if expr.dtype.is_float and (inside := _masked(x)) is not None:
            return inside[0], Apply("cast", (inside[1],), expr.dtype)
        case _:
            return kept_where(expr, 0)


def _text(condition: Expr) -> str:
    text = exact_condition(condition)
    assert text is not None, "internal: a mask without a condition"
    return text
