"""Sums of products of bf16 by an instruction that adds two products at once to each f32 (x86's vdpbf16ps).

`sum[k](f32(x[n, k]) * f32(w[k, m]))` is `sum[p](dot_bf16(x2[n, p], w2[p, m]))` over pairs of neighbours along k. A pair is one number of 32 bits, so that whatever comes
after this treats it like any other: a product of matrices is blocked and packed, and its register tile adds up f32. An odd last element is paired with a zero on both sides.

Two forms. Operands whose elements are used often become tensors of pairs ahead of the product. Where both lie along k in memory, a pair is two neighbours read together, and nothing is
copied; an odd last term is then added by an equation of its own. The other way, f32 multiply-adds (rules/ahead.py), pays for conversions, so `dot` decides: how many multiply-adds one
such instruction takes the time of.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import prod

from polyml.dtypes import bf16, boolean, f32, i64, u32
from polyml.expressions import Apply, Const, Expr, IndexValue, Read
from polyml.graph.build_parts import fill
from polyml.graph.edit import fresh_name
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box, box_extents
from polyml.graph.traverse import tensors_of
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["pair_products"]

_USES = 16
"""How often an element must be used for a pass over all of them to pay (as in rules/ahead.py)."""

_LEAST = 16
"""Terms that are worth a second form of the operands."""

_LONG = 64
"""Terms of a sum in place, at least."""


@dataclass(frozen=True, slots=True)
class _Product:
    """Both factors, the index that they are paired along, and the number of values of each index."""

    reads: tuple[Read, Read]
    index: str
    extents: dict[str, int]


def pair_products(graph: Graph, dot: float, strided: Set[str]) -> Graph:
    """The graph with such sums over pairs; sums in loops and of symbolic length stay as they are.

    Args:
        dot: Target.dot_bf16. strided: inputs whose last dimension is not contiguous in memory.
    """
    if not dot:
        return graph
    tensors = tensors_of(graph)
    pairs: dict[tuple[str, int], Tensor] = {}
    made: list[Op] = []
    for op in graph.ops:
        product = _product(op, tensors) if isinstance(op, Equation) else None
        if product is None or not isinstance(op, Equation):
            made.append(op)
        elif _ahead_pays(product, tensors, dot):
            reads = [_paired_tensor(read, product, tensors, pairs, made) for read in product.reads]
            made.append(_over_pairs(op, product, -(-product.extents[product.index] // 2), (reads[0], reads[1])))
        elif _in_place_pays(product, tensors, dot, strided):
            made += _in_place(op, product, tensors)
        else:
            made.append(op)
    same = len(made) == len(graph.ops) and all(new is old for new, old in zip(made, graph.ops, strict=True))
    return graph if same else replace(graph, ops=tuple(made))


def _product(equation: Equation, tensors: dict[str, Tensor]) -> _Product | None:
    match equation.body:
        case Apply(op="mul", args=(Apply(op="cast", args=(Read() as x,)), Apply(op="cast", args=(Read() as y,)))):
            pass
        case _:
            return None
    plain = equation.reduce == "sum" and equation.body.dtype == f32 and equation.instances is None
    if not plain or (x.dtype, y.dtype) != (bf16, bf16) or equation.padded:
        return None
    extents = box_extents(equation)
    if extents is None:
        return None
    fits = [
        index
        for index in equation.reduced
        if extents[index] >= _LEAST
        and all(_dimension(read, index, extents[index], tensors) is not None for read in (x, y))
    ]
    if not fits:
        return None
    # Neighbours in memory, of both operands at best; of those the longest.
    best = max(fits, key=lambda i: (sum(r.subscripts[-1] == affine(i) for r in (x, y)), extents[i], -fits.index(i)))
    return _Product((x, y), best, extents)


def _dimension(read: Read, index: str, extent: int, tensors: dict[str, Tensor]) -> int | None:
    """The one dimension that the index runs along, over all of it; None where there is no such."""
    shape = tensors[read.tensor].shape
    if not all(isinstance(s, Affine) for s in read.subscripts) or not all(e.is_constant for e in shape):
        return None
    found = [d for d, s in enumerate(read.subscripts) if isinstance(s, Affine) and index in s.variables()]
    if len(found) != 1 or read.subscripts[found[0]] != affine(index) or shape[found[0]] != affine(extent):
        return None
    return found[0]


def _uses(read: Read, product: _Product, tensors: dict[str, Tensor]) -> float:
    elements = prod(extent.constant for extent in tensors[read.tensor].shape)
    return prod(product.extents.values()) / max(elements, 1)


def _ahead_pays(product: _Product, tensors: dict[str, Tensor], dot: float) -> bool:
    """Two multiply-adds are what one instruction stands for."""
    return dot < 2 and all(_uses(read, product, tensors) >= _USES for read in product.reads)


def _in_place_pays(product: _Product, tensors: dict[str, Tensor], dot: float, strided: Set[str]) -> bool:
    """Beside the two multiply-adds there are conversions, two operations each, of elements that are not converted ahead."""
    uses = [_uses(read, product, tensors) for read in product.reads]
    converting = sum(0.0 if use >= _USES else 4 / max(use, 1.0) for use in uses)
    rows = all(read.subscripts[-1] == affine(product.index) and read.tensor not in strided for read in product.reads)
    return rows and product.extents[product.index] >= _LONG and dot < 2 + converting


def _paired_tensor(
    read: Read, product: _Product, tensors: dict[str, Tensor], known: dict[tuple[str, int], Tensor], made: list[Op]
) -> Read:
    """The read of pairs in its place; the tensor of them is made where no other product needed it."""
    extent = product.extents[product.index]
    dimension = _dimension(read, product.index, extent, tensors)
    assert dimension is not None, "internal: a factor that is not paired along the index"
    paired = known.get((read.tensor, dimension))
    if paired is None:
        source = tensors[read.tensor]
        name = fresh_name(f"{source.name}_pairs", tensors)
        shape = tuple(affine(-(-extent // 2)) if d == dimension else e for d, e in enumerate(source.shape))
        paired = tensors[name] = known[read.tensor, dimension] = Tensor(name, u32, shape, source.label)
        made.append(fill(paired, _pair(source, dimension, extent), None))
    return Read(paired.name, read.subscripts, u32)


def _pair(source: Tensor, dimension: int, extent: int) -> Expr:
    places = [affine(f"i{d}") for d in range(len(source.shape))]

    def element(second: int) -> Read:
        return Read(
            source.name, tuple(p * 2 + second if d == dimension else p for d, p in enumerate(places)), source.dtype
        )

    last: Expr = element(1)
    if extent % 2:
        inside = Apply("lt", (IndexValue(places[dimension] * 2 + 1, i64), Const(extent, i64)), boolean)
        last = Apply("select", (inside, last, Const(0.0, bf16)), bf16)
    return Apply("pair_bf16", (element(0), last), u32)


def _over_pairs(equation: Equation, product: _Product, count: int, factors: tuple[Expr, Expr]) -> Equation:
    extents = {**product.extents, product.index: count}
    domain = box(equation.result.name, equation.indices, extents)
    return replace(equation, domain=domain, body=Apply("dot_bf16", factors, f32))


def _in_place(equation: Equation, product: _Product, tensors: dict[str, Tensor]) -> list[Op]:
    """The sum over the pairs, and the last term by itself where their number is odd."""
    index, extent = product.index, product.extents[product.index]

    def pair(read: Read) -> Expr:
        *outer, _ = read.subscripts
        elements = tuple(Read(read.tensor, (*outer, affine(index) * 2 + k), read.dtype) for k in range(2))
        return Apply("pair_bf16", elements, u32)

    factors = pair(product.reads[0]), pair(product.reads[1])
    result = equation.result
    if extent % 2:
        name = fresh_name(f"{result.name}_even", tensors)
        result = tensors[name] = replace(result, name=name)
    whole = _over_pairs(replace(equation, result=result), product, extent // 2, factors)
    if extent % 2 == 0:
        return [whole]
    left = tuple(i for i in equation.indices if i != index)
    last = [Read(read.tensor, (*read.subscripts[:-1], affine(extent - 1)), read.dtype) for read in product.reads]
    rest = replace(
        equation,
        indices=left,
        reduced=tuple(i for i in equation.reduced if i != index),
        domain=box(equation.result.name, left, product.extents),
        body=Apply("mul", tuple(Apply("cast", (read,), f32) for read in last), f32),
        accumulate=True,
        base=result,
    )
    return [whole, rest]
