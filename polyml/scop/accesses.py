"""Access relations of expressions: which elements an instance touches, under which affine guards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import assert_never

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.sets.affine import Affine, affine, combine
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


def condition_text(condition: Expr) -> str | None:
    """A bool expression as an isl constraint, or None when it is not affine."""
    match condition:
        case Const():
            return "true" if condition.value else "false"
        case Apply(op="not", args=(inner,)):
            text = condition_text(inner)
            return None if text is None else f"not ({text})"
        case Apply(op="and" | "or" as op, args=(first, second)):
            left, right = condition_text(first), condition_text(second)
            return None if left is None or right is None else f"(({left}) {op} ({right}))"
        case Apply(op=op, args=(first, second)) if op in _COMPARISONS:
            low, high = as_affine(first), as_affine(second)
            return None if low is None or high is None else f"{low.isl_text()} {_COMPARISONS[op]} {high.isl_text()}"
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
                text = condition_text(condition)
                where, elsewhere = (
                    (guard, guard) if text is None else ((*guard, f"({text})"), (*guard, f"not ({text})"))
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
    return _map(
        f"{parameters_text(sizes)}{{ {statement}[{', '.join(indices)}] -> {array}[{', '.join(outputs)}]{where} }}"
    )


@lru_cache(maxsize=256)
def _map(text: str) -> isl.Map:
    """isl takes longer to read a text than for most of what is asked of the map, and several scops have the same statements."""
    return isl.Map(text)
