"""Large sums of several products, as complex matrix products are: one sum per product.

`sum[k](a[i, k] * b[k, j] - c[i, k] * d[k, j])` over matrices that a core's cache does not hold is two contractions of two operands each, which can be blocked and packed. Small ones stay
together: they read and write their result once.
"""

from __future__ import annotations

from dataclasses import replace

from polyml.expressions import Apply, Expr, Read, reads_of, variables_in
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import estimated_bytes, tensors_of
from polyml.new_names import fresh_name
from polyml.renewed import renewed

__all__ = ["split_products"]


def split_products(graph: Graph, cache: int) -> Graph:
    """The graph with such sums split. cache: bytes that a core keeps close."""
    tensors = tensors_of(graph)
    ops = _block(graph.ops, tensors, cache)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...], tensors: dict[str, Tensor], cache: int) -> tuple[Op, ...]:
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Loop):
            body = _block(op.body, tensors, cache)
            result.append(op if body is op.body else replace(op, body=body))
        elif isinstance(op, Equation) and (terms := _terms_of(op, tensors, cache)):
            result += _split(op, terms, tensors)
        else:
            result.append(op)
    return renewed(ops, result)


def _terms_of(equation: Equation, tensors: dict[str, Tensor], cache: int) -> list[tuple[Expr, bool]]:
    """The products and whether each is subtracted; none when the equation is to stay."""
    alone = equation.base is None and equation.instances is None
    if equation.reduce != "sum" or not equation.reduced or not alone or not equation.is_plain:
        return []
    if sum(estimated_bytes(tensors[name]) for name in {read.tensor for read in reads_of(equation.body)}) <= cache:
        return []
    terms = _terms(equation.body, False)
    return terms if len(terms) > 1 and all(_is_product(term) for term, _ in terms) else []


def _terms(expr: Expr, negative: bool) -> list[tuple[Expr, bool]]:
    match expr:
        case Apply(op="add" | "sub" as op, args=(left, right)) if expr.dtype.is_float:
            return [*_terms(left, negative), *_terms(right, negative != (op == "sub"))]
        case Apply(op="neg", args=(inner,)) if expr.dtype.is_float:
            return _terms(inner, not negative)
        case _:
            return [(expr, negative)]


def _is_product(expr: Expr) -> bool:
    """Of two elements, each of which is used many times: an index of the other is not its own."""
    match expr:
        case Apply(op="mul", args=(Read() as x, Read() as y)):
            used = [variables_in(read.subscripts) for read in (x, y)]
            return not used[0] <= used[1] and not used[1] <= used[0]
        case _:
            return False


def _split(equation: Equation, terms: list[tuple[Expr, bool]], tensors: dict[str, Tensor]) -> list[Op]:
    """A sum of the first product, and one that continues it for each further one."""
    made: list[Op] = []
    base: Tensor | None = None
    for number, (product, negative) in enumerate(terms):
        result = equation.result
        if number < len(terms) - 1:
            name = fresh_name(f"{result.name}_product", tensors)
            result = tensors[name] = replace(result, name=name)
        made.append(
            replace(
                equation,
                result=result,
                domain=equation.domain.set_tuple_name(result.name),
                body=Apply("neg", (product,), product.dtype) if negative else product,
                accumulate=base is not None,
                base=base,
            )
        )
        base = result
    return made
