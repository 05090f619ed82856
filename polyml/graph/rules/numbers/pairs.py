"""Sums of products of small numbers by an instruction that adds several products at once: two of bf16 to an f32 (x86's vdpbf16ps), two of i16 (vpmaddwd and an addition, or vpdpwssd) or four of u8
and i8 (vpdpbusd) to an i32.

`sum[k](f32(x[n, k]) * f32(w[k, m]))` is `sum[p](dot_bf16(x2[n, p], w2[p, m]))` over pairs of neighbours along k. A pair is one number of 32 bits, so that whatever comes
after this treats it like any other: a product of matrices is blocked and packed, and its register tile adds up f32. Last elements that have no partner are paired with zeros on both sides.

Two forms. Operands whose elements are used often become tensors of pairs ahead of the product. Where both lie along k in memory, a pair is two neighbours read together, and nothing is
copied; an odd last term is then added by an equation of its own. The other way, f32 multiply-adds (rules/reuse/ahead.py), pays for conversions, so `dot_bf16` decides: how many multiply-adds one
such instruction takes the time of.

Four products at once need u8 on one side and i8 on the other. Where both are i8, x + 128 stands for x, and 128 times the sum of w is taken off; where both are u8, w - 128 for w. Sums of i32 wrap, so the results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from math import prod

from polyml.dtypes import DType, bf16, boolean, f32, i8, i16, i32, i64, u8, u32
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, plain_indices, reads_of, variables_in
from polyml.graph.builder.parts import fill
from polyml.graph.edit import with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.rules.windows.padding import with_padding
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.shapes import element_count, is_known

__all__ = ["pair_products"]

_USES = 16
"""How often an element must be used for a pass over all of them to pay (as in rules/reuse/ahead.py)."""

_LEAST = 16
"""Terms that are worth a second form of the operands."""

_LONG = 64
"""Terms of a sum in place, at least."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """sources: types of factors. element: what pairs are of (numbers of 8 bits: of either sign). width: elements of one. total: of the sum. pair, dot: the ops."""

    sources: tuple[DType, ...]
    element: DType
    width: int
    total: DType
    pair: str
    dot: str


_Paired = tuple[str, int, str, DType]
"""A tensor, the dimension that its pairs lie along, what they are for, and the type of their elements."""

_BF16 = _Kind((bf16,), bf16, 2, f32, "pair_bf16", "dot_bf16")
_I16 = _Kind((i8, u8, i16), i16, 2, i32, "pair_i16", "dot_i16")
_I8 = _Kind((i8, u8), i8, 4, i32, "quad_i8", "dot_i8")


@dataclass(frozen=True, slots=True)
class _Product:
    """Both factors, the index that they are paired along, and the number of values of each index."""

    kind: _Kind
    reads: tuple[Read, Read]
    index: str
    extents: dict[str, int]

    @property
    def is_packed(self) -> bool:
        """Whether it is a contraction, which packs its operands: these are tensors then, made by regions of their own. Windows have tiles for which filters are made one at a time."""
        return all(None not in plain_indices(read.subscripts) for read in self.reads)


def pair_products(graph: Graph, dot_bf16: float, dot_i16: float, dot_i8: float, strided: Set[str]) -> Graph:
    """The graph with such sums over pairs; sums in loops and of symbolic length stay as they are.

    Args:
        dot_bf16, dot_i16, dot_i8: of Target; 0: leave such sums. strided: inputs whose last dimension is not contiguous in memory.
    """
    dots = {_BF16: dot_bf16, _I8: dot_i8, _I16: dot_i16}
    kinds = [kind for kind, dot in dots.items() if dot]
    if not kinds:
        return graph
    tensors = tensors_of(graph)
    pairs: dict[_Paired, Tensor] = {}
    made: list[Op] = []
    for op in graph.ops:
        kind = _kind(op, kinds) if isinstance(op, Equation) else None
        if kind is None or not isinstance(op, Equation):
            made.append(op)
            continue
        boxed = with_padding(op, tensors) if kind.total == i32 and not op.domain.is_box() else None
        copies, whole = boxed if boxed is not None else ([], op)
        product = _product(whole, kind, tensors)
        if product is not None and _ahead_pays(product, tensors, dots[kind]):
            made += [*copies, *_ahead(whole, product, tensors, pairs)]
        elif product is not None and not copies and _in_place_pays(product, tensors, dots[kind], strided):
            made += _in_place(op, product, tensors)
        else:
            made.append(op)
    return with_ops(graph, made)


def _kind(equation: Equation, kinds: Sequence[_Kind]) -> _Kind | None:
    """What the sum is a sum of; None where it is none of these."""
    match equation.body:
        case Apply(op="mul", args=(Apply(op="cast", args=(Read() as x,)), Apply(op="cast", args=(Read() as y,)))):
            pass
        case _:
            return None
    if equation.reduce != "sum" or equation.padded:
        return None
    apart = equation.base is None and all({*equation.reduced} <= variables_in(read.subscripts) for read in (x, y))
    for kind in kinds:
        fits = equation.body.dtype == kind.total and {x.dtype, y.dtype} <= {*kind.sources}
        if fits and (kind != _I8 or x.dtype != y.dtype or apart):
            return kind
    return None


def _product(equation: Equation, kind: _Kind, tensors: dict[str, Tensor]) -> _Product | None:
    reads = reads_of(equation.body)
    if equation.instances is not None or len(reads) > 2:  # a place that is read is no dimension of pairs
        return None
    x, y = reads
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
    return _Product(kind, (x, y), best, extents)


def _dimension(read: Read, index: str, extent: int, tensors: dict[str, Tensor]) -> int | None:
    """The one dimension that the index runs along, over all of it; None where there is no such."""
    shape = tensors[read.tensor].shape
    if not all(isinstance(s, Affine) for s in read.subscripts) or not is_known(shape):
        return None
    found = [d for d, s in enumerate(read.subscripts) if isinstance(s, Affine) and index in s.variables()]
    if len(found) != 1 or read.subscripts[found[0]] != affine(index) or shape[found[0]] != affine(extent):
        return None
    return found[0]


def _uses(read: Read, product: _Product, tensors: dict[str, Tensor]) -> float:
    elements = element_count(tensors[read.tensor].shape)
    return prod(product.extents.values()) / max(elements, 1)


def _ahead_pays(product: _Product, tensors: dict[str, Tensor], dot: float) -> bool:
    """Two multiply-adds are what one instruction stands for."""
    return dot < 2 and all(_uses(read, product, tensors) >= _USES for read in product.reads)


def _in_place_pays(product: _Product, tensors: dict[str, Tensor], dot: float, strided: Set[str]) -> bool:
    """Beside the two multiply-adds there are conversions, two operations each, of elements that are not converted ahead."""
    uses = [_uses(read, product, tensors) for read in product.reads]
    converting = sum(0.0 if use >= _USES else 4 / max(use, 1.0) for use in uses)
    rows = product.kind.width == 2 and all(
        read.subscripts[-1] == affine(product.index)
        and read.tensor not in strided
        and read.dtype == product.kind.element
        for read in product.reads
    )
    return rows and product.extents[product.index] >= _LONG and dot < 2 + converting


def _ahead(equation: Equation, product: _Product, tensors: dict[str, Tensor], known: dict[_Paired, Tensor]) -> list[Op]:
    """The sum over tensors of pairs, and those that are not known yet."""
    made: list[Op] = []
    kind, (x, y) = product.kind, product.reads
    count = -(-product.extents[product.index] // kind.width)
    if kind != _I8:
        factors = tuple(_paired_tensor(read, product, kind.element, tensors, known, made) for read in (x, y))
        return [*made, _over_pairs(equation, product, count, factors)]
    first, second = (y, x) if (x.dtype, y.dtype) == (i8, u8) else (x, y)
    factors = tuple(
        _paired_tensor(read, product, side, tensors, known, made) for read, side in ((first, u8), (second, i8))
    )
    if first.dtype != second.dtype:
        return [*made, _over_pairs(equation, product, count, factors)]
    raw = replace(equation.result, name=fresh_name(f"{equation.result.name}_shifted", tensors))
    tensors[raw.name] = raw
    over_pairs = _over_pairs(replace(equation, result=raw), product, count, factors)
    # (x + 128) * w - 128 * w, or x * (w - 128) - x * -128: in bytes both numbers are 0x80.
    number = Const(0x80808080, u32)
    beside, products = (second, (number, factors[1])) if first.dtype == i8 else (first, (factors[0], number))
    excess = _excess(over_pairs, product, variables_in(beside.subscripts), products, tensors)
    left = equation.left
    whole = replace(
        equation,
        indices=left,
        reduced=(),
        reduce=None,
        domain=box(equation.result.name, left, product.extents),
        body=Apply("sub", (Read(raw.name, equation.target, i32), Read(excess.result.name, excess.target, i32)), i32),
    )
    return [*made, over_pairs, excess, whole]


def _excess(
    equation: Equation, product: _Product, known: Set[str], products: tuple[Expr, Expr], tensors: dict[str, Tensor]
) -> Equation:
    """What a shift by 128 adds to the sums over pairs: sums of products with that number, for each value of the indices that the other factor knows."""
    extents = box_extents(equation)
    assert extents is not None, "internal: sums over pairs on no box"
    left = tuple(i for i in equation.left if i in known)
    name = fresh_name(f"{equation.result.name}_excess", tensors)
    total = tensors[name] = Tensor(name, i32, tuple(affine(extents[i]) for i in left), equation.result.label)
    indices = (*left, *equation.reduced)
    return replace(
        equation,
        result=total,
        indices=indices,
        domain=box(name, indices, extents),
        target=tuple(map(affine, left)),
        body=Apply("dot_i8", products, i32),
        apart=product.is_packed,
    )


def _paired_tensor(
    read: Read,
    product: _Product,
    side: DType,
    tensors: dict[str, Tensor],
    known: dict[_Paired, Tensor],
    made: list[Op],
) -> Read:
    """The read of pairs in its place, of elements of the type `side`; the tensor of them is made where no other product needed it."""
    kind, extent = product.kind, product.extents[product.index]
    dimension = _dimension(read, product.index, extent, tensors)
    assert dimension is not None, "internal: a factor that is not paired along the index"
    key = (read.tensor, dimension, kind.dot, side)
    paired = known.get(key)
    if paired is None:
        source = tensors[read.tensor]
        name = fresh_name(f"{source.name}_pairs", tensors)
        count = affine(-(-extent // kind.width))
        shape = tuple(count if d == dimension else e for d, e in enumerate(source.shape))
        paired = tensors[name] = known[key] = Tensor(name, u32, shape, source.label)
        filled = fill(paired, _pair(source, dimension, extent, kind, side), None)
        made.append(replace(filled, apart=product.is_packed))
    return Read(paired.name, read.subscripts, u32)


def _pair(source: Tensor, dimension: int, extent: int, kind: _Kind, side: DType) -> Expr:
    places = [affine(f"i{d}") for d in range(len(source.shape))]

    def element(number: int) -> Expr:
        place = places[dimension] * kind.width + number
        subscripts = tuple(place if d == dimension else p for d, p in enumerate(places))
        value = _as(Read(source.name, subscripts, source.dtype), side)
        if number < extent % kind.width or extent % kind.width == 0:
            return value
        inside = Apply("lt", (IndexValue(place, i64), Const(extent, i64)), boolean)
        return Apply("select", (inside, value, Const(0.0 if side.is_half else 0, side)), side)

    return Apply(kind.pair, tuple(map(element, range(kind.width))), u32)


def _as(read: Read, side: DType) -> Expr:
    """The element as one of that type: itself, or, where u8 stands for i8 or the other way round, 128 more or less."""
    if read.dtype == side:
        return read
    cast = Apply("cast", (read,), side)
    return Apply("add", (cast, Const(128 if side == u8 else -128, side)), side) if side.bits == 8 else cast


def _over_pairs(equation: Equation, product: _Product, count: int, factors: tuple[Expr, ...]) -> Equation:
    extents = {**product.extents, product.index: count}
    domain = box(equation.result.name, equation.indices, extents)
    return replace(equation, domain=domain, body=Apply(product.kind.dot, factors, product.kind.total))


def _in_place(equation: Equation, product: _Product, tensors: dict[str, Tensor]) -> list[Op]:
    """The sum over the pairs, and the last term by itself where their number is odd."""
    index, extent = product.index, product.extents[product.index]

    def pair(read: Read) -> Expr:
        *outer, _ = read.subscripts
        elements = tuple(Read(read.tensor, (*outer, affine(index) * 2 + k), read.dtype) for k in range(2))
        return Apply(product.kind.pair, elements, u32)

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
        body=Apply("mul", tuple(Apply("cast", (read,), product.kind.total) for read in last), product.kind.total),
        accumulate=True,
        base=result,
    )
    return [whole, rest]
