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
from math import inf, nan

import islpy as isl

from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Expr, Read, map_reads, reads_of, substitute
from polyml.graph.builder.parts import fill, variables_of
from polyml.graph.edit import protected_names, with_name
from polyml.graph.elements import are_apart
from polyml.graph.flow import iterations_of
from polyml.graph.ir import Carried, Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.algebra.simplify import simplify_expression
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.rules.reuse.inline import is_elementwise, read_through
from polyml.graph.rules.sums.decays import decay_of
from polyml.graph.rules.sums.growth import Growth, Terms, growth_along
from polyml.graph.rules.sums.winners import winners
from polyml.graph.rules.windows.guarded import guarded
from polyml.graph.traverse import all_ops, read_names, tensors_of
from polyml.new_names import fresh_name
from polyml.ops import REDUCTIONS
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.from_isl import affine_of

__all__ = ["run_reductions"]

LEAST_STEPS = 8
"""Along the dimension, if that is known. Measured: with 6 both take as long, whatever the other dimensions are; with lanes along it 4 are up to twice as quick as a loop, 12 half as quick."""

_OPERATIONS = 100_000
"""isl's operations for the questions about one equation."""


def run_reductions(graph: Graph, *, precise: bool = False) -> Graph:
    """The graph with such reductions as loops. precise: those alone that round nothing."""
    run = _Rewriter(graph, precise)
    ops = run.changed(graph.ops, graph.context)
    if ops is graph.ops:
        return graph
    # Tables that were seen through.
    return remove_dead(replace(graph, ops=ops))


class _Rewriter:
    def __init__(self, graph: Graph, precise: bool) -> None:
        self.graph, self.precise = graph, precise
        self.inside = False
        self.tables: dict[str, Equation] = {}
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
                    outside, self.makers = (self.makers, self.inside), {}
                    self.inside = True
                    body = self.changed(op.body, known.intersect(iterations_of([op])))
                    self.makers, self.inside = outside
                    made.append(op if body is op.body else replace(op, body=body))
                case Equation():
                    made += self.running(op, known) or self.winning(op, known) or self.beside(op, known) or [op]
                    self.note(op)
                case _:
                    made.append(op)
        return renewed(ops, made)

    def note(self, equation: Equation) -> None:
        """Keeps in mind what only one equation reads, for which it need not be in memory."""
        name = equation.result.name
        if is_elementwise(equation) and name not in self.protected and self.users.get(name) == 1:
            self.makers[name] = equation
        if is_elementwise(equation) and name not in self.protected and not reads_of(equation.body):
            self.tables[name] = equation

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
        fades = reduce == "sum" and dtype.is_float
        if fades and self.tables:
            equation = replace(equation, body=map_reads(equation.body, self.seen_through))
        used = variables_of(equation.body)
        for position, index in enumerate(equation.left):
            extent = equation.result.shape[position]
            if index in done or (extent.is_constant and extent.constant < LEAST_STEPS):
                continue
            if index in used and not (fades and decay_of(equation.body, index, equation.reduced, 1)):
                continue
            try:
                with operation_budget(_OPERATIONS, phase="running reductions"):
                    growth = growth_along(equation, position, known)
                    if growth is None:
                        continue
                    if index not in used:
                        return self.loop(equation, growth, known, done | {index})
                    ops = self.fading(equation, growth, known, done | {index})
                    if ops is not None:
                        return ops
            except BudgetExhausted:
                pass
        return None

    def winning(self, equation: Equation, known: isl.Set) -> list[Op] | None:
        """The ops of an equation that gives the places of extrema, if its range grows."""
        if equation.reduce not in ("argmax", "argmin") or not equation.is_plain or equation.apart:
            return None
        if equation.base is not None or equation.instances is not None or equation.accumulate:
            return None
        used = variables_of(equation.body)
        for position, index in enumerate(equation.left):
            extent = equation.result.shape[position]
            if index in used or (extent.is_constant and extent.constant < LEAST_STEPS):
                continue
            try:
                with operation_budget(_OPERATIONS, phase="running reductions"):
                    growth = growth_along(equation, position, known)
                    steps = None if growth is None else winners(equation, growth, known, self.tensor)
            except BudgetExhausted:
                continue
            if steps is not None:
                return [op for step in steps for op in self.running(step, known) or [step]]
        return None

    def fading(self, equation: Equation, growth: Growth, known: isl.Set, done: frozenset[str]) -> list[Op] | None:
        """A sum of which each element takes a part of the one before."""
        ratio = decay_of(equation.body, growth.index, equation.reduced, growth.step)
        assert ratio is not None, "internal: it fades in the other direction"
        if growth.index not in variables_of(ratio):
            return self.loop(equation, growth, known, done, ratio)
        if self.inside:
            return None
        # Factors above 1 behind ones that took a term to zero, or infinite sums that fade, are where the order matters: no number then, which is looked for.
        left = equation.left
        kept = [d for d, index in enumerate(left) if index in variables_of(ratio)]
        first = 1 if growth.step > 0 else 0
        shape = tuple(equation.result.shape[d] - (left[d] == growth.index) for d in kept)
        factors = self.tensor(replace(equation.result, shape=shape))
        moved = substitute(
            ratio, {left[d]: affine(f"i{p}") + first * (left[d] == growth.index) for p, d in enumerate(kept)}
        )
        value = Apply("select", (_fades(moved), moved, Const(nan, moved.dtype)), moved.dtype)
        places = tuple(affine(left[d]) - first * (left[d] == growth.index) for d in kept)
        result = self.tensor(equation.result)
        ops = self.loop(with_name(equation, result), growth, known, done, Read(factors.name, places, factors.dtype))
        whole = Read(result.name, (), result.dtype)
        return [fill(factors, value, equation.span), *ops, *guarded(equation, result, whole, self.graph, self.tensors)]

    def seen_through(self, read: Read) -> Expr:
        """A function of indices that is in a table, as it is."""
        table = self.tables.get(read.tensor)
        through = None if table is None else read_through(table, read)
        return read if through is None else through

    def beside(self, equation: Equation, known: isl.Set) -> list[Op] | None:
        """The ops of an equation that writes into a tensor or adds to it, of which the reductions run in a tensor of their own."""
        base, left = equation.base, equation.left
        if base is None or not equation.reduced or equation.only_if is not None:
            return None
        places = [place for place in equation.target if isinstance(place, Affine)]
        shape = _box(equation) if len(places) == len(equation.target) else None
        if shape is None:
            return None
        points = equation.instances
        if points is None:
            points = equation.domain.project_out(isl.dim_type.set, len(left), len(equation.reduced))
        # Several that are added to one element would be the last of them.
        if equation.accumulate and not are_apart(points, left, places):
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

    def loop(
        self, equation: Equation, growth: Growth, known: isl.Set, done: frozenset[str], ratio: Expr | None = None
    ) -> list[Op]:
        """What the first element is, and the loop over the others. done: dimensions of what is computed ahead that nothing runs along. ratio: what the element before is multiplied by."""
        result, left = equation.result, equation.left
        indices = {*equation.indices} - {growth.index}
        equation = replace(equation, body=map_reads(equation.body, lambda read: self.made(read, indices)))
        identity = Const(_identity(equation), result.dtype)
        all_terms = Terms.of(equation, growth.first.union(growth.others).coalesce())
        others = Terms.of(equation, growth.others)
        ops: list[Op] = []
        first = Terms.of(equation, growth.first)
        if ratio is not None:
            value = affine(0) if growth.step > 0 else result.shape[left.index(growth.index)] - 1
            first = replace(first, body=simplify_expression(substitute(first.body, {growth.index: value})))
        term = others.term(growth.later, identity)
        if term is None:
            # What is added is computed ahead, the first element with it.
            ahead = self.tensor(result)
            added = all_terms.equation(equation, ahead, None)
            ops += self.running(added, known, done) or [added]
            term = Read(ahead.name, tuple(map(affine, left)), ahead.dtype)
            first = Terms(left, (), growth.start, term)
        start = self.tensor(result)
        ops.append(fill(start, identity, equation.span))
        if not first.points.is_empty():
            begun = self.tensor(result)
            ops.append(first.equation(equation, begun, start))
            start = begun
        inner, after = self.tensor(result), self.tensor(result)
        before: Expr = Read(
            inner.name, tuple(affine(i) - growth.step * (i == growth.index) for i in left), result.dtype
        )
        if ratio is not None:
            before, term = Apply("mul", (ratio, before), result.dtype), simplify_expression(term)
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


def _fades(ratio: Expr) -> Expr:
    """That a factor is between 0 and 1, and 0 by rounding alone: not for infinite numbers."""
    some, least = (ratio.args[0], -inf) if isinstance(ratio, Apply) and ratio.op == "exp" else (ratio, 0.0)
    at_most = Apply("le", (ratio, Const(1.0, ratio.dtype)), boolean)
    return Apply("and", (at_most, Apply("gt", (some, Const(least, some.dtype)), boolean)), boolean)


def _identity(equation: Equation) -> int | float | bool:
    value = REDUCTIONS[equation.reduce or ""].identity(equation.result.dtype)
    assert value is not None, "internal: a reduction without an identity"
    return value


def _within_loop(points: isl.Set, index: str, left: Sequence[str], name: str) -> isl.Set:
    """The points of an iteration, whose value is a parameter then."""
    position = left.index(index)
    named = points.set_dim_name(isl.dim_type.set, position, index)
    moved = named.move_dims(isl.dim_type.param, named.dim(isl.dim_type.param), isl.dim_type.set, position, 1)
    return moved.set_tuple_name(name)
