"""Operands of sums that are converted, or taken apart, at each of many uses: once, into a tensor of what is computed with.

A matrix product reads each element of half precision as often as the other matrix has columns, and each part of a complex number twice as often. Ahead of it, `f32(x[i, k])`, `real(x[i, k])` and
`imag(x[i, k])` cost one pass over x, and the product is one of f32 matrices, which can be packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from polyml.expressions import Apply, Expr, Read, walk
from polyml.graph.build_parts import fill
from polyml.graph.edit import fresh_name
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import estimated_bytes, index_extents, tensors_of
from polyml.sets.affine import Affine, affine

__all__ = ["convert_once"]

_USES = 16
"""How often an element must be used for a pass over all of them to pay."""


def convert_once(graph: Graph) -> Graph:
    """The graph with such operands of sums made ahead of them, each once per block of ops."""
    tensors = tensors_of(graph)
    ops = _block(graph.ops, tensors)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _block(ops: tuple[Op, ...], tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    made: dict[Apply, Tensor] = {}
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Loop):
            body = _block(op.body, tensors)
            result.append(op if body is op.body else replace(op, body=body))
            continue
        if isinstance(op, Equation):
            for use in dict.fromkeys(_worth(op, tensors)):
                if use not in made:
                    made[use], equation = _ahead(use, op, tensors)
                    result.append(equation)
            op = replace(op, body=_replaced(op.body, made, tensors)) if made else op
        result.append(op)
    same = len(result) == len(ops) and all(new is old for new, old in zip(result, ops, strict=True))
    return ops if same else tuple(result)


def _converts(expr: Expr) -> bool:
    """Whether it is a part or the f32 of an element."""
    if not isinstance(expr, Apply) or not isinstance(expr.args[0], Read):
        return False
    return expr.op in ("real", "imag") or (expr.op == "cast" and expr.args[0].dtype.is_half)


def _whole(use: Apply, tensors: dict[str, Tensor]) -> Apply:
    """The same operation on the whole tensor, so that all uses of it are one."""
    read = use.args[0]
    assert isinstance(read, Read), "internal: an operation on an element"
    indices = tuple(affine(f"i{d}") for d in range(len(read.subscripts)))
    return Apply(use.op, (Read(read.tensor, indices, read.dtype),), use.dtype)


def _worth(equation: Equation, tensors: dict[str, Tensor]) -> Iterator[Apply]:
    """The operations on whole tensors whose results an equation uses often."""
    if equation.reduce != "sum" or not equation.reduced:
        return
    instances = prod(index_extents(equation).values())
    for node in walk(equation.body):
        if not isinstance(node, Apply) or not _converts(node):
            continue
        read = node.args[0]
        assert isinstance(read, Read), "internal: an operation on an element"
        tensor = tensors[read.tensor]
        plain = all(isinstance(s, Affine) for s in read.subscripts)
        elements = max(estimated_bytes(tensor) // tensor.dtype.itemsize, 1)
        if plain and tensor.shape and elements * _USES <= instances:
            yield _whole(node, tensors)


def _ahead(use: Apply, equation: Equation, tensors: dict[str, Tensor]) -> tuple[Tensor, Equation]:
    read = use.args[0]
    assert isinstance(read, Read), "internal: an operation on an element"
    source = tensors[read.tensor]
    name = fresh_name(f"{source.name}_{use.op if use.op != 'cast' else use.dtype.name}", tensors)
    tensor = tensors[name] = Tensor(name, use.dtype, source.shape, source.label)
    return tensor, fill(tensor, use, equation.span)


def _replaced(expr: Expr, made: dict[Apply, Tensor], tensors: dict[str, Tensor]) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    if _converts(expr):
        read = expr.args[0]
        assert isinstance(read, Read), "internal: an operation on an element"
        tensor = made.get(_whole(expr, tensors))
        if tensor is None or not all(isinstance(s, Affine) for s in read.subscripts):
            return expr
        return Read(tensor.name, read.subscripts, tensor.dtype)
    args = tuple(_replaced(arg, made, tensors) for arg in expr.args)
    same = all(new is old for new, old in zip(args, expr.args, strict=True))
    return expr if same else Apply(expr.op, args, expr.dtype)
