"""Sums whose terms differ by the block that an index is in, one of a few, beside what the place in the block reads, are a sum for each block: codes of four bits, of which a byte has one of either half of a row,

    y[m, n] = sum[k < 2*H](x[m, k] * where(k < H, q[n, k % H] % 16, q[n, k % H] // 16))   becomes   y_0[m, n] = sum[j < H](x[m, j] * (q[n, j] % 16))
                                                                                                    y_1[m, n] = sum[j < H](x[m, j + H] * (q[n, j] // 16))

Source: index-set splitting, Allen and Kennedy, "Optimizing Compilers for Modern Architectures" (2002), section 5.7, for indices of sums instead of loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import islpy as isl

from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Expr, IndexValue, reads_of, walk
from polyml.graph.ir import Equation, Tensor
from polyml.graph.rules.algebra.restrict import exact_condition
from polyml.graph.rules.layouts.index_blocks import with_quotient
from polyml.graph.rules.sums.part_of_index import of_part
from polyml.sets.affine import Affine, FloorDiv, affine
from polyml.sets.spaces import parameters_of, parameters_text

__all__ = ["sums_of_blocks"]


def sums_of_blocks(equation: Equation, most: int, tensors: dict[str, Tensor]) -> list[Equation]:
    """A sum for each block of an index, up to so many, that says which case a term is one of; none where no index does."""
    for index, size, count in _blocks(equation, most):
        parts = [_of_block(equation, index, size, number, tensors) for number in range(count)]
        if all(part is not None for part in parts):
            return [part for part in parts if part is not None]
    return []


def _blocks(equation: Equation, most: int) -> Iterator[tuple[str, int, int]]:
    """Indices of the sum of which a place has the remainder, and numbers know more than that; the size of their blocks, and how many these are."""
    numbers = [node.affine for node in walk(equation.body) if isinstance(node, IndexValue)]
    for index in equation.reduced if numbers else ():
        position = equation.indices.index(index)
        low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
        if not (low.is_int() and high.is_int()) or low.to_python() < 0:
            continue
        if not any(index in number.variables() for number in numbers):
            continue
        for size in _remainders(equation, index):
            count = high.to_python() // size + 1
            if 1 < count <= most:
                yield index, size, count


def _remainders(equation: Equation, index: str) -> list[int]:
    """By what numbers it is divided for what a read goes by the remainder."""
    places = (s for read in reads_of(equation.body) for s in read.subscripts if isinstance(s, Affine))
    found = (
        atom.denominator
        for place in places
        for atom, factor in place.terms
        if isinstance(atom, FloorDiv)
        and atom.numerator.name == index
        and dict(place.terms).get(index, 0) * atom.denominator == -factor
    )
    return list(dict.fromkeys(found))


def _of_block(equation: Equation, index: str, size: int, number: int, tensors: dict[str, Tensor]) -> Equation | None:
    """The sum over one block; None where that does not say which case its terms are."""
    part = of_part(equation, index, 1, number * size, f"{equation.result.name}_{number}", tensors)
    inner = part.indices[equation.indices.index(index)]
    head = parameters_text(parameters_of(part.domain))
    block = isl.Set(f"{head}{{ {part.result.name}[{', '.join(part.indices)}] : 0 <= {inner} < {size} }}")
    part = replace(part, domain=part.domain.intersect(block))
    known = with_quotient(part, inner, size, affine(0))
    decided = replace(known, body=_decided(known.body, known))
    undecided = any(isinstance(node, IndexValue) and inner in node.affine.variables() for node in walk(decided.body))
    return None if undecided else decided


def _decided(expr: Expr, equation: Equation) -> Expr:
    """The expression with conditions that all points of the equation meet, or none, as what they are."""
    if not isinstance(expr, Apply):
        return expr
    text = exact_condition(expr) if expr.dtype == boolean else None
    if text is None:
        return expr.with_args(_decided(arg, equation) for arg in expr.args)
    head = parameters_text(parameters_of(equation.domain))
    met = isl.Set(f"{head}{{ {equation.result.name}[{', '.join(equation.indices)}] : {text} }}")
    if equation.domain.is_subset(met):
        return Const(value=True, dtype=expr.dtype)
    return Const(value=False, dtype=expr.dtype) if equation.domain.is_disjoint(met) else expr
