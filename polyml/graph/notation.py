"""How expressions are written: as in Python, and in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import assert_never

from polyml.expressions import Apply, Const, Expr, IndexValue, Read
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["LATEX", "LATEX_REDUCERS", "TEXT", "Style", "latex_index", "latex_name", "latex_read", "precedence"]

_INFIX = {
    "or": ("or", 1), "and": ("and", 2),
    "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4),
    "bitor": ("|", 5), "bitxor": ("^", 6), "bitand": ("&", 7), "shl": ("<<", 8), "shr": (">>", 8),
    "add": ("+", 9), "sub": ("-", 9), "mul": ("*", 10), "div": ("/", 10), "floordiv": ("//", 10), "mod": ("%", 10), "pow": ("**", 12),
}  # fmt: skip
_NOT, _SUM, _PRODUCT, _SIGN, _ATOM = 3, 9, 10, 11, 13


def precedence(expr: Expr) -> int:
    """How tightly the expression binds, on Python's scale."""
    match expr:
        case Apply() if expr.op in _INFIX:
            return _INFIX[expr.op][1]
        case Apply(op="neg"):
            return _SIGN
        case Apply(op="not"):
            return _NOT
        case IndexValue() if len(expr.affine.terms) + (expr.affine.constant != 0) > 1:
            return _SUM
        case Const() if not isinstance(expr.value, bool) and expr.value < 0:
            return _SIGN
        case _:
            return _ATOM


@dataclass(frozen=True, slots=True)
class Style:
    """How one notation writes the nodes: `apply` gets the node and a function that renders an argument for a least precedence."""

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
        return self.group(text) if precedence(expr) < least else text


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


TEXT = Style(
    number=_number_text,
    index=str,
    read=lambda name, places: f"{name}[{', '.join(places)}]" if places else name,
    apply=_apply_text,
    group=lambda text: f"({text})",
)


# -- LaTeX ---------------------------------------------------------------------------------------------------------------------

_LATEX_INFIX = {
    "mul": r"\,", "eq": "=", "ne": r"\ne", "le": r"\le", "ge": r"\ge", "and": r"\land", "or": r"\lor", "mod": r"\bmod",
}  # fmt: skip
_LATEX_FUNCTIONS = frozenset("exp log sin cos tanh min max".split())
LATEX_REDUCERS = {
    "sum": r"\sum",
    "prod": r"\prod",
    "max": r"\max",
    "min": r"\min",
    "any": r"\bigvee",
    "all": r"\bigwedge",
}


def latex_name(name: str) -> str:
    return name if len(name) == 1 else f"\\mathit{{{name.replace('_', chr(92) + '_')}}}"


def latex_index(value: Affine) -> str:
    names = sorted(value.variables(), key=len, reverse=True)
    text = str(value).replace("*", r"\,")
    for name in names:
        if len(name) > 1:
            text = re.sub(rf"\b{name}\b", lambda _, n=name: latex_name(n), text)  # type: ignore[misc]
    return re.sub(r"\(([^()]*)\)//(\d+)", r"\\lfloor \\tfrac{\1}{\2} \\rfloor", text)


def latex_read(name: str, places: list[str]) -> str:
    return f"{latex_name(name)}_{{{', '.join(places)}}}" if places else latex_name(name)


def _latex_apply(expr: Apply, render: Callable[[Expr, int], str]) -> str:
    args = expr.args
    match expr.op:
        case "div":
            return f"\\frac{{{render(args[0], 0)}}}{{{render(args[1], 0)}}}"
        case "pow":
            return f"{render(args[0], _ATOM)}^{{{render(args[1], 0)}}}"
        case "floordiv":
            return f"\\lfloor {render(args[0], _PRODUCT)} / {render(args[1], _SIGN)} \\rfloor"
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


LATEX = Style(
    number=lambda const: _number_text(const).replace("inf", r"\infty"),
    index=latex_index,
    read=latex_read,
    apply=_latex_apply,
    group=lambda text: f"\\left({text}\\right)",
)
