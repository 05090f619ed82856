"""Sums of products over several indices, where factors know only some of them: sums within sums.

`y[i, r] = sum[j, k](x[i, j, k] * b[j, r] * c[k, r])` multiplies with `b` once for every `k`. With `t[i, j, r] = sum[k](x[i, j, k] * c[k, r])` it does so once for all of them, and `t` is a
contraction of two operands, which register tiles and panels are made for. So it is under conditions that do not name the inner sum's indices: the masked products of linear attention,
`sum[u, d, u <= t](q[t, d] * k[u, d] * v[u, e])`, are scores first. `sum[j, k](a[i, j] * b[j, k] * c[k, l])` needs fewer products by orders of magnitude. The sums are shorter, too, so that
less rounding adds up in each.

Extents that stay symbolic count as in the call that the kernel is compiled for, all of them as many times larger as it takes to be large ones: the order of sums is right for any sizes, and best for such shapes. Where another order would be much better, or inner sums take much
memory, a call gets a kernel of its own (`Graph.suits`).

Source: Pfeifer, Haegeman and Verstraete, "Faster identification of optimal contraction sequences for tensor networks" (Physical Review E, 2014), on the order of pairwise contractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations

import islpy as isl

from polyml.expressions import Expr, Read, factors_of, product_of, reads_of
from polyml.graph.builder.parts import variables_of
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.boxes import any_box, bounding_box, is_free
from polyml.graph.rules.sums.factor import factor_sums
from polyml.graph.rules.sums.factors_ahead import left_to_multiply
from polyml.graph.sum_order import first_sum
from polyml.graph.traverse import UNKNOWN_EXTENT, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.weighed import Term, Weighed, term, total

__all__ = ["Nesting", "nest_sums", "nested"]

GAIN = 0.8
"""The part of the arithmetic that may be left, moving the inner sums included, for sums within sums to pay."""

NEAR, WITHIN, FAR = 8, 16, 32
"""Products that writing and reading an element takes as long as: in cache, in the last level, in memory. The first is what an element of the largest factor takes, too, where it is not contiguous along the sum:
lanes run along it, and each of its rows is another stream."""

OFTEN = 16
"""That goes for elements that are used so many times: with fewer uses they are read in order."""

LAST_LEVEL = 8
"""The last level of caches holds so many times what a core keeps close, at least."""

MUCH, LITTLE = 4, 1 << 22
"""Another order of sums is much better if it takes a quarter, and there are more products than these."""

MOST = 4
"""Reduced indices beyond which all their subsets are too many: those that the same factors know go together then."""

MOST_GROUPS = 7
"""Groups of them, at most: so many has a product of three factors."""

FEW = 3
"""Factors up to which the first inner sum decides: of more, what it leaves is split again."""

LARGE = 256
"""What the largest symbolic extent counts as, at least: kernels for any sizes are to be good at large ones, whatever the first call has."""


def nest_sums(graph: Graph, cache: int, vector_bytes: int = 0) -> Graph:
    """The graph with such sums in two equations. cache: bytes that a core keeps close. vector_bytes: of a register; 0: not known.

    Rewrite:
        y[i, r] = sum[j, k](x[i, j, k] * b[j, r] * c[k, r])
        -> t[i, j, r] = sum[k](x[i, j, k] * c[k, r]);  y[i, r] = sum[j](t[i, j, r] * b[j, r])
    """
    work = Nesting.of(graph, cache, vector_bytes)
    ops = _block(graph.ops, work)
    if ops is graph.ops:
        return graph
    graph = replace(graph, ops=ops, suits=tuple(dict.fromkeys((*graph.suits, *work.suits))))
    return factor_sums(graph, work.split)


@dataclass(frozen=True, slots=True)
class Nesting:
    """tensors: those of the graph and new ones. counts: what symbolic sizes count as. suits: where the sums that were found pay. split: the tensors that are sums of what is left; factors of theirs may know none of their indices any more."""

    graph: Graph
    tensors: dict[str, Tensor]
    cache: int
    vector_bytes: int
    counts: Mapping[str, int]
    suits: list[Weighed]
    split: set[str]

    @classmethod
    def of(cls, graph: Graph, cache: int, vector_bytes: int) -> Nesting:
        return cls(graph, tensors_of(graph), cache, vector_bytes, _counted(graph), [], set())

    def suit(
        self, chosen: _Inner, others: Iterable[_Inner], room: Sequence[Term], extents: Mapping[str, Affine]
    ) -> None:
        """Notes that none of the others must be much better, nor the memory much more than `room` elements."""
        elements = term(1, (extents[i] for i in chosen.kept))
        found = [Weighed((elements,), tuple((MUCH * factor, sizes) for factor, sizes in room))]
        for other in others:
            most = ((LITTLE, ()), *((MUCH * factor, sizes) for factor, sizes in other.cost))
            found.append(Weighed(chosen.cost, most))
        self.suits.extend(w for w in found if any(sizes for _, sizes in w.less))


def _counted(graph: Graph) -> dict[str, int]:
    known = {size: graph.examples[size] for size in graph.sizes if graph.examples.get(size, 0) > 0}
    scale = -(-LARGE // max(known.values(), default=LARGE))
    return {size: known[size] * scale if size in known else UNKNOWN_EXTENT for size in graph.sizes}


def _block(ops: tuple[Op, ...], work: Nesting) -> tuple[Op, ...]:
    result: list[Op] = []
    for op in ops:
        match op:
            case Loop():
                body = _block(op.body, work)
                result.append(op if body is op.body else replace(op, body=body))
            case Equation():
                result += nested(op, work)
            case _:
                result.append(op)
    return renewed(ops, result)


def nested(equation: Equation, work: Nesting) -> Iterator[Equation]:
    """The equation, or what it becomes: each of the two may be made of sums within sums again."""
    found = _best(equation, work)
    if found is None:
        yield equation
        return
    for part in _split(equation, *found, work):
        work.split.add(part.result.name)
        yield from nested(part, work)


@dataclass(frozen=True, slots=True)
class _Inner:
    """What goes into the inner sum: the indices that it reduces, those that it keeps, its factors and the others. work: products of both sums, and what moving the inner one's takes; cost: these, lanes that are idle,
    and what reading the largest factor takes, which tell inner sums apart: one sum over all has such costs, too."""

    reduced: tuple[str, ...]
    kept: tuple[str, ...]
    inside: tuple[Expr, ...]
    outside: tuple[Expr, ...]
    work: tuple[Term, ...] = ()
    cost: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The indices' extents. free: the reduced ones that an inner sum may be over. Where the domain is no box, since conditions tie indices to each other, those that no condition names."""

    extents: Mapping[str, Affine]
    free: frozenset[str]
    is_box: bool


def _best(equation: Equation, work: Nesting) -> tuple[_Inner, _Ranges] | None:
    """The inner sum that leaves the least to compute, and the indices' ranges; None where none leaves much less than there is."""
    if equation.reduce != "sum" or len(equation.reduced) < 2 or not equation.is_plain:
        return None
    if equation.base is not None or equation.instances is not None or equation.padded or equation.apart:
        return None
    factors = factors_of(equation.body)
    dtype = equation.body.dtype
    many = len(factors) > FEW
    if len(factors) < 2 or not (dtype.is_float or dtype.is_integer) or dtype.is_half:
        return None
    own = set(equation.indices)
    uses = [variables_of(factor) & own for factor in factors]
    ranges = _ranges(equation, uses, work)
    if ranges is None:
        return None
    extents = ranges.extents
    operands = [work.tensors[name] for name in dict.fromkeys(read.tensor for read in reads_of(equation.body))]
    item = equation.result.dtype.itemsize
    room = [term(t.dtype.itemsize, t.shape) for t in (*operands, equation.result)]
    near = LAST_LEVEL * work.cache
    most = max(total(room, work.counts), near)

    chosen = _in_order(equation, factors, uses, extents, work) if many else None
    inners: list[_Inner] = [] if chosen is None else [chosen]
    if inners or not many:
        inners += _candidates(equation, factors, uses, work)
    inners = [inner for inner in inners if ranges.free.issuperset(inner.reduced)]
    candidates = [_costed(inner, equation, extents, work) for inner in inners]
    apart = left_to_multiply(equation, work.tensors, work.cache) if work.vector_bytes else len(factors)
    plain = total([term(apart - 1, extents.values())], work.counts)
    paying = [
        inner
        for inner in candidates
        if total([term(item, (extents[i] for i in inner.kept))], work.counts) <= most
        and total(inner.work, work.counts) < GAIN * plain
    ]
    best = min(paying, key=lambda inner: total(inner.cost, work.counts), default=None)
    if inners and inners[0] is chosen:
        best = candidates[0] if candidates[0] in paying else best
    if best is None:
        return None
    elements = [(near // item, ()), *((factor // item or 1, sizes) for factor, sizes in room)]
    work.suit(best, (inner for inner in candidates if inner is not best), elements, extents)
    return best, ranges


def _ranges(equation: Equation, uses: Sequence[Set[str]], work: Nesting) -> _Ranges | None:
    """None where no inner sum may leave a factor outside, as far as conditions decide that."""
    extents = any_box(equation, work.graph, work.tensors)
    if extents is not None:
        return _Ranges(extents, frozenset(equation.reduced), True)
    partly = [r for r in equation.reduced if not all(r in used for used in uses)]
    extents = bounding_box(equation, work.graph, work.tensors) if partly else None
    if extents is None:
        return None
    free = frozenset(r for r in equation.reduced if is_free(equation, r, extents[r], work.graph))
    return _Ranges(extents, free, False) if free.intersection(partly) else None


def _costed(inner: _Inner, equation: Equation, extents: Mapping[str, Affine], work: Nesting) -> _Inner:
    """With what is computed, and what that costs: sums that are stored and read again, lanes that are idle, and large operands that the inner sum walks along count, too."""
    kept = tuple(extents[i] for i in inner.kept)
    inside = (*kept, *(extents[i] for i in inner.reduced))
    rest = tuple(extents[i] for i in equation.indices if i not in inner.reduced)
    size = total([term(equation.result.dtype.itemsize, kept)], work.counts)
    moved = NEAR if size <= work.cache // 2 else WITHIN if size <= LAST_LEVEL * work.cache else FAR
    products = max(len(inner.inside) - 1, 1)
    both = term(products, inside), term(len(inner.outside), rest), term(moved, kept)
    idle = products * _idle_lanes(kept[-1], equation.result.dtype.itemsize, work.vector_bytes) if kept else 0
    large = _largest(inner.inside, work)
    walked = large is not None and any(large.subscripts[-1] == affine(i) for i in inner.kept)
    more = [term(idle, (*kept[:-1], *inside[len(kept) :]))] if idle else []
    if large is not None and walked:
        elements = work.tensors[large.tensor].shape
        if total([term(1, inside)], work.counts) >= total([term(OFTEN, elements)], work.counts):
            more.append(term(NEAR, elements))
    return replace(inner, work=both, cost=(*both, *more))


def _candidates(
    equation: Equation, factors: Sequence[Expr], uses: Sequence[Set[str]], work: Nesting
) -> Iterator[_Inner]:
    """All inner sums that leave a factor outside; none where there are too many."""
    groups = _groups(equation.reduced, uses)
    if len(groups) > MOST_GROUPS:
        return
    for count in range(1, len(groups)):
        for together in combinations(groups, count):
            chosen = set().union(*together)
            reduced = tuple(r for r in equation.reduced if r in chosen)
            within = [bool(used & chosen) for used in uses]
            if all(within) or not any(within):
                continue
            mentioned = {i for used, inside in zip(uses, within, strict=True) if inside for i in used} - chosen
            inside = tuple(f for f, is_inside in zip(factors, within, strict=True) if is_inside)
            outside = tuple(f for f, is_inside in zip(factors, within, strict=True) if not is_inside)
            kept = _in_memory_order([i for i in equation.indices if i in mentioned], inside, equation, work)
            yield _Inner(reduced, kept, inside, outside)


def _groups(reduced: Sequence[str], uses: Sequence[Set[str]]) -> list[tuple[str, ...]]:
    """The reduced indices that are summed over together: each by itself, or, of many, those that the same factors know."""
    if len(reduced) <= MOST:
        return [(r,) for r in reduced]
    known = {r: tuple(r in used for used in uses) for r in reduced}
    return [tuple(r for r in reduced if known[r] == factors) for factors in dict.fromkeys(known.values())]


def _in_order(
    equation: Equation, factors: Sequence[Expr], uses: Sequence[Set[str]], extents: Mapping[str, Affine], work: Nesting
) -> _Inner | None:
    """The inner sum that the cheapest order of all sums has: of many factors, where what is outside an inner sum is to be split again, one sum by itself tells little."""
    counted = {i: extent.evaluate(work.counts) for i, extent in extents.items()}
    item = equation.result.dtype.itemsize
    moved = {0: NEAR, work.cache // 2 // item + 1: WITHIN, LAST_LEVEL * work.cache // item + 1: FAR}
    chosen = first_sum(uses, set(equation.left), counted, moved)
    if chosen is None:
        return None
    around = set(equation.left).union(*(used for f, used in enumerate(uses) if f not in chosen))
    reduced = tuple(i for i in equation.reduced if i not in around)
    mentioned = {i for f in chosen for i in uses[f]}.difference(reduced)
    inside = tuple(f for place, f in enumerate(factors) if place in chosen)
    outside = tuple(f for place, f in enumerate(factors) if place not in chosen)
    kept = _in_memory_order([i for i in equation.indices if i in mentioned], inside, equation, work)
    return _Inner(reduced, kept, inside, outside)


def _in_memory_order(kept: list[str], inside: Sequence[Expr], equation: Equation, work: Nesting) -> tuple[str, ...]:
    """The inner sums' indices, those of the largest operand in its order, behind others. Innermost is the one along which that is contiguous, so that lanes run along what is read most; where that one is summed over, another along which an
    operand is contiguous: the result's own innermost one where that is among them."""
    last = {r.subscripts[-1] for f in inside for r in reads_of(f) if r.subscripts}
    contiguous = [i for i in kept if affine(i) in last]
    large, left = _largest(inside, work), equation.left
    order = [] if large is None else [s.name for s in large.subscripts if isinstance(s, Affine) and s.name in kept]
    own = order[-1:] if large is not None and order and large.subscripts[-1] == affine(order[-1]) else []
    chosen = own or (left[-1:] if left and left[-1] in (contiguous or kept) else contiguous[-1:] or kept[-1:])
    return (*(i for i in kept if i not in (*chosen, *order)), *(i for i in order if i not in chosen), *chosen)


def _largest(factors: Sequence[Expr], work: Nesting) -> Read | None:
    """The read of the largest tensor of several that has a dimension; None where all of them are as large."""
    sizes = {
        r: total([term(1, work.tensors[r.tensor].shape)], work.counts)
        for f in factors
        for r in reads_of(f)
        if r.subscripts
    }
    most = max(sizes.values(), default=0)
    return next((r for r, size in sizes.items() if size == most), None) if len(set(sizes.values())) > 1 else None


def _idle_lanes(extent: Affine, itemsize: int, vector_bytes: int) -> int:
    """Of vectors along so many elements; none where a vector has more of them than there are, since lanes run along the sum then."""
    lanes = vector_bytes // itemsize
    return -extent.constant % lanes if extent.is_constant and 0 < lanes < extent.constant else 0


def _split(equation: Equation, inner: _Inner, ranges: _Ranges, work: Nesting) -> tuple[Equation, Equation]:
    """The inner sum, and the outer one that reads it."""
    dtype, sizes = equation.body.dtype, work.graph.sizes
    name = fresh_name(f"{equation.result.name}_inner", work.tensors)
    shape = tuple(ranges.extents[i] for i in inner.kept)
    partial = work.tensors[name] = Tensor(name, dtype, shape, equation.result.label)
    indices = (*inner.kept, *inner.reduced)
    summed = replace(
        equation,
        result=partial,
        indices=indices,
        domain=_points(equation, name, indices, ranges, sizes),
        target=tuple(map(affine, inner.kept)),
        body=product_of(inner.inside),
        reduced=inner.reduced,
    )
    rest = tuple(i for i in equation.indices if i not in inner.reduced)
    read = Read(name, tuple(map(affine, inner.kept)), dtype)
    total = replace(
        equation,
        indices=rest,
        domain=_points(equation, equation.result.name, rest, ranges, sizes),
        body=product_of((read, *inner.outside)),
        reduced=tuple(i for i in equation.reduced if i not in inner.reduced),
    )
    return summed, total


def _points(equation: Equation, name: str, indices: Sequence[str], ranges: _Ranges, sizes: Sequence[str]) -> isl.Set:
    """What the domain leaves of these indices, in this order, as points of `name`."""
    if ranges.is_box:
        return box(name, indices, ranges.extents, sizes)
    here, there = ", ".join(equation.indices), ", ".join(indices)
    return equation.domain.apply(isl.Map(f"{{ {equation.result.name}[{here}] -> {name}[{there}] }}"))
