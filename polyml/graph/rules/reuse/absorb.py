"""Copies absorbed by what makes their source: `t = ..; y[m, n] = t[n, m]` becomes one equation that writes y, with its indices in y's order."""

from __future__ import annotations

from dataclasses import replace

from polyml.expressions import Read, plain_indices
from polyml.graph.edit import in_order_of_result, protected_names, with_name
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.traverse import all_ops, users_of
from polyml.renewed import renewed

__all__ = ["absorb_copies"]


def absorb_copies(graph: Graph) -> Graph:
    """The graph with whole-tensor copies and transposes of a tensor that nothing else uses made in place of that tensor."""
    single = {name for name, n in users_of(graph.ops).items() if n == 1} - protected_names(graph)
    # Making these earlier than written could overwrite what is still read.
    late = {item.final.name for item in graph.inputs if item.final is not None}
    late |= {c.next.name for op in all_ops(graph.ops) if isinstance(op, Loop) for c in op.carried}
    ops = _absorb(graph.ops, single, late)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _absorb(ops: tuple[Op, ...], single: set[str], late: set[str]) -> tuple[Op, ...]:
    result: list[Op | None] = list(ops)
    makers: dict[str, int] = {}
    for position, op in enumerate(ops):
        if isinstance(op, Loop):
            body = _absorb(op.body, single, late)
            if body is not op.body:
                result[position] = replace(op, body=body)
            for carried in op.carried:
                makers[carried.result.name] = position
            continue
        if not isinstance(op, Equation):
            continue
        read = _copied(op) if op.result.name not in late else None
        if read is not None and read.tensor in single and read.tensor in makers:
            made = makers[read.tensor]
            maker = result[made]
            moved = _retargeted(maker, read, op) if isinstance(maker, Equation) else _renamed(maker, read, op)
            if moved is not None:
                result[made], result[position] = moved, None
                makers[op.result.name] = made
                continue
        makers[op.result.name] = position
    kept = tuple(op for op in result if op is not None)
    return renewed(ops, kept)


def _copied(equation: Equation) -> Read | None:
    """The read of which the equation is a whole copy with dimensions in some order; None for anything else."""
    if not isinstance(equation.body, Read) or not is_elementwise(equation):
        return None
    names = plain_indices(equation.body.subscripts)
    complete = None not in names and len(set(names)) == len(names) and set(names) == set(equation.indices)
    return equation.body if complete else None


def _permuted(read: Read, copy: Equation) -> list[int]:
    """Per dimension of the copy, the dimension of its source."""
    return [read.subscripts.index(place) for place in copy.target]


def _retargeted(maker: Equation, read: Read, copy: Equation) -> Equation | None:
    order = _permuted(read, copy)
    if tuple(maker.result.shape[d] for d in order) != copy.result.shape:
        return None
    if maker.base is not None and order != list(range(len(order))):
        return None
    moved = replace(with_name(maker, copy.result), target=tuple(maker.target[d] for d in order))
    return in_order_of_result(moved)


def _renamed(maker: Op | None, read: Read, copy: Equation) -> Loop | None:
    """The loop with its carried result named as the copy's."""
    order = _permuted(read, copy)
    if not isinstance(maker, Loop) or order != list(range(len(copy.target))):
        return None
    source = next(c.result for c in maker.carried if c.result.name == read.tensor)
    if source.shape != copy.result.shape:
        return None

    def renamed(tensor: Tensor) -> Tensor:
        return copy.result if tensor.name == source.name else tensor

    return replace(maker, carried=tuple(replace(c, result=renamed(c.result)) for c in maker.carried))
