"""Which `int` parameters stay symbolic, so that a new value needs no new compilation."""

from __future__ import annotations

from polyml.einsum_frontend.quasi_affine import nodes
from polyml.einsum_frontend.syntax import (
    Assign,
    Binary,
    CallProgram,
    Declare,
    Expression,
    ForLoop,
    IfBlock,
    IndexRef,
    LoopRef,
    Number,
    Program,
    Return,
    SizeRef,
    Statement,
    Unary,
)

__all__ = ["symbolic_ints"]


def symbolic_ints(program: Program) -> frozenset[str]:
    """The `int` parameters that may stay symbolic: all but those that divide or multiply an index, and those that an argument's shape gives.

    A shape gives an int where it is the only one in an entry of a parameter's shape: its value changes with the shape alone.
    """
    ints = frozenset(parameter.name for parameter in program.parameters if parameter.is_size)
    given: set[str] = set()
    for parameter in program.parameters:
        for entry in parameter.shape or ():
            used = _names(entry) & ints
            given |= used if len(used) == 1 else set()
    return ints - given - _numbers(program) if ints else ints


def _numbers(program: Program) -> set[str]:
    """The sizes that divide or multiply an index."""
    fixed: set[str] = set()
    for parameter in program.parameters:
        for entry in parameter.shape or ():
            _collect_in(entry, fixed)
    for statement in program.body:
        _collect(statement, program, fixed)
    loops = _loops(program.body)
    for _ in loops:  # bounds may mention outer variables: as many rounds as there are loops reach the fixed point
        for loop in loops:
            if loop.variable in fixed:
                fixed |= _names(loop.start) | _names(loop.stop)
    return fixed


def _names(node: Expression) -> set[str]:
    return {n.name for n in nodes(node) if isinstance(n, SizeRef | LoopRef)}


def _loops(body: tuple[Statement, ...]) -> list[ForLoop]:
    found: list[ForLoop] = []
    for statement in body:
        match statement:
            case ForLoop():
                found += [statement, *_loops(statement.body)]
            case IfBlock():
                found += _loops(statement.body) + _loops(statement.orelse)
            case _:
                pass
    return found


def _collect(statement: Statement, program: Program, fixed: set[str]) -> None:
    """Adds the sizes and loop variables of a statement that divide or multiply an index."""
    match statement:
        case Assign():
            for subscript in statement.subscripts or ():
                _collect_in(subscript, fixed)
            _collect_in(statement.value, fixed)
        case Declare():
            for entry in statement.shape or ():
                _collect_in(entry, fixed)
        case ForLoop():
            for bound in (statement.start, statement.stop):
                _collect_in(bound, fixed)
            fixed |= _names(statement.step)
            for inner in statement.body:
                _collect(inner, program, fixed)
        case IfBlock():
            _collect_in(statement.condition, fixed)
            for inner in (*statement.body, *statement.orelse):
                _collect(inner, program, fixed)
        case CallProgram():
            callee = program.programs[statement.callee]
            numbers = _numbers(callee)
            for parameter, arg in zip(callee.parameters, statement.args, strict=False):
                if parameter.is_size and parameter.name in numbers:
                    fixed |= _names(arg)
        case Return():
            pass


def _collect_in(value: Expression, fixed: set[str]) -> None:
    for node in nodes(value):
        if isinstance(node, Binary) and node.op in ("*", "//", "%"):
            _collect_product(node, fixed)


def _collect_product(node: Binary, fixed: set[str]) -> None:
    """Sizes that multiply or divide other index arithmetic."""

    def arithmetic(side: Expression) -> bool:
        return all(isinstance(n, Number | SizeRef | LoopRef | IndexRef | Binary | Unary) for n in nodes(side))

    if not (arithmetic(node.left) and arithmetic(node.right)):
        return
    if node.op in ("//", "%"):
        fixed |= _names(node.right)
    elif not isinstance(node.left, Number) and not isinstance(node.right, Number):
        fixed |= _names(node.left) | _names(node.right)
