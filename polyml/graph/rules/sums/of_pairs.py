"""Reductions over pairs of indices, of which one goes as far as the other says, are reductions of running ones:

    s = sum[i, j, i < j](x[i] * y[j])      =>     t[j] = sum[i < j](x[i]);  s = sum[j](y[j] * t[j])
    s = max[i, j, i < j](x[j] - x[i])      =>     t[j] = min[i < j](x[i]);  s = max[j](x[j] - t[j])

What does not depend on the inner index leaves its reduction, and what is left grows along the outer one, so that each element goes on from the one before (running.py): there is as much to do as there are elements, not pairs. Of three indices in order each is reduced by itself.

Factors leave sums as they do elsewhere (factor.py). A difference is rounded behind the extremum in place of before, which is the same, as rounding keeps the order. But of infinities that met each other, which is no number, one may meet a finite number now: where the result is not finite, pairs are gone through
as they are written.

Source: Gautam and Rajopadhye, "Simplifying reductions" (POPL 2006): distributivity.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Expr, Read, factors_of, product_of
from polyml.graph.builder.parts import variables_of
from polyml.graph.edit import with_name
from polyml.graph.elements import all_elements
from polyml.graph.flow import iterations_of
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.sums.growth import growth_along
from polyml.graph.rules.windows.guarded import guarded
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.from_isl import affine_of

__all__ = ["reduce_pairs"]

LEAST = 8
"""Values of the outer index, if their number is known (running.py)."""

_OPERATIONS = 100_000
"""isl's operations for the questions about one equation."""


def reduce_pairs(graph: Graph, *, precise: bool = False) -> Graph:
    """The graph with such reductions one after the other. precise: those alone that round nothing."""
    work = _Pairs(graph, precise, tensors_of(graph))
    ops = work.changed(graph.ops, graph.context, inside=False)
    return graph if ops is graph.ops else replace(graph, ops=ops)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A body taken apart. inner: what is reduced first, and how; outer: what is reduced then, of what the first one's result is put in place."""

    reduce: str
    inner: Expr
    rest: tuple[Expr, ...] = ()
    around: Apply | None = None

    def outer(self, value: Expr) -> Expr:
        if self.around is None:
            return product_of((value, *self.rest))
        first, second = self.around.args
        return replace(self.around, args=(value, second) if first is self.inner else (first, value))


@dataclass(frozen=True, slots=True)
class _Pairs:
    graph: Graph
    precise: bool
    tensors: dict[str, Tensor]

    def changed(self, ops: tuple[Op, ...], known: isl.Set, inside: bool) -> tuple[Op, ...]:
        made: list[Op] = []
        for op in ops:
            match op:
                case Loop():
                    body = self.changed(op.body, known.intersect(iterations_of([op])), True)
                    made.append(op if body is op.body else replace(op, body=body))
                case Equation() if self.may(op):
                    try:
                        with operation_budget(_OPERATIONS, phase="reductions of pairs"):
                            made += self.apart(op, known, inside)
                    except BudgetExhausted:
                        made.append(op)
                case _:
                    made.append(op)
        return renewed(ops, made)

    def may(self, equation: Equation) -> bool:
        """Whether the equation is a reduction over several indices that the rule knows."""
        if equation.reduce not in ("sum", "max", "min") or len(equation.reduced) < 2 or not equation.is_plain:
            return False
        if equation.base is not None or equation.instances is not None or equation.accumulate or equation.apart:
            return False
        if equation.only_if is not None or equation.body.dtype.is_half:
            return False
        if not (equation.body.dtype.is_float or equation.body.dtype.is_integer):
            return False
        return not (self.precise and equation.reduce == "sum" and equation.body.dtype.is_float)

    def apart(self, equation: Equation, known: isl.Set, inside: bool) -> list[Equation]:
        """The equation, or what it becomes."""
        if equation.domain.n_basic_set() != 1 or equation.domain.is_box():
            return [equation]
        for reverse in (False, True):
            for index in equation.reduced:
                pair = self.split(equation, index, known, reverse)
                if pair is None:
                    continue
                inner, outer, exact = pair
                if exact:
                    return [*self.again(inner, known, inside), *self.again(outer, known, inside)]
                if inside or not self.all_met(outer, known):
                    continue
                result = self.tensor(equation.result, equation.result.shape)
                whole = Read(result.name, (), result.dtype)
                return [inner, with_name(outer, result), *guarded(equation, result, whole, self.graph, self.tensors)]
        return [equation]

    def again(self, equation: Equation, known: isl.Set, inside: bool) -> list[Equation]:
        return self.apart(equation, known, inside) if self.may(equation) else [equation]

    def split(
        self, equation: Equation, index: str, known: isl.Set, reverse: bool
    ) -> tuple[Equation, Equation, bool] | None:
        """The reduction over the index, which runs along another reduced one (reverse: from its end), the one of its results, and whether these are the same for all numbers; None where there is no such pair."""
        parts = _parts(equation, index)
        if parts is None:
            return None
        used = variables_of(parts.inner)
        kept = [i for i in equation.indices if i != index and (i in used or _tells(equation, i, index))]
        along = [i for i in kept if i in equation.reduced and i not in used]
        if not along:
            return None
        others = [place for place, i in enumerate(equation.indices) if i not in (index, *kept)]
        points, outer = _without(equation.domain, others), _without(equation.domain, [equation.indices.index(index)])
        order = [i for i in equation.indices if i in (index, *kept)]
        if order[-1] != index:  # reduced ones come last
            points = _last(points, order.index(index))
        shape = _box(points, len(kept))
        if shape is None or not all(n.variables() <= {*self.graph.sizes} for n in shape):
            return None
        partial = self.tensor(replace(equation.result, dtype=equation.body.dtype), shape)
        inner = replace(
            equation,
            result=partial,
            indices=(*kept, index),
            domain=points.set_tuple_name(partial.name),
            target=tuple(map(affine, kept)),
            body=parts.inner,
            reduce=parts.reduce,
            reduced=(index,),
            padded=False,
        )
        if not any(self.runs(inner, kept.index(i), known, reverse) for i in along):
            del self.tensors[partial.name]
            return None
        rest = tuple(i for i in equation.indices if i != index)
        read = Read(partial.name, tuple(map(affine, kept)), partial.dtype)
        total = replace(
            equation,
            indices=rest,
            domain=outer.set_tuple_name(equation.result.name),
            body=parts.outer(read),
            reduced=tuple(i for i in equation.reduced if i != index),
            padded=False,
        )
        both = _joined(inner, total, equation.indices)
        if not both.is_equal(equation.domain.reset_tuple_id()):
            del self.tensors[partial.name]
            return None
        return inner, total, parts.around is None

    def runs(self, inner: Equation, position: int, known: isl.Set, reverse: bool) -> bool:
        """Whether each of the inner reductions goes on from the one before."""
        extent = inner.result.shape[position]
        if extent.is_constant and extent.constant < LEAST:
            return False
        growth = growth_along(inner, position, known)
        return growth is not None and (growth.step < 0) is reverse

    def all_met(self, outer: Equation, known: isl.Set) -> bool:
        """Whether each element of the result has terms: without any it is infinite."""
        points = _without(outer.domain, range(len(outer.left), len(outer.indices)))
        return all_elements(outer.result).intersect_params(known).is_subset(points)

    def tensor(self, like: Tensor, shape: tuple[Affine, ...]) -> Tensor:
        made = replace(like, name=fresh_name(like.name, self.tensors), shape=shape)
        self.tensors[made.name] = made
        return made


def _parts(equation: Equation, index: str) -> _Parts | None:
    """What of the body is reduced over the index, whatever the others are; None where it is no part by itself."""
    body, reduce = equation.body, equation.reduce
    assert reduce is not None, "internal: no reduction"
    if reduce == "sum":
        factors = factors_of(body)
        inside = [f for f in factors if index in variables_of(f)]
        rest = tuple(f for f in factors if index not in variables_of(f))
        return _Parts(reduce, product_of(inside), rest) if inside else None
    if not isinstance(body, Apply) or body.op not in ("add", "sub") or not body.dtype.is_float:
        return None
    depends = [index in variables_of(arg) for arg in body.args]
    if all(depends) or not any(depends):
        return None
    place = depends.index(True)
    turned = body.op == "sub" and place == 1
    other = {"max": "min", "min": "max"}[reduce] if turned else reduce
    return _Parts(other, body.args[place], around=body)


def _tells(equation: Equation, one: str, other: str) -> bool:
    """Whether some condition is about both indices."""
    first, second = equation.indices.index(one), equation.indices.index(other)
    (piece,) = (equation.domain.get_basic_set_list().get_at(0),)
    return any(
        constraint.involves_dims(isl.dim_type.set, first, 1) and constraint.involves_dims(isl.dim_type.set, second, 1)
        for constraint in piece.get_constraints()
    )


def _without(points: isl.Set, places: list[int] | range) -> isl.Set:
    points = points.reset_tuple_id()
    for place in sorted(places, reverse=True):
        points = points.project_out(isl.dim_type.set, place, 1)
    return points


def _last(points: isl.Set, place: int) -> isl.Set:
    """The points, with one dimension behind the others."""
    names = [f"e{d}" for d in range(points.dim(isl.dim_type.set))]
    order = [*names[:place], *names[place + 1 :], names[place]]
    return points.apply(isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(order)}] }}"))


def _box(points: isl.Set, count: int) -> tuple[Affine, ...] | None:
    """How far the first dimensions go; None where that is no affine number, or they go below zero."""
    shape: list[Affine] = []
    for place in range(count):
        first, last = points.dim_min_val(place), points.dim_max(place)
        if not first.is_int() or first.to_python() < 0 or last.n_piece() != 1:
            return None
        shape.append(affine_of(last.get_pieces()[0][1], ()) + 1)
    return tuple(shape)


def _joined(inner: Equation, outer: Equation, indices: tuple[str, ...]) -> isl.Set:
    """The points over all indices that both reductions have."""
    found: isl.Set | None = None
    for part in (inner, outer):
        text = f"{{ [{', '.join(indices)}] -> [{', '.join(part.indices)}] }}"
        points = part.domain.reset_tuple_id().apply(isl.Map(text).reverse())
        found = points if found is None else found.intersect(points)
    assert found is not None, "internal: no parts"
    return found
