"""Graphs for people: one line per equation as text, as an HTML table, or as LaTeX."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.graph.ir import Check, Equation, Graph, Loop, Op, Tensor
from polyml.sets.affine import Affine

__all__ = ["equation_text", "graph_html", "graph_latex", "graph_text", "op_lines"]

_INFIX = {
    "or": ("or", 1), "and": ("and", 2),
    "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4),
    "add": ("+", 5), "sub": ("-", 5), "mul": ("*", 6), "div": ("/", 6), "floordiv": ("//", 6), "mod": ("%", 6), "pow": ("**", 8),
}  # fmt: skip
_NOT, _SIGN, _ATOM = 3, 7, 9


# -- text ---------------------------------------------------------------------------------------------------------------------


def graph_text(graph: Graph) -> str:
    """The graph as a program: a header, one line per equation with its domain, loops indented, results."""
    sizes = [f"{size}: int" for size in graph.sizes]
    inputs = [f"{item.tensor.name}: {_type_text(item.tensor)}" for item in graph.inputs]
    lines = [f"{graph.name}({', '.join((*sizes, *inputs))}):", *op_lines(graph.ops, indent=1)]
    lines += [f"    {i.tensor.name} holds {i.final.name}" for i in graph.inputs if i.final is not None]
    lines.append(f"    return {', '.join(tensor.name for tensor in graph.outputs)}")
    return "\n".join(lines)


def op_lines(ops: Iterable[Op], *, indent: int = 0) -> list[str]:
    """One line per equation; a loop's line is followed by its body, its carried tensors behind it."""
    lines: list[str] = []
    pad = "    " * indent
    for op in ops:
        match op:
            case Equation():
                where = _domain_text(op)
                lines.append(f"{pad}{equation_text(op)}" + (f"   for {where}" if where else ""))
            case Loop():
                step = "" if op.step == 1 else f", {op.step}"
                lines.append(f"{pad}for {op.variable} in range({op.start}, {op.stop}{step}):")
                lines += [f"{pad}    {c.inner.name} = {c.initial.name}, then {c.next.name}" for c in op.carried]
                lines += op_lines(op.body, indent=indent + 1)
                lines += [f"{pad}{c.result.name} = {c.inner.name} at the end" for c in op.carried]
            case Check():
                lines.append(f"{pad}raise {op.error} if {op.flag.name}")
            case _:
                assert_never(op)
    return lines


def equation_text(equation: Equation) -> str:
    """`y[n, m] = sum_k x[n, k] * w[k, m]`; an update names its base: `y2[i] += .. in y1`."""
    name = equation.result.name
    left = f"{name}[{', '.join(_subscript_text(s) for s in equation.target)}]" if equation.target else name
    body = _TEXT.render(equation.body, 0)
    if equation.reduce is not None and equation.reduced:
        tight = equation.reduce == "sum" and _precedence(equation.body) >= 6
        body = f"{equation.reduce}_{'_'.join(equation.reduced)} {body if tight else f'({body})'}"
    sign = (
        "=" if not equation.accumulate else {"sum": "+=", "prod": "*="}.get(str(equation.reduce), f"{equation.reduce}=")
    )
    base = f"   in {equation.base.name}" if equation.base is not None else ""
    return f"{left} {sign} {body}{base}"


def _type_text(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]" if tensor.shape else str(tensor.dtype)


def _domain_text(equation: Equation) -> str:
    """The domain's conditions, with upper bounds as in Python: `0 <= n < 32 and 0 <= m < 10`."""
    domain = equation.domain
    for position, name in enumerate(equation.indices):
        domain = domain.set_dim_name(isl.dim_type.set, position, name)
    text = str(domain)
    pieces = re.findall(r"\{(.*)\}", text)[0].split(";")
    conditions = [piece.split(" : ", 1)[1].strip() for piece in pieces if " : " in piece]
    joined = " or ".join(f"({c})" if len(conditions) > 1 else c for c in conditions)
    return re.sub(r"<= (\d+)(?![\w*])", lambda m: f"< {int(m.group(1)) + 1}", joined)


def _subscript_text(subscript: Subscript) -> str:
    return str(subscript) if isinstance(subscript, Affine) else _TEXT.render(subscript, 0)


# -- expressions --------------------------------------------------------------------------------------------------------------


def _precedence(expr: Expr) -> int:
    match expr:
        case Apply() if expr.op in _INFIX:
            return _INFIX[expr.op][1]
        case Apply(op="neg"):
            return _SIGN
        case Apply(op="not"):
            return _NOT
        case IndexValue() if len(expr.affine.terms) + (expr.affine.constant != 0) > 1:
            return 5
        case Const() if not isinstance(expr.value, bool) and expr.value < 0:
            return _SIGN
        case _:
            return _ATOM


@dataclass(frozen=True, slots=True)
class _Style:
    """How one notation writes the nodes: `apply` gets the node and a function that renders an argument for a precedence, or None for infix."""

    number: Callable[[Const], str]
    index: Callable[[Affine], str]
    read: Callable[[str, list[str]], str]
    apply: Callable[[Apply, Callable[[Expr, int], str]], str]
    group: Callable[[str], str]

    def render(self, expr: Expr, least: int) -> str:
        """The expression, in parentheses when it binds less tightly than `least`."""
        match expr:
            case Const():
                text = self.number(expr)
            case IndexValue():
                text = self.index(expr.affine)
            case Read():
                places = [self.index(s) if isinstance(s, Affine) else self.render(s, 0) for s in expr.subscripts]
                text = self.read(expr.tensor, places)
            case Apply():
                text = self.apply(expr, self.render)
            case _:
                assert_never(expr)
        return self.group(text) if _precedence(expr) < least else text


def _number_text(const: Const) -> str:
    return f"{const.value:.9g}" if const.dtype.is_float else str(const.value)


def _apply_text(expr: Apply, render: Callable[[Expr, int], str]) -> str:
    if expr.op in _INFIX:
        symbol, own = _INFIX[expr.op]
        # Left-associative, so that the right argument must bind tighter (pow the other way round).
        left, right = (own + 1, own) if expr.op == "pow" else (own, own + 1)
        return f"{render(expr.args[0], left)} {symbol} {render(expr.args[1], right)}"
    match expr.op:
        case "neg":
            return f"-{render(expr.args[0], _SIGN)}"
        case "not":
            return f"not {render(expr.args[0], _NOT)}"
        case "cast":
            return f"{expr.dtype}({render(expr.args[0], 0)})"
        case _:
            name = "where" if expr.op == "select" else expr.op
            return f"{name}({', '.join(render(arg, 0) for arg in expr.args)})"


_TEXT = _Style(
    number=_number_text,
    index=str,
    read=lambda name, places: f"{name}[{', '.join(places)}]" if places else name,
    apply=_apply_text,
    group=lambda text: f"({text})",
)


# -- HTML ---------------------------------------------------------------------------------------------------------------------


def graph_html(graph: Graph) -> str:
    """The graph as an HTML table: made tensor, its type, the equation, where it holds."""
    rows: list[str] = []
    for item in graph.inputs:
        rows.append(
            _row(item.tensor.name, _type_text(item.tensor), "input" + (", written" if item.written else ""), "")
        )
    rows += _rows(graph.ops, 0)
    results = ", ".join(tensor.name for tensor in graph.outputs)
    head = "<tr><th>tensor</th><th>type</th><th>equation</th><th>for</th></tr>"
    title = f"<caption>{html.escape(graph.name)} &rarr; {html.escape(results)}</caption>"
    return f"<table class='polyml-graph'>{title}{head}{''.join(rows)}</table>"


def _rows(ops: Iterable[Op], depth: int) -> list[str]:
    rows: list[str] = []
    for op in ops:
        match op:
            case Equation():
                rows.append(_row(op.result.name, _type_text(op.result), equation_text(op), _domain_text(op), depth))
            case Loop():
                (line, *_) = op_lines((op,))
                rows.append(_row("", "", line, "", depth))
                rows += _rows(op.body, depth + 1)
                for carried in op.carried:
                    text = f"{carried.inner.name} = {carried.initial.name}, then {carried.next.name}"
                    rows.append(_row(carried.result.name, _type_text(carried.result), text, "", depth))
            case Check():
                (line,) = op_lines((op,))
                rows.append(_row("", "", line, "", depth))
            case _:
                assert_never(op)
    return rows


def _row(name: str, kind: str, text: str, where: str, depth: int = 0) -> str:
    style = f" style='padding-left:{1 + 2 * depth}em;text-align:left'"
    cells = f"<td>{html.escape(name)}</td><td>{html.escape(kind)}</td>"
    return f"<tr>{cells}<td{style}><code>{html.escape(text)}</code></td><td><code>{html.escape(where)}</code></td></tr>"


# -- LaTeX --------------------------------------------------------------------------------------------------------------------

_LATEX_INFIX = {
    "mul": r"\,", "eq": "=", "ne": r"\ne", "le": r"\le", "ge": r"\ge", "and": r"\land", "or": r"\lor", "mod": r"\bmod",
}  # fmt: skip
_LATEX_FUNCTIONS = frozenset("exp log sin cos tanh min max".split())
_LATEX_REDUCERS = {
    "sum": r"\sum",
    "prod": r"\prod",
    "max": r"\max",
    "min": r"\min",
    "any": r"\bigvee",
    "all": r"\bigwedge",
}


def graph_latex(graph: Graph) -> str:
    """The graph's equations as a LaTeX `aligned` environment."""
    lines = _latex_lines(graph.ops)
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"


def _latex_lines(ops: Iterable[Op]) -> list[str]:
    lines: list[str] = []
    for op in ops:
        match op:
            case Equation():
                lines.append(_latex_equation(op))
            case Loop():
                bounds = f"{_latex_index(op.start)}, \\dots, {_latex_index(op.stop - (1 if op.step > 0 else -1))}"
                lines.append(f"& \\text{{for }} {_latex_name(op.variable)} = {bounds}:")
                lines += _latex_lines(op.body)
            case Check():
                lines.append(f"& \\text{{require }} \\lnot {_latex_name(op.flag.name)}")
            case _:
                assert_never(op)
    return lines


def _latex_equation(equation: Equation) -> str:
    places = [_latex_index(s) if isinstance(s, Affine) else _LATEX.render(s, 0) for s in equation.target]
    left = _latex_read(equation.result.name, places)
    body = _LATEX.render(equation.body, 6 if equation.reduced else 0)
    if equation.reduce is not None and equation.reduced:
        operator = _LATEX_REDUCERS.get(equation.reduce, f"\\operatorname*{{{equation.reduce}}}")
        body = f"{operator}_{{{', '.join(map(_latex_name, equation.reduced))}}} {body}"
    sign = r"\mathrel{+}=" if equation.accumulate and equation.reduce == "sum" else "="
    return f"{left} &{sign} {body}"


def _latex_name(name: str) -> str:
    return name if len(name) == 1 else f"\\mathit{{{name.replace('_', chr(92) + '_')}}}"


def _latex_index(value: Affine) -> str:
    names = sorted(value.variables(), key=len, reverse=True)
    text = str(value).replace("*", r"\,")
    for name in names:
        if len(name) > 1:
            text = re.sub(rf"\b{name}\b", lambda _, n=name: _latex_name(n), text)  # type: ignore[misc]
    return re.sub(r"\(([^()]*)\)//(\d+)", r"\\lfloor \\tfrac{\1}{\2} \\rfloor", text)


def _latex_read(name: str, places: list[str]) -> str:
    return f"{_latex_name(name)}_{{{', '.join(places)}}}" if places else _latex_name(name)


def _latex_apply(expr: Apply, render: Callable[[Expr, int], str]) -> str:
    args = expr.args
    match expr.op:
        case "div":
            return f"\\frac{{{render(args[0], 0)}}}{{{render(args[1], 0)}}}"
        case "pow":
            return f"{render(args[0], _ATOM)}^{{{render(args[1], 0)}}}"
        case "floordiv":
            return f"\\lfloor {render(args[0], 6)} / {render(args[1], 7)} \\rfloor"
        case "sqrt":
            return f"\\sqrt{{{render(args[0], 0)}}}"
        case "abs":
            return f"\\lvert {render(args[0], 0)} \\rvert"
        case "neg":
            return f"-{render(args[0], _SIGN)}"
        case "not":
            return f"\\lnot {render(args[0], _NOT)}"
        case "select":
            yes, no, condition = render(args[1], 0), render(args[2], 0), render(args[0], 0)
            return f"\\begin{{cases}} {yes} & {condition} \\\\ {no} & \\text{{else}} \\end{{cases}}"
        case op if op in _INFIX:
            symbol, own = _INFIX[op]
            return f"{render(args[0], own)} {_LATEX_INFIX.get(op, symbol)} {render(args[1], own + 1)}"
        case op:
            name = str(expr.dtype) if op == "cast" else op
            function = f"\\{name}" if name in _LATEX_FUNCTIONS else f"\\operatorname{{{name}}}"
            return f"{function}\\left({', '.join(render(arg, 0) for arg in args)}\\right)"


_LATEX = _Style(
    number=lambda const: _number_text(const).replace("inf", r"\infty"),
    index=_latex_index,
    read=_latex_read,
    apply=_latex_apply,
    group=lambda text: f"\\left({text}\\right)",
)
