"""Reductions over long windows at neighbouring places are put together from shorter windows, which several of them share.

    y[i] = max_{r < 32} x[i + r]     =>     a[p] = max_{r < 4} x[p + r];  b[p] = max_{r < 3} a[p + 4 r];  y[i] = max_{r < 3} b[i + 10 r]

Windows of W places take some f log W / log f operations an element in place of W - 1, elementwise ones, with lanes, in any direction. Sums are added up as a tree of windows side by side: nothing is ever taken off (a running sum less another one cancels, and spreads
infinities and NaN to all windows behind), and there are fewer roundings than in a row. Maxima and minima may overlap. Of several windows (a box) the inner ones come first, so that each is composed along its own direction.

Sources: van Herk (1992) and Gil and Werman (1993) for the operations that a place needs at least; powers of windows as in sparse tables (Bender and Farach-Colton, 2000), with the factor that costs least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, factors_of, product_of, substitute, walk
from polyml.graph.builder.parts import fill, variables_of
from polyml.graph.elements import all_elements
from polyml.graph.flow import iterations_of
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget

__all__ = ["compose_windows"]

LEAST_ALONG_ROWS = 8
"""Places of a window that is composed, along the last index of the result. Measured, as the next ones: 200 rows of 4000, in f32 and i32 8 places as quick, 11 1.2 times, 31 1.6 to 3 times as quick."""

LEAST_ACROSS = {False: 64, True: 24}
"""Along other indices, where register tiles share what they read: of sums (31 places 1.4 times as slow composed), and of reductions that terms may enter twice (16 places 1.2 times as slow, 31 1.6 times as quick)."""

LEAST_TOGETHER = {False: 49, True: 25}
"""Terms of several indices, one of which is a window, from which the others go first: sums, and the like. 3 x 3 are as quick or 1.7 times as quick, 5 x 5 1.1 and 2.2 times, 9 x 9 2.7 and 5 times."""

LEAST_WEIGHED = 9
"""The same, where windows have factors of their own. 3 x 3 are 2.2 to 2.5 times as quick, 7 x 7 3.3 to 3.7 times."""

_LEAST_OF_ALL = 3
"""Places of any window that is one."""

_MANY = 1000
"""Values of an index whose number is not known."""

_STORE = 2
"""What an array between costs an element, in operations: it is stored, and fills a cache."""

_FACTORS = range(2, 9)
"""How many windows of a level make one of the next."""

_OVERLAP = ("max", "min", "any", "all")
"""Reductions that a term may enter twice."""

_OPERATIONS = 100_000
"""isl's operations for the questions about one equation."""


def compose_windows(graph: Graph, *, precise: bool = False) -> Graph:
    """The graph with such reductions composed. precise: those alone that round nothing."""
    rewriter = _Rewriter(graph, precise)
    ops = rewriter.changed(graph.ops, graph.context)
    return graph if ops is graph.ops else replace(graph, ops=ops)


class _Rewriter:
    def __init__(self, graph: Graph, precise: bool) -> None:
        self.graph, self.precise = graph, precise
        self.tensors: dict[str, Tensor] | None = None

    def changed(self, ops: tuple[Op, ...], known: isl.Set) -> tuple[Op, ...]:
        made: list[Op] = []
        for op in ops:
            match op:
                case Loop():
                    body = self.changed(op.body, known.intersect(iterations_of([op])))
                    made.append(op if body is op.body else replace(op, body=body))
                case Equation():
                    made += self.composed(op, known) or [op]
                case _:
                    made.append(op)
        return renewed(ops, made)

    def composed(self, equation: Equation, known: isl.Set) -> list[Op] | None:
        """The equation's ops, if it reduces over a long window."""
        if not _is_candidate(equation, self.precise):
            return None
        for left, reduced, sign in _pairs(equation):
            try:
                with operation_budget(_OPERATIONS, phase="long windows"):
                    window = _window(equation, left, reduced, sign, known)
                    if window is None:
                        continue
                    if window.weights is None and window.length >= _least(equation, left):
                        return self.levels(equation, window, known)
                    if _has_many_terms(equation, window):
                        return self.one_by_one(equation, window, known)
            except BudgetExhausted:
                pass
        return None

    def levels(self, equation: Equation, window: _Window, known: isl.Set) -> list[Op]:
        """Windows of growing length, and what the equation makes of them."""
        ops, terms, extent = self.terms(equation, window, known)
        overlap = equation.reduce in _OVERLAP
        factor = _best_factor(window.length, overlap)
        widths, sources = _widths(window.length, factor), [terms]
        for width in widths[1:]:
            result = self.tensor(equation, window, extent - (width - 1))
            parts = [sources[-1].at(q * (width // factor)) for q in range(factor)]
            ops.append(_elementwise(equation, result, parts))
            sources.append(_Source(Read(result.name, tuple(map(affine, equation.left)), result.dtype), window.left))
        values = [sources[level].at(offset) for level, offset in _pieces(window.length, widths, overlap=overlap)]
        return [*ops, _elementwise(equation, equation.result, values)]

    def one_by_one(self, equation: Equation, window: _Window, known: isl.Set) -> list[Op]:
        """What the other indices make, and a window of that."""
        ops, terms, _ = self.terms(equation, window, known)
        inside = isl.Set(f"{{ [{window.reduced}] : 0 <= {window.reduced} < {window.length} }}")
        domain = all_elements(equation.result).flat_product(inside).set_tuple_name(equation.result.name)
        place = affine(window.left) + affine(window.reduced)
        body = substitute(terms.value, {window.left: place})
        if window.weights is not None:
            body = Apply("mul", (window.weights, body), body.dtype)
            # A weight that is infinite, or no number, must not meet the zero of a place without terms.
            if body.dtype.is_float:
                domain = domain.intersect(_with_terms(equation, window).set_tuple_name(equation.result.name))
        indices = (*equation.left, window.reduced)
        made = replace(equation, indices=indices, domain=domain, body=body, reduced=(window.reduced,), padded=False)
        return [*ops, made]

    def terms(self, equation: Equation, window: _Window, known: isl.Set) -> tuple[list[Op], _Source, Affine]:
        """The terms over all places of windows, what makes them, and how many places there are."""
        position = equation.left.index(window.left)
        extent = equation.result.shape[position] + (window.length - 1)
        others = tuple(i for i in equation.reduced if i != window.reduced)
        every = all_elements(_with_places(equation, window, extent)).intersect_params(known)
        full = not others and bool(every.is_subset(window.places))
        if full and _is_read(equation.body):
            return [], _Source(window.body, window.left), extent
        ops: list[Op] = []
        base = None
        if not others and not full:
            base = self.tensor(equation, window, extent)
            identity = REDUCTIONS[equation.reduce or ""].identity(base.dtype)
            assert identity is not None, "internal: a reduction without an identity"
            ops.append(fill(base, Const(identity, base.dtype), equation.span))
        whole = self.tensor(equation, window, extent)
        made = replace(
            equation,
            result=whole,
            indices=(*equation.left, *others),
            domain=window.places.set_tuple_name(whole.name),
            body=window.body,
            reduce=equation.reduce if others else None,
            reduced=others,
            base=base,
            padded=False,
        )
        ops += self.composed(made, known) or [made]
        read = Read(whole.name, tuple(map(affine, equation.left)), whole.dtype)
        return ops, _Source(read, window.left), extent

    def tensor(self, equation: Equation, window: _Window, extent: Affine) -> Tensor:
        """A new one for windows at so many places."""
        if self.tensors is None:
            self.tensors = dict(tensors_of(self.graph))
        like = equation.result
        shape = tuple(extent if index == window.left else n for index, n in zip(equation.left, like.shape, strict=True))
        made = replace(like, name=fresh_name(f"{like.name}_part", self.tensors), shape=shape)
        self.tensors[made.name] = made
        return made


@dataclass(frozen=True, slots=True)
class _Source:
    """Windows of one length, as an expression that has the index of their first place."""

    value: Expr
    index: str

    def at(self, offset: int) -> Expr:
        """The window that begins so many places further on."""
        return substitute(self.value, {self.index: affine(self.index) + offset}) if offset else self.value


@dataclass(frozen=True, slots=True)
class _Window:
    """A window along an index of the left side.

    length: places. body: the term at a place, which has the left index's name and counts from the first window's first one. places: those that have terms, over the indices of the left side and the other reduced ones. weights: by which the window's places are multiplied, in the reduced index from 0 on.
    """

    left: str
    reduced: str
    length: int
    body: Expr
    places: isl.Set
    weights: Expr | None


def _with_places(equation: Equation, window: _Window, extent: Affine) -> Tensor:
    """The result with so many places along the window's index."""
    extents = zip(equation.left, equation.result.shape, strict=True)
    return replace(equation.result, shape=tuple(extent if index == window.left else n for index, n in extents))


def _with_terms(equation: Equation, window: _Window) -> isl.Set:
    """The points, over the indices of the left side and the window's, whose places have terms."""
    left = equation.left
    places = window.places.project_out(isl.dim_type.set, len(left), len(equation.reduced) - 1)
    moved = [f"{index} + {window.reduced}" if index == window.left else index for index in left]
    moves = isl.Map(f"{{ [{', '.join((*left, window.reduced))}] -> [{', '.join(moved)}] }}")
    return places.apply(moves.reverse())


def _is_read(body: Expr) -> bool:
    """Whether a term costs no more than an element of an array would."""
    return isinstance(body.args[0] if isinstance(body, Apply) and body.op == "cast" else body, Read)


def _is_candidate(equation: Equation, precise: bool) -> bool:
    reduce = equation.reduce
    if reduce is None or not equation.reduced or REDUCTIONS[reduce].combine is None or not equation.is_plain:
        return False
    if equation.base is not None or equation.instances is not None or equation.accumulate:
        return False
    if equation.only_if is not None or equation.apart:
        return False
    return not (precise and reduce in ("sum", "prod") and not equation.result.dtype.is_integer)


def _pairs(equation: Equation) -> Iterator[tuple[str, str, int]]:
    """Indices of the left side, and reduced ones which a window along them might have, the innermost first; -1: it goes backwards."""
    together = [place for place in _places(equation.body) if len(place.variables()) > 1]
    for reduced in reversed(equation.reduced):
        for left in reversed(equation.left):
            # None: of a quotient, which may go round.
            steps = {(place.stride(left), place.stride(reduced)) for place in together}
            if any(own == step != 0 for own, step in steps):
                yield left, reduced, 1
            if any(own and step and own == -step for own, step in steps):
                yield left, reduced, -1


def _places(body: Expr) -> Iterator[Affine]:
    """All index arithmetic of an expression."""
    for node in walk(body):
        match node:
            case IndexValue():
                yield node.affine
            case Read():
                yield from (place for place in node.subscripts if isinstance(place, Affine))
            case _:
                pass


def _least(equation: Equation, left: str) -> int:
    """Places from which a window along that index is composed."""
    return LEAST_ALONG_ROWS if left == equation.left[-1] else LEAST_ACROSS[equation.reduce in _OVERLAP]


def _has_many_terms(equation: Equation, window: _Window) -> bool:
    """Whether several indices are worth a tensor between them."""
    terms = 1
    for position in range(len(equation.left), len(equation.indices)):
        low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
        terms *= high.to_python() - low.to_python() + 1 if low.is_int() and high.is_int() else _MANY
    least = LEAST_TOGETHER[equation.reduce in _OVERLAP] if window.weights is None else LEAST_WEIGHED
    return len(equation.reduced) > 1 and terms >= least


def _window(equation: Equation, left: str, reduced: str, sign: int, known: isl.Set) -> _Window | None:
    """The window along an index of the left side that a reduced one goes through; None where the terms are others at each place, or it has no fixed length."""
    names = list(equation.indices)
    at = names.index(left)
    domain = equation.domain.reset_tuple_id().intersect_params(known)
    weights, terms = _weights(equation, left, reduced)
    # The place is the sum of both: what is left of the index then is not along a window.
    body = substitute(terms, {reduced: (affine(reduced) - affine(left)) * sign})
    if left in variables_of(body):
        return None
    places = [f"{sign}*{name} + {left}" if name == reduced else name for name in names]
    domain = domain.apply(isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(places)}] }}"))
    distance = domain.apply(isl.Map(f"{{ [{', '.join(names)}] -> [{reduced} - {left}] }}"))
    low, high = distance.dim_min_val(0), distance.dim_max_val(0)
    if not low.is_int() or not high.is_int():
        return None
    first, length = low.to_python(), high.to_python() - low.to_python() + 1
    if length < _LEAST_OF_ALL:
        return None
    anywhere = domain.project_out(isl.dim_type.set, at, 1).insert_dims(isl.dim_type.set, at, 1)
    near = isl.Set(f"{{ [{', '.join(names)}] : {first} <= {reduced} - {left} < {first + length} }}")
    others = len(equation.reduced)
    results = all_elements(equation.result).intersect_params(known).add_dims(isl.dim_type.set, others)
    if not anywhere.intersect(near).intersect(results).is_equal(domain):
        return None
    # The place, counted from the first one, stands where the left index was.
    kept = [reduced if name == left else name for name in names if name != reduced]
    shifted = [f"{reduced} - {first}" if name == reduced else name for name in kept]
    terms_at = domain.apply(isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(shifted)}] }}")).coalesce()
    if weights is not None:
        weights = substitute(weights, {reduced: (affine(reduced) + first) * sign})
    return _Window(left, reduced, length, substitute(body, {reduced: affine(left) + first}), terms_at, weights)


def _weights(equation: Equation, left: str, reduced: str) -> tuple[Expr | None, Expr]:
    """The factors of a window's own places, which other reduced indices have no part in, and the other factors."""
    others = {index for index in equation.reduced if index != reduced}
    own: list[Expr] = []
    rest: list[Expr] = []
    for factor in factors_of(equation.body) if equation.reduce == "sum" and others else ():
        used = variables_of(factor)
        (own if reduced in used and left not in used and used.isdisjoint(others) else rest).append(factor)
    return (product_of(own), product_of(rest)) if own and rest else (None, equation.body)


def _best_factor(length: int, overlap: bool) -> int:
    """The factor from level to level with which an element costs least."""
    return min(_FACTORS, key=lambda factor: _cost(length, factor, overlap))


def _cost(length: int, factor: int, overlap: bool) -> int:
    widths = _widths(length, factor)
    pieces = sum(1 for _ in _pieces(length, widths, overlap=overlap))
    return (len(widths) - 1) * (factor - 1 + _STORE) + pieces - 1


def _widths(length: int, factor: int) -> list[int]:
    widths = [1]
    while widths[-1] * factor < length:
        widths.append(widths[-1] * factor)
    return widths


def _pieces(length: int, widths: list[int], *, overlap: bool) -> Iterator[tuple[int, int]]:
    """The windows that make one of the whole length: their levels, and where they begin."""
    widest = widths[-1]
    if overlap:
        for offset in range(0, length - widest, widest):
            yield len(widths) - 1, offset
        yield len(widths) - 1, length - widest
        return
    offset = 0
    for level in reversed(range(len(widths))):
        while length - offset >= widths[level]:
            yield level, offset
            offset += widths[level]


def _combined(equation: Equation, values: list[Expr]) -> Expr:
    combine = REDUCTIONS[equation.reduce or ""].combine
    assert combine is not None, "internal: a reduction that combines pairs"
    total = values[0]
    for value in values[1:]:
        total = Apply(combine, (total, value), equation.result.dtype)
    return total


def _elementwise(equation: Equation, result: Tensor, parts: list[Expr]) -> Equation:
    """What the equation reduces, of windows that are."""
    return replace(
        equation,
        result=result,
        indices=equation.left,
        domain=all_elements(result).set_tuple_name(result.name),
        body=_combined(equation, parts),
        reduce=None,
        reduced=(),
        padded=False,
    )
