"""Graphs of programs given as text, executed by the NumPy reference, and refusals whose stretch is marked by « and »."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from polyml.dtypes import from_numpy
from polyml.einsum_frontend.arguments import ArgumentType, Signature
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_frontend.symbolic_ints import symbolic_ints
from polyml.einsum_frontend.syntax import Program
from polyml.errors import PolymlError
from polyml.graph.builder.program import build
from polyml.graph.ir import Graph
from polyml.graph.reference import execute
from polyml.graph.verify import verify
from polyml.source import Source

Array = npt.NDArray[np.generic]
Argument = Array | int | float


def program(parameters: str, *lines: str, namespace: Mapping[str, object] | None = None) -> Program:
    """The resolved program with `lines` as its body."""
    text = "\n".join([f"def f({parameters}):", *(f"    {line}" for line in lines)]) + "\n"
    return resolve(parse(Source(text)), namespace or {})


class Callee:
    """What stands in the enclosing scope for another einsum program."""

    def __init__(self, parameters: str, *lines: str, namespace: Mapping[str, object] | None = None) -> None:
        self.program = program(parameters, *lines, namespace=namespace)


def signature(source: Program, *arguments: Argument) -> Signature:
    """The signature of a call with these arguments."""
    symbolic = symbolic_ints(source)
    found: list[ArgumentType | int | None] = []
    for parameter, argument in zip(source.parameters, arguments, strict=True):
        if parameter.is_size:
            assert isinstance(argument, int)
            found.append(None if parameter.name in symbolic else argument)
        elif isinstance(argument, np.ndarray):
            found.append(ArgumentType(from_numpy(argument.dtype), argument.shape))
        else:
            assert parameter.dtype is not None
            found.append(ArgumentType(parameter.dtype))
    return Signature(tuple(found))


def graph(source: Program, *arguments: Argument, reorders: bool = False) -> Graph:
    """The graph for these arguments."""
    built = build(source, signature(source, *arguments), reorders=reorders)
    verify(built)
    return built


def run(source: Program, *arguments: Argument, reorders: bool = False) -> tuple[Array, ...]:
    """The program's results by the NumPy reference; written arguments are updated."""
    built = graph(source, *arguments, reorders=reorders)
    pairs = list(zip(source.parameters, arguments, strict=True))
    sizes = {p.name: a for p, a in pairs if p.is_size and isinstance(a, int)}
    return execute(built, [a for p, a in pairs if not p.is_size], sizes=sizes)


def check_refused(
    parameters: str,
    *lines: str,
    arguments: tuple[Argument, ...],
    error: type[PolymlError],
    message: str,
    hint: str = "",
) -> None:
    """Asserts that building is refused at exactly the stretch between « and »."""
    marked = "\n".join([f"def f({parameters}):", *(f"    {line}" for line in lines)]) + "\n"
    before, _, rest = marked.partition("«")
    stretch, closing, after = rest.partition("»")
    assert closing, "mark one stretch"
    source = resolve(parse(Source(before + stretch + after)), {})
    with pytest.raises(error, match=message) as caught:
        graph(source, *arguments)
    span = caught.value.span
    assert span is not None, str(caught.value)
    start = (before.count("\n") + 1, len(before) - before.rfind("\n") - 1)
    upto = before + stretch
    end = (upto.count("\n") + 1, len(upto) - upto.rfind("\n") - 1)
    assert ((span.line, span.column), (span.end_line, span.end_column)) == (start, end), str(caught.value)
    assert hint in (caught.value.hint or ""), str(caught.value)


def values(*shape: int, dtype: str = "f4") -> Array:
    """Small halves (floats) or integers in -3 .. 3."""
    numbers = np.arange(int(np.prod(shape))) * 5 % 7 - 3
    scaled = numbers / 2 if dtype.startswith("f") else numbers
    result: Array = scaled.reshape(shape).astype(dtype)
    return result
