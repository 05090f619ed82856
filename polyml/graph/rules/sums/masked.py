"""Scores that a mask takes out of a softmax are not computed: `where(j <= i, s[i, j], -inf)` has no exponential beyond the diagonal.

    m[i] = max_j where(c, s[i, j], -inf)                       m[i] = max_{j: c} s[i, j]
    e[i, j] = exp(where(c, s[i, j], -inf) - m[i])      =>      e[i, j] = exp(s[i, j] - m[i])  where c
    y[i, d] = sum_j e[i, j] * v[j, d]                          y[i, d] = sum_{j: c} e[i, j] * v[j, d]

A maximum takes nothing from -inf. An exponential is zero there, unless its row's maximum is NaN or -inf: then all of its row is NaN, and so is each sum over the row that has a term of it left, which isl
decides; where sizes decide, those for which it holds are what the graph requires. The language allows skipping terms of sums that have such a zero as a factor (it differs where the other factor is infinite or NaN), as for `where(c, x, 0)` (restrict.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Const, Expr, Read, factors_of, reads_of, substitute
from polyml.graph.edit import protected_names
from polyml.graph.elements import elements_at
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.algebra.restrict import exact_condition, kept_where, restricted_to
from polyml.graph.rules.reuse.inline import is_elementwise, read_through
from polyml.graph.traverse import equation_reads, read_names
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.half_spaces import half_spaces, with_values

__all__ = ["skip_masked"]

_NEVER = float("-inf")

_LONG = 64
"""Rows of fewer scores are computed whole: their tiles are square rather than half of a square."""


def skip_masked(graph: Graph) -> Graph:
    """The graph with maxima, exponentials and sums over what masks leave, where nothing else reads the exponentials."""
    kept = protected_names(graph)
    sources = {
        op.result.name: op
        for op in graph.ops
        if isinstance(op, Equation)
        and is_elementwise(op)
        and op.result.name not in kept
        and _mask(op.body, {}) is not None
    }
    found = [_maximum(op, sources) for op in graph.ops if isinstance(op, Equation) and op.reduce == "max"]
    known, assumed = graph.context, list[Affine]()
    maxima: dict[str, _Maximum] = {}
    for maximum in filter(None, found):
        needed = _needed(maximum, known, graph.examples)
        if needed is not None:
            maxima[maximum.equation.result.name] = maximum
            assumed += needed
            known = with_values(known, needed)
    if not maxima:
        return graph
    changed = _Masks(graph, maxima, sources, kept, known).run()
    if not changed:
        return graph
    ops = tuple(changed.get(id(op), op) for op in graph.ops)
    return replace(graph, ops=ops, context=known, requires=(*graph.requires, *assumed))


@dataclass(frozen=True, slots=True)
class _Maximum:
    """`equation` takes a maximum of scores, which are -inf where the condition does not hold."""

    equation: Equation
    condition: Expr

    def met(self, points: isl.Set) -> bool:
        """Whether a maximum of these (rows and the reduced index, in the equation's order) is over them."""
        return bool(points.is_subset(self.equation.domain.reset_tuple_id()))


def _maximum(op: Equation, sources: Mapping[str, Equation]) -> _Maximum | None:
    if op.base is not None or len(op.reduced) != 1 or not op.is_plain or op.instances is not None:
        return None
    condition = _mask(op.body, sources)
    text = None if condition is None else exact_condition(condition)
    last = op.domain.dim_max_val(len(op.indices) - 1)
    if condition is None or text is None or (last.is_int() and last.to_python() < _LONG - 1):
        return None
    return _Maximum(op, condition)


def _needed(maximum: _Maximum, known: isl.Set, examples: Mapping[str, int]) -> tuple[Affine, ...] | None:
    """What sizes have to be, as the call at hand has them, for each row to keep a score: expressions that are at least 0 then. None where it does not."""
    text = exact_condition(maximum.condition)
    assert text is not None, "internal: a maximum without a condition"
    lost = _lost_rows(maximum.equation, [text], known)
    return () if lost.is_empty() else half_spaces(lost.params(), examples.keys(), examples, known)


def _mask(score: Expr, sources: Mapping[str, Equation]) -> Expr | None:
    """The condition without which the score is -inf. sources: equations of tensors that are such scores."""
    kept = kept_where(score, _NEVER)
    if kept is not None:
        return kept[0]
    match score:
        case Apply(op="mul" | "div", args=(x, Const() as scale)) if _is_positive(scale):
            return _mask(x, sources)
        case Apply(op="cast", args=(x,)) if score.dtype.is_float:
            return _mask(x, sources)
        case Read() if score.tensor in sources:
            through = read_through(sources[score.tensor], score)
            return None if through is None else _mask(through, {})
        case _:
            return None


def _is_positive(scale: Const) -> bool:
    """Whether the number leaves an infinity one, and a zero one, also as its type has it."""
    return scale.value > 0 and scale.dtype.is_normal(scale.value)


def _unmasked(score: Expr) -> Expr:
    """The score where its condition holds."""
    kept = kept_where(score, _NEVER)
    if kept is not None:
        return kept[1]
    match score:
        case Apply(op="mul" | "div", args=(x, scale)):
            return Apply(score.op, (_unmasked(x), scale), score.dtype)
        case Apply(op="cast", args=(x,)):
            return Apply("cast", (_unmasked(x),), score.dtype)
        case _:
            return score


def _rounded(expr: Expr) -> Expr:
    """What is converted from one floating type to another, if anything: zeros, infinities and NaN stay what they are."""
    while isinstance(expr, Apply) and expr.op == "cast" and expr.dtype.is_float:
        (expr,) = expr.args
    return expr


def _lost_rows(equation: Equation, conditions: Sequence[str], known: isl.Set) -> isl.Set:
    """The elements that the reduction makes and that keep no term, for sizes of which something is known."""
    count = len(equation.left)
    kept = restricted_to(equation, conditions).domain
    before, after = (d.project_out(isl.dim_type.set, count, len(equation.reduced)) for d in (equation.domain, kept))
    return before.subtract(after).intersect_params(known)


@dataclass(frozen=True, slots=True)
class _Zero:
    """A factor that is zero where the condition does not hold: the exponential of a score less the maximum. values: the maximum's indices in terms of the equation's."""

    maximum: _Maximum
    values: Mapping[str, Affine]

    @property
    def condition(self) -> str:
        text = exact_condition(substitute(self.maximum.condition, self.values))
        assert text is not None, "internal: indices for indices leave a condition affine"
        return text

    def through(self, read: Read, maker: Equation) -> _Zero | None:
        """The same where the factor's equation is read; None where a subscript is no index."""
        names: dict[str, Affine] = {}
        for place, subscript in zip(maker.target, read.subscripts, strict=True):
            if not isinstance(subscript, Affine) or subscript.name is None or not isinstance(place, Affine):
                return None
            names[place.name or ""] = subscript
        values = {i: value.substitute(names) for i, value in self.values.items()}
        return _Zero(self.maximum, values)


class _Masks:
    """What becomes of the equations of a graph."""

    def __init__(
        self,
        graph: Graph,
        maxima: Mapping[str, _Maximum],
        sources: Mapping[str, Equation],
        kept: Set[str],
        known: isl.Set,
    ) -> None:
        self.graph, self.maxima, self.sources, self.kept, self.known = graph, maxima, sources, kept, known

    def run(self) -> dict[int, Equation]:
        """The new equations by the identity of the old ones."""
        weights: dict[str, tuple[Equation, _Zero]] = {}
        for op in self.graph.ops:
            if isinstance(op, Equation) and is_elementwise(op) and op.result.name not in self.kept:
                zero = self.zero_of(op.body, op)
                if zero is not None:
                    weights[op.result.name] = (op, zero)
        sums: dict[int, tuple[Equation, list[_Zero], set[str]]] = {}
        for op in self.graph.ops:
            names = weights.keys() & read_names(op).keys()
            found = list(self.zeros(op, weights)) if isinstance(op, Equation) else []
            fits = isinstance(op, Equation) and found and self.may_skip(op, [zero for zero, _ in found])
            if isinstance(op, Equation) and fits and names == {name for _, name in found if name is not None}:
                sums[id(op)] = (op, [zero for zero, _ in found], set(names))
            else:
                for name in names:
                    del weights[name]
        changed: dict[int, Equation] = {}
        for key, (op, zeros, names) in sums.items():
            if names <= weights.keys():
                body = self.without(op.body, op)
                changed[key] = restricted_to(replace(op, body=body), list(dict.fromkeys(z.condition for z in zeros)))
        for op, zero in weights.values():
            changed[id(op)] = restricted_to(replace(op, body=self.without(op.body, op)), [zero.condition])
        for maximum in self.maxima.values() if changed else ():
            op, text = maximum.equation, exact_condition(maximum.condition)
            assert text is not None, "internal: a maximum without a condition"
            changed[id(op)] = restricted_to(replace(op, body=_unmasked(op.body)), [text])
        return changed if self.cleared(changed) else {}

    def cleared(self, changed: dict[int, Equation]) -> bool:
        """Adds the masked scores that are tensors, without their masks; whether all that reads them has changed."""
        used = {name for m in self.maxima.values() for name in read_names(m.equation)} & self.sources.keys()
        for op in self.graph.ops:
            names = read_names(op).keys() & used
            if names and (id(op) not in changed or not isinstance(op, Equation) or self.beside(op, names)):
                return False
        for name in used:
            source = self.sources[name]
            condition = _mask(source.body, {})
            text = None if condition is None else exact_condition(condition)
            assert text is not None, "internal: a masked score without a condition"
            changed[id(source)] = restricted_to(replace(source, body=_unmasked(source.body)), [text])
        return True

    def beside(self, equation: Equation, names: Set[str]) -> bool:
        """Whether an equation reads such tensors for something else than maxima and exponentials."""
        if equation.result.name in self.maxima:
            return False
        own = [factor for factor in factors_of(equation.body) if self.zero_of(factor, equation) is not None]
        scores = [read for factor in own for read in reads_of(factor) if read.tensor in names]
        return len(scores) < sum(read.tensor in names for read in equation_reads(equation))

    def zeros(
        self, equation: Equation, weights: Mapping[str, tuple[Equation, _Zero]]
    ) -> Iterator[tuple[_Zero, str | None]]:
        """The zeros among the factors of a sum's terms, and the tensors that they are read from (None: computed there)."""
        if equation.reduce != "sum" or equation.accumulate:
            return
        for factor in factors_of(equation.body):
            read = _rounded(factor)
            if isinstance(read, Read) and read.tensor in weights:
                maker, zero = weights[read.tensor]
                seen = zero.through(read, maker)
                if seen is not None:
                    yield seen, read.tensor
            elif (own := self.zero_of(factor, equation)) is not None:
                yield own, None

    def zero_of(self, expr: Expr, equation: Equation) -> _Zero | None:
        """The expression as exp(score - maximum) for a masked score; the difference may be scaled."""
        expr = _rounded(expr)
        less = _difference(expr.args[0]) if isinstance(expr, Apply) and expr.op == "exp" else None
        if less is None or not isinstance(top := _rounded(less.args[1]), Read) or top.tensor not in self.maxima:
            return None
        maximum = self.maxima[top.tensor]
        rows = {i: s for i, s in zip(maximum.equation.indices, top.subscripts, strict=False) if isinstance(s, Affine)}
        if len(rows) < len(top.subscripts) or any(s.name is None for s in rows.values()):
            return None
        for index in equation.indices:
            values = {**rows, maximum.equation.reduced[0]: affine(index)}
            if affine(index) not in rows.values() and substitute(maximum.equation.body, values) == less.args[0]:
                return _Zero(maximum, values)
        return None

    def may_skip(self, equation: Equation, zeros: Sequence[_Zero]) -> bool:
        """Whether the sum is over whole rows of what the masks leave, and every element keeps a term that knows of its row's NaN."""
        left = equation.left
        for zero in zeros:
            *rows, key = (zero.values[i] for i in zero.maximum.equation.indices)
            if key.name not in equation.reduced or not {s.name for s in rows} <= {*left}:
                return False
            kept = restricted_to(equation, [zero.condition])
            if not zero.maximum.met(elements_at(kept.domain, kept.indices, [*rows, key])):
                return False
        return bool(_lost_rows(equation, [zero.condition for zero in zeros], self.known).is_empty())

    def without(self, expr: Expr, equation: Equation) -> Expr:
        """The product with the masks of its zeros taken out."""
        if self.zero_of(expr, equation) is not None:
            return _without_mask(expr)
        if isinstance(expr, Apply) and expr.op == "mul":
            x, y = (self.without(arg, equation) for arg in expr.args)
            return Apply("mul", (x, y), expr.dtype)
        return expr


def _difference(expr: Expr) -> Apply | None:
    """The difference that the expression is a positive multiple of."""
    match expr:
        case Apply(op="sub"):
            return expr
        case Apply(op="mul" | "div", args=(x, Const() as scale)) if _is_positive(scale):
            return _difference(x)
        case _:
            return None


def _without_mask(expr: Expr) -> Expr:
    """The exponential (or what it is taken of) with the score's mask taken out."""
    assert isinstance(expr, Apply), "internal: no exponential of a difference"
    first, *others = expr.args
    changed = _unmasked(first) if expr.op == "sub" else _without_mask(first)
    return Apply(expr.op, (changed, *others), expr.dtype)
