"""Products that one elementwise statement reads, with their dimensions in another order, are made in that statement's order.

    t[a, c, b] = sum[d](x[a, d, b] * y[c, d])       becomes   t[c, b, a] = sum[d](x[a, d, b] * y[c, d])
    z[c, b, a] = relu(t[a, c, b])                             z[c, b, a] = relu(t[c, b, a])

What is left is the program that one statement would be. Which order the product is made in, and what lays it out, is decided from there (rules/layouts/laid_out.py, rules/layouts/turned_results.py); a copy alone is absorbed (rules/reuse/absorb.py).
"""

from __future__ import annotations

from dataclasses import replace

from polyml.expressions import Apply, Read, map_reads, reads_of
from polyml.graph.edit import in_order_of_result, protected_names, with_ops
from polyml.graph.ir import Equation, Graph, Op
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.traverse import users_of
from polyml.sets.affine import Affine

__all__ = ["order_like_readers"]


def order_like_readers(graph: Graph) -> Graph:
    """The graph with such products in the order of what reads them; those in loops stay as they are."""
    users = users_of(graph.ops)
    kept = protected_names(graph)
    made: list[Op] = list(graph.ops)
    makers = {op.result.name: k for k, op in enumerate(made) if isinstance(op, Equation) and _is_product(op)}
    for position, op in enumerate(graph.ops):
        if not isinstance(op, Equation) or not is_elementwise(op):
            continue
        for name in {read.tensor for read in reads_of(op.body)} & makers.keys() - kept:
            product, user = made[makers[name]], made[position]
            assert isinstance(product, Equation), "internal: a maker that is no equation"
            assert isinstance(user, Equation), "internal: a reader that is no equation"
            if users[name] == 1:
                made[makers[name]], made[position] = _reordered(product, user)
    return with_ops(graph, made)


def _reordered(product: Equation, user: Equation) -> tuple[Equation, Equation]:
    """Both with the product in the order of the statement that reads it, if that has all of its dimensions."""
    name = product.result.name
    found = {read.subscripts for read in reads_of(user.body) if read.tensor == name}
    (subscripts, *others) = found
    if others or subscripts == user.target or sorted(map(str, subscripts)) != sorted(map(str, user.target)):
        return product, user
    order = [subscripts.index(place) for place in user.target]
    result = replace(product.result, shape=tuple(product.result.shape[d] for d in order))
    target = tuple(product.target[d] for d in order)

    def moved(read: Read) -> Read:
        return Read(name, user.target, read.dtype) if read.tensor == name else read

    made = in_order_of_result(replace(product, result=result, target=target))
    return made, replace(user, body=map_reads(user.body, moved))


def _is_product(equation: Equation) -> bool:
    """Whether it is a plain product of two tensors."""
    body = equation.body
    if equation.reduce != "sum" or equation.base is not None or equation.instances is not None:
        return False
    if not isinstance(body, Apply) or body.op != "mul" or equation.padded or equation.apart:
        return False
    accesses = (equation.target, *(arg.subscripts for arg in body.args if isinstance(arg, Read)))
    return len(accesses) == 3 and all(isinstance(s, Affine) and s.name is not None for a in accesses for s in a)
