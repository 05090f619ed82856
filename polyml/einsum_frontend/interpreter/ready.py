"""What the interpreter runs: the program with each statement made ready (resolved expressions, implied sums explicit, a type for every node)."""

from __future__ import annotations

from polyml.einsum_frontend.interpreter.types import Type
from polyml.einsum_frontend.syntax import (
    Assign,
    CallProgram,
    Declare,
    Expression,
    ForLoop,
    Program,
    Return,
)
from polyml.records import dataclass

__all__ = ["Ready", "ReadyAssign", "ReadyCall", "ReadyDeclare", "ReadyLoop", "ReadyProgram", "ReadyReturn"]


@dataclass(frozen=True)
class ReadyAssign:
    """`indices`: of the left side, sorted. `ifs`: the conditions of the enclosing `if`s; `guards`: those that name no summed index (the others are in `value`, in
    its sums). `creates`: the target has no value yet. `type`: the target's. `types`: of all nodes, by identity.
    """

    source: Assign
    left: tuple[Expression, ...]
    value: Expression
    indices: tuple[str, ...]
    ifs: tuple[Expression, ...]
    guards: tuple[Expression, ...]
    creates: bool
    type: Type
    types: dict[int, Type]


@dataclass(frozen=True)
class ReadyDeclare:
    source: Declare
    shape: tuple[Expression, ...]
    fill: Expression | None
    types: dict[int, Type]


@dataclass(frozen=True)
class ReadyLoop:
    """`temporaries`: the tensors that its body makes, which live for one iteration."""

    source: ForLoop
    bounds: tuple[Expression, Expression, Expression]
    body: tuple[Ready, ...]
    temporaries: frozenset[str]


@dataclass(frozen=True)
class ReadyCall:
    """`creates`: the targets that have no value yet."""

    source: CallProgram
    callee: ReadyProgram
    args: tuple[Expression | str, ...]
    creates: frozenset[str]
    types: dict[int, Type]


@dataclass(frozen=True)
class ReadyReturn:
    source: Return


Ready = ReadyAssign | ReadyDeclare | ReadyLoop | ReadyCall | ReadyReturn


@dataclass(frozen=True)
class ReadyProgram:
    """`assigned`: the parameters that are updated in place. `results`: type and rank of what is returned."""

    source: Program
    body: tuple[Ready, ...]
    assigned: frozenset[str]
    results: tuple[tuple[Type, int], ...]
    shapes: dict[str, tuple[Expression, ...]]
