"""Large sums of several products, as complex matrix products are: one sum per product.

`sum[k](a[i, k] * b[k, j] - c[i, k] * d[k, j])` over matrices that a core's cache does not hold is two contractions of two operands each, which can be blocked and packed. Small ones stay
together: they read and write their result once.

A product that is subtracted from a sum while another one like it is added to one is added, too, of a factor with the other sign: the real and the imaginary part of a complex product then run through the
same code, which is compiled once. The smaller factor, each element of which is used often, costs one more pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import prod

from polyml.expressions import Apply, Expr, Read, plain_index, reads_of, variables_in
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import estimated_bytes, index_extents, tensors_of
from polyml.new_names import fresh_name
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine

__all__ = ["split_products"]

_USES = 256
"""How often each element of a factor must be used for a pass over it to be next to nothing: reading and writing it takes the time of some 16 multiply-adds in vectors, of four products."""

_LONG = 64
"""Terms of sums that are regions of their own: of shorter ones the results are what goes through memory, and what is computed of these goes with them."""

_Terms = list[tuple[Apply, bool]]
"""Products, and whether each is subtracted."""


def split_products(graph: Graph, cache: int) -> Graph:
    """The graph with such sums split. cache: bytes that a core keeps close."""
    tensors = tensors_of(graph)
    ops = _block(graph.ops, tensors, cache)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...], tensors: dict[str, Tensor], cache: int) -> tuple[Op, ...]:
    split = {
        k: terms for k, op in enumerate(ops) if isinstance(op, Equation) and (terms := _terms_of(op, tensors, cache))
    }
    added = [_form(op, term, tensors) for op, term, negative in _continuing(ops, split) if not negative]
    result: list[Op] = []
    for k, op in enumerate(ops):
        if isinstance(op, Loop):
            body = _block(op.body, tensors, cache)
            result.append(op if body is op.body else replace(op, body=body))
        elif isinstance(op, Equation) and k in split:
            result += _split(op, split[k], tensors, added)
        else:
            result.append(op)
    return renewed(ops, result)


def _continuing(ops: tuple[Op, ...], split: Mapping[int, _Terms]) -> Iterator[tuple[Equation, Apply, bool]]:
    """The products but for the first one of each sum."""
    for k, terms in split.items():
        op = ops[k]
        assert isinstance(op, Equation), "internal: products of no equation"
        for term, negative in terms[1:]:
            yield op, term, negative


def _form(equation: Equation, product: Apply, tensors: Mapping[str, Tensor]) -> object:
    """What products that run through the same code have in common."""
    names = {index: affine(f"#{k}") for k, index in enumerate(equation.indices)}
    reads = [read for read in product.args if isinstance(read, Read)]
    places = [[s.substitute(names) if isinstance(s, Affine) else s for s in read.subscripts] for read in reads]
    return len(equation.reduced), [tensors[read.tensor].shape for read in reads], places


def _terms_of(equation: Equation, tensors: dict[str, Tensor], cache: int) -> _Terms:
    """The products and whether each is subtracted; none when the equation is to stay."""
    alone = equation.base is None and equation.instances is None
    if equation.reduce != "sum" or not equation.reduced or not alone or not equation.is_plain:
        return []
    if sum(estimated_bytes(tensors[name]) for name in {read.tensor for read in reads_of(equation.body)}) <= cache:
        return []
    terms = _terms(equation.body, False)
    products = [(term, negative) for term, negative in terms if isinstance(term, Apply) and _is_product(term)]
    return products if len(terms) > 1 and len(products) == len(terms) else []


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


def _split(equation: Equation, terms: _Terms, tensors: dict[str, Tensor], added: Collection[object]) -> list[Op]:
    """A sum of the first product, and one that continues it for each further one. added: the forms of products that are added to some sum."""
    made: list[Op] = []
    base: Tensor | None = None
    for number, (product, negative) in enumerate(terms):
        if negative and base is not None and _form(equation, product, tensors) in added:
            opposite = _opposite(equation, product, tensors)
            if opposite is not None:
                operand, product = opposite
                negative = False
                made.append(operand)
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


def _opposite(equation: Equation, product: Apply, tensors: dict[str, Tensor]) -> tuple[Equation, Apply] | None:
    """The smaller one of two factors with the other sign, and the product with that in its place; None where its elements are used a few times only, or sums are short."""
    reads = [
        arg for arg in product.args if isinstance(arg, Read) and all(plain_index(s) is not None for s in arg.subscripts)
    ]
    if not reads:
        return None
    chosen = min(reads, key=lambda read: estimated_bytes(tensors[read.tensor]))
    own, extents = variables_in(chosen.subscripts), index_extents(equation)
    uses = prod(extent for index, extent in extents.items() if index not in own)
    if uses < _USES or prod(extents[index] for index in equation.reduced) < _LONG:
        return None
    source = tensors[chosen.tensor]
    name = fresh_name(f"{source.name}_opposite", tensors)
    tensor = tensors[name] = replace(source, name=name)
    element = Read(source.name, tuple(affine(f"i{k}") for k in range(len(source.shape))), source.dtype)
    operand = fill(tensor, Apply("neg", (element,), source.dtype), equation.span)
    other = replace(chosen, tensor=name)
    return operand, Apply("mul", tuple(other if arg is chosen else arg for arg in product.args), product.dtype)
