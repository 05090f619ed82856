"""Program text -> parsed Program. Python's `ast` reads the text; nothing of it is ever run."""

from __future__ import annotations

import ast

from polyml.einsum_frontend.names import RESERVED
from polyml.einsum_frontend.parse_expressions import refusal
from polyml.einsum_frontend.parse_shapes import parse_annotation
from polyml.einsum_frontend.parse_statements import parse_block
from polyml.einsum_frontend.positions import Positions, split_lines
from polyml.einsum_frontend.python_parser import python_tree
from polyml.einsum_frontend.syntax import Parameter, Program
from polyml.errors import EinsumSyntaxError
from polyml.nesting import deeply_nested
from polyml.source import Source, Span

__all__ = ["parse"]

_ONE_FUNCTION = "a program is one function: def name(x: f32['N']): ... return y"


@deeply_nested()
def parse(source: Source) -> Program:
    """The program in `source`, in parsed form. Decorator lines are skipped; the text may be indented as a whole.

    Raises:
        EinsumSyntaxError: the text is not a program of the language; the span is exact.
    """
    try:
        function, at = _python_function(source)
        return _program(function, at)
    except (RecursionError, MemoryError):  # Python's own parser raises either
        hint = "give parts of it names of their own"
        raise EinsumSyntaxError("the program is nested too deeply", span=_first_line(source), hint=hint) from None


def _python_function(source: Source) -> tuple[ast.FunctionDef, Positions]:
    lines = split_lines(source.text)
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    indented = first[:1] in {" ", "\t"}
    if indented:  # a block under an added `if`, so that no column moves
        lines = ["if True:", *lines]
    at = Positions(source, tuple(lines), line_shift=-1 if indented else 0)
    try:
        module = python_tree("\n".join(lines))
    except SyntaxError as error:
        raise _not_python(error, at) from None
    except ValueError as error:  # a null byte
        raise EinsumSyntaxError(f"not Python syntax: {error}", span=_first_line(source)) from None
    body = module.body
    if indented:
        (block,) = body[:1]
        assert isinstance(block, ast.If), "internal: the added `if`"
        body = [*block.body, *body[1:]]
    if not body:
        raise EinsumSyntaxError("there is no program in the text", span=_first_line(source), hint=_ONE_FUNCTION)
    if isinstance(body[0], ast.AsyncFunctionDef):
        raise refusal("a program is not async", at, body[0], "write `def`: a call returns when its results are there")
    if not isinstance(body[0], ast.FunctionDef):
        raise refusal("the text is not a function", at, body[0], _ONE_FUNCTION)
    if len(body) > 1:
        raise refusal("the text goes on after the function", at, body[1], _ONE_FUNCTION)
    return body[0], at


def _not_python(error: SyntaxError, at: Positions) -> EinsumSyntaxError:
    """Python's own complaint, at its place (its columns are 1-based and in characters)."""
    line = min(max(error.lineno or 1, 1), len(at.lines))
    column = max((error.offset or 1) - 1, 0)
    same_line = error.end_lineno == error.lineno and (error.end_offset or 0) > column + 1
    end = (error.end_offset or 0) - 1 if same_line else column + 1
    span = at.stretch(line, column, line, end)
    if span.line < 1:
        span = _first_line(at.source)
    return EinsumSyntaxError(f"not Python syntax: {error.msg}", span=span)


def _first_line(source: Source) -> Span:
    text = source.line(1)
    start = len(text) - len(text.lstrip())
    return Span(source, 1, start, 1, max(len(text.rstrip()), start + 1))


def _program(function: ast.FunctionDef, at: Positions) -> Program:
    if function.returns is not None:
        raise refusal(
            "a program has no return annotation", at, function.returns, "the types of the results are inferred"
        )
    if not function.body:
        raise AssertionError("internal: a function without a body")
    body = function.body
    match body[0]:
        case ast.Expr(value=ast.Constant(value=str())):
            body = body[1:]
    if not body:
        raise refusal("the program has no statements", at, function.body[0])
    return Program(function.name, _parameters(function.args, at), parse_block(body, at), at.source)


def _parameters(arguments: ast.arguments, at: Positions) -> tuple[Parameter, ...]:
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            raise refusal("a program has no `*` or `**` parameters", at, extra, "name each parameter")
    if arguments.posonlyargs:
        raise refusal("a program has no `/` among its parameters", at, arguments.posonlyargs[0], "leave it out")
    if arguments.kwonlyargs:
        raise refusal("a program has no keyword-only parameters", at, arguments.kwonlyargs[0], "leave out the `*`")
    if arguments.defaults:
        raise refusal("a parameter has no default", at, arguments.defaults[0], "pass the value in the call")
    parameters: list[Parameter] = []
    names: set[str] = set()
    for argument in arguments.args:
        if argument.annotation is None:
            hint = f'write {argument.arg}: f32["N K"] for a tensor, f32 for a scalar, int for a size'
            if argument.arg in ("self", "cls"):
                hint = (
                    f"a program is no method: leave {argument.arg} out; as an attribute of a class it is called without"
                )
            raise refusal(f"parameter {argument.arg!r} has no type", at, argument, hint)
        dtype, shape = parse_annotation(argument.annotation, at)
        if argument.arg in RESERVED:
            raise refusal(f"{argument.arg!r} is a word of the language", at, argument, "choose another name")
        if argument.arg in names:
            raise refusal(f"parameter {argument.arg!r} appears twice", at, argument, "choose another name")
        names.add(argument.arg)
        parameters.append(Parameter(argument.arg, dtype, shape, at.span(argument)))
    return tuple(parameters)
