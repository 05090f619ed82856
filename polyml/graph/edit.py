"""Edits of ops that several rewrite rules need; each gives the same object back when nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import islpy as isl

from polyml.expressions import Expr, Read, map_reads
from polyml.graph.ir import Carried, Check, Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import all_ops
from polyml.new_names import fresh_name
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = [
    "in_order_of_result",
    "map_equations",
    "map_expressions",
    "new_tensor",
    "protected_names",
    "rename_uses",
    "replace_equations",
    "with_name",
    "with_ops",
]


def with_ops(graph: Graph, ops: Iterable[Op]) -> Graph:
    """The graph with other ops; itself where they are those that it has."""
    made = renewed(graph.ops, ops)
    return graph if made is graph.ops else replace(graph, ops=made)


def map_equations(ops: tuple[Op, ...], change: Callable[[Equation], Equation]) -> tuple[Op, ...]:
    """All equations, those in loop bodies too, changed."""
    return replace_equations(ops, lambda equation: (change(equation),))


def replace_equations(ops: tuple[Op, ...], change: Callable[[Equation], Sequence[Op]]) -> tuple[Op, ...]:
    """Each equation, those in loop bodies too, replaced by the ops that it becomes."""
    changed: list[Op] = []
    for op in ops:
        match op:
            case Equation():
                changed += change(op)
            case Loop():
                body = replace_equations(op.body, change)
                changed.append(op if body is op.body else replace(op, body=body))
            case Check():
                changed.append(op)
            case _:
                assert_never(op)
    return renewed(ops, changed)


def map_expressions(equation: Equation, change: Callable[[Expr], Expr]) -> Equation:
    """The equation with its body, and the expressions among its target's subscripts, changed."""
    body = change(equation.body)
    target = renewed(equation.target, (s if isinstance(s, Affine) else change(s) for s in equation.target))
    same = body is equation.body and target is equation.target
    return equation if same else replace(equation, body=body, target=target)


def rename_uses(ops: tuple[Op, ...], names: Mapping[str, Tensor]) -> tuple[Op, ...]:
    """Every use of the tensors (reads, bases, initial and next values, flags) replaced by other tensors of the same type."""
    if not names:
        return ops

    def expression(expr: Expr) -> Expr:
        return map_reads(expr, lambda r: Read(names[r.tensor].name, r.subscripts, r.dtype) if r.tensor in names else r)

    def use(tensor: Tensor) -> Tensor:
        return names.get(tensor.name, tensor)

    def rename(op: Op) -> Op:
        match op:
            case Equation():
                changed = map_expressions(op, expression)
                base = None if op.base is None else use(op.base)
                flag = None if op.only_if is None else use(op.only_if)
                same = base is op.base and flag is op.only_if
                return changed if same else replace(changed, base=base, only_if=flag)
            case Loop():
                body = rename_uses(op.body, names)
                carried = tuple(Carried(use(c.initial), c.inner, use(c.next), c.result) for c in op.carried)
                return op if body is op.body and carried == op.carried else replace(op, body=body, carried=carried)
            case Check():
                return op if op.flag.name not in names else replace(op, flag=use(op.flag))
            case _:
                assert_never(op)

    changed = tuple(map(rename, ops))
    return renewed(ops, changed)


def protected_names(graph: Graph) -> set[str]:
    """Tensors that must stay as they are: outputs, final values, and what loops pass on from one iteration to the next."""
    found = {tensor.name for tensor in graph.outputs}
    found |= {item.final.name for item in graph.inputs if item.final is not None}
    return found | {c.next.name for op in all_ops(graph.ops) if isinstance(op, Loop) for c in op.carried}


def with_name(equation: Equation, result: Tensor) -> Equation:
    """The same equation making another tensor (of the same type)."""
    instances = None if equation.instances is None else equation.instances.set_tuple_name(result.name)
    return replace(equation, result=result, domain=equation.domain.set_tuple_name(result.name), instances=instances)


def new_tensor(like: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Another tensor of the same type, under a name that none of `tensors` has, to which it is added."""
    # isl reads no names with dots in them, as labels of inner sums have (y.sum).
    tensor = replace(like, name=fresh_name(like.label.replace(".", "_"), tensors))
    tensors[tensor.name] = tensor
    return tensor


def in_order_of_result(equation: Equation) -> Equation:
    """The equation with the indices of its left side in the order of the result's dimensions, where these are its subscripts: what looks for a product's layout finds it there."""
    names = [s.name for s in equation.target if isinstance(s, Affine) and s.name is not None]
    left = equation.left
    whole = len(names) == len(equation.target) and sorted(names) == sorted(left)
    if not whole or tuple(names) == left or equation.base is not None or equation.instances is not None:
        return equation
    indices, name = (*names, *equation.reduced), equation.result.name
    order = isl.Map(f"{{ {name}[{', '.join(equation.indices)}] -> {name}[{', '.join(indices)}] }}")
    return replace(equation, indices=indices, domain=equation.domain.apply(order))
