"""Reductions whose ranges grow along a dimension of the result go on from the element before: running sums, products and extrema.

    y[n, m] = sum_{k <= m} x[n, k]     =>     y[n, 0] = x[n, 0];  y[n, m] = y[n, m - 1] + x[n, m]   for m in order

Where the terms do not depend on m, and those of m - 1 are among those of m, what is left to add is the difference of the two sets, which isl computes: one term (`k <= m`, `k < m`), none (`2*k <= m`), several (`k <= 2*m`), or a
reduction that may be a running one itself (`i <= n, j <= m`: summed-area tables). Ranges that shrink (`k >= m`) are gone through from the end. All differences together are the terms of the last element, so that there is never more to do
than before. No inverse is taken: nothing cancels, and NaN and infinity spread as they did.

Source: Gautam and Rajopadhye, "Simplifying reductions" (POPL 2006): reuse along a direction that leaves the terms alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, map_reads, substitute
from polyml.graph.builder.parts import fill, variables_of
from polyml.graph.edit import protected_names
from polyml.graph.elements import all_elements
from polyml.graph.flow import iterations_of
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.reuse.inline import is_elementwise, read_through
from polyml.graph.traverse import all_ops, read_names, tensors_of
from polyml.new_names import fresh_name
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.from_isl import affine_of, constraints_of

__all__ = ["run_reductions"]

LEAST_STEPS = 8
"""Along the dimension, if that is known. Measured: with 6 both take as long, whatever the other dimensions are; with lanes along it 4 are up to twice as quick as a loop, 12 half as quick."""

_OPERATIONS = 100_000
"""isl's operations for the questions about one equation."""


def run_reductions(graph: Graph, *, precise: bool = False) -> Graph:
    """The graph with such reductions as loops. precise: those alone that round nothing."""
    run = _Rewriter(graph, precise)
    ops = run.changed(graph.ops, graph.context)
    return graph if ops is graph.ops else replace(graph, ops=ops)


class _Rewriter:
    def __init__(self, graph: Graph, precise: bool) -> None:
        self.precise = precise
        self.tensors = tensors_of(graph)
        self.protected = protected_names(graph)
        self.users: dict[str, int] = {}
        self.makers: dict[str, Equation] = {}
        for op in all_ops(graph.ops):
            for name in read_names(op):
                self.users[name] = self.users.get(name, 0) + 1

    def changed(self, ops: tuple[Op, ...], known: isl.Set) -> tuple[Op, ...]:
        made: list[Op] = []
        for op in ops:
            match op:
                case Loop():
                    outside, self.makers = self.makers, {}
                    body = self.changed(op.body, known.intersect(iterations_of([op])))
                    self.makers = outside
                    made.append(op if body is op.body else replace(op, body=body))
                case Equation():
                    made += self.running(op, known) or self.beside(op, known) or [op]
                    self.note(op)
                case _:
                    made.append(op)
        return renewed(ops, made)

    def note(self, equation: Equation) -> None:
        """Keeps in mind what only one equation reads, for which it need not be in memory."""
        name = equation.result.name
        if is_elementwise(equation) and name not in self.protected and self.users.get(name) == 1:
            self.makers[name] = equation

    def running(self, equation: Equation, known: isl.Set, done: frozenset[str] = frozenset()) -> list[Op] | None:
        """The equation's ops, if it is such a reduction along one of its dimensions, those done apart."""
        reduce, dtype = equation.reduce, equation.result.dtype
        if reduce is None or REDUCTIONS[reduce].combine is None or not equation.is_plain:
            return None
        if equation.base is not None or equation.instances is not None or equation.accumulate or not equation.reduced:
            return None
        rounds = reduce in ("sum", "prod") and not dtype.is_integer
        if (rounds and self.precise) or equation.apart:
            return None
        used = variables_of(equation.body)
        for position, index in enumerate(equation.left):
            extent = equation.result.shape[position]
            if index in used | done or (extent.is_constant and extent.constant < LEAST_STEPS):
                continue
            try:
                with operation_budget(_OPERATIONS, phase="running reductions"):
                    growth = _growth(equation, position, known)
                    if growth is not None:
                        return self.loop(equation, growth, known, done | {index})
            except BudgetExhausted:
                pass
        return None

    def beside(self, equation: Equation, known: isl.Set) -> list[Op] | None:
        """The ops of an equation that writes into a tensor or adds to it, of which the reductions run in a tensor of their own."""
        base, left = equation.base, equation.left
        if base is None or not equation.reduced or equation.only_if is not None:
            return None
        if not all(isinstance(place, Affine) for place in equation.target):
            return None
        shape = _box(equation)
        if shape is None:
            return None
        result = self.tensor(replace(equation.result, shape=shape))
        plain = tuple(map(affine, left))
        alone = replace(
            equation,
            result=result,
            domain=equation.domain.set_tuple_name(result.name),
            target=plain,
            accumulate=False,
            base=None,
            instances=None,
        )
        ops = self.running(alone, known)
        if ops is None:
            return None
        points = equation.instances
        if points is None:
            points = equation.domain.project_out(isl.dim_type.set, len(left), len(equation.reduced))
        value: Expr = Read(result.name, plain, result.dtype)
        if equation.accumulate:
            combine = REDUCTIONS[equation.reduce or ""].combine
            assert combine is not None, "internal: a reduction that combines pairs"
            value = Apply(combine, (Read(base.name, equation.target, base.dtype), value), base.dtype)
        written = replace(
            equation,
            indices=left,
            domain=points.set_tuple_name(equation.result.name),
            body=value,
            reduce=None,
            reduced=(),
            accumulate=False,
            instances=None,
            padded=False,
        )
        return [*ops, written]

    def loop(self, equation: Equation, growth: _Growth, known: isl.Set, done: frozenset[str]) -> list[Op]:
        """What the first element is, and the loop over the others. done: dimensions of what is computed ahead that nothing runs along."""
        result, left = equation.result, equation.left
        indices = {*equation.indices} - {growth.index}
        equation = replace(equation, body=map_reads(equation.body, lambda read: self.made(read, indices)))
        identity = Const(_identity(equation), result.dtype)
        all_terms = _Terms.of(equation, growth.first.union(growth.others).coalesce())
        others = _Terms.of(equation, growth.others)
        ops: list[Op] = []
        first = _Terms.of(equation, growth.first)
        term = others.term(growth.later, identity)
        if term is None:
            # What is added is computed ahead, the first element with it.
            ahead = self.tensor(result)
            added = all_terms.equation(equation, ahead, None)
            ops += self.running(added, known, done) or [added]
            term = Read(ahead.name, tuple(map(affine, left)), ahead.dtype)
            first = _Terms(left, (), growth.start, term)
        start = self.tensor(result)
        ops.append(fill(start, identity, equation.span))
        if not first.points.is_empty():
            begun = self.tensor(result)
            ops.append(first.equation(equation, begun, start))
            start = begun
        inner, after = self.tensor(result), self.tensor(result)
        before = Read(inner.name, tuple(affine(i) - growth.step * (i == growth.index) for i in left), result.dtype)
        combine = REDUCTIONS[equation.reduce or ""].combine
        assert combine is not None, "internal: a reduction that combines pairs"
        step = Equation(
            result=after,
            indices=tuple(i for i in left if i != growth.index),
            domain=_within_loop(growth.later, growth.index, left, after.name),
            target=tuple(map(affine, left)),
            body=Apply(combine, (before, term), result.dtype),
            base=inner,
            span=equation.span,
        )
        extent = result.shape[left.index(growth.index)]
        begin, end = (affine(1), extent) if growth.step > 0 else (extent - 2, affine(-1))
        carried = (Carried(start, inner, after, result),)
        ops.append(Loop(variable=growth.index, start=begin, stop=end, step=growth.step, body=(step,), carried=carried))
        return ops

    def tensor(self, like: Tensor) -> Tensor:
        made = replace(like, name=fresh_name(like.name, self.tensors))
        self.tensors[made.name] = made
        return made

    def made(self, read: Read, indices: set[str]) -> Expr:
        """The element as it is made, where nothing else reads it and each is used once now, by one point over these indices."""
        maker = self.makers.get(read.tensor)
        if maker is None or not indices <= variables_of(read):
            return read
        through = read_through(maker, read)
        return read if through is None else through


def _box(equation: Equation) -> tuple[Affine, ...] | None:
    """The shape of a tensor that has an element for each point of the left side; None where that is no affine one."""
    shape: list[Affine] = []
    for position in range(len(equation.left)):
        limits = equation.domain.dim_min(position), equation.domain.dim_max(position)
        if not all(limit.n_piece() == 1 for limit in limits):
            return None
        first, last = (affine_of(limit.get_pieces()[0][1], ()) for limit in limits)
        if not first.is_constant or first.constant < 0:
            return None
        shape.append(last + 1)
    return tuple(shape)


def _identity(equation: Equation) -> int | float | bool:
    value = REDUCTIONS[equation.reduce or ""].identity(equation.result.dtype)
    assert value is not None, "internal: a reduction without an identity"
    return value


@dataclass(frozen=True, slots=True)
class _Growth:
    """A dimension along which an equation's terms grow.

    index: of the left side; step: 1, or -1 from the last element on. start, later: the points of the left side where that begins, and the others. first, others: terms there, and what is added by each of the others, over all indices.
    """

    index: str
    step: int
    start: isl.Set
    later: isl.Set
    first: isl.Set
    others: isl.Set


def _growth(equation: Equation, position: int, known: isl.Set) -> _Growth | None:
    """How the terms grow along a dimension; None where they do not, or are the same everywhere."""
    domain = equation.domain.reset_tuple_id().intersect_params(known)
    whole = all_elements(equation.result).intersect_params(known)
    count = len(equation.reduced)
    everywhere = whole.add_dims(isl.dim_type.set, count)
    for step in (1, -1):
        earlier = _moved(domain, position, step).intersect(everywhere)
        if not earlier.is_subset(domain):
            continue
        later = whole.intersect(_moved(whole, position, step))
        start = whole.subtract(later)
        others = domain.subtract(earlier).intersect(later.add_dims(isl.dim_type.set, count)).coalesce()
        first = domain.intersect(start.add_dims(isl.dim_type.set, count)).coalesce()
        if others.is_empty():
            return None
        return _Growth(equation.left[position], step, start, later, first, others)
    return None


def _moved(points: isl.Set, position: int, step: int) -> isl.Set:
    """The points, each so many places further along a dimension."""
    names = [f"e{d}" for d in range(points.dim(isl.dim_type.set))]
    places = [f"{name} + {step}" if d == position else name for d, name in enumerate(names)]
    return points.apply(isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(places)}] }}"))


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of a reduction, with indices that others determine put in terms of these. points: over `left`, the indices of the left side, and `reduced`."""

    left: tuple[str, ...]
    reduced: tuple[str, ...]
    points: isl.Set
    body: Expr

    @staticmethod
    def of(equation: Equation, points: isl.Set) -> _Terms:
        """Those of an equation at some of its points."""
        names, count = list(equation.indices), len(equation.left)
        body = equation.body
        while (found := _determined(points, names, count)) is not None:
            position, value = found
            body = substitute(body, {names.pop(position): value})
            points = points.project_out(isl.dim_type.set, position, 1).coalesce()
        return _Terms(equation.left, tuple(names[count:]), points, body)

    def equation(self, like: Equation, result: Tensor, base: Tensor | None) -> Equation:
        """The sum of the terms at each point that has one. Without a base it is the identity elsewhere."""
        reduce = like.reduce if self.reduced or base is None else None
        if base is None and not self.reduced and _is_whole(self.points, result):
            reduce = None
        return replace(
            like,
            result=result,
            indices=(*self.left, *self.reduced),
            domain=self.points.set_tuple_name(result.name),
            body=self.body,
            reduce=reduce,
            reduced=self.reduced,
            base=base,
            padded=False,
        )

    def term(self, points: isl.Set, identity: Const) -> Expr | None:
        """The one term that each of these points of the left side has, or the identity; None where some have several, or which of them have one is no simple condition."""
        if self.reduced:
            return None
        if points.is_subset(self.points):
            return self.body
        condition = _condition(self.points.gist(points), self.left)
        return None if condition is None else Apply("select", (condition, self.body, identity), identity.dtype)


def _determined(points: isl.Set, names: Sequence[str], count: int) -> tuple[int, Affine] | None:
    """The last index behind so many that others determine: its place and its value."""
    if points.is_empty():
        return None
    equalities = [c for c in points.affine_hull().get_constraints() if c.is_equality()]
    for position in reversed(range(count, len(names))):
        for constraint in equalities:
            factor = constraint.get_coefficient_val(isl.dim_type.set, position).to_python()
            function = constraint.get_aff()
            quotients = range(function.dim(isl.dim_type.div))
            if factor and all(function.get_coefficient_val(isl.dim_type.div, d).is_zero() for d in quotients):
                others = affine_of(function, names) - affine(names[position]) * factor
                # Where it is no whole number there are no points.
                return position, (others * (-1 if factor > 0 else 1)) // abs(factor)
    return None


def _condition(points: isl.Set, names: Sequence[str]) -> Expr | None:
    """That a point, over these indices, is among them."""
    pieces = points.compute_divs().get_basic_sets()
    if len(pieces) != 1:
        return None
    condition: Expr | None = None
    for constraint in constraints_of(pieces[0], names):
        value = IndexValue(constraint.value, i64)
        holds = Apply("eq" if constraint.equality else "ge", (value, Const(0, i64)), boolean)
        condition = holds if condition is None else Apply("and", (condition, holds), boolean)
    return condition


def _is_whole(points: isl.Set, result: Tensor) -> bool:
    """Whether the points are all elements."""
    return bool(all_elements(result).intersect_params(points.params()).is_subset(points))


def _within_loop(points: isl.Set, index: str, left: Sequence[str], name: str) -> isl.Set:
    """The points of an iteration, whose value is a parameter then."""
    position = left.index(index)
    named = points.set_dim_name(isl.dim_type.set, position, index)
    moved = named.move_dims(isl.dim_type.param, named.dim(isl.dim_type.param), isl.dim_type.set, position, 1)
    return moved.set_tuple_name(name)
