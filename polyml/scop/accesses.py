"""Access relations of expressions: which elements an instance touches, under which affine guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.sets.affine import Affine
from polyml.sets.affine_conditions import condition_text
from polyml.sets.from_text import map_of
from polyml.sets.linear_maps import map_to
from polyml.sets.spaces import parameters_text

__all__ = ["access_map", "guarded_reads"]


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
