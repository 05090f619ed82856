"""Access relations of expressions: which elements an instance touches, under which affine guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def guarded_reads(expr: Expr, guard: tuple[str, ...] = ()) -> Iterator[tuple[Read, tuple[str, ...]]]:
    """Every read with the affine conditions of the `select` branches that it stands in (isl constraints, to be conjoined)."""
    match expr:
        case Const() | IndexValue():
            return
        case Read():
            yield expr, guard
            for subscript in expr.subscripts:
                if not isinstance(subscript, Affine):
                    yield from guarded_reads(subscript, guard)
        case Apply(op="select", args=(condition, chosen, other)):
            yield from guarded_reads(condition, guard)
            text = condition_text(condition)
            yield from guarded_reads(chosen, guard if text is None else (*guard, f"({text})"))
            yield from guarded_reads(other, guard if text is None else (*guard, f"not ({text})"))
        case Apply():
            for arg in expr.args:
                yield from guarded_reads(arg, guard)


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
    return isl.Map(
        f"{parameters_text(sizes)}{{ {statement}[{', '.join(indices)}] -> {array}[{', '.join(outputs)}]{where} }}"
    )
