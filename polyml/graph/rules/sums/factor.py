"""Factors that do not depend on the reduced indices moved out of sums: `sum_k a[n] * x[n, k]` becomes `a[n] * sum_k x[n, k]`.

The sum then has only the indices that what is left in it knows: `sum_k a[n, f] * x[n, k]` becomes `a[n, f] * s[n]`, with `s[n] = sum_k x[n, k]`.

Where some elements have nothing to sum (half a matrix), they must stay zero whatever the factor is, unless nobody reads them and there is a factor for them; where they keep a base's, only the others are scaled.

The factor may sit in an elementwise producer that only scales: attention's `sum_j (e[i, j] / z[i]) * v[j, d]` divides once per result instead of once per weight.
The language allows it; results may differ in rounding (so it is off where the written order is asked for).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, plain_indices, product_of, reads_of, walk
from polyml.graph.builder.parts import variables_of
from polyml.graph.edit import protected_names
from polyml.graph.elements import all_elements, elements_at, elements_read
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.algebra.restrict import chosen_reads, restricted_to
from polyml.graph.rules.boxes import is_free
from polyml.graph.rules.reuse.inline import is_elementwise, read_through
from polyml.graph.traverse import all_ops, read_names, tensors_of, users_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["factor_sums"]


def factor_sums(graph: Graph, only: Container[str] | None = None) -> Graph:
    """The graph with the factors that a sum's reduced indices do not reach applied after the sum. only: of tensors of these names (None: all)."""
    once = {name for name, n in users_of(graph.ops).items() if n == 1} - protected_names(graph)
    ops = _factor_block(graph.ops, once, set(tensors_of(graph)), graph, only)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _factor_block(
    ops: tuple[Op, ...], once: set[str], taken: set[str], graph: Graph, only: Container[str] | None
) -> tuple[Op, ...]:
    result: list[Op] = []
    scalings: dict[str, Equation] = {}
    overwritten = {op.base.name for op in all_ops(ops) if isinstance(op, Equation) and op.base is not None}
    overwritten |= {c.initial.name for op in all_ops(ops) if isinstance(op, Loop) for c in op.carried}
    for op in ops:
        match op:
            case Loop():
                body = _factor_block(op.body, once, taken, graph, only)
                result.append(op if body is op.body else replace(op, body=body))
            case Equation():
                wanted = only is None or op.result.name in only
                pair = _factored(op, scalings, taken, graph) if wanted else None
                result += [op] if pair is None else pair
                if _is_scaling(op) and op.result.name in once and not overwritten & set(read_names(op)):
                    scalings[op.result.name] = op
            case _:
                result.append(op)
    return renewed(ops, result)


@dataclass(slots=True)
class _Product:
    """A body as a product: what stays in the sum, and what is multiplied with or divided by afterwards."""

    inside: list[Expr]
    times: list[Expr]
    over: list[Expr]


def _factored(equation: Equation, scalings: Mapping[str, Equation], taken: set[str], graph: Graph) -> list[Op] | None:
    """The sum without its invariant factors and the equation that applies them; None when there are none."""
    numeric = equation.result.dtype.is_float or equation.result.dtype.is_integer
    if equation.reduce != "sum" or not equation.reduced or equation.accumulate or not numeric:
        return None
    product = _Product([], [], [])
    _split(equation.body, equation, scalings, product)
    if not product.inside or not (product.times or product.over):
        return None
    left = equation.left
    if tuple(plain_indices(equation.target)) != left:
        return None
    points = equation.domain.reset_tuple_id().project_out(isl.dim_type.set, len(left), len(equation.reduced))
    whole = all_elements(equation.result)
    if equation.base is not None:
        whole = points if equation.instances is None else equation.instances.reset_tuple_id()
    if not whole.intersect_params(graph.context).is_subset(points):
        factors = [*product.times, *product.over]
        if not _read_within(equation, points, graph) or not _are_there(factors, left, points, whole, graph):
            return None
    summed = _summed(equation, product.inside, taken, graph)
    dtype = equation.result.dtype
    body: Expr = Read(summed.result.name, summed.target, dtype)
    for factor in product.times:
        body = Apply("mul", (body, factor), dtype)
    for divisor in product.over:
        body = Apply("div", (body, divisor), dtype)
    scaled = replace(
        equation,
        indices=left,
        domain=whole.set_tuple_name(equation.result.name),
        body=body,
        reduce=None,
        reduced=(),
        instances=None,
    )
    return [summed, scaled]


def _summed(equation: Equation, factors: Sequence[Expr], taken: set[str], graph: Graph) -> Equation:
    """The sum of these factors' product, a tensor without the indices that neither they nor a condition name."""
    result, body, domain = equation.result, product_of(factors), equation.domain
    known = variables_of(body)
    kept: list[int] = []
    for d, index in reversed([*enumerate(equation.left)]):
        if index in known or not is_free(equation, index, result.shape[d], graph):
            kept.insert(0, d)
        else:
            domain = domain.project_out(isl.dim_type.set, d, 1)
    name = fresh_name(f"{result.name}_sum", taken)
    taken.add(name)
    return replace(
        equation,
        result=Tensor(name, result.dtype, tuple(result.shape[d] for d in kept), result.label),
        indices=(*(equation.left[d] for d in kept), *equation.reduced),
        target=tuple(equation.target[d] for d in kept),
        domain=domain.set_tuple_name(name),
        body=body,
        base=None,
        instances=None,
    )


def _split(expr: Expr, equation: Equation, scalings: Mapping[str, Equation], product: _Product) -> None:
    """Sorts the factors of an expression."""
    if not _depends(expr, equation.reduced):
        product.times.append(expr)
        return
    match expr:
        case Apply(op="mul", args=(x, y)):
            _split(x, equation, scalings, product)
            _split(y, equation, scalings, product)
        case Apply(op="div", args=(x, y)) if expr.dtype.is_float and not _depends(y, equation.reduced):
            _split(x, equation, scalings, product)
            product.over.append(y)
        case Read() if expr.tensor in scalings:
            through = read_through(scalings[expr.tensor], expr)
            trial = _Product([], [], [])
            if through is not None:
                _split(through, equation, {}, trial)
            if len(trial.inside) == 1 and isinstance(trial.inside[0], Read):
                product.inside += trial.inside
                product.times += trial.times
                product.over += trial.over
            else:
                product.inside.append(expr)
        case _:
            product.inside.append(expr)


def _is_scaling(equation: Equation) -> bool:
    return (
        is_elementwise(equation)
        and isinstance(equation.body, Apply)
        and equation.body.op in ("mul", "div")
        and equation.result.dtype.is_float
    )


def _depends(expr: Expr, indices: Sequence[str]) -> bool:
    """True when the value changes with one of the indices."""
    names = set(indices)
    for node in walk(expr):
        match node:
            case IndexValue():
                if names & node.affine.variables():
                    return True
            case Read():
                if any(isinstance(s, Affine) and names & s.variables() for s in node.subscripts):
                    return True
            case Const() | Apply():
                pass
    return False


def _are_there(factors: Sequence[Expr], left: Sequence[str], points: isl.Set, whole: isl.Set, graph: Graph) -> bool:
    """Whether what the factors read exists at elements without anything to sum, too, which are scaled like the others: nobody has checked places there that are values."""
    tensors = tensors_of(graph)
    for read in (read for factor in factors for read in reads_of(factor)):
        if not all(isinstance(s, Affine) for s in read.subscripts):
            return False
        known = elements_at(points, left, read.subscripts).union(all_elements(tensors[read.tensor]))
        if not elements_at(whole, left, read.subscripts).intersect_params(graph.context).is_subset(known):
            return False
    return True


def _read_within(equation: Equation, points: isl.Set, graph: Graph) -> bool:
    """Whether elements without anything to sum, which must stay zero, are read by nobody, but for what a selection then leaves out."""
    name = equation.result.name
    if name in protected_names(graph):
        return False
    for op in all_ops(graph.ops):
        match op:
            case Equation():
                expressions: list[Expr] = [op.body, *(s for s in op.target if not isinstance(s, Affine))]
                reads = [found for e in expressions for found in chosen_reads(e) if found[0].tensor == name]
                kept = op.base is not None and op.base.name == name
                read_elements = (
                    elements_read(restricted_to(op, conditions) if conditions else op, read).intersect_params(
                        graph.context
                    )
                    for read, conditions in reads
                )
                if kept or not all(elements.is_subset(points) for elements in read_elements):
                    return False
            case Loop() if any(name in (c.initial.name, c.next.name) for c in op.carried):
                return False
            case _:
                pass
    return True
