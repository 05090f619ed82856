"""Places of extrema over ranges that grow along a dimension of the result are running maxima of places: `argmax[k <= m](x[n, k])`.

    h[m] = max[k <= m](x[k]);    c[m] = m where x[m] is beyond h[m - 1], else 0;    y[m] = max[j <= m](c[j])

A term that is new for an element wins if nothing before it does: the last one of those that have won is the place. Where new terms have smaller indices (`k >= m`, from the end on) they win against equal ones, too, and the place is a minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import islpy as isl

from polyml.dtypes import DType, boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, substitute
from polyml.graph.elements import all_elements
from polyml.graph.ir import Equation, Tensor
from polyml.graph.rules.algebra.simplify import simplify_expression
from polyml.graph.rules.sums.growth import Growth, Terms, moved
from polyml.ops import REDUCTIONS
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["winners"]


def winners(
    equation: Equation, growth: Growth, known: isl.Set, tensor: Callable[[Tensor], Tensor]
) -> list[Equation] | None:
    """Equations that make an argmax or argmin over a range that grows, the first and the last of them reductions over such ranges; None where elements have several new terms, or none. tensor: a new one like another."""
    left, (index,), result = equation.left, equation.reduced, equation.result
    first, added = (_place(equation, points) for points in (growth.first, growth.others))
    if first is None or added is None or not growth.later.is_subset(added[1]) or not growth.start.is_subset(first[1]):
        return None
    later = _is_later(equation, growth, known)
    if later is None:
        return None
    largest = equation.reduce == "argmax"
    best = tensor(replace(result, dtype=equation.body.dtype))
    extrema = replace(
        equation,
        result=best,
        domain=equation.domain.set_tuple_name(best.name),
        reduce="max" if largest else "min",
    )
    before = Read(best.name, tuple(affine(i) - growth.step * (i == growth.index) for i in left), best.dtype)
    wins = _wins(substitute(equation.body, {index: added[0]}), before, largest=largest, equal=not later)
    reduce = "max" if later else "min"
    identity = REDUCTIONS[reduce].identity(result.dtype)
    assert identity is not None, "internal: a reduction without an identity"
    begun, candidates = tensor(result), tensor(result)
    plain = replace(equation, indices=left, reduce=None, reduced=())
    start = replace(
        plain,
        result=begun,
        domain=all_elements(begun).intersect_params(known).set_tuple_name(begun.name),
        body=_number(first[0], result.dtype),
    )
    value = Apply("select", (wins, _number(added[0], result.dtype), Const(identity, result.dtype)), result.dtype)
    chosen = replace(
        plain, result=candidates, domain=growth.later.set_tuple_name(candidates.name), body=value, base=begun
    )
    position = left.index(growth.index)
    order = f"{index} <= {growth.index}" if growth.step > 0 else f"{index} >= {growth.index}"
    within = f"0 <= {index} < {result.shape[position].isl_text()}"
    sizes = sorted(result.shape[position].variables())
    ranges = isl.Set(f"{parameters_text(sizes)}{{ [{', '.join((*left, index))}] : {order} and {within} }}")
    domain = all_elements(result).intersect_params(known).add_dims(isl.dim_type.set, 1).intersect(ranges)
    won = Read(candidates.name, tuple(affine(index if i == growth.index else i) for i in left), result.dtype)
    last = replace(equation, domain=domain.set_tuple_name(result.name), body=won, reduce=reduce)
    return [extrema, start, chosen, last]


def _place(equation: Equation, points: isl.Set) -> tuple[Affine, isl.Set] | None:
    """The index's value at points that have one each, and these points."""
    (index,) = equation.reduced
    terms = Terms.of(replace(equation, body=IndexValue(affine(index), i64)), points)
    return (terms.body.affine, terms.points) if isinstance(terms.body, IndexValue) and not terms.reduced else None


def _is_later(equation: Equation, growth: Growth, known: isl.Set) -> bool | None:
    """Whether new terms have larger indices than all before them; False: smaller ones; None: neither."""
    count = len(equation.left)
    before = moved(
        equation.domain.reset_tuple_id().intersect_params(known), equation.left.index(growth.index), growth.step
    )
    both = growth.others.add_dims(isl.dim_type.set, 1).intersect(before.insert_dims(isl.dim_type.set, count, 1))
    names = [f"e{d}" for d in range(count + 2)]
    for later, sign in ((True, ">="), (False, "<=")):
        wrong = isl.Set(f"{{ [{', '.join(names)}] : {names[-1]} {sign} {names[-2]} }}")
        if both.intersect(wrong).is_empty():
            return later
    return None


def _wins(value: Expr, before: Expr, *, largest: bool, equal: bool) -> Expr:
    """That a term is beyond the best one before, or its equal; no number is beyond all others."""
    wins: Expr = Apply(
        ("gt" if largest else "lt") if not equal else ("ge" if largest else "le"), (value, before), boolean
    )
    if not value.dtype.is_float:
        return wins
    nothing = Apply("ne", (value, value), boolean)
    if not equal:
        nothing = Apply("and", (nothing, Apply("eq", (before, before), boolean)), boolean)
    return Apply("or", (wins, nothing), boolean)


def _number(place: Affine, dtype: DType) -> Expr:
    value: Expr = Const(place.constant, i64) if place.is_constant else IndexValue(place, i64)
    return value if dtype == i64 else simplify_expression(Apply("cast", (value,), dtype))
