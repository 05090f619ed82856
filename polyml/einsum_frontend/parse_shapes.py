"""Annotations of parameters and declarations: `f32["N K"]`, `f32["T + 1, B"]`, `f32`, `int`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from polyml.dtypes import DTYPES, DType
from polyml.einsum_frontend.names import did_you_mean
from polyml.einsum_frontend.parse_expressions import parse_expression, refusal
from polyml.einsum_frontend.positions import Positions
from polyml.einsum_frontend.python_parser import python_expression
from polyml.einsum_frontend.spellings import attribute_hint
from polyml.einsum_frontend.syntax import Binary, Expression, Name, Number, Unary
from polyml.errors import EinsumSyntaxError
from polyml.source import Span

__all__ = ["parse_annotation"]

_SPELLING = 'f32["N K"] is a tensor, f32 a scalar, int a size'


def parse_annotation(node: ast.expr, at: Positions) -> tuple[DType | None, tuple[Expression, ...] | None]:
    """(dtype, shape) of an annotation: the dtype is None for `int`, the shape None without a subscript.

    Raises:
        EinsumSyntaxError: it is none of the three forms; errors in a shape point inside the string.
    """
    match node:
        case ast.Subscript():
            dtype = _dtype(node.value, at)
            if dtype is None:
                raise refusal("`int` is one number and has no shape", at, node, 'a tensor of integers is i64["N"]')
            return dtype, _shape(node.slice, dtype, at)
        case ast.Constant(value=str()):
            raise refusal("an annotation is not a string as a whole", at, node, _SPELLING)
        case _:
            return _dtype(node, at), None


def _dtype(node: ast.expr, at: Positions) -> DType | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(), attr=name):
            pass
        case _:
            raise refusal("this is not a type of the language", at, node, _SPELLING)
    if name == "int":
        return None
    if name in DTYPES:
        return DTYPES[name]
    hint = attribute_hint(node) if isinstance(node, ast.Attribute) else None
    if hint is None or not hint.startswith("write"):
        known = {"float": "write f64"}.get(name) or did_you_mean(name, DTYPES)
        hint = known or f"{_SPELLING}; element types: {', '.join(DTYPES)}"
    raise refusal(f"unknown type {name!r}", at, node, hint)


def _shape(node: ast.expr, dtype: DType, at: Positions) -> tuple[Expression, ...]:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        hint = f"""write {dtype.name}["{_spaced(node)}"]"""
        if isinstance(node, ast.Name | ast.JoinedStr | ast.BinOp | ast.Call):
            hint = f"""write {dtype.name}["N K"]: the source is read and not run; numbers of the enclosing scope may stand in the string by name"""
        raise refusal("a shape is written as a string", at, node, hint)
    entries = tuple(_entries(node.value))
    if not entries:
        raise refusal("the shape is empty", at, node, f"a scalar is written {dtype.name}")
    return tuple(_entry(text, offset, node, at) for offset, text in entries)


def _spaced(node: ast.expr) -> str:
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    texts = [str(item.value) if isinstance(item, ast.Constant) else ast.unparse(item) for item in items]
    return (", " if any(" " in text for text in texts) else " ").join(texts)


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """(offset, text) of each entry: between commas if there are any, else between spaces. A comma at the end is allowed."""
    if "," not in text:
        yield from ((found.start(), found.group()) for found in re.finditer(r"\S+", text))
        return
    offset = 0
    pieces = text.split(",")
    for number, piece in enumerate(pieces):
        stripped = piece.strip()
        if stripped or number + 1 < len(pieces):
            margin = len(piece) - len(piece.lstrip()) if stripped else 0
            yield offset + margin, stripped
        offset += len(piece) + 1


def _entry(text: str, offset: int, literal: ast.Constant, at: Positions) -> Expression:
    span = _span_in_literal(literal, offset, max(1, len(text)), at)
    if not text:
        raise EinsumSyntaxError("an entry of the shape is missing", span=span)
    inside = Positions(
        at.source,
        (text,),
        line_shift=span.line - 1,
        column_shift=span.column,
        fixed=span if span == at.span(literal) else None,
    )
    try:
        node = python_expression(text)
    except (SyntaxError, ValueError):
        hint = "entries are separated by spaces, or by commas when an entry has spaces: 'T + 1, B'"
        raise EinsumSyntaxError(f"{text!r} is not an entry of a shape", span=span, hint=hint) from None
    parsed = parse_expression(node, inside)
    _require_affine(parsed)
    return parsed


def _span_in_literal(literal: ast.Constant, offset: int, length: int, at: Positions) -> Span:
    """The span of characters of a string literal; the whole literal's when they do not stand there one by one."""
    whole = at.span(literal)
    line = at.lines[literal.lineno - 1]
    start = at.characters(literal.lineno, literal.col_offset)
    opening = re.compile(r"[rRuU]?(\"\"\"|'''|\"|')").match(line, start)
    value = literal.value
    assert isinstance(value, str), "internal: a shape is a string"
    if opening is None or not line.startswith(value + opening.group(1), opening.end()):
        return whole
    first = whole.column + (opening.end() - start) + offset
    return Span(whole.source, whole.line, first, whole.line, first + length)


def _require_affine(entry: Expression) -> None:
    """Refuses what is not quasi-affine in sizes, by its form alone."""
    match entry:
        case Name():
            pass
        case Number(value=value) if isinstance(value, int) and not isinstance(value, bool):
            pass
        case Unary(op="-"):
            _require_affine(entry.operand)
        case Binary(op="+" | "-"):
            _require_affine(entry.left)
            _require_affine(entry.right)
        case Binary(op="*") if isinstance(entry.left, Number) or isinstance(entry.right, Number):
            _require_affine(entry.left)
            _require_affine(entry.right)
        case Binary(op="//" | "%", right=Number(value=int(divisor))) if divisor > 0:
            _require_affine(entry.left)
        case Binary(op="//" | "%"):
            message = "an entry of a shape divides by something else than a number of 1 or more"
            raise EinsumSyntaxError(
                message, span=entry.span, hint="for example N//2, or an `int` parameter for the whole"
            )
        case Binary(op="*"):
            raise EinsumSyntaxError(
                "an entry of a shape multiplies two sizes",
                span=entry.span,
                hint="make them two dimensions, or the product a size of its own, with a divisor in subscripts: x[h // R]",
            )
        case _:
            raise EinsumSyntaxError(
                "an entry of a shape is an integer, a size, or affine in sizes",
                span=entry.span,
                hint="for example N, 4, T+1 or 2*N-1",
            )
