"""Which sizes of a program are windows': ranges of an index that a sum goes over, and that others are the place of."""

from __future__ import annotations

from collections.abc import Iterator

from polyml.einsum_frontend.syntax import (  # fmt: skip
    Assign,
    CallProgram,
    ForLoop,
    IfBlock,
    IndexRef,
    Pad,
    Program,
    SizeRef,
    Statement,
    Subscript,
)
from polyml.einsum_frontend.walk import index_names, walk

__all__ = ["window_sizes"]


def window_sizes(program: Program) -> frozenset[str]:
    """The sizes of a resolved program's parameters that are the length of a window: `r`'s in `x[p + r] * w[r]`, where `p` is an index of the result and `r` is none."""
    found = _windows(program)
    return frozenset(
        entry.name
        for parameter in program.parameters
        for dimension, entry in enumerate(parameter.shape or ())
        if isinstance(entry, SizeRef) and (parameter.name, dimension) in found
    )


def _windows(program: Program) -> set[tuple[str, int]]:
    """The tensors and dimensions that an index of a window alone goes along."""
    found: set[tuple[str, int]] = set()
    for statement in _simple(program.body):
        if isinstance(statement, Assign):
            found |= _of_assignment(statement)
        elif isinstance(statement, CallProgram):
            callee = program.programs[statement.callee]
            inside = _windows(callee)
            for parameter, given in zip(callee.parameters, statement.args, strict=False):
                if isinstance(given, Subscript) and isinstance(given.tensor, str) and not given.subscripts:
                    found |= {(given.tensor, at) for name, at in inside if name == parameter.name}
    return found


def _of_assignment(statement: Assign) -> set[tuple[str, int]]:
    kept = frozenset[str]().union(*map(index_names, statement.subscripts or ()))
    reads = [node for node in walk(statement.value) if isinstance(node, Subscript)]
    together = [index_names(subscript) for read in reads for subscript in read.subscripts]
    windows = frozenset[str]().union(*(names - kept for names in together if names & kept))
    return {
        (read.tensor.tensor if isinstance(read.tensor, Pad) else read.tensor, dimension)
        for read in reads
        for dimension, subscript in enumerate(read.subscripts)
        if isinstance(subscript, IndexRef) and subscript.name in windows
    }


def _simple(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """The statements that hold no others, at any depth."""
    for statement in body:
        match statement:
            case ForLoop(body=inner):
                yield from _simple(inner)
            case IfBlock(body=inner, orelse=other):
                yield from _simple((*inner, *other))
            case _:
                yield statement
