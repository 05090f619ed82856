"""Expressions of the language from Python's `ast`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import get_args

from polyml.dtypes import DTYPES
from polyml.einsum_frontend.names import did_you_mean
from polyml.einsum_frontend.positions import Positions
from polyml.einsum_frontend.spellings import (
    REFUSED_BINARY,
    REFUSED_COMPARE,
    REFUSED_EXPRESSIONS,
    attribute_hint,
    spelled_out,
)
from polyml.einsum_frontend.syntax import (
    Binary,
    BinaryOp,
    Boolean,
    Call,
    Compare,
    CompareOp,
    Expression,
    Name,
    Number,
    Pad,
    Reducer,
    ReducerKind,
    Subscript,
    Unary,
)
from polyml.errors import EinsumSyntaxError
from polyml.ops import FUNCTIONS
from polyml.shown import counted

__all__ = ["parse_expression", "parse_subscripts", "refusal", "sequence_items"]

_BINARY: dict[type[ast.operator], BinaryOp] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], CompareOp] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_REDUCERS: frozenset[str] = frozenset(get_args(ReducerKind))


def refusal(
    message: str, at: Positions, node: ast.expr | ast.stmt | ast.arg, hint: str | None = None
) -> EinsumSyntaxError:
    """The error for `node`."""
    return EinsumSyntaxError(message, span=at.span(node), hint=hint)


def sequence_items(node: ast.expr) -> list[ast.expr]:
    """The items of `a, b`, or the one item that is no tuple."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def parse_expression(node: ast.expr, at: Positions) -> Expression:
    """The expression `node` in parsed form.

    Raises:
        EinsumSyntaxError: what Python allows and the language does not, with the right spelling where there is one.
    """
    span = at.span(node)
    match node:
        case ast.Constant():
            return _number(node, at)
        case ast.Name():
            return Name(node.id, span)
        case ast.Subscript():
            return _subscript(node, at)
        case ast.Call():
            return _call(node, at)
        case ast.BinOp():
            if type(node.op) in REFUSED_BINARY:
                spelled, hint = REFUSED_BINARY[type(node.op)]
                raise refusal(f"`{spelled}` is not in the language", at, node, hint)
            return Binary(
                _BINARY[type(node.op)], parse_expression(node.left, at), parse_expression(node.right, at), span
            )
        case ast.UnaryOp(op=ast.USub()):
            return Unary("-", parse_expression(node.operand, at), span)
        case ast.UnaryOp(op=ast.Not()):
            return Unary("not", parse_expression(node.operand, at), span)
        case ast.UnaryOp(op=ast.UAdd()):
            return parse_expression(node.operand, at)
        case ast.UnaryOp():
            raise refusal(
                "`~` is not in the language", at, node, "write `not` before a condition, `x ^ 255` for all bits of a u8"
            )
        case ast.BoolOp():
            operands = tuple(parse_expression(operand, at) for operand in node.values)
            return Boolean("and" if isinstance(node.op, ast.And) else "or", operands, span)
        case ast.Compare():
            return _compare(node, at)
        case ast.Attribute():
            raise refusal(
                f"attributes such as {ast.unparse(node)!r} are not in the language", at, node, attribute_hint(node)
            )
        case _:
            what, remedy = REFUSED_EXPRESSIONS.get(type(node), ("this expression", None))
            raise refusal(f"{what} is not in the language", at, node, remedy)


def _number(node: ast.Constant, at: Positions) -> Number | Call:
    """A number; an imaginary one (`2j`) is complex(0, 2)."""
    value = node.value
    if isinstance(value, (bool, float)):
        return Number(value, at.span(node))
    if isinstance(value, int):
        if value >= 2**64:
            raise refusal("the integer does not fit in 64 bits", at, node, "write it as a float: 1e30")
        return Number(value, at.span(node))
    if isinstance(value, complex):
        span = at.span(node)
        return Call("complex", (Number(0.0, span), Number(value.imag, span)), span)
    what = {str: "a string", bytes: "a string", type(None): "None", type(...): "`...`"}.get(
        type(value), "this constant"
    )
    hints: dict[type, str] = {
        type(None): "a new dimension is an index of the left side: y[i, j] = x[i] * w[j]",
        type(...): "write one index per dimension",
    }
    raise refusal(f"{what} is not in the language", at, node, hints.get(type(value)))


def _compare(node: ast.Compare, at: Positions) -> Compare:
    for op in node.ops:
        if type(op) in REFUSED_COMPARE:
            spelled, hint = REFUSED_COMPARE[type(op)]
            raise refusal(f"`{spelled}` is not in the language", at, node, hint)
    for middle in node.comparators[:-1]:
        if isinstance(middle, ast.BinOp) and isinstance(middle.op, ast.BitAnd | ast.BitOr):
            sign = "&" if isinstance(middle.op, ast.BitAnd) else "|"
            meant = "and" if sign == "&" else "or"
            raise refusal(
                f"`{ast.unparse(node)}` compares with bits, since `{sign}` binds more tightly than comparisons", at, node,
                f"write `{meant}` between conditions; of bits, two comparisons joined by `and`",
            )  # fmt: skip
    operands = tuple(parse_expression(operand, at) for operand in (node.left, *node.comparators))
    return Compare(operands, tuple(_COMPARE[type(op)] for op in node.ops), at.span(node))


def _subscript(node: ast.Subscript, at: Positions) -> Subscript:
    items = sequence_items(node.slice)
    if not items:
        raise refusal("an access needs at least one subscript", at, node, "a 0-d tensor is written as its bare name")
    subscripts = parse_subscripts(items, at, "write sum[k < 3](x[k]), or an `if` above the statement: if k < 3:")
    match node.value:
        case ast.Name(id=name) if name in _REDUCERS:
            raise refusal(f"`{name}[...]` is a reducer and needs a body", at, node, f"write {name}[k](x[k])")
        case ast.Name(id=name):
            return Subscript(name, subscripts, at.span(node))
        case ast.Call(func=ast.Name(id="pad")) as call:
            return Subscript(_pad(call, len(subscripts), at), subscripts, at.span(node))
        case ast.Subscript() as inner:
            raise refusal(
                "a subscript of a subscript is not in the language", at, node, f"write {_joined(inner, node)}"
            )
        case ast.Call() as call:
            hint = "assign it to a tensor first, or apply the function to each element: relu(x[n, k])"
            raise refusal("the result of a call cannot be subscripted", at, call, hint)
        case ast.Attribute() as attribute:
            raise refusal(
                f"attributes such as {ast.unparse(attribute)!r} are not in the language",
                at,
                attribute,
                attribute_hint(attribute),
            )
        case other:
            raise refusal("only a tensor can be subscripted", at, other, "subscript each tensor of the expression")


def parse_subscripts(items: Sequence[ast.expr], at: Positions, conditions: str) -> tuple[Expression, ...]:
    """The subscripts of one access. conditions: where they stand instead, for who writes one as a subscript; of one on data it is told later what masks are here."""
    for item in items:
        is_condition = isinstance(item, ast.Compare | ast.BoolOp) or (
            isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Not)
        )
        if is_condition and not any(isinstance(node, ast.Subscript) for node in ast.walk(item)):
            raise refusal("a condition is no subscript", at, item, conditions)
    return tuple(parse_expression(item, at) for item in items)


_BY_POSITION = "pass the arguments by position"
_SIZES = "name the sizes in the parameter's annotation: x: f32['N K'], and use N"


def _joined(inner: ast.Subscript, outer: ast.Subscript) -> str:
    items = [*sequence_items(inner.slice), *sequence_items(outer.slice)]
    return f"{ast.unparse(inner.value)}[{', '.join(map(ast.unparse, items))}]"


def _call(node: ast.Call, at: Positions) -> Expression:
    match node.func:
        case ast.Subscript(value=ast.Name(id=name)) if name in _REDUCERS:
            return _reducer(name, node, node.func, at)
        case ast.Subscript(value=ast.Attribute(attr=name)) if name in _REDUCERS:
            raise refusal("reducers are written without a module", at, node.func, f"write {name}[...](...)")
        case ast.Subscript(value=called):
            word = ast.unparse(called)
            hint = spelled_out(word) or f"reducers are {', '.join(sorted(_REDUCERS))}"
            raise refusal(f"unknown reducer {word!r}", at, called, hint)
        case ast.Name(id=name) if name in FUNCTIONS or name in DTYPES:
            return _apply(name, node, at)
        case ast.Attribute(value=ast.Name(), attr=name) if name in DTYPES:  # pm.f32(x[n]) reads better to a linter
            return _apply(name, node, at)
        case ast.Attribute() as attribute:
            raise refusal(
                f"{ast.unparse(attribute)!r} is not in the language", at, attribute, attribute_hint(attribute)
            )
        case ast.Name(id="pad"):
            hint = "subscript it: pad(x, ((0, 0), (1, 1)))[n, h + r]"
            raise refusal("`pad` stands for a tensor and needs subscripts", at, node, hint)
        case ast.Name(id=name) if name in _REDUCERS:
            hint = f"name the indices that it reduces: {name}[k](x[k])"
            raise refusal(f"`{name}` reduces over no index here", at, node, hint)
        case ast.Name(id=name):
            known = (
                _SIZES if name == "len" else spelled_out(name) or did_you_mean(name, [*FUNCTIONS, *DTYPES, *_REDUCERS])
            )
            other = "another einsum program is called in a statement of its own: t = f(x)"
            raise refusal(f"unknown function {name!r}", at, node.func, known or other)
        case other:
            raise refusal("only functions of the language can be called", at, other)


def _refuse_keywords(node: ast.Call, at: Positions) -> None:
    if node.keywords:
        reducer = isinstance(node.func, ast.Name) and node.func.id in _REDUCERS
        hint = f"name the indices that it reduces: {ast.unparse(node.func)}[k](x[n, k])" if reducer else _BY_POSITION
        raise refusal("keyword arguments are not in the language", at, node.keywords[0].value, hint)


def _apply(name: str, node: ast.Call, at: Positions) -> Call:
    _refuse_keywords(node, at)
    args = tuple(parse_expression(arg, at) for arg in node.args)
    count = len(args)
    if name in {"min", "max"}:
        if count < 2:
            hint = f"to reduce over an index, write {name}[k](x[k])"
            raise refusal(f"`{name}` takes two or more arguments, not {count}", at, node, hint)
    elif count != (wanted := {"where": 3, "complex": 2, "atan2": 2, "copysign": 2}.get(name, 1)):
        usages = {"where": "where(condition, value if true, value if false)", "complex": "complex(real, imaginary)"}
        usage = usages.get(name)
        raise refusal(f"`{name}` takes {wanted} argument{'s' if wanted > 1 else ''}, not {count}", at, node, usage)
    return Call(name, args, at.span(node))


def _reducer(name: str, node: ast.Call, head: ast.Subscript, at: Positions) -> Reducer:
    _refuse_keywords(node, at)
    if len(node.args) != 1:
        raise refusal(f"`{name}[...]` takes one expression, not {len(node.args)}", at, node, f"write {name}[k](x[k])")
    items = sequence_items(head.slice)
    if not items:
        raise refusal(f"`{name}[...]` names no index", at, head, f"write {name}[k](x[k])")
    for item in items:
        if not isinstance(item, (ast.Name, ast.Compare, ast.BoolOp, ast.UnaryOp)) or (
            isinstance(item, ast.UnaryOp) and not isinstance(item.op, ast.Not)
        ):
            hint = f"write {name}[k](...) or, with a bound, {name}[k < 3](...)"
            raise refusal("an item of a reducer is an index or a condition", at, item, hint)
    (kind,) = (kind for kind in get_args(ReducerKind) if kind == name)
    return Reducer(
        kind,
        tuple(parse_expression(item, at) for item in items),
        parse_expression(node.args[0], at),
        at.span(node),
    )


def _pad(node: ast.Call, rank: int, at: Positions) -> Pad:
    """`pad(x, widths)` with NumPy's short forms written out: one number, or one pair, counts for every dimension."""
    if node.keywords or len(node.args) != 2:
        raise refusal("`pad` takes a tensor and the widths", at, node, "pad(x, ((0, 0), (1, 1))): it pads with zeros")
    tensor, widths = node.args
    if not isinstance(tensor, ast.Name):
        raise refusal("`pad` takes the name of a tensor", at, tensor, "assign the expression to a tensor first")
    pairs: list[tuple[ast.expr, ast.expr]]
    match widths:
        case ast.Tuple(elts=[ast.Tuple(elts=[before, after])]):
            pairs = [(before, after)] * rank
        case ast.Tuple(elts=[*dimensions]) if dimensions and all(isinstance(d, ast.Tuple) for d in dimensions):
            pairs = []
            for dimension in dimensions:
                ends = sequence_items(dimension)
                if len(ends) != 2:
                    raise refusal("a pad width is a pair (before, after)", at, dimension)
                pairs.append((ends[0], ends[1]))
        case ast.Tuple(elts=[before, after]):
            pairs = [(before, after)] * rank
        case ast.Tuple():
            raise refusal("pad widths are pairs (before, after), one per dimension", at, widths, "((0, 0), (1, 1))")
        case both:
            pairs = [(both, both)] * rank
    if len(pairs) != rank:
        hint = "one pair (before, after) per dimension"
        message = f"`pad` has {counted(len(pairs), 'pair')} of widths for {counted(rank, 'subscript')}"
        raise refusal(message, at, widths, hint)
    for end in (end for pair in pairs for end in pair):
        if isinstance(end, ast.UnaryOp) and isinstance(end.op, ast.USub):
            raise refusal("a pad width is negative", at, end, "to cut a margin off, shift the subscript instead")
    parsed = tuple((parse_expression(before, at), parse_expression(after, at)) for before, after in pairs)
    return Pad(tensor.id, parsed, at.span(node))
