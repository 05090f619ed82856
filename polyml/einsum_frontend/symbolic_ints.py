"""Which `int` parameters stay symbolic, so that a new value needs no new compilation."""

from __future__ import annotations

from polyml.einsum_frontend.names import looks_made
from polyml.einsum_frontend.quasi_affine import nodes
from polyml.einsum_frontend.syntax import (
    Assign,
    Binary,
    Call,
    CallProgram,
    Compare,
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
    Subscript,
    Unary,
)
from polyml.einsum_frontend.walk import children
from polyml.einsum_frontend.whole_numbers import whole_number

__all__ = ["LARGEST_INT", "is_large", "symbolic_ints"]

LARGEST_INT = 1 << 40
"""What an `int` that stays symbolic may be, either way: sums of a few such numbers, times strides, do not leave 64 bits."""

LARGEST_SUM = 1 << 60
"""What these sums may be, by the numbers of the text."""


def symbolic_ints(program: Program) -> frozenset[str]:
    """The `int` parameters that may stay symbolic: all but those that divide or multiply an index or may leave 64 bits beside a number of the text, those that an argument's shape gives, and those with a name like a rule's index.

    A shape gives an int where it is the only one in an entry of a parameter's shape: its value changes with the shape alone.
    """
    ints = frozenset(parameter.name for parameter in program.parameters if parameter.is_size)
    given = set(filter(looks_made, ints))
    for parameter in program.parameters:
        for entry in parameter.shape or ():
            used = _names(entry) & ints
            given |= used if len(used) == 1 else set()
    return ints - given - _numbers(program) if ints else ints


def is_large(value: object) -> bool:
    """Whether it is an int that sums with others may leave 64 bits with: none of a kernel's ints and sizes stays symbolic beside it."""
    return isinstance(value, int) and abs(value) > LARGEST_INT


def _numbers(program: Program) -> set[str]:
    """The sizes that divide or multiply an index, and those in arithmetic that may leave 64 bits."""
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
    """Adds the sizes and loop variables of a statement that divide or multiply an index, or are in arithmetic that may leave 64 bits."""
    match statement:
        case Assign():
            for subscript in statement.subscripts or ():
                _collect_in(subscript, fixed)
                _collect_beside(subscript, fixed)
            _collect_in(statement.value, fixed)
        case Declare():
            for entry in statement.shape or ():
                _collect_in(entry, fixed)
        case ForLoop():
            for bound in (statement.start, statement.stop):
                _collect_in(bound, fixed)
                _collect_beside(bound, fixed)
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
        match node:
            case Binary(op="*" | "//" | "%"):
                _collect_product(node, fixed)
            case Compare():
                _collect_beside(node, fixed)
            case Subscript(subscripts=subscripts):
                for subscript in subscripts:
                    _collect_beside(subscript, fixed)
            case _:
                pass


def _collect_product(node: Binary, fixed: set[str]) -> None:
    """Sizes that multiply or divide other index arithmetic."""
    if not (_is_arithmetic(node.left) and _is_arithmetic(node.right)):
        return
    if node.op in ("//", "%"):
        fixed |= _names(node.right)
    elif not isinstance(node.left, Number) and not isinstance(node.right, Number):
        fixed |= _names(node.left) | _names(node.right)


def _collect_beside(value: Expression, fixed: set[str]) -> None:
    """Sizes of a comparison, a subscript or a bound that may leave 64 bits."""
    most = _most(value)
    if most is not None and most > LARGEST_SUM:
        fixed |= _names(value)


def _most(node: Expression) -> int | None:
    """What index arithmetic is at most, either way, where its names are `LARGEST_INT` at most (of a comparison: the difference of its sides); None for all else."""
    match node:
        case SizeRef() | LoopRef() | IndexRef():
            return LARGEST_INT
        case Unary(op="-"):
            return _most(node.operand)
        case Compare() | Call(function="min" | "max"):
            found = [_most(part) for part in children(node)]
            return None if None in found else sum(part for part in found if part is not None)
        case Number() | Binary():
            number = whole_number(node)
            if number is not None or isinstance(node, Number):
                return None if number is None else abs(number)
            left, right = _most(node.left), _most(node.right)
            if left is None or right is None or node.op not in ("+", "-", "*", "//", "%"):
                return None
            # Of two names one is a number of the kernel's (_collect_product).
            of_text = any(whole_number(side) is not None for side in (node.left, node.right))
            return left * right if node.op == "*" and of_text else left + right
        case _:
            return None


def _is_arithmetic(side: Expression) -> bool:
    return all(isinstance(n, Number | SizeRef | LoopRef | IndexRef | Binary | Unary) for n in nodes(side))
