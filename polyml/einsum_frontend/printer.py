"""Programs as text: what `str` shows of a parsed or a resolved Program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from polyml.dtypes import DType
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
from polyml.nesting import deeply_nested

__all__ = ["format_expression", "format_program"]

_OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(13)
_LEVELS = {
    "|": _BIT_OR, "^": _BIT_XOR, "&": _BIT_AND, "<<": _SHIFT, ">>": _SHIFT,
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT, "**": _POWER,
}  # fmt: skip


@deeply_nested()
def format_program(program: Program) -> str:
    """The program's text. Implied sums of a resolved program are written out: `y[n] = sum[k](x[n, k])`.

    Read back, the text is the same program, except that an implied sum below an `if` over its index (`if k < n: y[n] += x[n, k]`) is written out as well.
    """
    parameters = ", ".join(f"{p.name}: {_annotation(p.dtype, p.shape)}" for p in program.parameters)
    lines = [f"def {program.name}({parameters}):", *_block(program.body, 1)]
    return "\n".join(lines) + "\n"


def format_expression(e: Expression) -> str:
    """The expression's text, with no more parentheses than needed."""
    return _text(e, _OR)


def _annotation(dtype: DType | None, shape: tuple[Expression, ...] | None) -> str:
    name = "int" if dtype is None else dtype.name
    if shape is None:
        return name
    entries = [format_expression(entry) for entry in shape]
    separator = ", " if any(" " in entry for entry in entries) else " "
    comma = "," if len(entries) == 1 and " " in entries[0] else ""
    return f'{name}["{separator.join(entries)}{comma}"]'


def _block(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
    indent = "    " * depth
    for statement in body:
        match statement:
            case Assign():
                left = statement.target + ("" if statement.subscripts is None else _subscripts(statement.subscripts))
                yield f"{indent}{left} {statement.op} {format_expression(statement.value)}"
            case Declare():
                fill = "" if statement.fill is None else f" = {format_expression(statement.fill)}"
                yield f"{indent}{statement.name}: {_annotation(statement.dtype, statement.shape)}{fill}"
            case ForLoop():
                bounds = ", ".join(map(format_expression, (statement.start, statement.stop, statement.step)))
                yield f"{indent}for {statement.variable} in range({bounds}):"
                yield from _block(statement.body, depth + 1)
            case IfBlock():
                yield f"{indent}if {format_expression(statement.condition)}:"
                yield from _block(statement.body, depth + 1)
                if statement.orelse:
                    yield f"{indent}else:"
                    yield from _block(statement.orelse, depth + 1)
            case CallProgram():
                targets = ", ".join(statement.targets) + (" = " if statement.targets else "")
                yield f"{indent}{targets}{statement.callee}({', '.join(map(format_expression, statement.args))})"
            case Return():
                yield f"{indent}return {', '.join(statement.names)}"
            case _:
                assert_never(statement)


def _subscripts(subscripts: tuple[Expression, ...]) -> str:
    return f"[{', '.join(map(format_expression, subscripts))}]"


def _text(e: Expression, level: int) -> str:
    """`e`, in parentheses if it binds weaker than `level`."""
    text, own = _leveled(e)
    return text if own >= level else f"({text})"


def _leveled(e: Expression) -> tuple[str, int]:
    match e:
        case Number(value=value):
            return _number(value)
        case Name(identifier=name):
            return name, _ATOM
        case IndexRef(name=name) | LoopRef(name=name) | SizeRef(name=name):
            return name, _ATOM
        case Subscript(tensor=Pad() as pad):
            pairs = ", ".join(f"({format_expression(a)}, {format_expression(b)})" for a, b in pad.widths)
            comma = "," if len(pad.widths) == 1 else ""
            return f"pad({pad.tensor}, ({pairs}{comma})){_subscripts(e.subscripts)}", _ATOM
        case Subscript(tensor=str() as tensor):
            return tensor + (_subscripts(e.subscripts) if e.subscripts else ""), _ATOM
        case Unary(op="-"):
            return f"-{_text(e.operand, _SIGN)}", _SIGN
        case Unary():
            return f"not {_text(e.operand, _NOT)}", _NOT
        case Binary(op="**"):
            return f"{_text(e.left, _ATOM)} ** {_text(e.right, _SIGN)}", _POWER
        case Binary(op=op):
            own = _LEVELS[op]
            return f"{_text(e.left, own)} {op} {_text(e.right, own + 1)}", own
        case Compare():
            rest = "".join(f" {op} {_text(o, _BIT_OR)}" for op, o in zip(e.ops, e.operands[1:], strict=True))
            return _text(e.operands[0], _BIT_OR) + rest, _COMPARE
        case Boolean(op=op):
            own = _AND if op == "and" else _OR
            return f" {op} ".join(_text(operand, own + 1) for operand in e.operands), own
        case Call():
            return f"{e.function}({', '.join(map(format_expression, e.args))})", _ATOM
        case Reducer():
            return f"{e.kind}{_subscripts(e.items)}({format_expression(e.body)})", _ATOM
    raise AssertionError(f"internal: no text for {type(e).__name__}")


def _number(value: int | float | bool) -> tuple[str, int]:
    if isinstance(value, bool):
        return str(value), _ATOM
    text = "pi" if value == math.pi else repr(value)
    return text, _SIGN if text.startswith("-") else _ATOM
