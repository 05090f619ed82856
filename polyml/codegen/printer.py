"""Loops as text, like C, and as HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import assert_never

from polyml.codegen.loops import (
    Allocate,
    Assign,
    Block,
    For,
    Function,
    If,
    Lead,
    Node,
    Prefetch,
    UpdateArgument,
    Variable,
)
from polyml.ops import REDUCTIONS
from polyml.shown import html_of, text_of

__all__ = ["loops_html", "loops_text", "without_parentheses"]

_INDENT = "  "
_COMPOUND = {"add": "+=", "mul": "*=", "and": "&=", "or": "|="}
_KEYWORDS = (
    "for",
    "if",
    "else",
    "register",
    "local",
    "shared",
    "parallel",
    "pipelined",
    "stage",
    "vector",
    "transpose",
)


@text_of.register
def loops_text(function: Function) -> str:
    """The function as C-like text: one line per node, kinds of loops before `for`, storage as declarations."""
    arguments = ", ".join(
        ("" if v.name in function.written else "const ") + _declaration(v) for v in function.arguments
    )
    sizes = "".join(f", i64 {size}" for size in function.sizes)
    leads = (f"{_INDENT}{_lead(lead)}" for lead in function.leads)
    lines = [f"{function.name}({arguments}{sizes}) {{", *leads, *_lines(function.body, _INDENT), "}"]
    return "\n".join(lines) + "\n"


def _lead(lead: Lead) -> str:
    row = f"[{', '.join(map(str, lead.row))}]" if lead.row else ""
    each = f" for each {lead.inside}" if lead.inside else ""
    return f"{lead.name} = lead({lead.array}{row}, {lead.bytes} bytes){each};"


@html_of.register
def loops_html(function: Function) -> str:
    """The text of `loops_text` with its keywords in bold, as one <pre> element."""
    text = html.escape(loops_text(function), quote=False)
    lines = []
    for line in text.splitlines():
        words = line.split(" ")
        lines.append(" ".join(f"<b>{word}</b>" if word.strip("}") in _KEYWORDS and word else word for word in words))
    return '<pre class="polyml-loops">' + "\n".join(lines) + "</pre>"


def _lines(nodes: tuple[Node, ...], indent: str) -> Iterator[str]:
    for node in nodes:
        match node:
            case Assign():
                yield indent + _assignment(node)
            case UpdateArgument():
                across = " across" if node.across else ""
                pair = f"{node.best}, {node.argument}"
                yield f"{indent}{pair} = {node.kind}{across}({pair}; {node.candidate}, {node.candidate_index});"
            case Prefetch():
                yield f"{indent}prefetch L{node.level} {node.place}{' to write' if node.write else ''};"
            case For():
                step = f"{node.variable}++" if node.step == 1 else f"{node.variable} += {node.step}"
                bounds = f"{node.variable} = {node.lower}; {node.variable} < {node.upper}; {step}"
                yield f"{indent}{_kind(node)}for ({bounds}) {{"
                yield from _lines(node.body, indent + _INDENT)
                yield indent + "}"
            case If():
                condition = str(node.condition)
                yield f"{indent}if {condition if condition.startswith('(') else f'({condition})'} {{"
                yield from _lines(node.then, indent + _INDENT)
                if node.otherwise:
                    yield indent + "} else {"
                    yield from _lines(node.otherwise, indent + _INDENT)
                yield indent + "}"
            case Allocate():
                yield f"{indent}{node.variable.scope} {_declaration(node.variable)};"
                yield from _lines(node.body, indent)
            case Block():
                yield from _lines(node.body, indent)
            case _:
                assert_never(node)


def _assignment(node: Assign) -> str:
    suffix = (" /* across */" if node.across else "") + (" /* streaming */" if node.streaming else "")
    value = str(node.value)
    if node.scan is not None:
        factor = "" if node.scan.factor is None else f", {node.scan.factor}"
        factor += "" if node.scan.second is None else f", {node.scan.earlier}, {node.scan.second}"
        reset = "" if node.scan.reset is None else f", reset if {without_parentheses(str(node.scan.reset))}"
        return f"{node.target} = scan_{node.reduction or 'sum'}({node.scan.carry}{factor}, {without_parentheses(value)}{reset});{suffix}"
    if node.reduction is None:
        return f"{node.target} = {without_parentheses(value)};{suffix}"
    combine = REDUCTIONS[node.reduction].combine
    if combine in _COMPOUND:
        return f"{node.target} {_COMPOUND[combine]} {without_parentheses(value)};{suffix}"
    return f"{node.target} = {combine}({node.target}, {without_parentheses(value)});{suffix}"


def without_parentheses(text: str) -> str:
    """Text without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]


def _kind(loop: For) -> str:
    match loop.kind:
        case "sequential":
            return ""
        case "parallel" | "pipelined" | "stage":
            return f"{loop.kind} "
        case "vector":
            if loop.width == 1:
                return f"vector(x{loop.factor}) "
            return f"vector({loop.width}{', masked' if loop.masked else ''}) "
        case "block" | "thread":
            return f"{loop.kind}.{loop.axis}(x{loop.factor}) "
        case "transpose":
            return "transpose "
        case "jam" | "unroll" | "shuffle":
            return f"{loop.kind}({loop.factor}) "


def _declaration(variable: Variable) -> str:
    lanes = f"x{variable.lanes}" if variable.lanes > 1 else ""
    shape = f"[{', '.join(map(str, variable.shape))}]" if variable.shape else ""
    strides = f" strides({', '.join(map(str, variable.strides))})" if variable.strides is not None else ""
    return f"{variable.dtype}{lanes} {variable.name}{shape}{strides}"
