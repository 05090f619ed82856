"""Sizes of a scop that are products of its other sizes: as many values as an index has that stands for two (joined_indices.py). To isl they are sizes like any others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import IndexValue, Read, variables_in, walk
from polyml.new_names import underscored
from polyml.scop.relations import in_order, rebuilt
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["product_of", "with_used_sizes"]


def product_of(scop: Scop, extents: Sequence[Affine]) -> tuple[Scop, Affine]:
    """The product, with the scop that knows it: affine if at most one factor is no number, else a size of its own, the same one for the same factors. Extents of arrays, which have elements: so does
    the product, and it is no larger than memory."""
    factors: list[Affine] = []
    for extent in extents:
        known = scop.products.get(extent.name) if extent.name is not None else None
        factors += [extent] if known is None else known
    number = 1
    for factor in factors:
        number *= factor.constant if factor.is_constant else 1
    others = sorted((factor for factor in factors if not factor.is_constant), key=str)
    if len(others) < 2:
        return scop, others[0] * number if others else affine(number)
    made = (*([affine(number)] if number != 1 else []), *others)
    for name, known in scop.products.items():
        if known == made:
            return scop, affine(name)
    taken = {*scop.sizes, *scop.arrays, *(index for s in scop.statements.values() for index in s.indices)}
    wish = underscored("_".join(factor.name or "n" for factor in others), taken)
    sizes = (*scop.sizes, wish)
    context = scop.context.intersect(isl.Set(f"{parameters_text(sizes)}{{ : {wish} >= 1 }}"))
    made_with = replace(scop, sizes=sizes, context=context, products={**scop.products, wish: made})
    return replace(made_with, examples=made_with.with_products(scop.examples)), affine(wish)


def with_used_sizes(scop: Scop) -> Scop:
    """The scop, which has no sequential loops, without the sizes that nothing in it uses any more, and with the same order of sizes in all its sets."""
    used = {name for statement in scop.statements.values() for name in _sizes_in(statement)}
    used |= {name for array in scop.arrays.values() for extent in array.shape for name in extent.variables()}
    sizes = tuple(size for size in scop.sizes if size in used)
    statements = {s.name: replace(s, domain=_within(s.domain, sizes)) for s in scop.statements.values()}
    products = {name: factors for name, factors in scop.products.items() if name in used}
    slim = replace(scop, sizes=sizes, context=_within(scop.context, sizes), products=products)
    return rebuilt(replace(slim, initial=in_order(statements, sizes)), statements, slim.arrays)


def _sizes_in(statement: Statement) -> Iterator[str]:
    parameters = isl.dim_type.param
    for position in range(statement.domain.dim(parameters)):
        if statement.domain.involves_dims(parameters, position, 1):
            name = statement.domain.get_dim_name(parameters, position)
            assert name is not None, "internal: a size without a name"
            yield name
    yield from variables_in(statement.target.subscripts)
    for expr in (statement.value, *(s for s in statement.target.subscripts if not isinstance(s, Affine))):
        for node in walk(expr):
            if isinstance(node, IndexValue):
                yield from node.affine.variables()
            elif isinstance(node, Read):
                yield from variables_in(node.subscripts)


def _within(points: isl.Set, sizes: Sequence[str]) -> isl.Set:
    parameters = isl.dim_type.param
    for position in reversed(range(points.dim(parameters))):
        if points.get_dim_name(parameters, position) not in sizes:
            points = points.project_out(parameters, position, 1)
    return points.align_params(isl.Set(f"{parameters_text(sizes)}{{ : }}").get_space())
