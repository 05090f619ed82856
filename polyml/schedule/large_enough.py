"""What must hold at a call for a schedule that was made for large sizes to pay, where extents are symbolic: conditions on products of them (`Schedule.worth`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

import islpy as isl

from polyml.expressions import reads_of
from polyml.schedule.schedule import Product
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine

__all__ = ["at_least", "extents_of", "known_context", "near_arrays"]


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
            context = context.intersect(isl.Set(f"[{', '.join(scop.sizes)}] -> {{ : {text} }}"))
    return context


def near_arrays(scop: Scop, worth: tuple[Product, ...], cache: int) -> frozenset[str]:
    """Arrays of symbolic size that take no more than `cache` bytes where all that must hold does."""
    return frozenset(array.name for array in scop.arrays.values() if any(_bounds(p, array, cache) for p in worth))


def _bounds(product: Product, array: Array, cache: int) -> bool:
    symbolic = [extent for extent in array.shape if not extent.is_constant]
    if product.most is None or not symbolic or Counter(symbolic) != Counter(product.extents):
        return False
    known = prod(extent.constant for extent in array.shape if extent.is_constant)
    return product.most * known * array.dtype.itemsize <= cache
