"""Access relations of expressions: which elements an instance touches, under which affine guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.sets.affine import Affine, affine, combine
from polyml.sets.from_text import map_of
from polyml.sets.linear_maps import map_to
from polyml.sets.spaces import parameters_text

__all__ = ["access_map", "as_affine", "condition_text", "guarded_reads"]

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "!="}


def as_affine(expr: Expr) -> Affine | None:
    """The quasi-affine form of an integer expression, or None when it has none."""
    match expr:
        case IndexValue():
            return expr.affine
        case Const() if isinstance(expr.value, int) and not isinstance(expr.value, bool):
            return affine(expr.value)
        case Apply(op="cast", args=(inner,)) if expr.dtype.is_integer and expr.dtype.bits == 64:
            return as_affine(inner)
        case Apply(op="neg", args=(inner,)):
            operand = as_affine(inner)
            return None if operand is None else -operand
        case Apply(op="add" | "sub" | "mul" | "floordiv" | "mod" as op, args=(first, second)):
            left, right = as_affine(first), as_affine(second)
            return None if left is None or right is None else combine(_ARITHMETIC[op], left, right)
        case _:
            return None


def condition_text(condition: Expr, *, negated: bool = False) -> str | None:
    """What a bool expression (or its negation) says about indices, as an isl constraint; None where it says nothing.

    Of `1 <= i and m[i]` it is the left side: where only one side of several has to hold, all of them must be affine.
    """
    match condition:
        case Const():
            return "true" if bool(condition.value) != negated else "false"
        case Apply(op="not", args=(inner,)):
            return condition_text(inner, negated=not negated)
        case Apply(op="and" | "or" as op, args=args):
            known = [text for arg in args if (text := condition_text(arg, negated=negated)) is not None]
            every = (op == "and") != negated
            if not known or (not every and len(known) < len(args)):
                return None
            return f"({(' and ' if every else ' or ').join(known)})"
        case Apply(op=op, args=(first, second)) if op in _COMPARISONS:
            low, high = as_affine(first), as_affine(second)
            if low is None or high is None:
                return None
            text = f"{low.isl_text()} {_COMPARISONS[op]} {high.isl_text()}"
            return f"not ({text})" if negated else f"({text})"
        case _:
            return None


def guarded_reads(expr: Expr) -> list[tuple[Read, tuple[str, ...]]]:
    """Every read in the order of the text, with the affine conditions of the `select` branches that it stands in (isl constraints, to be conjoined)."""
    found: list[tuple[Read, tuple[str, ...]]] = []
    stack: list[tuple[Expr, tuple[str, ...]]] = [(expr, ())]
    while stack:
        node, guard = stack.pop()
        match node:
            case Const() | IndexValue():
                pass
            case Read():
                found.append((node, guard))
                stack.extend((s, guard) for s in reversed(node.subscripts) if not isinstance(s, Affine))
            case Apply(op="select", args=(condition, chosen, other)):
                where, elsewhere = (
                    guard if text is None else (*guard, text)
                    for text in (condition_text(condition), condition_text(condition, negated=True))
                )
                stack += [(other, elsewhere), (chosen, where), (condition, guard)]
            case Apply():
                stack.extend((arg, guard) for arg in reversed(node.args))
            case _:
                assert_never(node)
    return found


def access_map(
    statement: str,
    indices: Sequence[str],
    array: str,
    subscripts: Sequence[Subscript],
    shape: Sequence[Affine],
    *,
    sizes: Sequence[str] = (),
    guard: Sequence[str] = (),
) -> isl.Map:
    """`{ statement[indices] -> array[subscripts] : guard }`; an indirect subscript reaches its whole dimension (`shape`)."""
    plain = tuple(subscript for subscript in subscripts if isinstance(subscript, Affine))
    if not guard and len(plain) == len(subscripts):
        return map_to(statement, tuple(indices), array, plain, tuple(sizes))
    outputs: list[str] = []
    constraints = list(guard)
    for position, subscript in enumerate(subscripts):
        if isinstance(subscript, Affine):
            outputs.append(subscript.isl_text())
            continue
        element = f"any{position}"
        outputs.append(element)
        constraints.append(f"0 <= {element} < {shape[position].isl_text()}")
    where = f" : {' and '.join(constraints)}" if constraints else ""
    return map_of(
        f"{parameters_text(sizes)}{{ {statement}[{', '.join(indices)}] -> {array}[{', '.join(outputs)}]{where} }}"
    )
