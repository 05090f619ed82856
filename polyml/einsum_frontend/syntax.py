"""The surface language as frozen nodes, a Span on each: what the parser makes, the resolver completes, and the interpreter executes.

Two forms share these nodes. A *parsed* Program is the text as written. A *resolved* one (resolve.py) contains no `Name` any more, since each
was told apart into `IndexRef`, `LoopRef`, `SizeRef`, `Number` or a `Subscript` without subscripts (a scalar or 0-d tensor); its reducers
bind unique names, and each implied sum of the summation convention is a `Reducer` with `implied=True`. It uses no size: one resolved Program serves every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from polyml.dtypes import DType
from polyml.records import dataclass
from polyml.source import Source, Span

__all__ = [
    "Assign", "Binary", "Boolean", "Call", "CallProgram", "Compare", "Declare", "Expression", "ForLoop", "IfBlock", "IndexRef", "LoopRef", "Name",
    "Number", "Pad", "Parameter", "Program", "Reducer", "Return", "SizeRef", "Statement", "Subscript", "Unary",
]  # fmt: skip

ReducerKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]
CompareOp = Literal["<", "<=", ">", ">=", "==", "!="]
BinaryOp = Literal["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>"]


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, `inf`, `nan`, `pi`, or a captured number: weak in promotion."""

    value: int | float | bool
    span: Span


@dataclass(frozen=True, slots=True)
class Name:
    """A bare name, not yet told apart (parsed form only)."""

    identifier: str
    span: Span


@dataclass(frozen=True, slots=True)
class IndexRef:
    """An index (resolved form): unique within its statement."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class LoopRef:
    """The variable of an enclosing `for` (resolved form)."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class SizeRef:
    """A symbolic size or an `int` parameter (resolved form)."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Pad:
    """`pad(tensor, widths)`: `widths` are NumPy's (before, after) pairs per dimension, affine in sizes."""

    tensor: str
    widths: tuple[tuple[Expression, Expression], ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Subscript:
    """`tensor[subscripts]`, or a scalar parameter or 0-d tensor when there are none."""

    tensor: str | Pad
    subscripts: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    op: Literal["-", "not"]
    operand: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    op: BinaryOp
    left: Expression
    right: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Compare:
    """A chain `operands[0] ops[0] operands[1] ops[1] ...`."""

    operands: tuple[Expression, ...]
    ops: tuple[CompareOp, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Boolean:
    op: Literal["and", "or"]
    operands: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """A function of polyml.ops.FUNCTIONS, or a dtype name as a cast."""

    function: str
    args: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Reducer:
    """`kind[items](body)`. Parsed: `items` are as written. Resolved: `items` are the bound IndexRefs first, then the affine conditions
    (Compare or Boolean); `implied` marks a sum of the summation convention."""

    kind: ReducerKind
    items: tuple[Expression, ...]
    body: Expression
    span: Span
    implied: bool = False


Expression = (
    Number | Name | IndexRef | LoopRef | SizeRef | Subscript | Unary | Binary | Compare | Boolean | Call | Reducer
)


@dataclass(frozen=True, slots=True)
class Assign:
    """`target[subscripts] op value`; without subscripts (None) a bare name: a 0-d tensor."""

    target: str
    subscripts: tuple[Expression, ...] | None
    op: Literal["=", "+=", "-=", "*=", "/="]
    value: Expression
    span: Span
    target_span: Span


@dataclass(frozen=True, slots=True)
class Declare:
    """`name: dtype[shape] = fill`; `shape` is None for a scalar declaration `s: f32`, `fill` None when nothing is filled."""

    name: str
    dtype: DType
    shape: tuple[Expression, ...] | None
    fill: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class ForLoop:
    """`for variable in range(start, stop, step)`: bounds affine in sizes and outer loop variables, step a non-zero integer."""

    variable: str
    start: Expression
    stop: Expression
    step: Expression
    body: tuple[Statement, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class IfBlock:
    """Restricts each enclosed statement separately; `orelse` has the negated condition."""

    condition: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class CallProgram:
    """`a, b = f(x, w)`: `callee` names another einsum program (Program.programs); no targets when it only writes its arguments.
    Resolved: the argument for a tensor parameter is a `Subscript` without subscripts, also when the tensor has dimensions."""

    targets: tuple[str, ...]
    callee: str
    args: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Return:
    names: tuple[str, ...]
    name_spans: tuple[Span, ...]
    span: Span


Statement = Assign | Declare | ForLoop | IfBlock | CallProgram | Return


@dataclass(frozen=True, slots=True)
class Parameter:
    """`name: dtype[shape]` (tensor), `name: dtype` (scalar: shape None), or `name: int` (a size: dtype None, shape None)."""

    name: str
    dtype: DType | None
    shape: tuple[Expression, ...] | None
    span: Span

    @property
    def is_size(self) -> bool:
        return self.dtype is None


@dataclass(frozen=True, slots=True)
class Program:
    """One einsum program. `captured` holds the numbers and `programs` the other programs that it found in the enclosing scope."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    source: Source
    captured: Mapping[str, int | float | bool | complex] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)
