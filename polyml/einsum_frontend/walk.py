"""Walking expressions of the surface language."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import assert_never

from polyml.einsum_frontend.syntax import (
    Assign,
    Binary,
    Boolean,
    Call,
    CallProgram,
    Compare,
    Declare,
    Expression,
    ForLoop,
    IfBlock,
    IndexRef,
    LoopRef,
    Name,
    Number,
    Pad,
    Program,
    Reducer,
    Return,
    SizeRef,
    Statement,
    Subscript,
    Unary,
)
from polyml.renewed import renewed

__all__ = ["assigned_names", "children", "index_names", "map_children", "walk", "words"]


def children(e: Expression) -> tuple[Expression, ...]:
    """The direct subexpressions in reading order (of a padded access: the widths, then the subscripts)."""
    match e:
        case Number() | Name() | IndexRef() | LoopRef() | SizeRef():
            return ()
        case Subscript(tensor=Pad(widths=widths)):
            return (*(end for pair in widths for end in pair), *e.subscripts)
        case Subscript():
            return e.subscripts
        case Unary():
            return (e.operand,)
        case Binary():
            return (e.left, e.right)
        case Compare() | Boolean():
            return e.operands
        case Call():
            return e.args
        case Reducer():
            return (*e.items, e.body)
    assert_never(e)


def map_children(e: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """`e` with `change` applied to each direct subexpression; `e` itself when nothing changed."""
    old = children(e)
    new = renewed(old, map(change, old))
    if new is old:
        return e
    match e:
        case Number() | Name() | IndexRef() | LoopRef() | SizeRef():
            return e
        case Subscript(tensor=Pad() as pad):
            ends, subscripts = new[: 2 * len(pad.widths)], new[2 * len(pad.widths) :]
            widths = tuple(zip(ends[::2], ends[1::2], strict=True))
            return replace(e, tensor=replace(pad, widths=widths), subscripts=subscripts)
        case Subscript():
            return replace(e, subscripts=new)
        case Unary():
            return replace(e, operand=new[0])
        case Binary():
            return replace(e, left=new[0], right=new[1])
        case Compare() | Boolean():
            return replace(e, operands=new)
        case Call():
            return replace(e, args=new)
        case Reducer():
            return replace(e, items=new[:-1], body=new[-1])
    assert_never(e)


def walk(e: Expression) -> Iterator[Expression]:
    """`e` and all that is in it, in reading order."""
    stack = [e]
    while stack:  # generators within generators would pass each on once per level
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def index_names(e: Expression) -> frozenset[str]:
    """The indices that a resolved expression uses and does not bind."""
    match e:
        case IndexRef(name=name):
            return frozenset({name})
        case Reducer():
            inside = frozenset().union(*map(index_names, children(e)))
            return inside - {item.name for item in e.items if isinstance(item, IndexRef)}
        case _:
            return frozenset().union(*map(index_names, children(e)))


def assigned_names(body: tuple[Statement, ...]) -> frozenset[str]:
    """The names that the statements assign or declare, at any depth."""
    names: set[str] = set()
    for statement in body:
        match statement:
            case Assign():
                names.add(statement.target)
            case Declare():
                names.add(statement.name)
            case CallProgram():
                names.update(statement.targets)
            case ForLoop():
                names |= assigned_names(statement.body)
            case IfBlock():
                names |= assigned_names(statement.body) | assigned_names(statement.orelse)
            case Return():
                pass
            case _:
                assert_never(statement)
    return frozenset(names)


def words(program: Program) -> frozenset[str]:
    """Every name that stands anywhere in a parsed program."""
    found = {parameter.name for parameter in program.parameters}
    for parameter in program.parameters:
        found |= _words(*(parameter.shape or ()))
    return frozenset(found | _block_words(program.body))


def _block_words(body: tuple[Statement, ...]) -> set[str]:
    found = set(assigned_names(body))
    for statement in body:
        match statement:
            case Assign():
                found |= _words(*(statement.subscripts or ()), statement.value)
            case Declare():
                found |= _words(*(statement.shape or ()), *([] if statement.fill is None else [statement.fill]))
            case CallProgram():
                found |= {statement.callee, *_words(*statement.args)}
            case ForLoop():
                found |= {statement.variable, *_words(statement.start, statement.stop, statement.step)}
                found |= _block_words(statement.body)
            case IfBlock():
                found |= _words(statement.condition)
                found |= _block_words(statement.body) | _block_words(statement.orelse)
            case Return():
                found |= set(statement.names)
            case _:
                assert_never(statement)
    return found


def _words(*expressions: Expression) -> set[str]:
    found: set[str] = set()
    for expression in expressions:
        for e in walk(expression):
            match e:
                case Name():
                    found.add(e.identifier)
                case Subscript():
                    found.add(e.tensor if isinstance(e.tensor, str) else e.tensor.tensor)
                case _:
                    pass
    return found
