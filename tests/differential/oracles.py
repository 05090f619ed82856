"""What the differential tests share: one way to run a program per oracle."""

from __future__ import annotations

import numpy as np

from polyml.einsum_frontend.arguments import ArgumentType, Signature
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_frontend.symbolic_ints import symbolic_ints
from polyml.errors import PolymlError
from polyml.graph.builder.program import build
from polyml.graph.reference import execute
from polyml.source import Source
from polyml.testing.cases import Argument


def results_of(found: object) -> tuple[np.ndarray, ...]:
    return found if isinstance(found, tuple) else () if found is None else (found,)  # type: ignore[return-value]


def run_graph(text: str, arguments: tuple[Argument, ...]) -> tuple[np.ndarray, ...]:
    """The results by the graph's reference, in the graph's dtypes; written parameters are updated."""
    program = resolve(parse(Source(text)), {})
    symbolic = symbolic_ints(program)
    signature: list[ArgumentType | int | None] = []
    inputs, sizes = [], {}
    for parameter, argument in zip(program.parameters, arguments, strict=True):
        if parameter.dtype is None:
            assert isinstance(argument, int)
            sizes[parameter.name] = argument
            signature.append(None if parameter.name in symbolic else argument)
        else:
            signature.append(ArgumentType(parameter.dtype, np.shape(argument)))
            inputs.append(argument)
    try:
        graph = build(program, Signature(tuple(signature), {name: sizes[name] for name in symbolic}))
    except PolymlError:  # it is right for some numbers only, as the driver finds out, too
        numbers = [sizes[p.name] if p.dtype is None else s for p, s in zip(program.parameters, signature, strict=True)]
        graph = build(program, Signature(tuple(numbers)))
    found = execute(graph, inputs, sizes={name: sizes[name] for name in graph.sizes}, wide=True)
    return tuple(np.asarray(v).astype(t.dtype.numpy) for v, t in zip(found, graph.outputs, strict=True))
