"""Facts of a resolved program that callers need: the rank of each tensor, which parameters it writes, what it returns."""

from __future__ import annotations

from typing import assert_never

from polyml.einsum_frontend.syntax import (
    Assign,
    CallProgram,
    Declare,
    ForLoop,
    IfBlock,
    Program,
    Return,
    Statement,
    Subscript,
)

__all__ = ["result_names", "result_ranks", "written_parameters"]


def result_names(program: Program) -> tuple[str, ...]:
    """The names that the program returns, in order."""
    last = program.body[-1] if program.body else None
    return last.names if isinstance(last, Return) else ()


def result_ranks(program: Program) -> tuple[int, ...]:
    """The number of dimensions of each result of a resolved program."""
    ranks = {parameter.name: len(parameter.shape or ()) for parameter in program.parameters}
    _note_ranks(program.body, program, ranks)
    return tuple(ranks[name] for name in result_names(program))


def _note_ranks(body: tuple[Statement, ...], program: Program, ranks: dict[str, int]) -> None:
    for statement in body:
        match statement:
            case Assign():
                ranks.setdefault(statement.target, len(statement.subscripts or ()))
            case Declare():
                ranks[statement.name] = len(statement.shape or ())
            case CallProgram():
                results = result_ranks(program.programs[statement.callee])
                for target, rank in zip(statement.targets, results, strict=True):
                    ranks.setdefault(target, rank)
            case ForLoop():
                _note_ranks(statement.body, program, ranks)
            case IfBlock():
                _note_ranks(statement.body, program, ranks)
                _note_ranks(statement.orelse, program, ranks)
            case Return():
                pass
            case _:
                assert_never(statement)


def written_parameters(program: Program) -> frozenset[str]:
    """The tensor parameters that a resolved program assigns, itself or through programs that it calls."""
    names = frozenset(parameter.name for parameter in program.parameters)
    return names & _written(program.body, program)


def _written(body: tuple[Statement, ...], program: Program) -> set[str]:
    written: set[str] = set()
    for statement in body:
        match statement:
            case Assign():
                written.add(statement.target)
            case CallProgram():
                callee = program.programs[statement.callee]
                inside = written_parameters(callee)
                written |= set(statement.targets)
                written |= {
                    arg.tensor
                    for parameter, arg in zip(callee.parameters, statement.args, strict=True)
                    if parameter.name in inside and isinstance(arg, Subscript) and isinstance(arg.tensor, str)
                }
            case ForLoop():
                written |= _written(statement.body, program)
            case IfBlock():
                written |= _written(statement.body, program) | _written(statement.orelse, program)
            case Declare() | Return():
                pass
            case _:
                assert_never(statement)
    return written
