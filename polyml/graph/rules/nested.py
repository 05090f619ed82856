"""Sums of products over several indices, where factors know only some of them: sums within sums.

`y[i, r] = sum[j, k](x[i, j, k] * b[j, r] * c[k, r])` multiplies with `b` once for every `k`. With `t[i, j, r] = sum[k](x[i, j, k] * c[k, r])` it does so once for all of them, and `t` is a
contraction of two operands, which register tiles and panels are made for. `sum[j, k](a[i, j] * b[j, k] * c[k, l])` needs fewer products by orders of magnitude. The sums are shorter, too, so that
less rounding adds up in each.

Source: Pfeifer, Haegeman and Verstraete, "Faster identification of optimal contraction sequences for tensor networks" (Physical Review E, 2014), on the order of pairwise contractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations
from math import prod

import islpy as isl

from polyml.expressions import Apply, Expr, Read, reads_of
from polyml.graph.build_parts import variables_of
from polyml.graph.edit import fresh_name
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import estimated_bytes, index_extents, tensors_of
from polyml.records import dataclass
from polyml.sets.affine import affine

__all__ = ["nest_sums"]

GAIN = 0.75
"""The part of the arithmetic that may be left, moving the inner sums included, for sums within sums to pay."""

NEAR, FAR = 8, 32
"""Products that writing and reading an element takes as long as: in cache, in memory."""

MOST = 4
"""Reduced indices beyond which all their subsets are too many."""


def nest_sums(graph: Graph, cache: int) -> Graph:
    """The graph with such sums in two equations. cache: bytes that a core keeps close.

    Rewrite:
        y[i, r] = sum[j, k](x[i, j, k] * b[j, r] * c[k, r])
        -> t[i, j, r] = sum[k](x[i, j, k] * c[k, r]);  y[i, r] = sum[j](t[i, j, r] * b[j, r])
    """
    tensors = tensors_of(graph)
    ops = _block(graph.ops, tensors, cache)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...], tensors: dict[str, Tensor], cache: int) -> tuple[Op, ...]:
    result: list[Op] = []
    for op in ops:
        match op:
            case Loop():
                body = _block(op.body, tensors, cache)
                result.append(op if body is op.body else replace(op, body=body))
            case Equation():
                result += _nested(op, tensors, cache)
            case _:
                result.append(op)
    same = len(result) == len(ops) and all(new is old for new, old in zip(result, ops, strict=True))
    return ops if same else tuple(result)


def _nested(equation: Equation, tensors: dict[str, Tensor], cache: int) -> Iterator[Equation]:
    """The equation, or what it becomes: each of the two may be made of sums within sums again."""
    found = _best(equation, tensors, cache)
    if found is None:
        yield equation
        return
    for part in _split(equation, found, tensors):
        yield from _nested(part, tensors, cache)


@dataclass(frozen=True, slots=True)
class _Inner:
    """What goes into the inner sum: the indices that it reduces, those that it keeps, its factors and the others."""

    reduced: tuple[str, ...]
    kept: tuple[str, ...]
    inside: tuple[Expr, ...]
    outside: tuple[Expr, ...]


def _best(equation: Equation, tensors: Mapping[str, Tensor], cache: int) -> _Inner | None:
    """The inner sum that leaves the least to compute; None where none leaves much less than there is."""
    left = equation.indices[: len(equation.indices) - len(equation.reduced)]
    if (
        equation.reduce != "sum"
        or not 2 <= len(equation.reduced) <= MOST
        or equation.target != tuple(map(affine, left))
    ):
        return None
    if equation.base is not None or equation.instances is not None or equation.padded or equation.apart:
        return None
    factors = list(_factors(equation.body))
    dtype = equation.body.dtype
    if len(factors) < 2 or not (dtype.is_float or dtype.is_integer) or dtype.is_half:
        return None
    extents = index_extents(equation)
    if not _is_box(equation, extents):
        return None
    own = set(equation.indices)
    uses = [variables_of(factor) & own for factor in factors]
    room = sum(estimated_bytes(tensors[name]) for name in {read.tensor for read in reads_of(equation.body)})
    room = max(room + estimated_bytes(equation.result), cache)
    best, least = None, GAIN * _points(extents, equation.indices) * (len(factors) - 1)
    for inner in _candidates(equation, factors, uses):
        elements = _points(extents, inner.kept)
        size = elements * equation.result.dtype.itemsize
        if size > room:
            continue
        cost = _points(extents, (*inner.kept, *inner.reduced)) * max(len(inner.inside) - 1, 1)
        cost += _points(extents, [i for i in equation.indices if i not in inner.reduced]) * len(inner.outside)
        cost += elements * (NEAR if size <= cache // 2 else FAR)
        if cost < least:
            best, least = inner, cost
    return best


def _candidates(equation: Equation, factors: Sequence[Expr], uses: Sequence[Set[str]]) -> Iterator[_Inner]:
    """All inner sums that leave a factor outside."""
    for count in range(1, len(equation.reduced)):
        for reduced in combinations(equation.reduced, count):
            chosen = set(reduced)
            within = [bool(used & chosen) for used in uses]
            if all(within) or not any(within):
                continue
            mentioned = {i for used, inside in zip(uses, within, strict=True) if inside for i in used} - chosen
            inside = tuple(f for f, is_inside in zip(factors, within, strict=True) if is_inside)
            outside = tuple(f for f, is_inside in zip(factors, within, strict=True) if not is_inside)
            kept = _in_memory_order([i for i in equation.indices if i in mentioned], inside, equation)
            yield _Inner(reduced, kept, inside, outside)


def _in_memory_order(kept: list[str], inside: Sequence[Expr], equation: Equation) -> tuple[str, ...]:
    """The inner sums' indices, innermost one along which an operand is contiguous: the result's own innermost one where that is among them."""
    last = {r.subscripts[-1] for f in inside for r in reads_of(f) if r.subscripts}
    contiguous = [i for i in kept if affine(i) in last]
    left = equation.indices[: len(equation.indices) - len(equation.reduced)]
    chosen = left[-1:] if left and left[-1] in contiguous else contiguous[-1:] or kept[-1:]
    return (*(i for i in kept if i not in chosen), *chosen)


def _factors(expr: Expr) -> Iterator[Expr]:
    match expr:
        case Apply(op="mul", args=(x, y)):
            yield from _factors(x)
            yield from _factors(y)
        case _:
            yield expr


def _points(extents: Mapping[str, int], indices: Sequence[str]) -> int:
    return prod(extents[i] for i in indices)


def _box(name: str, indices: Sequence[str], extents: Mapping[str, int]) -> isl.Set:
    limits = " and ".join(f"0 <= {i} < {extents[i]}" for i in indices)
    return isl.Set(f"{{ {name}[{', '.join(indices)}]{f' : {limits}' if limits else ''} }}")


def _is_box(equation: Equation, extents: Mapping[str, int]) -> bool:
    """Whether all indices start at 0 and end at a number, whatever the others are."""
    domain = equation.domain.reset_tuple_id()
    if not all(n.is_constant for n in equation.result.shape) or min(extents.values()) < 1:
        return False
    return bool(domain.is_equal(_box("", equation.indices, extents)))


def _split(equation: Equation, inner: _Inner, tensors: dict[str, Tensor]) -> tuple[Equation, Equation]:
    """The inner sum, and the outer one that reads it."""
    extents, dtype = index_extents(equation), equation.body.dtype
    name = fresh_name(f"{equation.result.name}_inner", tensors)
    shape = tuple(affine(extents[i]) for i in inner.kept)
    partial = tensors[name] = Tensor(name, dtype, shape, equation.result.label)
    indices = (*inner.kept, *inner.reduced)
    summed = replace(
        equation,
        result=partial,
        indices=indices,
        domain=_box(name, indices, extents),
        target=tuple(map(affine, inner.kept)),
        body=_multiplied(inner.inside),
        reduced=inner.reduced,
    )
    rest = tuple(i for i in equation.indices if i not in inner.reduced)
    read = Read(name, tuple(map(affine, inner.kept)), dtype)
    total = replace(
        equation,
        indices=rest,
        domain=_box(equation.result.name, rest, extents),
        body=_multiplied((read, *inner.outside)),
        reduced=tuple(i for i in equation.reduced if i not in inner.reduced),
    )
    return summed, total


def _multiplied(factors: Sequence[Expr]) -> Expr:
    product = factors[0]
    for factor in factors[1:]:
        product = Apply("mul", (product, factor), product.dtype)
    return product
