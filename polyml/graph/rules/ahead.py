"""Operands of reductions that are computed at each of many uses: once, ahead of the reduction, into a tensor.

A matrix product reads each element of half precision as often as the other matrix has columns, and each part of a complex number twice as often; `sum[s](exp(k[s, d]) * v[s, e])` computes each
exponential as often as v has columns. Ahead of it, `f32(x[i, k])`, `real(x[i, k])` or `exp(k[s, d])` cost one pass over x or k, several sums can share it, and the product is one of plain
matrices, which can be packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from polyml.expressions import Apply, Expr, IndexValue, Read, map_reads, walk
from polyml.graph.build_parts import fill
from polyml.graph.edit import fresh_name
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import estimated_bytes, index_extents, is_cheap, tensors_of
from polyml.sets.affine import Affine, affine

__all__ = ["compute_once"]

_USES = 16
"""How often an element must be used for a pass over all of them to pay."""


def compute_once(graph: Graph) -> Graph:
    """The graph with such operands of reductions made ahead of them, each once per block of ops."""
    tensors = tensors_of(graph)
    ops = _block(graph.ops, tensors)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...], tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    made: dict[Expr, Tensor] = {}
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Loop):
            body = _block(op.body, tensors)
            result.append(op if body is op.body else replace(op, body=body))
            continue
        if isinstance(op, Equation):
            for use, source in dict.fromkeys(_worth(op, tensors)):
                if use not in made:
                    made[use], equation = _ahead(use, source, op, tensors)
                    result.append(equation)
            op = replace(op, body=_replaced(op.body, made, tensors)) if made else op
        result.append(op)
    same = len(result) == len(ops) and all(new is old for new, old in zip(result, ops, strict=True))
    return ops if same else tuple(result)


def _worth(equation: Equation, tensors: dict[str, Tensor]) -> Iterator[tuple[Apply, Tensor]]:
    """What an equation uses often, as an expression over a whole tensor, and that tensor."""
    if equation.reduce is None or not equation.reduced:
        return
    instances = prod(index_extents(equation).values())
    waiting: list[Expr] = [equation.body]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Apply):
            continue
        whole = _over_a_tensor(node, tensors)
        if whole is not None:
            use, read = whole
            tensor = tensors[read.tensor]
            elements = max(estimated_bytes(tensor) // tensor.dtype.itemsize, 1)
            if elements * _USES <= instances:
                yield use, tensor
                continue
        waiting += node.args


def _over_a_tensor(expr: Apply, tensors: dict[str, Tensor]) -> tuple[Apply, Read] | None:
    """The expression as one over all elements of a tensor, by its indices i0, i1, ..; and what it reads of that tensor. None when it costs nothing to speak of, or has no such form.

    Other tensors may be read by some of the same indices where these have the same extents: so every element can be computed, needed or not.
    """
    converts = isinstance(expr.args[0], Read) and expr.args[0].dtype.is_half and expr.op == "cast"
    if not (converts or expr.op in ("real", "imag") or (expr.dtype.is_float and not is_cheap(expr))):
        return None
    reads = list(dict.fromkeys(node for node in walk(expr) if isinstance(node, Read)))
    if not reads or any(isinstance(node, IndexValue) for node in walk(expr)):
        return None
    read = max(reads, key=lambda r: len(r.subscripts))
    shape = tensors[read.tensor].shape
    if not shape or not all(isinstance(s, Affine) for r in reads for s in r.subscripts):
        return None
    names = [f"i{d}" for d in range(len(shape))]
    if len(reads) == 1:
        return _rewritten(expr, {read: tuple(map(affine, names))}), read
    places = {s.name: d for d, s in enumerate(read.subscripts) if isinstance(s, Affine) and s.name is not None}
    if len(places) != len(shape):
        return None
    known: dict[Read, tuple[Affine, ...]] = {}
    for other in reads:
        dimensions = [places.get(s.name or "") for s in other.subscripts if isinstance(s, Affine)]
        extents = tensors[other.tensor].shape
        if any(d is None or shape[d] != extent for d, extent in zip(dimensions, extents, strict=True)):
            return None
        known[other] = tuple(affine(names[d]) for d in dimensions if d is not None)
    return _rewritten(expr, known), read


def _rewritten(expr: Apply, subscripts: dict[Read, tuple[Affine, ...]]) -> Apply:
    made = map_reads(expr, lambda read: Read(read.tensor, subscripts[read], read.dtype))
    assert isinstance(made, Apply), "internal: an operation stays one"
    return made


def _ahead(use: Apply, source: Tensor, equation: Equation, tensors: dict[str, Tensor]) -> tuple[Tensor, Equation]:
    name = fresh_name(f"{source.name}_{use.op if use.op != 'cast' else use.dtype.name}", tensors)
    tensor = tensors[name] = Tensor(name, use.dtype, source.shape, source.label)
    return tensor, fill(tensor, use, equation.span)


def _replaced(expr: Expr, made: dict[Expr, Tensor], tensors: dict[str, Tensor]) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    whole = _over_a_tensor(expr, tensors)
    if whole is not None and (tensor := made.get(whole[0])) is not None:
        return Read(tensor.name, whole[1].subscripts, tensor.dtype)
    args = tuple(_replaced(arg, made, tensors) for arg in expr.args)
    same = all(new is old for new, old in zip(args, expr.args, strict=True))
    return expr if same else Apply(expr.op, args, expr.dtype)
