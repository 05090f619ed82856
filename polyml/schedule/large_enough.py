"""What must hold at a call for a schedule that was made for large sizes to pay, where extents are symbolic: conditions on products of them (`Schedule.worth`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import prod

import islpy as isl

from polyml.expressions import reads_of
from polyml.schedule.schedule import Product
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine
from polyml.sets.spaces import parameters_text

__all__ = ["at_least", "bytes_at_hand", "extents_of", "far_arrays", "holds", "known_context", "near_arrays", "within"]


def extents_of(scop: Scop, statement: Statement) -> dict[str, Affine]:
    """Per index that stands alone in a subscript the extent of that dimension, which its values stay below."""
    found: dict[str, Affine] = {}
    accesses = [(read.tensor, read.subscripts) for read in reads_of(statement.value)]
    for name, subscripts in (*accesses, (statement.target.array, statement.target.subscripts)):
        for subscript, extent in zip(subscripts, scop.arrays[name].shape, strict=True):
            if isinstance(subscript, Affine) and subscript.name in statement.indices:
                found.setdefault(subscript.name, extent)
    return found


def at_least(scop: Scop, statement: Statement, least: Mapping[str, int]) -> tuple[Product, ...]:
    """That these indices of the statement have so many values, as far as that is no number."""
    extents = extents_of(scop, statement)
    asked = ((extents[index], count) for index, count in least.items() if index in extents)
    return tuple(dict.fromkeys(Product((extent,), count) for extent, count in asked if not extent.is_constant))


def within(extents: Collection[Affine], least: int = 0, most: int | None = None) -> tuple[Product, ...]:
    """That a product of extents is at least and at most so much, as far as it is no number."""
    symbolic = tuple(extent for extent in extents if not extent.is_constant)
    known = max(1, prod(extent.constant for extent in extents if extent.is_constant))
    return (Product(symbolic, -(-least // known), None if most is None else most // known),) if symbolic else ()


def holds(product: Product, numbers: Mapping[str, int]) -> bool:
    """Whether a call with these sizes is within the product's limits."""
    found = prod(extent.evaluate(numbers) for extent in product.extents)
    most = found if product.most is None else product.most
    other = bool(product.no_multiple) and found % product.no_multiple == 0
    return product.least <= found <= most and found % product.multiple == 0 and not other


def bytes_at_hand(scop: Scop, array: Array) -> int:
    """Of an array in the call that the kernel is compiled for; 0 where its sizes are not known."""
    if any(not extent.variables() <= scop.examples.keys() for extent in array.shape):
        return 0
    return array.dtype.itemsize * prod(extent.evaluate(scop.examples) for extent in array.shape)


def known_context(scop: Scop, worth: tuple[Product, ...]) -> isl.Set:
    """What is known of the sizes where all that must hold does: what is asked of single extents is quasi-affine."""
    context = scop.context
    for product in worth:
        if len(product.extents) == 1:
            (extent,) = product.extents
            limits = [f"{extent.isl_text()} >= {product.least}"]
            limits += [] if product.most is None else [f"{extent.isl_text()} <= {product.most}"]
            limits += [f"({extent.isl_text()}) mod {product.multiple} = 0"] if product.multiple > 1 else []
            text = " and ".join(limits)
            context = context.intersect(isl.Set(f"{parameters_text(scop.sizes)}{{ : {text} }}"))
    return context


def near_arrays(scop: Scop, worth: tuple[Product, ...], cache: int, *, large: bool = False) -> frozenset[str]:
    """Arrays of symbolic size that take no more than `cache` bytes where all that must hold does, or half of that in the call at hand; large: in a version for large calls, which that call need not be one of."""
    limits = {
        a.name: [p.most * _bytes_each(a) for p in worth if p.most is not None and _is_size_of(p, a)]
        for a in scop.arrays.values()
    }
    proved = {name for name, most in limits.items() if min(most, default=cache + 1) <= cache}
    if large:
        return frozenset(proved)
    at_hand = {name for name, array in scop.arrays.items() if 0 < bytes_at_hand(scop, array) <= cache // 2}
    return frozenset(proved | (at_hand - far_arrays(scop, worth, cache)))


def far_arrays(scop: Scop, worth: tuple[Product, ...], cache: int) -> frozenset[str]:
    """Those that take more."""
    limits = {a.name: [p.least * _bytes_each(a) for p in worth if _is_size_of(p, a)] for a in scop.arrays.values()}
    return frozenset(name for name, least in limits.items() if max(least, default=0) > cache)


def _is_size_of(product: Product, array: Array) -> bool:
    """Whether it is that of the array's symbolic extents."""
    symbolic = [extent for extent in array.shape if not extent.is_constant]
    return bool(symbolic) and Counter(symbolic) == Counter(product.extents)


def _bytes_each(array: Array) -> int:
    """Bytes of an array for each one of the product of its symbolic extents."""
    return prod(extent.constant for extent in array.shape if extent.is_constant) * array.dtype.itemsize
