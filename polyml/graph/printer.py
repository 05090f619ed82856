"""Graphs for people: one line per equation as text, as an HTML table, or as LaTeX."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import assert_never

import islpy as isl

from polyml.expressions import Subscript
from polyml.graph.ir import Check, Equation, Graph, Loop, Op, Tensor
from polyml.graph.notation import LATEX, LATEX_REDUCERS, TEXT, latex_index, latex_name, latex_read, precedence
from polyml.nesting import deeply_nested
from polyml.sets.affine import Affine
from polyml.shown import html_of, latex_of, text_of

__all__ = ["equation_text", "graph_html", "graph_latex", "graph_text", "op_lines"]

# -- text ---------------------------------------------------------------------------------------------------------------------


@text_of.register
@deeply_nested()
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
    body = TEXT.render(equation.body, 0)
    if equation.reduce is not None and equation.reduced:
        tight = equation.reduce == "sum" and precedence(equation.body) >= 6
        body = f"{equation.reduce}_{'_'.join(equation.reduced)} {body if tight else f'({body})'}"
    sign = (
        "=" if not equation.accumulate else {"sum": "+=", "prod": "*="}.get(str(equation.reduce), f"{equation.reduce}=")
    )
    base = f"   in {equation.base.name}" if equation.base is not None else ""
    base += f"   if {equation.only_if.name}" if equation.only_if is not None else ""
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
    if len(pieces) > 1:
        conditions = [
            " and ".join(filter(None, (*_numbers(piece), piece.partition(" : ")[2].strip()))) for piece in pieces
        ]
    else:
        conditions = [piece.split(" : ", 1)[1].strip() for piece in pieces if " : " in piece]
    joined = " or ".join(f"({c})" if len(conditions) > 1 else c for c in conditions)
    return re.sub(r"<= (\d+)(?![\w*])", lambda m: f"< {int(m.group(1)) + 1}", joined)


def _numbers(piece: str) -> list[str]:
    """The indices that one of several parts of a domain has single values of: `i = 0`."""
    inside = re.search(r"\[(.*)\]", piece.partition(" : ")[0])
    return [part.strip() for part in inside.group(1).split(",") if " = " in part] if inside else []


def _subscript_text(subscript: Subscript) -> str:
    return str(subscript) if isinstance(subscript, Affine) else TEXT.render(subscript, 0)


# -- HTML ---------------------------------------------------------------------------------------------------------------------


@html_of.register
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


@latex_of.register
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
                bounds = f"{latex_index(op.start)}, \\dots, {latex_index(op.stop - (1 if op.step > 0 else -1))}"
                lines.append(f"& \\text{{for }} {latex_name(op.variable)} = {bounds}:")
                lines += _latex_lines(op.body)
            case Check():
                lines.append(f"& \\text{{require }} \\lnot {latex_name(op.flag.name)}")
            case _:
                assert_never(op)
    return lines


def _latex_equation(equation: Equation) -> str:
    places = [latex_index(s) if isinstance(s, Affine) else LATEX.render(s, 0) for s in equation.target]
    left = latex_read(equation.result.name, places)
    body = LATEX.render(equation.body, 6 if equation.reduced else 0)
    if equation.reduce is not None and equation.reduced:
        operator = LATEX_REDUCERS.get(equation.reduce, f"\\operatorname*{{{equation.reduce}}}")
        body = f"{operator}_{{{', '.join(map(latex_name, equation.reduced))}}} {body}"
    sign = r"\mathrel{+}=" if equation.accumulate and equation.reduce == "sum" else "="
    return f"{left} &{sign} {body}"
