"""A graph in two, where some inputs are constants: what they alone decide is computed once, and the rest reads it.

Only whole equations move, and only where what they make takes no more memory than what they are made of, so that nothing is read that was cheaper to compute. Tables of costly functions of indices
(the factors of a Fourier transform) move, too: constants are made of them as of any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

import islpy as isl

from polyml.graph.ir import Equation, Graph, Input, Loop, Op, Tensor
from polyml.graph.traverse import LARGEST_TABLE, all_ops, estimated_bytes, is_cheap, read_names, tensors_of
from polyml.sets.shapes import is_known

__all__ = ["made_of_constants", "split_constants"]


def split_constants(graph: Graph, constants: Set[str]) -> tuple[Graph | None, Graph]:
    """The graph that makes new constants, its outputs, and the graph that is left, whose inputs they are, behind its own.

    Args:
        constants: names of inputs that never change. None in the first place: they decide nothing alone.
    """
    tensors = tensors_of(graph)
    folded = made_of_constants(graph, constants, tensors)
    rest = tuple(op for op in graph.ops if not (isinstance(op, Equation) and op.result.name in folded))
    read = {name for op in rest for name in read_names(op)}
    made = tuple(tensors[name] for name in folded if name in read)
    if not made:
        return None, graph
    inputs = tuple(item for item in graph.inputs if item.tensor.name in constants)
    ops = tuple(op for op in graph.ops if isinstance(op, Equation) and op.result.name in folded)
    once = Graph(
        name=f"{graph.name}_once", sizes=(), context=isl.Set("{ : }"), inputs=inputs, ops=ops, outputs=made,
        labels=graph.labels,
    )  # fmt: skip
    return once, replace(graph, inputs=(*graph.inputs, *(Input(tensor=tensor) for tensor in made)), ops=rest)


def made_of_constants(graph: Graph, constants: Set[str], tensors: dict[str, Tensor]) -> dict[str, None]:
    """Names of results that follow from constants, and are worth keeping, in order."""
    bytes_of = {name: estimated_bytes(tensors[name]) for name in constants}
    bound = {tensor.name for tensor in graph.outputs} | {i.final.name for i in graph.inputs if i.final is not None}
    bound |= set(_updated(graph.ops))
    found: dict[str, None] = {}
    for op in graph.ops:
        if not isinstance(op, Equation) or op.base is not None or op.result.name in bound:
            continue
        names = read_names(op)
        numbers = is_known(op.result.shape) and not op.domain.dim(isl.dim_type.param)
        if not numbers or not all(name in bytes_of for name in names):
            continue
        own = estimated_bytes(op.result)
        most = 2 * sum(bytes_of[name] for name in names)
        if not names and bytes_of and not is_cheap(op.body):
            most = LARGEST_TABLE
        if own <= most:
            bytes_of[op.result.name] = own
            found[op.result.name] = None
    return found


def _updated(ops: tuple[Op, ...]) -> Iterator[str]:
    """Tensors that something may be written into in place."""
    for op in all_ops(ops):
        if isinstance(op, Equation) and op.base is not None:
            yield op.base.name
        elif isinstance(op, Loop):
            yield from (carried.initial.name for carried in op.carried)
