"""Statements of the language from Python's `ast`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Literal

from polyml.einsum_frontend.names import RESERVED
from polyml.einsum_frontend.parse_expressions import parse_expression, parse_subscripts, refusal, sequence_items
from polyml.einsum_frontend.parse_shapes import parse_annotation
from polyml.einsum_frontend.positions import Positions
from polyml.einsum_frontend.spellings import REFUSED_EXPRESSIONS
from polyml.einsum_frontend.syntax import (
    Assign,
    CallProgram,
    Declare,
    Expression,
    ForLoop,
    IfBlock,
    Number,
    Return,
    Statement,
)

__all__ = ["parse_block"]

_UPDATES: dict[type[ast.operator], Literal["+=", "-=", "*=", "/="]] = {
    ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/=",
}  # fmt: skip
_SURROUNDINGS = (
    "functions of the language need none; numbers and einsum programs of the enclosing scope are read by name"
)
_CHECKS = "check the arguments in Python, around the call; shapes that do not fit each other are refused anyway"
_HOST_LOOP = "a loop whose end depends on data runs in Python, around a program that makes one step"
_REFUSED: dict[type[ast.stmt], tuple[str, str | None]] = {
    ast.While: ("`while`", _HOST_LOOP),
    ast.Break: ("`break`", _HOST_LOOP),
    ast.Continue: ("`continue`", "restrict the statements with `if`"),
    ast.Pass: ("`pass`", "leave it out, with the `if` or `for` around it"),
    ast.FunctionDef: ("a function inside a program", "make it a program of its own, outside, and call it: y = f(x)"),
    ast.AsyncFunctionDef: ("a function inside a program", "make it a program of its own, outside"),
    ast.ClassDef: ("a class", None),
    ast.Import: ("`import`", _SURROUNDINGS),
    ast.ImportFrom: ("`import`", _SURROUNDINGS),
    ast.Assert: ("`assert`", _CHECKS),
    ast.Raise: ("`raise`", _CHECKS),
    ast.Try: ("`try`", _CHECKS),
    ast.With: ("`with`", None),
    ast.Global: ("`global`", "names of the enclosing scope are read without it"),
    ast.Nonlocal: ("`nonlocal`", "names of the enclosing scope are read without it"),
    ast.Delete: ("`del`", "polyml frees what is not needed any more"),
    ast.Match: ("`match`", "write `if` over indices, or where(c, a, b)"),
    ast.AsyncFor: ("`async for`", None),
    ast.AsyncWith: ("`async with`", None),
}


def parse_block(body: Sequence[ast.stmt], at: Positions) -> tuple[Statement, ...]:
    """The statements of one block, in order.

    Raises:
        EinsumSyntaxError: a statement is not in the language.
    """
    return tuple(_statement(node, at) for node in body)


def _statement(node: ast.stmt, at: Positions) -> Statement:
    match node:
        case ast.Assign():
            return _assign(node, at)
        case ast.AugAssign():
            return _update(node, at)
        case ast.AnnAssign():
            return _declare(node, at)
        case ast.For():
            return _for(node, at)
        case ast.If():
            return IfBlock(
                parse_expression(node.test, at),
                parse_block(node.body, at),
                parse_block(node.orelse, at),
                at.span(node),
            )
        case ast.Return():
            return _return(node, at)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if name not in RESERVED:
            return _call_program((), call, node, at)
        case ast.Expr(value=ast.Yield() | ast.YieldFrom() | ast.Await()):
            what, hint = REFUSED_EXPRESSIONS[type(node.value)]
            raise refusal(f"{what} is not in the language", at, node, hint)
        case ast.Expr():
            raise refusal("an expression is no statement", at, node, "assign it: y[n] = ...")
        case _:
            what, hint = _REFUSED.get(type(node), ("this statement", None))
            raise refusal(f"{what} is not in the language", at, node, hint)


def _assign(node: ast.Assign, at: Positions) -> Assign | CallProgram:
    if len(node.targets) > 1:
        raise refusal("a statement assigns once", at, node.targets[1], "write one statement for each target")
    target = node.targets[0]
    names = _program_targets(target)
    match node.value:
        case ast.Call(func=ast.Name(id=name)) as call if names is not None and name not in RESERVED:
            for element in sequence_items(target):
                _check_target(element, at)
            return _call_program(names, call, node, at)
    if isinstance(target, (ast.Tuple, ast.List)):
        hint = "write one statement for each; only a call of an einsum program has several results: a, b = f(x)"
        raise refusal("a statement assigns one tensor", at, target, hint)
    name, subscripts = _target(target, at)
    return Assign(name, subscripts, "=", parse_expression(node.value, at), at.span(node), at.span(target))


def _program_targets(target: ast.expr) -> tuple[str, ...] | None:
    """The names of `a` or `a, b`; None for anything else."""
    names = [item.id for item in sequence_items(target) if isinstance(item, ast.Name)]
    return tuple(names) if len(names) == len(sequence_items(target)) and names else None


def _call_program(targets: tuple[str, ...], call: ast.Call, node: ast.stmt, at: Positions) -> CallProgram:
    assert isinstance(call.func, ast.Name), "internal: the callee of a program call is a name"
    if call.keywords:
        hint = "pass the arguments by position"
        raise refusal("keyword arguments are not in the language", at, call.keywords[0].value, hint)
    args = tuple(parse_expression(arg, at) for arg in call.args)
    return CallProgram(targets, call.func.id, args, at.span(node))


def _target(node: ast.expr, at: Positions) -> tuple[str, tuple[Expression, ...] | None]:
    """(tensor, subscripts) of a left side."""
    match node:
        case ast.Name(id=name):
            _check_target(node, at)
            return name, None
        case ast.Subscript(value=ast.Name(id=name)):
            _check_target(node.value, at)
            items = sequence_items(node.slice)
            if not items:
                raise refusal(
                    "a left side needs at least one subscript", at, node, f"a 0-d tensor is written {name} = ..."
                )
            conditions = f"name the index alone: it takes the range that {name} is declared with, and an `if` above the statement narrows it: if 0 <= k < 3:"
            return name, parse_subscripts(items, at, conditions)
        case _:
            raise refusal("this cannot be assigned to", at, node, "a left side is y[n, m], or y for a 0-d tensor")


def _check_target(node: ast.expr, at: Positions) -> None:
    if isinstance(node, ast.Name) and node.id in RESERVED:
        raise refusal(f"{node.id!r} is a word of the language", at, node, "choose another name")


def _update(node: ast.AugAssign, at: Positions) -> Assign:
    if type(node.op) not in _UPDATES:
        written = ast.unparse(ast.BinOp(node.target, node.op, node.value))
        hint = f"updates are +=, -=, *= and /=; write the others out: {ast.unparse(node.target)} = {written}"
        raise refusal("this update is not in the language", at, node, hint)
    name, subscripts = _target(node.target, at)
    value = parse_expression(node.value, at)
    return Assign(name, subscripts, _UPDATES[type(node.op)], value, at.span(node), at.span(node.target))


def _declare(node: ast.AnnAssign, at: Positions) -> Declare:
    if not isinstance(node.target, ast.Name):
        raise refusal("a declaration names a tensor", at, node.target, 'write y: f32["N K"]')
    _check_target(node.target, at)
    dtype, shape = parse_annotation(node.annotation, at)
    if dtype is None:
        hint = "a size is a parameter; a 0-d integer tensor is declared i64"
        raise refusal("`int` declares only parameters", at, node.annotation, hint)
    fill = None if node.value is None else parse_expression(node.value, at)
    return Declare(node.target.id, dtype, shape, fill, at.span(node))


def _for(node: ast.For, at: Positions) -> ForLoop:
    if node.orelse:
        raise refusal("`for ... else` is not in the language", at, node.orelse[0])
    if not isinstance(node.target, ast.Name):
        raise refusal("a `for` has one variable", at, node.target, "for t in range(T):")
    _check_target(node.target, at)
    match node.iter:
        case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]) if 1 <= len(args) <= 3:
            bounds = [parse_expression(arg, at) for arg in args]
        case _:
            hint = "for t in range(T):, with one to three arguments"
            raise refusal("a `for` runs over a range", at, node.iter, hint)
    span = at.span(node.iter)
    start = bounds[0] if len(bounds) > 1 else Number(0, span)
    stop = bounds[1] if len(bounds) > 1 else bounds[0]
    step = bounds[2] if len(bounds) > 2 else Number(1, span)
    return ForLoop(node.target.id, start, stop, step, parse_block(node.body, at), at.span(node))


def _return(node: ast.Return, at: Positions) -> Return:
    if node.value is None:
        hint = "leave it out: parameters that are assigned are updated in place"
        raise refusal("`return` names no result", at, node, hint)
    names: list[str] = []
    spans = []
    for item in sequence_items(node.value):
        if not isinstance(item, ast.Name):
            hint = "assign it to a tensor first, and return that: y[n] = ...; return y"
            if isinstance(item, ast.List):
                hint = "results are separated by commas alone: return y, z"
            raise refusal("a program returns tensors by name, not expressions", at, item, hint)
        names.append(item.id)
        spans.append(at.span(item))
    return Return(tuple(names), tuple(spans), at.span(node))
